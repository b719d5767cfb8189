"""Every action with boto3, in steps by topic: the current boto3 over JSON, an older one over Query. See test_programs.

A failed step raises AssertionError.
"""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
import botocore
from botocore.exceptions import ClientError

from tests.clients.python.connect import sqs
from tests.clients.python.conversation import call_test, report

actions: set[str] = set()
sqs.meta.events.register("before-call.sqs", lambda model, **_: actions.add(model.name))


def queue(name: str, **attributes: str) -> str:
    return str(sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])


def receive(url: str, **more: Any) -> list[dict[str, Any]]:
    reply = sqs.receive_message(QueueUrl=url, **{"MaxNumberOfMessages": 10, **more})
    messages: list[dict[str, Any]] = reply.get("Messages", [])
    return messages


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["Body"] for message in messages]


def entries(messages: list[dict[str, Any]], **more: Any) -> list[dict[str, Any]]:
    return [
        {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"], **more}
        for number, message in enumerate(messages)
    ]


def counted(url: str) -> list[int]:
    names = [f"ApproximateNumberOfMessages{state}" for state in ("", "NotVisible", "Delayed")]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return [int(found[name]) for name in names]


def attribute(url: str, name: str) -> str:
    return str(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name])


def queues() -> None:
    urls = [queue(f"page-{number}") for number in range(3)]
    pages = sqs.get_paginator("list_queues").paginate(QueueNamePrefix="page-", PaginationConfig={"PageSize": 2})
    assert [page["QueueUrls"] for page in pages] == [urls[:2], urls[2:]]
    assert sqs.get_queue_url(QueueName="page-1")["QueueUrl"] == urls[1]
    sqs.set_queue_attributes(QueueUrl=urls[0], Attributes={"VisibilityTimeout": "5", "DelaySeconds": "1"})
    found = sqs.get_queue_attributes(QueueUrl=urls[0], AttributeNames=["All"])["Attributes"]
    assert (found["VisibilityTimeout"], found["DelaySeconds"]) == ("5", "1")
    assert found["QueueArn"].startswith("arn:aws:sqs:us-east-1:")


def message() -> None:
    url = queue("message")
    sent = sqs.send_message(QueueUrl=url, MessageBody=" é 漢 \U0010ffff <&>]]> ")
    (message,) = receive(url, AttributeNames=["All"])
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], " é 漢 \U0010ffff <&>]]> ")
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    assert receive(url) == []
    call_test("advance", ms=30_000)
    (again,) = receive(url, AttributeNames=["ApproximateReceiveCount"])
    assert again["Attributes"] == {"ApproximateReceiveCount": "2"}
    handle = {"QueueUrl": url, "ReceiptHandle": again["ReceiptHandle"]}
    sqs.change_message_visibility(**handle, VisibilityTimeout=60)
    call_test("advance", ms=59_999)
    assert counted(url) == [0, 1, 0]
    sqs.delete_message(**handle)
    assert counted(url) == [0, 0, 0]


def delay() -> None:
    url = queue("delay")
    sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=900)
    assert counted(url) == [0, 0, 1]
    call_test("advance", ms=900_000)
    assert bodies(receive(url)) == ["later"]


def attributes() -> None:
    """Receive attributes of every type unchanged; botocore compares the digests."""
    url = queue("attributes")
    given = {
        "text": {"DataType": "String", "StringValue": " 漢 "},
        "number": {"DataType": "Number.int", "StringValue": "7"},
        "bytes": {"DataType": "Binary", "BinaryValue": bytes(range(256))},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}}
    sent = sqs.send_message(QueueUrl=url, MessageBody="m", MessageAttributes=given, MessageSystemAttributes=trace)
    (message,) = receive(url, MessageAttributeNames=["All"], AttributeNames=["AWSTraceHeader"])
    assert message["MessageAttributes"] == given
    assert message["Attributes"] == {"AWSTraceHeader": "Root=1"}
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]


