"""The consumer's time, standing still until a test moves it.

Threads sleep on its alarms. ``advance`` goes from one instant at which somebody wants to wake to the next, and lets him
do his work and go to sleep again before it goes on, so that each of them sees his own instant as now.
"""

import threading

_LOOK_S = 0.02  # a thread that ends tells nobody
_LOOKS_MAX = 1_500


class SteppedClock:
    """``veilmq.consumer.clock.Clock`` for tests; threads may share it, one of them moves it."""

    def __init__(self, now_s: float = 0.0) -> None:
        """Stand at ``now_s``."""
        self._now_s = now_s
        self._moved = threading.Condition()
        self._alarms: list[SteppedAlarm] = []
        self.sleeps = 0
        """How often anybody has gone to sleep."""

    def now_s(self) -> float:
        """Return the present instant."""
        return self._now_s

    def alarm(self) -> "SteppedAlarm":
        """Return a new alarm on this clock."""
        alarm = SteppedAlarm(self, self._moved)
        self._alarms.append(alarm)
        return alarm

    def set(self, at_s: float) -> None:
        """Stand at ``at_s`` at once, whoever wants to wake before; raises ``ValueError`` for a move backwards."""
        if at_s < self._now_s:
            raise ValueError(f"the clock stands at {self._now_s} and cannot go back to {at_s}")
        with self._moved:
            self._now_s = at_s
            self._moved.notify_all()

    @property
    def sleepers(self) -> int:
        """Return how many threads sleep on an alarm, with no reason to wake yet."""
        with self._moved:
            return sum(alarm.is_asleep for alarm in self._alarms)

    def advance(self, duration_s: float) -> None:
        """Move by ``duration_s``, from sleeper to sleeper; raises ``TimeoutError`` if one does not sleep again."""
        until_s = self._now_s + duration_s
        self.settle()
        while (next_s := self.next_s()) is not None and next_s <= until_s:
            self.set(max(next_s, self._now_s))
            self.settle()
        self.set(max(until_s, self._now_s))
        self.settle()

    def settle(self) -> None:
        """Wait until everybody who has slept on an alarm sleeps again, with nothing to do."""
        with self._moved:
            for _ in range(_LOOKS_MAX):
                if self._moved.wait_for(lambda: all(alarm.is_quiet for alarm in self._alarms), _LOOK_S):
                    return
        raise TimeoutError("a thread on this clock has not gone to sleep again")

    def next_s(self) -> float | None:
        """Return the first instant at which somebody wants to wake."""
        with self._moved:
            return min((alarm.at_s for alarm in self._alarms if alarm.at_s is not None), default=None)


class SteppedAlarm:
    """An alarm of a ``SteppedClock``."""

    def __init__(self, clock: SteppedClock, moved: threading.Condition) -> None:
        """Made by the clock."""
        self.at_s: float | None = None
        self._clock = clock
        self._moved = moved
        self._rung = False
        self._sleeper: threading.Thread | None = None
        self._asleep = False

    @property
    def is_quiet(self) -> bool:
        """Whether its thread, if it has one, sleeps and has no reason to wake yet."""
        if self._sleeper is None or not self._sleeper.is_alive():
            return True
        return self.is_asleep

    @property
    def is_asleep(self) -> bool:
        """Whether somebody sleeps on it and has no reason to wake yet."""
        return self._asleep and not self._is_over()

    def ring(self) -> None:
        """Wake the sleeper; if nobody sleeps, the next sleep ends at once."""
        with self._moved:
            self._rung = True
            self._moved.notify_all()

    def wait_until(self, at_s: float | None) -> None:
        """Return when ``at_s`` has come (``None``: never) or it has rung since the last return."""
        with self._moved:
            self.at_s, self._sleeper, self._asleep = at_s, threading.current_thread(), True
            self._clock.sleeps += 1
            self._moved.notify_all()
            self._moved.wait_for(self._is_over)
            self.at_s, self._rung, self._asleep = None, False, False

    def _is_over(self) -> bool:
        return self._rung or (self.at_s is not None and self.at_s <= self._clock.now_s())
