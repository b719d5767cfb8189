"""Health and metrics over HTTP; Uvicorn within our limits: clients that are slow, too many, or do not read."""

import asyncio
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from veilmq.core import limits
from veilmq.server import admin, process
from veilmq.server.process import Shutdown
from veilmq.server.stores import DRAINING
from veilmq.store.port import FAILED, FULL
from veilmq.testing import RunningServer


def get(server: RunningServer, path: str, **headers: str) -> tuple[int, str]:
    asked = urllib.request.Request(server.admin_endpoint.replace("0.0.0.0", "127.0.0.1") + path, headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def ask(server: RunningServer, action: str, **members: object) -> dict[str, object]:
    wanted = urllib.request.Request(
        server.endpoint,
        json.dumps(members).encode(),
        {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"},
        method="POST",
    )
    with urllib.request.urlopen(wanted, timeout=60) as reply:
        answer: dict[str, object] = json.load(reply)
        return answer


def test_a_running_server_is_live_and_ready(server: RunningServer) -> None:
    assert get(server, "/health/live") == (200, "alive\n")
    assert get(server, "/health/ready") == (200, "ready\n")
    assert get(server, "/nothing")[0] == 404


def test_a_server_that_is_draining_is_not_ready(server: RunningServer) -> None:
    """While somebody is still being served it says so, and is live."""
    host, port = server.endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as sender:
        sender.sendall(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert sender.recv(1_000).startswith(b"HTTP/1.1 100 ")
        server.request_stop()
        told = next(reply for _ in range(1_000) if (reply := get(server, "/health/ready"))[0] != 200)  # it begins soon
        assert told == (503, f"{DRAINING}\n")
        assert get(server, "/health/live")[0] == 200
        sender.sendall(b"{}")
        assert sender.makefile("rb").read().startswith(b"HTTP/1.1 404 ")


def test_a_server_without_room_is_not_ready(tmp_path: Path) -> None:
    """No disk has as much room as this one is told to keep free; the server is live all the same."""
    with RunningServer(data=tmp_path, free_space_reserve_bytes=2**50) as server:
        assert get(server, "/health/ready") == (503, f"{FULL}\n")
        assert get(server, "/health/live")[0] == 200


def test_a_server_whose_store_failed_is_not_ready(monkeypatch: pytest.MonkeyPatch, server: RunningServer) -> None:
    monkeypatch.setattr(type(server.bound.engine), "has_failed", True)
    assert get(server, "/health/ready") == (503, f"{FAILED}\n")


@pytest.mark.parametrize("headers", [
    pytest.param({"Sec-Fetch-Site": "cross-site"}, id="cross-site"),
    pytest.param({"Origin": "http://evil.example"}, id="other-origin"),
    pytest.param({"Host": "evil.example"}, id="name-that-was-pointed-at-us"),
    pytest.param({"Host": "evil.example:9325", "Origin": "http://evil.example:9325"}, id="with-its-origin"),
])  # fmt: skip
@pytest.mark.parametrize("path", ["/metrics", "/health/ready", "/nothing"])
def test_foreign_web_pages_are_refused(server: RunningServer, headers: dict[str, str], path: str) -> None:
    """A browser shows nothing of the operator's to somebody else's page."""
    assert get(server, path, **headers)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:9325", "127.0.0.1:1", "[::1]:9325"])
def test_addresses_that_nobody_else_can_take_are_served(server: RunningServer, host: str) -> None:
    assert get(server, "/health/live", Host=host)[0] == 200


def test_a_server_that_others_reach_has_names_that_it_does_not_know() -> None:
    """Behind a service's name, for example; web pages are refused all the same."""
    with RunningServer(admin_host="0.0.0.0", insecure=True) as server:
        assert get(server, "/health/live", Host="veilmq.internal:9325")[0] == 200
        assert get(server, "/health/live", Origin="http://evil.example")[0] == 403


def test_what_the_parser_refuses_is_counted(server: RunningServer) -> None:
    host, port = server.endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as sender:
        sender.sendall(b"NONSENSE\r\n\r\n")
        assert sender.makefile("rb").readline().startswith(b"HTTP/1.1 400 ")
    assert 'veilmq_requests_total{action="unknown",code="400"} 1.0' in get(server, "/metrics")[1].splitlines()


def test_metrics_count_requests_and_show_queues(server: RunningServer) -> None:
    """Counters by action and code, durations, and each queue's states and the age of its oldest message."""
    url = str(ask(server, "CreateQueue", QueueName="q")["QueueUrl"])
    ask(server, "SendMessage", QueueUrl=url, MessageBody="a")
    ask(server, "SendMessage", QueueUrl=url, MessageBody="b")
    ask(server, "SendMessage", QueueUrl=url, MessageBody="c", DelaySeconds=60)
    ask(server, "ReceiveMessage", QueueUrl=url)
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(server, "Fly")
    refused.value.close()
    server.advance(1_500)
    lines = get(server, "/metrics")[1].splitlines()
    queue = '{queue="000000000000/q"}'
    assert 'veilmq_requests_total{action="SendMessage",code="OK"} 3.0' in lines
    assert 'veilmq_requests_total{action="unknown",code="UnknownOperationException"} 1.0' in lines
    assert 'veilmq_request_duration_seconds_bucket{action="SendMessage",code="OK",le="+Inf"} 3.0' in lines
    assert f"veilmq_queue_messages_visible{queue} 1.0" in lines
    assert f"veilmq_queue_messages_in_flight{queue} 1.0" in lines
    assert f"veilmq_queue_messages_delayed{queue} 1.0" in lines
    assert f"veilmq_queue_oldest_message_age_seconds{queue} 1.5" in lines
    assert "veilmq_queues 1.0" in lines
    assert "veilmq_long_polls_parked 0.0" in lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)


def test_an_empty_queue_has_no_age(server: RunningServer) -> None:
    ask(server, "CreateQueue", QueueName="q")
    server.advance(60_000)
    assert 'veilmq_queue_oldest_message_age_seconds{queue="000000000000/q"} 0.0' in get(server, "/metrics")[1]


PATIENCE_S = 60.0
HOUR_S = 3_600.0
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
STREAM = GET.replace(b"/ ", b"/stream ", 1)
LARGE = b"x" * 50_000_000


class Site:
    """One page behind the operator's server: ``answer`` bytes long, or never answered where that is ``None``."""

    def __init__(self, answer: bytes | None) -> None:
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
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1_000)
        self._writers.append(writer)
        return reader, writer

    async def disconnect(self) -> None:
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


@asynccontextmanager
async def sites(
    *, answer: bytes | None = b"here", request_s_max: float = limits.HTTP_REQUEST_S_MAX
) -> AsyncIterator[Site]:
    async with asyncio.timeout(PATIENCE_S):
        site = Site(answer)
        listeners = process.bind("127.0.0.1", 0, setting="admin_port")
        site.port = listeners[0].getsockname()[1]
        async with admin.serving(
            site.app, listeners, shutdown=site.shutdown, request_s_max=request_s_max, ending=site.streaming.clear
        ):
            yield site
        await site.disconnect()


@pytest.fixture
def site(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Site]:
    return sites(**getattr(request, "param", {}))


def served(**how: Any) -> pytest.MarkDecorator:
    """Return the mark of a test whose site is made with `how`."""
    return pytest.mark.parametrize("site", [how], indirect=True, ids=["site"])


@served(request_s_max=0.2)
@pytest.mark.parametrize("sent", [b"", b"GE", GET[:-2], GET + GET[:-2]], ids=["nothing", "method", "head", "second"])
async def test_a_request_that_does_not_end_ends_its_connection(site: Site, sent: bytes) -> None:
    """Whatever was sent of it, and whether or not one was answered before."""
    reader, writer = await site.connect()
    writer.write(sent)
    received = await reader.read(-1)
    assert received.count(b"HTTP/1.1 200") == sent.count(b"\r\n\r\n")


@served(request_s_max=0.2)
async def test_a_client_that_goes_on_asking_stays(site: Site) -> None:
    reader, writer = await site.connect()
    time_s = asyncio.get_running_loop().time
    until_s = time_s() + 0.5
    while time_s() < until_s:
        writer.write(GET)
        assert (await reader.readuntil(b"here")).startswith(b"HTTP/1.1 200 ")


@served(answer=LARGE, request_s_max=0.2)
async def test_a_client_that_does_not_read_is_cut_off(site: Site) -> None:
    _, writer = await site.connect()
    writer.write(GET)
    await site.asked.wait()
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    with pytest.raises(ConnectionError):
        await send_for_ever(writer)


@served(request_s_max=0.2)
async def test_a_stream_goes_on_as_long_as_its_client_reads(site: Site) -> None:
    """It has no end of its own; the end of the server is one."""
    reader, writer = await site.connect()
    writer.write(STREAM)
    time_s = asyncio.get_running_loop().time
    until_s = time_s() + 0.7
    while time_s() < until_s:
        await reader.readuntil(b"data: here")
    site.shutdown.request()


@served(answer=LARGE, request_s_max=0.2)
async def test_a_stream_that_is_not_read_is_cut_off(site: Site) -> None:
    _, writer = await site.connect()
    writer.write(STREAM)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    with pytest.raises(ConnectionError):
        await send_for_ever(writer)


async def test_a_head_that_is_too_long_is_refused(site: Site) -> None:
    reader, writer = await site.connect()
    writer.write(GET[:-2] + b"X: " + b"x" * (2 * admin.HEAD_BYTES_MAX))
    assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "length", ["-1", "+1", "", "x", "1 1", "0x1", "1.0", "1_0", "\u00b2", "1, 2", "9" * 21, "9" * 5_000]
)
@pytest.mark.parametrize("before", [b"", GET], ids=["first", "second"])
async def test_a_length_that_is_none_is_refused(caplog: pytest.LogCaptureFixture, before: bytes, length: str) -> None:
    async with sites() as site:
        reader, writer = await site.connect()
        writer.write(before + GET[:-2] + f"Content-Length: {length}\r\n\r\n".encode())
        received = await reader.read(-1)
        assert received.count(b"HTTP/1.1 200 ") == bool(before)
        assert received.count(b"HTTP/1.1 400 ") == 1
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
async def test_a_body_that_is_none_ends_the_connection(
    caplog: pytest.LogCaptureFixture, head: bytes, heard: bytes, answers: list[bytes]
) -> None:
    """Wherever the answer is by then, and nobody finds a traceback."""
    async with sites() as site:
        reader, writer = await site.connect()
        writer.write(head[:-2] + b"Transfer-Encoding: chunked\r\n\r\n" + (b"" if heard else b"-1\r\n"))
        received = await reader.readuntil(heard) if heard else b""
        writer.write(b"-1\r\n" if heard else b"")
        with suppress(ConnectionError):
            received += await reader.read(-1)
        assert [line.split()[1] for line in received.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")] == answers
    assert caplog.messages == []


async def test_connections_beyond_the_limit_are_closed(site: Site) -> None:
    kept = [await site.connect() for _ in range(admin.CONNECTIONS_MAX)]
    reader, _ = await site.connect()
    assert await ended(reader)
    for reader, writer in kept[1:]:
        writer.write_eof()
        assert await ended(reader)
    reader, writer = kept[0]
    writer.write(GET)
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


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


@served(request_s_max=HOUR_S)
@pytest.mark.parametrize("grace_s", [0.1, HOUR_S], ids=["time-is-over", "asked-twice"])
@pytest.mark.parametrize("answer", [LARGE, None], ids=["does-not-read", "is-not-answered"])
async def test_the_end_waits_for_nobody_beyond_its_time(site: Site, grace_s: float, answer: bytes | None) -> None:
    """A client that does not read, or that cannot be answered, holds the end up no longer than anybody may."""
    site.shutdown._grace_s, site.answer = grace_s, answer
    _, writer = await site.connect()
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(GET)
    await site.asked.wait()
    site.shutdown.request()
    if grace_s == HOUR_S:
        asyncio.get_running_loop().call_later(0.1, site.shutdown.request)
