"""Faults of the server for tests: what a client sees, and what happens in the queue."""

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any
from urllib.parse import urlencode

import pytest
import urllib3
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

from tests.clients import boto
from veilmq.client import HttpQueueClient
from veilmq.client.api import Claims
from veilmq.client.messages import ClientError as OwnClientError
from veilmq.testing import ANY, RunningQueue, RunningServer, faults
from veilmq.testing.faults import Fault

PATIENCE_S = 60.0

REFUSALS = [
    pytest.param(faults.UNAVAILABLE, 503, "ServiceUnavailable", id="unavailable"),
    pytest.param(faults.FAILED, 500, "InternalFailure", id="failed"),
    pytest.param(faults.THROTTLED, 400, "RequestThrottled", id="throttled"),
    pytest.param(faults.THROTTLED_403, 403, "RequestThrottled", id="throttled-403"),
]
BREAKS = [
    pytest.param(faults.REQUEST_DROPPED, [], ConnectionClosedError, id="request-dropped"),
    pytest.param(faults.ANSWER_DROPPED, ["a"], ConnectionClosedError, id="answer-dropped"),
    pytest.param(faults.REQUEST_LOST, [], ReadTimeoutError, id="request-lost"),
    pytest.param(faults.ANSWER_LOST, ["a"], ReadTimeoutError, id="answer-lost"),
]


@pytest.fixture
def queue(veilmq_server: RunningServer) -> RunningQueue:
    return veilmq_server.queue("jobs")


