"""Sending to FIFO queues: every message has a group and a deduplication id, and a duplicate is not stored.

What was accepted is remembered (``accepted``) under ``fifo.deduplication_key``. So it outlives the message and a
restart, but neither a purge nor the queue.
"""

from uuid import UUID

from veilmq.core import fifo
from veilmq.core.commands import NewMessage
from veilmq.core.errors import VeilmqError
from veilmq.core.ids import IdSource
from veilmq.core.results import SentMessage
from veilmq.engines.embedded import groups
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.queue import Queue


class FifoSends:
    """Stores messages of FIFO queues."""

    __slots__ = ("_accepted", "_ids")

    def __init__(self, *, journal: Journal, ids: IdSource) -> None:
        """``ids`` are for new messages."""
        self._accepted = journal.accepted
        self._ids = ids

    def send(self, queue: Queue, messages: tuple[NewMessage, ...], now_ms: int) -> list[SentMessage | VeilmqError]:
        """Store each message that the queue takes and has not had lately; one of a command may be another's copy.

        Raises ``GroupMissing`` or ``DeduplicationIdMissing`` where a message has none, and stores nothing.
        """
        fifo.check_together(messages, queue.settings)
        sent: list[SentMessage | VeilmqError] = []
        for new in messages:
            try:
                sent.append(self.send_one(queue, new, now_ms))
            except VeilmqError as error:
                sent.append(error)
        queue.rouse_groups(now_ms)
        return sent

    def forward(self, queue: Queue, new: NewMessage, message_id: bytes, group_key: int, now_ms: int) -> SentMessage:
        """Store a message that comes from another queue with its id, which tells it apart in place of its sender's.

        Unless that id was lately the deduplication id of another message, which is then returned. (The message itself
        may have been here before, and left.)
        """
        key = fifo.deduplication_key(queue.number, new.group or "", str(UUID(bytes=message_id)), queue.settings)
        before = self._accepted.find(key)
        if before is not None and before.id != message_id and fifo.is_duplicate(before.accepted_at_ms, now_ms):
            return SentMessage(id=before.id, sequence=before.sequence)
        sequence = _store(queue, new, group_key, message_id, now_ms)
        self._accepted.add(key, message_id, sequence, now_ms)
        return SentMessage(id=message_id, sequence=sequence)

    def send_one(self, queue: Queue, new: NewMessage, now_ms: int) -> SentMessage:
        """Store the message, unless it is a duplicate; raises what is wrong with it. Nobody is roused."""
        settings = queue.settings
        group = fifo.group_of(new, settings)
        key = fifo.deduplication_key(queue.number, group, fifo.id_of(new, settings), settings)
        before = self._accepted.find(key)
        if before is not None and fifo.is_duplicate(before.accepted_at_ms, now_ms):
            return SentMessage(id=before.id, sequence=before.sequence)
        message_id = self._ids.next()
        sequence = _store(queue, new, groups.key_of(group), message_id, now_ms)
        self._accepted.add(key, message_id, sequence, now_ms)
        return SentMessage(id=message_id, sequence=sequence)

    def send_unrepeated(self, queue: Queue, new: NewMessage, now_ms: int) -> SentMessage:
        """Store a message that nothing tells apart from others, so that it is nobody's duplicate; otherwise as above.

        Where the queue itself tells messages apart by their content, it does so here too.
        """
        if new.dedup_id is not None or queue.settings.content_deduplication:
            return self.send_one(queue, new, now_ms)
        message_id = self._ids.next()
        group = fifo.group_of(new, queue.settings)
        return SentMessage(id=message_id, sequence=_store(queue, new, groups.key_of(group), message_id, now_ms))


def _store(queue: Queue, new: NewMessage, group_key: int, message_id: bytes, now_ms: int) -> int:
    """Store the message; return its sequence number."""
    lane = queue.lane_for(new)
    sequence = lane.next_sequence
    queue.store(lane, new, message_id, now_ms, group_key)
    return sequence
