"""Answers that say 200 and are not the whole truth."""

from typing import Any
from urllib.parse import urlencode

import pytest
import urllib3
from botocore.exceptions import ClientError

from veilmq.testing import RunningQueue, RunningServer, faults


@pytest.fixture
def queue(veilmq_server: RunningServer) -> RunningQueue:
    """A queue without messages."""
    return veilmq_server.queue("jobs")


def send(sqs: Any, queue: RunningQueue, *bodies: str) -> Any:
    """Send a batch; ids are the bodies."""
    return sqs.send_message_batch(QueueUrl=queue.url, Entries=[{"Id": body, "MessageBody": body} for body in bodies])


def ids(entries: list[dict[str, Any]]) -> list[str]:
    """Return the ids of entries of an answer."""
    return [entry["Id"] for entry in entries]


def test_entries_that_fail(veilmq_server: RunningServer, queue: RunningQueue, veilmq_boto3: Any) -> None:
    """They are answered as failed and not carried out; the others are."""
    veilmq_server.faults.script("SendMessageBatch", faults.failed_entries(0, 2))
    answer = send(veilmq_boto3, queue, "a", "b", "c")
    assert (ids(answer["Successful"]), ids(answer["Failed"])) == (["b"], ["a", "c"])
    assert [entry["Code"] for entry in answer["Failed"]] == ["InternalError"] * 2
    assert queue.bodies == ["b"]


def test_all_entries_that_fail(veilmq_server: RunningServer, queue: RunningQueue, veilmq_boto3: Any) -> None:
    """Then nothing is carried out."""
    veilmq_server.faults.script("SendMessageBatch", faults.failed_entries(0, 1))
    assert ids(send(veilmq_boto3, queue, "a", "b")["Failed"]) == ["a", "b"]
    assert queue.bodies == []


def test_a_batch_that_the_server_refuses(veilmq_server: RunningServer, queue: RunningQueue, veilmq_boto3: Any) -> None:
    """Its error goes through as it is."""
    veilmq_server.faults.script("SendMessageBatch", faults.failed_entries(0))
    with pytest.raises(ClientError, match="does not exist"):
        veilmq_boto3.send_message_batch(
            QueueUrl=queue.url + "x", Entries=[{"Id": name, "MessageBody": name} for name in "ab"]
        )


def test_a_delete_that_did_not_happen(veilmq_server: RunningServer, queue: RunningQueue, veilmq_boto3: Any) -> None:
    """It answers 200, and the message comes back."""
    send(veilmq_boto3, queue, "a")
    (held,) = veilmq_boto3.receive_message(QueueUrl=queue.url)["Messages"]
    veilmq_server.faults.script("DeleteMessage", faults.IGNORED)
    veilmq_boto3.delete_message(QueueUrl=queue.url, ReceiptHandle=held["ReceiptHandle"])
    assert [message.body for message in queue.in_flight] == ["a"]
    veilmq_server.advance(seconds=30)
    assert [message.body for message in queue.visible] == ["a"]


def test_a_batch_that_did_not_happen(veilmq_server: RunningServer, queue: RunningQueue, veilmq_boto3: Any) -> None:
    """Each of its entries is answered as done."""
    send(veilmq_boto3, queue, "a")
    (held,) = veilmq_boto3.receive_message(QueueUrl=queue.url)["Messages"]
    veilmq_server.faults.script("DeleteMessageBatch", faults.IGNORED)
    entries = [{"Id": "x", "ReceiptHandle": held["ReceiptHandle"]}]
    answer = veilmq_boto3.delete_message_batch(QueueUrl=queue.url, Entries=entries)
    assert (ids(answer["Successful"]), queue.counts.in_flight) == (["x"], 1)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        pytest.param(faults.failed_entries(0), "batch actions", id="no-batch"),
        pytest.param(faults.IGNORED, "deletes and changes", id="has-a-result"),
    ],
)
def test_a_fault_that_does_not_fit(
    fault: faults.Fault, text: str, veilmq_server: RunningServer, queue: RunningQueue, veilmq_boto3: Any
) -> None:
    """The client is told, so that the test fails where its mistake is; nothing is carried out."""
    veilmq_server.faults.script("SendMessage", fault)
    with pytest.raises(ClientError) as refused:
        veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody="a")
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 501
    assert queue.bodies == []


def test_a_protocol_that_does_not_fit(veilmq_server: RunningServer, queue: RunningQueue) -> None:
    """The Query protocol has other words for batches."""
    veilmq_server.faults.script("SendMessageBatch", faults.failed_entries(0))
    form = urlencode({"Action": "SendMessageBatch", "QueueUrl": queue.url})
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    with urllib3.PoolManager() as pool:
        answer = pool.request("POST", queue.url, body=form, headers=kind, retries=False)
    assert (answer.status, b"over JSON" in answer.data) == (501, True)
