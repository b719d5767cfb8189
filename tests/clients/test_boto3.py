"""A stock boto3 client does the whole job: every action, every typed exception, over a real socket."""

import base64
import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.clients.smq.raw import ask
from veilmq.testing import RunningServer


def _counts(sqs: Any, url: str) -> tuple[int, int, int]:
    names = [
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesDelayed",
    ]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    visible, in_flight, delayed = (int(found[name]) for name in names)
    return visible, in_flight, delayed


def _bodies(reply: Any) -> list[str]:
    return [message["Body"] for message in reply.get("Messages", [])]


def test_create_send_receive_hide_extend_release_delete(sqs: Any, url: str, server: RunningServer) -> None:
    sent = sqs.send_message(QueueUrl=url, MessageBody="hello")
    assert sent["MD5OfMessageBody"] == hashlib.md5(b"hello", usedforsecurity=False).hexdigest()
    (message,) = sqs.receive_message(QueueUrl=url, MessageSystemAttributeNames=["All"])["Messages"]
    assert (message["Body"], message["MessageId"]) == ("hello", sent["MessageId"])
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    assert _counts(sqs, url) == (0, 1, 0)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    server.advance(29_000)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=30)
    server.advance(29_999)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    (again,) = sqs.receive_message(QueueUrl=url, MessageSystemAttributeNames=["All"])["Messages"]
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"
    first_ms = message["Attributes"]["ApproximateFirstReceiveTimestamp"]
    assert again["Attributes"]["ApproximateFirstReceiveTimestamp"] == first_ms
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])  # superseded: succeeds, does nothing
    assert _counts(sqs, url) == (0, 1, 0)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=again["ReceiptHandle"])
    assert _counts(sqs, url) == (0, 0, 0)


def test_a_handle_in_the_alphabet_of_before_still_acts(sqs: Any, url: str, server: RunningServer) -> None:
    """Handles are hex digits; whoever holds one from before an upgrade has the same bytes in base64 for URLs."""
    sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": str(n), "MessageBody": str(n)} for n in range(4)])
    received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=4, VisibilityTimeout=30)["Messages"]
    old = [base64.urlsafe_b64encode(bytes.fromhex(message["ReceiptHandle"])).decode() for message in received]
    assert not any("=" in handle for handle in old)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=old[0], VisibilityTimeout=600)
    server.advance(29_000)
    assert sqs.delete_message_batch(
        QueueUrl=url, Entries=[{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate(old[1:3])]
    ).keys() >= {"Successful"}
    assert ask(server, "DELETE", f"/queues/jobs/messages?ReceiptHandle={old[3]}").status == 204
    server.advance(1_000)
    assert _counts(sqs, url) == (0, 1, 0)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=old[0])
    assert _counts(sqs, url) == (0, 0, 0)
    with pytest.raises(sqs.exceptions.ReceiptHandleIsInvalid):
        sqs.delete_message(QueueUrl=url, ReceiptHandle=old[0][:-1] + ("A" if old[0][-1] != "A" else "B"))


def test_the_seeds_example_hidden_until_second_25(sqs: Any, server: RunningServer) -> None:
    url = sqs.create_queue(QueueName="seed", Attributes={"VisibilityTimeout": "60"})["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="m")
    (message,) = sqs.receive_message(QueueUrl=url)["Messages"]
    server.advance(15_000)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=10)
    server.advance(9_999)
    assert _bodies(sqs.receive_message(QueueUrl=url)) == []
    server.advance(1)
    assert _bodies(sqs.receive_message(QueueUrl=url)) == ["m"]


def test_batches_succeed_and_fail_entry_by_entry(sqs: Any, url: str) -> None:
    entries = [{"Id": str(number), "MessageBody": f"m{number}"} for number in range(9)]
    reply = sqs.send_message_batch(QueueUrl=url, Entries=[*entries, {"Id": "bad", "MessageBody": "\x00"}])
    assert [each["Id"] for each in reply["Successful"]] == [str(number) for number in range(9)]
    assert [(each["Id"], each["SenderFault"]) for each in reply["Failed"]] == [("bad", True)]
    received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert len(received) == 9
    handles = [{"Id": str(place), "ReceiptHandle": each["ReceiptHandle"]} for place, each in enumerate(received)]
    changes = [{**handle, "VisibilityTimeout": 0} for handle in handles[:3]]
    changed = sqs.change_message_visibility_batch(
        QueueUrl=url, Entries=[*changes, {"Id": "x", "ReceiptHandle": "nonsense", "VisibilityTimeout": 1}]
    )
    assert [each["Id"] for each in changed["Successful"]] == ["0", "1", "2"]
    assert [each["Code"] for each in changed["Failed"]] == ["ReceiptHandleIsInvalid"]
    deleted = sqs.delete_message_batch(QueueUrl=url, Entries=handles[3:])
    assert len(deleted["Successful"]) == 6
    assert _counts(sqs, url) == (3, 0, 0)


