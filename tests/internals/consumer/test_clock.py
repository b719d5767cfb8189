"""The consumer's clock: seconds that go forwards, whatever happens to the wall clock."""

import threading
import time

import pytest

from veilmq.consumer.clock import SystemClock


@pytest.mark.parametrize("step_s", [-3_600.0, 3_600.0], ids=["back", "forth"])
def test_a_step_of_the_wall_clock_changes_nothing(step_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour back or forth, in between two readings, is not seen."""
    clock = SystemClock()
    before_s, wall_s = clock.now_s(), time.time()
    monkeypatch.setattr(time, "time", lambda: wall_s + step_s)
    monkeypatch.setattr(time, "time_ns", lambda: int((wall_s + step_s) * 1e9))
    assert 0 <= clock.now_s() - before_s < 60


def test_a_sleep_ends_at_its_instant() -> None:
    """Not before, and at once where that has passed."""
    clock = SystemClock()
    at_s = clock.now_s() + 0.02
    clock.alarm().wait_until(at_s)
    assert clock.now_s() >= at_s
    clock.alarm().wait_until(at_s - 10)


def test_an_alarm_wakes_the_sleeper() -> None:
    """Also one that has no instant, and one that has not gone to sleep yet."""
    alarm = SystemClock().alarm()
    alarm.ring()
    alarm.wait_until(None)
    sleeper = threading.Thread(target=alarm.wait_until, args=(None,))
    sleeper.start()
    alarm.ring()
    sleeper.join(60)
    assert not sleeper.is_alive()
