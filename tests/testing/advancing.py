"""A stepped clock that waits for the threads that sleep on it."""

import threading

from veilmq.testing import SteppedClock
from veilmq.testing.clocks import SteppedAlarm

_CHECK_S = 0.02  # the end of a thread is not notified
_CHECKS_MAX = 1_500


class AdvancingClock(SteppedClock):
    def alarm(self) -> "AdvancingAlarm":
        alarm = AdvancingAlarm(self, self._moved)
        self._alarms.append(alarm)
        return alarm

    def advance(self, duration_s: float) -> None:
        """Move by ``duration_s``, from wake-up to wake-up. Raises ``TimeoutError`` if a thread does not sleep again."""
        until_s = self._now_s + duration_s
        self.settle()
        while (next_s := self.next_s()) is not None and next_s <= until_s:
            self.set(max(next_s, self._now_s))
            self.settle()
        self.set(max(until_s, self._now_s))
        self.settle()

    def await_sleep(self) -> None:
        """Wait until a thread has gone to sleep: one that has just started may not use its alarm yet."""
        with self._moved:
            assert self._moved.wait_for(lambda: self.sleeps, _CHECK_S * _CHECKS_MAX)

    def settle(self) -> None:
        """Wait until each thread that uses an alarm sleeps again."""
        with self._moved:
            for _ in range(_CHECKS_MAX):
                if self._moved.wait_for(lambda: all(map(_is_quiet, self._alarms)), _CHECK_S):
                    return
        raise TimeoutError("a thread on this clock has not gone to sleep again")


class AdvancingAlarm(SteppedAlarm):
    sleeper: threading.Thread | None = None

    def wait_until(self, at_s: float | None) -> None:
        self.sleeper = threading.current_thread()
        super().wait_until(at_s)


def _is_quiet(alarm: SteppedAlarm) -> bool:
    """Return whether no thread uses the alarm, or its thread sleeps and is not due."""
    sleeper = getattr(alarm, "sleeper", None)
    return sleeper is None or not sleeper.is_alive() or alarm.is_asleep