def test_message_attributes_come_back_typed_and_filtered(sqs: Any, url: str) -> None:
    attributes = {
        "trace.id": {"DataType": "String", "StringValue": "abc"},
        "trace.span": {"DataType": "Number.int", "StringValue": "7"},
        "blob": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    sent = sqs.send_message(
        QueueUrl=url,
        MessageBody="b",
        MessageAttributes=attributes,
        MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}},
    )
    assert sent["MD5OfMessageAttributes"]
    assert sent["MD5OfMessageSystemAttributes"]
    (message,) = sqs.receive_message(
        QueueUrl=url, VisibilityTimeout=0, MessageAttributeNames=["All"], MessageSystemAttributeNames=["AWSTraceHeader"]
    )["Messages"]
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["Attributes"] == {"AWSTraceHeader": "Root=1"}
    (message,) = sqs.receive_message(QueueUrl=url, VisibilityTimeout=0, MessageAttributeNames=["trace.*"])["Messages"]
    assert set(message["MessageAttributes"]) == {"trace.id", "trace.span"}


def test_queues_are_listed_by_pages_described_changed_purged_and_deleted(sqs: Any) -> None:
    names = [f"page-{number}" for number in range(5)]
    urls = [sqs.create_queue(QueueName=name)["QueueUrl"] for name in names]
    pages = sqs.get_paginator("list_queues").paginate(
        QueueNamePrefix="page-", PaginationConfig={"PageSize": 2, "MaxItems": 10}
    )
    assert [url for page in pages for url in page.get("QueueUrls", [])] == urls
    assert sqs.get_queue_url(QueueName="page-3")["QueueUrl"] == urls[3]
    sqs.set_queue_attributes(QueueUrl=urls[0], Attributes={"VisibilityTimeout": "5", "DelaySeconds": "2"})
    found = sqs.get_queue_attributes(QueueUrl=urls[0], AttributeNames=["All"])["Attributes"]
    assert (found["VisibilityTimeout"], found["DelaySeconds"]) == ("5", "2")
    assert found["QueueArn"] == "arn:aws:sqs:us-east-1:000000000000:page-0"
    sqs.send_message(QueueUrl=urls[1], MessageBody="x")
    sqs.purge_queue(QueueUrl=urls[1])
    assert _counts(sqs, urls[1]) == (0, 0, 0)
    sqs.delete_queue(QueueUrl=urls[2])
    with pytest.raises(sqs.exceptions.QueueDoesNotExist):
        sqs.get_queue_url(QueueName="page-2")


def test_setting_attributes_leaves_leases_in_flight_alone(sqs: Any, url: str, server: RunningServer) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="m")
    sqs.receive_message(QueueUrl=url)
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "5"})
    server.advance(29_999)
    assert _bodies(sqs.receive_message(QueueUrl=url)) == []
    server.advance(1)
    assert _bodies(sqs.receive_message(QueueUrl=url)) == ["m"]
    server.advance(5_000)
    assert _bodies(sqs.receive_message(QueueUrl=url, VisibilityTimeout=100)) == ["m"]
    server.advance(100_000)
    assert _bodies(sqs.receive_message(QueueUrl=url)) == ["m"]  # the queue's own timeout again
    server.advance(5_000)
    assert _bodies(sqs.receive_message(QueueUrl=url)) == ["m"]


def test_delays_of_message_and_queue(sqs: Any, url: str, server: RunningServer) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=900)
    assert _counts(sqs, url) == (0, 0, 1)
    server.advance(899_999)
    assert _bodies(sqs.receive_message(QueueUrl=url)) == []
    server.advance(1)
    assert _bodies(sqs.receive_message(QueueUrl=url)) == ["later"]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "10"})
    sqs.send_message(QueueUrl=url, MessageBody="by the queue")
    sqs.send_message(QueueUrl=url, MessageBody="at once", DelaySeconds=0)
    assert _bodies(sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)) == ["at once"]


