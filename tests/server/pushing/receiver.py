"""A real receiver of pushes: an HTTP server that keeps what it gets and answers as it is told."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Push(NamedTuple):
    """A request as it came: ``headers`` in their order and spelling."""

    path: str
    headers: dict[str, str]
    body: str


class Receiver:
    """Keeps pushes; ``answer`` says what the next ones are answered with."""

    def __init__(self, port: int) -> None:
        """`port` is where it listens."""
        self.port = port
        self.pushes: list[Push] = []
        self.status = 204
        self.headers: dict[str, str] = {}
        self.before: Callable[[Push], object] = _at_once

    @property
    def url(self) -> str:
        """Return its URL, without a slash at its end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def bodies(self) -> list[str]:
        """Return the bodies of all pushes, in order."""
        return [push.body for push in self.pushes]


def _at_once(push: Push) -> None:
    """Do not wait before the answer."""


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Yield a receiver that listens."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            push = Push(self.path, dict(self.headers.items()), body)
            receiver.pushes.append(push)
            receiver.before(push)
            self.send_response(receiver.status)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *told: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)
