"""Bars from looks: where they begin and end, how they ended, and what cannot be known."""

import pytest

from veilmq.console.timeline import BARS_MAX, ENDED_MAX, KEPT_MS, RENEWALS_MAX, Bar, Ending, Timeline
from veilmq.core.limits import LEASE_S_MAX
from veilmq.wire.v1.queues import Lease


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


def only(timeline: Timeline) -> Bar:
    (bar,) = timeline
    return bar


def test_a_bar_is_from_its_receive_to_its_deadline() -> None:
    timeline = Timeline()
    timeline.look([lease(begin_ms=100)], 1_000)
    bar = only(timeline)
    assert (bar.lease.received_at_ms, bar.end_ms, bar.ending) == (100, 30_000, None)
    assert bar.wall_ms == 100 + LEASE_S_MAX * 1_000


@pytest.mark.parametrize("late_ms", [0, 1, 999])
def test_a_bar_ends_when_the_timeout_does(late_ms: int) -> None:
    timeline = Timeline()
    timeline.look([lease()], 29_999)
    timeline.look([lease()], 30_000 + late_ms)
    assert (only(timeline).ending, only(timeline).end_ms) == (Ending.EXPIRED, 30_000)
    timeline.look([], 30_000 + KEPT_MS - 1)
    assert only(timeline).ending is Ending.EXPIRED
    timeline.look([], 30_000 + KEPT_MS)
    assert not len(timeline)


def test_a_renewal_moves_the_end_and_leaves_a_tick() -> None:
    timeline = Timeline()
    timeline.look([lease()], 1_000)
    timeline.look([lease(end_ms=31_000)], 2_000)
    timeline.look([lease(end_ms=31_000)], 3_000)
    assert (only(timeline).end_ms, only(timeline).renewed_at_ms) == (31_000, (2_000,))
    for at_ms in range(4_000, 4_000 + 2 * RENEWALS_MAX):
        timeline.look([lease(end_ms=at_ms + 30_000)], at_ms)
    assert len(only(timeline).renewed_at_ms) == RENEWALS_MAX


@pytest.mark.parametrize(
    ("there", "ending", "end_ms"),
    [
        ([], Ending.DELETED, 2_000),
        ([lease(end_ms=1_500)], Ending.RETURNED, 1_500),
        ([lease(generation=2, begin_ms=1_500, end_ms=1_900)], Ending.RETURNED, 2_000),
        ([lease("another")], Ending.DELETED, 2_000),
    ],
    ids=["gone", "released", "received again", "gone beside another"],
)
def test_how_a_bar_ended_early_is_known_by_its_message(there: list[Lease], ending: Ending, end_ms: int) -> None:
    timeline = Timeline()
    timeline.look([lease()], 1_000)
    assert timeline.positions == ["at m"]
    timeline.look(there, 2_000)
    bar = next(iter(timeline))
    assert (bar.ending, bar.end_ms) == (ending, end_ms)
    assert "at m" not in timeline.positions


def test_what_was_deleted_before_its_deadline_has_not_expired() -> None:
    timeline = Timeline()
    timeline.look([lease()], 29_500)
    timeline.look([], 30_500)
    assert (only(timeline).ending, only(timeline).end_ms) == (Ending.DELETED, 30_000)


def test_a_message_received_again_has_a_bar_of_its_own() -> None:
    timeline = Timeline()
    timeline.look([lease()], 1_000)
    timeline.look([lease(generation=2, begin_ms=1_500, end_ms=31_500)], 2_000)
    assert [(bar.ending, bar.place) for bar in timeline] == [(Ending.RETURNED, 0), (None, 1)]
    timeline.look([lease(generation=3, begin_ms=31_600, end_ms=61_600)], 32_000)
    assert [bar.ending for bar in timeline] == [None, Ending.EXPIRED], "the first has made place"


def test_bars_keep_their_places() -> None:
    timeline = Timeline()
    timeline.look([lease("a"), lease("b"), lease("c")], 0)
    timeline.look([lease("a"), lease("c")], 1_000)
    timeline.look([lease("a"), lease("c"), lease("d")], 1_000 + KEPT_MS)
    assert [(bar.lease.message_id, bar.place) for bar in timeline] == [("a", 0), ("d", 1), ("c", 2)]


def test_what_is_out_of_sight_has_not_ended() -> None:
    timeline = Timeline()
    long = lease("long", end_ms=90_000)
    timeline.look([long, lease("gone", end_ms=20_000)], 0)
    short = [lease(f"s{number}", end_ms=25_000 + number) for number in range(BARS_MAX + 1)]
    timeline.look([*short, long], 1_000)
    ended = {bar.lease.message_id: bar.ending for bar in timeline if bar.ending is not None}
    assert ended == {"gone": Ending.DELETED}
    assert len(timeline) == BARS_MAX + 1


def test_of_very_many_that_ended_the_last_ones_stay() -> None:
    timeline = Timeline()
    for second in range(5):
        timeline.look([lease(f"{second}-{number}") for number in range(BARS_MAX)], second * 1_000)
    assert len(timeline) == BARS_MAX + ENDED_MAX
    assert {bar.lease.message_id[0] for bar in timeline} == {"3", "4"}
