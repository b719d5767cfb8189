"""Threads for calls that block: a handler's, or a request to the server.

They are daemons: a handler that never returns, or a long poll whose answer nobody wants any more, does not keep the
process alive, as the threads of ``concurrent.futures`` would.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Call = tuple["Future[Any]", Callable[[], Any]]


class Threads:
    """Up to ``most`` threads, started when they are needed."""

    def __init__(self, name: str, most: int) -> None:
        """``name`` begins the threads' names."""
        self._name = name
        self._most = most
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._idle = 0
        self._started = 0
        self._open = 0
        self._lock = threading.Lock()

    @property
    def at_work(self) -> int:
        """Return how many threads have a call in work."""
        return min(self._open, self._started)

    def submit(self, function: Callable[[], T]) -> "Future[T]":
        """Call ``function`` in a thread, as soon as one is free."""
        future: Future[T] = Future()
        with self._lock:
            self._open += 1
            if self._idle > 0:
                self._idle -= 1
            elif self._started < self._most:
                self._started += 1
                name = f"{self._name}-{self._started}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        self._calls.put((future, function))
        return future

    def close(self) -> None:
        """End the threads, each after its present call; nothing may be submitted afterwards."""
        for _ in range(self._started):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            if future.set_running_or_notify_cancel():
                try:
                    result = function()
                except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
                    future.set_exception(error)
                else:
                    future.set_result(result)
            del call, future, function
            with self._lock:
                self._open -= 1
                self._idle += 1
