"""Requests for each row of docs/protocols/sqs.md: attributes of actions, and errors.

They are JSON over a socket, as SDKs do not send most invalid requests.
"""

import json
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

import urllib3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.clients.sqs_client import LISTED, MEMBERS
from tests.server.keys import OWNER, client, signed
from tests.server.service_client import JSON, ServiceClient, SqsReply, fresh_name
from veilmq.testing import RunningServer


class Stage(ServiceClient):
    """A client of a server for many rows; each row creates its own queues."""

    def __init__(self, server: RunningServer) -> None:
        super().__init__(server.endpoint, JSON)
        self.server = server

    def arn(self, url: str) -> str:
        return self.attributes(url, "QueueArn")["QueueArn"]

    def redrive(self, url: str, receives: int = 1) -> str:
        return f'{{"deadLetterTargetArn":"{self.arn(url)}","maxReceiveCount":{receives}}}'

    def receipt(self, url: str, **message: Any) -> str:
        self.call("SendMessage", QueueUrl=url, MessageBody="m", **message)
        (received,) = self.call("ReceiveMessage", QueueUrl=url)["Messages"]
        handle: str = received["ReceiptHandle"]
        return handle

    def expired(self, url: str) -> str:
        handle = self.receipt(url, MessageGroupId="g", MessageDeduplicationId="d")
        self.server.advance(30_000)
        return handle

    def dead_letters(self) -> str:
        dead = self.queue()
        source = self.queue(RedrivePolicy=self.redrive(dead))
        entries = [{"Id": str(number), "MessageBody": "m"} for number in range(10)]
        self.call("SendMessageBatch", QueueUrl=source, Entries=entries)
        for _ in range(2):
            self.call("ReceiveMessage", QueueUrl=source, MaxNumberOfMessages=10, VisibilityTimeout=0)
        return dead


# Attributes.


Show = Callable[[Stage], None]

FIFO: dict[str, dict[str, str]] = {
    "FifoQueue": {"FifoQueue": "true"},
    "ContentBasedDeduplication": {"ContentBasedDeduplication": "true"},
    "DeduplicationScope": {"DeduplicationScope": "messageGroup"},
    "FifoThroughputLimit": {"FifoThroughputLimit": "perMessageGroupId", "DeduplicationScope": "messageGroup"},
}
"""Attribute of FIFO queues → attributes that set it."""

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
"""Attribute of all queues → attributes that set it."""


_RESOURCE = "arn:aws:sqs:us-east-1:000000000000:*"
_STATEMENT = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": _RESOURCE}


def _given(stage: Stage, name: str) -> dict[str, str]:
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
    stage.call("SetQueueAttributes", QueueUrl=url, Attributes=given)
    assert stage.attributes(url, name) == {name: given[name]}


def _get(name: str, stage: Stage) -> None:
    given = _given(stage, name)
    assert stage.attributes(_make(stage, name, **given), "All")[name] == given[name]
    assert name not in stage.attributes(_make(stage, name, **given), "QueueArn")


def _count(stage: Stage, name: str) -> None:
    url = stage.queue()
    stage.receipt(url)
    stage.call("SendMessage", QueueUrl=url, MessageBody="visible")
    stage.call("SendMessage", QueueUrl=url, MessageBody="later", DelaySeconds=9)
    assert stage.attributes(url, name) == {name: "1"}


def _arn(stage: Stage) -> None:
    url = stage.queue()
    name = url.rpartition("/")[2]
    assert stage.attributes(url, "QueueArn") == {"QueueArn": f"arn:aws:sqs:us-east-1:000000000000:{name}"}


def _time(name: str, change_s: int, stage: Stage) -> None:
    url = stage.queue()
    created_s = stage.server.clock.now_ms() // 1_000
    stage.server.advance(2_000)
    stage.call("SetQueueAttributes", QueueUrl=url, Attributes={"DelaySeconds": "1"})
    assert stage.attributes(url, name) == {name: str(created_s + change_s)}


def _received(stage: Stage, url: str, name: str) -> str | None:
    """Receive the only visible message; return its system attribute ``name``."""
    (message,) = stage.call("ReceiveMessage", QueueUrl=url, MessageSystemAttributeNames=[name])["Messages"]
    found: dict[str, str] = message.get("Attributes", {})
    assert set(found) <= {name}
    return found.get(name)


