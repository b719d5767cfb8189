"""Time and threads of a consumer: spans as people write them, its clock, and threads for calls that block.

Leases are durations: the wall clock may step by an hour and no deadline moves. Time during which the machine is
suspended counts where the system can tell, since the server's clock goes on.
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
    """Return the seconds since the epoch by the wall clock, which may step: for what processes share, never a lease."""
    return time.time()


class Alarm(Protocol):
    """What one thread sleeps on, and any other can wake it by."""

    def ring(self) -> None:
        """Wake the sleeper; without one, the next sleep ends at once."""

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


Span = str | float | timedelta
"""``"200ms"``, ``"30s"``, ``"10m"``, ``"12h"``, ``"1d"``; a ``timedelta``; seconds."""

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_WRITTEN = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|m|h|d)")


def span_s(span: Span) -> float:
    """Return ``span`` in seconds; raises ``ValueError`` for what is none, or negative."""
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
    """Up to ``most`` threads, started when they are needed."""

    def __init__(self, name: str, most: int) -> None:
        """``name`` begins the threads' names."""
        self._name = name
        self._most = most
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._idle = 0
        self._started = 0
        self._open = 0
        self._lock = threading.Lock()

    @property
    def at_work(self) -> int:
        """Return how many threads have a call in work."""
        return min(self._open, self._started)

    def submit(self, function: Callable[[], T]) -> "Future[T]":
        """Call ``function`` in a thread, as soon as one is free; raises ``RuntimeError`` where none can be started."""
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
        """Call ``function`` with these arguments in a thread; for coroutines."""
        return asyncio.wrap_future(self.submit(partial(function, *args, **named)))

    def close(self) -> None:
        """End the threads, each after its present call; nothing may be submitted afterwards."""
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
            with self._lock:  # before the result, with which the caller may submit another call for this thread
                self._open -= 1
                self._idle += 1
            if settle is not None:
                settle()
            del call, future, function, settle
