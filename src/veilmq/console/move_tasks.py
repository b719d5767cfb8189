"""Move tasks as pages show them: dead letters on their way back, how far they are, and how they ended."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from veilmq.console.asking import Asking, Refused
from veilmq.console.queue_look import arn_of
from veilmq.console.visit import Visit
from veilmq.core.limits import SQS_MOVE_TASK_RESULTS

_FAILURES = {
    "CouldNotDetermineMessageSource": "a message was sent to this queue directly, so nobody knows where it came from; "
    "name a destination",
    "AWS.SimpleQueueService.NonExistentQueue": "the queue that a message should go to does not exist, or is of the "
    "other type",
}
_PERCENT = 100


class Task(NamedTuple):
    """A move of the dead letters of ``source``; without a ``destination`` they go back to where they came from.

    ``status`` is in words; ``handle`` is that of one that runs, with which it can be cancelled. ``failure`` says why
    it failed.
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
        """Return how far it is."""
        return _PERCENT if self.moved >= self.to_move else self.moved * _PERCENT // self.to_move


async def latest_moves(asking: Asking, queue: str) -> Sequence[Mapping[str, Any]]:
    """Return the latest tasks of a queue as SQS tells them, the newest first; raises ``Refused``."""
    asked = {"SourceArn": await arn_of(asking, queue), "MaxResults": SQS_MOVE_TASK_RESULTS.maximum}
    found: Sequence[Mapping[str, Any]] = (await asking.sqs("ListMessageMoveTasks", asked)).get("Results", ())
    return found


async def tasks_of(visit: Visit, queue: str) -> list[Task] | None:
    """Return the latest tasks of a queue, the newest first; ``None`` where the caller may not see them."""
    try:
        found = await latest_moves(visit.asking, queue)
    except Refused as refused:
        if refused.is_denied or refused.code == "ResourceNotFoundException":  # it is of another account
            return None
        raise
    return [_task(each) for each in found]


def queue_of(arn: str) -> str:
    """Return the full name of the queue at ``arn``."""
    return "/".join(arn.split(":")[-2:])


def arn_beside(arn: str, name: str) -> str:
    """Return where the queue ``name`` of the same account is."""
    return f"{arn.rpartition(':')[0]}:{name}"


def _task(told: Mapping[str, Any]) -> Task:
    destination = told.get("DestinationArn")
    failure = told.get("FailureReason")
    return Task(
        source=queue_of(told["SourceArn"]),
        destination=None if destination is None else queue_of(destination),
        status=str(told["Status"]).lower(),
        moved=told["ApproximateNumberOfMessagesMoved"],
        to_move=told["ApproximateNumberOfMessagesToMove"],
        per_s_max=told.get("MaxNumberOfMessagesPerSecond"),
        started_at_ms=told["StartedTimestamp"],
        failure="" if failure is None else _FAILURES.get(failure, failure),
        handle=told.get("TaskHandle"),
    )
