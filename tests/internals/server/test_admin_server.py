"""Uvicorn within our limits: clients that are slow, too many, too long, or do not read."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from veilmq.core import limits
from veilmq.server import admin, process
from veilmq.server.process import Shutdown

PATIENCE_S = 60.0
HOUR_S = 3_600.0
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
STREAM = GET.replace(b"/ ", b"/stream ", 1)
LARGE = b"x" * 50_000_000


class Site:
    """One page behind the operator's server: ``answer`` bytes long, or never answered where that is ``None``."""

    def __init__(self, answer: bytes | None) -> None:
        """Made in the event loop."""
        self.answer = answer
        self.asked = asyncio.Event()
        self.app = Starlette(routes=[Route("/", self._page), Route("/stream", self._stream)])
        self.streaming = asyncio.Event()
        self.streaming.set()
        self.shutdown = Shutdown(grace_s=HOUR_S)
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []
        self.sent = 0

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a new connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1_000)
        self._writers.append(writer)
        return reader, writer

    async def disconnect(self) -> None:
        """Close all connections."""
        for writer in self._writers:
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _stream(self, request: Request) -> Response:
        """Send an event every few hundredths of a second, as many bytes as there are in the answer."""

        async def events() -> AsyncIterator[bytes]:
            while self.streaming.is_set():
                yield b"data: %b\n\n" % (self.answer or b"")
                self.sent += 1
                await asyncio.to_thread(threading.Event().wait, 0.02)

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _page(self, request: Request) -> Response:
        self.asked.set()
        if self.answer is None:
            await asyncio.Event().wait()
        return Response(self.answer)


def serve(
    story: Callable[[Site], Awaitable[None]],
    *,
    answer: bytes | None = b"here",
    request_s_max: float = limits.HTTP_REQUEST_S_MAX,
) -> None:
    """Tell ``story`` of a server that is up, and wait for its end."""

    async def tell() -> None:
        site = Site(answer)
        listeners = process.bind("127.0.0.1", 0, setting="admin_port")
        site.port = listeners[0].getsockname()[1]
        async with admin.serving(
            site.app, listeners, shutdown=site.shutdown, request_s_max=request_s_max, ending=site.streaming.clear
        ):
            await story(site)
        await site.disconnect()

    async def bounded() -> None:
        await asyncio.wait_for(tell(), PATIENCE_S)

    asyncio.run(bounded())


