"""Looks at a queue: its messages as the journal has them, behind what is staged; nothing is changed."""

from operator import attrgetter
from typing import Any

from veilmq.core.looks import LookAtQueue, MessageState, SeenMessage
from veilmq.engines.embedded.catalog import Catalog
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.rows import LaneRow


class Looks:
    """The command of ``core.looks``."""

    def __init__(self, *, catalog: Catalog, journal: Journal) -> None:
        """``catalog`` has the queues, ``journal`` their messages."""
        self._catalog = catalog
        self._journal = journal

    def look(self, command: LookAtQueue, now_ms: int) -> list[SeenMessage]:
        """Show what there is of every lane, in the order of sending."""
        queue = self._catalog.queue(command.queue)
        queue.expire(now_ms)
        seen = [
            _seen(*found, now_ms)
            for lane in queue.lanes
            for start, end in _stretches(lane.row())
            for found in self._journal.rows("look_between", start, end, command.count)
        ]
        return sorted(seen, key=attrgetter("sent_at_ms"))[: command.count]


def _stretches(row: LaneRow) -> tuple[tuple[int, int], tuple[int, int]]:
    return (row.direct_floor, row.direct_next), (row.delayed_floor, row.delayed_next)


def _seen(id: bytes, body: str, properties: bytes, sent_at_ms: int, *rest: Any) -> SeenMessage:  # noqa: A002
    receive_count, lease_ends_at_ms, claimed, now_ms = rest
    if claimed:
        state = MessageState.IN_FLIGHT
    elif lease_ends_at_ms is None or lease_ends_at_ms <= now_ms:
        state = MessageState.VISIBLE
    else:
        state = MessageState.IN_FLIGHT if receive_count else MessageState.DELAYED
    return SeenMessage(
        id=id,
        body=body,
        properties=properties,
        sent_at_ms=sent_at_ms,
        receive_count=receive_count,
        state=state,
        visible_at_ms=None if claimed else lease_ends_at_ms,
    )
