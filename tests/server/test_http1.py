"""HTTP/1.1 over real sockets: requests, the order of replies, errors, timeouts and closed connections."""

import errno
import threading
from collections.abc import Iterator
from itertools import count
from select import select
from socket import SO_RCVBUF, SOL_SOCKET

import pytest

from tests.server.http_host import HASTY, LARGE, PATIENCE_S, SMALL, UVLOOP, Client, HttpHost, Limits, wait_until
from veilmq.core import limits

GET = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n"
HOLD = b"POST /hold HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"
HEAD = b"POST /p HTTP/1.1\r\nHost: h\r\n"


@pytest.fixture(scope="module", params=[None, UVLOOP], ids=["asyncio", "uvloop"])
def shared(request: pytest.FixtureRequest) -> Iterator[HttpHost]:
    """A server with small limits, on each event loop, as they treat sockets differently."""
    with HttpHost(SMALL, loop_factory=request.param) as host:
        yield host


@pytest.fixture
def host(shared: HttpHost) -> Iterator[HttpHost]:
    """The shared server; another client's connection must work throughout the test."""
    with shared.client() as bystander:
        bystander.send(GET)
        assert bystander.read().status == 200
        yield shared
        bystander.send(GET)
        assert bystander.read().status == 200


@pytest.fixture
def client(host: HttpHost) -> Iterator[Client]:
    with host.client() as connected:
        yield connected


# Requests and replies.


def test_the_handler_gets_the_whole_request(client: Client) -> None:
    client.send(HEAD + b"X-Some: one\r\nContent-Length: 3\r\n\r\nabc")
    reply = client.read()
    assert reply.status == 200
    assert reply.body == b"POST /p\nhost=h\nx-some=one\ncontent-length=3\n\nabc"
    assert reply.headers["content-type"] == "text/plain"
    assert reply.headers["date"].endswith("GMT")


@pytest.mark.parametrize("size", [1, 2, 7], ids=["one", "two", "seven"])
def test_a_request_may_arrive_in_any_segments(client: Client, size: int) -> None:
    request = HEAD + b"X-Some: one\r\nContent-Length: 10\r\n\r\n0123456789"
    client.send(*(request[at : at + size] for at in range(0, len(request), size)))
    assert client.read().body == b"POST /p\nhost=h\nx-some=one\ncontent-length=10\n\n0123456789"
    client.send(GET)
    assert client.read().body == b"GET /a\nhost=h\n\n"


@pytest.mark.parametrize(("sent", "target"), [
    (b"http://h/a?b=http://c/", b"/a?b=http://c/"), (b"HTTPS://h:80", b"/"), (b"http://h?a", b"/?a"),
    (b"/a?b=http://c/", b"/a?b=http://c/"), (b"/http://h/a", b"/http://h/a"),
], ids=range(5))  # fmt: skip
def test_the_scheme_and_host_of_a_target_are_removed(client: Client, sent: bytes, target: bytes) -> None:
    """Clients send them to proxies; servers must accept them too (RFC 9112, section 3.2.2)."""
    client.send(b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % sent)
    assert client.read().body == b"GET %b\nhost=h\n\n" % target


def test_a_chunked_body_is_joined(client: Client) -> None:
    client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n", b"2\r\nde\r\n0\r\nX-Late: 1\r\n\r\n")
    assert client.read().body == b"POST /p\nhost=h\ntransfer-encoding=chunked\n\nabcde"


@pytest.mark.parametrize("blanks", [b" ", b"\t", b"  \t "], ids=repr)
def test_white_space_after_a_header_value_is_removed(client: Client, blanks: bytes) -> None:
    for _ in range(20):  # often enough for the parser to cache the layout of the head
        client.send(b"GET /a HTTP/1.1\r\nHost: h" + blanks + b"\r\nX-Other: a b" + blanks + b"\r\n\r\n")
        assert client.read().body == b"GET /a\nhost=h\nx-other=a b\n\n"


def test_replies_keep_the_order_of_the_requests(host: HttpHost, client: Client) -> None:
    client.send(HOLD + GET + GET.replace(b"/a", b"/b"))
    host.release(host.await_held(), b"first")
    assert client.read().body == b"first"
    assert client.read().body.startswith(b"GET /a\n")
    assert client.read().body.startswith(b"GET /b\n")


