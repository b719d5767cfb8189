"""Queries for pages: one queue, queues by prefix, dead-letter sources."""

from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from veilmq.console.asking import Asking, Refused
from veilmq.console.visit import Visit
from veilmq.core.commands import BrowsedQueue, BrowsedQueues
from veilmq.wire.sqs.names import account_of, full_name
from veilmq.wire.v1.queues import ShownQueue

_SOURCES_MAX = 100


def route(queue: str, verb: str) -> str:
    """Return the API path of a route for a queue, by its full name."""
    return f"/v1/queues/{quote(queue, safe='/@')}/{verb}"


def url_of(queue: str) -> str:
    """Return a URL for actions of SQS, which use only its path, by the queue's full name."""
    return f"http://localhost/{quote(queue, safe='/@')}"


def queue_at(url: str) -> str:
    """Return the full name of the queue at ``url``, a URL returned by SQS."""
    return full_name(url)


async def arn_of(asking: Asking, queue: str) -> str:
    """Return the ARN of a queue, by its full name; raises ``Refused``."""
    asked = {"QueueUrl": url_of(queue), "AttributeNames": ["QueueArn"]}
    return str((await asking.sqs("GetQueueAttributes", asked))["Attributes"]["QueueArn"])


async def look(visit: Visit) -> ShownQueue:
    """Return settings and counts of the page's queue; raises ``Refused``."""
    return msgspec.convert(await visit.api("GET", route(visit.queue, "show")), ShownQueue)


async def movement(visit: Visit, shown: ShownQueue) -> BrowsedQueue:
    """Return the counts and, if it is of the caller's account, the rates of the page's queue."""
    account, _, name = visit.queue.partition("/")
    known = BrowsedQueue(name=name)
    if account_of(account) == visit.account:
        found = msgspec.convert(await visit.api("GET", f"/v1/queues/{account}", query={"names": name}), BrowsedQueues)
        known = next(iter(found.queues), known)
    return msgspec.structs.replace(known, visible=shown.visible, in_flight=shown.in_flight, delayed=shown.delayed)


class Named(NamedTuple):
    """Full names of queues with a prefix; ``problem`` says why the prefix is invalid."""

    queues: list[str]
    has_more: bool = False
    problem: str = ""


async def named(visit: Visit, beginning: str, *, count_max: int) -> Named:
    """Return the first queues of the caller's account with the prefix; raises ``Refused`` if the store fails."""
    asked: dict[str, Any] = {"MaxResults": count_max} | ({"QueueNamePrefix": beginning} if beginning else {})
    try:
        found = await visit.sqs("ListQueues", asked)
    except Refused as refused:
        if refused.status >= HTTPStatus.INTERNAL_SERVER_ERROR:  # nothing is known then
            raise
        return Named([], problem=refused.message)
    return Named([queue_at(url) for url in found.get("QueueUrls", ())], has_more="NextToken" in found)


class Sources(NamedTuple):
    """Full names of queues whose dead-letter queue this is; ``is_known`` is False if the caller may not list them."""

    queues: list[str]
    has_more: bool = False
    is_known: bool = True


async def sources(visit: Visit) -> Sources:
    """Return the queues that have the page's queue as their dead-letter queue."""
    try:
        found = await visit.sqs("ListDeadLetterSourceQueues", {"QueueUrl": visit.queue_url, "MaxResults": _SOURCES_MAX})
    except Refused as refused:
        if not refused.is_denied:
            raise
        return Sources([], is_known=False)
    queues = [queue_at(url) for url in found.get("queueUrls", ())]
    return Sources(queues, has_more="NextToken" in found)
