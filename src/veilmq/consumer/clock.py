"""The clock of a consumer, durations as users write them, and threads for blocking calls.

Leases are durations, so steps of the wall clock do not move deadlines. The time for which the machine is suspended
counts where the system measures it (``CLOCK_BOOTTIME``), because the server's clock continues.
"""

import asyncio
import queue
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

_COUNTER = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_s() -> float:
    """Return the wall-clock time, which may step: for data that processes share, not for leases."""
    return time.time()


class Alarm(Protocol):
    """Lets one thread sleep until an instant; other threads can wake it."""

    def ring(self) -> None:
        """Wake the sleeping thread, or let its next sleep return at once."""

    def wait_until(self, at_s: float | None) -> None:
        """Sleep until ``at_s`` (``None``: forever) or until the alarm rings."""


class Clock(Protocol):
    """A monotonic clock in seconds, with an arbitrary start."""

    def now_s(self) -> float:
        """Return the current time."""

    def alarm(self) -> Alarm:
        """Return a new alarm on this clock."""


class SystemClock:
    """The system's monotonic ``Clock``; thread-safe."""

    def now_s(self) -> float:
        """Return the current time."""
        return time.clock_gettime(_COUNTER)

    def alarm(self) -> Alarm:
        """Return a new alarm on this clock."""
        return _SystemAlarm(self)


class _SystemAlarm(threading.Event):
    def __init__(self, clock: SystemClock) -> None:
        super().__init__()
        self._clock = clock

    ring = threading.Event.set

    def wait_until(self, at_s: float | None) -> None:
        self.wait(None if at_s is None else max(0.0, at_s - self._clock.now_s()))
        self.clear()


Span = str | float | timedelta
"""``"200ms"``, ``"30s"``, ``"10m"``, ``"12h"``, ``"1d"``; a ``timedelta``; seconds."""

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_WRITTEN = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|m|h|d)")


def span_s(span: Span) -> float:
    """Return ``span`` in seconds. Raises ``ValueError`` if it is malformed or negative."""
    if isinstance(span, str):
        written = _WRITTEN.fullmatch(span)
        if written is None:
            raise ValueError(f"{span!r} is not a duration; write one like 200ms, 30s, 10m, 12h or 1d")
        return float(written[1]) * _UNITS_S[written[2]]
    span_seconds = span.total_seconds() if isinstance(span, timedelta) else float(span)
    if not span_seconds >= 0:  # nor is NaN
        raise ValueError(f"{span!r} is not a duration: it is negative, or no number")
    return span_seconds


P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A pool of up to ``most`` daemon threads, started on demand."""

    def __init__(self, name: str, most: int) -> None:
        """``name`` is the prefix of the threads' names."""
        self._name = name
        self._most = most
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._idle = 0
        self._started = 0
        self._open = 0
        self._lock = threading.Lock()

    @property
    def at_work(self) -> int:
        """The number of busy threads."""
        return min(self._open, self._started)

    def submit(self, function: Callable[[], T]) -> "Future[T]":
        """Call ``function`` in the next free thread. Raises ``RuntimeError`` if a thread cannot be started."""
        future: Future[T] = Future()
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            elif self._started < self._most:
                name = f"{self._name}-{self._started + 1}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._started += 1
            self._open += 1
        self._calls.put((future, function))
        return future

    def run(self, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> "asyncio.Future[T]":
        """``submit`` for coroutines, with arguments."""
        return asyncio.wrap_future(self.submit(partial(function, *args, **named)))

    def close(self) -> None:
        """End each thread after its current call. Nothing may be submitted afterwards."""
        for _ in range(self._started):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            settle: Callable[[], None] | None = None
            if future.set_running_or_notify_cancel():
                try:
                    settle = partial(future.set_result, function())
                except BaseException as error:  # noqa: BLE001 - the caller gets it
                    settle = partial(future.set_exception, error)
            with self._lock:  # before the result is set: then the caller may submit its next call to this thread
                self._open -= 1
                self._idle += 1
            if settle is not None:
                settle()
            del call, future, function, settle


def refuse_loop(instead: str) -> None:
    """Raise ``RuntimeError`` if an event loop runs in this thread, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"an event loop is running in this thread; use {instead}")
