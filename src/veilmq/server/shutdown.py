"""Ending a server: the first request lets everyone finish for a while, a second one, or a failed store, does not.

The while begins with the first request and is one for all parts of the server: what one part has used up is not there
for the next. Signals are requests from before the first part starts until after the last one has ended.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_FAILURE_GRACE_S = 1.0  # for the answers "unknown" to reach those who wait


class Shutdown:
    """What is known about the end; belongs to the running event loop."""

    def __init__(self, *, grace_s: float) -> None:
        """Nobody has asked yet; when somebody does, there are ``grace_s`` seconds."""
        self.requested = asyncio.Event()
        self.failure: BaseException | None = None
        self._at_once = asyncio.Event()
        self._grace_s = grace_s
        self._over_at_s = 0.0
        self._time_s = asyncio.get_running_loop().time

    def request(self) -> None:
        """Stop when everyone is served; asked again, at once."""
        self._begin(self._grace_s)

    def fail(self, error: BaseException) -> None:
        """Stop very soon: the store has failed with ``error``."""
        self.failure = error
        self._begin(_FAILURE_GRACE_S)

    async def let_finish(self, work: Coroutine[Any, Any, object], *, cut: Callable[[], object]) -> None:
        """Wait for ``work``. When the time is over, or at once if asked to, ``cut`` is called to make it end."""
        working = asyncio.ensure_future(work)
        hurried = asyncio.ensure_future(self._at_once.wait())
        left_s = max(0.0, self._over_at_s - self._time_s())
        await asyncio.wait((working, hurried), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not working.done():
            cut()
        await working

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Take SIGTERM and SIGINT as requests; only the main thread can, in another one this does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.request)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _begin(self, grace_s: float) -> None:
        if self.requested.is_set():
            self._at_once.set()
            return
        self._over_at_s = self._time_s() + grace_s
        self.requested.set()
