"""Time that stands still until a test moves it.

Instants are milliseconds since the epoch, as everywhere. Timers run in the thread that moves the clock, in the order
of their instants, and each of them sees its own instant as now. One that is set for now or earlier runs as soon as the
event loop turns.
"""

import asyncio
import heapq
from collections.abc import Callable

from veilmq.core.limits import SECOND_MS
from veilmq.store.clock import StoreClock

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


class VirtualClock(StoreClock):
    """``core.ports.Clock`` for tests, and the machine under it; not safe to use from two threads at once.

    The clocks of the machine move together with the store's. ``step_wall`` and ``reboot`` part them: what a store makes
    of that is the store's affair. ``synchronised`` says whether the kernel calls its clock so.
    """

    def __init__(self, start_ms: int = START_MS, *, synchronised: bool = True) -> None:
        """Stand at ``start_ms``."""
        self.synchronised = synchronised
        self.boot_id = "boot 1"
        self._boots = 1
        self._boot_ms = self._wall_ms = start_ms
        self._timers: list[VirtualTimer] = []
        self._set = 0
        super().__init__(boot_ms=start_ms, wall_ms=start_ms)

    def boot_ms(self) -> int:
        """Return the boot clock."""
        return self._boot_ms

    def wall_ms(self) -> int:
        """Return the wall clock."""
        return self._wall_ms

    def is_synchronised(self) -> bool:
        """Return ``synchronised``."""
        return self.synchronised

    def step_wall(self, ms: int = 0, *, seconds: float = 0) -> None:
        """Step the wall clock, forward or backward; no time passes."""
        self._wall_ms += ms + round(seconds * SECOND_MS)

    def reboot(self, down_ms: int = 0, *, seconds: float = 0) -> None:
        """Begin another boot after the machine was down for that long; for a time when no server runs."""
        self._boots += 1
        self.boot_id = f"boot {self._boots}"
        self._wall_ms += down_ms + round(seconds * SECOND_MS)
        self._boot_ms = 0
        self._timers.clear()
        self._offset_ms = self._wall_ms

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> VirtualTimer:
        """Call ``callback`` when the clock has been moved to ``at_ms``."""
        self._set += 1
        timer = VirtualTimer(at_ms, self._set, callback)
        heapq.heappush(self._timers, timer)
        if at_ms <= self.now_ms():
            asyncio.get_running_loop().call_soon(self.run_due)
        return timer

    def catch_up(self, at_least_ms: int) -> None:
        """Move to ``at_least_ms`` if that is later than now, and run nothing."""
        self._move_to(max(self.now_ms(), at_least_ms))

    def advance(self, ms: int) -> None:
        """Move by ``ms`` milliseconds, running what becomes due on the way."""
        self.set(self.now_ms() + ms)

    def set(self, at_ms: int) -> None:
        """Move to ``at_ms``, running what becomes due on the way; raises ``ValueError`` for a move backwards."""
        if at_ms < self.now_ms():
            raise ValueError(f"the clock stands at {self.now_ms()} and cannot go back to {at_ms}")
        while (due_ms := self.next_timer_ms()) is not None and due_ms <= at_ms:
            self._move_to(max(self.now_ms(), due_ms))
            self.run_due()
        self._move_to(max(self.now_ms(), at_ms))

    def _move_to(self, at_ms: int) -> None:
        passed_ms = at_ms - self.now_ms()
        self._boot_ms += passed_ms
        self._wall_ms += passed_ms

    def next_timer_ms(self) -> int | None:
        """Return the instant of the next timer, ``None`` when there is none."""
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        return self._timers[0].at_ms if self._timers else None

    def run_due(self) -> None:
        """Run the timers whose instant has come; those that they set for now run when the loop turns."""
        due = []
        while (at_ms := self.next_timer_ms()) is not None and at_ms <= self.now_ms():
            due.append(heapq.heappop(self._timers))
        for timer in due:
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()