def _of_message(name: str, expected: Callable[[Stage], str], stage: Stage) -> None:
    url = stage.queue()
    stage.call("SendMessage", QueueUrl=url, MessageBody="m")
    assert _received(stage, url, name) == expected(stage)


def _now(stage: Stage) -> str:
    return str(stage.server.clock.now_ms())


def _of_fifo(name: str, expected: str, stage: Stage) -> None:
    url = stage.fifo(ContentBasedDeduplication="true")
    sent = stage.call("SendMessage", QueueUrl=url, MessageBody="m", MessageGroupId="g")
    assert _received(stage, url, name) == (expected or sent[name])
    assert len(sent["SequenceNumber"]) == 20


def _source(stage: Stage) -> None:
    dead = stage.queue()
    source = stage.queue(RedrivePolicy=stage.redrive(dead))
    stage.call("SendMessage", QueueUrl=source, MessageBody="m")
    for _ in range(2):
        stage.call("ReceiveMessage", QueueUrl=source, VisibilityTimeout=0)
    assert _received(stage, dead, "DeadLetterQueueSourceArn") == stage.arn(source)


_HEADER = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}}


def _traced(action: str, wrap: Callable[[dict[str, Any]], dict[str, Any]], stage: Stage) -> None:
    url = stage.queue()
    sent = stage.call(action, QueueUrl=url, **wrap({"MessageBody": "m", "MessageSystemAttributes": _HEADER}))
    assert "MD5OfMessageSystemAttributes" in json.dumps(sent)
    assert _received(stage, url, "AWSTraceHeader") == "Root=1"


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
        ("GetQueueAttributes", f"ApproximateNumberOfMessages{state}"): partial(
            _count, name=f"ApproximateNumberOfMessages{state}"
        )
        for state in ("", "NotVisible", "Delayed")
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
"""(action, attribute) → a function that asserts its effect."""

# Errors of actions and of entries.


Provocation = Callable[[Stage], SqsReply]
"""Return a reply with the error."""

INVALID, MISSING = "InvalidParameterValueException", "MissingRequiredParameterException"
NO_QUEUE = "/000000000000/none"
NO_ARN = "arn:aws:sqs:us-east-1:000000000000:none"


def requesting(action: str, **members: Any) -> Provocation:
    return lambda stage: stage.request(action, **members)


def on_queue(action: str, **members: Any) -> Provocation:
    return lambda stage: stage.request(action, QueueUrl=stage.queue(), **members)


def created(**attributes: str) -> Provocation:
    return lambda stage: stage.request("CreateQueue", QueueName=fresh_name(), Attributes=attributes)


def _exists(stage: Stage) -> SqsReply:
    url = stage.queue(DelaySeconds="1")
    return stage.request("CreateQueue", QueueName=url.rpartition("/")[2], Attributes={"DelaySeconds": "2"})


def _deleted_recently(stage: Stage) -> SqsReply:
    url = stage.queue()
    stage.call("DeleteQueue", QueueUrl=url)
    return stage.request("CreateQueue", QueueName=url.rpartition("/")[2])


def _purged_recently(stage: Stage) -> SqsReply:
    url = stage.queue()
    stage.call("PurgeQueue", QueueUrl=url)
    return stage.request("PurgeQueue", QueueUrl=url)


def _twice_permitted(stage: Stage) -> SqsReply:
    url = stage.queue()
    stage.call("AddPermission", QueueUrl=url, **MEMBERS["AddPermission"])
    return stage.request("AddPermission", QueueUrl=url, **MEMBERS["AddPermission"])


def _permitted_too_often(stage: Stage) -> SqsReply:
    url = stage.queue()
    for number in range(20):
        stage.call("AddPermission", QueueUrl=url, **MEMBERS["AddPermission"] | {"Label": f"l{number}"})
    return stage.request("AddPermission", QueueUrl=url, **MEMBERS["AddPermission"])


