"""The one reader of the system's clocks in the consumer: seconds that only ever go forwards, and a wait for an instant.

Deadlines of leases are durations, so the wall clock has no say in them: it may step by an hour and nothing moves. Time
during which the machine is suspended counts where the system can tell, since the server's clock goes on meanwhile.
"""

import threading
import time
from typing import Protocol

_COUNTER = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_s() -> float:
    """Return the seconds since the epoch by the wall clock, which may step: for what processes share, never a lease."""
    return time.time()


class Alarm(Protocol):
    """What one thread sleeps on, and any other can wake it by."""

    def ring(self) -> None:
        """Wake the sleeper; if nobody sleeps, the next sleep ends at once."""

    def wait_until(self, at_s: float | None) -> None:
        """Return when ``at_s`` has come (``None``: never) or it has rung since the last return."""


class Clock(Protocol):
    """Seconds from an arbitrary start, never less than before."""

    def now_s(self) -> float:
        """Return the present instant."""

    def alarm(self) -> Alarm:
        """Return a new alarm on this clock."""


class SystemClock:
    """``Clock`` on the machine's counter; threads may share it."""

    def now_s(self) -> float:
        """Return the present instant."""
        return time.clock_gettime(_COUNTER)

    def alarm(self) -> Alarm:
        """Return a new alarm on this clock."""
        return _SystemAlarm(self)


class _SystemAlarm:
    def __init__(self, clock: SystemClock) -> None:
        self._clock = clock
        self._rung = threading.Event()

    def ring(self) -> None:
        self._rung.set()

    def wait_until(self, at_s: float | None) -> None:
        self._rung.wait(None if at_s is None else max(0.0, at_s - self._clock.now_s()))
        self._rung.clear()
