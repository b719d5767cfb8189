"""Ends long polls from outside: the sending half of their connections is closed, and the reading half stays open.

A server that notices answers what was asked, with what it has, or closes; veilmq answers at once. So a message that was
handed out at that very moment still arrives here, and can be released. A thread that waits for an answer cannot be
stopped otherwise, and a connection that is closed whole would take such an answer with it.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from urllib3 import BaseHTTPResponse


class Waits:
    """The connections of one pool on which a server takes its time on purpose; used by several threads."""

    def __init__(self) -> None:
        """Begin with none."""
        self._here = threading.local()
        self._lock = threading.Lock()
        self._waiting: set[Any] = set()

    @contextmanager
    def during(self, wait_s: int) -> Iterator[None]:
        """Have this thread's calls be such that can be hung up on, where ``wait_s`` is not 0."""
        self._here.waits = wait_s > 0
        try:
            yield
        finally:
            self._here.waits = False

    def watched(self, connection_class: type[Any]) -> type[Any]:
        """Return the pool's class of connections, which from then on says when one of them waits for an answer."""
        waits = self

        class Watched(connection_class):  # type: ignore[misc]
            """A connection that can be hung up on, and is not used again then."""

            is_hung_up = False

            @property
            def is_connected(self) -> bool:
                """Whether the pool may give it out."""
                return not self.is_hung_up and bool(super().is_connected)

            def close(self) -> None:
                """Close it; the next request opens it anew."""
                super().close()
                self.is_hung_up = False

            def getresponse(self) -> BaseHTTPResponse:
                """Wait for the answer."""
                if not getattr(waits._here, "waits", False):
                    return super().getresponse()  # type: ignore[no-any-return]
                with waits._lock:
                    waits._waiting.add(self)
                try:
                    return super().getresponse()  # type: ignore[no-any-return]
                finally:
                    with waits._lock:
                        waits._waiting.discard(self)

        return Watched

    def hang_up(self) -> None:
        """Close the sending half of those that wait now."""
        with self._lock:
            for connection in self._waiting:
                connection.is_hung_up = True
                with suppress(OSError, AttributeError):  # it is closed, or its socket is the response's by now
                    socket.socket.shutdown(connection.sock, socket.SHUT_WR)  # past TLS, whose shutdown is another's
