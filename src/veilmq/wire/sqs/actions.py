"""The one table of actions: name, request, what is made of it, and with which errors it may be answered.

A new action is a row here, and every protocol speaks it. The errors are those of the action itself; ``EVERYWHERE``
adds what any request may be answered with. ``docs/protocols/sqs.md`` is generated from this table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from veilmq.wire.exchange import Plan, RequestContext
from veilmq.wire.sqs import errors, moves, queues
from veilmq.wire.sqs.errors import Code, SqsError, shown
from veilmq.wire.sqs.members import TRACE_HEADER, GetQueueUrlRequest, QueueRequest, Shape
from veilmq.wire.sqs.messages import (
    SYSTEM_ATTRIBUTES,
    ChangeMessageVisibilityBatchRequest,
    ChangeMessageVisibilityRequest,
    DeleteMessageBatchRequest,
    DeleteMessageRequest,
    ReceiveMessageRequest,
    SendMessageBatchRequest,
    SendMessageRequest,
    change_message_visibility,
    change_message_visibility_batch,
    delete_message,
    delete_message_batch,
    receive_message,
    send_message,
    send_message_batch,
)
from veilmq.wire.sqs.moves import CancelMessageMoveTaskRequest, ListMessageMoveTasksRequest, StartMessageMoveTaskRequest
from veilmq.wire.sqs.queue_attributes import READ_ONLY, SETTINGS
from veilmq.wire.sqs.queues import (
    AddPermissionRequest,
    CreateQueueRequest,
    GetQueueAttributesRequest,
    ListDeadLetterSourceQueuesRequest,
    ListQueuesRequest,
    RemovePermissionRequest,
    SetQueueAttributesRequest,
    TagQueueRequest,
    UntagQueueRequest,
    add_permission,
    list_queue_tags,
    remove_permission,
    tag_queue,
    untag_queue,
)


@dataclass(frozen=True, slots=True)
class Action:
    """One action; ``plan`` turns its ``request`` into a command or raises ``SqsError``.

    ``entry_errors`` are reported for single entries of a batch, beside entries that succeed. ``attributes`` are those
    of queues or messages that the action reads or returns by name.
    """

    name: str
    request: type[Shape]
    plan: Callable[[Any, RequestContext], Plan]
    errors: tuple[Code, ...]
    entry_errors: tuple[Code, ...] = ()
    attributes: tuple[str, ...] = ()


EVERYWHERE: tuple[Code, ...] = (errors.UNKNOWN_OPERATION, errors.INTERNAL_FAILURE, errors.SERVICE_UNAVAILABLE)
"""What every request may be answered with."""

BY_PROTOCOL: dict[str, tuple[Code, ...]] = {
    "AWS JSON": (errors.SERIALIZATION,),
    "Query": (errors.INVALID_ADDRESS, errors.MALFORMED_INPUT, errors.MALFORMED_QUERY_STRING, errors.NO_SUCH_VERSION),
}
"""What every request in a protocol may be answered with beside that."""

WITH_CREDENTIALS: tuple[Code, ...] = (
    errors.MISSING_AUTHENTICATION_TOKEN,
    errors.INCOMPLETE_SIGNATURE,
    errors.INVALID_CLIENT_TOKEN_ID,
    errors.SIGNATURE_DOES_NOT_MATCH,
    errors.EXPIRED_TOKEN,
    errors.REQUEST_EXPIRED,
    errors.ACCESS_DENIED,
)
"""What every request may be answered with beside that, where the server has a credentials file."""

_ON_QUEUE = (errors.MISSING_PARAMETER, errors.QUEUE_DOES_NOT_EXIST)
_BATCH = (
    *_ON_QUEUE,
    errors.EMPTY_BATCH_REQUEST,
    errors.TOO_MANY_ENTRIES,
    errors.INVALID_ENTRY_ID,
    errors.ENTRY_IDS_NOT_DISTINCT,
    errors.INVALID_PARAMETER_VALUE,
)
_SETTINGS = (errors.INVALID_ATTRIBUTE_NAME, errors.INVALID_ATTRIBUTE_VALUE)
_MESSAGE = (errors.INVALID_PARAMETER_VALUE, errors.INVALID_MESSAGE_CONTENTS, errors.UNSUPPORTED_OPERATION)
_RECEIPT = (errors.RECEIPT_HANDLE_IS_INVALID, errors.INVALID_PARAMETER_VALUE)
_MOVE = (errors.MISSING_PARAMETER, errors.INVALID_PARAMETER_VALUE, errors.RESOURCE_NOT_FOUND)
_ENTRY_MEMBERS = (errors.MISSING_PARAMETER,)

_ROWS = (
    Action(
        "CreateQueue",
        CreateQueueRequest,
        queues.create_queue,
        (
            errors.MISSING_PARAMETER,
            errors.INVALID_PARAMETER_VALUE,
            errors.QUEUE_NAME_EXISTS,
            errors.QUEUE_DELETED_RECENTLY,
            *_SETTINGS,
        ),
        attributes=tuple(SETTINGS),
    ),
    Action(
        "GetQueueUrl",
        GetQueueUrlRequest,
        queues.get_queue_url,
        (errors.MISSING_PARAMETER, errors.INVALID_PARAMETER_VALUE, errors.QUEUE_DOES_NOT_EXIST),
    ),
    Action("ListQueues", ListQueuesRequest, queues.list_queues, (errors.INVALID_PARAMETER_VALUE,)),
    Action("DeleteQueue", QueueRequest, queues.delete_queue, _ON_QUEUE),
    Action("PurgeQueue", QueueRequest, queues.purge_queue, (*_ON_QUEUE, errors.PURGE_IN_PROGRESS)),
    Action(
        "GetQueueAttributes",
        GetQueueAttributesRequest,
        queues.get_queue_attributes,
        (*_ON_QUEUE, errors.INVALID_PARAMETER_VALUE, errors.INVALID_ATTRIBUTE_NAME),
        attributes=(*SETTINGS, *READ_ONLY),
    ),
    Action(
        "SetQueueAttributes",
        SetQueueAttributesRequest,
        queues.set_queue_attributes,
        (*_ON_QUEUE, errors.INVALID_PARAMETER_VALUE, *_SETTINGS),
        attributes=tuple(SETTINGS),
    ),
    Action("TagQueue", TagQueueRequest, tag_queue, (*_ON_QUEUE, errors.INVALID_PARAMETER_VALUE)),
    Action("UntagQueue", UntagQueueRequest, untag_queue, (*_ON_QUEUE, errors.INVALID_PARAMETER_VALUE)),
    Action("ListQueueTags", QueueRequest, list_queue_tags, _ON_QUEUE),
    Action(
        "ListDeadLetterSourceQueues",
        ListDeadLetterSourceQueuesRequest,
        queues.list_dead_letter_source_queues,
        (*_ON_QUEUE, errors.INVALID_PARAMETER_VALUE),
    ),
    Action("StartMessageMoveTask", StartMessageMoveTaskRequest, moves.start_message_move_task, _MOVE),
    Action("CancelMessageMoveTask", CancelMessageMoveTaskRequest, moves.cancel_message_move_task, _MOVE),
    Action("ListMessageMoveTasks", ListMessageMoveTasksRequest, moves.list_message_move_tasks, _MOVE),
    Action(
        "AddPermission",
        AddPermissionRequest,
        add_permission,
        (*_ON_QUEUE, errors.INVALID_PARAMETER_VALUE, errors.OVER_LIMIT),
    ),
    Action(
        "RemovePermission", RemovePermissionRequest, remove_permission, (*_ON_QUEUE, errors.INVALID_PARAMETER_VALUE)
    ),
    Action("SendMessage", SendMessageRequest, send_message, (*_ON_QUEUE, *_MESSAGE), attributes=(TRACE_HEADER,)),
    Action(
        "SendMessageBatch",
        SendMessageBatchRequest,
        send_message_batch,
        (*_BATCH, errors.BATCH_TOO_LONG),
        (*_ENTRY_MEMBERS, *_MESSAGE),
        attributes=(TRACE_HEADER,),
    ),
    Action(
        "ReceiveMessage",
        ReceiveMessageRequest,
        receive_message,
        (
            *_ON_QUEUE,
            errors.INVALID_PARAMETER_VALUE,
            errors.INVALID_ATTRIBUTE_NAME,
            errors.OVER_LIMIT,
            errors.REQUEST_THROTTLED,
        ),
        attributes=tuple(SYSTEM_ATTRIBUTES),
    ),
    Action("DeleteMessage", DeleteMessageRequest, delete_message, (*_ON_QUEUE, *_RECEIPT)),
    Action("DeleteMessageBatch", DeleteMessageBatchRequest, delete_message_batch, _BATCH, (*_ENTRY_MEMBERS, *_RECEIPT)),
    Action(
        "ChangeMessageVisibility", ChangeMessageVisibilityRequest, change_message_visibility, (*_ON_QUEUE, *_RECEIPT)
    ),
    Action(
        "ChangeMessageVisibilityBatch",
        ChangeMessageVisibilityBatchRequest,
        change_message_visibility_batch,
        _BATCH,
        (*_ENTRY_MEMBERS, *_RECEIPT),
    ),
)

ACTIONS: dict[str, Action] = {row.name: row for row in _ROWS}
"""Every action by its name."""


def unknown_action(action: str | bytes) -> SqsError:
    """Return the error for an action that is no row."""
    name = action if isinstance(action, str) else action.decode("ascii", "replace")
    return SqsError(errors.UNKNOWN_OPERATION, f"The action {shown(name)} is not valid for this endpoint.")
