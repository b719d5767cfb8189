"""The client: every call against a running server, and the transport against faulty servers."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from urllib3 import HTTPConnectionPool, Timeout
from urllib3.exceptions import HTTPError

from tests.client.scripted_server import ScriptedReply, ScriptedServer, reply
from veilmq.client import ClientError, HttpQueueClient, NewMessage, QueueClient, SentMessage, Unreachable
from veilmq.client.api import Claims
from veilmq.client.messages import RECEIPT_SUPERSEDED, Hidden
from veilmq.client.transport import ATTEMPTS_MAX, REPLY_S_MAX, UNEXPECTED_REPLY
from veilmq.core.commands import VisibilityChange
from veilmq.core.messages import Attribute
from veilmq.core.settings import QueueSettings
from veilmq.testing import RunningServer, faults


@pytest.fixture(params=["memory", "postgres"])
def server(request: pytest.FixtureRequest, store_settings: Callable[[str], dict[str, Any]]) -> Iterator[RunningServer]:
    """Run a server with a virtual clock."""
    with RunningServer(**store_settings(request.param)) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[QueueClient]:
    """Connect a client, and create the queue "orders" with a timeout of 60 s."""
    with HttpQueueClient(server.endpoint) as connected:
        connected.create_queue("orders", {"visibility_timeout_s": 60})
        yield connected


def test_a_created_queue_is_found_and_listed(server: RunningServer, client: QueueClient) -> None:
    url = f"{server.endpoint}/000000000000/orders"
    assert client.create_queue("orders", {"visibility_timeout_s": 60}) == url
    assert client.queue_url("orders") == url
    client.create_queue("other")
    assert client.list_queues() == ["orders", "other"]
    assert client.list_queues("ot") == ["other"]
    assert client.list_queues("x") == []


def test_show_returns_settings_and_counts(server: RunningServer, client: QueueClient) -> None:
    """One message in each state."""
    client.send("orders", "in flight")
    client.receive("orders")
    client.send("orders", "visible")
    client.send("orders", "delayed", delay_s=9)
    status = client.show("orders")
    assert (status.queue, status.url) == ("orders", f"{server.endpoint}/000000000000/orders")
    assert status.settings == QueueSettings(visibility_timeout_s=60)
    assert (status.visible, status.in_flight, status.delayed) == (1, 1, 1)
    assert status.created_at_ms == status.modified_at_ms == server.clock.now_ms()


def test_set_changes_the_given_settings(client: QueueClient) -> None:
    client.set("orders", {"delay_s": 3, "receive_wait_s": 1})
    assert client.show("orders").settings == QueueSettings(visibility_timeout_s=60, delay_s=3, receive_wait_s=1)


def test_a_message_is_received_as_it_was_sent(server: RunningServer, client: QueueClient) -> None:
    attributes = {"colour": Attribute(type="String", text="röt"), "raw": Attribute(type="Binary", data=b"\x00\xff")}
    sent = client.send("orders", 'a "body"\n€', attributes=attributes)
    sent_at_ms = server.clock.now_ms()
    server.advance(250)
    (message,) = client.receive("orders", count=10)
    assert (message.id, message.body, message.attributes) == (sent.id, 'a "body"\n€', attributes)
    assert (message.sent_at_ms, message.first_received_at_ms) == (sent_at_ms, sent_at_ms + 250)
    assert message.receive_count == 1


def test_a_delay_and_a_timeout_hide_the_message(server: RunningServer, client: QueueClient) -> None:
    client.send("orders", "later", delay_s=2)
    assert client.receive("orders") == []
    server.advance(2_000)
    assert len(client.receive("orders", timeout_s=1)) == 1
    assert client.receive("orders") == []
    server.advance(1_000)
    (again,) = client.receive("orders")
    assert again.receive_count == 2
    server.advance(59_999)
    assert client.receive("orders") == []
    server.advance(1)
    assert len(client.receive("orders")) == 1


def test_change_visibility_changes_the_deadline(server: RunningServer, client: QueueClient) -> None:
    client.send("orders", "one")
    (message,) = client.receive("orders")
    client.change_visibility("orders", message.receipt, 5)
    server.advance(5_000)
    (message,) = client.receive("orders")
    client.change_visibility("orders", message.receipt, 0)
    assert len(client.receive("orders")) == 1


def test_a_deleted_message_is_not_received_again(server: RunningServer, client: QueueClient) -> None:
    client.send("orders", "one")
    (message,) = client.receive("orders")
    client.delete("orders", message.receipt)
    server.advance(60_000)
    assert client.receive("orders") == []


def test_entries_of_a_batch_succeed_or_fail_alone(client: QueueClient) -> None:
    """Each kind of batch, with an invalid entry in the middle."""
    messages = [NewMessage(body="a"), NewMessage(body="b", delay_s=901), NewMessage(body="c")]
    first, invalid, last = client.send_batch("orders", messages)
    assert isinstance(first, SentMessage)
    assert isinstance(last, SentMessage)
    assert isinstance(invalid, ClientError)
    assert (invalid.code, invalid.status) == ("InvalidParameterValue", 400)

    received = {message.id: message.receipt for message in client.receive("orders", count=10)}
    assert received.keys() == {first.id, last.id}
    changes = [(received[first.id], 7), ("nonsense", 7), (received[last.id], 7)]
    changed = client.change_visibility_batch(
        "orders", [VisibilityChange(receipt=receipt, timeout_s=timeout_s) for receipt, timeout_s in changes]
    )
    assert [result.code if isinstance(result, ClientError) else result for result in changed] == [
        Hidden(7.0),
        "ReceiptHandleIsInvalid",
        Hidden(7.0),
    ]
    deleted = client.delete_batch("orders", [received[first.id], "nonsense", received[last.id]])
    assert [error and error.code for error in deleted] == [None, "ReceiptHandleIsInvalid", None]
    status = client.show("orders")
    assert (status.visible, status.in_flight, status.delayed) == (0, 0, 0)


def test_a_change_with_a_superseded_receipt_is_an_error(server: RunningServer, client: QueueClient) -> None:
    """SQS reports a success; veilmq reports that nothing was changed."""
    client.send("orders", "hello")
    (early,) = client.receive("orders", timeout_s=1)
    server.advance(1_000)
    (late,) = client.receive("orders")
    changes = [VisibilityChange(receipt=receipt, timeout_s=7) for receipt in (early.receipt, late.receipt)]
    superseded, changed = client.change_visibility_batch("orders", changes)
    assert isinstance(superseded, ClientError)
    assert (superseded.code, changed) == (RECEIPT_SUPERSEDED, Hidden(7.0))


def test_purge_and_delete_queue(client: QueueClient) -> None:
    """The client still has the URL of the deleted queue in its cache."""
    client.send("orders", "one")
    client.purge("orders")
    assert client.show("orders").visible == 0
    client.delete_queue("orders")
    assert client.list_queues() == []
    with pytest.raises(ClientError) as caught:
        client.send("orders", "two")
    assert (caught.value.code, caught.value.status) == ("QueueDoesNotExist", 400)


def test_errors_have_the_codes_of_the_server(client: QueueClient) -> None:
    with pytest.raises(ClientError, match="exist") as caught:
        client.create_queue("orders", {"visibility_timeout_s": 61})
    assert caught.value.code == "QueueNameExists"
    with pytest.raises(ClientError) as caught:
        client.receive("nowhere")
    assert caught.value.code == "QueueDoesNotExist"


def test_tags_are_added_and_removed(client: QueueClient) -> None:
    client.create_queue("tagged", tags={"a": "1"})
    client.tag("tagged", {"b": "2", "c": ""})
    client.untag("tagged", ["a", "nowhere"])
    assert client.tags("tagged") == {"b": "2", "c": ""}
    assert client.tags("orders") == {}


def test_a_fifo_queue_keeps_order_and_drops_duplicates(client: QueueClient) -> None:
    """Groups, ids and sequence numbers, alone and in batches; an attempt id repeats a receive."""
    client.create_queue("a.fifo", {"fifo": True})
    first = client.send("a.fifo", "1", group="g", dedup_id="d1")
    assert client.send("a.fifo", "again", group="g", dedup_id="d1") == first
    (second,) = client.send_batch("a.fifo", [NewMessage(body="2", group="g", dedup_id="d2")])
    assert isinstance(second, SentMessage)
    assert second.sequence is not None
    assert first.sequence is not None
    assert first.sequence < second.sequence
    messages = client.receive("a.fifo", count=10, attempt_id="x")
    assert [(message.body, message.group, message.dedup_id) for message in messages] == [
        ("1", "g", "d1"),
        ("2", "g", "d2"),
    ]
    assert [message.sequence for message in messages] == [first.sequence, second.sequence]
    assert client.receive("a.fifo", count=10, attempt_id="x") == messages
    assert client.receive("a.fifo", count=10) == []


def test_dead_letters_and_their_redrive(server: RunningServer, client: QueueClient) -> None:
    client.create_queue("dead")
    client.set("orders", {"dead_letter_queue": "dead", "receives_max": 1})
    settings = client.show("orders").settings
    assert (settings.dead_letter_queue, settings.receives_max) == ("000000000000/dead", 1)
    client.set("dead", {"redrive_permission": "listed", "redrive_sources": ("orders",)})
    assert client.show("dead").settings.redrive_sources == ("000000000000/orders",)
    assert client.dead_letter_sources("dead") == ["orders"]
    client.send("orders", "m")
    for _ in range(2):
        client.receive("orders", timeout_s=0)
    (letter,) = client.receive("dead", timeout_s=0)
    assert letter.source == "orders"
    handle = client.start_move("dead", destination="orders", moves_per_s_max=500)
    server.advance(1_000)
    (move,) = client.moves("dead")
    assert (move.status, move.handle, move.destination, move.moves_per_s_max) == ("completed", None, "orders", 500)
    assert (move.messages_moved, move.messages_to_move, move.failure) == (1, 1, None)
    with pytest.raises(ClientError) as caught:
        client.cancel_move(handle)
    assert caught.value.code == "ResourceNotFoundException"
    assert client.show("orders").visible == 1


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"receives_max": 3}, "receives_max can only be changed together with dead_letter_queue"),
        ({"tags": "x"}, "'tags' is not a setting of a queue"),
    ],
)
def test_invalid_settings_are_refused_before_a_request(
    settings: dict[str, int | str], text: str, client: QueueClient
) -> None:
    with pytest.raises(ValueError, match=text):
        client.set("orders", settings)


# The transport against faulty servers: retries and errors.


FOUND = reply(200, b'{"QueueUrl": "http://127.0.0.1:1/000000000000/orders"}')
BUSY = reply(503, b'{"__type": "com.amazon.coral.service#ServiceUnavailableException", "message": "Later."}')


def test_a_request_is_aws_json() -> None:
    with ScriptedServer(FOUND) as server, HttpQueueClient(server.endpoint) as client:
        assert client.queue_url("orders") == "http://127.0.0.1:1/000000000000/orders"
    (request,) = server.requests
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST / HTTP/1.1\r\n")
    assert b"\r\nX-Amz-Target: AmazonSQS.GetQueueUrl" in head
    assert b"\r\nContent-Type: application/x-amz-json-1.0" in head
    assert body == b'{"QueueName":"orders"}'


def test_an_endpoint_may_have_a_path() -> None:
    """For a server behind a proxy."""
    with ScriptedServer(FOUND) as server, HttpQueueClient(server.endpoint + "/queues/") as client:
        client.queue_url("orders")
    assert server.requests[0].startswith(b"POST /queues/ HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(None, id="closed"),
        pytest.param(FOUND[:-5], id="cut-off"),
        pytest.param(BUSY, id="busy"),
        pytest.param(reply(500), id="failed"),
        pytest.param(reply(502, b"<html>"), id="bad-gateway"),
        pytest.param(reply(504), id="gateway-timeout"),
    ],
)
def test_a_temporary_failure_is_retried(failure: ScriptedReply) -> None:
    with ScriptedServer(failure, failure, FOUND) as server, HttpQueueClient(server.endpoint) as client:
        assert client.queue_url("orders").endswith("/orders")
    assert len(server.requests) == ATTEMPTS_MAX == 3
    assert len(set(server.requests)) == 1, "the same request each time"


def test_a_send_without_a_reply_is_retried() -> None:
    """The message may be stored twice: the queue delivers at least once anyway."""
    sent = reply(200, b'{"MessageId": "a", "MD5OfMessageBody": "b"}')
    with ScriptedServer(FOUND, None, sent) as server, HttpQueueClient(server.endpoint) as client:
        assert client.send("orders", "hello").id == "a"
    assert server.requests[1] == server.requests[2]


def test_a_permanent_failure_raises_the_error_of_the_server() -> None:
    with (
        ScriptedServer(BUSY, BUSY, BUSY, FOUND) as server,
        HttpQueueClient(server.endpoint) as client,
        pytest.raises(ClientError, match=r"^Later\.$") as caught,
    ):
        client.queue_url("orders")
    assert (caught.value.code, caught.value.status) == ("ServiceUnavailableException", 503)
    assert len(server.requests) == ATTEMPTS_MAX


def test_a_4xx_is_not_retried() -> None:
    refused = reply(400, b'{"__type": "com.amazonaws.sqs#QueueDoesNotExist", "message": "No."}')
    with (
        ScriptedServer(refused, FOUND) as server,
        HttpQueueClient(server.endpoint) as client,
        pytest.raises(ClientError, match=r"^No\.$") as caught,
    ):
        client.queue_url("orders")
    assert (caught.value.code, caught.value.status, len(server.requests)) == ("QueueDoesNotExist", 400, 1)


@pytest.mark.parametrize(
    ("response", "status"),
    [
        pytest.param(reply(200, b"<html>"), 200, id="not-json"),
        pytest.param(reply(200, b'{"Other": 1}'), 200, id="no-url"),
        pytest.param(reply(200, b'{"QueueUrl": 7}'), 200, id="wrong-type"),
        pytest.param(reply(404, b"not here"), 404, id="not-found"),
        pytest.param(reply(400, b"\xff\xfe"), 400, id="not-text"),
        pytest.param(b"HTTP/1.1 301 Moved\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n", 301, id="redirect"),
        pytest.param(reply(200, b'{"a":' * 9_999), 200, id="deep"),
        pytest.param(reply(400, b'{"a":' * 9_999), 400, id="deep-error"),
    ],
)
def test_a_reply_of_another_service_is_unexpected(response: bytes, status: int) -> None:
    with (
        ScriptedServer(response) as server,
        HttpQueueClient(server.endpoint) as client,
        pytest.raises(ClientError, match="not that of a queue server") as caught,
    ):
        client.queue_url("orders")
    assert (caught.value.code, caught.value.status) == (UNEXPECTED_REPLY, status)


def test_a_server_cannot_postpone_a_retry() -> None:
    later = b"HTTP/1.1 503 Later\r\nRetry-After: 3600\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with ScriptedServer(later, reply(200)) as server, HttpQueueClient(server.endpoint) as client:
        assert client.list_queues() == []


def test_the_url_of_a_queue_is_requested_once() -> None:
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        queue = server.queue("orders")
        client.send("orders", "a")
        server.faults.script("GetQueueUrl", faults.THROTTLED, times=None)
        client.send("orders", "b")
        assert queue.bodies == ["a", "b"]


def test_an_endpoint_may_end_with_a_slash() -> None:
    with RunningServer() as server, Claims(server.endpoint + "/", server.queue("orders").url) as claims:
        assert claims.sources() == []


def test_a_closed_port_is_unreachable() -> None:
    """The error has the endpoint and the reason."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with HttpQueueClient(endpoint) as client, pytest.raises(Unreachable) as caught:
        client.list_queues()
    assert str(caught.value) == f"No answer from {endpoint}: connection refused."


