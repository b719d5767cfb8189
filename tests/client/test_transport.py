"""The transport against servers that misbehave: what is asked again, and what the errors say."""

import socket

import pytest

from tests.client.scripted_server import Answer, ScriptedServer, reply
from veilmq.client import ClientError, HttpQueueClient, Unreachable
from veilmq.client.transport import ATTEMPTS_MAX, UNEXPECTED_REPLY
from veilmq.core.commands import VisibilityChange

FOUND = reply(200, b'{"QueueUrl": "http://127.0.0.1:1/000000000000/orders"}')
BUSY = reply(503, b'{"__type": "com.amazon.coral.service#ServiceUnavailableException", "message": "Later."}')


def test_a_request_is_aws_json() -> None:
    """Target, media type and body are those that a server of the protocol expects."""
    with ScriptedServer(FOUND) as server, HttpQueueClient(server.endpoint) as client:
        assert client.queue_url("orders") == "http://127.0.0.1:1/000000000000/orders"
    (request,) = server.requests
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST / HTTP/1.1\r\n")
    assert b"\r\nX-Amz-Target: AmazonSQS.GetQueueUrl" in head
    assert b"\r\nContent-Type: application/x-amz-json-1.0" in head
    assert body == b'{"QueueName":"orders"}'


def test_an_endpoint_may_have_a_path() -> None:
    """A server behind a proxy is asked under its path."""
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
def test_a_passing_failure_is_tried_again(failure: Answer) -> None:
    """Two failures and a good answer are a good answer."""
    with ScriptedServer(failure, failure, FOUND) as server, HttpQueueClient(server.endpoint) as client:
        assert client.queue_url("orders").endswith("/orders")
    assert len(server.requests) == ATTEMPTS_MAX == 3
    assert len(set(server.requests)) == 1, "the same request each time"


def test_a_send_that_may_have_happened_is_tried_again() -> None:
    """Its reply was lost: the queue delivers at least once, so twice is better than never."""
    sent = reply(200, b'{"MessageId": "a", "MD5OfMessageBody": "b"}')
    with ScriptedServer(FOUND, None, sent) as server, HttpQueueClient(server.endpoint) as client:
        assert client.send("orders", "hello").id == "a"
    assert server.requests[1] == server.requests[2]


def test_a_lasting_failure_is_the_servers_own_error() -> None:
    """After the last attempt its code, sentence and status are raised."""
    with (
        ScriptedServer(BUSY, BUSY, BUSY, FOUND) as server,
        HttpQueueClient(server.endpoint) as client,
        pytest.raises(ClientError, match=r"^Later\.$") as caught,
    ):
        client.queue_url("orders")
    assert (caught.value.code, caught.value.status) == ("ServiceUnavailableException", 503)
    assert len(server.requests) == ATTEMPTS_MAX


def test_a_refusal_is_not_tried_again() -> None:
    """A 4xx would be the same the second time."""
    refused = reply(400, b'{"__type": "com.amazonaws.sqs#QueueDoesNotExist", "message": "No."}')
    with (
        ScriptedServer(refused, FOUND) as server,
        HttpQueueClient(server.endpoint) as client,
        pytest.raises(ClientError, match=r"^No\.$") as caught,
    ):
        client.queue_url("orders")
    assert (caught.value.code, caught.value.status, len(server.requests)) == ("QueueDoesNotExist", 400, 1)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        pytest.param(reply(200, b"<html>"), 200, id="not-json"),
        pytest.param(reply(200, b'{"Other": 1}'), 200, id="no-url"),
        pytest.param(reply(200, b'{"QueueUrl": 7}'), 200, id="wrong-type"),
        pytest.param(reply(404, b"not here"), 404, id="not-found"),
        pytest.param(reply(400, b"\xff\xfe"), 400, id="not-text"),
        pytest.param(reply(301, b""), 301, id="redirect"),
    ],
)
def test_the_answer_of_something_else_is_called_that(answer: bytes, status: int) -> None:
    """Whatever listens there is no queue server."""
    with (
        ScriptedServer(answer) as server,
        HttpQueueClient(server.endpoint) as client,
        pytest.raises(ClientError, match="not that of a queue server") as caught,
    ):
        client.queue_url("orders")
    assert (caught.value.code, caught.value.status) == (UNEXPECTED_REPLY, status)


