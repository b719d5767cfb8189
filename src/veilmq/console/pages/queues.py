"""The list of queues, with search, sort and pages."""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import msgspec
from starlette.responses import Response

from veilmq.console.listing import COLUMNS, SIZES, Listing
from veilmq.console.live_queries import figures
from veilmq.console.page_context import HOME, PageContext, PageRoute
from veilmq.core.commands import BrowsedQueues


async def show(page: PageContext) -> Response:
    """Show queues of the account; for htmx, during typing, only their table."""
    listing = Listing.of(page.query)
    browsed = await _browse(page, listing)
    pages = max(ceil(browsed.in_all / listing.size), 1)
    if listing.page > pages:
        listing = listing._replace(page=pages)
        browsed = await _browse(page, listing)
    return page.render(
        "parts/queue_table.html" if page.is_partial else "queues.html",
        listing=listing,
        columns=COLUMNS,
        sizes=SIZES,
        browsed=browsed,
        figures={queue.name: figures(queue, page.now_ms) for queue in browsed.queues},
        sparklines={queue.name: sparkline(queue.history) for queue in browsed.queues},
        pages=pages,
        endpoint=page.endpoint,
    )


async def _browse(page: PageContext, listing: Listing) -> BrowsedQueues:
    return msgspec.convert(await page.api("GET", "/v1/queues/-", query=listing.parameters), BrowsedQueues)


PAGES = (PageRoute(HOME, show),)


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