@pytest.mark.parametrize(
    ("exception", "call"),
    [
        pytest.param("QueueDoesNotExist", lambda sqs, url: sqs.receive_message(QueueUrl=url + "-none"), id="by URL"),
        pytest.param("QueueDoesNotExist", lambda sqs, url: sqs.get_queue_url(QueueName="none"), id="by name"),
        (
            "QueueNameExists",
            lambda sqs, url: sqs.create_queue(QueueName="jobs", Attributes={"VisibilityTimeout": "31"}),
        ),
        ("EmptyBatchRequest", lambda sqs, url: sqs.send_message_batch(QueueUrl=url, Entries=[])),
        (
            "TooManyEntriesInBatchRequest",
            lambda sqs, url: sqs.delete_message_batch(
                QueueUrl=url, Entries=[{"Id": str(number), "ReceiptHandle": "r"} for number in range(11)]
            ),
        ),
        (
            "BatchEntryIdsNotDistinct",
            lambda sqs, url: sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": "a", "MessageBody": "b"}] * 2),
        ),
        (
            "InvalidBatchEntryId",
            lambda sqs, url: sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": "a b", "MessageBody": "b"}]),
        ),
        (
            "BatchRequestTooLong",
            lambda sqs, url: sqs.send_message_batch(
                QueueUrl=url, Entries=[{"Id": name, "MessageBody": "x" * 600_000} for name in "ab"]
            ),
        ),
        ("InvalidMessageContents", lambda sqs, url: sqs.send_message(QueueUrl=url, MessageBody="\x01")),
        ("ReceiptHandleIsInvalid", lambda sqs, url: sqs.delete_message(QueueUrl=url, ReceiptHandle="nonsense")),
        ("InvalidAttributeName", lambda sqs, url: sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Nope"])),
        (
            "InvalidAttributeValue",
            lambda sqs, url: sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "43201"}),
        ),
    ],
)
def test_typed_exceptions(sqs: Any, url: str, exception: str, call: Any) -> None:
    with pytest.raises(getattr(sqs.exceptions, exception)) as caught:
        call(sqs, url)
    assert caught.value.response["Error"]["Message"]
    assert 400 <= caught.value.response["ResponseMetadata"]["HTTPStatusCode"] < 500
    assert caught.value.response["ResponseMetadata"]["RequestId"]


@pytest.mark.parametrize(
    "call",
    [
        lambda sqs, url: sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=11),
        lambda sqs, url: sqs.receive_message(QueueUrl=url, WaitTimeSeconds=21),
        lambda sqs, url: sqs.receive_message(QueueUrl=url, VisibilityTimeout=43_201),
        lambda sqs, url: sqs.send_message(QueueUrl=url, MessageBody="m", DelaySeconds=901),
        lambda sqs, url: sqs.send_message(QueueUrl=url, MessageBody="x" * 1_048_577),
        lambda sqs, url: sqs.create_queue(QueueName="no spaces"),
    ],
    ids=["count", "wait", "timeout", "delay", "size", "name"],
)
def test_invalid_values(sqs: Any, url: str, call: Any) -> None:
    with pytest.raises(ClientError) as caught:
        call(sqs, url)
    assert caught.value.response["Error"]["Code"] == "InvalidParameterValue"


def test_a_long_poll_gets_a_message_that_is_sent_while_it_waits(sqs: Any, url: str, server: RunningServer) -> None:
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(sqs.receive_message, QueueUrl=url, WaitTimeSeconds=20)
        while server.parked == 0:
            assert not waiting.done(), "the poll ended before anything was sent"
        assert server.parked == 1
        sqs.send_message(QueueUrl=url, MessageBody="now")
        assert _bodies(waiting.result(timeout=60)) == ["now"]


def test_a_body_of_exactly_one_mebibyte_and_every_legal_character(sqs: Any, url: str) -> None:
    body = "x" * 1_048_576
    sqs.send_message(QueueUrl=url, MessageBody=body)
    assert _bodies(sqs.receive_message(QueueUrl=url)) == [body]
    odd = '\t\n\r \ud7ff\ue000\ufffd\U00010000\U0010ffff é 漢 "\\/'
    sqs.send_message(QueueUrl=url, MessageBody=odd)
    assert _bodies(sqs.receive_message(QueueUrl=url)) == [odd]
