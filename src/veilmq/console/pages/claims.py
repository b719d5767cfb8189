"""Claims: which queues have sources and writers, and what each of these holds."""

import asyncio

from starlette.responses import Response

from veilmq.console.asking import Refused
from veilmq.console.claim_look import Readers, readers
from veilmq.console.page import Page
from veilmq.console.queue_look import named
from veilmq.console.visit import Visit

_QUEUES_MAX = 200
_ASKED_TOGETHER = 16


async def show(visit: Visit) -> Response:
    """Show the queues that are read by claims, or written by publications, among those whose names begin as asked."""
    search = visit.query.get("search", "").strip()
    found = await named(visit, search, count_max=_QUEUES_MAX)
    looked = await _look(visit, found.queues)
    return visit.page(
        "claims.html",
        read=[each for each in looked if each.sources or each.writers],
        hidden=sum(each.is_hidden for each in looked),
        looked_at=len(found.queues),
        has_more=found.has_more,
        search=search,
        problem=found.problem,
    )


async def _look(visit: Visit, queues: list[str]) -> list[Readers]:
    found: list[Readers] = []
    for first in range(0, len(queues), _ASKED_TOGETHER):
        together = queues[first : first + _ASKED_TOGETHER]
        found += await asyncio.gather(*(_if_there(visit, queue) for queue in together))
    return found


async def _if_there(visit: Visit, queue: str) -> Readers:
    try:
        return await readers(visit, queue)
    except Refused as refused:
        if not refused.is_missing:
            raise
        return Readers(queue, [], [])  # it was deleted meanwhile


async def show_queue(visit: Visit) -> Response:
    """Show the sources, claims and writers of one queue."""
    return visit.page("claims_queue.html", queue=visit.queue, found=await readers(visit, visit.queue))


PAGES = (
    Page("/console/claims", show),
    Page("/console/claims/{account}/{name}", show_queue),
)
