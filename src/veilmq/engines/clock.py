"""The one reader of the system's clocks.

``SystemClock`` gives wall-clock milliseconds that never run backwards. It is carried by the monotonic clock and steered
by the wall clock: after a step of the wall clock, forwards or backwards, it runs at most 5 % fast or slow until both
agree again, so that a step neither ends leases early nor freezes them.
"""

import asyncio
import time
from collections.abc import Callable

from veilmq.core.ports import Timer

_SLEW_DIVISOR = 20
_NS_PER_MS = 1_000_000
_CARRIER = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # boot time goes on while the machine is suspended


def _carrier_ns() -> int:
    return time.clock_gettime_ns(_CARRIER)


def stopwatch_s() -> float:
    """Return seconds on a counter that is good for nothing but durations."""
    return time.perf_counter()


def wall_s() -> float:
    """Return seconds since the epoch as the machine has them, steps and all: to compare with what others signed."""
    return time.time()


class SystemClock:
    """``core.ports.Clock`` on the machine's clocks; ``wall_ns`` and ``carrier_ns`` are replaced in its own tests."""

    def __init__(
        self, *, wall_ns: Callable[[], int] = time.time_ns, carrier_ns: Callable[[], int] = _carrier_ns
    ) -> None:
        """Start at the wall clock's present instant."""
        self._wall_ns = wall_ns
        self._carrier_ns = carrier_ns
        self._carrier_last_ns = carrier_ns()
        self._now_ns = wall_ns()

    def now_ms(self) -> int:
        """Return the present instant; never less than before."""
        carrier_ns = self._carrier_ns()
        elapsed_ns = carrier_ns - self._carrier_last_ns
        self._carrier_last_ns = carrier_ns
        slew_ns_max = elapsed_ns // _SLEW_DIVISOR
        behind_ns = self._wall_ns() - (self._now_ns + elapsed_ns)
        self._now_ns += elapsed_ns + max(-slew_ns_max, min(slew_ns_max, behind_ns))
        return self._now_ns // _NS_PER_MS

    def catch_up(self, at_least_ms: int) -> None:
        """Go on from ``at_least_ms`` if that is later than now: the last instant of an earlier run."""
        self.now_ms()
        self._now_ns = max(self._now_ns, at_least_ms * _NS_PER_MS)

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` once ``now_ms() >= at_ms``, in the running event loop."""
        return _Alarm(clock=self, at_ms=at_ms, callback=callback)


class _Alarm:
    """A timer that goes back to sleep when the loop wakes it before its instant (rounding, or a slewing clock)."""

    def __init__(self, *, clock: SystemClock, at_ms: int, callback: Callable[[], object]) -> None:
        self._clock = clock
        self._at_ms = at_ms
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._handle = self._arm()

    def cancel(self) -> None:
        self._handle.cancel()

    def _arm(self) -> asyncio.TimerHandle:
        delay_ms = max(0, self._at_ms - self._clock.now_ms())
        return self._loop.call_later(delay_ms / 1_000, self._ring)

    def _ring(self) -> None:
        if self._clock.now_ms() < self._at_ms:
            self._handle = self._arm()
        else:
            self._callback()
