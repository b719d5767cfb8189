"""Queries for pages: one queue, queues by prefix, dead-letter sources."""

from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from veilmq.console.api_client import ApiClient, ApiError, api_path
from veilmq.console.page_context import PageContext
from veilmq.core.commands import BrowsedQueue, BrowsedQueues
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
        browsed = msgspec.convert(await page.api("GET", f"/v1/queues/{account}", query={"names": name}), BrowsedQueues)
        counts = next(iter(browsed.queues), counts)
    return msgspec.structs.replace(counts, visible=shown.visible, in_flight=shown.in_flight, delayed=shown.delayed)


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
