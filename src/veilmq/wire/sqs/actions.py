"""The one table of actions: name, request, what is made of it, and what it answers.

A new action is a row here, and every protocol speaks it. ``docs/protocols/sqs.md`` is generated from this table, and
from that of errors in ``scripts/sqs_page.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from veilmq.wire.exchange import Plan, RequestContext
from veilmq.wire.sqs import errors, members, messages, moves, queues
from veilmq.wire.sqs.errors import SqsError, shown
from veilmq.wire.sqs.members import BatchResult, QueueRequest, QueueUrlResult, Shape


@dataclass(frozen=True, slots=True)
class Action:
    """One action; ``plan`` turns its ``request`` into a command or raises ``SqsError``.

    ``result`` is the type of what it answers.
    """

    name: str
    request: type[Shape]
    plan: Callable[[Any, RequestContext], Plan]
    result: type[Shape] | None = None


# fmt: off
_ROWS = (
    Action("CreateQueue", queues.CreateQueueRequest, queues.create_queue, QueueUrlResult),
    Action("GetQueueUrl", queues.GetQueueUrlRequest, queues.get_queue_url, QueueUrlResult),
    Action("ListQueues", queues.ListQueuesRequest, queues.list_queues, queues.ListQueuesResult),
    Action("DeleteQueue", QueueRequest, queues.delete_queue),
    Action("PurgeQueue", QueueRequest, queues.purge_queue),
    Action("GetQueueAttributes", queues.GetQueueAttributesRequest, queues.get_queue_attributes,
           queues.GetQueueAttributesResult),
    Action("SetQueueAttributes", queues.SetQueueAttributesRequest, queues.set_queue_attributes),
    Action("TagQueue", queues.TagQueueRequest, queues.tag_queue),
    Action("UntagQueue", queues.UntagQueueRequest, queues.untag_queue),
    Action("ListQueueTags", QueueRequest, queues.list_queue_tags, queues.ListQueueTagsResult),
    Action("ListDeadLetterSourceQueues", queues.ListDeadLetterSourceQueuesRequest,
           queues.list_dead_letter_source_queues, queues.ListDeadLetterSourceQueuesResult),
    Action("StartMessageMoveTask", moves.StartMessageMoveTaskRequest, moves.start_message_move_task,
           moves.StartMessageMoveTaskResult),
    Action("CancelMessageMoveTask", moves.CancelMessageMoveTaskRequest, moves.cancel_message_move_task,
           moves.CancelMessageMoveTaskResult),
    Action("ListMessageMoveTasks", moves.ListMessageMoveTasksRequest, moves.list_message_move_tasks,
           moves.ListMessageMoveTasksResult),
    Action("AddPermission", queues.AddPermissionRequest, queues.add_permission),
    Action("RemovePermission", queues.RemovePermissionRequest, queues.remove_permission),
    Action("SendMessage", messages.SendMessageRequest, messages.send_message, members.SendMessageResult),
    Action("SendMessageBatch", messages.SendMessageBatchRequest, messages.send_message_batch, BatchResult),
    Action("ReceiveMessage", messages.ReceiveMessageRequest, messages.receive_message, messages.ReceiveMessageResult),
    Action("DeleteMessage", messages.DeleteMessageRequest, messages.delete_message),
    Action("DeleteMessageBatch", messages.DeleteMessageBatchRequest, messages.delete_message_batch, BatchResult),
    Action("ChangeMessageVisibility", messages.ChangeMessageVisibilityRequest, messages.change_message_visibility),
    Action("ChangeMessageVisibilityBatch", messages.ChangeMessageVisibilityBatchRequest,
           messages.change_message_visibility_batch, BatchResult),
)
# fmt: on

ACTIONS: dict[str, Action] = {row.name: row for row in _ROWS}
"""Every action by its name."""


def unknown_action(action: str | bytes) -> SqsError:
    """Return the error for an action that is no row."""
    name = action if isinstance(action, str) else action.decode("ascii", "replace")
    return SqsError(errors.UNKNOWN_OPERATION, f"The action {shown(name)} is not valid for this endpoint.")
