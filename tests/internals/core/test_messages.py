"""Properties and ids of messages, and noisy message groups."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from veilmq.core.messages import (
    NO_PROPERTIES,
    Attribute,
    Decaying,
    Fairness,
    IdSource,
    Lease,
    Properties,
    decode_properties,
    encode_properties,
)

ATTRIBUTES = st.dictionaries(
    st.text(max_size=20),
    st.builds(Attribute, type=st.text(max_size=20), text=st.text())
    | st.builds(Attribute, type=st.text(max_size=20), data=st.binary()),
    max_size=10,
)


@given(st.builds(Properties, attributes=ATTRIBUTES, system=ATTRIBUTES))
def test_encoded_properties_decode_unchanged(properties: Properties) -> None:
    assert decode_properties(encode_properties(properties)) == properties


def test_empty_properties_are_encoded_as_no_bytes() -> None:
    assert encode_properties(NO_PROPERTIES) == b""
    assert encode_properties(Properties()) == b""
    assert decode_properties(b"") == Properties()


def test_an_empty_text_differs_from_no_text() -> None:
    kept = Properties(attributes={"a": Attribute(type="String", text=""), "b": Attribute(type="Binary", data=b"")})
    attributes = decode_properties(encode_properties(kept)).attributes
    assert attributes["a"].text == ""
    assert attributes["a"].data is None
    assert attributes["b"].data == b""
    assert attributes["b"].text is None


def test_ids_are_unique_version_4_uuids() -> None:
    """Across many pages of random bytes."""
    source = IdSource()
    ids = [source.next() for _ in range(10_000)]
    assert len(set(ids)) == len(ids)
    for each in ids:
        parsed = uuid.UUID(bytes=each)
        assert parsed.version == 4
        assert parsed.variant == uuid.RFC_4122


NOW_MS = 1_000_000
MINUTE_MS = 60_000
HOUR_MS = NOW_MS + 60 * MINUTE_MS
A, B = 1, 2


def in_flight(**groups: int) -> Fairness:
    fairness = Fairness()
    for name, count in groups.items():
        for _ in range(count):
            begin_lease(fairness, {"a": A, "b": B}[name])
    return fairness


def begin_lease(fairness: Fairness, group: int, since_ms: int = NOW_MS) -> None:
    fairness.begin_lease(len(fairness.leases), Lease(HOUR_MS, group, since_ms), NOW_MS)


def end_all(fairness: Fairness) -> None:
    for position in list(fairness.leases):
        fairness.end_lease(position, NOW_MS)


def with_others(others: int, **groups: int) -> Fairness:
    fairness = in_flight(**groups)
    fairness.other_in_flight = others
    return fairness


def test_a_group_with_30_in_flight_and_more_than_a_tenth_is_noisy() -> None:
    assert with_others(269, a=30).is_noisy(A, NOW_MS)
    assert not with_others(270, a=30).is_noisy(A, NOW_MS), "exactly a tenth is not more than a tenth"
    assert not in_flight(a=29).is_noisy(A, NOW_MS), "fewer than thirty are never noisy"


def test_the_share_counts_the_messages_of_all_groups() -> None:
    fairness = in_flight(a=30, b=270)
    assert not fairness.is_noisy(A, NOW_MS)
    assert fairness.is_noisy(B, NOW_MS)


def test_a_group_with_more_than_a_tenth_of_the_processing_time_is_noisy() -> None:
    fairness = Fairness()
    begin_lease(fairness, A, NOW_MS - 1_000)
    begin_lease(fairness, B, NOW_MS - 9_000)
    end_all(fairness)
    assert not fairness.is_noisy(A, NOW_MS)
    assert fairness.is_noisy(B, NOW_MS)
    begin_lease(fairness, A, NOW_MS - 1)
    end_all(fairness)
    assert fairness.is_noisy(A, NOW_MS), "1,001 of 10,001 ms is more than a tenth"


def test_processing_time_has_a_half_life_of_one_minute() -> None:
    decaying = Decaying()
    decaying.add(800, NOW_MS)
    assert decaying.at(NOW_MS) == 800
    assert decaying.at(NOW_MS + MINUTE_MS) == 400
    decaying.add(100, NOW_MS + MINUTE_MS)
    assert decaying.at(NOW_MS + 2 * MINUTE_MS) == 250


def test_a_noisy_group_stays_noisy_until_its_backlog_is_empty() -> None:
    fairness = in_flight(a=30)
    assert fairness.is_noisy(A, NOW_MS)
    end_all(fairness)
    assert fairness.is_noisy(A, NOW_MS), "its share fell, its backlog did not"
    fairness.mark_drained(A)
    assert not fairness.is_noisy(A, NOW_MS)


def test_a_group_without_sends_for_five_minutes_is_quiet() -> None:
    fairness = in_flight(a=30)
    fairness.record_send(A, NOW_MS)
    assert fairness.is_noisy(A, NOW_MS + 5 * MINUTE_MS - 1)
    assert not fairness.is_noisy(A, NOW_MS + 5 * MINUTE_MS)
    fairness.record_send(A, NOW_MS + 5 * MINUTE_MS)
    assert fairness.is_noisy(A, NOW_MS + 5 * MINUTE_MS)


def test_silence_ends_noisiness_even_if_not_evaluated_meanwhile() -> None:
    fairness = in_flight(a=30)
    assert fairness.is_noisy(A, NOW_MS)
    end_all(fairness)
    fairness.record_send(A, NOW_MS + 5 * MINUTE_MS)
    assert not fairness.is_noisy(A, NOW_MS + 5 * MINUTE_MS)


def test_idle_groups_are_removed() -> None:
    fairness = Fairness()
    for group in range(10_000):
        begin_lease(fairness, group)
        end_all(fairness)
    assert len(fairness) < 2_000