def _in_flight(stage: Stage) -> SqsReply:
    url = stage.queue()
    for _ in range(2):
        stage.call("SendMessage", QueueUrl=url, MessageBody="m")
    stage.call("ReceiveMessage", QueueUrl=url)
    return stage.request("ReceiveMessage", QueueUrl=url)


def _too_often(stage: Stage) -> SqsReply:
    url = stage.queue(VeilmqReceivesPerSecond="1")
    stage.call("ReceiveMessage", QueueUrl=url)
    return stage.request("ReceiveMessage", QueueUrl=url)


def _expired(stage: Stage) -> SqsReply:
    url = stage.fifo()
    return stage.request("DeleteMessage", QueueUrl=url, ReceiptHandle=stage.expired(url))


def _expired_entry(stage: Stage) -> SqsReply:
    url = stage.fifo()
    return stage.request("DeleteMessageBatch", QueueUrl=url, Entries=[{"Id": "a", "ReceiptHandle": stage.expired(url)}])


def _too_long(action: str, wrap: Callable[[str], dict[str, Any]]) -> Provocation:
    """Return a change to a lease of more than 12 hours since the receive."""

    def provoke(stage: Stage) -> SqsReply:
        url = stage.queue()
        handle = stage.receipt(url)
        stage.server.advance(1_000)
        return stage.request(action, QueueUrl=url, **wrap(handle))

    return provoke


_ON_QUEUE: dict[tuple[str, str], Provocation] = {}
for _action, _members in MEMBERS.items():
    _ON_QUEUE[_action, MISSING] = requesting(_action, **_members)
    _ON_QUEUE[_action, "QueueDoesNotExist"] = requesting(_action, QueueUrl=NO_QUEUE, **_members)

_BATCHES: dict[tuple[str, str], Provocation] = {}
for _action in ("SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"):
    _BATCHES |= {
        (_action, "EmptyBatchRequest"): on_queue(_action, Entries=[]),
        (_action, "TooManyEntriesInBatchRequest"): on_queue(_action, Entries=[{"Id": str(n)} for n in range(11)]),
        (_action, "InvalidBatchEntryId"): on_queue(_action, Entries=[{"Id": "a:b"}]),
        (_action, "BatchEntryIdsNotDistinct"): on_queue(_action, Entries=[{"Id": "a"}] * 2),
        (_action, INVALID): on_queue(_action, Entries=[{"Id": "a", "Foo": ["a"] * 20_000}]),
    }


def _handle_of_another_time(stage: Stage) -> SqsReply:
    arn = stage.arn(stage.dead_letters())
    handle = stage.call("StartMessageMoveTask", SourceArn=arn, MaxNumberOfMessagesPerSecond=1)["TaskHandle"]
    stage.call("CancelMessageMoveTask", TaskHandle=handle)
    return stage.request("CancelMessageMoveTask", TaskHandle=handle)


LATEST = {"VisibilityTimeout": 43_200}
_DEAD = {"RedrivePolicy": f'{{"deadLetterTargetArn":"{NO_ARN}","maxReceiveCount":1}}'}
_LARGE = [{"Id": name, "MessageBody": "x" * 524_289} for name in "ab"]

_PLAIN: dict[tuple[str, str], dict[str, Any]] = {
    ("CreateQueue", MISSING): {},
    ("CreateQueue", INVALID): {"QueueName": "a.b"},
    ("GetQueueUrl", MISSING): {},
    ("GetQueueUrl", INVALID): {"QueueName": ""},
    ("GetQueueUrl", "QueueDoesNotExist"): {"QueueName": "none"},
    ("ListQueues", INVALID): {"NextToken": "b3JkZXJz"},
    ("StartMessageMoveTask", MISSING): {},
    ("StartMessageMoveTask", "ResourceNotFoundException"): {"SourceArn": NO_ARN},
    ("CancelMessageMoveTask", MISSING): {},
    ("CancelMessageMoveTask", INVALID): {"TaskHandle": "x"},
    ("ListMessageMoveTasks", MISSING): {},
    ("ListMessageMoveTasks", INVALID): {"SourceArn": NO_ARN, "MaxResults": 11},
    ("ListMessageMoveTasks", "ResourceNotFoundException"): {"SourceArn": NO_ARN},
}
"""(action, name of the error) → members of a request without a queue."""

