"""The list of queues, with search, sort and pages."""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import msgspec
from starlette.responses import Response

from veilmq.console.feeds import figures
from veilmq.console.listing import COLUMNS, SIZES, Listing
from veilmq.console.visit import HOME, Page, Visit
from veilmq.core.commands import BrowsedQueues


async def show(visit: Visit) -> Response:
    """Show queues of the account; for htmx, during typing, only their table."""
    listing = Listing.of(visit.query)
    found = await _look(visit, listing)
    pages = max(ceil(found.in_all / listing.size), 1)
    if listing.page > pages:
        listing = listing._replace(page=pages)
        found = await _look(visit, listing)
    return visit.page(
        "parts/queue_table.html" if visit.is_partial else "queues.html",
        listing=listing,
        columns=COLUMNS,
        sizes=SIZES,
        found=found,
        figures={queue.name: figures(queue, visit.now_ms) for queue in found.queues},
        sparklines={queue.name: sparkline(queue.history) for queue in found.queues},
        pages=pages,
        endpoint=visit.endpoint,
    )


async def _look(visit: Visit, listing: Listing) -> BrowsedQueues:
    return msgspec.convert(await visit.api("GET", "/v1/queues/-", query=listing.asked), BrowsedQueues)


PAGES = (Page(HOME, show),)


WIDTH = 96
HEIGHT = 24
_EDGE = 2  # so that the stroke stays inside


class Sparkline(NamedTuple):
    """``points`` of an SVG polyline; ``least`` and ``most`` are the values at its bottom and top."""

    points: str
    least: int
    most: int
    span_ms: int


def sparkline(history: Sequence[Sequence[int]]) -> Sparkline | None:
    """Return the line through ``history``, pairs of time (ms) and value; ``None`` for fewer than two."""
    if len(history) < 2:
        return None
    begin_ms, end_ms = history[0][0], history[-1][0]
    values = [value for _, value in history]
    least, most = min(values), max(values)
    span_ms, rise = max(end_ms - begin_ms, 1), max(most, 1)
    points = [
        f"{(at_ms - begin_ms) * WIDTH / span_ms:.1f},{HEIGHT - _EDGE - value * (HEIGHT - 2 * _EDGE) / rise:.1f}"
        for at_ms, value in history
    ]
    return Sparkline(" ".join(points), least, most, end_ms - begin_ms)
