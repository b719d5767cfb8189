"""The published thresholds of fair queues, at their edges."""

from veilmq.core.messages import Decaying, Fairness

NOW_MS = 1_000_000
MINUTE_MS = 60_000
A, B = 1, 2


def in_flight(**groups: int) -> Fairness:
    """Return tenants ``a`` and ``b`` with so many messages in flight."""
    fairness = Fairness()
    for name, count in groups.items():
        for _ in range(count):
            fairness.received({"a": A, "b": B}[name], NOW_MS)
    return fairness


def test_thirty_in_flight_and_more_than_a_tenth_are_noisy() -> None:
    assert in_flight(a=30).is_noisy(A, 269, NOW_MS)
    assert not in_flight(a=30).is_noisy(A, 270, NOW_MS), "exactly a tenth is not more than a tenth"
    assert not in_flight(a=29).is_noisy(A, 0, NOW_MS), "fewer than thirty are never noisy"


def test_the_share_is_of_all_groups_together() -> None:
    fairness = in_flight(a=30, b=270)
    assert not fairness.is_noisy(A, 0, NOW_MS)
    assert fairness.is_noisy(B, 0, NOW_MS)


def test_a_group_that_was_never_received_from_is_quiet() -> None:
    assert not in_flight(a=30).is_noisy(B, 0, NOW_MS)
    assert in_flight(a=30).in_flight(B) == 0


def test_more_than_a_tenth_of_the_processing_time_is_noisy() -> None:
    fairness = in_flight(a=1, b=1)
    fairness.ended(A, 1_000, NOW_MS)
    fairness.ended(B, 9_000, NOW_MS)
    assert not fairness.is_noisy(A, 0, NOW_MS)
    assert fairness.is_noisy(B, 0, NOW_MS)
    fairness.received(A, NOW_MS)
    fairness.ended(A, 1, NOW_MS)
    assert fairness.is_noisy(A, 0, NOW_MS), "1,001 of 10,001 ms is more than a tenth"


def test_processing_time_is_forgotten_by_halves() -> None:
    decaying = Decaying()
    decaying.add(800, NOW_MS)
    assert decaying.at(NOW_MS) == 800
    assert decaying.at(NOW_MS + MINUTE_MS) == 400
    decaying.add(100, NOW_MS + MINUTE_MS)
    assert decaying.at(NOW_MS + 2 * MINUTE_MS) == 250


def test_a_noisy_group_stays_noisy_until_it_is_drained() -> None:
    fairness = in_flight(a=30)
    assert fairness.is_noisy(A, 0, NOW_MS)
    for _ in range(30):
        fairness.ended(A, 0, NOW_MS)
    assert fairness.is_noisy(A, 0, NOW_MS), "its share fell, its backlog did not"
    fairness.drained(A)
    assert not fairness.is_noisy(A, 0, NOW_MS)


def test_a_group_that_sent_nothing_for_five_minutes_is_quiet() -> None:
    fairness = in_flight(a=30)
    fairness.sent(A, NOW_MS)
    assert fairness.is_noisy(A, 0, NOW_MS + 5 * MINUTE_MS - 1)
    assert not fairness.is_noisy(A, 0, NOW_MS + 5 * MINUTE_MS)
    fairness.sent(A, NOW_MS + 5 * MINUTE_MS)
    assert fairness.is_noisy(A, 0, NOW_MS + 5 * MINUTE_MS)


def test_five_minutes_of_silence_count_also_when_nobody_looked() -> None:
    fairness = in_flight(a=30)
    assert fairness.is_noisy(A, 0, NOW_MS)
    for _ in range(30):
        fairness.ended(A, 0, NOW_MS)
    fairness.sent(A, NOW_MS + 5 * MINUTE_MS)
    assert not fairness.is_noisy(A, 0, NOW_MS + 5 * MINUTE_MS)


def test_groups_that_ended_are_forgotten() -> None:
    fairness = Fairness()
    for group in range(10_000):
        fairness.received(group, NOW_MS)
        fairness.ended(group, 0, NOW_MS)
    assert len(fairness) < 2_000