_ON_NEW_QUEUE: dict[tuple[str, str], dict[str, Any]] = {
    ("GetQueueAttributes", "InvalidAttributeName"): {"AttributeNames": ["Foo"]},
    ("GetQueueAttributes", INVALID): {"AttributeNames": ["All"] * 10_000},
    ("SetQueueAttributes", INVALID): {"Attributes": _DEAD},
    ("SetQueueAttributes", "InvalidAttributeName"): {"Attributes": {"FifoQueue": "true"}},
    ("RemovePermission", INVALID): {"Label": "l"},
    ("TagQueue", INVALID): {"Tags": {"aws:a": "b"}},
    ("UntagQueue", INVALID): {"TagKeys": ["a*"]},
    ("ListDeadLetterSourceQueues", INVALID): {"MaxResults": 0},
    ("SendMessage", INVALID): {"MessageBody": "x", "MessageDeduplicationId": "d"},
    ("SendMessage", "InvalidMessageContents"): {"MessageBody": "\x07"},
    ("SendMessage", "UnsupportedOperation"): {"MessageBody": "x", "MessageAttributes": LISTED},
    ("SendMessageBatch", "BatchRequestTooLong"): {"Entries": _LARGE},
    ("ReceiveMessage", INVALID): {"MaxNumberOfMessages": 11},
    ("ReceiveMessage", "InvalidAttributeName"): {"AttributeNames": ["Foo"]},
    ("DeleteMessage", "ReceiptHandleIsInvalid"): {"ReceiptHandle": "r"},
    ("ChangeMessageVisibility", "ReceiptHandleIsInvalid"): {"ReceiptHandle": "r", "VisibilityTimeout": 1},
}
"""(action, name of the error) → members of a request for a new queue."""

ERRORS: dict[tuple[str, str], Provocation] = _ON_QUEUE | _BATCHES
"""(action, name of the error) → a request with that error."""
ERRORS |= {(action, error): requesting(action, **members) for (action, error), members in _PLAIN.items()}
ERRORS |= {(action, error): on_queue(action, **members) for (action, error), members in _ON_NEW_QUEUE.items()}
ERRORS |= {
    ("CreateQueue", "QueueNameExists"): _exists,
    ("CreateQueue", "QueueDeletedRecently"): _deleted_recently,
    ("CreateQueue", "InvalidAttributeName"): created(Foo="1"),
    ("CreateQueue", "InvalidAttributeValue"): created(DelaySeconds="901"),
    ("PurgeQueue", "PurgeQueueInProgress"): _purged_recently,
    ("SetQueueAttributes", "InvalidAttributeValue"): lambda stage: stage.request(
        "SetQueueAttributes", QueueUrl=stage.fifo(), Attributes={"FifoQueue": "false"}
    ),
    ("AddPermission", INVALID): _twice_permitted,
    ("AddPermission", "OverLimit"): _permitted_too_often,
    ("StartMessageMoveTask", INVALID): lambda stage: stage.request(
        "StartMessageMoveTask", SourceArn=stage.arn(stage.queue())
    ),
    ("CancelMessageMoveTask", "ResourceNotFoundException"): _handle_of_another_time,
    ("ReceiveMessage", "OverLimit"): _in_flight,
    ("ReceiveMessage", "RequestThrottled"): _too_often,
    ("DeleteMessage", INVALID): _expired,
    ("ChangeMessageVisibility", INVALID): _too_long(
        "ChangeMessageVisibility", lambda handle: {"ReceiptHandle": handle} | LATEST
    ),
}

_ENTRIES: dict[tuple[str, str], dict[str, Any]] = {
    ("SendMessageBatch", MISSING): {},
    ("SendMessageBatch", INVALID): {"MessageBody": "x", "DelaySeconds": 901},
    ("SendMessageBatch", "InvalidMessageContents"): {"MessageBody": "\x07"},
    ("SendMessageBatch", "UnsupportedOperation"): {"MessageBody": "x", "MessageAttributes": LISTED},
    ("DeleteMessageBatch", MISSING): {},
    ("DeleteMessageBatch", "ReceiptHandleIsInvalid"): {"ReceiptHandle": "r"},
    ("ChangeMessageVisibilityBatch", MISSING): {"ReceiptHandle": "r"},
    ("ChangeMessageVisibilityBatch", "ReceiptHandleIsInvalid"): {"ReceiptHandle": "r", "VisibilityTimeout": 1},
}

