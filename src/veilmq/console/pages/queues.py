"""The list of queues, with search, sort and pages, and the URLs of its other pages.

Invalid parameters are ignored, so that a mistyped URL still shows a list.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import NamedTuple, Self
from urllib.parse import urlencode

from starlette.responses import Response

from veilmq.console.live_queries import figures
from veilmq.console.page_context import HOME, PageContext, PageRoute
from veilmq.console.queue_queries import browse
from veilmq.core.commands import QueueOrder
from veilmq.core.limits import BROWSED_QUEUES_MAX, SMQ_QUEUE_NAME_CHARACTERS_MAX

SIZES = (25, 50, 100, BROWSED_QUEUES_MAX)
SIZE_DEFAULT = 50

_PAGE_DIGITS_MAX = 9


class Column(NamedTuple):
    """A sortable column; numbers sort in descending order first."""

    order: QueueOrder
    title: str
    is_number: bool = True


COLUMNS = (
    Column(QueueOrder.NAME, "Name", is_number=False),
    Column(QueueOrder.VISIBLE, "Visible"),
    Column(QueueOrder.IN_FLIGHT, "In flight"),
    Column(QueueOrder.DELAYED, "Delayed"),
    Column(QueueOrder.OLDEST, "Oldest"),
    Column(QueueOrder.SENT, "Sent/s"),
    Column(QueueOrder.RECEIVED, "Received/s"),
    Column(QueueOrder.DELETED, "Deleted/s"),
)


class Listing(NamedTuple):
    """A page of the queues of an account; ``page`` counts from 1, ``size`` is the number of rows per page."""

    search: str = ""
    order: QueueOrder = QueueOrder.NAME
    descending: bool = False
    page: int = 1
    size: int = SIZE_DEFAULT

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self:
        """Read the parameters of a URL."""
        orders = {each.value: each for each in QueueOrder}
        page, size = query.get("page", ""), query.get("size", "")
        return cls(
            search=query.get("search", "").strip()[:SMQ_QUEUE_NAME_CHARACTERS_MAX],
            order=orders.get(query.get("sort", ""), QueueOrder.NAME),
            descending=query.get("descending") == "true",
            page=max(int(page), 1) if _is_number(page) else 1,
            size=int(size) if _is_number(size) and int(size) in SIZES else SIZE_DEFAULT,
        )

    @property
    def first(self) -> int:
        return (self.page - 1) * self.size

    @property
    def parameters(self) -> dict[str, str | int]:
        return {
            "search": self.search,
            "sort": self.order.value,
            "descending": str(self.descending).lower(),
            "first": self.first,
            "count": self.size,
        }

    @property
    def url(self) -> str:
        """The URL of this page, without default parameters."""
        parts = {
            "search": self.search,
            "sort": "" if self.order is QueueOrder.NAME else self.order.value,
            "descending": "true" if self.descending else "",
            "page": "" if self.page == 1 else str(self.page),
            "size": "" if self.size == SIZE_DEFAULT else str(self.size),
        }
        query = urlencode({name: value for name, value in parts.items() if value})
        return f"{HOME}?{query}" if query else HOME

    def sorted_url(self, column: Column) -> str:
        """Return the URL of the first page sorted by ``column``; reversed if it is sorted by it already."""
        descending = not self.descending if self.order is column.order else column.is_number
        return self._replace(order=column.order, descending=descending, page=1).url

    def direction(self, column: Column) -> str:
        """Return the ``aria-sort`` of ``column``."""
        if self.order is not column.order:
            return "none"
        return "descending" if self.descending else "ascending"

    def page_url(self, page: int) -> str:
        return self._replace(page=page).url


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _PAGE_DIGITS_MAX


async def show(page: PageContext) -> Response:
    """Show queues of the account; for htmx, during typing, only their table."""
    listing = Listing.of(page.query)
    browsed = await browse(page.client, listing.parameters)
    pages = max(ceil(browsed.in_all / listing.size), 1)
    if listing.page > pages:
        listing = listing._replace(page=pages)
        browsed = await browse(page.client, listing.parameters)
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
