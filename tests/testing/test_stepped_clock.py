"""The consumer's virtual clock: threads sleep on it, and each sees its own instant as now."""

import threading

import pytest

from veilmq.testing import SteppedClock


class Sleeper:
    """A thread that sleeps from instant to instant and notes when it woke; ``None`` sleeps until it is rung."""

    def __init__(self, clock: SteppedClock, *instants: float | None) -> None:
        """Begin to sleep."""
        self.woken: list[float] = []
        self._clock = clock
        self._instants = instants
        self.alarm = clock.alarm()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        for at_s in self._instants:
            self.alarm.wait_until(at_s)
            self.woken.append(self._clock.now_s())
        self.alarm.wait_until(None)

    def end(self) -> None:
        """Wake it for the last time."""
        self.alarm.ring()
        self.thread.join(10)
        assert not self.thread.is_alive()


def test_each_sleeper_wakes_at_its_own_instant() -> None:
    """However far the clock goes at once."""
    clock = SteppedClock(100.0)
    first, second = Sleeper(clock, 101.0, 105.0), Sleeper(clock, 103.0, 103.0, 200.0)
    clock.advance(50)
    assert (first.woken, second.woken) == ([101, 105], [103, 103])
    assert clock.now_s() == 150
    clock.advance(50)
    assert second.woken == [103, 103, 200]
    first.end()
    second.end()


def test_an_alarm_wakes_before_the_instant_or_without_one() -> None:
    """And the time stays what it is."""
    clock = SteppedClock()
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
    """The next sleep ends at once; the one after that does not."""
    clock = SteppedClock()
    alarm = clock.alarm()
    alarm.ring()
    alarm.wait_until(None)
    alarm.wait_until(-1.0)


def test_it_does_not_go_back() -> None:
    """Neither does the machine's."""
    with pytest.raises(ValueError, match=r"stands at 5\.0 and cannot go back to 4\.0"):
        SteppedClock(5.0).set(4.0)


def test_a_thread_that_does_not_sleep_again_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of a test that hangs."""
    monkeypatch.setattr("veilmq.testing.clocks._CHECKS_MAX", 1)
    clock = SteppedClock()
    alarm, ended = clock.alarm(), threading.Event()

    def run() -> None:
        alarm.wait_until(1.0)
        ended.wait(10)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        with pytest.raises(TimeoutError, match="has not gone to sleep again"):
            _advance_for_ever(clock)
    finally:
        ended.set()
        thread.join(10)


def _advance_for_ever(clock: SteppedClock) -> None:
    while True:
        clock.advance(1)


def test_a_thread_that_ends_instead_of_sleeping_again_is_not_waited_for() -> None:
    """Nobody rings when a thread ends; it is noticed all the same."""
    clock = SteppedClock()
    alarm, go_on = clock.alarm(), threading.Event()

    def run() -> None:
        alarm.wait_until(1.0)
        go_on.wait(10)

    thread = threading.Thread(target=run)
    thread.start()
    clock.settle()
    moving = threading.Thread(target=clock.advance, args=(2.0,))
    moving.start()
    go_on.set()
    moving.join(5)
    assert not moving.is_alive()
    assert clock.now_s() == 2.0
    thread.join()
