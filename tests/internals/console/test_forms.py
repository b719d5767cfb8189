"""Forms of settings and tags: each has a field, only what was changed is sent, what two have changed is nobody's."""

import msgspec
import pytest

from veilmq.console.asking import Refused
from veilmq.console.field_kinds import BYTES, SECONDS, Number, Unfit, plain, span
from veilmq.console.setting_form import FilledForm, field_of, filled, shown_rows, texts_of
from veilmq.console.setting_rows import GROUPS, ROWS, SettingRow
from veilmq.console.tag_rows import filled_tags, rows_of, was
from veilmq.core import limits
from veilmq.core.limits import SQS_TAGS_MAX, Range
from veilmq.core.settings import QueueSettings
from veilmq.wire.v1.queues import RANGES, SettingFields

# The table of settings: none is forgotten, and what a field shows is read back as what it was.


def test_every_setting_has_one_row_that_takes_part_in_a_form() -> None:
    listed = [row.setting for group in GROUPS for row in group.rows]
    assert sorted(listed) == sorted(SettingFields.__struct_fields__)
    assert {*listed, "tags", "purges"} == {field.name for field in msgspec.structs.fields(QueueSettings)}
    assert set(texts_of(QueueSettings(), ROWS.values())) == set(ROWS)


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.setting)
def test_the_default_is_read_back(row: SettingRow) -> None:
    default = getattr(QueueSettings(), row.setting)
    assert row.kind.read(row.kind.write(default)) == default


@pytest.mark.parametrize("name", RANGES)
def test_numbers_have_the_ranges_of_the_route(name: str) -> None:
    """The range is beside the field, its ends are read, and what is beyond them is refused by its range."""
    kind, allowed = ROWS[name].kind, RANGES[name]
    assert isinstance(kind, Number)
    assert f"{allowed.minimum:,} to {allowed.maximum:,}" in kind.hint
    for value in (allowed.minimum, allowed.maximum):
        assert kind.read(f" {value} ") == value
    for text in (str(allowed.minimum - 1), str(allowed.maximum + 1), "1.5", "٣", "1e3", "9" * 400):
        with pytest.raises(Unfit, match=span(allowed)):
            kind.read(text)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("visibility_timeout_s", "0 to 43,200 seconds; SMQ: 1 to 43,200."),
        ("delay_s", "0 to 604,800 seconds; SQS: 0 to 900."),
        ("retention_s", "60 to 1,209,600 seconds; SMQ: 60 to 604,800."),
        ("receive_wait_s", "0 to 30 seconds; SQS: 0 to 20."),
        ("message_bytes_max", "1,024 to 1,048,576 bytes; SMQ: 1,024 to 65,536."),
        ("receives_per_s_max", "0 to 1,000,000 receives a second; 0: no limit."),
        ("in_flight_max", "1 to 1,000,000 messages; empty: the server's own limit."),
    ],
)
def test_the_range_and_those_of_protocols_stand_beside_the_field(name: str, hint: str) -> None:
    assert ROWS[name].kind.hint == hint


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("visibility_timeout_s", 45, "45 seconds"),
        ("delay_s", 1, "1 second"),
        ("delay_s", 0, "0 seconds"),
        ("receives_per_s_max", 1, "1 receive a second"),
        ("visibility_timeout_s", 5_400, "5,400 seconds (1 h 30 min)"),
        ("in_flight_max", None, "the server's own limit"),
        ("receives_per_s_max", 0, "no limit"),
        ("receives_max", 5, "5 receives"),
        ("fifo", True, "yes"),
        ("throughput_limit", "group", "each message group"),
        ("dead_letter_queue", "000000000000/failed", "failed"),
        ("redrive_sources", ("000000000000/a", "000000000000/b"), "a, b"),
        ("event_log", "closed", "the ends of receipts"),
        ("policy", "", ""),
    ],
)
def test_values_are_told_in_words(setting: str, value: object, words: str) -> None:
    assert ROWS[setting].kind.words(value) == words  # type: ignore[arg-type]


@pytest.mark.parametrize("setting", ["fifo", "event_log", "redrive_permission"])
def test_what_is_none_of_the_choices_is_refused(setting: str) -> None:
    with pytest.raises(Unfit, match="Choose one of these"):
        ROWS[setting].kind.read("<script>")


def test_a_number_may_be_left_out_where_the_kind_says_so() -> None:
    required = Number(allowed=limits.DELAY_S, unit=SECONDS, protocols={})
    with pytest.raises(Unfit, match="0 to 604,800 seconds"):
        required.read(" ")
    optional = Number(allowed=Range(minimum=1, maximum=2, default=1), unit=BYTES, protocols={}, empty="any")
    assert (optional.read(""), optional.write(None)) == (None, "")


# Forms of settings.


PRESENT = QueueSettings(visibility_timeout_s=30, delay_s=5, policy='{\n"a": 1}')


def sent(now: QueueSettings = PRESENT, **typed: str) -> FilledForm:
    """Return what a form asks for that was opened on `PRESENT` and sent, with these typed over, where it is `now`."""
    texts = texts_of(PRESENT, shown_rows(PRESENT))
    fields = texts | {f"was.{name}": text for name, text in texts.items()} | typed
    return filled({name: text.replace("\n", "\r\n") for name, text in fields.items()}, now, shown_rows(now))


