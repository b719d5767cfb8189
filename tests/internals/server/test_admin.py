"""The admin port: health, metrics, slow and numerous clients, and from where the console can be used."""

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
from starlette.requests import ClientDisconnect, Request
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


def test_a_draining_server_is_live_but_not_ready(server: RunningServer) -> None:
    with dial(server.endpoint) as sender:
        sender.sendall(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert sender.recv(1_000).startswith(b"HTTP/1.1 100 ")
        server.request_stop()
        ready = next(reply for _ in range(1_000) if (reply := get(server, "/health/ready"))[0] != 200)  # soon
        assert ready == (503, f"{DRAINING}\n")
        assert get(server, "/health/live")[0] == 200
        sender.sendall(b"{}")
        assert sender.makefile("rb").read().startswith(b"HTTP/1.1 404 ")


def test_a_server_with_too_little_disk_space_is_live_but_not_ready(tmp_path: Path) -> None:
    with RunningServer(data=tmp_path, free_space_reserve_bytes=2**50) as server:
        assert get(server, "/health/ready") == (503, f"{FULL}\n")
        assert get(server, "/health/live")[0] == 200


def test_a_server_whose_store_failed_is_not_ready(monkeypatch: pytest.MonkeyPatch, server: RunningServer) -> None:
    monkeypatch.setattr(type(server.bound.engine), "has_failed", True)
    assert get(server, "/health/ready") == (503, f"{FAILED}\n")


@pytest.mark.parametrize("headers", [
    pytest.param({"Sec-Fetch-Site": "cross-site"}, id="cross-site"),
    pytest.param({"Origin": "http://evil.example"}, id="other-origin"),
    pytest.param({"Host": "evil.example"}, id="rebound-name"),
    pytest.param({"Host": "evil.example:9325", "Origin": "http://evil.example:9325"}, id="rebound-origin"),
])  # fmt: skip
@pytest.mark.parametrize("path", ["/metrics", "/health/ready", "/nothing"])
def test_foreign_web_pages_are_refused(server: RunningServer, headers: dict[str, str], path: str) -> None:
    assert get(server, path, **headers)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:9325", "127.0.0.1:1", "[::1]:9325"])
def test_addresses_that_cannot_be_rebound_are_served(server: RunningServer, host: str) -> None:
    assert get(server, "/health/live", Host=host)[0] == 200


def test_a_port_open_to_other_machines_accepts_any_host() -> None:
    """Such as the name of a Kubernetes service; foreign web pages are still refused."""
    with RunningServer(admin_host="0.0.0.0", insecure=True) as server:
        assert get(server, "/health/live", Host="veilmq.internal:9325")[0] == 200
        assert get(server, "/health/live", Origin="http://evil.example")[0] == 403


def test_each_metric_is_described_once(server: RunningServer) -> None:
    """Prometheus refuses duplicates."""
    kinds = [line for line in get(server, "/metrics")[1].splitlines() if line.startswith("# TYPE ")]
    assert 10 < len(kinds) == len(set(kinds))


def test_requests_refused_by_the_parser_are_counted(server: RunningServer) -> None:
    with dial(server.endpoint) as sender:
        sender.sendall(b"NONSENSE\r\n\r\n")
        assert sender.makefile("rb").readline().startswith(b"HTTP/1.1 400 ")
    assert 'veilmq_requests_total{action="unknown",code="400"} 1.0' in get(server, "/metrics")[1].splitlines()


def test_metrics_count_requests_and_show_queues(server: RunningServer) -> None:
    """Counters by action and code, durations, and each queue's states and oldest message."""
    with ServiceClient(server.endpoint, JSON) as sqs:
        url = sqs.call("CreateQueue", QueueName="q")["QueueUrl"]
        server.advance(60_000)
        assert 'oldest_message_age_seconds{queue="000000000000/q"} 0.0' in get(server, "/metrics")[1], "empty"
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


def test_metrics_show_quotas_and_dead_letter_queues(server: RunningServer) -> None:
    """For alerts on queues near their quota, and on queues that should be empty."""
    server.queue("dead")
    server.queue("jobs", dead_letter_queue="dead", receives_max=3, in_flight_max=7)
    server.queue("more", dead_letter_queue="dead", receives_max=3)
    server.queue("more.fifo", fifo=True)
    lines = get(server, "/metrics")[1].splitlines()
    for line in (
        'veilmq_queue_in_flight_max{queue="000000000000/jobs"} 7.0',
        f'veilmq_queue_in_flight_max{{queue="000000000000/dead"}} {limits.IN_FLIGHT.default}.0',
        f'veilmq_queue_in_flight_max{{queue="000000000000/more.fifo"}} {limits.FIFO_IN_FLIGHT.default}.0',
        'veilmq_queue_dead_letter_sources{queue="000000000000/dead"} 2.0',
    ):
        assert line in lines
    assert 'veilmq_queue_dead_letter_sources{queue="000000000000/jobs"}' not in "".join(lines)


def test_metrics_show_readiness_and_disk_space(tmp_path: Path) -> None:
    for reserve, ready in ((0, 1), (2**50, 0)):
        with RunningServer(data=tmp_path, free_space_reserve_bytes=reserve) as server:
            lines = get(server, "/metrics")[1].splitlines()
        assert f"veilmq_ready {ready}.0" in lines
        assert "veilmq_degraded 0.0" in lines
        values = dict(line.rsplit(maxsplit=1) for line in lines if line.startswith("veilmq_store_disk_"))
        assert float(values["veilmq_store_disk_reserve_bytes"]) == reserve
        assert float(values["veilmq_store_disk_free_bytes"]) > 0


def test_health_and_metrics_may_have_their_own_port(tmp_path: Path) -> None:
    """Over plain HTTP even with a certificate, and without the console, for a monitoring network."""
    with RunningServer(metrics_host="0.0.0.0", metrics_port=0, **Files(tmp_path).settings) as server:
        endpoint = (server.bound.metrics_endpoint or "").replace("0.0.0.0", "127.0.0.1")

        def seen(path: str, method: str = "GET", **headers: str) -> int:
            return urllib3.request(method, endpoint + path, headers=headers, retries=False).status

        assert [seen(path) for path in ("/health/live", "/health/ready", "/metrics")] == [200, 200, 200]
        assert seen("/metrics", Host="veilmq.internal:9326") == 200
        assert seen("/metrics", Origin="http://evil.example") == 403
        assert [seen(path) for path in ("/", "/console/queues", "/api/queues")] == [404, 404, 404]
        assert [seen(path, "POST") for path in ("/events/flush", "/api/clock/trust")] == [404, 404]


def test_the_metrics_port_does_not_replace_the_admin_port() -> None:
    with RunningServer(metrics_port=0) as server:
        assert get(server, "/health/live")[0] == 200
        assert urllib3.request("GET", f"{server.bound.metrics_endpoint}/health/live", retries=False).status == 200


def test_there_is_no_metrics_port_by_default(server: RunningServer) -> None:
    assert server.bound.metrics_endpoint is None


PATIENCE_S = 60.0
HOUR_S = 3_600.0
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
STREAM = GET.replace(b"/ ", b"/stream ", 1)
LARGE = b"x" * 50_000_000


class Site:
    """A site behind the admin server: a page of ``answer`` bytes (``None``: no reply), and a stream."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer
        self.requested = asyncio.Event()
        self.app = Starlette(routes=[Route("/", self._page), Route("/stream", self._stream)])
        self.streaming = asyncio.Event()
        self.streaming.set()
        self.shutdown = Shutdown(grace_s=HOUR_S)
        self.shutdown.starting = None
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
        """Send an event with the answer every few hundredths of a second."""

        async def events() -> AsyncIterator[bytes]:
            while self.streaming.is_set():
                yield b"data: %b\n\n" % (self.answer or b"")
                await asyncio.to_thread(threading.Event().wait, 0.02)

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _page(self, request: Request) -> Response:
        self.requested.set()
        if self.answer is None:
            with suppress(ClientDisconnect):
                await request.body()
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


def served(**options: Any) -> pytest.MarkDecorator:
    """Return the mark of a test with a site of these options."""
    return pytest.mark.parametrize("site", [options], indirect=True, ids=["site"])


@served(request_s_max=0.2)
@pytest.mark.parametrize("sent", [b"", b"GE", GET[:-2], GET + GET[:-2]], ids=["nothing", "method", "head", "second"])
async def test_an_incomplete_request_ends_its_connection(site: Site, sent: bytes) -> None:
    """Whether or not a request was answered before."""
    reader, writer = await site.connect()
    writer.write(sent)
    received = await reader.read(-1)
    assert received.count(b"HTTP/1.1 200") == sent.count(b"\r\n\r\n")


@served(request_s_max=0.2)
async def test_a_client_that_continues_to_send_requests_stays(site: Site) -> None:
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
        await site.requested.wait()
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    with pytest.raises(ConnectionError):
        await send_for_ever(writer)


@served(request_s_max=0.2)
async def test_a_stream_lasts_until_the_shutdown_while_its_client_reads(site: Site) -> None:
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
async def test_an_invalid_length_is_refused(caplog: pytest.LogCaptureFixture, before: bytes, length: str) -> None:
    async with sites() as site:
        reader, writer = await site.connect()
        writer.write(before + GET[:-2] + f"Content-Length: {length}\r\n\r\n".encode())
        received = await reader.read(-1)
        assert received.count(b"HTTP/1.1 200 ") == bool(before)
        assert received.count(b"HTTP/1.1 400 ") == 1
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("head", "received_first", "statuses"),
    [
        (GET, b"", [b"400"]),  # the application has the request, but its reply is dropped
        (GET, b"here", [b"200"]),  # the page does not wait for the body
        (STREAM, b"data: here", [b"200"]),
    ],
    ids=["before-the-reply", "after-the-reply", "in-the-reply"],
)
async def test_an_invalid_body_ends_the_connection(
    caplog: pytest.LogCaptureFixture, head: bytes, received_first: bytes, statuses: list[bytes]
) -> None:
    """At any time, and without a traceback in the log."""
    async with sites() as site:
        reader, writer = await site.connect()
        writer.write(head[:-2] + b"Transfer-Encoding: chunked\r\n\r\n" + (b"" if received_first else b"-1\r\n"))
        received = await reader.readuntil(received_first) if received_first else b""
        writer.write(b"-1\r\n" if received_first else b"")
        with suppress(ConnectionError):
            received += await reader.read(-1)
        assert [line.split()[1] for line in received.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")] == statuses
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
    """Raise ``ConnectionError`` when the server closes the connection."""
    while True:
        writer.write(bytes(65_536))
        await writer.drain()


async def ended(reader: asyncio.StreamReader) -> bool:
    """Return whether the server has closed without sending anything."""
    with suppress(ConnectionError):
        return await reader.read() == b""
    return True


@served(request_s_max=HOUR_S)
@pytest.mark.parametrize("grace_s", [0.1, HOUR_S], ids=["timeout", "second-request"])
@pytest.mark.parametrize("answer", [LARGE, None], ids=["does-not-read", "is-not-answered"])
async def test_shutdown_is_bounded_by_its_grace_time(site: Site, grace_s: float, answer: bytes | None) -> None:
    """Even if a client does not read, or cannot be answered."""
    site.shutdown._grace_s, site.answer = grace_s, answer
    _, writer = await site.connect()
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(GET)
    await site.requested.wait()
    site.shutdown.request()
    if grace_s == HOUR_S:
        asyncio.get_running_loop().call_later(0.1, site.shutdown.request)


@served(answer=None, request_s_max=HOUR_S)
async def test_shutdown_waits_only_shortly_for_the_rest_of_a_body(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "CLOSING_S_MAX", 0.1)
    _, writer = await site.connect()
    writer.write(GET[:-2] + b"Content-Length: 5\r\n\r\nab")
    await site.requested.wait()
    site.shutdown.request()


# From where the console can be used: this machine, TLS, a listed proxy; and the errors otherwise.

NAME = "mq.example.org"
PROXY = "127.0.0.2"
HTTPS = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "198.51.100.7"}


def scope(peer: str, *headers: tuple[str, str], path: str = "/console/queues") -> dict[str, Any]:
    """Return the ASGI scope of a request from ``peer``."""
    lines = [(name.lower().encode(), value.encode()) for name, value in headers]
    return {"type": "http", "method": "GET", "path": path, "scheme": "http", "client": (peer, 5), "headers": lines}


def reach(*, signed: bool = True, tls: bool = False, proxies: str = "") -> AdminGuard:
    listed = Addresses(proxies or None)
    return AdminGuard(_inner, own_name="0.0.0.0", any_name=True, signed=signed, tls=tls, proxies=listed)


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_this_machine_may_use_the_console(peer: str) -> None:
    """With any configuration; the Host header is checked unless a certificate does."""
    assert [rule.client_scope(scope(peer))[1] for rule in (reach(signed=False), reach(), reach(tls=True))] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("peer", ["192.0.2.1", "10.1.2.3", "fd00::1", "::ffff:192.0.2.1", "::", "0.0.0.0", "x", ""])
def test_others_need_accounts_and_tls(peer: str) -> None:
    with pytest.raises(Unreachable, match="Without authentication") as unsigned:
        reach(signed=False, tls=True).client_scope(scope(peer))
    assert str(unsigned.value) == LOCAL_ONLY
    with pytest.raises(Unreachable, match="only over TLS") as clear:
        reach().client_scope(scope(peer))
    assert str(clear.value) == TLS_REQUIRED
    assert reach(tls=True).client_scope(scope(peer))[1] is True


def test_a_client_without_an_address_is_not_local() -> None:
    with pytest.raises(Unreachable):
        reach().client_scope({**scope("127.0.0.1"), "client": None})


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Forwarded-Proto", "Forwarded"])
def test_forwarded_headers_of_an_unlisted_proxy_are_refused(header: str) -> None:
    for peer in ("127.0.0.1", "192.0.2.1"):
        with pytest.raises(Unreachable) as unnamed:
            reach(proxies="192.0.2.2").client_scope(scope(peer, (header, "https")))
        assert str(unnamed.value) == UNLISTED_PROXY


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("127.0.0.1, 198.51.100.7", "198.51.100.7"),  # the first is forged by the client
        ("203.0.113.9, 198.51.100.7, 192.0.2.3", "198.51.100.7"),  # through two listed proxies
        ("192.0.2.3", "192.0.2.3"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("2001:db8::1", "2001:db8::1"),
        ("198.51.100.7:4711", "198.51.100.7"),
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("127.0.0.1:1, 198.51.100.7:4711, 192.0.2.3:1", "198.51.100.7"),
    ],
)
def test_the_client_is_the_last_address_that_is_no_listed_proxy(forwarded: str, client: str) -> None:
    request = scope("192.0.2.2", ("X-Forwarded-Proto", "https"), ("X-Forwarded-For", forwarded))
    assert reach(proxies="192.0.2.0/28").client_scope(request)[0]["client"][0] == client


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
def test_a_listed_proxy_must_send_scheme_and_client(headers: list[tuple[str, str]]) -> None:
    for proxies, peer in (("192.0.2.2", "192.0.2.2"), ("127.0.0.1", "127.0.0.1")):
        with pytest.raises(Unreachable) as unforwarded:
            reach(proxies=proxies).client_scope(scope(peer, *headers))
        assert str(unforwarded.value) == FORWARDED_HEADERS_REQUIRED


async def _send(guard: AdminGuard, request: dict[str, Any]) -> tuple[int, str]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    await guard(request, receive, send)
    return sent[0]["status"], sent[1]["body"].decode()


@pytest.mark.parametrize("path", ["/", "/console/queues", "/console/login", "/api/queues", "/api/openapi.json", "/x"])
def test_refusals_say_what_to_do(path: str) -> None:
    status, text = asyncio.run(_send(reach(), scope("192.0.2.1", path=path)))
    assert (status, TLS_REQUIRED in text) == (403, True)


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics", "/events/flush"])
def test_health_and_metrics_are_not_restricted(path: str) -> None:
    assert asyncio.run(_send(reach(signed=False), scope("192.0.2.1", path=path))) == (200, "inner")


@pytest.mark.parametrize("path", ["/health/live/../../console/queues", "/metrics/", "/metrics/console", "//metrics"])
def test_similar_paths_are_restricted(path: str) -> None:
    assert asyncio.run(_send(reach(), scope("192.0.2.1", path=path)))[0] == 403


async def _inner(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"inner"})


def test_the_console_refuses_foreign_names_on_every_address() -> None:
    """A rebound name reaches only metrics."""
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
    """Send a request as the proxy does, for a browser that uses ``NAME``."""
    sent = {"Host": NAME, **HTTPS, **headers}
    with urllib3.PoolManager(source_address=(PROXY, 0)) as http:
        return http.request(method, proxied.admin_endpoint + path, body=body, headers=sent, redirect=False)


def test_sign_in_behind_a_proxy(proxied: RunningServer) -> None:
    """The cookie is for TLS only; the form's origin is the proxy's name."""
    form = through_proxy(proxied, "/console/login")
    assert form.status == 200
    cookie = form.headers["set-cookie"]
    assert cookie.startswith("__Host-")
    assert "; Secure" in cookie
    token = _token(form.data)
    body = urlencode({"csrf": token, "key_id": "AKIDOWNER", "secret": SECRETS["AKIDOWNER"], "next": "/console/audit"})
    headers = {"Cookie": cookie.partition(";")[0], "Origin": f"https://{NAME}"}
    headers["Content-Type"] = "application/x-www-form-urlencoded"
    signed_in = through_proxy(proxied, "/console/login", "POST", body, **headers)
    assert (signed_in.status, signed_in.headers["location"]) == (303, "/console/audit")
    headers["Cookie"] = signed_in.headers["set-cookie"].partition(";")[0]
    assert through_proxy(proxied, "/console/audit", **headers).status == 200


def test_behind_a_proxy_foreign_pages_are_refused(proxied: RunningServer) -> None:
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert through_proxy(proxied, "/console/login", **headers).status == 403


def test_through_a_proxy_health_and_metrics_refuse_foreign_names(proxied: RunningServer) -> None:
    refused = through_proxy(proxied, "/metrics")
    assert (refused.status, refused.data.decode()) == (403, WRONG_NAME + "\n")


def test_local_requests_beside_a_proxy_refuse_foreign_names(proxied: RunningServer) -> None:
    """A rebound name does not come through the proxy, whatever its headers."""
    with Visitor(proxied) as visitor:
        assert visitor.get("/console/login").status == 200
        assert visitor.get("/console/login", Host=NAME).text == WRONG_NAME
        assert visitor.get("/console/login", Host=NAME, **HTTPS).text == UNLISTED_PROXY


def test_sign_in_over_tls_from_other_machines(tmp_path: Path) -> None:
    """The admin port may be open to them without ``insecure``."""
    files = Files(tmp_path)
    with RunningServer(
        admin_host="0.0.0.0", credentials=written(tmp_path / "credentials.toml"), **files.settings
    ) as running:
        endpoint = running.admin_endpoint.replace("0.0.0.0", "127.0.0.1")
        with urllib3.PoolManager(ssl_context=files.client_context()) as http:
            headers = {"Host": f"{NAME}:9325", "Connection": "close"}
            form = http.request("GET", f"{endpoint}/console/login", headers=headers)
            assert "; Secure" in form.headers["set-cookie"]
            headers |= {"Origin": f"https://{NAME}:9325", "Cookie": form.headers["set-cookie"].partition(";")[0]}
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            fields = {"csrf": _token(form.data), "key_id": "AKIDOWNER", "secret": SECRETS["AKIDOWNER"]}
            sent = http.request(
                "POST", f"{endpoint}/console/login", body=urlencode(fields), headers=headers, redirect=False
            )
            assert (sent.status, sent.headers["location"]) == (303, "/console/queues")


def _token(page: bytes) -> str:
    return page.decode().partition('name="csrf" value="')[2].partition('"')[0]
