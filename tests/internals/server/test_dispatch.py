"""From a request to its reply, over a real socket: protocols, web pages, defects of ours, counting."""

import gc
import json
import logging
import re
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.internals.server.scripted_engine import NoLine, ScriptedEngine
from tests.internals.wire.smq.test_request import BOMBS
from tests.server.http_host import dial
from tests.server.keys import REGION, client, signed_action, written
from veilmq.core.errors import InternalError
from veilmq.server import origin
from veilmq.server.dispatch import Dispatcher, Exchange
from veilmq.server.http_parser import SEEN_BEFORE_LAYOUT, Pending, Request
from veilmq.server.long_polling import LongPolls
from veilmq.server.metrics import Metrics
from veilmq.server.protocols import SQS_JSON, SQS_QUERY, Protocol
from veilmq.testing import RunningServer, VirtualClock
from veilmq.wire.exchange import Plan, RequestContext

Answer = tuple[int, dict[str, str], Any]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with RunningServer() as running:
        yield running


def ask(
    server: RunningServer, *, method: str = "POST", path: str = "/", body: str | bytes = "{}", **headers: str
) -> Answer:
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


def create(server: RunningServer, **headers: str) -> Answer:
    return ask(server, X_Amz_Target="AmazonSQS.CreateQueue", body='{"QueueName": "q"}', **headers)


def test_a_parked_poll_does_not_hold_the_segment_it_came_in(tmp_path: Path) -> None:
    """Though a policy may ask for its headers again."""
    with (
        RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as server,
        dial(server.endpoint) as line,
    ):
        poll = {"QueueUrl": client(server).create_queue(QueueName="waits")["QueueUrl"], "WaitTimeSeconds": 20}
        for _ in range(SEEN_BEFORE_LAYOUT + 1):
            line.sendall(signed_action(server, "ReceiveMessage", **poll | {"WaitTimeSeconds": 0}))
            assert line.recv(65_536).startswith(b"HTTP/1.1 200")
        line.sendall(signed_action(server, "ReceiveMessage", **poll))
        server.wait_parked()
        gc.collect()
        assert not [each for each in gc.get_objects() if isinstance(each, re.Match) and b"/waits" in bytes(each.string)]


# The Query protocol.

QUERY = "/?Action=ListQueues"
FORM = "application/x-www-form-urlencoded; charset=utf-8"


def test_the_header_of_the_json_protocol_decides(server: RunningServer) -> None:
    """Whatever the target says; and what Query was asked does not change what the next request is."""
    assert ask(server, path=QUERY, body="", X_Amz_Target="AmazonSQS.ListQueues")[0] == 400
    assert ask(server, path=QUERY, body="")[0] == 200
    assert ask(server)[0] == 404
    assert ask(server, path=QUERY, method="GET", body="", X_Amz_Target="AmazonSQS.ListQueues")[0] == 405


def test_a_body_that_is_no_form_has_no_parameters(server: RunningServer) -> None:
    assert ask(server, body="Action=ListQueues", Content_Type="text/plain")[0] == 404
    status, _, body = ask(server, path="/?Action=CreateQueue", body="QueueName=a", Content_Type="application/json")
    assert (status, "parameter QueueName" in body) == (400, True)


# Web pages.

BROWSER = {"Accept_Language": "en", "User_Agent": "Mozilla/5.0"}
DELETE = "Action=DeleteQueue&QueueUrl=/000000000000/victim"


