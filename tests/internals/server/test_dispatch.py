"""Dispatch over real sockets: protocols, foreign web pages, defects, metrics."""

import gc
import gzip
import json
import logging
import random
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.internals.server.scripted_engine import NullConnection, ScriptedEngine
from tests.internals.wire.smq.test_request import ATTACKS
from tests.server.http_host import dial
from tests.server.keys import REGION, client, signed_action, written
from veilmq.core.errors import InternalError
from veilmq.server import origin
from veilmq.server.dispatch import Dispatcher, Route
from veilmq.server.http_parser import SEEN_BEFORE_LAYOUT, Layout, Pending, Request
from veilmq.server.long_polling import LongPolls
from veilmq.server.metrics import Metrics
from veilmq.server.protocols import SQS_JSON, SQS_QUERY, Exchange, Protocol
from veilmq.testing import RunningServer, VirtualClock
from veilmq.wire.exchange import Plan, RequestContext

HttpReply = tuple[int, dict[str, str], Any]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with RunningServer() as running:
        yield running


def send(
    server: RunningServer, *, method: str = "POST", path: str = "/", body: str | bytes = "{}", **headers: str
) -> HttpReply:
    """Return status, headers and body of one reply; `_` in header names stands for `-`."""
    connection = HTTPConnection(server.endpoint.removeprefix("http://"), timeout=60)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        reply = connection.getresponse()
        text = reply.read().decode()
        is_json = "json" in reply.headers.get("content-type", "")
        return reply.status, {k.lower(): v for k, v in reply.headers.items()}, json.loads(text) if is_json else text
    finally:
        connection.close()


def create(server: RunningServer, **headers: str) -> HttpReply:
    return send(server, X_Amz_Target="AmazonSQS.CreateQueue", body='{"QueueName": "q"}', **headers)


