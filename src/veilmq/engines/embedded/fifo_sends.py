"""Sending to FIFO queues: every message has a group and a deduplication id, and a duplicate is not stored.

What was accepted is remembered (``accepted``) under a hash of the queue's number and of the id, with the group where
ids count by group. So it outlives the message, a purge, and a restart, but not the queue.
"""

from hashlib import blake2b
from uuid import UUID

from veilmq.core import fifo, limits
from veilmq.core.commands import NewMessage
from veilmq.core.errors import DeduplicationIdMissing, GroupMissing, MessageTooLong, VeilmqError
from veilmq.core.ids import IdSource
from veilmq.core.results import SentMessage
from veilmq.core.settings import QueueSettings
from veilmq.engines.embedded import groups
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.lane import FIFO
from veilmq.engines.embedded.queue import Queue

_KEY_BYTES = 16
_PER_GROUP = "group"


class FifoSends:
    """Stores messages of FIFO queues."""

    __slots__ = ("_accepted", "_ids")

    def __init__(self, *, journal: Journal, ids: IdSource) -> None:
        """``ids`` are for new messages."""
        self._accepted = journal.accepted
        self._ids = ids

    def send(self, queue: Queue, messages: tuple[NewMessage, ...], now_ms: int) -> list[SentMessage | VeilmqError]:
        """Store each message that the queue takes and has not had lately; one of a command may be another's copy."""
        sent: list[SentMessage | VeilmqError] = []
        for new in messages:
            try:
                sent.append(self._send(queue, new, now_ms))
            except VeilmqError as error:
                sent.append(error)
        queue.rouse_groups(now_ms)
        return sent

    def forward(self, queue: Queue, new: NewMessage, message_id: bytes, group_key: int, now_ms: int) -> SentMessage:
        """Store a message that comes from another queue with its id, which tells it apart in place of its sender's.

        Unless that id was lately the deduplication id of another message, which is then returned. (The message itself
        may have been here before, and left.)
        """
        per_group = queue.settings.deduplication_scope == _PER_GROUP
        key = _key(queue.number, new.group if per_group else None, str(UUID(bytes=message_id)))
        before = self._accepted.find(key)
        if before is not None and before.id != message_id and fifo.is_duplicate(before.accepted_at_ms, now_ms):
            return SentMessage(id=before.id, sequence=before.sequence)
        sequence = _store(queue, new, group_key, message_id, now_ms)
        self._accepted.add(key, message_id, sequence, now_ms)
        return SentMessage(id=message_id, sequence=sequence)

    def _send(self, queue: Queue, new: NewMessage, now_ms: int) -> SentMessage:
        settings = queue.settings
        if new.size_bytes > settings.message_bytes_max:
            raise MessageTooLong(settings.message_bytes_max)
        if new.group is None:
            raise GroupMissing
        key = _key(queue.number, new.group if settings.deduplication_scope == _PER_GROUP else None, _id(new, settings))
        before = self._accepted.find(key)
        if before is not None and fifo.is_duplicate(before.accepted_at_ms, now_ms):
            return SentMessage(id=before.id, sequence=before.sequence)
        message_id = self._ids.next()
        sequence = _store(queue, new, groups.key_of(new.group), message_id, now_ms)
        self._accepted.add(key, message_id, sequence, now_ms)
        return SentMessage(id=message_id, sequence=sequence)


def _id(new: NewMessage, settings: QueueSettings) -> str:
    if new.dedup_id is not None:
        return new.dedup_id
    if not settings.content_deduplication:
        raise DeduplicationIdMissing
    return fifo.content_id(new.body)


def _key(queue: int, group: str | None, dedup_id: str) -> bytes:
    scope = "-" if group is None else f"{len(group)} {group}"
    return blake2b(f"{queue} {scope} {dedup_id}".encode(), digest_size=_KEY_BYTES).digest()


def _store(queue: Queue, new: NewMessage, group_key: int, message_id: bytes, now_ms: int) -> int:
    """Store the message; return its sequence number. All priorities share a lane: a group has one order."""
    lane = queue.lane(limits.PRIORITY.default, FIFO)
    sequence = lane.next_sequence
    queue.store(lane, new, message_id, now_ms, group_key)
    return sequence
