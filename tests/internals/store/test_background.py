"""The scheduler of work in the background: one slice at a time, at the instant at which it is due."""

from typing import Any

from veilmq.core.errors import InternalError
from veilmq.store.cold import Scheduler
from veilmq.testing import VirtualClock


class Work:
    """Notes each slice that is begun, which ends when the test says so."""

    def __init__(self, **how: Any) -> None:
        self.clock = VirtualClock()
        self.begun: list[Any] = []
        self.scheduler = Scheduler(step=self.begun.append, clock=self.clock, **how)

    def counts(self, *times_ms: int) -> list[int]:
        counts = []
        for time_ms in times_ms:
            self.clock.advance(time_ms)
            counts.append(len(self.begun))
        return counts


def test_a_slice_is_begun_when_it_is_due_and_the_next_one_when_that_is() -> None:
    work = Work()
    work.scheduler.schedule(100)
    assert work.counts(99, 1, 1_000) == [0, 1, 1]
    work.begun[0](50)
    assert work.counts(49, 1) == [1, 2]
    work.begun[1](None)
    assert work.counts(1_000_000) == [2]


def test_the_earliest_instant_wins() -> None:
    work = Work()
    for after_ms in (100, 30, 60):
        work.scheduler.schedule(after_ms)
    assert work.counts(30, 1_000) == [1, 1]


def test_a_look_while_a_slice_is_under_way_is_not_lost() -> None:
    work = Work()
    work.scheduler.schedule(1)
    assert work.counts(1) == [1]
    work.scheduler.schedule(100)
    assert work.counts(50) == [1]
    work.begun[0](None)
    assert work.counts(49, 1) == [1, 2]


def test_after_an_error_it_tries_again_in_a_second() -> None:
    work = Work()
    work.scheduler.schedule(1)
    work.counts(1)
    work.begun[0](InternalError())
    assert work.counts(999, 1) == [1, 2]


def test_slices_rest_between_each_other_and_come_now_and_then_in_any_case() -> None:
    work = Work(pause_ms_min=10, poll_ms_max=1_000)
    work.scheduler.schedule(1)
    work.counts(1)
    work.begun[0](0)
    assert work.counts(9, 1) == [1, 2]
    work.begun[1](None)
    assert work.counts(999, 1) == [2, 3]


def test_after_the_stop_nothing_is_begun() -> None:
    work = Work()
    work.scheduler.schedule(1)
    work.scheduler.stop()
    work.scheduler.schedule(1)
    assert work.counts(1_000) == [0]
