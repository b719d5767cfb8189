"""Rendering of bodies, ages, lists, lines, bars and policies for any content; forms of settings and tags."""

import json
import random
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilmq.console.distribution import Histogram, histogram
from veilmq.console.fields import InvalidField
from veilmq.console.live_queries import figures
from veilmq.console.message_list import CUT_CHARACTERS, HEX_BYTES_MAX, JSON_CHARACTERS_MAX, WHOLE_CHARACTERS, shown
from veilmq.console.pages.accounts import in_words
from veilmq.console.pages.queue_form import filled_tags, rows_of, texts_of, was
from veilmq.console.pages.queues import COLUMNS, HEIGHT, SIZE_DEFAULT, WIDTH, Column, Listing, sparkline
from veilmq.console.rendering import age, counted
from veilmq.console.setting_rows import GROUPS, ROWS
from veilmq.console.timeline import BARS_MAX, ENDED_MAX, ENDED_MS, RENEWALS_MAX, Bar, Ending, Timeline
from veilmq.console.timeline import words as bar_words
from veilmq.core.commands import BrowsedQueue, QueueOrder
from veilmq.core.limits import LEASE_S_MAX, SQS_TAGS_MAX
from veilmq.core.settings import QueueSettings
from veilmq.events import ProcessingTimes, bin_of
from veilmq.wire.v1.queues import Lease, SettingFields

# Bodies may be anything; rendering is bounded.


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_indented_json_is_that_of_json_dumps(value: object) -> None:
    for ascii_only in (True, False):
        body = json.dumps(value, ensure_ascii=ascii_only)
        seen = shown(body, "json", whole=True)
        if not seen.problem:  # a lone surrogate, which JSON cannot encode
            assert seen.text == json.dumps(value, ensure_ascii=ascii_only, indent=2)


def test_numbers_and_names_are_unchanged() -> None:
    seen = shown('{"a":1.0,"a":12345678901234567890123,"b":1e5}', "json")
    assert seen.text == '{\n  "a": 1.0,\n  "a": 12345678901234567890123,\n  "b": 1e5\n}'


@pytest.mark.parametrize(
    ("body", "size_bytes", "problem"),
    [
        *((body, None, "This is no JSON.") for body in ("", "nothing", "{", '{"a":}', "[1,]", "NaN", "1 2", "\ud800")),
        ("[" * 65_000 + "]" * 65_000, None, "too deeply"),
        ('{"a":' * 20_000 + "1" + "}" * 20_000, None, "too deeply"),
        (f'"{"x" * JSON_CHARACTERS_MAX}"', None, "too long"),
        ("[1]", 4, "too long"),  # it was cut
    ],
    ids=range(12),
)
def test_what_is_not_json_is_shown_as_text(body: str, size_bytes: int | None, problem: str) -> None:
    seen = shown(body, "json", size_bytes=size_bytes, whole=True)
    assert (seen.text, seen.view) == (body, "text")
    assert problem in seen.problem


def test_depth_does_not_multiply_the_size() -> None:
    """Even the deepest list, full of values, stays within the limit."""
    body = "[" * 500 + ",".join("1" for _ in range(65_000)) + "]" * 500
    seen = shown(body, "json", whole=True)
    assert (seen.view, seen.is_cut, len(seen.text)) == ("json", True, WHOLE_CHARACTERS)
    longest = json.dumps('\\"' * 200_000)
    seen = shown(longest, "json", whole=True)
    assert (seen.text, seen.is_cut) == (longest, False)


@pytest.mark.parametrize("view", ["text", "json", "hex"])
def test_a_long_body_is_cut_and_its_size_shown(view: str) -> None:
    seen = shown("x" * 600, view, size_bytes=601)
    assert (seen.size_bytes, seen.is_cut) == (601, True)
    if view != "hex":
        seen = shown('"' + "é" * 5_000 + '"', view)
        assert (len(seen.text), seen.is_cut, seen.size_bytes) == (CUT_CHARACTERS, True, 10_002)
        assert not shown('"' + "é" * 5_000 + '"', view, whole=True).is_cut


