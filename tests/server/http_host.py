"""An HTTP server for tests of connections: its handler echoes or holds requests; clients are blocking sockets."""

import asyncio
import re
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from veilmq.core.limits import HTTP_BYTES
from veilmq.server.admission import ByteBudget, HttpLimits
from veilmq.server.background import OrderedReply
from veilmq.server.http import Connections
from veilmq.server.http_parser import Pending, Refusal, RenderedReply, Request, render_text
from veilmq.server.process import loop_factory

T = TypeVar("T")

PATIENCE_S = 60.0
LARGE = b"x" * 8_000_000
UVLOOP = loop_factory()
Limits = HttpLimits
SMALL = HttpLimits(head_bytes_max=2_000, headers_max=20, target_bytes_max=500, body_bytes_max=10_000, pipelined_max=4)
HASTY = HttpLimits(idle_s_max=1.0)  # long enough for a client on a busy machine


def dial(endpoint: str) -> socket.socket:
    place = urlsplit(endpoint)
    return socket.create_connection((place.hostname, place.port), timeout=PATIENCE_S)


def wait_until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "timeout"


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes


class Waiting:
    """A waiting request; ``calls`` has the names of the methods that were called, each of which sets ``event``."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.calls: list[str] = []
        self.event = threading.Event()

    def withdraw(self) -> None:
        self.calls.append("withdraw")
        self.event.set()

    def hurry(self) -> None:
        self.calls.append("hurry")
        self.event.set()


class Held(Waiting):
    """A request that the handler has not answered."""

    def hurry(self) -> None:
        self.calls.append("hurry")  # before the reply, which the test may read at once
        self.request.respond(200, b"", b"hurried")
        self.event.set()


class Large(Waiting):
    """A request with a large reply, which has begun."""

    def answer(self) -> None:
        self.request.respond(200, b"", LARGE)


class HttpHost:
    """A context manager: a server in a thread that echoes requests.

    ``/hold`` is held until ``release``; ``/large`` and ``/kept`` have ordered replies; ``/defect`` raises an exception.
    """

    def __init__(
        self,
        limits: HttpLimits | None = None,
        *,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
        bytes_max: int = HTTP_BYTES.default,
    ) -> None:
        self._loop_factory = loop_factory
        self.budget = ByteBudget(bytes_max)
        self.targets: list[bytes] = []
        self._limits = limits
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.held: list[Held] = []
        self.holding = threading.Semaphore(0)
        self.handled = 0
        self.begun: list[Large] = []
        self.refused: list[int] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.result(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self._stop.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the server's loop does not end"

    def client(self) -> "Client":
        return Client(socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S))

    def call(self, work: Callable[[], T]) -> T:
        """Call ``work`` in the server's thread; return its result."""
        done: Future[T] = Future()
        self._loop.call_soon_threadsafe(lambda: done.set_result(work()))
        return done.result(PATIENCE_S)

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Block the server's event loop: data that arrives meanwhile is read in one iteration afterwards."""
        is_blocked, goes_on = threading.Event(), threading.Event()

        def block() -> None:
            is_blocked.set()
            goes_on.wait(PATIENCE_S)

        self._loop.call_soon_threadsafe(block)
        assert is_blocked.wait(PATIENCE_S)
        try:
            yield
        finally:
            goes_on.set()

    def await_held(self) -> Held:
        """Wait for the next held request."""
        assert self.holding.acquire(timeout=PATIENCE_S), "no request"
        return self.held[-1]

    def release(self, held: Held, body: bytes) -> None:
        self.call(lambda: held.request.respond(200, b"", body))

    def drain(self) -> None:
        self._draining = asyncio.run_coroutine_threadsafe(self.connections.drain(), self._loop)

    def wait_closed(self) -> None:
        """Wait until all connections are closed."""
        emptied = asyncio.wait_for(self.connections._emptied.wait(), PATIENCE_S)
        asyncio.run_coroutine_threadsafe(emptied, self._loop).result(PATIENCE_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._loop_factory) as runner:
            runner.run(self._serve())

    def _begin(self, request: Request) -> "Large":
        self.begun.append(Large(request))
        self._loop.call_soon(self.begun[-1].answer)
        return self.begun[-1]

    def _handle(self, request: Request) -> Pending | None:
        self.handled += 1
        self.targets.append(request.target)
        if request.target == b"/large":
            return OrderedReply(request, lambda: self._begin(request))
        if request.target == b"/defect":
            raise RuntimeError("a defect of the handler")
        if request.target == b"/kept":  # drops the body; the bytes that were read stay reserved until the reply
            request.body = b""
            request.run_in_turn(lambda: request.respond(200, b"", b"kept"))
            return None
        if request.target == b"/hold":
            held = Held(request)
            self.held.append(held)
            self.holding.release()
            return held
        lines = [request.method + b" " + request.target]
        lines += [name + b"=" + value for name, value in request.headers.items()]
        request.respond(200, b"Content-Type: text/plain\r\n", b"\n".join([*lines, b"", request.body]))
        return None

    def _word(self, refusal: Refusal, headers: Mapping[bytes, bytes]) -> RenderedReply:
        self.refused.append(refusal.status)
        return render_text(refusal, headers)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.connections = Connections(
            handler=self._handle, limits=self._limits, render_refusal=self._word, budget=self.budget
        )
        server = await self._loop.create_server(self.connections.protocol, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set_result(None)
        await self._stop.wait()
        server.close()
        try:
            await asyncio.wait_for(self.connections.drain(), 1)
        except TimeoutError:
            self.connections.abort()


class Client:
    """One connection, whose reads time out after ``PATIENCE_S``."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._file = connected.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, *pieces: bytes) -> None:
        """Send each piece in a separate segment, as far as the system allows."""
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            self.socket.sendall(piece)

    def read(self, *, bodiless: bool = False) -> Reply:
        first = self._file.readline()
        assert first.startswith(b"HTTP/1.1 "), first
        headers = {}
        while (line := self._file.readline().strip()) != b"":
            name, _, value = line.decode().partition(": ")
            headers[name.lower()] = value
        length = 0 if bodiless else int(headers.get("content-length", "0"))
        return Reply(int(first.split()[1]), headers, self._file.read(length))

    def at_end(self) -> bool:
        """Return whether the server closed the connection without sending more."""
        return self._file.read() == b""

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def reset(self) -> None:
        """Close with a reset, so that the server reads an error and not an end."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


def held_bytes(admin_endpoint: str) -> dict[str, int]:
    """Return the bytes that a server has reserved, from the metrics of its admin port."""
    with urllib.request.urlopen(f"{admin_endpoint}/metrics", timeout=PATIENCE_S) as reply:
        text = reply.read().decode()
    return {what: int(float(held)) for what, held in re.findall(r'veilmq_http_bytes{what="(\w+)"} (\S+)', text)}
