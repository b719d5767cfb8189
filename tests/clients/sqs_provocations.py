"""What leads to each row of the reference page: (action, error) and (action, entry's error).

A provocation takes the stage and returns the reply that must have the error. ``test_sqs_reference`` has the rows.
"""

from collections.abc import Callable
from typing import Any

from tests.clients.sqs_members import LISTED, MEMBERS
from tests.clients.sqs_stage import Reply, Stage

Provocation = Callable[[Stage], Reply]

NO_QUEUE = "/000000000000/none"
NO_ARN = "arn:aws:sqs:us-east-1:000000000000:none"


def asking(action: str, **members: Any) -> Provocation:
    """Return the provocation that is a request about no queue, or about the one that it names."""
    return lambda stage: stage.ask(action, **members)


def on_queue(action: str, **members: Any) -> Provocation:
    """Return the provocation that is a request about a new standard queue."""
    return lambda stage: stage.ask(action, QueueUrl=stage.queue(), **members)


def on_fifo(action: str, **members: Any) -> Provocation:
    """Return the provocation that is a request about a new FIFO queue."""
    return lambda stage: stage.ask(action, QueueUrl=stage.fifo(), **members)


def created(**attributes: str) -> Provocation:
    """Return the provocation that is the creation of a queue with ``attributes``."""
    return lambda stage: stage.ask("CreateQueue", QueueName=stage.name(), Attributes=attributes)


def _exists(stage: Stage) -> Reply:
    url = stage.queue(DelaySeconds="1")
    return stage.ask("CreateQueue", QueueName=url.rpartition("/")[2], Attributes={"DelaySeconds": "2"})


def _deleted_recently(stage: Stage) -> Reply:
    url = stage.queue()
    stage.do("DeleteQueue", QueueUrl=url)
    return stage.ask("CreateQueue", QueueName=url.rpartition("/")[2])


def _purged_recently(stage: Stage) -> Reply:
    url = stage.queue()
    stage.do("PurgeQueue", QueueUrl=url)
    return stage.ask("PurgeQueue", QueueUrl=url)


def _twice_permitted(stage: Stage) -> Reply:
    url = stage.queue()
    stage.do("AddPermission", QueueUrl=url, **MEMBERS["AddPermission"])
    return stage.ask("AddPermission", QueueUrl=url, **MEMBERS["AddPermission"])


def _permitted_too_often(stage: Stage) -> Reply:
    url = stage.queue()
    for number in range(20):
        stage.do("AddPermission", QueueUrl=url, **MEMBERS["AddPermission"] | {"Label": f"l{number}"})
    return stage.ask("AddPermission", QueueUrl=url, **MEMBERS["AddPermission"])


def _in_flight(stage: Stage) -> Reply:
    url = stage.queue()
    for _ in range(2):
        stage.do("SendMessage", QueueUrl=url, MessageBody="m")
    stage.do("ReceiveMessage", QueueUrl=url)
    return stage.ask("ReceiveMessage", QueueUrl=url)


def _too_often(stage: Stage) -> Reply:
    url = stage.queue(VeilmqReceivesPerSecond="1")
    stage.do("ReceiveMessage", QueueUrl=url)
    return stage.ask("ReceiveMessage", QueueUrl=url)


def _expired(action: str, **members: Any) -> Provocation:
    def provoke(stage: Stage) -> Reply:
        url = stage.fifo()
        return stage.ask(action, QueueUrl=url, ReceiptHandle=stage.expired(url), **members)

    return provoke


def _expired_entry(action: str, **members: Any) -> Provocation:
    def provoke(stage: Stage) -> Reply:
        url = stage.fifo()
        entry = {"Id": "a", "ReceiptHandle": stage.expired(url)} | members
        return stage.ask(action, QueueUrl=url, Entries=[entry])

    return provoke


def _too_long(action: str, wrap: Callable[[str], dict[str, Any]]) -> Provocation:
    """Return the change that would keep a message in flight for more than 12 hours since its receive."""

    def provoke(stage: Stage) -> Reply:
        url = stage.queue()
        handle = stage.receipt(url)
        stage.server.advance(1_000)
        return stage.ask(action, QueueUrl=url, **wrap(handle))

    return provoke


def _entry(action: str, **members: Any) -> Provocation:
    return on_queue(action, Entries=[{"Id": "a"} | members])


