"""The timeline of a queue's leases as its page is drawn; afterwards the stream goes on with it (``feeds.LeasesOf``)."""

from typing import NamedTuple

from veilmq.console.asking import Refused
from veilmq.console.feeds import leases_of, summary
from veilmq.console.rendering import path_of
from veilmq.console.timeline import BARS_MAX, Timeline
from veilmq.console.timeline_drawing import Drawing, draw, frame_for
from veilmq.console.visit import Visit
from veilmq.wire.v1.queues import Lease


class LeaseLook(NamedTuple):
    """What ``parts/timeline.html`` is told: the drawing, the same leases for a table, and a sentence."""

    drawing: Drawing
    leases: list[Lease]
    summary: str


async def look(visit: Visit, *, in_flight: int | None) -> LeaseLook | None:
    """Return the leases of the queue that the path names; ``None`` where the caller may not see them."""
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