ENTRY_ERRORS: dict[tuple[str, str], Provocation] = {
    (action, error): on_queue(action, Entries=[{"Id": "a"} | members]) for (action, error), members in _ENTRIES.items()
}
"""(action, name of the error) → a batch with one entry with that error."""
ENTRY_ERRORS |= {
    ("DeleteMessageBatch", INVALID): _expired_entry,
    ("ChangeMessageVisibilityBatch", INVALID): _too_long(
        "ChangeMessageVisibilityBatch", lambda handle: {"Entries": [{"Id": "a", "ReceiptHandle": handle} | LATEST]}
    ),
}

# Errors of all actions: of a protocol and of signatures. One action stands for all.


CLOCK_AHEAD_S = 600
"""The lead of the server's clock: within the limit of signatures, but beyond the validity of a short presigned URL."""

ENDED = "2001-01-01T00:00:00Z"
"""The expiry of the session key of the credentials file."""

ANYWHERE: dict[str, Provocation] = {
    "UnknownOperationException": requesting("Foo"),
    "SerializationException": requesting("ListQueues", MaxResults="1"),
}
"""Name of an error in JSON → a request with that error."""

QUERY: dict[str, str] = {
    "InvalidAddress": "Action=PurgeQueue&QueueUrl=http%3A%2F%2Fh%2F",
    "MalformedInputException": "Action=ListQueues&MaxResults=1&MaxResults=2",
    "MalformedQueryStringException": "Action=ListQueues&QueueNamePrefix=%",
    "NoSuchVersionException": "Action=ListQueues&Version=1",
}
"""Name of an error in Query → a form with that error."""


def posted(stage: Stage, form: str) -> tuple[int, str]:
    status, _, document = stage.send("POST", "/", form, {"Content-Type": "application/x-www-form-urlencoded"})
    return status, document.decode()


def _listed(endpoint: str, *key: str, **options: Any) -> tuple[int, str]:
    return _refused(lambda: client(endpoint, *key, **options).list_queues())


def _refused(call: Callable[[], object]) -> tuple[int, str]:
    try:
        call()
    except ClientError as error:
        response: dict[str, Any] = dict(error.response)
        return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]
    raise AssertionError("no error")


def _half_signed(endpoint: str) -> tuple[int, str]:
    headers = {"X-Amz-Target": "AmazonSQS.ListQueues", "Content-Type": "application/x-amz-json-1.0"}
    headers |= {"Authorization": "AWS4-HMAC-SHA256 Credential=AKIDOWNER"}
    reply = urllib3.request("POST", f"{endpoint}/", body=b"{}", headers=headers)
    return reply.status, reply.headers["x-amzn-query-error"].partition(";")[0]


def _expired_url(endpoint: str) -> tuple[int, str]:
    reply = urllib3.request("GET", str(signed(f"{endpoint}/?Action=ListQueues", presigned_s=1).url))
    return reply.status, reply.data.decode().partition("<Code>")[2].partition("</Code>")[0]


def _of_another(endpoint: str) -> tuple[int, str]:
    client(endpoint).create_queue(QueueName="private")
    url = f"{endpoint}/{OWNER}/private"
    return _refused(lambda: client(endpoint, "AKIDFRIEND").send_message(QueueUrl=url, MessageBody="m"))


SIGNED: dict[str, Callable[[str], tuple[int, str]]] = {
    "MissingAuthenticationTokenException": lambda url: _listed(url, config=Config(signature_version=UNSIGNED)),
    "IncompleteSignatureException": _half_signed,
    "UnrecognizedClientException": lambda url: _listed(url, "AKIDNOBODY"),
    "InvalidSignatureException": lambda url: _listed(url, aws_secret_access_key="wrong"),
    "ExpiredTokenException": lambda url: _listed(url, "ASIDBOB"),
    "RequestExpiredException": _expired_url,
    "AccessDeniedException": _of_another,
}
"""Name of an error of a server with credentials → a function of the endpoint that returns the status and the code."""
