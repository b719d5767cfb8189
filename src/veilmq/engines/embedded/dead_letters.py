"""Dead letters: what a receive does with a message that was received as often as its queue allows.

It is not given out. In the transaction of the receive its row leaves the lane that it was in, and a new row joins the
dead-letter queue, with the same id, body and properties, and with what it carries from its former life. (In a FIFO
queue its id becomes its deduplication id, as with Amazon SQS.) So a message is in exactly one of the two, whenever the
process ends.

A receive moves no more than so many messages and bytes, so that it stays short; more are moved by the next one. Where
the dead-letter queue cannot take a message (gone, its permission withdrawn, the disk nearly full), the message stays
and is delivered once more: nothing is ever lost for want of a place to put it.
"""

from uuid import UUID

from msgspec.structs import replace

from veilmq.core import commands, properties, redrive, results
from veilmq.core.errors import DeadLetterQueueRefused, StoreFull
from veilmq.core.limits import DEAD_LETTER_BYTES_PER_RECEIVE, DEAD_LETTERS_PER_RECEIVE
from veilmq.core.settings import QueueSettings
from veilmq.engines.embedded.catalog import Catalog
from veilmq.engines.embedded.lane import FIFO, Lane, Taken
from veilmq.engines.embedded.queue import Queue
from veilmq.engines.embedded.rows import Lease, MessageRow
from veilmq.engines.embedded.space import Space


class Redrive:
    """What one receive of a queue does with the dead letters that it meets: a ``queue.Diversion``."""

    __slots__ = ("_bytes_left", "_left", "_now_ms", "_queue", "_receives_max", "_target")

    def __init__(self, queue: Queue, target: Queue, now_ms: int) -> None:
        """``target`` is the dead-letter queue of ``queue``, and takes its messages."""
        self._queue = queue
        self._target = target
        self._receives_max = queue.settings.receives_max
        self._now_ms = now_ms
        self._left = DEAD_LETTERS_PER_RECEIVE
        self._bytes_left = DEAD_LETTER_BYTES_PER_RECEIVE

    @property
    def is_over(self) -> bool:
        """Whether this receive has moved as much as it may."""
        return self._left <= 0 or self._bytes_left <= 0

    def takes(self, taken: Taken) -> bool:
        """Move the message to the dead-letter queue if it is due; tell whether it was."""
        row, lease, lane = taken
        if lease.receive_count < self._receives_max:
            return False
        if not self._target.take_over(taken, carried(row, lease, self._queue), self._now_ms):
            return False
        if lane.log is not None:
            lane.log.dead_lettered(row, lease)
        self._left -= 1
        self._bytes_left -= len(row.body) + len(row.properties)
        return True

    def tell(self) -> None:
        """Rouse the dead-letter queue's watch if anything came to it."""
        if self._left < DEAD_LETTERS_PER_RECEIVE:
            self._target.rouse(self._now_ms)


def carried(row: MessageRow, lease: Lease, queue: Queue) -> MessageRow:
    """Return the row with what the message takes along; in FIFO queues it is told apart, and kept, from now on."""
    letter = row._replace(
        source=queue.name,
        first_sent_at_ms=None,
        receives_before=_receives(row, lease),
        first_received_at_ms=_first_received_at_ms(row, lease),
    )
    if queue.settings.fifo:
        return letter._replace(properties=_with_id_for_deduplication(row))
    return letter._replace(first_sent_at_ms=row.sent_at_ms if row.first_sent_at_ms is None else row.first_sent_at_ms)


def _with_id_for_deduplication(row: MessageRow) -> bytes:
    """Return the properties with the message's id in place of the id that its sender gave, or none.

    SQS Developer Guide, "Using dead-letter queues": two messages that shared a deduplication id are told apart.
    """
    return properties.encode(replace(properties.decode(row.properties), dedup_id=str(UUID(bytes=row.id))))


def told(row: MessageRow, lease: Lease, lane: Lane, receipt: str) -> results.ReceivedMessage:
    """Return a dead letter as its receiver sees it: with all receives, and with the times of its first queue."""
    return results.ReceivedMessage(
        id=row.id,
        receipt=receipt,
        body=row.body,
        properties=row.properties,
        sent_at_ms=row.sent_at_ms if row.first_sent_at_ms is None else row.first_sent_at_ms,
        first_received_at_ms=_first_received_at_ms(row, lease),
        receive_count=_receives(row, lease),
        visible_at_ms=lease.visible_at_ms,
        priority=lane.priority,
        source=row.source,
        sequence=lane.sequence_of(row.position) if lane.kind == FIFO else None,
    )


def _receives(row: MessageRow, lease: Lease) -> int:
    return lease.receive_count + (row.receives_before or 0)


def _first_received_at_ms(row: MessageRow, lease: Lease) -> int:
    return lease.first_received_at_ms if row.first_received_at_ms is None else row.first_received_at_ms


class DeadLetters:
    """Whose messages may go where, as things are now."""

    def __init__(self, *, catalog: Catalog, space: Space) -> None:
        """``catalog`` has the queues; ``space`` tells when the disk is nearly full."""
        self._catalog = catalog
        self._space = space

    def list_sources(self, command: commands.ListDeadLetterSources, now_ms: int) -> results.QueuePage:
        """Tell one page of the queues whose dead-letter queue the named one is."""
        queue = self._catalog.queue(command.queue)
        names = self._catalog.sources(queue.name, after=command.after, count=command.count + 1)
        return results.QueuePage(names=names[: command.count], more=len(names) > command.count)

    def redrive(self, queue: Queue, now_ms: int) -> Redrive | None:
        """Return what a receive of ``queue`` does with dead letters; ``None`` when they stay where they are."""
        settings = queue.settings
        target = self._catalog.find(settings.dead_letter_queue)
        if target is None or redrive.refusal(queue.name, settings, target.name, target.settings) is not None:
            return None
        if self._space.is_short and self._space.look_again(now_ms):
            return None
        return Redrive(queue, target, now_ms)

    def target(self, queue: Queue, now_ms: int) -> Queue:
        """Return the dead-letter queue of ``queue``; raises ``DeadLetterQueueRefused``, or ``StoreFull``."""
        name = queue.settings.dead_letter_queue
        found = self._catalog.find(name)
        if found is None and not name:
            raise DeadLetterQueueRefused("", f"The queue {queue.name} has no dead-letter queue; give it one first.")
        why = redrive.refusal(queue.name, queue.settings, name, None if found is None else found.settings)
        if why is not None:
            raise DeadLetterQueueRefused(name, why)
        if found is None or self._space.look_again(now_ms):
            raise StoreFull
        return found

    def check(self, name: str, settings: QueueSettings) -> None:
        """Raise unless the dead-letter queue that ``settings`` name can serve the queue ``name``."""
        target = settings.dead_letter_queue
        if not target:
            return
        found = self._catalog.find(target)
        redrive.check(name, settings, target, None if found is None else found.settings)
