"""The virtual clocks of tests."""

import asyncio
import threading

import pytest

from tests.testing.advancing import AdvancingClock
from veilmq.testing import SteppedClock, VirtualClock


def test_a_virtual_clock_moves_only_when_it_is_set_or_advanced() -> None:
    clock = VirtualClock()
    assert (clock.now_ms(), clock.now_ms()) == (1_700_000_000_000, 1_700_000_000_000)
    clock.advance(5)
    clock.set(1_700_000_000_007)
    assert clock.now_ms() == 1_700_000_000_007


def test_a_virtual_clock_cannot_go_back() -> None:
    clock = VirtualClock(start_ms=100)
    with pytest.raises(ValueError, match="cannot go back to 99"):
        clock.set(99)


def test_timers_run_in_order_at_their_own_time() -> None:
    clock = VirtualClock(start_ms=0)
    ran: list[tuple[str, int]] = []

    def record(name: str) -> None:
        ran.append((name, clock.now_ms()))

    def chain() -> None:
        record("first")
        clock.call_at(15, lambda: record("chained"))

    clock.call_at(20, lambda: record("second"))
    clock.call_at(10, chain)
    clock.call_at(20, lambda: record("third"))
    clock.call_at(21, lambda: record("too late"))
    clock.advance(20)
    assert ran == [("first", 10), ("chained", 15), ("second", 20), ("third", 20)]
    assert clock.next_timer_ms() == 21


def test_a_cancelled_timer_does_not_run() -> None:
    clock = VirtualClock(start_ms=0)
    ran: list[str] = []

    def cancel_last() -> None:
        last.cancel()

    clock.call_at(10, cancel_last)
    last = clock.call_at(10, lambda: ran.append("last"))
    clock.advance(10)
    last.cancel()
    assert ran == []
    assert clock.next_timer_ms() is None


def test_a_timer_that_is_already_due_runs_in_the_next_iteration() -> None:
    async def story() -> list[str]:
        ran: list[str] = []
        clock = VirtualClock(start_ms=10)
        clock.call_at(10, lambda: ran.append("now"))
        assert ran == []
        await asyncio.sleep(0)
        return ran

    assert asyncio.run(story()) == ["now"]


class Sleeper:
    """A thread that sleeps until each time and records when it woke; ``None`` waits for a ring."""

    def __init__(self, clock: AdvancingClock, *instants: float | None) -> None:
        self.woken: list[float] = []
        self._clock = clock
        self._instants = instants
        self.alarm = clock.alarm()
        self.thread = self.alarm.sleeper = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        for at_s in self._instants:
            self.alarm.wait_until(at_s)
            self.woken.append(self._clock.now_s())
        self.alarm.wait_until(None)

    def end(self) -> None:
        self.alarm.ring()
        self.thread.join(60)
        assert not self.thread.is_alive()


def test_each_sleeping_thread_wakes_at_its_own_time() -> None:
    clock = AdvancingClock(100.0)
    first, second = Sleeper(clock, 101.0, 105.0), Sleeper(clock, 103.0, 103.0, 200.0)
    clock.advance(50)
    assert (first.woken, second.woken) == ([101, 105], [103, 103])
    assert clock.now_s() == 150
    clock.advance(50)
    assert second.woken == [103, 103, 200]
    first.end()
    second.end()


def test_a_ring_wakes_before_the_time_and_without_one() -> None:
    clock = AdvancingClock()
    sleeper = Sleeper(clock, 10.0, None)
    clock.settle()
    sleeper.alarm.ring()
    clock.settle()
    sleeper.alarm.ring()
    clock.settle()
    assert sleeper.woken == [0, 0]
    sleeper.end()
    clock.advance(1)


def test_a_ring_before_the_sleep_is_not_lost() -> None:
    clock = AdvancingClock()
    alarm = clock.alarm()
    alarm.ring()
    alarm.wait_until(None)
    assert not alarm._rung


def test_a_stepped_clock_cannot_go_back() -> None:
    with pytest.raises(ValueError, match=r"stands at 5\.0 and cannot go back to 4\.0"):
        SteppedClock(5.0).set(4.0)


def test_a_thread_that_does_not_sleep_again_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.testing.advancing._CHECKS_MAX", 1)
    clock = AdvancingClock()
    alarm, ended = clock.alarm(), threading.Event()

    def run() -> None:
        alarm.wait_until(1.0)
        ended.wait(10)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        with pytest.raises(TimeoutError, match="has not gone to sleep again"):
            _advance_forever(clock)
    finally:
        ended.set()
        thread.join(10)


def _advance_forever(clock: AdvancingClock) -> None:
    while True:
        clock.advance(1)


def test_a_clock_does_not_wait_for_a_thread_that_has_ended() -> None:
    clock = AdvancingClock()
    alarm, go_on = clock.alarm(), threading.Event()

    def run() -> None:
        alarm.wait_until(1.0)
        go_on.wait(60)

    thread = threading.Thread(target=run)
    thread.start()
    clock.settle()
    moving = threading.Thread(target=clock.advance, args=(2.0,))
    moving.start()
    go_on.set()
    moving.join(60)
    assert not moving.is_alive()
    assert clock.now_s() == 2.0
    thread.join()