def test_hex_has_offsets_bytes_and_characters() -> None:
    seen = shown("veilmq says 🐘\n", "hex")
    assert seen.size_bytes == 17
    assert seen.text.splitlines() == [
        "000000  76 65 69 6c 6d 71 20 73 61 79 73 20 f0 9f 90 98  veilmq says ....",
        "000010  0a                                               .",
    ]
    body = random.Random(1).randbytes(40_000).hex()
    assert len(shown(body, "hex").text.splitlines()) == 32
    whole = shown(body, "hex", whole=True)
    assert (len(whole.text.splitlines()), whole.is_cut) == (HEX_BYTES_MAX // 16, True)


# Ages change once a minute, so that open pages need no updates for old messages.


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((None, "–"), (-0.4, "0 s"), (0.4, "0 s"), (59.9, "59 s"), (60.0, "1 min"), (119.9, "1 min")),
        *((5_459.0, "1 h 30 min"), (86_400.0, "1 d")),
    ],
)
def test_an_age_above_a_minute_changes_once_a_minute(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("count", "unit", "text"),
    [(1, "queues", "1 queue"), (0, "bytes", "0 bytes"), (2_048, "receives per second", "2,048 receives per second")],
)
def test_a_number_agrees_with_its_unit(count: int, unit: str, text: str) -> None:
    assert counted(count, unit) == text


# URLs of lists of queues.


NAME, VISIBLE = COLUMNS[0], COLUMNS[1]


def test_a_url_is_read_back_as_its_listing() -> None:
    listing = Listing(search="a&b=é", order=QueueOrder.OLDEST, descending=True, page=3, size=100)
    assert listing.url == "/console/queues?search=a%26b%3D%C3%A9&sort=oldest&descending=true&page=3&size=100"
    query = {"search": "a&b=é", "sort": "oldest", "descending": "true", "page": "3", "size": "100"}
    assert Listing.of(query) == listing
    assert Listing.of({}).url == "/console/queues"


@pytest.mark.parametrize(
    "query",
    [
        {"page": "0", "size": "7", "sort": "policy", "descending": "1"},
        {"page": "-1", "size": "", "sort": ""},
        {"page": "٣", "size": "9" * 400},
        {"page": "9" * 400},
        {"search": "  "},
    ],
)
def test_invalid_parameters_are_ignored(query: dict[str, str]) -> None:
    assert Listing.of(query) == Listing()


def test_page_size_and_search_are_limited() -> None:
    listing = Listing(page=3, size=25)
    assert listing.parameters == {"search": "", "sort": "name", "descending": "false", "first": 50, "count": 25}
    assert listing.page_url(4) == "/console/queues?page=4&size=25"
    assert Listing().parameters["count"] == SIZE_DEFAULT
    assert len(Listing.of({"search": "x" * 1_000}).search) == 256


@pytest.mark.parametrize(
    ("listing", "column", "query", "direction"),
    [
        (Listing(), NAME, "?descending=true", "ascending"),
        (Listing(descending=True), NAME, "", "descending"),
        (Listing(page=4), VISIBLE, "?sort=visible&descending=true", "none"),
        (Listing(order=QueueOrder.VISIBLE, descending=True), VISIBLE, "?sort=visible", "descending"),
        (Listing(order=QueueOrder.VISIBLE), NAME, "", "none"),
        (Listing(search="x", size=25), VISIBLE, "?search=x&sort=visible&descending=true&size=25", "none"),
    ],
)
def test_a_column_sorts_and_reverses(listing: Listing, column: Column, query: str, direction: str) -> None:
    assert (listing.sorted_url(column), listing.direction(column)) == (f"/console/queues{query}", direction)


def test_every_order_has_a_column_with_a_figure() -> None:
    assert [column.order for column in COLUMNS] == list(QueueOrder)
    assert [column.order.value for column in COLUMNS[1:]] == list(figures(BrowsedQueue(name="q"), 0))


# Policies in words.


def words(**element: Any) -> Any:
    """Return the words of a statement with ``element`` added to the required elements."""
    statement = {"Effect": "Allow", "Principal": "*", "Action": "sqs:*", **element}
    given = {name: value for name, value in statement.items() if value is not None}
    found = in_words(json.dumps({"Statement": given}))
    assert found is not None
    return found[0]


@pytest.mark.parametrize(
    ("elements", "who"),
    [
        ({"Principal": "*"}, "everybody"),
        ({"Principal": {"AWS": "*"}}, "everybody"),
        ({"Principal": {"AWS": ["111111111111", "222222222222"]}}, "111111111111, 222222222222"),
        ({"Principal": {"Service": "s3.amazonaws.com"}}, "Service s3.amazonaws.com"),
        ({"Principal": None, "NotPrincipal": {"AWS": "111111111111"}}, "all but 111111111111"),
    ],
)
def test_principals_in_words(elements: dict[str, Any], who: str) -> None:
    assert words(**elements).who == who


