"""The list of queues: searched, sorted, a page at a time."""

from math import ceil

import msgspec
from starlette.responses import Response

from veilmq.console.feeds import figures
from veilmq.console.listing import COLUMNS, SIZES, Listing
from veilmq.console.page import HOME, Page
from veilmq.console.sparkline import sparkline
from veilmq.console.visit import Visit
from veilmq.core.commands import BrowsedQueues


async def show(visit: Visit) -> Response:
    """Show queues of the account; to htmx, which asks while one types, their table alone."""
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