def test_a_server_that_closes_every_connection_is_unreachable() -> None:
    """After three attempts."""
    with (
        ScriptedServer(*[None] * ATTEMPTS_MAX) as server,
        HttpQueueClient(server.endpoint) as client,
        pytest.raises(Unreachable) as caught,
    ):
        client.list_queues()
    assert caught.value.reason == "Remote end closed connection without response"
    assert len(server.requests) == ATTEMPTS_MAX


def test_https_on_a_plain_port_is_explained(server: RunningServer) -> None:
    endpoint = server.endpoint.replace("http", "https")
    with HttpQueueClient(endpoint) as client, pytest.raises(Unreachable, match="it does not use TLS; write http://"):
        client.list_queues()


def test_an_unknown_host_is_unreachable() -> None:
    """A name of the reserved domain never resolves (RFC 6761)."""
    with HttpQueueClient("http://nowhere.invalid:1") as client, pytest.raises(Unreachable, match="no such host"):
        client.list_queues()


def test_a_server_that_never_replies_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilmq.client.transport.REPLY_S_MAX", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with HttpQueueClient(endpoint) as client, pytest.raises(Unreachable, match="no answer in time"):
            client.list_queues()


@pytest.mark.parametrize("wait_s", [20, None], ids=["given", "of the queue"])
def test_the_timeout_of_a_poll_includes_its_wait(wait_s: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts = []

    def urlopen(*_: object, timeout: Timeout, **__: object) -> None:
        timeouts.append(timeout.read_timeout)
        raise HTTPError

    monkeypatch.setattr(HTTPConnectionPool, "urlopen", urlopen)
    with HttpQueueClient("http://127.0.0.1:1") as client, pytest.raises(Unreachable):
        client.receive("http://127.0.0.1:1/000000000000/orders", wait_s=wait_s)
    assert timeouts == [20 + REPLY_S_MAX]


def test_many_threads_share_a_client_without_warnings(caplog: pytest.LogCaptureFixture) -> None:
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client, ThreadPoolExecutor(30) as threads:
        server.queue("orders")
        for _ in range(2):
            polls = [threads.submit(client.receive, "orders", wait_s=1) for _ in range(30)]
            server.wait_until(lambda: server.parked == 30)
            server.advance(seconds=1)
            assert [poll.result() for poll in polls] == [[]] * 30
    assert caplog.messages == []


@pytest.mark.parametrize("queue", ["orders", "{}/000000000000/orders"])
def test_a_call_with_a_timeout_is_tried_once(queue: str) -> None:
    """A timeout and an error are not retried, nor those of a name's look-up: a lease ends meanwhile."""
    change = VisibilityChange(receipt="r", timeout_s=30)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with HttpQueueClient(endpoint) as client, pytest.raises(Unreachable, match="no answer in time"):
            client.change_visibility_batch(queue.format(endpoint), [change], call_timeout_s=0.05)
    with ScriptedServer(BUSY, BUSY) as server, HttpQueueClient(server.endpoint) as client:
        with pytest.raises(ClientError, match="Later"):
            client.change_visibility_batch(queue.format(server.endpoint), [change], call_timeout_s=60)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "endpoint",
    ["", "127.0.0.1:9324", "ftp://127.0.0.1", "http://", "http://a/?b=c", "http://a:port"],
    ids=["empty", "no-scheme", "other-scheme", "no-host", "query", "no-port"],
)
def test_an_invalid_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match=r"must look like http://127\.0\.0\.1:9324"):
        HttpQueueClient(endpoint)