def test_actions_and_resources_in_words() -> None:
    found = words(Action=None, NotAction=["sqs:DeleteQueue", "sqs:PurgeQueue"], Resource="arn:aws:sqs:*:*:o*")
    assert (found.what, found.where) == ("all but sqs:DeleteQueue, sqs:PurgeQueue", "arn:aws:sqs:*:*:o*")
    assert words(Action="*").what == "everything"


@pytest.mark.parametrize(
    ("condition", "when"),
    [
        ({"IpAddress": {"aws:SourceIp": ["10.0.0.0/8", "::1"]}}, ["aws:SourceIp is in 10.0.0.0/8 or ::1"]),
        ({"Bool": {"aws:SecureTransport": True}}, ["aws:SecureTransport is true"]),
        ({"Null": {"aws:SourceArn": "true"}}, ["aws:SourceArn is absent"]),
        ({"Null": {"aws:SourceArn": "false"}}, ["aws:SourceArn is there"]),
        ({"StringLikeIfExists": {"aws:UserAgent": "curl*"}}, ["aws:UserAgent is like curl*, if it is there"]),
        ({"ForAnyValue:StringEquals": {"aws:username": "x"}}, ["any value of aws:username is x"]),
        (
            {"DateLessThan": {"aws:CurrentTime": "2027-01-01T00:00:00Z"}, "NumericLessThan": {"aws:EpochTime": 5}},
            ["aws:CurrentTime is before 2027-01-01T00:00:00Z", "aws:EpochTime is less than 5"],
        ),
    ],
)
def test_conditions_in_words(condition: dict[str, Any], when: list[str]) -> None:
    assert words(Condition=condition).when == when


@pytest.mark.parametrize("policy", ["", "x", "[]", '{"Statement": []}', '{"Statement": [1]}', "[" * 5_000])
def test_an_invalid_policy_has_no_words(policy: str) -> None:
    assert in_words(policy) is None


# Sparklines.


def test_a_line_spans_the_history() -> None:
    line = sparkline([(1_000, 0), (2_000, 10), (5_000, 5)])
    assert line is not None
    assert line.points == f"0.0,{HEIGHT - 2}.0 24.0,2.0 {WIDTH}.0,{HEIGHT / 2}"
    assert (line.least, line.most, line.span_ms) == (0, 10, 4_000)
    assert sparkline([]) is sparkline([(1, 5)]) is None


@pytest.mark.parametrize("history", [[(1, 0), (1, 0)], [(1, 7), (2, 7)], [(0, 0), (10**13, 10**18)]])
def test_a_line_stays_in_its_box(history: list[tuple[int, int]]) -> None:
    line = sparkline(history)
    assert line is not None
    points = [tuple(map(float, point.split(","))) for point in line.points.split()]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)


# The histogram of processing times: its columns and lines, all of them visible.


def drawn(times: ProcessingTimes, *, timeout_s: int = 30, recommended_s: int | None = None) -> Histogram:
    found = histogram(times, timeout_s=timeout_s, recommended_s=recommended_s)
    assert found is not None
    return found


def test_columns_are_stacked_by_how_receipts_ended() -> None:
    assert histogram(ProcessingTimes(), timeout_s=30, recommended_s=None) is None
    times = ProcessingTimes(
        deleted={bin_of(1_000): 1_200, bin_of(8_000): 3}, late={bin_of(50_000): 2}, expired={bin_of(30_000): 4}
    )
    found = drawn(times)
    ended = [(each.deleted, each.late, each.expired) for each in found.bins]
    assert ended == [(1_200, 0, 0), (3, 0, 0), (0, 0, 4), (0, 2, 0)]
    assert re.findall('class="([a-z]+)"', found.columns) == ["deleted", "deleted", "expired", "late"]
    assert "1,200 deleted" in found.columns
    heights = [float(height) for height in re.findall('height="([0-9.]+)"', found.columns)]
    assert min(heights) >= 1.0, "a small count is visible too"


@pytest.mark.parametrize(("timeout_s", "recommended_s"), [(43_200, 1), (1, 43_200), (0, 30)])
def test_timeout_lines_are_visible_wherever_the_receipts_are(timeout_s: int, recommended_s: int) -> None:
    """Also if a timeout is much longer or shorter than all processing times."""
    found = drawn(ProcessingTimes(deleted={bin_of(20): 1}), timeout_s=timeout_s, recommended_s=recommended_s)
    places = [float(x) for x in re.findall('<line class="(?:in-force|recommended)" x1="([0-9.]+)%"', found.lines)]
    assert len(places) == 2
    assert all(0 <= x <= 100 for x in places)
    if timeout_s:
        assert (places[0] < places[1]) == (timeout_s < recommended_s)