@pytest.mark.parametrize("sent", [b"", b"GE", GET[:-2], GET + GET[:-2]], ids=["nothing", "method", "head", "second"])
def test_a_request_that_does_not_end_ends_its_connection(sent: bytes) -> None:
    """Whatever was sent of it, and whether or not one was answered before."""

    async def story(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(sent)
        received = await reader.read(-1)
        assert received.count(b"HTTP/1.1 200") == sent.count(b"\r\n\r\n")

    serve(story, request_s_max=0.2)


def test_a_client_that_goes_on_asking_stays() -> None:
    """Each request has the whole limit for itself."""

    async def story(site: Site) -> None:
        reader, writer = await site.connect()
        time_s = asyncio.get_running_loop().time
        until_s = time_s() + 0.5
        while time_s() < until_s:
            writer.write(GET)
            assert (await reader.readuntil(b"here")).startswith(b"HTTP/1.1 200 ")

    serve(story, request_s_max=0.2)


def test_a_client_that_does_not_read_is_cut_off() -> None:
    """Its reply is thrown away."""

    async def story(site: Site) -> None:
        _, writer = await site.connect()
        writer.write(GET)
        await site.asked.wait()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        with pytest.raises(ConnectionError):
            await send_for_ever(writer)

    serve(story, answer=LARGE, request_s_max=0.2)


def test_a_stream_goes_on_as_long_as_its_client_reads() -> None:
    """It has no end of its own; the end of the server is one."""

    async def story(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(STREAM)
        time_s = asyncio.get_running_loop().time
        until_s = time_s() + 0.7
        while time_s() < until_s:
            await reader.readuntil(b"data: here")
        site.shutdown.request()

    serve(story, request_s_max=0.2)


def test_a_stream_that_is_not_read_is_cut_off() -> None:
    """Once all room on the way is taken."""

    async def story(site: Site) -> None:
        _, writer = await site.connect()
        writer.write(STREAM)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        with pytest.raises(ConnectionError):
            await send_for_ever(writer)

    serve(story, answer=LARGE, request_s_max=0.2)


def test_a_head_that_is_too_long_is_refused() -> None:
    """Nobody fills the memory with one."""

    async def story(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(GET[:-2] + b"X: " + b"x" * (2 * admin.HEAD_BYTES_MAX))
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")

    serve(story)


@pytest.mark.parametrize(
    "length", ["-1", "+1", "", "x", "1 1", "0x1", "1.0", "1_0", "\u00b2", "1, 2", "9" * 21, "9" * 5_000]
)
@pytest.mark.parametrize("before", [b"", GET], ids=["first", "second"])
def test_a_length_that_is_none_is_refused(caplog: pytest.LogCaptureFixture, before: bytes, length: str) -> None:
    """And nobody finds a traceback."""

    async def story(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(before + GET[:-2] + f"Content-Length: {length}\r\n\r\n".encode())
        received = await reader.read(-1)
        assert received.count(b"HTTP/1.1 200 ") == bool(before)
        assert received.count(b"HTTP/1.1 400 ") == 1

    serve(story)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("head", "heard", "answers"),
    [
        (GET, b"", [b"400"]),  # the application is asked by then, and not heard any more
        (GET, b"here", [b"200"]),  # it did not wait for the body
        (STREAM, b"data: here", [b"200"]),
    ],
    ids=["before-the-answer", "after-the-answer", "in-the-answer"],
)
def test_a_body_that_is_none_ends_the_connection(
    caplog: pytest.LogCaptureFixture, head: bytes, heard: bytes, answers: list[bytes]
) -> None:
    """Wherever the answer is by then, and nobody finds a traceback."""

    async def story(site: Site) -> None:
        reader, writer = await site.connect()
        writer.write(head[:-2] + b"Transfer-Encoding: chunked\r\n\r\n" + (b"" if heard else b"-1\r\n"))
        received = await reader.readuntil(heard) if heard else b""
        writer.write(b"-1\r\n" if heard else b"")
        with suppress(ConnectionError):
            received += await reader.read(-1)
        assert [line.split()[1] for line in received.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")] == answers

    serve(story)
    assert caplog.messages == []


def test_connections_beyond_the_limit_are_closed() -> None:
    """Those that are open stay."""

    async def story(site: Site) -> None:
        kept = [await site.connect() for _ in range(admin.CONNECTIONS_MAX)]
        reader, _ = await site.connect()
        assert await ended(reader)
        for reader, writer in kept[1:]:
            writer.write_eof()
            assert await ended(reader)
        reader, writer = kept[0]
        writer.write(GET)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")

    serve(story)


async def send_for_ever(writer: asyncio.StreamWriter) -> None:
    """Raise ``ConnectionError`` once the server has had enough."""
    while True:
        writer.write(bytes(65_536))
        await writer.drain()


async def ended(reader: asyncio.StreamReader) -> bool:
    """Tell whether the server has closed, in whatever way, and said nothing before."""
    with suppress(ConnectionError):
        return await reader.read() == b""
    return True


@pytest.mark.parametrize("grace_s", [0.1, HOUR_S], ids=["time-is-over", "asked-twice"])
@pytest.mark.parametrize("answer", [LARGE, None], ids=["does-not-read", "is-not-answered"])
def test_the_end_waits_for_nobody_beyond_its_time(grace_s: float, answer: bytes | None) -> None:
    """A client that does not read, or that cannot be answered, holds the end up no longer than anybody may."""

    async def story(site: Site) -> None:
        site.shutdown._grace_s = grace_s
        _, writer = await site.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(GET)
        await site.asked.wait()
        site.shutdown.request()
        if grace_s == HOUR_S:
            asyncio.get_running_loop().call_later(0.1, site.shutdown.request)

    serve(story, answer=answer, request_s_max=HOUR_S)
