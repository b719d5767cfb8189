"""Admission: large bodies, the byte budget, fairness between connections."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import need
from tests.server.http_host import LARGE, PATIENCE_S, Client, HttpHost, dial, held_bytes, wait_until
from tests.server.keys import REGION, client, signed_action, written
from tests.server.test_signatures import headers_of
from veilmq.server.admission import HttpLimits, LoopQueues
from veilmq.server.process import loop_factory
from veilmq.testing import RunningServer

JSON = b"Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS.SendMessage\r\n"
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
HOLD = b"GET /hold HTTP/1.1\r\nHost: h\r\n\r\n"
FORM = b"Content-Type: application/x-www-form-urlencoded\r\n"
POST = b"POST / HTTP/1.1\r\nHost: h\r\n"
LARGE_BYTES = 8 * 1_048_576
EXPECT = b"Expect: 100-continue\r\n"
SMALLEST_BUDGET = 64 * 1_048_576


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    keys = written(tmp_path / "keys.toml")
    with RunningServer(credentials=keys, region=REGION, http_bytes_max=SMALLEST_BUDGET) as running:
        yield running


def connected(server: RunningServer) -> Client:
    return Client(dial(server.endpoint))


def authorization(key: str, at_s: float | None = None) -> bytes:
    """Return unsigned header lines with a key id and a date."""
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at_s)).encode()
    return (
        b"X-Amz-Date: %b\r\nAuthorization: AWS4-HMAC-SHA256 Credential=%b/%b/%b/sqs/aws4_request, "
        b"SignedHeaders=host;x-amz-date;x-amz-target, Signature=%b\r\n"
        % (at, key.encode(), at[:8], REGION.encode(), b"0" * 64)
    )


@pytest.mark.parametrize(("head", "status", "word"), [
    pytest.param(lambda: POST + JSON, 403, b"MissingAuthenticationToken", id="unsigned"),
    pytest.param(lambda: POST + FORM, 403, b"<Code>MissingAuthenticationToken</Code>", id="unsigned-form"),
    pytest.param(lambda: POST + JSON + authorization("AKIDNOBODY"), 403, b"security token", id="unknown-key"),
    pytest.param(lambda: POST + JSON + authorization("AKIDOWNER", 1.7e9), 403, b"Signature expired", id="old-date"),
    pytest.param(lambda: POST + JSON + authorization("ASIDBOB"), 403, b"security token", id="key-without-token"),
    pytest.param(lambda: b"POST /queues/q/messages HTTP/1.1\r\nHost: h\r\nx-mns-version: 2015-06-06\r\n", 400,
        b"<Code>MissingAuthorizationHeader</Code>", id="unsigned-smq"),
    pytest.param(lambda: POST + b"Content-Type: text/plain\r\n", 404, b"No protocol", id="no-protocol"),
])  # fmt: skip
@pytest.mark.parametrize("expects", [b"", EXPECT], ids=["sends", "waits-to-send"])
def test_a_large_body_without_a_valid_key_is_refused_by_its_head(
    server: RunningServer, head: Callable[[], bytes], status: int, word: bytes, expects: bytes
) -> None:
    """As an error of its protocol, before the body is sent, and without 100 Continue."""
    with connected(server) as stranger:
        stranger.send(head() + expects + b"Content-Length: %d\r\n\r\n" % LARGE_BYTES)
        reply = stranger.read()
        assert (reply.status, reply.headers["connection"]) == (status, "close")
        assert word in reply.body
    assert set(held_bytes(server.admin_endpoint).values()) == {0}


def test_a_large_body_with_a_valid_key_is_read_before_its_signature_fails(server: RunningServer) -> None:
    with connected(server) as stranger:
        stranger.send(POST + JSON + authorization("AKIDOWNER") + EXPECT + b"Content-Length: 100000\r\n\r\n")
        assert stranger.read().status == 100
        assert held_bytes(server.admin_endpoint)["unverified_bodies"] == 100_000
        stranger.send(b"x" * 100_000)
        reply = stranger.read()
        assert (reply.status, b"request signature we calculated" in reply.body) == (403, True)
    assert set(held_bytes(server.admin_endpoint).values()) == {0}


def test_unverified_bodies_with_a_key_id_leave_room_for_its_holder(server: RunningServer) -> None:
    """Other clients fill their part of the budget with bodies that never end."""
    queue = client(server).create_queue(QueueName="q")["QueueUrl"]
    entries = [{"Id": str(number), "MessageBody": "x" * 100_000} for number in range(10)]
    batch = signed_action(server, "SendMessageBatch", QueueUrl=queue, Entries=entries)
    strangers = [connected(server) for _ in range(20)]
    with connected(server) as holder:
        holder.send(signed_action(server, "ListQueues"))
        assert holder.read().status == 200
        for stranger in strangers:
            stranger.send(POST + JSON + authorization("AKIDOWNER") + b"Content-Length: %d\r\n\r\n{" % LARGE_BYTES)
        for _ in range(5):
            holder.send(batch)
            assert holder.read().status == 200
        assert 0 < held_bytes(server.admin_endpoint)["unverified_bodies"] <= SMALLEST_BUDGET // 2
    for stranger in strangers:
        stranger.close()


def test_a_large_body_is_verified_in_every_framing(server: RunningServer) -> None:
    """In one segment and in many; a changed byte is detected."""
    queue = client(server).create_queue(QueueName="q")["QueueUrl"]
    assert client(server).send_message(QueueUrl=queue, MessageBody="y" * 1_000_000)["MD5OfMessageBody"]
    request = signed_action(server, "SendMessage", QueueUrl=queue, MessageBody="x" * 300_000)
    for sent, status in ((request, 200), (request.replace(b"xxx", b"xyx", 1), 403)):
        for size in (len(sent), 50_000):
            with connected(server) as sender:
                sender.send(*(sent[at : at + size] for at in range(0, len(sent), size)))
                assert sender.read().status == status


def test_a_verified_body_leaves_the_unverified_half(server: RunningServer) -> None:
    """While it waits: a receive begins when the client has the reply to the long poll before it."""
    queue = client(server).create_queue(QueueName="q")["QueueUrl"]
    poll = signed_action(server, "ReceiveMessage", QueueUrl=queue, WaitTimeSeconds=20)
    with connected(server) as receiver:
        receiver.send(poll + signed_action(server, "ReceiveMessage", QueueUrl=queue, Unknown="x" * 300_000))
        wait_until(lambda: held_bytes(server.admin_endpoint)["bodies"] > 300_000)
        assert held_bytes(server.admin_endpoint)["unverified_bodies"] == 0
    wait_until(lambda: set(held_bytes(server.admin_endpoint).values()) == {0})


def test_a_body_of_smq_is_verified_before_it_arrives(server: RunningServer) -> None:
    """Its signature covers only the head."""
    target, body = "/queues/q/messages", b"<" + b"x" * 100_000
    headers = headers_of(server, "POST", target, body, "AKIDOWNER") | {b"content-length": b"100001"}
    with connected(server) as sender:
        sender.send(
            b"POST %b HTTP/1.1\r\n" % target.encode(), *(b"%b: %b\r\n" % each for each in headers.items()), b"\r\n"
        )
        wait_until(lambda: held_bytes(server.admin_endpoint)["bodies"] == len(body))
        assert held_bytes(server.admin_endpoint)["unverified_bodies"] == 0


def test_a_body_that_waits_too_long_gets_503_with_retry_after() -> None:
    """SDKs retry after this status; the retry has room."""
    limits = HttpLimits(body_wait_s_max=0.2, linger_s_max=0.1)
    with HttpHost(limits, bytes_max=4_000_000) as host, host.client() as first, host.client() as second:
        first.send(POST + b"Content-Length: 1500000\r\n\r\n", b"x")
        wait_until(lambda: host.call(lambda: host.budget.unverified) == 1_500_000)
        second.send(POST + EXPECT + b"Content-Length: 1500000\r\n\r\n")
        reply = second.read()
        assert (reply.status, reply.headers["retry-after"], reply.headers["connection"]) == (503, "1", "close")
        assert "http_bytes_max" in reply.body.decode()
        assert second.at_end()
        first.send(b"x" * 1_499_999)
        assert len(first.read().body) > 1_500_000
        with host.client() as third:
            third.send(POST + b"Content-Length: 1500000\r\n\r\n", b"x" * 1_500_000)
            assert third.read().status == 200
        assert set(host.call(host.budget.parts).values()) == {0}


def test_a_waiting_body_begins_when_another_client_has_read_its_reply() -> None:
    """Unread replies, though below their half of the budget, and verified bodies had left no room."""
    with HttpHost(bytes_max=17_000_000) as host, host.client() as holder, host.client() as reader, host.client() as new:
        holder.send(POST.replace(b"/", b"/hold", 1) + b"Content-Length: 4000000\r\n\r\n", b"x" * 4_000_000)
        host.call(host.await_held().request.hold.verify)  # type: ignore[union-attr]
        reader.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 262_144)
        reader.send(GET.replace(b"/", b"/large", 1))
        wait_until(lambda: host.call(lambda: host.budget.unread_replies) > len(LARGE))
        new.send(POST + EXPECT + b"Content-Length: 6000000\r\n\r\n")
        wait_until(lambda: host.call(lambda: bool(host.budget.waiting)))
        assert reader.read().body == LARGE
        assert new.read().status == 100


def test_without_keys_addresses_share_the_budget() -> None:
    """An address that holds much waits for more; one that holds nothing is read at once."""
    with HttpHost(bytes_max=4_000_000) as host, host.client() as first, host.client() as more:
        first.send(POST + EXPECT + b"Content-Length: 1000000\r\n\r\n")
        assert first.read().status == 100
        more.send(POST + EXPECT + b"Content-Length: 600000\r\n\r\n")
        with other_address(host) as other:
            other.send(POST + EXPECT + b"Content-Length: 600000\r\n\r\n")
            assert other.read().status == 100
            assert host.call(lambda: host.budget.unverified) == 1_600_000
        first.send(b"x" * 1_000_000)
        assert first.read().status == 200
        assert more.read().status == 100


def other_address(host: HttpHost) -> Client:
    connected = socket.socket()
    connected.settimeout(PATIENCE_S)
    try:
        connected.bind(("127.0.0.2", 0))
    except OSError:
        connected.close()
        need(False, "a second address of this machine (127.0.0.2)")
    connected.connect(("127.0.0.1", host.port))
    return Client(connected)


def test_a_waiting_body_is_read_when_budget_is_freed() -> None:
    with HttpHost(bytes_max=4_000_000) as host, host.client() as second:
        first = host.client()
        first.send(POST + b"Content-Length: 1500000\r\n\r\n", b"x")
        wait_until(lambda: host.call(lambda: host.budget.unverified) == 1_500_000)
        second.send(POST + EXPECT + b"Content-Length: 1500000\r\n\r\n")
        first.close()
        assert second.read().status == 100
        second.send(b"x" * 1_500_000)
        assert second.read().status == 200


@pytest.mark.parametrize("before", [0, 20_000], ids=["alone", "behind-another"])
def test_a_body_that_arrives_while_it_waits_does_not_stall_its_connection(
    monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """The rest of its segment arrived with its head, or the body before it is released."""
    monkeypatch.setattr("veilmq.server.http._SLICE_BYTES", 10_000)
    limits = HttpLimits(large_body_bytes=18_000)
    with HttpHost(limits, bytes_max=100_000) as host, host.client() as first, host.client() as second:
        first.send(POST + b"Content-Length: %d\r\n\r\n" % (20_000 if before else 40_000), b"x")
        wait_until(lambda: host.call(lambda: host.budget.unverified) > 0)
        with host.blocked():
            for length in filter(None, (before, before, 30_000)):
                second.send(POST + b"Content-Length: %d\r\n\r\n" % length + b"x" * length)
        assert {second.read().status for _ in range(3 if before else 1)} == {200}
        second.send(GET)
        assert second.read().status == 200


def test_the_shortest_waiting_body_is_next() -> None:
    """So a client among many others of its address waits for one body, not for all earlier ones."""
    with HttpHost(bytes_max=4_000_000) as host, host.client() as first, host.client() as long, host.client() as short:
        first.send(POST + EXPECT + b"Content-Length: 1500000\r\n\r\n")
        assert first.read().status == 100
        long.send(POST + EXPECT + b"Content-Length: 1400000\r\n\r\n")
        wait_until(lambda: host.call(lambda: len(host.budget.waiting)) == 1)
        short.send(POST + EXPECT + b"Content-Length: 400000\r\n\r\n")
        wait_until(lambda: host.call(lambda: len(host.budget.waiting)) == 2)
        first.send(b"x" * 1_500_000)
        assert short.read().status == 100
        assert host.call(lambda: host.budget.unverified) == 400_000
        short.send(b"x" * 400_000)
        assert long.read().status == 100


def test_input_of_refused_clients_takes_at_most_every_other_slot() -> None:
    async def read_beside_drops() -> list[str]:
        loop = asyncio.get_running_loop()
        queues, taken = LoopQueues(loop), list[str]()
        is_read: asyncio.Future[list[str]] = loop.create_future()
        for _ in range(100):
            queues.paced_drop(lambda: taken.append("drop"))
        for _ in range(5):
            queues.paced(lambda: taken.append("read"))
        queues.paced(lambda: is_read.set_result(list(taken)))
        return await is_read

    assert asyncio.run(read_beside_drops()) == ["read", "drop"] * 5


def test_a_chunked_body_reserves_as_it_grows() -> None:
    """Beyond its limit it is refused, and its bytes are released."""
    limits = HttpLimits(body_wait_s_max=0.2, linger_s_max=0.1)
    piece = b"%x\r\n%b\r\n" % (100_000, b"x" * 100_000)
    with HttpHost(limits, bytes_max=10_000_000) as host, host.client() as sender, host.client() as other:
        sender.send(POST + b"Transfer-Encoding: chunked\r\n\r\n", *[piece] * 30, b"0\r\n\r\n")
        assert len(sender.read().body) > 3_000_000
        sending = threading.Thread(target=_send_all, args=(other, [piece] * 70), daemon=True)
        sending.start()
        assert other.read().status == 503
        other.close()
        sending.join(PATIENCE_S)
        wait_until(lambda: set(host.call(host.budget.parts).values()) == {0})


@pytest.mark.parametrize("count", [50, 2_500], ids=["in-one-slice", "in-many"])
def test_a_client_that_pipelines_gets_no_priority(count: int) -> None:
    """A request of another client starts after the first few of the pipeline; replies keep their order."""
    with HttpHost() as host, host.client() as many, host.client() as one:
        one.send(GET)
        one.read()
        with host.blocked():
            many.send(b"".join(b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % number for number in range(count)))
            one.send(b"GET /one HTTP/1.1\r\nHost: h\r\n\r\n")
        assert one.read().status == 200
        for number in range(count):
            assert many.read().body.startswith(b"GET /%d\n" % number)
        assert host.targets.index(b"/one") < 40


def test_a_defect_in_a_pipelined_request_closes_only_its_connection() -> None:
    """Other connections with waiting requests continue."""
    with HttpHost() as host, host.client() as first, host.client() as defect, host.client() as last:
        for each in (first, defect, last):
            each.send(GET)
            each.read()
        with host.blocked():
            first.send(GET * 3)
            defect.send(GET + b"GET /defect HTTP/1.1\r\nHost: h\r\n\r\n")
            last.send(GET * 3)
        for each in (first, last):
            assert [each.read().status for _ in range(3)] == [200] * 3
        assert defect.read().status == 200
        with contextlib.suppress(ConnectionResetError):
            assert defect.at_end()


def _chunked(*pieces: bytes) -> bytes:
    return b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in pieces)


LONG = b"Content-Length: 300000\r\n\r\n"
PART = b"x" * 100_000


@pytest.mark.parametrize("loops", [None, loop_factory()], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("sent", [
    pytest.param(POST + LONG + PART, id="in-the-middle"),
    pytest.param(POST + EXPECT + LONG, id="before-it-begins"),
    pytest.param(POST + _chunked(PART, PART), id="chunked"),
    pytest.param(POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n" + LONG + PART, id="upgrade"),
    pytest.param(POST.replace(b"/", b"/hold", 1) + LONG + PART * 3, id="while-it-is-handled"),
    pytest.param(HOLD + POST + LONG + PART * 3 + POST + LONG + PART, id="behind-another"),
    pytest.param(POST.replace(b"/", b"/defect", 1) + LONG + PART * 3, id="defect"),
])  # fmt: skip
def test_a_body_releases_its_bytes_however_its_connection_ends(sent: bytes, loops: Any) -> None:
    """By a reset, by a close, and after a half close."""
    with HttpHost(loop_factory=loops) as host:
        for end in (Client.reset, Client.close, Client.half_close):
            with host.client() as client:
                client.send(sent)
                if b"/defect" not in sent:
                    wait_until(lambda: host.call(lambda: host.budget.unverified))
                end(client)
                wait_until(lambda: set(host.call(host.budget.parts).values()) == {0})


def test_no_receive_starts_while_unread_replies_fill_their_half() -> None:
    """It parks, and gets a message when the clients that do not read have disconnected.

    Replies have one to six messages of 1 MB, so that part of them is unsent whatever the kernel's buffers take.
    """
    with RunningServer(http_bytes_max=SMALLEST_BUDGET) as server:
        sqs = client(server, region_name="us-east-1")
        queue = sqs.create_queue(QueueName="q", Attributes={"VisibilityTimeout": "0"})["QueueUrl"]
        for _ in range(6):
            sqs.send_message(QueueUrl=queue, MessageBody="x" * 1_000_000)
        head = JSON.replace(b"SendMessage", b"ReceiveMessage")
        unreading = [connected(server) for _ in range(60)]
        for number, each in enumerate(unreading):
            body = json.dumps({"QueueUrl": queue, "MaxNumberOfMessages": 1 + number % 6}).encode()
            each.send((POST + head + b"Content-Length: %d\r\n\r\n" % len(body) + body) * 40)
        wait_until(lambda: held_bytes(server.admin_endpoint)["unread_answers"] > SMALLEST_BUDGET // 2)
        wait_until(lambda: not received(server, sqs, queue))
        one_each = sum(1_001_000 * (1 + number % 6) for number in range(60))
        assert held_bytes(server.admin_endpoint)["unread_answers"] <= one_each, (
            "only what began before the limit was reached"
        )
        for each in unreading:
            each.close()
        wait_until(lambda: held_bytes(server.admin_endpoint)["unread_answers"] == 0)
        assert received(server, sqs, queue)


def received(server: RunningServer, sqs: Any, queue: str) -> list[object]:
    """Return the messages of a receive that waits for at most a second of the server's clock."""
    with ThreadPoolExecutor(1) as pool:
        receiving = pool.submit(sqs.receive_message, QueueUrl=queue, WaitTimeSeconds=0)
        while not receiving.done():
            server.advance(seconds=1)
        messages: list[object] = receiving.result().get("Messages", [])
        return messages


def _send_all(sender: Client, pieces: list[bytes]) -> None:
    with contextlib.suppress(OSError):  # refused in the middle
        sender.send(POST + b"Transfer-Encoding: chunked\r\n\r\n", *pieces)
