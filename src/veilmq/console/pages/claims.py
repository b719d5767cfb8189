"""Claims: which queues have sources and writers, and what each of these holds."""

import asyncio
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from veilmq.console.asking import Refused
from veilmq.console.claim_look import Readers, readers
from veilmq.console.page import Page
from veilmq.console.visit import Visit

_QUEUES_MAX = 200
_ASKED_TOGETHER = 16


async def show(visit: Visit) -> Response:
    """Show the queues that are read by claims, or written by publications, among those whose names begin as asked."""
    search = visit.query.get("search", "").strip()
    asked: dict[str, Any] = {"MaxResults": _QUEUES_MAX} | ({"QueueNamePrefix": search} if search else {})
    problem = ""
    try:
        found = await visit.sqs("ListQueues", asked)
    except Refused as refused:
        if refused.status >= HTTPStatus.INTERNAL_SERVER_ERROR:  # nothing is known then
            raise
        found, problem = {}, refused.message
    queues = ["/".join(url.split("/")[-2:]) for url in found.get("QueueUrls", ())]
    looked = await _look(visit, queues)
    return visit.page(
        "claims.html",
        read=[each for each in looked if each.sources or each.writers],
        hidden=sum(each.is_hidden for each in looked),
        looked_at=len(queues),
        has_more="NextToken" in found,
        search=search,
        problem=problem,
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
