"""The operator's port: health, metrics, clients that are slow, too many, or do not read; from where it can be used."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import urllib3
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.console.visitor import Visitor
from tests.internals.server.test_process import Files
from tests.server.http_host import dial
from tests.server.keys import OWNER, SECRETS, written
from tests.server.service_client import JSON, ServiceClient
from veilmq.core import limits
from veilmq.server import admin, process
from veilmq.server.admin_api import DRAINING
from veilmq.server.origin import (
    FORWARDED_HEADERS_REQUIRED,
    LOCAL_ONLY,
    TLS_REQUIRED,
    UNLISTED_PROXY,
    WRONG_NAME,
    AdminGuard,
    Unreachable,
)
from veilmq.server.process import Shutdown
from veilmq.server.settings import Addresses
from veilmq.store.port import FAILED, FULL
from veilmq.testing import RunningServer


def get(server: RunningServer, path: str, **headers: str) -> tuple[int, str]:
    url = server.admin_endpoint.replace("0.0.0.0", "127.0.0.1") + path
    reply = urllib3.request("GET", url, headers=headers, retries=False)
    return reply.status, reply.data.decode()


def test_a_running_server_is_live_and_ready(server: RunningServer) -> None:
    assert get(server, "/health/live") == (200, "alive\n")
    assert get(server, "/health/ready") == (200, "ready\n")
    assert get(server, "/nothing")[0] == 404


def test_a_server_that_is_draining_is_not_ready(server: RunningServer) -> None:
    """While somebody is still being served it says so, and is live."""
    with dial(server.endpoint) as sender:
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


def test_each_metric_is_shown_once(server: RunningServer) -> None:
    """A scraper refuses a page that describes one twice."""
    kinds = [line for line in get(server, "/metrics")[1].splitlines() if line.startswith("# TYPE ")]
    assert 10 < len(kinds) == len(set(kinds))


def test_what_the_parser_refuses_is_counted(server: RunningServer) -> None:
    with dial(server.endpoint) as sender:
        sender.sendall(b"NONSENSE\r\n\r\n")
        assert sender.makefile("rb").readline().startswith(b"HTTP/1.1 400 ")
    assert 'veilmq_requests_total{action="unknown",code="400"} 1.0' in get(server, "/metrics")[1].splitlines()


def test_metrics_count_requests_and_show_queues(server: RunningServer) -> None:
    """Counters by action and code, durations, and each queue's states and the age of its oldest message."""
    with ServiceClient(server.endpoint, JSON) as sqs:
        url = sqs.call("CreateQueue", QueueName="q")["QueueUrl"]
        server.advance(60_000)
        assert 'oldest_message_age_seconds{queue="000000000000/q"} 0.0' in get(server, "/metrics")[1], "it is empty"
        for delay_s in (0, 0, 60):
            sqs.call("SendMessage", QueueUrl=url, MessageBody="m", DelaySeconds=delay_s)
        sqs.receive(url, MaxNumberOfMessages=1)
        assert sqs.send("POST", "/", "{}", {"X-Amz-Target": "AmazonSQS.Fly"})[0] == 400
    server.advance(1_500)
    lines = get(server, "/metrics")[1].splitlines()
    for line in (
        'veilmq_requests_total{action="SendMessage",code="OK"} 3.0',
        'veilmq_requests_total{action="unknown",code="UnknownOperationException"} 1.0',
        'veilmq_request_duration_seconds_bucket{action="SendMessage",code="OK",le="+Inf"} 3.0',
        'veilmq_queue_messages_visible{queue="000000000000/q"} 1.0',
        'veilmq_queue_messages_in_flight{queue="000000000000/q"} 1.0',
        'veilmq_queue_messages_delayed{queue="000000000000/q"} 1.0',
        'veilmq_queue_oldest_message_age_seconds{queue="000000000000/q"} 1.5',
        "veilmq_queues 1.0",
        "veilmq_long_polls_parked 0.0",
    ):
        assert line in lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)


def test_metrics_tell_a_quota_and_where_dead_letters_come(server: RunningServer) -> None:
    """With these a rule of Prometheus finds queues near their quota, and queues that should be empty."""
    server.queue("dead")
    server.queue("jobs", dead_letter_queue="dead", receives_max=3, in_flight_max=7)
    server.queue("more", dead_letter_queue="dead", receives_max=3)
    lines = get(server, "/metrics")[1].splitlines()
    for line in (
        'veilmq_queue_in_flight_max{queue="000000000000/jobs"} 7.0',
        f'veilmq_queue_in_flight_max{{queue="000000000000/dead"}} {limits.IN_FLIGHT.default}.0',
        'veilmq_queue_dead_letter_sources{queue="000000000000/dead"} 2.0',
    ):
        assert line in lines
    assert 'veilmq_queue_dead_letter_sources{queue="000000000000/jobs"}' not in "".join(lines)


