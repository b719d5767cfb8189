"""What shows each row (action, attribute) of the reference page: it is given, or asked for, and found again."""

import json
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

from tests.clients.sqs_stage import Stage

Show = Callable[[Stage], None]

FIFO: dict[str, dict[str, str]] = {
    "FifoQueue": {"FifoQueue": "true"},
    "ContentBasedDeduplication": {"ContentBasedDeduplication": "true"},
    "DeduplicationScope": {"DeduplicationScope": "messageGroup"},
    "FifoThroughputLimit": {"FifoThroughputLimit": "perMessageGroupId", "DeduplicationScope": "messageGroup"},
}
"""Attribute of FIFO queues → what sets it."""

STANDARD: dict[str, dict[str, str]] = {
    "VisibilityTimeout": {"VisibilityTimeout": "31"},
    "MaximumMessageSize": {"MaximumMessageSize": "1025"},
    "MessageRetentionPeriod": {"MessageRetentionPeriod": "61"},
    "DelaySeconds": {"DelaySeconds": "3"},
    "ReceiveMessageWaitTimeSeconds": {"ReceiveMessageWaitTimeSeconds": "4"},
    "RedriveAllowPolicy": {"RedriveAllowPolicy": '{"redrivePermission":"denyAll"}'},
    "KmsMasterKeyId": {"KmsMasterKeyId": "alias/a", "SqsManagedSseEnabled": "false"},
    "KmsDataKeyReusePeriodSeconds": {
        "KmsDataKeyReusePeriodSeconds": "61",
        "KmsMasterKeyId": "alias/a",
        "SqsManagedSseEnabled": "false",
    },
    "SqsManagedSseEnabled": {"SqsManagedSseEnabled": "false"},
    "VeilmqInFlightMax": {"VeilmqInFlightMax": "8"},
    "VeilmqVisibilityRules": {
        "VeilmqVisibilityRules": '{"version":1,"classes":[{"name":"a","visibility_timeout_s":5}],"default":0}'
    },
    "VeilmqEventLog": {"VeilmqEventLog": "closed"},
    "VeilmqReceivesPerSecond": {"VeilmqReceivesPerSecond": "9"},
    "VeilmqSmqBase64": {"VeilmqSmqBase64": "true"},
    "VeilmqSmqLogging": {"VeilmqSmqLogging": "true"},
}
"""Attribute of all queues → what sets it."""


_STATEMENT = {
    "Effect": "Allow",
    "Principal": "*",
    "Action": "sqs:SendMessage",
    "Resource": "arn:aws:sqs:us-east-1:000000000000:*",
}


def _given(stage: Stage, name: str) -> dict[str, str]:
    """Return what sets the attribute ``name``."""
    if name == "RedrivePolicy":
        return {name: stage.redrive(stage.queue(), receives=7)}
    if name == "Policy":
        return {name: json.dumps({"Version": "2012-10-17", "Statement": [_STATEMENT]})}
    return STANDARD.get(name) or FIFO[name]


def _make(stage: Stage, name: str, **attributes: str) -> str:
    return stage.fifo(**attributes) if name in FIFO else stage.queue(**attributes)


def _create(name: str, stage: Stage) -> None:
    given = _given(stage, name)
    assert stage.attributes(_make(stage, name, **given), name) == {name: given[name]}


def _set(name: str, stage: Stage) -> None:
    given = _given(stage, name)
    url = _make(stage, name)
    stage.do("SetQueueAttributes", QueueUrl=url, Attributes=given)
    assert stage.attributes(url, name) == {name: given[name]}


def _get(name: str, stage: Stage) -> None:
    given = _given(stage, name)
    told = stage.attributes(_make(stage, name, **given), "All")
    assert told[name] == given[name]
    assert name not in stage.attributes(_make(stage, name, **given), "QueueArn")


def _count(stage: Stage, name: str) -> None:
    """Have one message visible, one in flight, one delayed: each counter tells one."""
    url = stage.queue()
    stage.receipt(url)
    stage.do("SendMessage", QueueUrl=url, MessageBody="visible")
    stage.do("SendMessage", QueueUrl=url, MessageBody="later", DelaySeconds=9)
    assert stage.attributes(url, name) == {name: "1"}


def _arn(stage: Stage) -> None:
    url = stage.queue()
    name = url.rpartition("/")[2]
    assert stage.attributes(url, "QueueArn") == {"QueueArn": f"arn:aws:sqs:us-east-1:000000000000:{name}"}


