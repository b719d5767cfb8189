"""Queues as pages show them: one by its name in the path, or those whose names begin as asked."""

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
    """Return the path of a route of our API for a queue of this full name, whatever characters somebody put there."""
    return f"/v1/queues/{quote(queue, safe='/@')}/{verb}"


def url_of(queue: str) -> str:
    """Return a URL of a queue of this full name, as actions of SQS take it: they read its path alone."""
    return f"http://localhost/{quote(queue, safe='/@')}"


def queue_at(url: str) -> str:
    """Return the full name of the queue at ``url``, as an answer of SQS has it."""
    return full_name(url)


async def arn_of(asking: Asking, queue: str) -> str:
    """Return the ARN of a queue of this full name; raises ``Refused``."""
    asked = {"QueueUrl": url_of(queue), "AttributeNames": ["QueueArn"]}
    return str((await asking.sqs("GetQueueAttributes", asked))["Attributes"]["QueueArn"])


async def look(visit: Visit) -> ShownQueue:
    """Return the settings and counts of the queue that the path names; raises ``Refused``."""
    return msgspec.convert(await visit.api("GET", route(visit.queue, "show")), ShownQueue)


async def movement(visit: Visit, shown: ShownQueue) -> BrowsedQueue:
    """Return how the queue that the path names moves, as far as that is told: of the caller's own account."""
    account, _, name = visit.queue.partition("/")
    known = BrowsedQueue(name=name)
    if account_of(account) == visit.account:
        found = msgspec.convert(await visit.api("GET", f"/v1/queues/{account}", query={"names": name}), BrowsedQueues)
        known = next(iter(found.queues), known)
    return msgspec.structs.replace(known, visible=shown.visible, in_flight=shown.in_flight, delayed=shown.delayed)


class Named(NamedTuple):
    """Queues of the account whose names begin as asked, by full names; ``problem`` says why nobody looked for them."""

    queues: list[str]
    has_more: bool = False
    problem: str = ""


async def named(visit: Visit, beginning: str, *, count_max: int) -> Named:
    """Return the first queues of the caller's account whose names begin so; raises ``Refused`` for a store away."""
    asked: dict[str, Any] = {"MaxResults": count_max} | ({"QueueNamePrefix": beginning} if beginning else {})
    try:
        found = await visit.sqs("ListQueues", asked)
    except Refused as refused:
        if refused.status >= HTTPStatus.INTERNAL_SERVER_ERROR:  # nothing is known then
            raise
        return Named([], problem=refused.message)
    return Named([queue_at(url) for url in found.get("QueueUrls", ())], has_more="NextToken" in found)


class Sources(NamedTuple):
    """Queues whose dead letters come here, by full names; ``is_known`` unless the caller may not see them."""

    queues: list[str]
    has_more: bool = False
    is_known: bool = True


async def sources(visit: Visit) -> Sources:
    """Return the queues that name this one as their dead-letter queue, as far as the caller may see them."""
    try:
        found = await visit.sqs("ListDeadLetterSourceQueues", {"QueueUrl": visit.queue_url, "MaxResults": _SOURCES_MAX})
    except Refused as refused:
        if not refused.is_denied:
            raise
        return Sources([], is_known=False)
    queues = [queue_at(url) for url in found.get("queueUrls", ())]
    return Sources(queues, has_more="NextToken" in found)
