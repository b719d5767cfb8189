"""A server that plays a script: each request gets the next answer, byte for byte, on a connection of its own.

It is for what no queue server does on purpose: replies that break off, nonsense, statuses that go away when one asks
again. An answer of `None` closes the connection without a word.
"""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

Answer = bytes | None


def reply(status: int, body: bytes = b"{}") -> bytes:
    return b"HTTP/1.1 %d Made Up\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(body), body)


_OVER = reply(403, b'{"__type": "AccessDenied", "message": "The script is over."}')


class ScriptedServer:
    """Listens on a free loopback port while it is entered; `requests` holds what it was asked, head and body."""

    def __init__(self, *answers: Answer) -> None:
        """Play `answers` in order; what comes behind the last one is refused, so that nobody tries again for ever."""
        self.requests: list[bytes] = []
        self._answers = list(answers)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def endpoint(self) -> str:
        """Return the URL of the server."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening and wait for the last connection."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            with connection, suppress(ConnectionError):  # the client has given up, and may ask again
                connection.settimeout(60)
                self._play(connection)

    def _play(self, connection: socket.socket) -> None:
        request = _read_request(connection)
        self.requests.append(request)
        answer = self._answers.pop(0) if self._answers else _OVER
        if answer is not None:
            connection.sendall(answer)


def _read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += _receive(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    (length,) = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while len(body) < length:
        body += _receive(connection)
    return head + b"\r\n\r\n" + body


def _receive(connection: socket.socket) -> bytes:
    chunk = connection.recv(65_536)
    assert chunk, "the client went away in the middle of a request"
    return chunk
