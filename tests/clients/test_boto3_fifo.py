"""A stock boto3 client with a FIFO queue, and with what only such queues answer."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from veilmq.testing import RunningServer


@pytest.fixture
def fifo(sqs: Any) -> str:
    """The URL of a FIFO queue that takes equal bodies for one message."""
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    return str(sqs.create_queue(QueueName="jobs.fifo", Attributes=attributes)["QueueUrl"])


def bodies(reply: Any) -> list[str]:
    """Return the bodies of a receive, in order."""
    return [message["Body"] for message in reply.get("Messages", [])]


def test_order_within_groups_and_a_group_that_waits(sqs: Any, fifo: str) -> None:
    """As many of a group as there are, none while one is in flight, the others meanwhile."""
    numbers = []
    for body in ("a1", "a2", "b1", "a3"):
        sent = sqs.send_message(QueueUrl=fifo, MessageBody=body, MessageGroupId=body[0])
        numbers.append(sent["SequenceNumber"])
    assert numbers == sorted(numbers)
    assert {len(number) for number in numbers} == {20}
    first = sqs.receive_message(QueueUrl=fifo, MaxNumberOfMessages=2, MessageSystemAttributeNames=["All"])
    assert bodies(first) == ["a1", "a2"]
    attributes = first["Messages"][0]["Attributes"]
    assert (attributes["MessageGroupId"], attributes["SequenceNumber"]) == ("a", numbers[0])
    assert attributes["MessageDeduplicationId"] == hashlib.sha256(b"a1").hexdigest()
    assert bodies(sqs.receive_message(QueueUrl=fifo, MaxNumberOfMessages=10)) == ["b1"]
    for message in first["Messages"]:
        sqs.delete_message(QueueUrl=fifo, ReceiptHandle=message["ReceiptHandle"])
    assert bodies(sqs.receive_message(QueueUrl=fifo, MaxNumberOfMessages=10)) == ["a3"]


def test_a_duplicate_is_answered_as_the_first_one_was(sqs: Any, fifo: str, server: RunningServer) -> None:
    """For five minutes, also when the first one is deleted."""
    message = {"QueueUrl": fifo, "MessageBody": "m", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    sent = sqs.send_message(**message)
    (received,) = sqs.receive_message(QueueUrl=fifo)["Messages"]
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=received["ReceiptHandle"])
    server.advance(299_999)
    again = sqs.send_message(**message | {"MessageBody": "other"})
    assert (again["MessageId"], again["SequenceNumber"]) == (sent["MessageId"], sent["SequenceNumber"])
    assert bodies(sqs.receive_message(QueueUrl=fifo)) == []
    server.advance(1)
    new = sqs.send_message(**message)
    assert new["MessageId"] != sent["MessageId"]
    assert new["SequenceNumber"] > sent["SequenceNumber"]
    assert bodies(sqs.receive_message(QueueUrl=fifo)) == ["m"]


def test_a_lost_answer_is_asked_for_again(sqs: Any, fifo: str) -> None:
    """With the same attempt id: the same messages and the same handles."""
    sqs.send_message(QueueUrl=fifo, MessageBody="m", MessageGroupId="g")
    asked = {"QueueUrl": fifo, "ReceiveRequestAttemptId": "one", "AttributeNames": ["ApproximateReceiveCount"]}
    first, again = sqs.receive_message(**asked), sqs.receive_message(**asked)
    assert again["Messages"] == first["Messages"]
    assert bodies(sqs.receive_message(**asked | {"ReceiveRequestAttemptId": "two"})) == []


@pytest.mark.parametrize("receive_again", [False, True], ids=["expired", "superseded"])
def test_a_receipt_whose_time_is_over_does_nothing(
    sqs: Any, fifo: str, server: RunningServer, *, receive_again: bool
) -> None:
    """It is refused, alone and in batches; the message stays."""
    sqs.send_message(QueueUrl=fifo, MessageBody="m", MessageGroupId="g")
    (received,) = sqs.receive_message(QueueUrl=fifo)["Messages"]
    server.advance(30_000)
    if receive_again:
        assert bodies(sqs.receive_message(QueueUrl=fifo, VisibilityTimeout=0)) == ["m"]
    of = {"QueueUrl": fifo, "ReceiptHandle": received["ReceiptHandle"]}
    entry = {"Id": "a", "ReceiptHandle": received["ReceiptHandle"]}
    calls: list[Callable[[], object]] = [
        lambda: sqs.delete_message(**of),
        lambda: sqs.change_message_visibility(**of, VisibilityTimeout=9),
    ]
    for call in calls:
        with pytest.raises(ClientError, match="Reason: The receipt handle has expired") as caught:
            call()
        assert caught.value.response["Error"]["Code"] == "InvalidParameterValue"
    deleted = sqs.delete_message_batch(QueueUrl=fifo, Entries=[entry])
    changed = sqs.change_message_visibility_batch(QueueUrl=fifo, Entries=[entry | {"VisibilityTimeout": 9}])
    assert [each["Code"] for reply in (deleted, changed) for each in reply["Failed"]] == ["InvalidParameterValue"] * 2
    assert bodies(sqs.receive_message(QueueUrl=fifo)) == ["m"]


def test_an_entry_with_a_delay_fails_alone(sqs: Any) -> None:
    """The others are stored; one without a group or an id fails the whole batch."""
    url = sqs.create_queue(QueueName="strict.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    whole = {"MessageBody": "m", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    for lacking in ("MessageGroupId", "MessageDeduplicationId"):
        entry = {name: value for name, value in whole.items() if name != lacking}
        with pytest.raises(ClientError, match=lacking):
            sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": "good", **whole}, {"Id": "bad", **entry}])
    entries = [
        {"Id": "good", **whole},
        {"Id": "delay", **whole, "DelaySeconds": 1},
        {"Id": "zero", **whole, "MessageDeduplicationId": "e", "DelaySeconds": 0},
    ]
    reply = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert [each["Id"] for each in reply["Successful"]] == ["good", "zero"]
    assert {each["Id"]: each["Code"] for each in reply["Failed"]} == {"delay": "InvalidParameterValue"}


def test_the_id_of_a_dead_letter_is_its_deduplication_id(sqs: Any, fifo: str) -> None:
    """Also where its sender gave none; its group and its id stay."""
    dead = sqs.create_queue(QueueName="dead.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"RedrivePolicy": policy})
    sent = [
        sqs.send_message(QueueUrl=fifo, MessageBody="a", MessageGroupId="g", MessageDeduplicationId="d"),
        sqs.send_message(QueueUrl=fifo, MessageBody="b", MessageGroupId="g"),
    ]
    asked = {"MaxNumberOfMessages": 10, "VisibilityTimeout": 0, "MessageSystemAttributeNames": ["All"]}
    alive = sqs.receive_message(QueueUrl=fifo, **asked)["Messages"]
    given = [message["Attributes"]["MessageDeduplicationId"] for message in alive]
    assert given == ["d", hashlib.sha256(b"b").hexdigest()]
    assert bodies(sqs.receive_message(QueueUrl=fifo, **asked)) == []
    letters = sqs.receive_message(QueueUrl=dead, **asked)["Messages"]
    assert [message["MessageId"] for message in letters] == [each["MessageId"] for each in sent]
    for message in letters:
        assert message["Attributes"]["MessageDeduplicationId"] == message["MessageId"]
        assert message["Attributes"]["MessageGroupId"] == "g"


def test_a_message_of_a_group_in_a_standard_queue(sqs: Any, url: str) -> None:
    """Keeps it, and has no place in an order; a deduplication id is refused."""
    sent = sqs.send_message(QueueUrl=url, MessageBody="m", MessageGroupId="tenant")
    assert "SequenceNumber" not in sent
    (message,) = sqs.receive_message(QueueUrl=url, MessageSystemAttributeNames=["All"])["Messages"]
    assert message["Attributes"]["MessageGroupId"] == "tenant"
    assert not {"SequenceNumber", "MessageDeduplicationId"} & set(message["Attributes"])
    with pytest.raises(ClientError, match="not valid for this queue type"):
        sqs.send_message(QueueUrl=url, MessageBody="m", MessageDeduplicationId="d")