def test_a_connection_with_too_many_pipelined_requests_is_not_read(host: HttpHost, client: Client) -> None:
    """Further requests stay in the socket until replies were sent; all are answered."""
    client.send(HOLD + GET * (SMALL.pipelined_max - 1))
    held = host.await_held()
    before = host.call(lambda: host.handled)
    client.send(GET * 3)
    with host.client() as other:  # after its reply, the server has had the chance to read ours
        other.send(GET)
        assert other.read().status == 200
    assert host.call(lambda: host.handled) == before + 1
    host.release(held, b"first")
    assert [client.read().status for _ in range(SMALL.pipelined_max + 3)] == [200] * (SMALL.pipelined_max + 3)


@pytest.mark.parametrize("target", [b"/p", b"/kept"])
def test_large_bodies_behind_a_long_poll_are_not_read(target: bytes) -> None:
    """Otherwise one client could occupy half a gigabyte with sixty bodies; they are read after the poll."""
    size, count = 1_000_000, 30
    allowed = Limits(body_bytes_max=2 * size, pipelined_max=2 * count)
    with HttpHost(allowed) as host, host.client() as client, host.client() as other:
        post = HEAD.replace(b"/p", target) + b"Content-Length: %d\r\n\r\n" % size + b"x" * size
        sending = threading.Thread(target=client.send, args=(HOLD + post * count,), daemon=True)
        sending.start()
        held = host.await_held()
        rounds = 300
        for _ in range(rounds):
            other.send(GET)
            other.read()
        assert 1 <= host.handled - rounds - 1 <= 3
        host.release(held, b"first")
        assert client.read().body == b"first"
        bodies = [client.read().body for _ in range(count)]
        assert all(len(body) > size if target == b"/p" else body == b"kept" for body in bodies)
        sending.join(PATIENCE_S)


def test_a_thousand_pipelined_requests_are_answered(client: Client) -> None:
    client.send(b"".join(b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % number for number in range(1_000)))
    for number in range(1_000):
        assert client.read().body.startswith(b"GET /%d\n" % number)


@pytest.mark.parametrize(("request_head", "connection"), [
    pytest.param(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "close", id="http-1.1"),
    pytest.param(b"GET / HTTP/1.0\r\n\r\n", "close", id="http-1.0"),
    pytest.param(b"GET / HTTP/1.0\r\nHost: h\r\n\r\n", "close", id="http-1.0-with-host"),
])  # fmt: skip
def test_a_connection_without_keep_alive_is_closed(client: Client, request_head: bytes, connection: str) -> None:
    client.send(request_head + GET)
    assert client.read().headers["connection"] == connection
    assert client.at_end()


def test_keep_alive_is_optional_in_http_1_0_and_implied_in_http_1_1(client: Client) -> None:
    for _ in range(2):
        client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        reply = client.read()
        assert (reply.status, reply.headers["connection"]) == (200, "keep-alive")
    client.send(GET)
    assert "connection" not in client.read().headers


def test_a_reply_to_head_has_no_body(client: Client) -> None:
    client.send(b"HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n" + GET)
    assert client.read(bodiless=True).headers["content-length"] == "16"
    assert client.read().body == b"GET /a\nhost=h\n\n"


