"""Move tasks as pages show them: redrives of dead letters, their progress and outcome."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from veilmq.console.api_client import ApiClient, ApiError
from veilmq.console.page_context import PageContext
from veilmq.console.queue_queries import arn_of
from veilmq.core.limits import SQS_MOVE_TASK_RESULTS

_FAILURES = {
    "CouldNotDetermineMessageSource": "a message was sent to this queue directly, so it has no source queue; set a "
    "destination",
    "AWS.SimpleQueueService.NonExistentQueue": "the destination of a message does not exist or has the other queue "
    "type",
}
_PERCENT = 100


class Task(NamedTuple):
    """A move of the dead letters of ``source``; without a ``destination`` to the queues that they came from.

    ``status`` is for display; ``handle`` cancels a running task; ``failure`` is a reason for display.
    """

    source: str
    destination: str | None
    status: str
    moved: int
    to_move: int
    per_s_max: int | None
    started_at_ms: int
    failure: str
    handle: str | None

    @property
    def percent(self) -> int:
        return _PERCENT if self.moved >= self.to_move else self.moved * _PERCENT // self.to_move


async def latest_moves(client: ApiClient, queue: str) -> Sequence[Mapping[str, Any]]:
    """Return the latest tasks of a queue as returned by SQS, newest first; raises ``ApiError``."""
    fields = {"SourceArn": await arn_of(client, queue), "MaxResults": SQS_MOVE_TASK_RESULTS.maximum}
    tasks: Sequence[Mapping[str, Any]] = (await client.sqs("ListMessageMoveTasks", fields)).get("Results", ())
    return tasks


async def tasks_of(page: PageContext, queue: str) -> list[Task] | None:
    """Return the latest tasks of a queue, newest first; ``None`` if the caller may not see them."""
    try:
        tasks = await latest_moves(page.client, queue)
    except ApiError as error:
        if error.is_denied or error.code == "ResourceNotFoundException":  # it is of another account
            return None
        raise
    return [_task(each) for each in tasks]


def queue_of(arn: str) -> str:
    """Return the full name of the queue at ``arn``."""
    return "/".join(arn.split(":")[-2:])


def _task(task: Mapping[str, Any]) -> Task:
    destination = task.get("DestinationArn")
    failure = task.get("FailureReason")
    return Task(
        source=queue_of(task["SourceArn"]),
        destination=None if destination is None else queue_of(destination),
        status=str(task["Status"]).lower(),
        moved=task["ApproximateNumberOfMessagesMoved"],
        to_move=task["ApproximateNumberOfMessagesToMove"],
        per_s_max=task.get("MaxNumberOfMessagesPerSecond"),
        started_at_ms=task["StartedTimestamp"],
        failure="" if failure is None else _FAILURES.get(failure, failure),
        handle=task.get("TaskHandle"),
    )
