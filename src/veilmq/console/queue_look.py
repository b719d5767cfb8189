"""One queue as pages show it: asked for by its name in the path."""

from typing import NamedTuple
from urllib.parse import quote

import msgspec

from veilmq.console.asking import Refused
from veilmq.console.visit import Visit
from veilmq.core.browsing import BrowsedQueue, BrowsedQueues
from veilmq.wire.v1.queue_settings import ShownQueue

_SOURCES_MAX = 100


def route(queue: str, verb: str) -> str:
    """Return the path of a route of our API for a queue of this full name, whatever characters somebody put there."""
    return f"/v1/queues/{quote(queue)}/{verb}"


async def look(visit: Visit) -> ShownQueue:
    """Return the settings and counts of the queue that the path names; raises ``Refused``."""
    return msgspec.convert(await visit.api("GET", route(visit.queue, "show")), ShownQueue)


async def movement(visit: Visit, shown: ShownQueue) -> BrowsedQueue:
    """Return how the queue that the path names moves, as far as that is told: of the caller's own account."""
    account, _, name = visit.queue.partition("/")
    known = BrowsedQueue(name=name)
    if account == visit.account:
        found = msgspec.convert(await visit.api("GET", "/v1/queues/-", query={"names": name}), BrowsedQueues)
        known = next(iter(found.queues), known)
    return msgspec.structs.replace(known, visible=shown.visible, in_flight=shown.in_flight, delayed=shown.delayed)


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
    queues = ["/".join(url.split("/")[-2:]) for url in found.get("queueUrls", ())]
    return Sources(queues, has_more="NextToken" in found)