@pytest.mark.parametrize("body", [b"", b"Content-Length: 2\r\n", b"Transfer-Encoding: chunked\r\n"], ids=repr)
def test_an_offer_to_upgrade_is_ignored(client: Client, body: bytes) -> None:
    content = {b"": b"", b"Content-Length: 2\r\n": b"ab"}.get(body, b"2\r\nab\r\n0\r\n\r\n")
    client.send(HEAD + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n" + body + b"\r\n" + content + GET)
    reply = client.read()
    assert reply.status == 200
    assert reply.body.endswith(b"\n\n" + (b"ab" if body else b""))
    assert client.read().body == b"GET /a\nhost=h\n\n"


def test_thousands_of_offers_to_upgrade_are_ignored(host: HttpHost, client: Client) -> None:
    offers = 2_000
    client.send((HEAD + b"Connection: upgrade\r\nUpgrade: x\r\nContent-Length: 0\r\n\r\n") * offers)
    assert {client.read().status for _ in range(offers)} == {200}


def test_an_invalid_request_after_an_ignored_upgrade_is_refused(client: Client) -> None:
    client.send(HEAD + b"Connection: upgrade\r\nUpgrade: x\r\n\r\n" + b"NONSENSE\r\n\r\n")
    assert [client.read().status for _ in range(2)] == [200, 400]


def test_the_framing_of_small_chunks_does_not_count_as_extensions(client: Client) -> None:
    """It is longer than a head may be."""
    size = SMALL.body_bytes_max - 1
    client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[b"1\r\nx\r\n" * 101] * (size // 101), b"0\r\n\r\n")
    assert client.read().body.endswith(b"x" * (size // 101 * 101))


def test_expect_100_continue_gets_a_continue(client: Client) -> None:
    client.send(HEAD + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n")
    assert client.read().status == 100
    client.send(b"abc")
    assert client.read().body.endswith(b"\n\nabc")


def test_http_1_0_gets_no_continue() -> None:
    """Its clients know no provisional replies (RFC 9110, section 10.1.1)."""
    with HttpHost(Limits(request_s_max=0.2)) as host, host.client() as client:
        client.send(b"POST /p HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert client.read().status == 408


def test_a_continue_keeps_the_order_of_replies(host: HttpHost, client: Client) -> None:
    client.send(HOLD, HEAD + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n")
    host.release(host.await_held(), b"first")
    assert client.read().body == b"first"
    assert client.read().status == 100
    client.send(b"abc")
    assert client.read().body.endswith(b"\n\nabc")


def test_a_body_sent_with_its_head_gets_no_continue(client: Client) -> None:
    client.send(HEAD + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\nabc")
    assert client.read().status == 200


# Invalid requests.

TOO_LONG = SMALL.body_bytes_max + 1


@pytest.mark.parametrize(("sent", "status", "word"), [
    pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", 400, "well-formed", id="tls"),
    pytest.param(b"NONSENSE\r\n\r\n", 400, "well-formed", id="no-request-line"),
    pytest.param(b"GET  HTTP/1.1\r\nHost: h\r\n\r\n", 400, "well-formed", id="no-target"),
    pytest.param(b"GET / HTTP/9.9\r\nHost: h\r\n\r\n", 400, "well-formed", id="no-such-version"),
    pytest.param(b"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505, "HTTP/1.1", id="version-2"),
    pytest.param(b"GET /\r\n\r\n", 505, "HTTP/1.1", id="version-0.9"),
    pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "use HTTP/1.1", id="http-2-preface"),
    pytest.param(b"GET / HTTP/1.1\nHost: h\n\n", 400, "well-formed", id="bare-line-feeds"),
    pytest.param(b"GET /\xff HTTP/1.1\r\nHost: h\r\n\r\n", 400, "well-formed", id="target-not-ascii"),
    pytest.param(b"GET / HTTP/1.1\r\n\r\n", 400, "Host", id="no-host"),
    pytest.param(b"GET / HTTP/1.1\r\nHost:\r\n\r\n", 400, "Host", id="empty-host"),
    pytest.param(b"GET / HTTP/1.0\r\nHost:\r\n\r\n", 400, "Host", id="empty-host-1.0"),
    pytest.param(HEAD + b"Host: other\r\n\r\n", 400, "host", id="two-hosts"),
    pytest.param(HEAD + b"HOST: h\r\n\r\n", 400, "host", id="two-hosts-differently-spelled"),
    pytest.param(HEAD + b"X-Amz-Target: a\r\nx-amz-target: b\r\n\r\n", 400, "x-amz-target", id="two-targets"),
    pytest.param(HEAD + b"Content-Type: a\r\nContent-Type: a\r\n\r\n", 400, "content-type", id="two-types"),
    pytest.param(HEAD + b"Authorization: a\r\nAuthorization: b\r\n\r\n", 400, "authorization", id="two-credentials"),
    pytest.param(HEAD + b"Bad Name: x\r\n\r\n", 400, "well-formed", id="space-in-name"),
    pytest.param(HEAD + b"Bad\xe9Name: x\r\n\r\n", 400, "well-formed", id="name-not-ascii"),
    pytest.param(HEAD + b": x\r\n\r\n", 400, "well-formed", id="empty-name"),
    pytest.param(HEAD + b"X: a\x00b\r\n\r\n", 400, "well-formed", id="zero-in-value"),
    pytest.param(HEAD + b"X: a\r\n folded\r\n\r\n", 400, "well-formed", id="folded-value"),
    pytest.param(HEAD + b"Content-Length: -1\r\n\r\n", 400, "well-formed", id="negative-length"),
    pytest.param(HEAD + b"Content-Length: 1e3\r\n\r\n", 400, "well-formed", id="length-no-number"),
    pytest.param(HEAD + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n", 400, "well-formed", id="length-overflow"),
    pytest.param(HEAD + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\na", 400, "well-formed", id="two-lengths"),
    pytest.param(HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "well-formed",
        id="length-and-chunks"),
    pytest.param(HEAD + b"Transfer-Encoding: gzip\r\n\r\n", 400, "well-formed", id="coding-without-chunks"),
    pytest.param(HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, "chunked", id="coding-in-chunks"),
    pytest.param(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "HTTP/1.0",
        id="coding-in-1.0"),
    pytest.param(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n1\r\n", 400,
        "HTTP/1.0", id="coding-in-1.0-kept-and-unfinished"),
    pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "well-formed", id="bad-chunk-size"),
    pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", 400, "well-formed", id="negative-chunk"),
    pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n", 400, "well-formed",
        id="chunk-overflow"),
    pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n", 400, "well-formed", id="chunk-too-long"),
    pytest.param(HEAD + b"Expect: coffee\r\n\r\n", 417, "100-continue", id="unknown-expectation"),
    pytest.param(HEAD + b"Expect: coffee\r\nContent-Length: 9\r\n\r\n", 417, "100-continue",
        id="unknown-expectation-early"),
    pytest.param(b"CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\nabc", 405, "proxy", id="connect"),
    pytest.param(b"GET /" + b"x" * 500 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 414, "500 bytes", id="long-target"),
    pytest.param(b"GET /" + b"x" * 99_999, 414, "500 bytes", id="endless-target"),
    pytest.param(HEAD + b"X: " + b"x" * 2_000 + b"\r\n\r\n", 431, "2000 bytes", id="long-head"),
    pytest.param(HEAD + b"".join(b"X-%d: x\r\n" % n for n in range(20)) + b"\r\n", 431, "20 headers", id="many"),
    pytest.param(HEAD + b"Content-Length: %d\r\n\r\n" % TOO_LONG, 413, "10000 bytes", id="long-body-announced"),
    pytest.param(HEAD + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % TOO_LONG, 413, "10000 bytes",
        id="long-body-asks"),
    pytest.param(HEAD + b"Content-Length: %d\r\n\r\n" % TOO_LONG + b"x" * TOO_LONG, 413, "10000 bytes", id="long-body"),
    pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"a\r\n0123456789\r\n" * 1_001, 413, "10000 bytes",
        id="long-body-in-chunks"),
])  # fmt: skip
def test_an_invalid_request_gets_an_error_and_closes_the_connection(
    host: HttpHost, client: Client, sent: bytes, status: int, word: str
) -> None:
    refused = len(host.refused)
    client.send(sent)
    reply = client.read()
    assert (reply.status, reply.headers["connection"]) == (status, "close")
    assert word in reply.body.decode()
    assert host.refused[refused:] == [status], "one call, for the metrics"
    client.half_close()
    assert client.at_end()


@pytest.mark.parametrize(("first", "piece", "status"), [
    pytest.param(b"GET /", b"x" * 100, 414, id="target"),
    pytest.param(HEAD + b"X: ", b"x" * 100, 431, id="header-value"),
    pytest.param(HEAD, b"x" * 100, 431, id="header-name"),
    pytest.param(HEAD, b"%b: x\r\n" % (b"x" * 94), 431, id="headers"),
    pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"64\r\n" + b"x" * 100 + b"\r\n", 413, id="chunks"),
    pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", b"X-%d: x\r\n", 431, id="trailers"),
    pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: ", b"x" * 100, 431, id="one-trailer"),
    pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;x=", b"x" * 100, 431, id="chunk-extension"),
    pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1;x=%b\r\nx\r\n" % (b"x" * 50), 431, id="extensions"),
])  # fmt: skip
def test_an_endless_request_is_cut_off(client: Client, first: bytes, piece: bytes, status: int) -> None:
    pieces = (piece % number if b"%d" in piece else piece for number in count())
    client.send(first)
    while not select([client.socket], [], [], 0.001)[0]:
        client.send(next(pieces))
    assert client.read().status == status


def test_an_error_keeps_the_order_of_replies(host: HttpHost, client: Client) -> None:
    client.send(HOLD + GET + b"NONSENSE\r\n\r\n")
    host.release(host.await_held(), b"first")
    assert client.read().body == b"first"
    assert [client.read().status for _ in range(2)] == [200, 400]


def test_a_client_can_read_an_error_while_it_sends_its_body() -> None:
    """The server does not reset the connection meanwhile."""
    with HttpHost() as host, host.client() as client:
        body_bytes = limits.HTTP_BODY_BYTES_MAX + 1
        client.send(HEAD + b"Content-Length: %d\r\n\r\n" % body_bytes, b"x" * body_bytes)
        assert client.read().status == 413


def test_a_body_of_the_maximum_size_is_accepted() -> None:
    with HttpHost() as host, host.client() as client:
        body = b"x" * limits.HTTP_BODY_BYTES_MAX
        client.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body), body)
        assert client.read().body.endswith(b"\n\n" + body)


# Slow, idle and closed connections.


def test_a_connection_that_ends_behind_a_large_reply_is_closed_once(
    host: HttpHost, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """The last request runs when all of that reply is sent; asyncio logged an error if it closed the connection."""
    before = host.handled
    kept = b"GET /kept HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    client.send(HOLD + b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n" + kept)
    held = host.await_held()
    wait_until(lambda: host.handled == before + 3)
    host.release(held, b"first")
    assert [len(client.read().body) for _ in range(3)] == [len(b"first"), len(LARGE), len(b"kept")]
    assert client.at_end()
    host.call(list)  # the loop has run the callbacks of the closed connection
    assert caplog.messages == []


UNFINISHED = pytest.mark.parametrize("sent", [
    pytest.param(b"GE", id="method"),
    pytest.param(b"GET / HT", id="request-line"),
    pytest.param(HEAD + b"X-Slow", id="head"),
    pytest.param(HEAD + b"Content-Length: 5\r\n\r\nab", id="body"),
    pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", id="chunk"),
])  # fmt: skip


@UNFINISHED
def test_an_unfinished_request_times_out(sent: bytes) -> None:
    with HttpHost(Limits(request_s_max=0.2, linger_s_max=0.1)) as host, host.client() as client:
        client.send(GET)
        assert client.read().status == 200
        client.send(sent)
        reply = client.read()
        assert reply.status == 408
        assert "0.2 seconds" in reply.body.decode()
        assert client.at_end()


def test_a_reset_during_a_refusal_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may arrive between the reply and the end of the stream, of which asyncio then raises an error."""

    def fail(transport: object) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    monkeypatch.setattr("asyncio.selector_events._SelectorSocketTransport.write_eof", fail)
    with HttpHost(Limits(request_s_max=0.2, linger_s_max=0.1)) as host, host.client() as client:
        client.send(HEAD)
        assert client.read().status == 408
        assert client.at_end()
    assert caplog.messages == []


def test_each_request_has_the_whole_timeout() -> None:
    """Also if it starts in the last segment of the previous one."""
    with HttpHost() as host, host.client() as client:
        client.send(GET[:5])
        first, second = GET[5:] + HOLD[:9], HOLD[9:] + GET[:5]
        client.send(first)
        assert client.read().status == 200
        client.send(second)
        held = host.await_held()
        connection = next(iter(host.connections._open))
        began_s = host.call(lambda: connection._reading_since_s)
        host.release(held, b"late")
        assert client.read().body == b"late"
        client.send(GET[5:] + GET[:5])
        assert client.read().status == 200
        assert host.call(lambda: connection._reading_since_s) > began_s


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", GET], ids=["never-spoke", "spoke-once"])
def test_an_idle_connection_is_closed(sent: bytes) -> None:
    with HttpHost(HASTY) as host, host.client() as client:
        client.send(sent)
        if sent:
            assert client.read().status == 200
        assert client.at_end()


@pytest.mark.slow
def test_a_held_request_does_not_time_out() -> None:
    """No timeout runs while the server owes the reply: a later idle connection is closed first."""
    with HttpHost(HASTY) as host, host.client() as client:
        client.send(HOLD)
        held = host.await_held()
        with host.client() as idle:
            assert idle.at_end()
        host.release(held, b"late")
        assert client.read().body == b"late"


def test_a_client_that_does_not_read_its_replies_is_cut_off() -> None:
    """The server stops to read its requests, so that replies do not accumulate."""
    with HttpHost(Limits(request_s_max=0.3)) as host, host.client() as client:
        client.socket.setsockopt(SOL_SOCKET, SO_RCVBUF, 4_096)
        body = b"x" * 1_000_000
        request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
        client.socket.settimeout(PATIENCE_S)
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            client.socket.sendall(request * 200)
        assert host.handled < 100


def test_an_unread_reply_is_discarded_after_the_timeout() -> None:
    with HttpHost(Limits(request_s_max=0.3)) as host, host.client() as client:
        client.socket.setsockopt(SOL_SOCKET, SO_RCVBUF, 4_096)
        client.send(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n")
        wait_until(lambda: host.begun)
        host.wait_closed()


def test_draining_hurries_waiting_requests() -> None:
    with HttpHost() as host, host.client() as client:
        client.send(HOLD)
        held = host.await_held()
        host.drain()
        reply = client.read()
        assert (reply.body, reply.headers["connection"]) == (b"hurried", "close")
        assert held.calls == ["hurry"]
        assert client.at_end()
        host.wait_closed()


@UNFINISHED
def test_draining_waits_only_shortly_for_the_rest_of_a_request(sent: bytes) -> None:
    with HttpHost(Limits(linger_s_max=0.2)) as host, host.client() as client:
        client.send(GET)
        assert client.read().status == 200
        client.send(sent)
        connection = next(iter(host.connections._open))
        wait_until(lambda: connection._reading_since_s)
        host.drain()
        reply = client.read()
        assert (reply.status, reply.headers["connection"]) == (503, "close")
        assert "is stopping" in reply.body.decode()
        assert client.at_end()
        host.wait_closed()


def test_draining_waits_while_a_request_arrives() -> None:
    with HttpHost(Limits(linger_s_max=PATIENCE_S)) as host, host.client() as client:
        client.send(GET)
        assert client.read().status == 200
        client.send(HEAD + b"Content-Length: 3\r\n\r\na")
        connection = next(iter(host.connections._open))
        wait_until(lambda: connection._reading_since_s)
        host.drain()
        wait_until(lambda: host.connections.draining)
        began_s = host.call(lambda: connection._reading_since_s)
        client.send(b"b")
        wait_until(lambda: connection._reading_since_s > began_s)
        client.send(b"c")
        reply = client.read()
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert client.at_end()


def test_an_incomplete_request_is_refused(client: Client) -> None:
    client.send(HEAD + b"Content-Length: 5\r\n\r\nab")
    client.half_close()
    reply = client.read()
    assert reply.status == 400
    assert "ended inside the request" in reply.body.decode()
    assert client.at_end()


def test_a_half_closed_connection_gets_its_replies(client: Client) -> None:
    client.send(GET + GET)
    client.half_close()
    assert [client.read().status, client.read().status] == [200, 200]
    assert client.at_end()


def test_a_half_close_hurries_a_waiting_request(host: HttpHost, client: Client) -> None:
    """The client may have closed the connection entirely."""
    client.send(HOLD)
    held = host.await_held()
    client.half_close()
    assert client.read().body == b"hurried"
    assert client.at_end()
    assert held.calls == ["hurry"]


def test_a_reset_withdraws_a_waiting_request(host: HttpHost) -> None:
    client = host.client()
    client.send(HOLD)
    held = host.await_held()
    client.reset()
    assert held.event.wait(PATIENCE_S)
    assert held.calls == ["withdraw"]
    host.release(held, b"too late")
