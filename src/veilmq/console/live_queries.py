"""The live queries of open pages: counts of queues, leases of a queue, and progress of its move tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from veilmq.console.api_client import ApiClient, ApiError, api_path
from veilmq.console.live import Snapshot
from veilmq.console.page_context import PageContext
from veilmq.console.queue_queries import browse, latest_moves
from veilmq.console.rendering import age, counted, number, path_of
from veilmq.console.timeline import BARS_MAX, Drawing, Drawn, Frame, Timeline, draw, frame_for, unfinished
from veilmq.core.commands import BrowsedQueue
from veilmq.core.limits import SECOND_MS
from veilmq.wire.v1.queues import Lease

NAMES_MAX = 200


@dataclass(frozen=True)
class CountsQuery:
    """The counts of the queues ``names`` of the caller's account, formatted as in the list of queues."""

    names: tuple[str, ...]
    event = "counts"

    async def run(self, client: ApiClient, now_ms: int) -> Snapshot:
        """Return the figures of each queue."""
        browsed = await browse(client, {"names": ",".join(self.names), "history": "false"})
        return Snapshot({queue.name: figures(queue, now_ms) for queue in browsed.queues}, {})


@dataclass(frozen=True)
class LeasesQuery:
    """The leases of ``queue`` (a full name) as bars, and its counts; ``own``: it is of the caller's account."""

    queue: str
    own: bool
    timeline: Timeline = field(default_factory=Timeline, compare=False)
    _frames: list[Frame] = field(default_factory=list, compare=False)
    _drawn: Drawn = field(default_factory=dict, compare=False)
    event = "leases"

    async def run(self, client: ApiClient, now_ms: int) -> Snapshot:
        """Return the bars, and in ``rest`` the axis, the current time and the figures."""
        counted = await _queue_counts(client, self.queue, own=self.own)
        leases = await leases_of(client, self.queue, also=self.timeline.positions)
        self.timeline.update(leases, now_ms)
        frame = frame_for(self.timeline, self._frames[0] if self._frames else None)
        self._frames[:] = [frame]
        drawing = draw(self.timeline, frame, href=f"{path_of(self.queue)}/messages?state=in_flight", drawn=self._drawn)
        rest = {
            "axis": str(drawing.axis),
            "now": drawing.now_percent,
            "height": drawing.height_px,
            "summary": summary(unfinished(leases, now_ms), counted.in_flight),
            "figures": figures(counted, now_ms),
        }
        return Snapshot({key: str(bar) for key, bar in drawing.bars.items()}, rest)


@dataclass(frozen=True)
class MovesQuery:
    """The move tasks of ``queue``; the page reloads them when one changed."""

    queue: str
    event = "moves"

    async def run(self, client: ApiClient, now_ms: int) -> Snapshot:
        """Return the progress of each task."""
        tasks = await latest_moves(client, self.queue)
        return Snapshot({str(task["StartedTimestamp"]): _progress(task) for task in tasks}, {})


async def leases_of(client: ApiClient, queue: str, *, also: Sequence[str] = ()) -> list[Lease]:
    """Return up to ``BARS_MAX`` leases, and one more if there are more; raises ``ApiError``.

    Then follow the messages at the positions ``also`` that still exist, with or without leases.
    """
    query = {"count": BARS_MAX + 1, "also": ",".join(also)}
    reply = await client.api("GET", api_path("leases", queue), query=query)
    return msgspec.convert(reply["leases"], list[Lease])


def figures(queue: BrowsedQueue, now_ms: int) -> dict[str, str]:
    """Return the formatted figures of a queue, by the names that pages use."""
    oldest_ms = queue.oldest_sent_at_ms
    return {
        "visible": number(queue.visible),
        "in_flight": number(queue.in_flight),
        "delayed": number(queue.delayed),
        "oldest": age(None if oldest_ms is None else (now_ms - oldest_ms) / SECOND_MS),
        "sent": number(queue.sent_per_s),
        "received": number(queue.received_per_s),
        "deleted": number(queue.deleted_per_s),
    }


def summary(leases: list[Lease], in_flight: int | None) -> str:
    """Return the numbers of drawn leases and of other messages in flight as a sentence."""
    drawn = min(len(leases), BARS_MAX)
    if not drawn:
        return "No messages in flight." if not in_flight else f"{in_flight:,} in flight, none with a lease."
    text = counted(drawn, "leases")
    if in_flight is not None and in_flight > drawn:
        return f"{text}, those that end first, of {in_flight:,} messages in flight."
    return f"{text}."


async def _queue_counts(client: ApiClient, queue: str, *, own: bool) -> BrowsedQueue:
    """Return the figures of a queue; without rates if it is of another account."""
    name = queue.partition("/")[2]
    if not own:
        shown = await client.api("GET", api_path("queues", queue, "show"))
        return BrowsedQueue(name=name, visible=shown["visible"], in_flight=shown["in_flight"], delayed=shown["delayed"])
    queues = (await browse(client, {"names": name, "history": "false"})).queues
    if not queues:
        raise ApiError("QueueNotFound", "The queue does not exist any more.", 404)
    return queues[0]


def _progress(task: Mapping[str, Any]) -> tuple[str, int]:
    return task["Status"], task["ApproximateNumberOfMessagesMoved"]


class LeaseSection(NamedTuple):
    """The input of ``parts/timeline.html``: the drawing, the same leases for a table, and a sentence."""

    drawing: Drawing
    leases: list[Lease]
    summary: str


async def lease_section(page: PageContext, *, in_flight: int | None) -> LeaseSection | None:
    """Return the leases of the page's queue; ``None`` if the caller may not see them."""
    try:
        leases = await leases_of(page.client, page.queue)
    except ApiError as error:
        if error.is_denied:
            return None
        raise
    timeline = Timeline()
    timeline.update(leases, page.now_ms)
    drawing = draw(timeline, frame_for(timeline), href=f"{path_of(page.queue)}/messages?state=in_flight")
    return LeaseSection(drawing, leases[:BARS_MAX], summary(leases, in_flight))