@pytest.mark.parametrize("headers", [
    pytest.param(BROWSER, id="image-at-an-address-in-the-network"),
    pytest.param({"Accept_Language": "en"}, id="under-another-name"),
    pytest.param({"User_Agent": "Mozilla/5.0"}, id="without-languages"),
    pytest.param({"Referer": "http://evil.example/"}, id="link"),
    pytest.param(BROWSER | {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Dest": "image"}, id="image"),
    pytest.param(BROWSER | {"Sec_Fetch_Mode": "navigate"}, id="no-site"),
    pytest.param(BROWSER | {"Sec_Fetch_Site": "none", "Host": "evil.example"}, id="name-that-was-pointed-at-us"),
    pytest.param(BROWSER | {"Sec_Fetch_Site": "same-origin", "Host": "evil.example"}, id="page-at-that-name"),
])  # fmt: skip
def test_a_get_of_a_foreign_page_is_refused(server: RunningServer, headers: dict[str, str]) -> None:
    """An image's address is enough for a page, and a browser says little about where a GET comes from."""
    ask(server, path="/", body="Action=CreateQueue&QueueName=victim")
    status, _, body = ask(server, method="GET", path=f"/?{DELETE}", body="", **headers)
    assert (status, "web page" in body) == (403, True)
    assert "victim" in ask(server, path=QUERY, body="")[2]


def test_an_address_that_the_user_entered_is_answered(server: RunningServer) -> None:
    """The browser says that no page is behind it; a program has none of a browser's headers."""
    entered = BROWSER | {"Sec_Fetch_Site": "none", "Sec_Fetch_Mode": "navigate", "Upgrade_Insecure_Requests": "1"}
    assert ask(server, method="GET", path=QUERY, body="", **entered)[0] == 200
    assert ask(server, method="GET", path=QUERY, body="", User_Agent="curl/8.5.0", Host="queues.example")[0] == 200


def test_a_client_of_smq_may_look_like_a_browser_at_an_address_of_ours(server: RunningServer) -> None:
    """As those that use fetch do: no page of another site can send the header by which it is known."""
    fetch = {"Accept_Language": "*", "Sec_Fetch_Mode": "cors", "User_Agent": "node"}
    own = {"x_mns_version": "2015-06-06"}
    for method, path, status in (("PUT", "/queues/f", 201), ("GET", "/queues/f", 200), ("DELETE", "/queues/f", 204)):
        assert ask(server, method=method, path=path, body="", **fetch)[0] == 403
        for foreign in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Sec_Fetch_Site": "same-site"}):
            assert ask(server, method=method, path=path, body="", **fetch, **own, **foreign)[0] == 403
        assert ask(server, method=method, path=path, body="", **fetch, **own)[0] == status


def test_our_own_page_may_use_the_queues(server: RunningServer) -> None:
    assert create(server, Origin=server.endpoint, Sec_Fetch_Site="same-origin")[0] == 200


@pytest.mark.parametrize("headers", [
    pytest.param({"Origin": "https://evil.example"}, id="other-origin"),
    pytest.param({"Origin": "null"}, id="null-origin"),
    pytest.param({"Origin": ""}, id="empty-origin"),
    pytest.param({"Sec_Fetch_Site": "cross-site"}, id="cross-site"),
    pytest.param({"Sec_Fetch_Site": "same-site"}, id="same-site"),
    pytest.param({"Origin": "http://evil.example", "Host": "evil.example"}, id="name-that-was-pointed-at-us"),
])  # fmt: skip
@pytest.mark.parametrize("sent", [
    {"X_Amz_Target": "AmazonSQS.ListQueues"}, {"X_Amz_Target": "AmazonSQS.ListQueues", "method": "OPTIONS"},
    {"path": f"/?{DELETE}", "body": DELETE, "Content_Type": FORM, **BROWSER},
    {"path": f"/?{DELETE}", "body": DELETE, "Content_Type": "text/plain", **BROWSER},
], ids=["json", "options", "form", "text"])  # fmt: skip
def test_foreign_web_pages_are_refused(server: RunningServer, headers: dict[str, str], sent: dict[str, str]) -> None:
    """A browser posts a form without asking first: nothing happens to the queue, and the page gets no leave to ask."""
    ask(server, path="/", body="Action=CreateQueue&QueueName=victim")
    status, told, body = ask(server, **sent | headers)
    assert (status, "web page" in body) == (403, True)
    assert not any(name.startswith("access-control") for name in told)
    assert "victim" in ask(server, path=QUERY, body="")[2]


@pytest.mark.parametrize(("host", "foreign"), [
    ("localhost:9324", False), ("127.0.0.1:9324", False), ("[::1]:9324", False), ("[::1]", False), ("10.0.0.7", False),
    ("queue.internal:9324", False), ("QUEUE.internal", False), ("queue.internal.evil.example", True),
    ("localhost.evil.example:9324", True), ("", True),
])  # fmt: skip
def test_a_page_is_ours_on_addresses_that_nobody_else_can_take(host: str, foreign: bool) -> None:
    headers = {b"host": host.encode(), b"origin": f"http://{host}".encode()}
    assert origin.is_foreign(headers, own_name="queue.internal") is foreign


# Errors of ours, and counting.


def request(target: bytes) -> Request:
    return Request(NoLine(), b"POST", b"/", {b"host": b"h", b"x-amz-target": target}, b"{}", True)


@pytest.mark.parametrize(("protocol", "asked"), [
    (SQS_JSON, request(b"AmazonSQS.ListQueues")),
    (SQS_QUERY, Request(NoLine(), b"POST", b"/?Action=ListQueues", {b"host": b"h"}, b"", True)),
], ids=["json", "query"])  # fmt: skip
def test_a_defect_in_decoding_is_logged_and_answered(
    protocol: Protocol, asked: Request, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> Plan:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr("veilmq.server.protocols.PROTOCOLS", (protocol._replace(decode=broken),))
    told = dispatcher()
    with caplog.at_level(logging.ERROR):
        assert told.handle(asked) is None
    assert asked.reply is not None
    assert asked.reply.startswith(b"HTTP/1.1 500 ")
    assert b"InternalFailure" in asked.reply
    assert "broken on purpose" in caplog.text
    assert [(*named, series.count) for *named, series in told.metrics.series()] == [
        ("ListQueues", "InternalFailure", 1)
    ]


def test_a_defect_in_encoding_is_logged_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    asked = request(b"AmazonSQS.ListQueues")
    exchange = Exchange(asked, Metrics(), SQS_JSON, "ListQueues", 0.0)
    exchange.plan = SQS_JSON.decode(b"ListQueues", b"{}", RequestContext(base_url="http://h"))
    with caplog.at_level(logging.ERROR):
        exchange.done(object())
    assert asked.reply is not None
    assert str(InternalError()).encode() in asked.reply
    assert "could not be encoded" in caplog.text


def dispatcher() -> Dispatcher:
    polls = LongPolls(engine=ScriptedEngine(), clock=VirtualClock())
    return Dispatcher(polls=polls, context=RequestContext(base_url=""), host="h")


def test_many_hosts_do_not_fill_the_memory() -> None:
    told = dispatcher()
    answers: list[Pending | None] = []
    for number in range(1_000):
        asked = request(b"AmazonSQS.Fly")
        asked.headers[b"host"] = b"h%d" % number
        answers.append(told.handle(asked))
    assert answers == [None] * 1_000
    assert len(told._contexts) <= 256


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_malformed_and_the_server_goes_on(server: RunningServer, bomb: Callable[[], bytes]) -> None:
    own = {"x_mns_version": "2015-06-06", "Content_Type": "text/xml"}
    assert ask(server, method="PUT", path="/queues/bombed", body="", **own)[0] in {201, 204}
    status, _, text = ask(server, path="/queues/bombed/messages", body=bomb(), **own)
    assert (status, "<Code>MalformedXML</Code>" in text) == (400, True)
    sent = "<Message><MessageBody>m</MessageBody></Message>"
    assert ask(server, path="/queues/bombed/messages", body=sent, **own)[0] == 201
