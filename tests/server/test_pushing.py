"""Pushes over real sockets: formats, signatures, retries, timeouts, restarts and allowed endpoints."""

import json
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress
from hashlib import md5
from itertools import pairwise
from pathlib import Path

import pytest
import urllib3
from cryptography.exceptions import InvalidSignature

from tests.clients.smq.raw import element, smq_request
from tests.conftest import EVERYTHING
from tests.server.http_host import dial
from tests.server.push_receiver import (
    TOPIC,
    Receiver,
    create_topic,
    next_attempt,
    outcomes,
    publish,
    receiving,
    subscribe,
    subscribed,
    verify,
    wait_for,
    waiting,
)
from tests.store.postgres_host import emptied
from veilmq.testing import RunningServer

HEADERS = (
    "Host User-Agent Accept Content-Type Content-Length Content-md5 Date x-mns-request-id x-mns-version "
    "x-mns-signing-cert-url"
)
MESSAGE_HEADERS = (
    "x-mns-message-id x-mns-message-tag x-mns-publish-time x-mns-subscriber x-mns-subscription-name "
    "x-mns-topic-name x-mns-topic-owner"
)
END = ["Authorization", "Connection"]

EACH_STORE = pytest.mark.parametrize("server", ["sqlite", "postgres"], indirect=True)
"""For tests that depend on the store; `make test-all` runs the others on PostgreSQL too."""


