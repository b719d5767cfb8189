"""Virtual time, which only tests advance: for the server, for a consumer's leases, and for an event loop."""

import asyncio
import heapq
import selectors
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from veilmq.core.limits import SECOND_MS
from veilmq.store.clock import NS_PER_MS, SystemClock

START_MS = 1_700_000_000_000


@dataclass(order=True, slots=True)
class VirtualTimer:
    """A scheduled call; ``number`` orders timers with the same ``at_ms``."""

    at_ms: int
    number: int
    callback: Callable[[], object] | None = field(compare=False)

    def cancel(self) -> None:
        """Cancel the call, unless it has happened."""
        self.callback = None


class VirtualClock(SystemClock):
    """``core.commands.Clock`` for tests, on simulated system clocks; not thread-safe.

    The system clocks advance with the store's. ``step_wall`` and ``reboot`` change their difference, to which a store
    reacts. ``synchronised`` is whether the kernel reports its clock as synchronised.
    """

    def __init__(self, start_ms: int = START_MS, *, synchronised: bool = True) -> None:
        self.synchronised = synchronised
        self._boots = 1
        self._boot_ms = self._wall_ms = start_ms
        self._timers: list[VirtualTimer] = []
        self._set = 0
        super().__init__(
            wall_ns=lambda: self._wall_ms * NS_PER_MS,
            boot_ns=lambda: self._boot_ms * NS_PER_MS,
            boot_id="boot 1",
            is_synchronised=lambda: self.synchronised,
        )

    def step_wall(self, ms: int = 0, *, seconds: float = 0) -> None:
        """Step the wall clock forward or backward without passing time."""
        self._wall_ms += ms + round(seconds * SECOND_MS)

    def reboot(self, down_ms: int = 0, *, seconds: float = 0) -> None:
        """Simulate a reboot of the machine, which is down for the given time. Call it while no server runs."""
        self._boots += 1
        self.boot_id = f"boot {self._boots}"
        self._wall_ms += down_ms + round(seconds * SECOND_MS)
        self._boot_ms = 0
        self._offset_ms = self._wall_ms

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> VirtualTimer:
        self._set += 1
        timer = VirtualTimer(at_ms, self._set, callback)
        heapq.heappush(self._timers, timer)
        if at_ms <= self.now_ms():
            asyncio.get_running_loop().call_soon(self.run_due)
        return timer

    def clear(self) -> None:
        """Cancel all timers: they are those of a server that has stopped."""
        self._timers.clear()

    def advance(self, ms: int) -> None:
        """Move by ``ms`` milliseconds and run the timers that become due."""
        self.set(self.now_ms() + ms)

    def set(self, at_ms: int) -> None:
        """Move to ``at_ms`` and run the timers that become due. Raises ``ValueError`` for a move backwards."""
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
        """Return the instant of the next timer, or ``None``."""
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        return self._timers[0].at_ms if self._timers else None

    def run_due(self) -> None:
        """Run the due timers. Timers that they set for now run in the next iteration of the event loop."""
        due = []
        while (at_ms := self.next_timer_ms()) is not None and at_ms <= self.now_ms():
            due.append(heapq.heappop(self._timers))
        for timer in due:
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()


class SteppedClock:
    """``veilmq.consumer.clock.Clock`` for tests. Thread-safe, but only one thread may move it."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s
        self._moved = threading.Condition()
        self._alarms: list[SteppedAlarm] = []
        self.sleeps = 0
        """The number of sleeps that have begun."""

    def now_s(self) -> float:
        """Return the current time."""
        return self._now_s

    def alarm(self) -> "SteppedAlarm":
        """Return a new alarm on this clock."""
        alarm = SteppedAlarm(self, self._moved)
        self._alarms.append(alarm)
        return alarm

    def set(self, at_s: float) -> None:
        """Jump to ``at_s``, past earlier wake-ups. Raises ``ValueError`` for a move backwards."""
        if at_s < self._now_s:
            raise ValueError(f"the clock stands at {self._now_s} and cannot go back to {at_s}")
        with self._moved:
            self._now_s = at_s
            self._moved.notify_all()

    @property
    def sleepers(self) -> int:
        """The number of threads that sleep on an alarm that is not due."""
        with self._moved:
            return sum(alarm.is_asleep for alarm in self._alarms)

    def next_s(self) -> float | None:
        """Return the instant of the next wake-up, or ``None``."""
        with self._moved:
            return min((alarm.at_s for alarm in self._alarms if alarm.at_s is not None), default=None)


class SteppedAlarm:
    """An alarm of a ``SteppedClock``."""

    def __init__(self, clock: SteppedClock, moved: threading.Condition) -> None:
        self.at_s: float | None = None
        self._clock = clock
        self._moved = moved
        self._rung = False
        self._asleep = False

    @property
    def is_asleep(self) -> bool:
        """Whether a thread sleeps and is not due."""
        return self._asleep and not self._is_over()

    def ring(self) -> None:
        """Wake the sleeping thread, or let its next sleep return at once."""
        with self._moved:
            self._rung = True
            self._moved.notify_all()

    def wait_until(self, at_s: float | None) -> None:
        """Sleep until ``at_s`` (``None``: forever) or until the alarm rings."""
        with self._moved:
            self.at_s, self._asleep = at_s, True
            self._clock.sleeps += 1
            self._moved.notify_all()
            self._moved.wait_for(self._is_over)
            self.at_s, self._rung, self._asleep = None, False, False

    def _is_over(self) -> bool:
        return self._rung or (self.at_s is not None and self.at_s <= self._clock.now_s())


_TOLERANCE_S = 1e-6  # so that rounding errors in sums of seconds do not delay a timer


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on a ``SteppedClock``, in its own thread. The properties and ``wake`` are for other threads."""

    def __init__(self, clock: SteppedClock) -> None:
        self._waiting = _Waiting(clock)
        super().__init__(self._waiting)
        self._clock = clock
        self._clock_resolution = _TOLERANCE_S
        self.in_executor = 0
        """The number of running calls of ``asyncio.to_thread``."""

    @property
    def is_idle(self) -> bool:
        """Whether the loop waits and no callback is ready."""
        return self._waiting.is_asleep and not self._ready  # type: ignore[attr-defined]  # of asyncio's base class

    @property
    def next_s(self) -> float | None:
        """The instant of the loop's next timer if it is idle, or ``None``."""
        return self._waiting.wakes_at_s

    def time(self) -> float:
        """Return the virtual time."""
        return self._clock.now_s()

    def wake(self) -> None:
        """Let the loop read the clock again."""
        self.call_soon_threadsafe(lambda: None)

    def run_in_executor(  # type: ignore[override]  # untyped pass-through
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        """Run ``func`` in a thread, counted in ``in_executor``."""
        self.in_executor += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(lambda _: setattr(self, "in_executor", self.in_executor - 1))
        return future


class _Waiting(selectors.DefaultSelector):
    """A selector without timeouts, which stores the instant at which a wait would have timed out."""

    def __init__(self, clock: SteppedClock) -> None:
        super().__init__()
        self._clock = clock
        self.is_asleep = False
        self.wakes_at_s: float | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(0)
        self.wakes_at_s = None if timeout is None else self._clock.now_s() + timeout
        self.is_asleep = True
        try:
            return super().select(None)
        finally:
            self.is_asleep = False
