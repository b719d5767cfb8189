"""StartMessageMoveTask, CancelMessageMoveTask and ListMessageMoveTasks.

The handle of a task is the base64 of a JSON object with ``taskId`` (a UUID) and ``sourceArn``, as on AWS; some clients
decode it, though they should not.
"""

from base64 import b64decode, b64encode
from typing import Any
from uuid import UUID

import msgspec

from veilmq.core import commands
from veilmq.core.commands import MoveStatus, MoveTask
from veilmq.core.errors import DestinationRefused, QueueNotFound
from veilmq.core.limits import SQS_MOVE_TASK_RESULTS
from veilmq.wire.exchange import Plan, RequestContext, id_text
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.members import Integer, Request, Shape, check_number, required, unwrap
from veilmq.wire.sqs.names import queue_arn, queue_of_arn


class StartMessageMoveTaskResult(Shape):
    task_handle: str


class CancelMessageMoveTaskResult(Shape):
    approximate_number_of_messages_moved: int


class MoveTaskEntry(Shape, kw_only=True):
    """One move task; only a running one has a handle. ``started_timestamp`` is in milliseconds."""

    task_handle: str | None = None
    status: str
    source_arn: str
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None
    approximate_number_of_messages_moved: int
    approximate_number_of_messages_to_move: int
    failure_reason: str | None = None
    started_timestamp: int


class ListMessageMoveTasksResult(Shape):
    results: list[MoveTaskEntry]


_SOURCE = "SourceArn"
_DESTINATION = "DestinationArn"
_RATE = "MaxNumberOfMessagesPerSecond"

_FAILURES = {
    commands.SOURCE_UNKNOWN: "CouldNotDetermineMessageSource",
    commands.QUEUE_MISSING: "AWS.SimpleQueueService.NonExistentQueue",
    commands.NOT_ALLOWED: "AccessDenied",
}
"""Failure of a task → its name on AWS (SQS Developer Guide, "Troubleshoot DLQ redrive")."""


class _Handle(msgspec.Struct, rename="camel", frozen=True):
    task_id: str
    source_arn: str


_handle_decoder = msgspec.json.Decoder(_Handle)


class StartMessageMoveTask(Request):
    """StartMessageMoveTask: moves the messages of a dead-letter queue to their sources, or to one queue."""

    source_arn: str | None = None
    destination_arn: str | None = None
    max_number_of_messages_per_second: Integer | None = None

    def plan(self, context: RequestContext) -> Plan:
        source = _queue(_SOURCE, required(_SOURCE, self.source_arn), context)
        destination = _queue(_DESTINATION, self.destination_arn, context) if self.destination_arn else None
        check_number(_RATE, self.max_number_of_messages_per_second)

        def respond(result: Any) -> StartMessageMoveTaskResult:
            if isinstance(result, QueueNotFound):
                raise _resource_not_found(_SOURCE if result.queue == source else _DESTINATION)
            if isinstance(result, DestinationRefused):
                raise errors.invalid_parameter(_DESTINATION, self.destination_arn, str(result))
            return StartMessageMoveTaskResult(task_handle=task_handle(unwrap(result), context))

        command = commands.StartMove(
            source=source,
            destination=destination,
            moves_per_s_max=self.max_number_of_messages_per_second,
            starter=None if context.caller is None else context.caller.arn,
        )
        return Plan(command, respond)


class CancelMessageMoveTask(Request):
    """CancelMessageMoveTask: stops a running task; moved messages stay moved."""

    task_handle: str | None = None

    def plan(self, context: RequestContext) -> Plan:
        source, task = task_of(required("TaskHandle", self.task_handle), context)

        def respond(result: Any) -> CancelMessageMoveTaskResult:
            return CancelMessageMoveTaskResult(approximate_number_of_messages_moved=_unwrap(result).messages_moved)

        return Plan(commands.CancelMove(source=source, task=task), respond)


class ListMessageMoveTasks(Request):
    """ListMessageMoveTasks: lists the latest tasks of a dead-letter queue, newest first; a running one has a handle."""

    source_arn: str | None = None
    max_results: Integer | None = None

    def plan(self, context: RequestContext) -> Plan:
        source = _queue(_SOURCE, required(_SOURCE, self.source_arn), context)
        check_number("ListMessageMoveTasks.MaxResults", self.max_results)

        def respond(result: Any) -> ListMessageMoveTasksResult:
            tasks: list[MoveTask] = _unwrap(result)
            entries = [
                MoveTaskEntry(
                    task_handle=task_handle(task, context) if task.status is MoveStatus.RUNNING else None,
                    status=task.status.name,
                    source_arn=queue_arn(task.source, context),
                    destination_arn=queue_arn(task.destination, context) if task.destination is not None else None,
                    max_number_of_messages_per_second=task.moves_per_s_max,
                    approximate_number_of_messages_moved=task.messages_moved,
                    approximate_number_of_messages_to_move=task.messages_to_move,
                    failure_reason=None if task.failure is None else _FAILURES[task.failure],
                    started_timestamp=task.started_at_ms,
                )
                for task in tasks
            ]
            return ListMessageMoveTasksResult(results=entries)

        count = SQS_MOVE_TASK_RESULTS.default if self.max_results is None else self.max_results
        return Plan(commands.ListMoves(source=source, count=count), respond)


def task_handle(task: MoveTask, context: RequestContext) -> str:
    """Return the handle of ``task``, by which it can be cancelled."""
    handle = _Handle(task_id=id_text(task.id), source_arn=queue_arn(task.source, context))
    return b64encode(msgspec.json.encode(handle)).decode()


def task_of(handle: str, context: RequestContext) -> tuple[str, bytes]:
    """Return the source queue and the id of the task with ``handle``.

    Raises InvalidParameterValue, or ResourceNotFoundException for a queue of another account.
    """
    try:
        read = _handle_decoder.decode(b64decode(handle, validate=True))
        task = UUID(read.task_id).bytes
    except (ValueError, msgspec.MsgspecError, RecursionError):
        raise errors.invalid("Value for parameter TaskHandle is invalid.") from None
    return _queue(_SOURCE, read.source_arn, context), task


def _queue(member: str, arn: str, context: RequestContext) -> str:
    """Return the queue at ``arn``, which must be the caller's: policies cannot allow moves in other accounts."""
    queue = queue_of_arn(arn, context)
    if queue is None or not queue.startswith(f"{context.account}/"):
        raise _resource_not_found(member)
    return queue


def _unwrap(result: Any) -> Any:
    """Like ``unwrap``, with ResourceNotFoundException for a missing source queue."""
    if isinstance(result, QueueNotFound):
        raise _resource_not_found(_SOURCE)
    return unwrap(result)


def _resource_not_found(member: str) -> SqsError:
    return SqsError(
        errors.RESOURCE_NOT_FOUND, f"The resource that you specified for the {member} parameter doesn't exist."
    )