def test_metrics_tell_whether_the_server_is_ready_and_what_room_there_is(tmp_path: Path) -> None:
    for reserve, ready in ((0, 1), (2**50, 0)):
        with RunningServer(data=tmp_path, free_space_reserve_bytes=reserve) as server:
            lines = get(server, "/metrics")[1].splitlines()
        assert f"veilmq_ready {ready}.0" in lines
        assert "veilmq_degraded 0.0" in lines
        told = dict(line.rsplit(maxsplit=1) for line in lines if line.startswith("veilmq_store_disk_"))
        assert float(told["veilmq_store_disk_reserve_bytes"]) == reserve
        assert float(told["veilmq_store_disk_free_bytes"]) > 0


def test_health_and_metrics_have_a_port_of_their_own_where_it_is_wanted(tmp_path: Path) -> None:
    """By plain HTTP beside a certificate, and with nothing of the console: it can be opened to a monitoring network."""
    with RunningServer(metrics_host="0.0.0.0", metrics_port=0, **Files(tmp_path).settings) as server:
        endpoint = (server.bound.metrics_endpoint or "").replace("0.0.0.0", "127.0.0.1")

        def seen(path: str, method: str = "GET", **headers: str) -> int:
            return urllib3.request(method, endpoint + path, headers=headers, retries=False).status

        assert [seen(path) for path in ("/health/live", "/health/ready", "/metrics")] == [200, 200, 200]
        assert seen("/metrics", Host="veilmq.internal:9326") == 200
        assert seen("/metrics", Origin="http://evil.example") == 403
        assert [seen(path) for path in ("/", "/console/queues", "/api/queues")] == [404, 404, 404]
        assert [seen(path, "POST") for path in ("/events/flush", "/api/clock/trust")] == [404, 404]


def test_a_port_of_metrics_stands_beside_the_console() -> None:
    with RunningServer(metrics_port=0) as server:
        assert get(server, "/health/live")[0] == 200
        assert urllib3.request("GET", f"{server.bound.metrics_endpoint}/health/live", retries=False).status == 200


def test_there_is_no_port_of_metrics_unless_it_is_wanted(server: RunningServer) -> None:
    assert server.bound.metrics_endpoint is None


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
@pytest.mark.parametrize("request_bytes", [GET, STREAM], ids=["page", "stream"])
async def test_a_client_that_does_not_read_is_cut_off(site: Site, request_bytes: bytes) -> None:
    _, writer = await site.connect()
    writer.write(request_bytes)
    if request_bytes is GET:
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


# From where the console can be used: this machine, TLS, a named proxy; and what is refused, with what to do.

NAME = "mq.example.org"
PROXY = "127.0.0.2"
HTTPS = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "198.51.100.7"}


def scope(peer: str, *headers: tuple[str, str], path: str = "/console/queues") -> dict[str, Any]:
    """Return what Uvicorn makes of a request from ``peer``."""
    lines = [(name.lower().encode(), value.encode()) for name, value in headers]
    return {"type": "http", "method": "GET", "path": path, "scheme": "http", "client": (peer, 5), "headers": lines}


def reach(*, signed: bool = True, tls: bool = False, proxies: str = "") -> AdminGuard:
    listed = Addresses(proxies or None)
    return AdminGuard(_inner, own_name="0.0.0.0", any_name=True, signed=signed, tls=tls, proxies=listed)


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_this_machine_may(peer: str) -> None:
    """Whatever the server has; the name by which it is called is checked where there is no certificate to do that."""
    assert [rule.client_scope(scope(peer))[1] for rule in (reach(signed=False), reach(), reach(tls=True))] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("peer", ["192.0.2.1", "10.1.2.3", "fd00::1", "::ffff:192.0.2.1", "::", "0.0.0.0", "x", ""])
def test_others_need_accounts_and_tls(peer: str) -> None:
    with pytest.raises(Unreachable, match="Without authentication") as unasked:
        reach(signed=False, tls=True).client_scope(scope(peer))
    assert str(unasked.value) == LOCAL_ONLY
    with pytest.raises(Unreachable, match="only over TLS") as clear:
        reach().client_scope(scope(peer))
    assert str(clear.value) == TLS_REQUIRED
    assert reach(tls=True).client_scope(scope(peer))[1] is True


