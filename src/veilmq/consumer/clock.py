"""The one reader of the system's clock in the consumer: seconds that only ever go forwards, and a wait for an instant.

Deadlines of leases are durations, so the wall clock has no say in them: it may step by an hour and nothing moves. Time
during which the machine is suspended counts where the system can tell, since the server's clock goes on meanwhile.
"""

import threading
import time
from typing import Protocol

_COUNTER = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Seconds from an arbitrary start, never less than before."""

    def now_s(self) -> float:
        """Return the present instant."""

    def wait_until(self, at_s: float | None, alarm: threading.Event) -> None:
        """Return when ``at_s`` has come (``None``: never) or ``alarm`` is set, whichever is first."""


class SystemClock:
    """``Clock`` on the machine's counter; threads may share it."""

    def now_s(self) -> float:
        """Return the present instant."""
        return time.clock_gettime(_COUNTER)

    def wait_until(self, at_s: float | None, alarm: threading.Event) -> None:
        """Return when ``at_s`` has come (``None``: never) or ``alarm`` is set, whichever is first."""
        alarm.wait(None if at_s is None else max(0.0, at_s - self.now_s()))
