"""The live queries of open pages: counts of queues, leases of a queue, and progress of its move tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from veilmq.console.asking import Asking, Refused
from veilmq.console.live import Told
from veilmq.console.move_tasks import latest_moves
from veilmq.console.rendering import age, number, path_of
from veilmq.console.timeline import BARS_MAX, Drawing, Drawn, Frame, Timeline, draw, frame_for, going_on
from veilmq.console.visit import Visit
from veilmq.core.commands import BrowsedQueue, BrowsedQueues
from veilmq.core.limits import SECOND_MS
from veilmq.wire.v1.queues import Lease

NAMES_MAX = 200


@dataclass(frozen=True)
class CountsOf:
    """The counts of the queues ``names`` of the caller's account, formatted as in the list of queues."""

    names: tuple[str, ...]
    event = "counts"

    async def look(self, asking: Asking, now_ms: int) -> Told:
        """Return the figures of each queue."""
        found = await browse(asking, self.names)
        return Told({queue.name: figures(queue, now_ms) for queue in found.queues}, {})


@dataclass(frozen=True)
class LeasesOf:
    """The leases of ``queue`` (a full name) as bars, and its counts; ``own``: it is of the caller's account."""

    queue: str
    own: bool
    timeline: Timeline = field(default_factory=Timeline, compare=False)
    _frames: list[Frame] = field(default_factory=list, compare=False)
    _drawn: Drawn = field(default_factory=dict, compare=False)
    event = "leases"

    async def look(self, asking: Asking, now_ms: int) -> Told:
        """Return the bars, and in ``rest`` the axis, the current time and the figures."""
        counted = await _counted(asking, self.queue, own=self.own)
        leases = await leases_of(asking, self.queue, also=self.timeline.positions)
        self.timeline.look(leases, now_ms)
        frame = frame_for(self.timeline, self._frames[0] if self._frames else None)
        self._frames[:] = [frame]
        drawing = draw(self.timeline, frame, href=f"{path_of(self.queue)}/messages?state=in_flight", drawn=self._drawn)
        rest = {
            "axis": str(drawing.axis),
            "now": drawing.now_percent,
            "height": drawing.height_px,
            "summary": summary(going_on(leases, now_ms), counted.in_flight),
            "figures": figures(counted, now_ms),
        }
        return Told({key: str(bar) for key, bar in drawing.bars.items()}, rest)


@dataclass(frozen=True)
class MovesOf:
    """The move tasks of ``queue``; the page reloads them when one changed."""

    queue: str
    event = "moves"

    async def look(self, asking: Asking, now_ms: int) -> Told:
        """Return the progress of each task."""
        found = await latest_moves(asking, self.queue)
        return Told({str(task["StartedTimestamp"]): _progress(task) for task in found}, {})


async def browse(asking: Asking, names: tuple[str, ...]) -> BrowsedQueues:
    """Return the counts of queues of the caller's account; raises ``Refused``."""
    found = await asking.api("GET", "/v1/queues/-", query={"names": ",".join(names), "history": "false"})
    return msgspec.convert(found, BrowsedQueues)


async def leases_of(asking: Asking, queue: str, *, also: Sequence[str] = ()) -> list[Lease]:
    """Return up to ``BARS_MAX`` leases, and one more if there are more; raises ``Refused``.

    Then follow the messages at the positions ``also`` that still exist, with or without leases.
    """
    query = {"count": BARS_MAX + 1, "also": ",".join(also)}
    found = await asking.api("GET", f"/v1/leases/{quote(queue, safe='/@')}", query=query)
    return msgspec.convert(found["leases"], list[Lease])


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
        return "No message is held just now." if not in_flight else f"{in_flight:,} in flight, none with a lease."
    told = "1 lease" if drawn == 1 else f"{drawn} leases"
    if in_flight is not None and in_flight > drawn:
        return f"{told}, those that end first, of {in_flight:,} messages in flight."
    return f"{told}."


async def _counted(asking: Asking, queue: str, *, own: bool) -> BrowsedQueue:
    """Return the figures of a queue; without rates if it is of another account."""
    name = queue.partition("/")[2]
    if not own:
        shown = await asking.api("GET", f"/v1/queues/{quote(queue, safe='/@')}/show")
        return BrowsedQueue(name=name, visible=shown["visible"], in_flight=shown["in_flight"], delayed=shown["delayed"])
    found = (await browse(asking, (name,))).queues
    if not found:
        raise Refused("QueueNotFound", "The queue is not there any more.", 404)
    return found[0]


def _progress(task: Mapping[str, Any]) -> tuple[str, int]:
    return task["Status"], task["ApproximateNumberOfMessagesMoved"]


class LeaseLook(NamedTuple):
    """The input of ``parts/timeline.html``: the drawing, the same leases for a table, and a sentence."""

    drawing: Drawing
    leases: list[Lease]
    summary: str


async def lease_look(visit: Visit, *, in_flight: int | None) -> LeaseLook | None:
    """Return the leases of the page's queue; ``None`` if the caller may not see them."""
    try:
        leases = await leases_of(visit.asking, visit.queue)
    except Refused as refused:
        if refused.is_denied:
            return None
        raise
    timeline = Timeline()
    timeline.look(leases, visit.now_ms)
    drawing = draw(timeline, frame_for(timeline), href=f"{path_of(visit.queue)}/messages?state=in_flight")
    return LeaseLook(drawing, leases[:BARS_MAX], summary(leases, in_flight))