def batches() -> None:
    """Fail single entries of batches."""
    url = queue("batches")
    blob = {"bytes": {"DataType": "Binary", "BinaryValue": b"\xff"}}
    given: list[dict[str, Any]] = [
        {"Id": text, "MessageBody": text, "MessageAttributes": blob} for text in "0123456789"
    ]
    given[9]["DelaySeconds"] = 901
    sent = sqs.send_message_batch(QueueUrl=url, Entries=given)
    assert [each["Id"] for each in sent["Successful"]] == list("012345678")
    (failed,) = sent["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("9", "InvalidParameterValue", True)
    messages = receive(url, MessageAttributeNames=["All"])
    assert sorted(bodies(messages)) == list("012345678")
    assert messages[0]["MessageAttributes"] == blob
    bad = {"Id": "bad", "ReceiptHandle": "nonsense", "VisibilityTimeout": 0}
    changed = sqs.change_message_visibility_batch(
        QueueUrl=url, Entries=[*entries(messages[:4], VisibilityTimeout=0), bad]
    )
    assert len(changed["Successful"]) == 4
    assert [(each["Id"], each["Code"]) for each in changed["Failed"]] == [("bad", "ReceiptHandleIsInvalid")]
    deleted = sqs.delete_message_batch(QueueUrl=url, Entries=entries(messages[4:]))
    assert len(deleted["Successful"]) == 5
    assert counted(url) == [4, 0, 0]


def long_poll() -> None:
    url = queue("long-poll")
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(receive, url, WaitTimeSeconds=20)
        call_test("parked")
        sqs.send_message(QueueUrl=url, MessageBody="now")
        assert bodies(waiting.result()) == ["now"]
        waiting = threads.submit(receive, url, WaitTimeSeconds=20)
        call_test("parked")
        call_test("advance", ms=20_000)
        assert waiting.result() == []


def errors() -> None:
    """Raise the exceptions of the service model."""
    url = queue("errors")
    ten_and_one = [{"Id": str(number), "ReceiptHandle": "r"} for number in range(11)]
    table: dict[str, Callable[[], object]] = {
        "QueueDoesNotExist": lambda: sqs.get_queue_url(QueueName="none"),
        "QueueNameExists": lambda: queue("errors", VisibilityTimeout="31"),
        "InvalidAttributeName": lambda: sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Nope"]),
        "InvalidMessageContents": lambda: sqs.send_message(QueueUrl=url, MessageBody="\x01"),
        "EmptyBatchRequest": lambda: sqs.send_message_batch(QueueUrl=url, Entries=[]),
        "TooManyEntriesInBatchRequest": lambda: sqs.delete_message_batch(QueueUrl=url, Entries=ten_and_one),
        "BatchEntryIdsNotDistinct": lambda: sqs.delete_message_batch(QueueUrl=url, Entries=ten_and_one[:1] * 2),
        "InvalidBatchEntryId": lambda: sqs.send_message_batch(
            QueueUrl=url, Entries=[{"Id": "a b", "MessageBody": "m"}]
        ),
        "ReceiptHandleIsInvalid": lambda: sqs.delete_message(QueueUrl=url, ReceiptHandle="nonsense"),
    }
    for name, call in table.items():
        error = raised(call)
        assert isinstance(error, getattr(sqs.exceptions, name)), f"{name}: {error!r}"
        assert error.response["Error"]["Message"]
        assert 400 <= error.response["ResponseMetadata"]["HTTPStatusCode"] < 500
        assert error.response["ResponseMetadata"]["RequestId"]
    error = raised(lambda: sqs.send_message(QueueUrl=url, MessageBody="m", DelaySeconds=901))
    assert error.response["Error"]["Code"] == "InvalidParameterValue"


def raised(call: Callable[[], object]) -> ClientError:
    try:
        call()
    except ClientError as error:
        return error
    raise AssertionError("nothing was raised")


def resource() -> None:
    """Use boto3's resources."""
    service = boto3.resource(
        "sqs",
        endpoint_url=sqs.meta.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",
    )
    jobs = service.create_queue(QueueName="resource", Attributes={"VisibilityTimeout": "7"})
    assert [each.url for each in service.queues.filter(QueueNamePrefix="resource")] == [jobs.url]
    assert service.get_queue_by_name(QueueName="resource").attributes["VisibilityTimeout"] == "7"
    jobs.send_messages(Entries=[{"Id": text, "MessageBody": text} for text in "ab"])
    first, second = jobs.receive_messages(MaxNumberOfMessages=10)
    assert {first.body, second.body} == {"a", "b"}
    first.change_visibility(VisibilityTimeout=0)
    second.delete()
    (again,) = jobs.receive_messages()
    assert again.body == first.body
    jobs.delete()


def tags() -> None:
    url = sqs.create_queue(QueueName="tags", tags={"made": "with", "gone": "soon"})["QueueUrl"]
    sqs.tag_queue(QueueUrl=url, Tags={"team": "é", "none": ""})
    sqs.untag_queue(QueueUrl=url, TagKeys=["gone"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"made": "with", "team": "é", "none": ""}


def dead_letters() -> None:
    dead = queue("dead")
    policy = {"deadLetterTargetArn": attribute(dead, "QueueArn"), "maxReceiveCount": 1}
    url = queue("alive", RedrivePolicy=json.dumps(policy))
    sqs.send_message(QueueUrl=url, MessageBody="m")
    assert bodies(receive(url, VisibilityTimeout=0)) == ["m"]
    assert receive(url) == []
    (message,) = receive(dead, AttributeNames=["All"])
    assert message["Body"] == "m"
    assert message["Attributes"]["DeadLetterQueueSourceArn"] == attribute(url, "QueueArn")
    pages = sqs.get_paginator("list_dead_letter_source_queues").paginate(QueueUrl=dead)
    assert [each for page in pages for each in page["queueUrls"]] == [url]


def move_tasks() -> None:
    """Start a task at one message per second, list it and cancel it."""
    dead = queue("dead-2")
    arn = attribute(dead, "QueueArn")
    url = queue("alive-2", RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1}))
    sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": text, "MessageBody": text} for text in "abc"])
    receive(url, VisibilityTimeout=0)
    assert receive(url) == []
    assert counted(dead) == [3, 0, 0]
    task = sqs.start_message_move_task(SourceArn=arn, MaxNumberOfMessagesPerSecond=1)["TaskHandle"]
    call_test("advance", ms=1000)
    (listed,) = sqs.list_message_move_tasks(SourceArn=arn, MaxResults=10)["Results"]
    assert (listed["Status"], listed["ApproximateNumberOfMessagesToMove"]) == ("RUNNING", 3)
    moved = sqs.cancel_message_move_task(TaskHandle=task)["ApproximateNumberOfMessagesMoved"]
    assert 0 < moved < 3
    assert (counted(url)[0], counted(dead)[0]) == (moved, 3 - moved)