@pytest.mark.parametrize(
    ("meanwhile", "typed", "changes"),
    [
        pytest.param({}, {}, {}, id="nothing typed"),
        pytest.param({}, {"visibility_timeout_s": " 030 "}, {}, id="the same written otherwise"),
        pytest.param(
            {},
            {"visibility_timeout_s": "45", "in_flight_max": "7"},
            {"visibility_timeout_s": 45, "in_flight_max": 7},
            id="two",
        ),
        pytest.param(
            {"delay_s": 9}, {"visibility_timeout_s": "45"}, {"visibility_timeout_s": 45}, id="another by others"
        ),
        pytest.param({"visibility_timeout_s": 45}, {"visibility_timeout_s": "45"}, {}, id="both, to the same"),
    ],
)
def test_only_what_was_changed_is_sent(
    meanwhile: dict[str, int], typed: dict[str, str], changes: dict[str, int]
) -> None:
    found = sent(PRESENT.changed(meanwhile), **typed)
    assert (found.changes, found.problems) == (changes, {})
    assert found.texts["delay_s"] == str(meanwhile.get("delay_s", 5))


def test_a_standard_queue_has_no_field_of_fifo_queues() -> None:
    fifo = msgspec.structs.replace(PRESENT, fifo=True)
    more = {row.setting for row in shown_rows(fifo)} - {row.setting for row in shown_rows(PRESENT)}
    assert more == {"content_deduplication", "deduplication_scope", "throughput_limit"}
    assert "fifo" not in texts_of(fifo, shown_rows(fifo))


def test_line_ends_are_those_of_unix() -> None:
    assert plain("a\r\nb\nc") == "a\nb\nc"


@pytest.mark.parametrize(
    ("code", "message", "fields", "field"),
    [
        ("SettingsConflict", "No.", {"setting": "kms_key"}, "kms_key"),
        ("InvalidRequest", "delay_s: must be 0 to 604800.", {}, "delay_s"),
        ("InvalidRequest", "A name has 80 letters.", {}, ""),
        ("QueueExists", "No.", {"setting": "delay_s"}, "name"),
        ("QueueDeletedRecently", "Wait.", {}, "name"),
        ("DeadLetterQueueRefused", "None.", {"queue": "a/b"}, "dead_letter_queue"),
        ("InvalidAttributeValue", "No policy.", {}, "policy"),
        ("InvalidParameterValue", "A tag's key.", {}, "tags"),
        ("AccessDenied", "No.", {}, ""),
    ],
)
def test_a_refusal_belongs_to_a_field(code: str, message: str, fields: dict[str, str], field: str) -> None:
    assert field_of(Refused(code, message, 400, fields)) == field


# Tags: rows of keys and values.


TAGS = {"team": "a", "a=b": "c d"}
Rows = list[tuple[str, str]]


def tagged(tags: dict[str, str], typed: Rows) -> dict[str, str]:
    """Return the form that was opened with ``tags`` and has the rows ``typed`` now."""
    fields = {"was.tags": was(tags)}
    for number, (key, value) in enumerate(typed):
        fields |= {f"tag.{number}.key": key, f"tag.{number}.value": value}
    return fields


def test_there_is_room_for_further_ones() -> None:
    assert rows_of(TAGS) == [("team", "a"), ("a=b", "c d"), ("", ""), ("", ""), ("", "")]
    full = {str(number): "" for number in range(SQS_TAGS_MAX)}
    assert rows_of(full) == list(full.items())
    assert filled_tags({}, TAGS).rows == rows_of(TAGS), "a form without tags leaves them"


@pytest.mark.parametrize(
    ("typed", "meanwhile", "put", "removed"),
    [
        pytest.param(rows_of(TAGS), {}, {}, [], id="nothing"),
        pytest.param([("team", "b"), ("", ""), ("new", "")], {}, {"team": "b", "new": ""}, ["a=b"], id="some"),
        pytest.param([("team", "b"), ("a=b", "c d")], {"other": "x"}, {"team": "b"}, [], id="others another"),
    ],
)
def test_only_changes_of_tags_are_sent(
    typed: Rows, meanwhile: dict[str, str], put: dict[str, str], removed: list[str]
) -> None:
    found = filled_tags(tagged(TAGS, typed), TAGS | meanwhile)
    assert (found.put, found.removed, found.problem) == (put, removed, "")


def test_what_both_tagged_is_asked_about() -> None:
    found = filled_tags(tagged(TAGS, [("team", "b"), ("a=b", "c d")]), TAGS | {"team": "z"})
    assert found.problem.startswith("team: Somebody has changed this")


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ([("k", "1"), ("k", "2")], "The key k is there twice"),
        ([("k", "1"), ("", "c d")], "A value needs a key; to remove a tag, empty both."),
        ([("<b>", "1")], "A tag's key has 1 to 128 characters"),
        ([("k", "<b>")], "A tag's value has up to 256 characters"),
        ([("aws:k", "")], "does not begin with aws:"),
    ],
)
def test_what_cannot_be_a_tag_is_said_and_stays_in_the_form(typed: Rows, problem: str) -> None:
    found = filled_tags(tagged({}, typed), {})
    assert problem in found.problem
    assert found.rows[: len(typed)] == typed


def test_a_form_whose_memory_is_broken_is_compared_with_what_is_there() -> None:
    found = filled_tags(tagged(TAGS, [("team", "b")]) | {"was.tags": "{"}, TAGS)
    assert (found.put, found.removed) == ({"team": "b"}, ["a=b"])
