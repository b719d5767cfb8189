"""SIGHUP: files that can be read again are, without a request being dropped."""

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

log = logging.getLogger(__name__)


class Reload:
    """All that is read again, in order; each says for itself in the log what came of it."""

    def __init__(self, readers: Sequence[Callable[[], None]]) -> None:
        """``readers`` raise nothing."""
        self._readers = readers

    def __call__(self) -> None:
        """Read again."""
        if not self._readers:
            log.info("there is nothing to read again: neither credentials nor a certificate are in use")
        for read in self._readers:
            read()

    @contextmanager
    def on_signal(self) -> Iterator[None]:
        """Do so at each SIGHUP; only the main thread can, in another one this does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
