"""Queries for pages: one queue, queues by prefix, dead-letter sources, and move tasks (redrives of dead letters)."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from veilmq.console.api_client import ApiClient, ApiError, api_path
from veilmq.console.page_context import PageContext
from veilmq.core.commands import BrowsedQueue, BrowsedQueues
from veilmq.core.limits import SQS_MOVE_TASK_RESULTS
from veilmq.wire.sqs.names import account_of, full_name
from veilmq.wire.v1.queues import ShownQueue

_SOURCES_MAX = 100


def url_of(queue: str) -> str:
    """Return a URL for actions of SQS, which use only its path, by the queue's full name."""
    return f"http://localhost/{quote(queue, safe='/@')}"


async def arn_of(client: ApiClient, queue: str) -> str:
    """Return the ARN of a queue, by its full name; raises ``ApiError``."""
    fields = {"QueueUrl": url_of(queue), "AttributeNames": ["QueueArn"]}
    return str((await client.sqs("GetQueueAttributes", fields))["Attributes"]["QueueArn"])


async def show_queue(page: PageContext) -> ShownQueue:
    """Return settings and counts of the page's queue; raises ``ApiError``."""
    return msgspec.convert(await page.api("GET", api_path("queues", page.queue, "show")), ShownQueue)


async def queue_rates(page: PageContext, shown: ShownQueue) -> BrowsedQueue:
    """Return the counts and, if it is of the caller's account, the rates of the page's queue."""
    account, _, name = page.queue.partition("/")
    counts = BrowsedQueue(name=name)
    if account_of(account) == page.account:
        counts = next(iter((await browse(page.client, {"names": name}, account)).queues), counts)
    return msgspec.structs.replace(counts, visible=shown.visible, in_flight=shown.in_flight, delayed=shown.delayed)


async def browse(client: ApiClient, query: Mapping[str, Any], account: str = "-") -> BrowsedQueues:
    """Return queues of an account, by default the caller's, with their counts; raises ``ApiError``."""
    return msgspec.convert(await client.api("GET", f"/v1/queues/{account}", query=query), BrowsedQueues)


class QueueList(NamedTuple):
    """Full names of queues with a prefix; ``problem`` says why the prefix is invalid."""

    queues: list[str]
    has_more: bool = False
    problem: str = ""


async def queues_with_prefix(page: PageContext, prefix: str, *, count_max: int) -> QueueList:
    """Return the first queues of the caller's account with the prefix; raises ``ApiError`` if the store fails."""
    fields: dict[str, Any] = {"MaxResults": count_max} | ({"QueueNamePrefix": prefix} if prefix else {})
    try:
        reply = await page.sqs("ListQueues", fields)
    except ApiError as error:
        if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:  # nothing is known then
            raise
        return QueueList([], problem=error.message)
    return QueueList([full_name(url) for url in reply.get("QueueUrls", ())], has_more="NextToken" in reply)


class DeadLetterSources(NamedTuple):
    """Full names of queues whose dead-letter queue this is; ``is_known`` is False if the caller may not list them."""

    queues: list[str]
    has_more: bool = False
    is_known: bool = True


async def dead_letter_sources(page: PageContext) -> DeadLetterSources:
    """Return the queues that have the page's queue as their dead-letter queue."""
    try:
        reply = await page.sqs("ListDeadLetterSourceQueues", {"QueueUrl": page.queue_url, "MaxResults": _SOURCES_MAX})
    except ApiError as error:
        if not error.is_denied:
            raise
        return DeadLetterSources([], is_known=False)
    queues = [full_name(url) for url in reply.get("queueUrls", ())]
    return DeadLetterSources(queues, has_more="NextToken" in reply)


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
