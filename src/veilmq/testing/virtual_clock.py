"""Time that stands still until a test moves it.

Instants are milliseconds since the epoch, as everywhere. Timers run in the thread that moves the clock, in the order
of their instants, and each of them sees its own instant as now. One that is set for now or earlier runs as soon as the
event loop turns.
"""

import asyncio
import heapq
from collections.abc import Callable

START_MS = 1_700_000_000_000


class VirtualTimer:
    """A call that was arranged."""

    __slots__ = ("at_ms", "callback", "number")

    def __init__(self, at_ms: int, number: int, callback: Callable[[], object]) -> None:
        """``number`` keeps timers of one instant in the order in which they were set."""
        self.at_ms = at_ms
        self.number = number
        self.callback: Callable[[], object] | None = callback

    def __lt__(self, other: "VirtualTimer") -> bool:
        """Order by instant, then by when it was set."""
        return (self.at_ms, self.number) < (other.at_ms, other.number)

    def cancel(self) -> None:
        """Call it off; harmless when it has happened."""
        self.callback = None


class VirtualClock:
    """``core.ports.Clock`` for tests; not safe to use from two threads at once."""

    def __init__(self, start_ms: int = START_MS) -> None:
        """Stand at ``start_ms``."""
        self._now_ms = start_ms
        self._timers: list[VirtualTimer] = []
        self._set = 0

    def now_ms(self) -> int:
        """Return the present instant."""
        return self._now_ms

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> VirtualTimer:
        """Call ``callback`` when the clock has been moved to ``at_ms``."""
        self._set += 1
        timer = VirtualTimer(at_ms, self._set, callback)
        heapq.heappush(self._timers, timer)
        if at_ms <= self._now_ms:
            asyncio.get_running_loop().call_soon(self.run_due)
        return timer

    def catch_up(self, at_least_ms: int) -> None:
        """Go on from ``at_least_ms`` if that is later than now: the last instant of an earlier run."""
        self._now_ms = max(self._now_ms, at_least_ms)

    def advance(self, ms: int) -> None:
        """Move by ``ms`` milliseconds, running what becomes due on the way."""
        self.set(self._now_ms + ms)

    def set(self, at_ms: int) -> None:
        """Move to ``at_ms``, running what becomes due on the way; raises ``ValueError`` for a move backwards."""
        if at_ms < self._now_ms:
            raise ValueError(f"the clock stands at {self._now_ms} and cannot go back to {at_ms}")
        while (due_ms := self.next_timer_ms()) is not None and due_ms <= at_ms:
            self._now_ms = max(self._now_ms, due_ms)
            self.run_due()
        self._now_ms = at_ms

    def next_timer_ms(self) -> int | None:
        """Return the instant of the next timer, ``None`` when there is none."""
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        return self._timers[0].at_ms if self._timers else None

    def run_due(self) -> None:
        """Run the timers whose instant has come; those that they set for now run when the loop turns."""
        due = []
        while (at_ms := self.next_timer_ms()) is not None and at_ms <= self._now_ms:
            due.append(heapq.heappop(self._timers))
        for timer in due:
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()
