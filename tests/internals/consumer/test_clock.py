"""The clock of a consumer, which goes forwards whatever the wall clock does, and spans of time."""

import threading
import time
from datetime import timedelta

import pytest

from veilmq.consumer.clock import Span, SystemClock, span_s


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


@pytest.mark.parametrize(
    ("span", "seconds"),
    [("200ms", 0.2), ("30s", 30), ("1.5 h", 5_400), ("10m", 600), ("1d", 86_400), (7, 7), (timedelta(minutes=2), 120)],
    ids=str,
)
def test_a_span_is_seconds(span: Span, seconds: float) -> None:
    assert span_s(span) == pytest.approx(seconds)


@pytest.mark.parametrize("span", ["", "10", "ten minutes", "-1s", "1w", -1, timedelta(seconds=-1)], ids=repr)
def test_what_is_no_span_is_refused(span: Span) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        span_s(span)
