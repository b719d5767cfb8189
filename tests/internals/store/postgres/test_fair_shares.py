"""What a node takes for the messages in flight of a fair queue, corrected by looks while other things happen."""

import tracemalloc

from veilmq.store.postgres.node import FairShares, Flight

NOISY = 7
HOUR_MS = 3_600_000


def flights(first: int, end: int, *, since_ms: int = 0) -> dict[int, Flight]:
    return {
        position: Flight(visible_at_ms=HOUR_MS, group=NOISY, since_ms=since_ms, kept_until_ms=2 * HOUR_MS)
        for position in range(first, end)
    }


def shares(number: int) -> FairShares:
    """Return the shares with so many messages of one group in flight since the first instant."""
    made = FairShares()
    for position, flight in flights(0, number).items():
        made.take_off(position, flight, 0)
    return made


def test_what_is_not_in_flight_any_more_has_ended() -> None:
    seen = shares(40)
    assert seen.noisy(0) == [NOISY]
    seen.fairness.drained(NOISY)
    seen.correct(flights(0, 29), 0, whole=True)
    assert seen.noisy(0) == []


def test_a_look_that_did_not_see_all_ends_nothing() -> None:
    seen = shares(40)
    seen.correct(flights(0, 29), 0, whole=False)
    assert seen.noisy(0) == [NOISY]


def test_what_was_heard_during_a_look_is_the_later_news() -> None:
    """Eleven were deleted after the look had seen them: they do not come back."""
    seen = shares(40)
    seen.fairness.drained(NOISY)
    seen.begin_refresh()
    for position in range(11):
        seen.land(position, 0)
    seen.correct(flights(0, 40), 0, whole=True)
    assert seen.noisy(0) == []


def test_what_was_given_during_a_look_stays_in_flight() -> None:
    seen = shares(20)
    seen.begin_refresh()
    for position, flight in flights(20, 40).items():
        seen.take_off(position, flight, 0)
    seen.correct(flights(0, 20), 0, whole=True)
    assert seen.noisy(0) == [NOISY]


def test_a_message_that_another_node_received_again_is_in_flight_anew() -> None:
    """Its first stretch has ended, and is work of the group."""
    seen = shares(1)
    seen.correct(flights(0, 1, since_ms=5_000), 5_000, whole=True)
    assert seen.noisy(5_000) == [NOISY]


def test_a_message_lands_when_its_retention_ends() -> None:
    """However long it would have been hidden."""
    seen = FairShares()
    for position in range(30):
        seen.take_off(position, Flight(HOUR_MS, NOISY, 0, 0), 0)
    seen.pass_time(1)
    assert seen.noisy(1) == []


def test_groups_are_in_the_order_of_what_they_have_in_flight() -> None:
    seen = shares(40)
    for position in range(100, 131):
        seen.take_off(position, Flight(HOUR_MS, NOISY + 1, 0, 2 * HOUR_MS), 0)
    assert seen.noisy(0, judge=False) == [NOISY + 1, NOISY]
    assert seen.noisy(0) == [NOISY + 1, NOISY]


def test_what_has_landed_is_not_remembered_until_it_would_have() -> None:
    """A queue may give and delete a thousand messages a second, each hidden for an hour."""
    seen = shares(10)
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    for position in range(10, 50_000):
        seen.take_off(position, Flight(HOUR_MS, NOISY, 0, HOUR_MS), 0)
        seen.land(position, 0)
    grown_bytes = sum(each.size_diff for each in tracemalloc.take_snapshot().compare_to(before, "filename"))
    tracemalloc.stop()
    assert grown_bytes < 1_000_000
    seen.pass_time(HOUR_MS)
    assert seen.noisy(HOUR_MS) == []


def test_a_group_that_took_much_is_noisy_again_when_it_ends_its_silence() -> None:
    """Its processing time still counts: half of it after each minute."""
    seen = shares(1)
    seen.land(0, 100_000)
    assert seen.noisy(300_000) == []
    seen.sent(NOISY, 300_001)
    assert seen.noisy(300_001) == [NOISY]
