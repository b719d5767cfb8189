"""Peeks: what a receive of this instant would give, and all stays as it is (``peekable``)."""

from heapq import merge
from itertools import groupby, islice
from operator import attrgetter

from veilmq.core.looks import Peek, Peeked, PeekedMessage
from veilmq.engines.embedded.bounded import grown
from veilmq.engines.embedded.catalog import Catalog
from veilmq.engines.embedded.dead_letters import DeadLetters
from veilmq.engines.embedded.peekable import Offered, since
from veilmq.engines.embedded.queue import Queue


class Peeks:
    """The command ``Peek``."""

    def __init__(self, *, catalog: Catalog, dead_letters: DeadLetters) -> None:
        """``dead_letters`` tells which messages a receive would not give out."""
        self._catalog = catalog
        self._dead_letters = dead_letters

    def peek(self, command: Peek, now_ms: int) -> Peeked:
        """Show the first visible messages; the quota of messages in flight does not count."""
        queue = self._catalog.queue(command.queue)
        queue.expire(now_ms)
        settings = queue.settings
        receives_max = settings.receives_max if self._diverts(queue, now_ms) else 0
        first = _first_of_one if settings.fifo else _first_of_all
        shown = grown(
            command.count,
            command.bytes_max,
            lambda count: first(queue, count, now_ms, receives_max),
            lambda message: message.body,
        )
        return Peeked(messages=shown, smq_base64=settings.smq_base64)

    def _diverts(self, queue: Queue, now_ms: int) -> bool:
        return bool(queue.settings.receives_max) and self._dead_letters.redrive(queue, now_ms) is not None


def _first_of_one(queue: Queue, count: int, now_ms: int, receives_max: int) -> list[PeekedMessage]:
    """Return what comes first in a FIFO queue: no lane gives a message before those opened earlier have none left."""
    lane = queue.first_lane(now_ms)
    if lane is None:
        return []
    return [_shown(offered, lane.priority) for offered in lane.peek(count, now_ms, receives_max)]


def _first_of_all(queue: Queue, count: int, now_ms: int, receives_max: int) -> list[PeekedMessage]:
    """Return what comes first: the lanes of each priority together."""
    shown: list[PeekedMessage] = []
    for priority, lanes in groupby(queue.lanes, key=attrgetter("priority")):
        left = count - len(shown)
        if left <= 0:
            break
        offered = merge(*(lane.peek(left, now_ms, receives_max) for lane in lanes), key=since)
        shown += [_shown(each, priority) for each in islice(offered, left)]
    return shown


def _shown(offered: Offered, priority: int) -> PeekedMessage:
    """Return a message as a peek shows it; a dead letter with the times and receives of its first queue."""
    _, row, lease = offered
    receives = 0 if lease is None else lease.receive_count
    first_received_at_ms = row.first_received_at_ms
    if first_received_at_ms is None and lease is not None and receives:
        first_received_at_ms = lease.first_received_at_ms
    return PeekedMessage(
        id=row.id,
        body=row.body,
        properties=row.properties,
        sent_at_ms=row.sent_at_ms if row.first_sent_at_ms is None else row.first_sent_at_ms,
        first_received_at_ms=first_received_at_ms,
        receive_count=receives + (row.receives_before or 0),
        priority=priority,
        source=row.source,
    )