_ON_QUEUE: dict[tuple[str, str], Provocation] = {}
for _action, _members in MEMBERS.items():
    _ON_QUEUE[_action, "MissingRequiredParameterException"] = asking(_action, **_members)
    _ON_QUEUE[_action, "QueueDoesNotExist"] = asking(_action, QueueUrl=NO_QUEUE, **_members)

_BATCHES: dict[tuple[str, str], Provocation] = {}
for _action in ("SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"):
    _BATCHES |= {
        (_action, "EmptyBatchRequest"): on_queue(_action, Entries=[]),
        (_action, "TooManyEntriesInBatchRequest"): on_queue(_action, Entries=[{"Id": str(n)} for n in range(11)]),
        (_action, "InvalidBatchEntryId"): on_queue(_action, Entries=[{"Id": "a:b"}]),
        (_action, "BatchEntryIdsNotDistinct"): on_queue(_action, Entries=[{"Id": "a"}] * 2),
        (_action, "InvalidParameterValueException"): on_queue(_action, Entries=[{"Id": "a", "Foo": ["a"] * 20_000}]),
    }

_QUEUES: dict[tuple[str, str], Provocation] = {
    ("CreateQueue", "MissingRequiredParameterException"): asking("CreateQueue"),
    ("CreateQueue", "InvalidParameterValueException"): asking("CreateQueue", QueueName="a.b"),
    ("GetQueueUrl", "InvalidParameterValueException"): asking("GetQueueUrl", QueueName=""),
    ("CreateQueue", "QueueNameExists"): _exists,
    ("CreateQueue", "QueueDeletedRecently"): _deleted_recently,
    ("CreateQueue", "InvalidAttributeName"): created(Foo="1"),
    ("CreateQueue", "InvalidAttributeValue"): created(DelaySeconds="901"),
    ("GetQueueUrl", "MissingRequiredParameterException"): asking("GetQueueUrl"),
    ("GetQueueUrl", "QueueDoesNotExist"): asking("GetQueueUrl", QueueName="none"),
    ("ListQueues", "InvalidParameterValueException"): asking("ListQueues", NextToken="b3JkZXJz"),
    ("PurgeQueue", "PurgeQueueInProgress"): _purged_recently,
    ("GetQueueAttributes", "InvalidAttributeName"): on_queue("GetQueueAttributes", AttributeNames=["Foo"]),
    ("GetQueueAttributes", "InvalidParameterValueException"): on_queue(
        "GetQueueAttributes", AttributeNames=["All"] * 10_000
    ),
    ("SetQueueAttributes", "InvalidParameterValueException"): on_queue(
        "SetQueueAttributes", Attributes={"RedrivePolicy": f'{{"deadLetterTargetArn":"{NO_ARN}","maxReceiveCount":1}}'}
    ),
    ("SetQueueAttributes", "InvalidAttributeName"): on_queue("SetQueueAttributes", Attributes={"FifoQueue": "true"}),
    ("SetQueueAttributes", "InvalidAttributeValue"): on_fifo("SetQueueAttributes", Attributes={"FifoQueue": "false"}),
    ("AddPermission", "InvalidParameterValueException"): _twice_permitted,
    ("AddPermission", "OverLimit"): _permitted_too_often,
    ("RemovePermission", "InvalidParameterValueException"): on_queue("RemovePermission", Label="l"),
    ("TagQueue", "InvalidParameterValueException"): on_queue("TagQueue", Tags={"aws:a": "b"}),
    ("UntagQueue", "InvalidParameterValueException"): on_queue("UntagQueue", TagKeys=["a*"]),
    ("ListDeadLetterSourceQueues", "InvalidParameterValueException"): on_queue(
        "ListDeadLetterSourceQueues", MaxResults=0
    ),
}


def _handle_of_another_time(stage: Stage) -> Reply:
    arn = stage.arn(stage.dead_letters())
    handle = stage.do("StartMessageMoveTask", SourceArn=arn, MaxNumberOfMessagesPerSecond=1)["TaskHandle"]
    stage.do("CancelMessageMoveTask", TaskHandle=handle)
    return stage.ask("CancelMessageMoveTask", TaskHandle=handle)