def _time(name: str, change_s: int, stage: Stage) -> None:
    url = stage.queue()
    created_s = stage.server.clock.now_ms() // 1_000
    stage.server.advance(2_000)
    stage.do("SetQueueAttributes", QueueUrl=url, Attributes={"DelaySeconds": "1"})
    assert stage.attributes(url, name) == {name: str(created_s + change_s)}


def _told(stage: Stage, url: str, name: str) -> str | None:
    """Return the system attribute ``name`` of the one message that is visible."""
    (message,) = stage.do("ReceiveMessage", QueueUrl=url, MessageSystemAttributeNames=[name])["Messages"]
    told: dict[str, str] = message.get("Attributes", {})
    assert set(told) <= {name}
    return told.get(name)


def _of_message(name: str, expected: Callable[[Stage], str], stage: Stage) -> None:
    url = stage.queue()
    stage.do("SendMessage", QueueUrl=url, MessageBody="m")
    assert _told(stage, url, name) == expected(stage)


def _now(stage: Stage) -> str:
    return str(stage.server.clock.now_ms())


def _of_fifo(name: str, expected: str, stage: Stage) -> None:
    url = stage.fifo(ContentBasedDeduplication="true")
    sent = stage.do("SendMessage", QueueUrl=url, MessageBody="m", MessageGroupId="g")
    assert _told(stage, url, name) == (expected or sent[name])


def _source(stage: Stage) -> None:
    dead = stage.queue()
    source = stage.queue(RedrivePolicy=stage.redrive(dead))
    stage.do("SendMessage", QueueUrl=source, MessageBody="m")
    for _ in range(2):
        stage.do("ReceiveMessage", QueueUrl=source, VisibilityTimeout=0)
    assert _told(stage, dead, "DeadLetterQueueSourceArn") == stage.arn(source)


_HEADER = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}}


def _traced(action: str, wrap: Callable[[dict[str, Any]], dict[str, Any]], stage: Stage) -> None:
    url = stage.queue()
    sent = stage.do(action, QueueUrl=url, **wrap({"MessageBody": "m", "MessageSystemAttributes": _HEADER}))
    assert "MD5OfMessageSystemAttributes" in json.dumps(sent)
    assert _told(stage, url, "AWSTraceHeader") == "Root=1"


_alone = partial(_traced, "SendMessage", lambda message: message)
_in_batch = partial(_traced, "SendMessageBatch", lambda message: {"Entries": [message | {"Id": "a"}]})

_SETTABLE = (*STANDARD, "Policy", "RedrivePolicy", *FIFO)

ATTRIBUTES: dict[tuple[str, str], Show] = {
    **{("CreateQueue", name): partial(_create, name) for name in _SETTABLE},
    **{("SetQueueAttributes", name): partial(_set, name) for name in _SETTABLE},
    **{("GetQueueAttributes", name): partial(_get, name) for name in _SETTABLE},
    ("GetQueueAttributes", "QueueArn"): _arn,
    ("GetQueueAttributes", "CreatedTimestamp"): partial(_time, "CreatedTimestamp", 0),
    ("GetQueueAttributes", "LastModifiedTimestamp"): partial(_time, "LastModifiedTimestamp", 2),
    **{
        ("GetQueueAttributes", name): partial(_count, name=name)
        for name in (
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible",
            "ApproximateNumberOfMessagesDelayed",
        )
    },
    ("SendMessage", "AWSTraceHeader"): _alone,
    ("SendMessageBatch", "AWSTraceHeader"): _in_batch,
    ("ReceiveMessage", "AWSTraceHeader"): _alone,
    ("ReceiveMessage", "SenderId"): partial(_of_message, "SenderId", lambda stage: "000000000000"),
    ("ReceiveMessage", "SentTimestamp"): partial(_of_message, "SentTimestamp", _now),
    ("ReceiveMessage", "ApproximateFirstReceiveTimestamp"): partial(
        _of_message, "ApproximateFirstReceiveTimestamp", _now
    ),
    ("ReceiveMessage", "ApproximateReceiveCount"): partial(_of_message, "ApproximateReceiveCount", lambda stage: "1"),
    ("ReceiveMessage", "DeadLetterQueueSourceArn"): _source,
    ("ReceiveMessage", "MessageGroupId"): partial(_of_fifo, "MessageGroupId", "g"),
    ("ReceiveMessage", "MessageDeduplicationId"): partial(_of_fifo, "MessageDeduplicationId", sha256(b"m").hexdigest()),
    ("ReceiveMessage", "SequenceNumber"): partial(_of_fifo, "SequenceNumber", ""),
}
"""(action, attribute) → what shows it; raises ``AssertionError`` where it does not hold."""
