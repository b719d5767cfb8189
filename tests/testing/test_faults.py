"""Each fault, seen by a stock boto3 client and from inside the queue: what the client hears, and what was done."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

from tests.clients import boto
from veilmq.client.api import Claims
from veilmq.testing import RunningQueue, RunningServer, faults
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
    """A queue without messages."""
    return veilmq_server.queue("jobs")


class Calling:
    """A call in a thread of its own; `answer` waits for what it returned or raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._answer: list[Any] = []
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer.append(self._call())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self._answer.append(error)

    @property
    def answered(self) -> bool:
        return bool(self._answer)

    def answer(self) -> Any:
        self._thread.join(PATIENCE_S)
        return self._answer[0]


def impatient(server: RunningServer, *, read_timeout_s: float = 0.2) -> Any:
    """Return a client that tries nothing twice and gives up after a moment."""
    return boto.client(server.endpoint, read_timeout=read_timeout_s)


@pytest.mark.parametrize(("fault", "status", "code"), REFUSALS)
def test_refusals(
    fault: Fault, status: int, code: str, veilmq_server: RunningServer, queue: RunningQueue, veilmq_boto3: Any
) -> None:
    """They have their status and code, and nothing was done."""
    veilmq_server.faults.script("SendMessage", fault)
    with pytest.raises(ClientError) as refused:
        veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody="a")
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    assert refused.value.response["Error"]["Code"] == code
    assert queue.bodies == []
    veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody="a")
    assert queue.bodies == ["a"]


@pytest.mark.parametrize(("fault", "done", "seen"), BREAKS)
def test_breaks(
    fault: Fault, done: list[str], seen: type[Exception], veilmq_server: RunningServer, queue: RunningQueue
) -> None:
    """There is no answer; whether it was done, only the queue knows. The next request is as any other."""
    veilmq_server.faults.script("SendMessage", fault)
    sqs = impatient(veilmq_server)
    with pytest.raises(seen):
        sqs.send_message(QueueUrl=queue.url, MessageBody="a")
    assert queue.bodies == done
    sqs.send_message(QueueUrl=queue.url, MessageBody="b")
    assert queue.bodies == [*done, "b"]
    sqs.close()


def test_a_stock_client_tries_again(veilmq_server: RunningServer, queue: RunningQueue) -> None:
    """boto3's own retries get over two failures; a dropped answer doubles what it sends."""
    sqs = boto.client(veilmq_server.endpoint, retries={"mode": "standard", "total_max_attempts": 3})
    veilmq_server.faults.script("SendMessage", faults.UNAVAILABLE)
    veilmq_server.faults.script("SendMessage", faults.ANSWER_DROPPED)
    sqs.send_message(QueueUrl=queue.url, MessageBody="a")
    assert queue.bodies == ["a", "a"]
    sqs.close()


def test_a_late_answer(veilmq_server: RunningServer, queue: RunningQueue, veilmq_boto3: Any) -> None:
    """It is done at once; the answer comes when the virtual clock says so, not sooner."""
    veilmq_server.faults.script("SendMessage", faults.late_answer(seconds=40))
    sending = Calling(lambda: veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody="a"))
    veilmq_server.wait_until(lambda: veilmq_server.faults.happened)
    assert queue.bodies == ["a"]
    veilmq_server.advance(seconds=39.999)
    assert not sending.answered
    veilmq_server.advance(1)
    assert sending.answer()["ResponseMetadata"]["HTTPStatusCode"] == 200


def test_a_late_request(veilmq_server: RunningServer, queue: RunningQueue, veilmq_boto3: Any) -> None:
    """Nothing is done before its time; then it is done, and answered."""
    veilmq_server.faults.script("SendMessage", faults.late_request(seconds=40))
    sending = Calling(lambda: veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody="a"))
    veilmq_server.wait_until(lambda: veilmq_server.faults.happened)
    veilmq_server.advance(seconds=39.999)
    assert (queue.bodies, sending.answered) == ([], False)
    veilmq_server.advance(1)
    assert queue.bodies == ["a"]
    assert queue.messages()[0].sent_at_ms == veilmq_server.clock.now_ms()
    sending.answer()


def test_a_late_receive_waits_for_messages_all_the_same(
    veilmq_server: RunningServer, queue: RunningQueue, veilmq_boto3: Any
) -> None:
    """A long poll that begins late ends late, with what is sent meanwhile."""
    veilmq_server.faults.script("ReceiveMessage", faults.late_request(seconds=5))
    receiving = Calling(lambda: veilmq_boto3.receive_message(QueueUrl=queue.url, WaitTimeSeconds=20))
    veilmq_server.wait_until(lambda: veilmq_server.faults.happened)
    veilmq_server.advance(seconds=24)
    assert veilmq_server.parked == 1
    veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody="a")
    assert receiving.answer()["Messages"][0]["Body"] == "a"