def test_a_recommendation_equal_to_the_timeout_is_one_line() -> None:
    assert drawn(ProcessingTimes(deleted={1: 1}), recommended_s=30).lines.count("<line") == 1


# Bars from repeated queries: where they begin and end, and how they ended.


def lease(message: str = "m", *, generation: int = 1, begin_ms: int = 0, end_ms: int = 30_000) -> Lease:
    return Lease(
        message_id=message,
        position=f"at {message}",
        generation=generation,
        received_at_ms=begin_ms,
        visible_at_ms=end_ms,
        receive_count=generation,
        extensions=None,
        group=None,
    )


def timeline_of(*results: tuple[int, list[Lease]]) -> Timeline:
    """Return the timeline after queries with these results at these times."""
    timeline = Timeline()
    for at_ms, leases in results:
        timeline.update(leases, at_ms)
    return timeline


def only(timeline: Timeline) -> Bar:
    (bar,) = timeline
    return bar


def test_a_bar_spans_from_receive_to_deadline() -> None:
    bar = only(timeline_of((1_000, [lease(begin_ms=100)])))
    assert (bar.lease.received_at_ms, bar.end_ms, bar.ending) == (100, 30_000, None)
    assert bar.max_deadline_ms == 100 + LEASE_S_MAX * 1_000
    assert "held since 00:00:00Z, until 00:00:30Z" in bar_words(bar), "times are in UTC, as elsewhere"


@pytest.mark.parametrize("late_ms", [0, 1, 999])
def test_a_bar_ends_at_its_deadline_and_stays_for_a_while(late_ms: int) -> None:
    timeline = timeline_of((29_999, [lease()]), (30_000 + late_ms, [lease()]))
    assert (only(timeline).ending, only(timeline).end_ms) == (Ending.EXPIRED, 30_000)
    timeline.update([], 30_000 + ENDED_MS - 1)
    assert only(timeline).ending is Ending.EXPIRED
    timeline.update([], 30_000 + ENDED_MS)
    assert not list(timeline)


def test_a_renewal_moves_the_end_and_leaves_a_tick() -> None:
    """The tick is at the time of the query; their number is limited."""
    timeline = timeline_of((1_000, [lease()]), (2_000, [lease(end_ms=31_000)]), (3_000, [lease(end_ms=31_000)]))
    assert (only(timeline).end_ms, only(timeline).renewed_at_ms) == (31_000, (2_000,))
    for at_ms in range(4_000, 4_000 + 2 * RENEWALS_MAX):
        timeline.update([lease(end_ms=at_ms + 30_000)], at_ms)
    assert len(only(timeline).renewed_at_ms) == RENEWALS_MAX


@pytest.mark.parametrize(
    ("there", "ending", "end_ms"),
    [
        ([], Ending.DELETED, 2_000),
        ([lease(end_ms=1_500)], Ending.RETURNED, 1_500),
        ([lease(generation=2, begin_ms=1_500, end_ms=1_900)], Ending.RETURNED, 2_000),
        ([lease("another")], Ending.DELETED, 2_000),
    ],
    ids=["deleted", "released", "received again", "deleted beside another"],
)
def test_the_message_shows_how_a_lease_ended_early(there: list[Lease], ending: Ending, end_ms: int) -> None:
    timeline = timeline_of((1_000, [lease()]))
    assert timeline.positions == ["at m"]
    timeline.update(there, 2_000)
    bar = next(iter(timeline))
    assert (bar.ending, bar.end_ms) == (ending, end_ms)
    assert "at m" not in timeline.positions


def test_a_message_missing_after_its_deadline_was_deleted() -> None:
    bar = only(timeline_of((29_500, [lease()]), (30_500, [])))
    assert (bar.ending, bar.end_ms) == (Ending.DELETED, 30_000)


def test_each_receive_of_a_message_has_its_own_bar() -> None:
    """The earlier lease was returned, or had expired."""
    timeline = timeline_of((1_000, [lease()]), (2_000, [lease(generation=2, begin_ms=1_500, end_ms=31_500)]))
    assert [(bar.ending, bar.row) for bar in timeline] == [(Ending.RETURNED, 0), (None, 1)]
    timeline.update([lease(generation=3, begin_ms=31_600, end_ms=61_600)], 32_000)
    assert [bar.ending for bar in timeline] == [None, Ending.EXPIRED], "the third has the row of the first"


