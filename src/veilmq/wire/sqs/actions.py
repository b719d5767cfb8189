"""The table of actions. A new action is a request class in the file of its family and a row here, for every protocol.

``docs/protocols/sqs.md`` is generated from this table and from the table of errors in ``scripts/sqs_page.py``.
"""

from typing import NamedTuple

from veilmq.wire.sqs import errors, members, messages, moves, queues
from veilmq.wire.sqs.errors import SqsError, truncated
from veilmq.wire.sqs.members import BatchResult, QueueUrlResult, Request, Shape


class Action(NamedTuple):
    """The types of the request and of the result of an action."""

    request: type[Request]
    result: type[Shape] | None = None


_ROWS = (
    Action(queues.CreateQueue, QueueUrlResult),
    Action(queues.GetQueueUrl, QueueUrlResult),
    Action(queues.ListQueues, queues.ListQueuesResult),
    Action(queues.DeleteQueue),
    Action(queues.PurgeQueue),
    Action(queues.GetQueueAttributes, queues.GetQueueAttributesResult),
    Action(queues.SetQueueAttributes),
    Action(queues.TagQueue),
    Action(queues.UntagQueue),
    Action(queues.ListQueueTags, queues.ListQueueTagsResult),
    Action(queues.ListDeadLetterSourceQueues, queues.ListDeadLetterSourceQueuesResult),
    Action(moves.StartMessageMoveTask, moves.StartMessageMoveTaskResult),
    Action(moves.CancelMessageMoveTask, moves.CancelMessageMoveTaskResult),
    Action(moves.ListMessageMoveTasks, moves.ListMessageMoveTasksResult),
    Action(queues.AddPermission),
    Action(queues.RemovePermission),
    Action(messages.SendMessage, members.SendMessageResult),
    Action(messages.SendMessageBatch, BatchResult),
    Action(messages.ReceiveMessage, messages.ReceiveMessageResult),
    Action(messages.DeleteMessage),
    Action(messages.DeleteMessageBatch, BatchResult),
    Action(messages.ChangeMessageVisibility),
    Action(messages.ChangeMessageVisibilityBatch, BatchResult),
)

ACTIONS: dict[str, Action] = {row.request.__name__: row for row in _ROWS}
"""Actions by name."""


def unknown_action(action: bytes) -> SqsError:
    """Return the error for an action that does not exist."""
    name = truncated(action.decode("ascii", "replace"))
    return SqsError(errors.UNKNOWN_OPERATION, f"The action {name} is not valid for this endpoint.")
