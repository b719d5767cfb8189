"""A server with scripted replies, sent byte for byte: each request, on its own connection, gets the next one.

For truncated or invalid replies, temporary errors, and (`None`) connections closed without a reply.
"""

import socket
import threading
from contextlib import suppress
from typing import Self

ScriptedReply = bytes | None


def reply(status: int, body: bytes = b"{}") -> bytes:
    return b"HTTP/1.1 %d Made Up\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(body), body)


_END = reply(403, b'{"__type": "AccessDenied", "message": "The script is over."}')


class ScriptedServer:
    """Listens on a free loopback port while it is entered; `requests` has the head and body of each request."""

    def __init__(self, *replies: ScriptedReply) -> None:
        """Later requests are refused with 403, which clients do not retry."""
        self.requests: list[bytes] = []
        self._replies = list(replies)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def endpoint(self) -> str:
        """Return the URL of the server."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
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
            with connection, suppress(ConnectionError):  # the client closed it, and may retry
                connection.settimeout(60)
                self._handle(connection)

    def _handle(self, connection: socket.socket) -> None:
        request = _read_request(connection)
        self.requests.append(request)
        response = self._replies.pop(0) if self._replies else _END
        if response is not None:
            connection.sendall(response)


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
    assert chunk, "the client closed the connection in the middle of a request"
    return chunk