def test_bars_keep_their_places() -> None:
    """A free row is used by the next bar."""
    a, b, c, d = map(lease, "abcd")
    timeline = timeline_of((0, [a, b, c]), (1_000, [a, c]), (1_000 + ENDED_MS, [a, c, d]))
    assert [(bar.lease.message_id, bar.row) for bar in timeline] == [("a", 0), ("d", 1), ("c", 2)]


def test_a_lease_that_is_no_longer_drawn_has_not_ended() -> None:
    """The number of bars is limited to those that end first."""
    long = lease("long", end_ms=90_000)
    short = [lease(f"s{number}", end_ms=25_000 + number) for number in range(BARS_MAX + 1)]
    timeline = timeline_of((0, [long, lease("gone", end_ms=20_000)]), (1_000, [*short, long]))
    ended = {bar.lease.message_id: bar.ending for bar in timeline if bar.ending is not None}
    assert ended == {"gone": Ending.DELETED}
    assert len(list(timeline)) == BARS_MAX + 1


def test_the_number_of_ended_bars_is_limited() -> None:
    results = [(second * 1_000, [lease(f"{second}-{number}") for number in range(BARS_MAX)]) for second in range(5)]
    timeline = timeline_of(*results)
    assert len(list(timeline)) == BARS_MAX + ENDED_MAX
    assert {bar.lease.message_id[0] for bar in timeline} == {"3", "4"}


# The table of settings is complete, and fields are read back as they were written.


def test_every_setting_has_one_row() -> None:
    listed = [row.setting for group in GROUPS for row in group.rows]
    assert sorted(listed) == sorted(SettingFields.__struct_fields__)
    assert {*listed, "tags", "purges"} == {field.name for field in msgspec.structs.fields(QueueSettings)}
    assert set(texts_of(QueueSettings(), ROWS.values())) == set(ROWS)


@pytest.mark.parametrize("setting", ["fifo", "event_log", "redrive_permission"])
def test_an_unknown_choice_is_refused(setting: str) -> None:
    with pytest.raises(InvalidField, match="Choose one of these"):
        ROWS[setting].kind.read("<script>")


# Tags: rows of keys and values.


TAGS = {"team": "a", "a=b": "c d"}
Rows = list[tuple[str, str]]


def tagged(tags: dict[str, str], typed: Rows) -> dict[str, str]:
    """Return a form that was opened with ``tags`` and now has the rows ``typed``."""
    fields = {"was.tags": was(tags)}
    for number, (key, value) in enumerate(typed):
        fields |= {f"tag.{number}.key": key, f"tag.{number}.value": value}
    return fields


def test_the_form_has_empty_rows() -> None:
    assert rows_of(TAGS) == [("team", "a"), ("a=b", "c d"), ("", ""), ("", ""), ("", "")]
    full = {str(number): "" for number in range(SQS_TAGS_MAX)}
    assert rows_of(full) == list(full.items())
    assert filled_tags({}, TAGS).rows == rows_of(TAGS), "a form without tags keeps them"


def test_a_concurrent_change_of_a_tag_is_an_error() -> None:
    found = filled_tags(tagged(TAGS, [("team", "b"), ("a=b", "c d")]), TAGS | {"team": "z"})
    assert found.problem.startswith("team: Another user has changed this")


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ([("k", "1"), ("k", "2")], "The key k occurs twice"),
        ([("k", "1"), ("", "c d")], "A value needs a key; to remove a tag, empty both."),
        ([("<b>", "1")], "A tag's key has 1 to 128 characters"),
        ([("k", "<b>")], "A tag's value has up to 256 characters"),
        ([("aws:k", "")], "does not begin with aws:"),
    ],
)
def test_an_invalid_tag_is_an_error_and_stays_in_the_form(typed: Rows, problem: str) -> None:
    found = filled_tags(tagged({}, typed), {})
    assert problem in found.problem
    assert found.rows[: len(typed)] == typed


def test_a_form_with_invalid_previous_tags_is_compared_with_the_current_ones() -> None:
    found = filled_tags(tagged(TAGS, [("team", "b")]) | {"was.tags": "{"}, TAGS)
    assert (found.put, found.removed) == ({"team": "b"}, ["a=b"])
