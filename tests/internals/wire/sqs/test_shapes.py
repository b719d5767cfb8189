"""The structs against the service model that botocore brings: the same members under the same names."""

from typing import Any

import msgspec
import pytest
from botocore.model import StructureShape

from tests.clients.sqs_client import service_model
from veilmq.wire.sqs.actions import ACTIONS
from veilmq.wire.sqs.members import (
    AttributeValue,
    BatchResult,
    BatchResultEntry,
    BatchResultErrorEntry,
    ChangedResultEntry,
    SendMessageBatchResultEntry,
    SendMessageResult,
    wire_name,
)
from veilmq.wire.sqs.messages import (
    ChangeMessageVisibilityBatchEntry,
    DeleteMessageBatchEntry,
    Message,
    ReceiveMessageResult,
    SendMessageBatchEntry,
)
from veilmq.wire.sqs.moves import (
    CancelMessageMoveTaskResult,
    ListMessageMoveTasksResult,
    MoveTaskEntry,
    StartMessageMoveTaskResult,
)
from veilmq.wire.sqs.queues import (
    GetQueueAttributesResult,
    ListDeadLetterSourceQueuesResult,
    ListQueuesResult,
    ListQueueTagsResult,
    QueueUrlResult,
)


def members(struct: type[msgspec.Struct]) -> set[str]:
    """Return the wire names of a struct's fields."""
    return {field.encode_name for field in msgspec.structs.fields(struct)}


def shape(name: str) -> StructureShape:
    """Return a structure of the service model."""
    found: Any = service_model().shape_for(name)
    return found


@pytest.mark.parametrize("action", list(ACTIONS))
def test_a_request_has_the_members_of_the_model(action: str) -> None:
    """No more and no fewer."""
    operation = service_model().operation_model(action)
    assert members(ACTIONS[action].request) == set(operation.input_shape.members)


def test_every_action_of_the_model_is_here() -> None:
    """And no other."""
    assert set(service_model().operation_names) == set(ACTIONS)


@pytest.mark.parametrize(
    ("struct", "name"),
    [
        (SendMessageBatchEntry, "SendMessageBatchRequestEntry"),
        (DeleteMessageBatchEntry, "DeleteMessageBatchRequestEntry"),
        (ChangeMessageVisibilityBatchEntry, "ChangeMessageVisibilityBatchRequestEntry"),
        (AttributeValue, "MessageAttributeValue"),
        (QueueUrlResult, "CreateQueueResult"),
        (QueueUrlResult, "GetQueueUrlResult"),
        (ListQueuesResult, "ListQueuesResult"),
        (GetQueueAttributesResult, "GetQueueAttributesResult"),
        (SendMessageResult, "SendMessageResult"),
        (SendMessageBatchResultEntry, "SendMessageBatchResultEntry"),
        (BatchResult, "SendMessageBatchResult"),
        (BatchResult, "DeleteMessageBatchResult"),
        (BatchResultEntry, "DeleteMessageBatchResultEntry"),
        (BatchResultErrorEntry, "BatchResultErrorEntry"),
        (Message, "Message"),
        (ReceiveMessageResult, "ReceiveMessageResult"),
        (ListQueueTagsResult, "ListQueueTagsResult"),
        (ListDeadLetterSourceQueuesResult, "ListDeadLetterSourceQueuesResult"),
        (StartMessageMoveTaskResult, "StartMessageMoveTaskResult"),
        (CancelMessageMoveTaskResult, "CancelMessageMoveTaskResult"),
        (ListMessageMoveTasksResult, "ListMessageMoveTasksResult"),
        (MoveTaskEntry, "ListMessageMoveTasksResultEntry"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_structure_has_the_members_of_the_model(struct: type[msgspec.Struct], name: str) -> None:
    """No more and no fewer."""
    assert members(struct) == set(shape(name).members)


def test_the_members_of_ours() -> None:
    """They are added to what the model says of a change that succeeded."""
    theirs = set(shape("ChangeMessageVisibilityBatchResultEntry").members)
    assert members(ChangedResultEntry) - theirs == {"VeilmqHiddenForMs", "VeilmqReceipt"}


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("queue_url", "QueueUrl"),
        ("md5_of_message_body", "MD5OfMessageBody"),
        ("queue_owner_aws_account_id", "QueueOwnerAWSAccountId"),
        ("tags", "tags"),
    ],
)
def test_wire_names(field: str, name: str) -> None:
    """Words are capitalised, acronyms kept, and one member of the model is lower case."""
    assert wire_name(field) == name