def test_who_has_no_address_is_not_of_this_machine() -> None:
    with pytest.raises(Unreachable):
        reach().client_scope({**scope("127.0.0.1"), "client": None})


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Forwarded-Proto", "Forwarded"])
def test_a_proxy_that_is_not_named_is_not_believed(header: str) -> None:
    for peer in ("127.0.0.1", "192.0.2.1"):
        with pytest.raises(Unreachable) as unnamed:
            reach(proxies="192.0.2.2").client_scope(scope(peer, (header, "https")))
        assert str(unnamed.value) == UNLISTED_PROXY


def test_a_named_proxy_tells_who_came_and_how() -> None:
    seen, certified = reach(proxies="192.0.2.2").client_scope(scope("192.0.2.2", *HTTPS.items()))
    assert (seen["scheme"], seen["client"][0], certified) == ("https", "198.51.100.7", True)


@pytest.mark.parametrize(
    ("told", "client"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("127.0.0.1, 198.51.100.7", "198.51.100.7"),  # the client wrote the first itself
        ("203.0.113.9, 198.51.100.7, 192.0.2.3", "198.51.100.7"),  # through two proxies that are named
        ("192.0.2.3", "192.0.2.3"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("2001:db8::1", "2001:db8::1"),
        ("198.51.100.7:4711", "198.51.100.7"),
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("127.0.0.1:1, 198.51.100.7:4711, 192.0.2.3:1", "198.51.100.7"),
    ],
)
def test_the_last_address_that_is_no_named_proxys_is_the_clients(told: str, client: str) -> None:
    asked = scope("192.0.2.2", ("X-Forwarded-Proto", "https"), ("X-Forwarded-For", told))
    assert reach(proxies="192.0.2.0/28").client_scope(asked)[0]["client"][0] == client


def test_lines_of_a_header_are_one_list() -> None:
    lines = (("X-Forwarded-For", "127.0.0.1"), ("X-Forwarded-For", "198.51.100.7"), ("X-Forwarded-Proto", "https"))
    assert reach(proxies="192.0.2.2").client_scope(scope("192.0.2.2", *lines))[0]["client"][0] == "198.51.100.7"


@pytest.mark.parametrize("headers", [
    [], [("X-Forwarded-For", "198.51.100.7")], [("X-Forwarded-Proto", "https")],
    [("X-Forwarded-Proto", "http"), ("X-Forwarded-For", "198.51.100.7")],
    [("X-Forwarded-Proto", "https, http"), ("X-Forwarded-For", "198.51.100.7")],
    [("X-Forwarded-Proto", "https"), ("X-Forwarded-Proto", "http"), ("X-Forwarded-For", "198.51.100.7")],
    [("X-Forwarded-Proto", "https"), ("X-Forwarded-For", "unknown")],
    [("X-Forwarded-Proto", "https"), ("X-Forwarded-For", "198.51.100.7, ")],
    [("Forwarded", "for=198.51.100.7;proto=https")],
])  # fmt: skip
def test_a_named_proxy_must_tell_that_it_speaks_tls_and_to_whom(headers: list[tuple[str, str]]) -> None:
    for proxies, peer in (("192.0.2.2", "192.0.2.2"), ("127.0.0.1", "127.0.0.1")):
        with pytest.raises(Unreachable) as unforwarded:
            reach(proxies=proxies).client_scope(scope(peer, *headers))
        assert str(unforwarded.value) == FORWARDED_HEADERS_REQUIRED


async def _asked(guard: AdminGuard, asked: dict[str, Any]) -> tuple[int, str]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    await guard(asked, receive, send)
    return sent[0]["status"], sent[1]["body"].decode()


@pytest.mark.parametrize("path", ["/", "/console/queues", "/console/login", "/api/queues", "/api/openapi.json", "/x"])
def test_what_cannot_be_used_from_there_says_what_to_do(path: str) -> None:
    status, text = asyncio.run(_asked(reach(), scope("192.0.2.1", path=path)))
    assert (status, TLS_REQUIRED in text) == (403, True)


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics", "/events/flush"])
def test_health_and_metrics_stay_as_they_are(path: str) -> None:
    assert asyncio.run(_asked(reach(signed=False), scope("192.0.2.1", path=path))) == (200, "inner")


@pytest.mark.parametrize("path", ["/health/live/../../console/queues", "/metrics/", "/metrics/console", "//metrics"])
def test_what_only_looks_like_them_is_the_consoles(path: str) -> None:
    assert asyncio.run(_asked(reach(), scope("192.0.2.1", path=path)))[0] == 403


async def _inner(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"inner"})