def test_a_late_answer_in_many_parts(veilmq_server: RunningServer, queue: RunningQueue, veilmq_boto3: Any) -> None:
    """What waits for its turn on the connection gets it."""
    veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody="a")
    with Claims(veilmq_server.endpoint, queue.url) as claims:
        epoch = claims.open("s").epoch
        claims.claim("s", epoch=epoch, number=1, messages_max=1)
        veilmq_server.faults.script("claims.read", faults.late_answer(seconds=1))
        reading = Calling(lambda: [row["body"] for batch in claims.read("s", number=1) for row in batch.to_pylist()])
        veilmq_server.wait_until(lambda: veilmq_server.faults.happened)
        assert not reading.answered
        veilmq_server.advance(seconds=1)
        assert reading.answer() == ["a"]


def test_who_gives_up_hears_nothing_later(veilmq_server: RunningServer, queue: RunningQueue) -> None:
    """The client has gone when its answer would be due."""
    veilmq_server.faults.script("SendMessage", faults.late_answer(seconds=9))
    host, port = veilmq_server.endpoint.removeprefix("http://").split(":")
    body = json.dumps({"QueueUrl": queue.url, "MessageBody": "a"}).encode()
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as gone:
        gone.sendall(
            b"POST / HTTP/1.1\r\nHost: h\r\nX-Amz-Target: AmazonSQS.SendMessage\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        veilmq_server.wait_until(lambda: veilmq_server.faults.happened)
        gone.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            assert gone.recv(1) == b""
    veilmq_server.advance(seconds=9)
    assert queue.bodies == ["a"]


@pytest.mark.parametrize("fault", [faults.late_answer(seconds=2), faults.late_request(seconds=2)], ids=str)
def test_a_late_refusal(fault: Fault, veilmq_server: RunningServer, queue: RunningQueue, veilmq_boto3: Any) -> None:
    """What the server refuses at once is late like any answer."""
    veilmq_server.faults.script("SendMessage", fault)
    sending = Calling(lambda: veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody=""))
    veilmq_server.wait_until(lambda: veilmq_server.faults.happened)
    veilmq_server.advance(seconds=2)
    assert sending.answer().response["Error"]["Code"] == "MissingParameter"


def test_what_was_sent_late_arrives_after_its_client_gave_up(veilmq_server: RunningServer, queue: RunningQueue) -> None:
    """As a packet that was long on its way; not before its time."""
    sqs = impatient(veilmq_server)
    veilmq_server.faults.script("SendMessage", faults.late_request(seconds=9))
    with pytest.raises(ReadTimeoutError):
        sqs.send_message(QueueUrl=queue.url, MessageBody="a")
    sqs.send_message(QueueUrl=queue.url, MessageBody="b")
    veilmq_server.advance(seconds=8.999)
    assert queue.bodies == ["b"]
    veilmq_server.advance(1)
    assert queue.bodies == ["b", "a"]
    sqs.close()


@pytest.mark.parametrize(
    "fault",
    [faults.REQUEST_LOST, faults.ANSWER_LOST, faults.late_answer(seconds=9), faults.late_request(seconds=9)],
    ids=str,
)
def test_the_end_of_the_server_lets_nobody_wait(fault: Fault) -> None:
    """Whoever still waits is hung up on, and the server stops at once."""
    with RunningServer() as server:
        url = server.queue("jobs").url
        sqs = impatient(server, read_timeout_s=PATIENCE_S)
        server.faults.script("SendMessage", fault)
        sending = Calling(lambda: sqs.send_message(QueueUrl=url, MessageBody="a"))
        server.wait_until(lambda: server.faults.happened)
        server.stop()
        assert isinstance(sending.answer(), ConnectionClosedError)
        sqs.close()


def test_the_end_of_the_server_ends_a_poll_whose_answer_would_be_late() -> None:
    """It is hung up on, and waits no more."""
    with RunningServer() as server:
        url = server.queue("jobs").url
        sqs = impatient(server, read_timeout_s=PATIENCE_S)
        server.faults.script("ReceiveMessage", faults.late_answer(seconds=9))
        receiving = Calling(lambda: sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20))
        server.wait_parked()
        server.stop()
        assert isinstance(receiving.answer(), ConnectionClosedError)
        sqs.close()


def test_a_poll_whose_client_gave_up_takes_nothing(veilmq_server: RunningServer, queue: RunningQueue) -> None:
    """Also where its answer would not have come."""
    sqs = impatient(veilmq_server)
    veilmq_server.faults.script("ReceiveMessage", faults.ANSWER_LOST)
    with pytest.raises(ReadTimeoutError):
        sqs.receive_message(QueueUrl=queue.url, WaitTimeSeconds=20)
    veilmq_server.wait_until(lambda: not veilmq_server.parked)
    sqs.send_message(QueueUrl=queue.url, MessageBody="a")
    assert [message.receive_count for message in queue.visible] == [0]
    sqs.close()