@pytest.fixture(scope="session")
def push_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key with its certificate, which a server needs half a second to generate."""
    folder = tmp_path_factory.mktemp("pushing")
    with RunningServer(data=folder, push_allow="127.0.0.1"):
        return folder / "push.pem"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=EVERYTHING)])
def server(request: pytest.FixtureRequest, push_key: Path) -> Iterator[RunningServer]:
    store = emptied(request.getfixturevalue("postgres_url")) if request.param == "postgres" else {}
    with RunningServer(**store, push_allow="127.0.0.1", push_key=push_key, push_certificate=push_key) as running:
        yield running


# Formats and signatures.


def test_the_default_format_is_xml(server: RunningServer, receiver: Receiver) -> None:
    subscribed(server, "s", f"{receiver.url}/in?a=b")
    identifier = publish(server, "a &lt;b&gt;", tag="t")
    wait_for(server, accepted=1)
    (push,) = receiver.pushes
    digest = md5(b"a <b>").hexdigest().upper()
    assert push.path == "/in?a=b"
    assert list(push.headers) == HEADERS.split() + END
    assert push.headers["Content-Type"] == "text/xml;charset=utf-8"
    assert push.headers["Host"] == f"127.0.0.1:{receiver.port}"
    assert push.headers["x-mns-version"] == "2015-06-06"
    assert b64decode(push.headers["Content-md5"]).decode() == md5(push.body.encode()).hexdigest()
    assert push.body == (
        '<?xml version="1.0"?>\n<Notification xmlns="http://mns.aliyuncs.com/doc/v1">'
        "<TopicOwner>000000000000</TopicOwner><TopicName>news</TopicName><Subscriber>000000000000</Subscriber>"
        f"<SubscriptionName>s</SubscriptionName><MessageId>{identifier}</MessageId><Message>a &lt;b&gt;</Message>"
        f"<MessageMD5>{digest}</MessageMD5><MessageTag>t</MessageTag><PublishTime>{server.clock.now_ms()}</PublishTime>"
        "</Notification>"
    )


def test_the_json_format_has_the_same_members(server: RunningServer, receiver: Receiver) -> None:
    subscribed(server, "s", receiver.url, NotifyContentFormat="JSON")
    identifier = publish(server, "ä")
    wait_for(server, accepted=1)
    (push,) = receiver.pushes
    assert push.path == "/notifications"
    assert push.headers["Content-Type"] == "application/json;charset=utf-8"
    assert json.loads(push.body) == {
        "TopicOwner": "000000000000",
        "TopicName": "news",
        "Subscriber": "000000000000",
        "SubscriptionName": "s",
        "MessageId": identifier,
        "Message": "ä",
        "MessageMD5": md5("ä".encode()).hexdigest().upper(),
        "PublishTime": str(server.clock.now_ms()),
    }


def test_the_simplified_format_has_the_other_members_in_headers(server: RunningServer, receiver: Receiver) -> None:
    """The time is that of the publication, also in a retry. The digest is written as in a document."""
    published_ms = server.clock.now_ms()
    receiver.status = 503
    subscribed(server, "s", receiver.url, NotifyContentFormat="SIMPLIFIED")
    identifier = publish(server, "just this", tag="köln")
    wait_for(server, failed=1)
    receiver.status = 200
    next_attempt(server)
    wait_for(server, failed=1, accepted=1)
    first, push = receiver.pushes
    assert (push.body, push.headers["Content-Type"]) == ("just this", "text/plain;charset=utf-8")
    assert list(push.headers) == HEADERS.split() + MESSAGE_HEADERS.split() + END
    assert push.headers["Content-md5"] == md5(b"just this").hexdigest().upper()
    values = [push.headers[name] for name in MESSAGE_HEADERS.split()]
    tag = "köln".encode().decode("latin-1")
    assert values == [identifier, tag, str(published_ms), "000000000000", "s", "news", "000000000000"]
    assert first.headers["x-mns-request-id"] != push.headers["x-mns-request-id"]
    publish(server, "no tag")
    wait_for(server, failed=1, accepted=2)
    assert "x-mns-message-tag" not in receiver.pushes[-1].headers


@pytest.mark.parametrize("name", ["XML", "JSON", "SIMPLIFIED"])
def test_pushes_have_a_signature_that_the_certificate_verifies(
    server: RunningServer, receiver: Receiver, name: str
) -> None:
    subscribed(server, "s", f"{receiver.url}/in?x=%20", NotifyContentFormat=name)
    publish(server, tag="a tag")
    wait_for(server, accepted=1)
    (push,) = receiver.pushes
    verify(push)
    date = {"Date": "Thu, 01 Jan 2026 00:00:00 GMT"}
    for changed in (push._replace(path="/other"), push._replace(headers=push.headers | date)):
        with pytest.raises(InvalidSignature):
            verify(changed)


def test_a_server_with_pushes_serves_its_certificate(server: RunningServer) -> None:
    reply = urllib3.request("GET", f"{server.endpoint}/push-certificate.pem")
    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/x-pem-file")
    assert reply.data.startswith(b"-----BEGIN CERTIFICATE-----\n")
    assert b"PRIVATE" not in reply.data
    assert urllib3.request("PUT", f"{server.endpoint}/push-certificate.pem").status == 405
    with RunningServer() as other:
        assert urllib3.request("GET", f"{other.endpoint}/push-certificate.pem").status == 404


def test_a_header_has_the_configured_url_of_the_certificate(receiver: Receiver) -> None:
    with RunningServer(push_allow="127.0.0.1", push_certificate_url="https://certificates.example/p.pem") as server:
        subscribed(server, "s", receiver.url)
        publish(server)
        wait_for(server, accepted=1)
    assert b64decode(receiver.pushes[0].headers["x-mns-signing-cert-url"]) == b"https://certificates.example/p.pem"


@EACH_STORE
def test_each_subscription_gets_the_messages_of_its_filter(server: RunningServer, receiver: Receiver) -> None:
    smq_request(server, "PUT", "/queues/jobs")
    subscribed(server, "all", f"{receiver.url}/all", NotifyContentFormat="SIMPLIFIED")
    subscribed(server, "red", f"{receiver.url}/red", NotifyContentFormat="SIMPLIFIED", FilterTag="red")
    subscribed(server, "queue", "acs:mns:any:000000000000:queues/jobs", NotifyContentFormat="SIMPLIFIED")
    publish(server, "1", tag="red")
    publish(server, "2", tag="blue")
    wait_for(server, accepted=3)
    assert sorted((push.path, push.body) for push in receiver.pushes) == [("/all", "1"), ("/all", "2"), ("/red", "1")]
    assert [smq_request(server, "GET", "/queues/jobs/messages").text("MessageBody") for _ in range(2)] == ["1", "2"]


# Retries.


def test_backoff_retry_stops_after_three_retries(
    server: RunningServer, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    times: list[int] = []
    receiver.before = lambda _: times.append(server.clock.now_ms())
    receiver.status = 500
    subscribed(server, "s", receiver.url)
    identifier = publish(server)
    for failures in range(1, 4):
        wait_for(server, failed=failures)
        assert len(receiver.pushes) == failures
        assert waiting(server) == 1
        next_attempt(server)
    wait_for(server, failed=3, given_up=1)
    assert len(receiver.pushes) == 4
    assert all(10_000 <= after - before <= 20_000 for before, after in pairwise(times))
    assert waiting(server) == 0
    assert f"message {identifier} was not pushed to subscription s of 000000000000/news" in caplog.text
    assert "and is given up: status 500" in caplog.text


@EACH_STORE
def test_exponential_decay_retries_exactly_on_time_until_success(server: RunningServer, receiver: Receiver) -> None:
    """After 1, 2, 4 … 512 seconds."""
    times: list[int] = []
    receiver.before = lambda _: times.append(server.clock.now_ms())
    receiver.status = 500
    subscribed(server, "s", receiver.url, NotifyStrategy="EXPONENTIAL_DECAY_RETRY")
    publish(server)
    for failures in range(1, 13):
        wait_for(server, failed=failures)
        pause_ms = min(1_000 << (failures - 1), 512_000)
        server.advance(pause_ms - 1)
        assert len(times) == failures
        if failures == 12:
            receiver.status = 204
        server.advance(1)
    wait_for(server, failed=12, accepted=1)
    pauses_s = [(after - before) // 1_000 for before, after in pairwise(times)]
    assert pauses_s == [*(1 << power for power in range(10)), 512, 512]
    assert waiting(server) == 0


def refused_once(server: RunningServer, receiver: Receiver, url: str) -> None:
    """Subscribe and publish; the receiver refuses the first push."""
    receiver.status = 500
    subscribed(server, "s", url)
    publish(server)
    wait_for(server, failed=1)


@EACH_STORE
def test_a_changed_strategy_applies_to_waiting_messages(server: RunningServer, receiver: Receiver) -> None:
    refused_once(server, receiver, receiver.url)
    body = f"<Subscription>{element('NotifyStrategy', 'EXPONENTIAL_DECAY_RETRY')}</Subscription>"
    assert smq_request(server, "PUT", f"{TOPIC}/subscriptions/s?metaoverride=true", body).status == 204
    next_attempt(server)
    wait_for(server, failed=2)
    server.advance(seconds=2)
    wait_for(server, failed=3)


def test_redirects_are_not_followed(server: RunningServer, receiver: Receiver) -> None:
    receiver.status = 307
    receiver.headers = {"Location": f"{receiver.url}/elsewhere"}
    subscribed(server, "s", f"{receiver.url}/in")
    publish(server)
    wait_for(server, failed=1)
    assert [push.path for push in receiver.pushes] == ["/in"]


def test_a_push_times_out_after_five_seconds(
    server: RunningServer, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()
    receiver.before = lambda _: release.wait(60)
    subscribed(server, "s", receiver.url)
    publish(server)
    server.wait_until(lambda: receiver.pushes)
    server.advance(4_999)
    assert outcomes(server) == {}
    server.advance(1)
    wait_for(server, failed=1)
    release.set()
    assert "no reply within 5 s" in caplog.text


def test_a_receiver_that_hangs_does_not_delay_others(receiver: Receiver) -> None:
    release = threading.Event()
    with RunningServer(push_allow="127.0.0.1", push_parallel_max=2) as server, receiving() as dead:
        dead.before = lambda _: release.wait(60)
        subscribed(server, "dead", dead.url)
        subscribed(server, "fine", receiver.url, NotifyContentFormat="SIMPLIFIED")
        bodies = [str(number) for number in range(20)]
        for body in bodies:
            publish(server, body)
        wait_for(server, accepted=len(bodies))
        assert sorted(receiver.bodies) == sorted(bodies)
        server.wait_until(lambda: dead.pushes)
        assert len(dead.pushes) == 1
        release.set()


# Deletions and restarts.


@EACH_STORE
def test_a_deleted_subscription_gets_no_more_pushes(server: RunningServer, receiver: Receiver) -> None:
    """Nor does a new one of the same name get its messages."""
    refused_once(server, receiver, f"{receiver.url}/old")
    assert smq_request(server, "DELETE", f"{TOPIC}/subscriptions/s").status == 204
    receiver.status = 204
    subscribed(server, "s", f"{receiver.url}/new")
    server.advance(seconds=60)
    publish(server)
    wait_for(server, failed=1, accepted=1)
    assert [push.path for push in receiver.pushes] == ["/old", "/new"]


@EACH_STORE
def test_a_deleted_topic_sends_no_more_pushes(server: RunningServer, receiver: Receiver) -> None:
    refused_once(server, receiver, receiver.url)
    assert smq_request(server, "DELETE", TOPIC).status == 204
    server.advance(seconds=60)
    assert (outcomes(server), len(receiver.pushes)) == ({"failed": 1}, 1)


def test_shutdown_waits_for_running_pushes(tmp_path: Path, receiver: Receiver) -> None:
    """The receiver replies after the server has closed its ports."""
    with RunningServer(data=tmp_path, push_allow="127.0.0.1") as server:
        receiver.before = lambda _: server.wait_until(lambda: not accepts(server))
        subscribed(server, "s", receiver.url)
        publish(server)
        server.wait_until(lambda: receiver.pushes)
    with RunningServer(data=tmp_path, push_allow="127.0.0.1", clock=server.clock) as server:
        assert waiting(server) == 0
    assert len(receiver.pushes) == 1


def accepts(server: RunningServer) -> bool:
    with suppress(OSError), dial(server.endpoint):
        return True
    return False


def test_an_interrupted_push_is_repeated_after_its_lease(tmp_path: Path, receiver: Receiver) -> None:
    release = threading.Event()
    receiver.before = lambda _: release.wait(60)
    with RunningServer(data=tmp_path, push_allow="127.0.0.1") as server:
        subscribed(server, "s", receiver.url)
        publish(server)
        server.wait_until(lambda: receiver.pushes)
        server.request_stop()
        server.request_stop()  # the second request does not wait
    receiver.before = lambda _: None
    with RunningServer(data=tmp_path, push_allow="127.0.0.1", clock=server.clock) as server:
        server.advance(15_000 - 1)
        assert (waiting(server), len(receiver.pushes)) == (1, 1)
        server.advance(1)
        wait_for(server, accepted=1)
    release.set()
    assert receiver.bodies[0] == receiver.bodies[1]


def test_waiting_messages_are_pushed_after_a_restart_with_the_same_key(tmp_path: Path, receiver: Receiver) -> None:
    """Also messages published while pushes were off; only to endpoints that are still allowed."""
    with RunningServer(data=tmp_path, push_allow="127.0.0.1") as server:
        subscribed(server, "s", receiver.url, NotifyContentFormat="SIMPLIFIED")
        certificate = urllib3.request("GET", f"{server.endpoint}/push-certificate.pem").data
    with RunningServer(data=tmp_path, clock=server.clock) as server:
        publish(server, "kept")
        assert waiting(server) == 1
    with RunningServer(data=tmp_path, clock=server.clock, push_allow="127.0.0.2") as server:
        wait_for(server, failed=1)
        assert receiver.pushes == []
    with RunningServer(data=tmp_path, clock=server.clock, push_allow="127.0.0.1") as server:
        next_attempt(server)
        wait_for(server, accepted=1)
        assert urllib3.request("GET", f"{server.endpoint}/push-certificate.pem").data == certificate
        assert receiver.bodies == ["kept"]
        verify(receiver.pushes[0])
    assert (tmp_path / "push.pem").stat().st_mode & 0o777 == 0o600


# Allowed endpoints.


@pytest.mark.parametrize(("allow", "endpoint", "error"), [
    (None, "http://127.0.0.1/", "no host is allowed; add it to the server's setting push_allow (--push-allow)"),
    ("hook.example", "http://127.0.0.1/", "127.0.0.1 port 80 is not allowed; add it to the server's setting"),
    ("127.0.0.1:81", "http://127.0.0.1:82/", "127.0.0.1 port 82 is not allowed"),
    ("0.0.0.0/0", "http://169.254.169.254/latest/meta-data/", "169.254.169.254 port 80 is not allowed"),
    ("127.0.0.1", "http://0x7f000001/", "four decimal numbers"),
    ("127.0.0.1", "http://127.0.0.1@10.0.0.1/", "no user name"),
    ("localhost", "http://localhost/", "which is not a public address; also add that address"),
    ("nowhere.invalid", "http://nowhere.invalid/", "the name nowhere.invalid cannot be resolved"),
])  # fmt: skip
def test_the_error_of_a_forbidden_endpoint_names_the_setting(allow: str | None, endpoint: str, error: str) -> None:
    with RunningServer(push_allow=allow) as server:
        create_topic(server)
        reply = subscribe(server, "s", endpoint)
        assert (reply.status, reply.code) == (400, "EndpointInvalid")
        assert error in reply.text("Message").replace("&gt;", ">")
        assert smq_request(server, "GET", f"{TOPIC}/subscriptions").texts("SubscriptionURL") == []