def test_a_closed_port_is_unreachable() -> None:
    """The error names the endpoint and the reason, in words."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with HttpQueueClient(endpoint) as client, pytest.raises(Unreachable) as caught:
        client.list_queues()
    assert str(caught.value) == f"No answer from {endpoint}: connection refused."


def test_a_server_that_always_hangs_up_is_unreachable() -> None:
    """Three attempts, then the error says what happened."""
    with (
        ScriptedServer() as server,
        HttpQueueClient(server.endpoint) as client,
        pytest.raises(Unreachable, match="Remote end closed connection without response"),
    ):
        client.list_queues()
    assert len(server.requests) == ATTEMPTS_MAX


def test_an_unknown_host_is_unreachable() -> None:
    """A name of the reserved domain never resolves (RFC 6761)."""
    with HttpQueueClient("http://nowhere.invalid:1") as client, pytest.raises(Unreachable, match="no such host"):
        client.list_queues()


def test_a_server_that_is_silent_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for an answer ends; here it is made short."""
    monkeypatch.setattr("veilmq.client.transport.REPLY_S_MAX", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with HttpQueueClient(endpoint) as client, pytest.raises(Unreachable, match="no answer in time"):
            client.list_queues()


def test_a_call_with_patience_is_tried_once_and_given_up() -> None:
    """It neither waits for longer than it was told to nor asks again: whoever sets it has plans of his own."""
    change = VisibilityChange(receipt="r", timeout_s=30)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with HttpQueueClient(endpoint) as client, pytest.raises(Unreachable, match="no answer in time"):
            client.change_visibility_batch(f"{endpoint}/000000000000/orders", [change], patience_s=0.05)
    with ScriptedServer(BUSY, BUSY) as server, HttpQueueClient(server.endpoint) as client:
        with pytest.raises(ClientError, match="Later"):
            client.change_visibility_batch(f"{server.endpoint}/000000000000/orders", [change], patience_s=60)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "endpoint",
    ["", "127.0.0.1:9324", "ftp://127.0.0.1", "http://", "http://a/?b=c", "http://a:port"],
    ids=["empty", "no-scheme", "other-scheme", "no-host", "query", "no-port"],
)
def test_something_else_than_an_endpoint_is_refused(endpoint: str) -> None:
    """The error shows what an endpoint looks like."""
    with pytest.raises(ValueError, match=r"must look like http://127\.0\.0\.1:9324"):
        HttpQueueClient(endpoint)


def test_pages_are_followed() -> None:
    """A listing goes on while the server says that there is more."""
    first = reply(200, b'{"QueueUrls": ["http://h/1/a", "http://h/1/b"], "NextToken": "b"}')
    second = reply(200, b'{"QueueUrls": ["http://h/1/c"]}')
    with ScriptedServer(first, second) as server, HttpQueueClient(server.endpoint) as client:
        assert client.list_queues("p") == ["a", "b", "c"]
    assert server.requests[0].endswith(b'{"QueueNamePrefix":"p","MaxResults":1000}')
    assert server.requests[1].endswith(b'{"QueueNamePrefix":"p","NextToken":"b","MaxResults":1000}')


def test_a_batch_keeps_the_order_of_its_entries() -> None:
    """The server may answer in any order; an entry that it forgot is an error of its own."""
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


NAKED = b'{"Messages": [{"MessageId": "a", "ReceiptHandle": "r", "MD5OfBody": "m", "Body": "b"}]}'


@pytest.mark.parametrize(
    ("call", "body"),
    [("show", b'{"Attributes": {"VisibilityTimeout": "30"}}'), ("receive", NAKED)],
    ids=["attributes", "message"],
)
def test_an_answer_that_lacks_something_is_unexpected(call: str, body: bytes) -> None:
    """What the server left out is named."""
    with (
        ScriptedServer(FOUND, reply(200, body)) as server,
        HttpQueueClient(server.endpoint) as client,
        pytest.raises(ClientError, match="lack a usable") as caught,
    ):
        getattr(client, call)("orders")
    assert caught.value.code == UNEXPECTED_REPLY


def test_an_unknown_setting_is_refused_before_anything_is_sent() -> None:
    """The error names the settings that there are."""
    with (
        ScriptedServer() as server,
        HttpQueueClient(server.endpoint) as client,
        pytest.raises(ValueError, match="'colour' is no setting of a queue; there are visibility_timeout_s"),
    ):
        client.create_queue("orders", {"colour": 1})
    assert server.requests == []
