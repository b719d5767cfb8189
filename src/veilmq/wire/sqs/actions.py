"""The one table of actions: name, request, what is made of it, and with which errors it may be answered.

A new action is a row here, and every protocol speaks it. The errors are those of the action itself; ``EVERYWHERE``
adds what any request may be answered with. ``docs/protocols/sqs.md`` is generated from this table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from veilmq.wire.exchange import Plan, RequestContext
from veilmq.wire.sqs import errors, members, messages, moves, queues
from veilmq.wire.sqs.errors import Code, SqsError, shown
from veilmq.wire.sqs.members import TRACE_HEADER, BatchResult, QueueRequest, QueueUrlResult, Shape
from veilmq.wire.sqs.queue_attributes import READ_ONLY, SETTINGS


@dataclass(frozen=True, slots=True)
class Action:
    """One action; ``plan`` turns its ``request`` into a command or raises ``SqsError``.

    ``entry_errors`` are reported for single entries of a batch, beside entries that succeed. ``attributes`` are those
    of queues or messages that the action reads or returns by name. ``result`` is the type of what it answers.
    """

    name: str
    request: type[Shape]
    plan: Callable[[Any, RequestContext], Plan]
    result: type[Shape] | None
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

_MISSING, _INVALID = errors.MISSING_PARAMETER, errors.INVALID_PARAMETER_VALUE
_ON_QUEUE = (_MISSING, errors.QUEUE_DOES_NOT_EXIST)
_BATCH = (
    *_ON_QUEUE,
    errors.EMPTY_BATCH_REQUEST,
    errors.TOO_MANY_ENTRIES,
    errors.INVALID_ENTRY_ID,
    errors.ENTRY_IDS_NOT_DISTINCT,
    _INVALID,
)
_SETTINGS = (errors.INVALID_ATTRIBUTE_NAME, errors.INVALID_ATTRIBUTE_VALUE)
_CREATION = (_MISSING, _INVALID, errors.QUEUE_NAME_EXISTS, errors.QUEUE_DELETED_RECENTLY, *_SETTINGS)
_MESSAGE = (_INVALID, errors.INVALID_MESSAGE_CONTENTS, errors.UNSUPPORTED_OPERATION)
_RECEIVE = (*_ON_QUEUE, _INVALID, errors.INVALID_ATTRIBUTE_NAME, errors.OVER_LIMIT, errors.REQUEST_THROTTLED)
_RECEIPT = (errors.RECEIPT_HANDLE_IS_INVALID, _INVALID)
_MOVE = (_MISSING, _INVALID, errors.RESOURCE_NOT_FOUND)

# fmt: off
_ROWS = (
    Action("CreateQueue", queues.CreateQueueRequest, queues.create_queue, QueueUrlResult, _CREATION,
           attributes=tuple(SETTINGS)),
    Action("GetQueueUrl", queues.GetQueueUrlRequest, queues.get_queue_url, QueueUrlResult,
           (_MISSING, _INVALID, errors.QUEUE_DOES_NOT_EXIST)),
    Action("ListQueues", queues.ListQueuesRequest, queues.list_queues, queues.ListQueuesResult, (_INVALID,)),
    Action("DeleteQueue", QueueRequest, queues.delete_queue, None, _ON_QUEUE),
    Action("PurgeQueue", QueueRequest, queues.purge_queue, None, (*_ON_QUEUE, errors.PURGE_IN_PROGRESS)),
    Action("GetQueueAttributes", queues.GetQueueAttributesRequest, queues.get_queue_attributes,
           queues.GetQueueAttributesResult, (*_ON_QUEUE, _INVALID, errors.INVALID_ATTRIBUTE_NAME),
           attributes=(*SETTINGS, *READ_ONLY)),
    Action("SetQueueAttributes", queues.SetQueueAttributesRequest, queues.set_queue_attributes, None,
           (*_ON_QUEUE, _INVALID, *_SETTINGS), attributes=tuple(SETTINGS)),
    Action("TagQueue", queues.TagQueueRequest, queues.tag_queue, None, (*_ON_QUEUE, _INVALID)),
    Action("UntagQueue", queues.UntagQueueRequest, queues.untag_queue, None, (*_ON_QUEUE, _INVALID)),
    Action("ListQueueTags", QueueRequest, queues.list_queue_tags, queues.ListQueueTagsResult, _ON_QUEUE),
    Action("ListDeadLetterSourceQueues", queues.ListDeadLetterSourceQueuesRequest,
           queues.list_dead_letter_source_queues, queues.ListDeadLetterSourceQueuesResult, (*_ON_QUEUE, _INVALID)),
    Action("StartMessageMoveTask", moves.StartMessageMoveTaskRequest, moves.start_message_move_task,
           moves.StartMessageMoveTaskResult, _MOVE),
    Action("CancelMessageMoveTask", moves.CancelMessageMoveTaskRequest, moves.cancel_message_move_task,
           moves.CancelMessageMoveTaskResult, _MOVE),
    Action("ListMessageMoveTasks", moves.ListMessageMoveTasksRequest, moves.list_message_move_tasks,
           moves.ListMessageMoveTasksResult, _MOVE),
    Action("AddPermission", queues.AddPermissionRequest, queues.add_permission, None,
           (*_ON_QUEUE, _INVALID, errors.OVER_LIMIT)),
    Action("RemovePermission", queues.RemovePermissionRequest, queues.remove_permission, None, (*_ON_QUEUE, _INVALID)),
    Action("SendMessage", messages.SendMessageRequest, messages.send_message, members.SendMessageResult,
           (*_ON_QUEUE, *_MESSAGE), attributes=(TRACE_HEADER,)),
    Action("SendMessageBatch", messages.SendMessageBatchRequest, messages.send_message_batch, BatchResult,
           (*_BATCH, errors.BATCH_TOO_LONG), (_MISSING, *_MESSAGE), (TRACE_HEADER,)),
    Action("ReceiveMessage", messages.ReceiveMessageRequest, messages.receive_message, messages.ReceiveMessageResult,
           _RECEIVE, attributes=tuple(messages.SYSTEM_ATTRIBUTES)),
    Action("DeleteMessage", messages.DeleteMessageRequest, messages.delete_message, None, (*_ON_QUEUE, *_RECEIPT)),
    Action("DeleteMessageBatch", messages.DeleteMessageBatchRequest, messages.delete_message_batch, BatchResult,
           _BATCH, (_MISSING, *_RECEIPT)),
    Action("ChangeMessageVisibility", messages.ChangeMessageVisibilityRequest, messages.change_message_visibility, None,
           (*_ON_QUEUE, *_RECEIPT)),
    Action("ChangeMessageVisibilityBatch", messages.ChangeMessageVisibilityBatchRequest,
           messages.change_message_visibility_batch, BatchResult, _BATCH, (_MISSING, *_RECEIPT)),
)
# fmt: on

ACTIONS: dict[str, Action] = {row.name: row for row in _ROWS}
"""Every action by its name."""


def unknown_action(action: str | bytes) -> SqsError:
    """Return the error for an action that is no row."""
    name = action if isinstance(action, str) else action.decode("ascii", "replace")
    return SqsError(errors.UNKNOWN_OPERATION, f"The action {shown(name)} is not valid for this endpoint.")