def permissions() -> None:
    url = queue("permissions")
    given = {"AWSAccountIds": ["123456789012", "210987654321"], "Actions": ["SendMessage", "ReceiveMessage"]}
    sqs.add_permission(QueueUrl=url, Label="one", **given)
    sqs.add_permission(QueueUrl=url, Label="two", **given)
    sqs.remove_permission(QueueUrl=url, Label="one")
    (statement,) = json.loads(attribute(url, "Policy"))["Statement"]
    assert (statement["Sid"], statement["Effect"], len(statement["Action"])) == ("two", "Allow", 2)


def fifo() -> None:
    """Test the order of a group, deduplication, and a repeated receive attempt."""
    url = queue("steps.fifo", FifoQueue="true")
    given = [
        {"Id": str(number), "MessageBody": text, "MessageGroupId": text[0], "MessageDeduplicationId": text}
        for number, text in enumerate(["a1", "a2", "b1", "a2"])
    ]
    sent = sqs.send_message_batch(QueueUrl=url, Entries=given)["Successful"]
    assert sent[3]["MessageId"] == sent[1]["MessageId"]
    assert sent[0]["SequenceNumber"] < sent[1]["SequenceNumber"]
    attempt = {"ReceiveRequestAttemptId": "try", "MaxNumberOfMessages": 1, "AttributeNames": ["All"]}
    (first,) = receive(url, **attempt)
    assert (first["Body"], first["Attributes"]["MessageGroupId"]) == ("a1", "a")
    assert receive(url, **attempt)[0]["ReceiptHandle"] == first["ReceiptHandle"]
    assert bodies(receive(url)) == ["b1"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    assert bodies(receive(url)) == ["a2"]


def end() -> None:
    url = queue("end")
    sqs.send_message(QueueUrl=url, MessageBody="m")
    sqs.purge_queue(QueueUrl=url)
    assert counted(url) == [0, 0, 0]
    sqs.delete_queue(QueueUrl=url)
    assert isinstance(raised(lambda: sqs.get_queue_url(QueueName="end")), sqs.exceptions.QueueDoesNotExist)


STEPS = [queues, message, delay, attributes, batches, long_poll, errors, resource, tags, dead_letters, move_tasks]
STEPS += [permissions, fifo, end]

if __name__ == "__main__":
    for step in STEPS:
        step()
        report(step=step.__name__)
    report(actions=sorted(actions), version=botocore.__version__, protocol=sqs.meta.service_model.protocol)