def test_an_endpoint_with_a_password_is_refused_without_showing_it() -> None:
    """The password would not be sent, but would be in each error with the endpoint."""
    with pytest.raises(ValueError, match="no user name and no password") as raised:
        HttpQueueClient("http://user:hush@127.0.0.1:9324")
    assert "hush" not in str(raised.value)


def test_a_listing_reads_all_pages() -> None:
    first = reply(200, b'{"QueueUrls": ["http://h/1/a", "http://h/1/b"], "NextToken": "b"}')
    second = reply(200, b'{"QueueUrls": ["http://h/1/c"]}')
    with ScriptedServer(first, second) as server, HttpQueueClient(server.endpoint) as client:
        assert client.list_queues("p") == ["a", "b", "c"]
    assert server.requests[0].endswith(b'{"QueueNamePrefix":"p","MaxResults":1000}')
    assert server.requests[1].endswith(b'{"QueueNamePrefix":"p","NextToken":"b","MaxResults":1000}')


def test_results_of_a_batch_are_in_the_order_of_its_entries() -> None:
    """The reply may have another order; a missing entry is an error."""
    body = (
        b'{"Successful": [{"Id": "3"}, {"Id": "0"}],'
        b' "Failed": [{"Id": "1", "SenderFault": true, "Code": "ReceiptHandleIsInvalid", "Message": "No."}]}'
    )
    with ScriptedServer(FOUND, reply(200, body)) as server, HttpQueueClient(server.endpoint) as client:
        first, second, third, fourth = client.delete_batch("orders", ["a", "b", "c", "d"])
    assert first is None
    assert fourth is None
    assert second is not None
    assert (second.code, second.status) == ("ReceiptHandleIsInvalid", 400)
    assert third is not None
    assert third.code == UNEXPECTED_REPLY


WITHOUT_ATTRIBUTES = b'{"Messages": [{"MessageId": "a", "ReceiptHandle": "r", "MD5OfBody": "m", "Body": "b"}]}'


@pytest.mark.parametrize(
    ("call", "body"),
    [("show", b'{"Attributes": {"VisibilityTimeout": "30"}}'), ("receive", WITHOUT_ATTRIBUTES)],
    ids=["attributes", "message"],
)
def test_a_reply_with_missing_members_is_unexpected(call: str, body: bytes) -> None:
    """The error names the missing member."""
    with (
        ScriptedServer(FOUND, reply(200, body)) as server,
        HttpQueueClient(server.endpoint) as client,
        pytest.raises(ClientError, match="lack a usable") as caught,
    ):
        getattr(client, call)("orders")
    assert caught.value.code == UNEXPECTED_REPLY


def test_an_unknown_setting_is_refused_before_a_request() -> None:
    """The error lists the settings."""
    with (
        ScriptedServer() as server,
        HttpQueueClient(server.endpoint) as client,
        pytest.raises(ValueError, match="'colour' is not a setting of a queue; these are visibility_timeout_s"),
    ):
        client.create_queue("orders", {"colour": 1})
    assert server.requests == []