def start(call: Callable[[], Any]) -> Future[Any]:
    """Run ``call`` in a thread."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(call)
    finally:
        pool.shutdown(wait=False)


def start_with_fault(server: RunningServer, action: str, fault: Fault, call: Callable[[], Any]) -> Future[Any]:
    """Run ``call`` in a thread, and return once it has met ``fault``."""
    server.faults.script(action, fault)
    running = start(call)
    server.wait_until(lambda: server.faults.happened)
    return running


@contextlib.contextmanager
def leaving(server: RunningServer, error: type[Exception] = ReadTimeoutError) -> Iterator[Any]:
    """Yield a client for one request, which fails with ``error``; it gives up soon if no reply is to come."""
    read_timeout_s = 0.2 if error is ReadTimeoutError else PATIENCE_S
    with closing(boto.client(server.endpoint, read_timeout=read_timeout_s)) as made, pytest.raises(error):
        yield made


@pytest.mark.parametrize(("fault", "status", "code"), REFUSALS)
def test_a_refusal_has_its_status_and_code_and_does_nothing(
    fault: Fault, status: int, code: str, veilmq_server: RunningServer, queue: RunningQueue, veilmq_boto3: Any
) -> None:
    veilmq_server.faults.script("SendMessage", fault)
    with pytest.raises(ClientError) as refused:
        veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody="a")
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    assert refused.value.response["Error"]["Code"] == code
    assert queue.bodies == []
    veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody="a")
    assert queue.bodies == ["a"]


@pytest.mark.parametrize(("fault", "done", "error"), BREAKS)
def test_a_broken_request_has_no_answer_and_may_be_done(
    fault: Fault,
    done: list[str],
    error: type[Exception],
    veilmq_server: RunningServer,
    queue: RunningQueue,
    veilmq_boto3: Any,
) -> None:
    veilmq_server.faults.script("SendMessage", fault)
    with leaving(veilmq_server, error) as sqs:
        sqs.send_message(QueueUrl=queue.url, MessageBody="a")
    veilmq_server.wait_until(lambda: veilmq_server.faults.happened)
    assert queue.bodies == done
    veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody="b")
    assert queue.bodies == [*done, "b"]


def test_boto3_retries_after_faults(veilmq_server: RunningServer, queue: RunningQueue) -> None:
    """A dropped answer duplicates the message."""
    sqs = boto.client(veilmq_server.endpoint, retries={"mode": "standard", "total_max_attempts": 3})
    veilmq_server.faults.script("SendMessage", faults.UNAVAILABLE)
    veilmq_server.faults.script("SendMessage", faults.ANSWER_DROPPED)
    sqs.send_message(QueueUrl=queue.url, MessageBody="a")
    assert queue.bodies == ["a", "a"]
    sqs.close()


def test_a_late_answer_is_done_at_once(veilmq_server: RunningServer, queue: RunningQueue, veilmq_boto3: Any) -> None:
    sending = start_with_fault(
        veilmq_server,
        "SendMessage",
        faults.late_answer(seconds=40),
        lambda: veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody="a"),
    )
    assert queue.bodies == ["a"]
    veilmq_server.advance(seconds=39.999)
    assert not sending.done()
    veilmq_server.advance(1)
    assert sending.result(PATIENCE_S)["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert [each.fault.name for each in veilmq_server.faults.happened] == ["late_answer(seconds=40)"]


def test_a_late_request_is_done_later(veilmq_server: RunningServer, queue: RunningQueue, veilmq_boto3: Any) -> None:
    sending = start_with_fault(
        veilmq_server,
        "SendMessage",
        faults.late_request(seconds=40),
        lambda: veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody="a"),
    )
    veilmq_server.advance(seconds=39.999)
    assert (queue.bodies, sending.done()) == ([], False)
    veilmq_server.advance(1)
    assert queue.bodies == ["a"]
    assert queue.messages()[0].sent_at_ms == veilmq_server.clock.now_ms()
    sending.result(PATIENCE_S)


def test_a_late_receive_waits_for_messages(
    veilmq_server: RunningServer, queue: RunningQueue, veilmq_boto3: Any
) -> None:
    receiving = start_with_fault(
        veilmq_server,
        "ReceiveMessage",
        faults.late_request(seconds=5),
        lambda: veilmq_boto3.receive_message(QueueUrl=queue.url, WaitTimeSeconds=20),
    )
    veilmq_server.advance(seconds=24)
    assert veilmq_server.parked == 1
    veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody="a")
    assert receiving.result(PATIENCE_S)["Messages"][0]["Body"] == "a"


def test_a_late_answer_may_have_parts(veilmq_server: RunningServer, queue: RunningQueue, veilmq_boto3: Any) -> None:
    veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody="a")
    with Claims(veilmq_server.endpoint, queue.url) as claims:
        epoch = claims.open("s").epoch
        claims.claim("s", epoch=epoch, number=1, messages_max=1)

        def read() -> list[str]:
            return [row["body"] for batch in claims.read("s", number=1) for row in batch.to_pylist()]

        assert read() == ["a"]  # loads pyarrow, which may take longer than the client's timeout
        reading = start_with_fault(veilmq_server, "claims.read", faults.late_answer(seconds=1), read)
        assert not reading.done()
        veilmq_server.advance(seconds=1)
        assert reading.result(PATIENCE_S) == ["a"]


def test_a_late_answer_to_a_closed_connection_is_dropped(veilmq_server: RunningServer, queue: RunningQueue) -> None:
    veilmq_server.faults.script("SendMessage", faults.late_answer(seconds=9))
    host, port = veilmq_server.endpoint.removeprefix("http://").split(":")
    body = json.dumps({"QueueUrl": queue.url, "MessageBody": "a"}).encode()
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(
            b"POST / HTTP/1.1\r\nHost: h\r\nX-Amz-Target: AmazonSQS.SendMessage\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        veilmq_server.wait_until(lambda: veilmq_server.faults.happened)
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    veilmq_server.advance(seconds=9)
    assert queue.bodies == ["a"]


@pytest.mark.parametrize("fault", [faults.late_answer(seconds=2), faults.late_request(seconds=2)], ids=str)
def test_a_refusal_can_be_late(
    fault: Fault, veilmq_server: RunningServer, queue: RunningQueue, veilmq_boto3: Any
) -> None:
    sending = start_with_fault(
        veilmq_server, "SendMessage", fault, lambda: veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody="")
    )
    veilmq_server.advance(seconds=2)
    refused = sending.exception(PATIENCE_S)
    assert isinstance(refused, ClientError)
    assert refused.response["Error"]["Code"] == "MissingParameter"


def test_a_late_request_outlives_its_client(veilmq_server: RunningServer, queue: RunningQueue) -> None:
    veilmq_server.faults.script("SendMessage", faults.late_request(seconds=9))
    with leaving(veilmq_server) as sqs:
        sqs.send_message(QueueUrl=queue.url, MessageBody="a")
    veilmq_server.wait_until(lambda: veilmq_server.faults.happened)
    queue.send("b")
    veilmq_server.advance(seconds=8.999)
    assert queue.bodies == ["b"]
    veilmq_server.advance(1)
    assert queue.bodies == ["b", "a"]


@pytest.mark.parametrize(
    "fault",
    [faults.REQUEST_LOST, faults.ANSWER_LOST, faults.late_answer(seconds=9), faults.late_request(seconds=9)],
    ids=str,
)
def test_a_stop_closes_connections_that_wait_for_a_fault(fault: Fault) -> None:
    with RunningServer() as server:
        url = server.queue("jobs").url
        sqs = boto.client(server.endpoint)
        sending = start_with_fault(
            server, "SendMessage", fault, lambda: sqs.send_message(QueueUrl=url, MessageBody="a")
        )
        server.stop()
        assert isinstance(sending.exception(PATIENCE_S), ConnectionClosedError)
        sqs.close()
    with RunningServer(clock=server.clock) as later:
        later.advance(seconds=9)
        assert later.queue("jobs").bodies == []


def test_a_stop_closes_a_poll_with_a_late_answer() -> None:
    with RunningServer() as server:
        url = server.queue("jobs").url
        sqs = boto.client(server.endpoint)
        server.faults.script("ReceiveMessage", faults.late_answer(seconds=9))
        receiving = start(lambda: sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20))
        server.wait_parked()
        server.stop()
        assert isinstance(receiving.exception(PATIENCE_S), ConnectionClosedError)
        sqs.close()


def test_a_poll_without_its_client_takes_no_message(veilmq_server: RunningServer, queue: RunningQueue) -> None:
    veilmq_server.faults.script("ReceiveMessage", faults.ANSWER_LOST)
    with leaving(veilmq_server) as sqs:
        sqs.receive_message(QueueUrl=queue.url, WaitTimeSeconds=20)
    veilmq_server.wait_until(lambda: not veilmq_server.parked)
    queue.send("a")
    assert [message.receive_count for message in queue.visible] == [0]


def send(sqs: Any, queue: RunningQueue, *bodies: str) -> Any:
    return sqs.send_message_batch(QueueUrl=queue.url, Entries=[{"Id": body, "MessageBody": body} for body in bodies])


def ids(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["Id"] for entry in entries]


@pytest.mark.parametrize("failed", [[0, 2], [0, 1, 2]], ids=["some", "all"])
def test_failed_entries_are_not_sent(
    veilmq_server: RunningServer, queue: RunningQueue, veilmq_boto3: Any, failed: list[int]
) -> None:
    veilmq_server.faults.script("SendMessageBatch", faults.failed_entries(*failed))
    answer = send(veilmq_boto3, queue, "a", "b", "c")
    assert ids(answer["Failed"]) == ["abc"[each] for each in failed]
    assert {entry["Code"] for entry in answer["Failed"]} == {"InternalError"}
    assert ids(answer.get("Successful", [])) == queue.bodies == [*"b"][: 3 - len(failed)]


def test_entries_of_the_server_and_of_the_fault_fail(
    queue: RunningQueue, veilmq_boto3: Any, veilmq_server: Any
) -> None:
    veilmq_server.faults.script("SendMessageBatch", faults.failed_entries(0))
    entries = [{"Id": "a", "MessageBody": "a"}, {"Id": "b", "MessageBody": "\0"}]
    answer = veilmq_boto3.send_message_batch(QueueUrl=queue.url, Entries=entries)
    assert sorted(ids(answer["Failed"])) == ["a", "b"]


def test_an_invalid_batch_stays_refused(veilmq_server: RunningServer, queue: RunningQueue, veilmq_boto3: Any) -> None:
    veilmq_server.faults.script("SendMessageBatch", faults.failed_entries(0))
    with pytest.raises(ClientError, match="does not exist"):
        veilmq_boto3.send_message_batch(
            QueueUrl=queue.url + "x", Entries=[{"Id": name, "MessageBody": name} for name in "ab"]
        )


def test_an_ignored_delete_has_no_effect(veilmq_server: RunningServer, queue: RunningQueue, veilmq_boto3: Any) -> None:
    send(veilmq_boto3, queue, "a")
    (held,) = veilmq_boto3.receive_message(QueueUrl=queue.url)["Messages"]
    veilmq_server.faults.script("DeleteMessage", faults.IGNORED)
    veilmq_boto3.delete_message(QueueUrl=queue.url, ReceiptHandle=held["ReceiptHandle"])
    veilmq_server.faults.script("DeleteMessageBatch", faults.IGNORED)
    entries = [{"Id": "x", "ReceiptHandle": held["ReceiptHandle"]}]
    answer = veilmq_boto3.delete_message_batch(QueueUrl=queue.url, Entries=entries)
    assert (ids(answer["Successful"]), [message.body for message in queue.in_flight]) == (["x"], ["a"])
    veilmq_server.advance(seconds=30)
    assert [message.body for message in queue.visible] == ["a"]


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        pytest.param(faults.failed_entries(0), "batch actions", id="no-batch"),
        pytest.param(faults.IGNORED, "deletes and changes", id="has-a-result"),
    ],
)
def test_a_fault_that_does_not_suit_the_action_is_an_error(
    fault: faults.Fault, text: str, veilmq_server: RunningServer, queue: RunningQueue, veilmq_boto3: Any
) -> None:
    """The client gets the error, so that the test fails there."""
    veilmq_server.faults.script("SendMessage", fault)
    with pytest.raises(ClientError) as refused:
        veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody="a")
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 501
    assert queue.bodies == []


def test_a_fault_that_does_not_suit_the_protocol_is_an_error(veilmq_server: RunningServer, queue: RunningQueue) -> None:
    veilmq_server.faults.script("SendMessageBatch", faults.failed_entries(0))
    form = urlencode({"Action": "SendMessageBatch", "QueueUrl": queue.url})
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    with urllib3.PoolManager() as pool:
        answer = pool.request("POST", queue.url, body=form, headers=kind, retries=False)
    assert (answer.status, b"over JSON" in answer.data) == (501, True)


def outcomes(sqs: Any, count: int) -> list[int]:
    found = []
    for _ in range(count):
        try:
            found.append(sqs.list_queues()["ResponseMetadata"]["HTTPStatusCode"])
        except ClientError as refused:
            found.append(refused.response["ResponseMetadata"]["HTTPStatusCode"])
    return found


def test_faults_happen_in_order_and_as_often_as_scripted(veilmq_server: RunningServer, veilmq_boto3: Any) -> None:
    veilmq_server.faults.script("ListQueues", faults.UNAVAILABLE, times=2)
    veilmq_server.faults.script("SendMessage", faults.FAILED)
    veilmq_server.faults.script(ANY, faults.THROTTLED_403)
    assert veilmq_server.faults.left == [
        "ListQueues: UNAVAILABLE × 2", "SendMessage: FAILED × 1", "*: THROTTLED_403 × 1"
    ]  # fmt: skip
    assert outcomes(veilmq_boto3, 4) == [503, 503, 403, 200]
    assert veilmq_server.faults.left == ["SendMessage: FAILED × 1"]
    assert veilmq_server.faults.happened == [
        ("ListQueues", faults.UNAVAILABLE), ("ListQueues", faults.UNAVAILABLE), ("ListQueues", faults.THROTTLED_403)
    ]  # fmt: skip


def test_a_fault_can_last_until_it_is_cleared(veilmq_server: RunningServer, veilmq_boto3: Any) -> None:
    veilmq_server.faults.script("ListQueues", faults.UNAVAILABLE, times=None)
    veilmq_server.faults.script("SendMessage", faults.FAILED)
    assert outcomes(veilmq_boto3, 3) == [503, 503, 503]
    assert veilmq_server.faults.left[0] == "ListQueues: UNAVAILABLE × always"
    veilmq_server.faults.clear("ListQueues")
    assert outcomes(veilmq_boto3, 1) == [200]
    assert veilmq_server.faults.left == ["SendMessage: FAILED × 1"]
    veilmq_server.faults.clear()
    assert veilmq_server.faults.left == []


def test_invalid_faults_are_refused(veilmq_server: RunningServer) -> None:
    with pytest.raises(TypeError, match=r"<function late_answer at .* is not a fault; call late_request, late_answer"):
        veilmq_server.faults.script("SendMessage", faults.late_answer)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"no action is called 'SendMesage'; there are .*SendMessage,"):
        veilmq_server.faults.script("SendMesage", faults.FAILED)
    with pytest.raises(ValueError, match="at least 1"):
        veilmq_server.faults.script("SendMessage", faults.FAILED, times=0)


def test_a_refusal_has_the_format_of_the_protocol(veilmq_server: RunningServer) -> None:
    form = urlencode({"Action": "ListQueues", "Version": "2012-11-05"})
    veilmq_server.faults.script("ListQueues", faults.UNAVAILABLE)
    with urllib3.PoolManager() as pool:
        answer = pool.request(
            "POST", veilmq_server.endpoint, body=form, headers={"Content-Type": "application/x-www-form-urlencoded"}
        )
    assert (answer.status, b"<Code>ServiceUnavailable</Code>" in answer.data) == (503, True)

    with HttpQueueClient(veilmq_server.endpoint) as own, Claims(veilmq_server.endpoint, "jobs") as claims:
        own.create_queue("jobs")
        veilmq_server.faults.script(ANY, faults.THROTTLED)
        with pytest.raises(OwnClientError, match="throttling"):
            own.queue_url("jobs")
        veilmq_server.queue("jobs")
        veilmq_server.faults.script("claims.list", faults.THROTTLED)
        with pytest.raises(OwnClientError, match="throttling"):
            claims.sources()


def test_unknown_requests_meet_no_faults(veilmq_server: RunningServer) -> None:
    veilmq_server.faults.script(ANY, faults.REQUEST_DROPPED)
    with urllib3.PoolManager() as pool:
        assert pool.request("POST", veilmq_server.endpoint, body=b"").status == 404
        unknown = {"X-Amz-Target": "AmazonSQS.Nonsense"}
        assert pool.request("POST", veilmq_server.endpoint, body=b"{}", headers=unknown).status == 400
    assert len(veilmq_server.faults.left) == 1