def test_a_parked_poll_does_not_keep_its_segment(tmp_path: Path) -> None:
    """Although policies may need its headers again."""
    with (
        RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as server,
        dial(server.endpoint) as connection,
    ):
        url = client(server).create_queue(QueueName="waits")["QueueUrl"]

        def receive(**members: Any) -> bytes:
            return signed_action(server, "ReceiveMessage", QueueUrl=url, **members)

        # The poll is signed among the requests that make the layout, so that it does not have another date.
        waits = [receive(WaitTimeSeconds=0, VisibilityTimeout=100 + n) for n in range(SEEN_BEFORE_LAYOUT // 2)]
        poll = receive(WaitTimeSeconds=20, VisibilityTimeout=10)
        waits += [receive(WaitTimeSeconds=0, VisibilityTimeout=200 + n) for n in range(SEEN_BEFORE_LAYOUT // 2)]
        for request in waits:
            connection.sendall(request)
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        connection.sendall(poll)
        server.wait_parked()
        gc.collect()
        assert not [each for each in gc.get_objects() if type(each) is tuple and each and isinstance(each[0], Layout)]


@pytest.mark.parametrize("credentials", [
    pytest.param([b"Credential=111111111111/", b"Credential=222222222222/"], id="token"),
    pytest.param([b"Credential=111111111111/", b"Xredential=111111111111/"], id="no-credential"),
    pytest.param([b"Credential= 111111111111/", b"Credential= 222222222222/"], id="after-a-blank"),
    pytest.param([b"Signature=1, Credential=111111111111/", b"Signature=1, Credential=222222222222/"], id="last"),
    pytest.param(
        [
            b"Credential=a/a, Xredential=111111111111/",  # makes the layout
            b"SignedHeaders=, Credential=111111111111/",
            b"SignedHeaders=, Credential=222222222222/",
        ],
        id="second",
    ),
])  # fmt: skip
def test_heads_of_one_layout_may_name_different_accounts(credentials: list[bytes]) -> None:
    """However a stranger's heads hide the credential."""

    def create(credential: bytes) -> bytes:
        value = b"AWS4-HMAC-SHA256 " + credential + b"20261128/us-east-1/sqs/aws4_request, Signature=0"
        head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Type: application/x-amz-json-1.0\r\nAuthorization: " + value
        action = b"\r\nX-Amz-Target: AmazonSQS.CreateQueue\r\nContent-Length: 17\r\n\r\n"
        connection.sendall(head + action + b'{"QueueName":"q"}')
        return connection.recv(65_536).rpartition(b"\r\n")[2]

    with RunningServer(regions="by-request") as server, dial(server.endpoint) as connection:
        queues = [create(each) for each in credentials]
        assert queues[0] != queues[1]
        for _ in range(SEEN_BEFORE_LAYOUT):
            assert [create(each) for each in credentials] == queues


def test_the_decisions_of_all_layouts_together_are_bounded() -> None:
    """A stranger can make many layouts, and send each of them with many long credentials."""
    with RunningServer(regions="by-request") as server, dial(server.endpoint) as connection:
        for name in b"ABCDEF":
            head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: 2\r\n"
            head += b"X-Amz-Target: AmazonSQS.ListQueues\r\n%c: a\r\nAuthorization: Credential=%%03d,\r\n\r\n{}" % name
            for number in range(255):
                connection.sendall(head % number)
                assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        cached = [each for each in gc.get_objects() if type(each) is tuple and each and isinstance(each[0], Route)]
        assert 255 < len(cached) <= 1_024


# The Query protocol.

QUERY = "/?Action=ListQueues"
FORM = "application/x-www-form-urlencoded; charset=utf-8"


def test_the_target_header_selects_the_json_protocol(server: RunningServer) -> None:
    """Whatever the path; a Query request does not affect the next one."""
    assert send(server, path=QUERY, body="", X_Amz_Target="AmazonSQS.ListQueues")[0] == 400
    assert send(server, path=QUERY, body="")[0] == 200
    assert send(server)[0] == 404
    assert send(server, path=QUERY, method="GET", body="", X_Amz_Target="AmazonSQS.ListQueues")[0] == 405


def test_a_body_of_another_type_has_no_form_parameters(server: RunningServer) -> None:
    assert send(server, body="Action=ListQueues", Content_Type="text/plain")[0] == 404
    status, _, body = send(server, path="/?Action=CreateQueue", body="QueueName=a", Content_Type="application/json")
    assert (status, "parameter QueueName" in body) == (400, True)


@pytest.mark.parametrize(("path", "headers", "shape"), [
    pytest.param("/", {"X_Amz_Target": "AmazonSQS.ListQueues"}, "{}", id="sqs-json"),
    pytest.param("/", {"Content_Type": FORM}, "{}", id="sqs-query"),
    pytest.param("/queues/q/messages", {"x_mns_version": "2015-06-06"}, "<Message>{}</Message>", id="smq"),
    pytest.param("/v1/queues/-/q/forward", {}, "{}", id="v1"),
    pytest.param("/v1/publications/-/q/stage?writer=w&batch=0&attempt=a&part=0", {}, "{}", id="v1-in-background"),
])  # fmt: skip
def test_a_compressed_body_is_refused(server: RunningServer, path: str, headers: dict[str, str], shape: str) -> None:
    for size, coding in ((10, "gzip"), (300_000, "gzip"), (10, "GZIP"), (10, "zstd")):
        body = gzip.compress(shape.format(random.randbytes(size).hex()).encode())
        status, _, text = send(server, path=path, body=body, Content_Encoding=coding, **headers)
        assert (status, "send the body uncompressed" in text) == (415, True)


def test_the_content_encoding_of_a_plain_body_is_ignored(server: RunningServer) -> None:
    """Some clients send a character set there. Without a body, any coding is."""
    assert send(server, path=QUERY, method="GET", body="", Content_Encoding="gzip")[0] == 200
    sent = {"X_Amz_Target": "AmazonSQS.CreateQueue", "Content_Encoding": "utf-8"}
    assert send(server, body='{"QueueName": "q"}', **sent)[0] == 200
    assert send(server, body='{"QueueName": "?"}', **sent)[0] == 400


# Web pages.

BROWSER = {"Accept_Language": "en", "User_Agent": "Mozilla/5.0"}
DELETE = "Action=DeleteQueue&QueueUrl=/000000000000/victim"


@pytest.mark.parametrize("headers", [
    pytest.param(BROWSER, id="image-in-the-local-network"),
    pytest.param({"Accept_Language": "en"}, id="only-languages"),
    pytest.param({"User_Agent": "Mozilla/5.0"}, id="without-languages"),
    pytest.param({"Referer": "http://evil.example/"}, id="link"),
    pytest.param(BROWSER | {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Dest": "image"}, id="image"),
    pytest.param(BROWSER | {"Sec_Fetch_Mode": "navigate"}, id="no-site"),
    pytest.param(BROWSER | {"Sec_Fetch_Site": "none", "Host": "evil.example"}, id="rebound-name"),
    pytest.param(BROWSER | {"Sec_Fetch_Site": "same-origin", "Host": "evil.example"}, id="page-at-a-rebound-name"),
])  # fmt: skip
def test_a_get_of_a_foreign_page_is_refused(server: RunningServer, headers: dict[str, str]) -> None:
    """A page can embed the URL as an image, and browsers send little about the origin of a GET."""
    send(server, path="/", body="Action=CreateQueue&QueueName=victim")
    status, _, body = send(server, method="GET", path=f"/?{DELETE}", body="", **headers)
    assert (status, "web page" in body) == (403, True)
    assert "victim" in send(server, path=QUERY, body="")[2]


def test_an_address_entered_by_the_user_is_answered(server: RunningServer) -> None:
    """Its browser sends that no page is the origin; a program sends no browser headers."""
    entered = BROWSER | {"Sec_Fetch_Site": "none", "Sec_Fetch_Mode": "navigate", "Upgrade_Insecure_Requests": "1"}
    assert send(server, method="GET", path=QUERY, body="", **entered)[0] == 200
    assert send(server, method="GET", path=QUERY, body="", User_Agent="curl/8.5.0", Host="queues.example")[0] == 200


def test_a_client_may_look_like_a_browser_at_our_own_address(server: RunningServer) -> None:
    """Clients that use fetch do: foreign pages cannot send the header of SMQ, or the date of a signature."""
    fetch = {"Accept_Language": "*", "Sec_Fetch_Mode": "cors", "User_Agent": "node"}
    smq, signed = {"x_mns_version": "2015-06-06"}, {"X_Amz_Date": "20261128T000000Z"}
    for own, method, path, status in (
        (smq, "PUT", "/queues/f", 201),
        (smq, "GET", "/queues/f", 200),
        (signed, "GET", "/?Action=GetQueueUrl&QueueName=f", 200),
        (smq, "DELETE", "/queues/f", 204),
    ):
        assert send(server, method=method, path=path, body="", **fetch)[0] == 403
        for foreign in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Sec_Fetch_Site": "same-site"}):
            assert send(server, method=method, path=path, body="", **fetch, **own, **foreign)[0] == 403
        assert send(server, method=method, path=path, body="", **fetch, **own)[0] == status


def test_our_own_page_may_use_the_queues(server: RunningServer) -> None:
    assert create(server, Origin=server.endpoint, Sec_Fetch_Site="same-origin")[0] == 200


@pytest.mark.parametrize("headers", [
    pytest.param({"Origin": "https://evil.example"}, id="other-origin"),
    pytest.param({"Origin": "null"}, id="null-origin"),
    pytest.param({"Origin": ""}, id="empty-origin"),
    pytest.param({"Sec_Fetch_Site": "cross-site"}, id="cross-site"),
    pytest.param({"Sec_Fetch_Site": "same-site"}, id="same-site"),
    pytest.param({"Origin": "http://evil.example", "Host": "evil.example"}, id="rebound-name"),
])  # fmt: skip
@pytest.mark.parametrize("sent", [
    {"X_Amz_Target": "AmazonSQS.ListQueues"}, {"X_Amz_Target": "AmazonSQS.ListQueues", "method": "OPTIONS"},
    {"path": f"/?{DELETE}", "body": DELETE, "Content_Type": FORM, **BROWSER},
    {"path": f"/?{DELETE}", "body": DELETE, "Content_Type": "text/plain", **BROWSER},
], ids=["json", "options", "form", "text"])  # fmt: skip
def test_foreign_web_pages_are_refused(server: RunningServer, headers: dict[str, str], sent: dict[str, str]) -> None:
    """Browsers post a form without a preflight: nothing may change, and the reply must not permit further requests."""
    send(server, path="/", body="Action=CreateQueue&QueueName=victim")
    status, reply_headers, body = send(server, **sent | headers)
    assert (status, "web page" in body) == (403, True)
    assert not any(name.startswith("access-control") for name in reply_headers)
    assert "victim" in send(server, path=QUERY, body="")[2]


@pytest.mark.parametrize(("host", "foreign"), [
    ("localhost:9324", False), ("127.0.0.1:9324", False), ("[::1]:9324", False), ("[::1]", False), ("10.0.0.7", False),
    ("queue.internal:9324", False), ("QUEUE.internal", False), ("queue.internal.evil.example", True),
    ("localhost.evil.example:9324", True), ("", True),
])  # fmt: skip
def test_own_addresses_cannot_be_rebound(host: str, foreign: bool) -> None:
    headers = {b"host": host.encode(), b"origin": f"http://{host}".encode()}
    assert origin.is_foreign(headers, own_name="queue.internal") is foreign


# Defects and metrics.


def request(target: bytes) -> Request:
    return Request(NullConnection(), b"POST", b"/", {b"host": b"h", b"x-amz-target": target}, b"{}", True)


@pytest.mark.parametrize(("protocol", "request_"), [
    (SQS_JSON, request(b"AmazonSQS.ListQueues")),
    (SQS_QUERY, Request(NullConnection(), b"POST", b"/?Action=ListQueues", {b"host": b"h"}, b"", True)),
], ids=["json", "query"])  # fmt: skip
def test_a_defect_in_decoding_is_logged_and_answered(
    protocol: Protocol, request_: Request, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> Plan:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr("veilmq.server.protocols.PROTOCOLS", (protocol._replace(decode=broken),))
    dispatcher = make_dispatcher()
    with caplog.at_level(logging.ERROR):
        assert dispatcher.handle(request_) is None
    assert request_.reply is not None
    assert request_.reply.startswith(b"HTTP/1.1 500 ")
    assert b"InternalFailure" in request_.reply
    assert "broken on purpose" in caplog.text
    assert [(*named, series.count) for *named, series in dispatcher.metrics.series()] == [
        ("ListQueues", "InternalFailure", 1)
    ]


def test_a_defect_in_encoding_is_logged_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    sent = request(b"AmazonSQS.ListQueues")
    exchange = Exchange(sent, Metrics(), SQS_JSON, "ListQueues", 0.0)
    exchange.plan = SQS_JSON.decode(b"ListQueues", b"{}", RequestContext(base_url="http://h"))
    with caplog.at_level(logging.ERROR):
        exchange.done(object())
    assert sent.reply is not None
    assert str(InternalError()).encode() in sent.reply
    assert "could not be encoded" in caplog.text


def make_dispatcher() -> Dispatcher:
    polls = LongPolls(engine=ScriptedEngine(), clock=VirtualClock())
    return Dispatcher(polls=polls, context=RequestContext(base_url=""), host="h")


def test_the_cache_of_contexts_is_bounded() -> None:
    dispatcher = make_dispatcher()
    pending: list[Pending | None] = []
    for number in range(2_000):
        sent = request(b"AmazonSQS.Fly")
        sent.headers[b"host"] = b"h%d" % number
        pending.append(dispatcher.handle(sent))
    assert pending == [None] * 2_000
    assert len(dispatcher._contexts) <= 1_024


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_an_xml_bomb_is_malformed(server: RunningServer, attack: Callable[[], bytes]) -> None:
    own = {"x_mns_version": "2015-06-06", "Content_Type": "text/xml"}
    assert send(server, method="PUT", path="/queues/bombed", body="", **own)[0] in {201, 204}
    status, _, text = send(server, path="/queues/bombed/messages", body=attack(), **own)
    assert (status, "<Code>MalformedXML</Code>" in text) == (400, True)
    sent = "<Message><MessageBody>m</MessageBody></Message>"
    assert send(server, path="/queues/bombed/messages", body=sent, **own)[0] == 201