_MOVES: dict[tuple[str, str], Provocation] = {
    ("StartMessageMoveTask", "MissingRequiredParameterException"): asking("StartMessageMoveTask"),
    ("StartMessageMoveTask", "InvalidParameterValueException"): lambda stage: stage.ask(
        "StartMessageMoveTask", SourceArn=stage.arn(stage.queue())
    ),
    ("StartMessageMoveTask", "ResourceNotFoundException"): asking("StartMessageMoveTask", SourceArn=NO_ARN),
    ("CancelMessageMoveTask", "MissingRequiredParameterException"): asking("CancelMessageMoveTask"),
    ("CancelMessageMoveTask", "InvalidParameterValueException"): asking("CancelMessageMoveTask", TaskHandle="x"),
    ("CancelMessageMoveTask", "ResourceNotFoundException"): _handle_of_another_time,
    ("ListMessageMoveTasks", "MissingRequiredParameterException"): asking("ListMessageMoveTasks"),
    ("ListMessageMoveTasks", "InvalidParameterValueException"): asking(
        "ListMessageMoveTasks", SourceArn=NO_ARN, MaxResults=11
    ),
    ("ListMessageMoveTasks", "ResourceNotFoundException"): asking("ListMessageMoveTasks", SourceArn=NO_ARN),
}

_MESSAGES: dict[tuple[str, str], Provocation] = {
    ("SendMessage", "InvalidParameterValueException"): on_queue(
        "SendMessage", MessageBody="x", MessageDeduplicationId="d"
    ),
    ("SendMessage", "InvalidMessageContents"): on_queue("SendMessage", MessageBody="\x07"),
    ("SendMessage", "UnsupportedOperation"): on_queue("SendMessage", MessageBody="x", MessageAttributes=LISTED),
    ("SendMessageBatch", "BatchRequestTooLong"): on_queue(
        "SendMessageBatch", Entries=[{"Id": name, "MessageBody": "x" * 524_289} for name in "ab"]
    ),
    ("ReceiveMessage", "InvalidParameterValueException"): on_queue("ReceiveMessage", MaxNumberOfMessages=11),
    ("ReceiveMessage", "InvalidAttributeName"): on_queue("ReceiveMessage", AttributeNames=["Foo"]),
    ("ReceiveMessage", "OverLimit"): _in_flight,
    ("ReceiveMessage", "RequestThrottled"): _too_often,
    ("DeleteMessage", "ReceiptHandleIsInvalid"): on_queue("DeleteMessage", ReceiptHandle="r"),
    ("DeleteMessage", "InvalidParameterValueException"): _expired("DeleteMessage"),
    ("ChangeMessageVisibility", "ReceiptHandleIsInvalid"): on_queue(
        "ChangeMessageVisibility", ReceiptHandle="r", VisibilityTimeout=1
    ),
    ("ChangeMessageVisibility", "InvalidParameterValueException"): _too_long(
        "ChangeMessageVisibility", lambda handle: {"ReceiptHandle": handle, "VisibilityTimeout": 43_200}
    ),
}

ERRORS: dict[tuple[str, str], Provocation] = _ON_QUEUE | _BATCHES | _QUEUES | _MOVES | _MESSAGES
"""(action, name of the error) → what leads to it."""

ENTRY_ERRORS: dict[tuple[str, str], Provocation] = {
    ("SendMessageBatch", "MissingRequiredParameterException"): _entry("SendMessageBatch"),
    ("SendMessageBatch", "InvalidParameterValueException"): _entry(
        "SendMessageBatch", MessageBody="x", DelaySeconds=901
    ),
    ("SendMessageBatch", "InvalidMessageContents"): _entry("SendMessageBatch", MessageBody="\x07"),
    ("SendMessageBatch", "UnsupportedOperation"): _entry("SendMessageBatch", MessageBody="x", MessageAttributes=LISTED),
    ("DeleteMessageBatch", "MissingRequiredParameterException"): _entry("DeleteMessageBatch"),
    ("DeleteMessageBatch", "ReceiptHandleIsInvalid"): _entry("DeleteMessageBatch", ReceiptHandle="r"),
    ("DeleteMessageBatch", "InvalidParameterValueException"): _expired_entry("DeleteMessageBatch"),
    ("ChangeMessageVisibilityBatch", "MissingRequiredParameterException"): _entry(
        "ChangeMessageVisibilityBatch", ReceiptHandle="r"
    ),
    ("ChangeMessageVisibilityBatch", "ReceiptHandleIsInvalid"): _entry(
        "ChangeMessageVisibilityBatch", ReceiptHandle="r", VisibilityTimeout=1
    ),
    ("ChangeMessageVisibilityBatch", "InvalidParameterValueException"): _too_long(
        "ChangeMessageVisibilityBatch",
        lambda handle: {"Entries": [{"Id": "a", "ReceiptHandle": handle, "VisibilityTimeout": 43_200}]},
    ),
}
"""(action, name of the error) → what leads to it in an entry, which is the only one."""
