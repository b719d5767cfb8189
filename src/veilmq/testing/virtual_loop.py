"""An event loop whose time a test moves: ``asyncio.sleep`` and timeouts of handlers are over when the clock says so.

It blocks for events only, never for a time. Whoever moves the clock asks whether the loop ``is_idle``, when it wants to
wake (``next_s``), and wakes it after the move.
"""

import asyncio
import selectors
import threading
from collections.abc import Callable
from contextvars import Context
from typing import Any

from veilmq.testing.stepped_clock import SteppedClock

_TOLERANCE_S = 1e-6  # of sums of seconds, so that a timer is not missed by their last digit


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs in a thread of its own; the properties, ``wake`` and ``call_soon_threadsafe`` are for other threads."""

    def __init__(self, clock: SteppedClock) -> None:
        """Take the time from ``clock``."""
        self._waiting = _Waiting(clock)
        super().__init__(self._waiting)
        self._clock = clock
        self._clock_resolution = _TOLERANCE_S
        self._lock = threading.Lock()
        self._told = self._heard = 0
        self._in_executor = 0

    @property
    def is_idle(self) -> bool:
        """Whether it waits, and nobody has told it anything that it has not heard."""
        return self._waiting.is_asleep and self._told == self._heard

    @property
    def next_s(self) -> float | None:
        """When it wants to wake, if it is idle; ``None``: when it is told to."""
        return self._waiting.wakes_at_s

    @property
    def in_executor(self) -> int:
        """How many calls of ``asyncio.to_thread`` are under way."""
        return self._in_executor

    def time(self) -> float:
        """Return the virtual instant."""
        return self._clock.now_s()

    def wake(self) -> None:
        """Look at the clock again."""
        self.call_soon_threadsafe(_nothing)

    def call_soon_threadsafe(  # type: ignore[override]  # it hands on what it is given
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Call ``callback`` soon, and count that it was told and heard."""
        with self._lock:
            self._told += 1
        return super().call_soon_threadsafe(self._hear, callback, args, context=context)

    def run_in_executor(  # type: ignore[override]  # it hands on what it is given
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        """Run ``func`` in a thread, and count it while it runs."""
        self._in_executor += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._ran)
        return future

    def _hear(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        with self._lock:
            self._heard += 1
        callback(*args)

    def _ran(self, _: object) -> None:
        self._in_executor -= 1


class _Waiting(selectors.DefaultSelector):
    """A selector that waits for no time, and says for how long it was told to."""

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


def _nothing() -> None:
    """Be a reason to wake."""