def test_on_every_address_the_console_has_no_foreign_names() -> None:
    """A page whose name was pointed at this machine reads nothing here either; metrics have whatever name they have."""
    with RunningServer(admin_host="0.0.0.0", insecure=True) as running:
        endpoint = running.admin_endpoint.replace("0.0.0.0", "127.0.0.1")
        with Visitor(endpoint) as visitor:
            assert visitor.get("/console/queues").status == 200
            for path in ("/", "/console/queues", "/api/queues"):
                seen = visitor.get(path, Host="evil.example")
                assert (seen.status, WRONG_NAME in seen.html) == (403, True)
                assert seen.headers["x-content-type-options"] == "nosniff"
            assert visitor.get("/metrics", Host="veilmq.internal:9325").status == 200


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with accounts behind a proxy on this machine."""
    path = written(tmp_path_factory.mktemp("keys") / "credentials.toml")
    with RunningServer(credentials=path, account=OWNER, console_proxy=PROXY) as running:
        yield running


def through_proxy(
    proxied: RunningServer, path: str, method: str = "GET", body: str | None = None, **headers: str
) -> Any:
    """Ask as the proxy does for a browser that knows the server as ``NAME``."""
    told = {"Host": NAME, **HTTPS, **headers}
    with urllib3.PoolManager(source_address=(PROXY, 0)) as http:
        return http.request(method, proxied.admin_endpoint + path, body=body, headers=told, redirect=False)


def test_behind_a_proxy_one_signs_in_under_its_name(proxied: RunningServer) -> None:
    """Its cookie is for TLS alone; and the page of the form is the console's own."""
    form = through_proxy(proxied, "/console/login")
    assert form.status == 200
    cookie = form.headers["set-cookie"]
    assert cookie.startswith("__Host-")
    assert "; Secure" in cookie
    token = _token(form.data)
    body = urlencode({"csrf": token, "key_id": "AKIDOWNER", "secret": SECRETS["AKIDOWNER"], "next": "/console/audit"})
    told = {"Cookie": cookie.partition(";")[0], "Origin": f"https://{NAME}"}
    told["Content-Type"] = "application/x-www-form-urlencoded"
    signed_in = through_proxy(proxied, "/console/login", "POST", body, **told)
    assert (signed_in.status, signed_in.headers["location"]) == (303, "/console/audit")
    told["Cookie"] = signed_in.headers["set-cookie"].partition(";")[0]
    assert through_proxy(proxied, "/console/audit", **told).status == 200


def test_behind_a_proxy_pages_of_others_are_refused(proxied: RunningServer) -> None:
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert through_proxy(proxied, "/console/login", **headers).status == 403


def test_a_proxy_that_does_not_speak_tls_is_refused(proxied: RunningServer) -> None:
    refused = through_proxy(proxied, "/console/login", **{"X-Forwarded-Proto": "http"})
    assert (refused.status, refused.data.decode()) == (403, FORWARDED_HEADERS_REQUIRED + "\n")


def test_through_a_proxy_health_and_metrics_have_no_foreign_names(proxied: RunningServer) -> None:
    refused = through_proxy(proxied, "/metrics")
    assert (refused.status, refused.data.decode()) == (403, WRONG_NAME + "\n")


def test_beside_a_proxy_foreign_names_are_refused(proxied: RunningServer) -> None:
    """A page whose name was pointed at this machine is not behind the proxy, whatever it says."""
    with Visitor(proxied) as visitor:
        assert visitor.get("/console/login").status == 200
        assert visitor.get("/console/login", Host=NAME).text == WRONG_NAME
        assert visitor.get("/console/login", Host=NAME, **HTTPS).text == UNLISTED_PROXY


def test_over_tls_others_sign_in_under_a_name(tmp_path: Path) -> None:
    """The operator's port is open to them without ``insecure``."""
    files = Files(tmp_path)
    with RunningServer(
        admin_host="0.0.0.0", credentials=written(tmp_path / "credentials.toml"), **files.settings
    ) as running:
        endpoint = running.admin_endpoint.replace("0.0.0.0", "127.0.0.1")
        with urllib3.PoolManager(ssl_context=files.trusting()) as http:
            told = {"Host": f"{NAME}:9325", "Connection": "close"}
            form = http.request("GET", f"{endpoint}/console/login", headers=told)
            assert "; Secure" in form.headers["set-cookie"]
            told |= {"Origin": f"https://{NAME}:9325", "Cookie": form.headers["set-cookie"].partition(";")[0]}
            told["Content-Type"] = "application/x-www-form-urlencoded"
            fields = {"csrf": _token(form.data), "key_id": "AKIDOWNER", "secret": SECRETS["AKIDOWNER"]}
            sent = http.request(
                "POST", f"{endpoint}/console/login", body=urlencode(fields), headers=told, redirect=False
            )
            assert (sent.status, sent.headers["location"]) == (303, "/console/queues")


def _token(page: bytes) -> str:
    return page.decode().partition('name="csrf" value="')[2].partition('"')[0]
