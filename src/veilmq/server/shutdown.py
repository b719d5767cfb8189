"""Ending a server: the first request to stop lets everyone finish, a second one, or a failed store, does not wait."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Shutdown:
    """What is known about the end; belongs to the running event loop."""

    def __init__(self) -> None:
        """Nobody has asked yet."""
        self.requested = asyncio.Event()
        self.at_once = asyncio.Event()
        self.failure: BaseException | None = None

    def request(self) -> None:
        """Stop when everyone is served; asked again, at once."""
        if self.requested.is_set():
            self.at_once.set()
        self.requested.set()

    def fail(self, error: BaseException) -> None:
        """Stop at once: the store has failed with ``error``."""
        self.failure = error
        self.at_once.set()
        self.requested.set()

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
