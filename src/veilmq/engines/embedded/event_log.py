"""The event log: what became of each receipt, written with the change that ended it.

A logged queue has a ``QueueLog``; one that is not has ``None`` in its place, and pays one comparison. Events of a batch
are collected in memory and written as one row with the batch. What an event says of the receive stands in the lease
(``held``) and survives a crash; what it says of the message is remembered for a while, and read again where it was not.

A receipt that ended without a deletion is kept for a day (``expired_receipt``), with its event: the late delete that
may come corrects it, once, although the message was received again since or is gone. Nothing happens when a lease ends,
so that end is recorded by whoever changes or deletes the lease next. Where the store is nearly full, or too many events
wait to be exported, new ones are dropped and counted; everything else goes on.
"""

import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from veilmq.core.events import EventCounts, Outcome, ReceiptClosed, encode
from veilmq.core.limits import SECOND_MS
from veilmq.core.receipts import Receipt
from veilmq.core.routing import key_of
from veilmq.core.settings import QueueSettings
from veilmq.engines import held
from veilmq.engines.embedded import positions
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.options import EngineOptions
from veilmq.engines.embedded.rows import Lease, MessageRow
from veilmq.engines.embedded.run import NEVER_MS
from veilmq.engines.embedded.space import Space

log = logging.getLogger(__name__)

OFF, CLOSED = "off", "closed"
"""What a queue logs: nothing, or the ends of its receipts."""
EXPORTED_TO = "events_exported_to"
DROPPED = "events_dropped"
EXPIRED_KEPT_S = 86_400
EXPIRED_KEPT_MAX = 1_000_000
_FACTS_MAX = 65_536
_KEYS_MAX = 4_096
_REMEMBERED_BYTES_MAX = 1_000  # of the properties of a message: larger ones are read, and looked into, each time

_DELETED, _LATE_DELETED = Outcome.DELETED.value, Outcome.LATE_DELETED.value
_BY_EARLIER = Outcome.DELETED_BY_EARLIER.value
_EXPIRED, _NACKED, _DEAD_LETTERED = Outcome.EXPIRED.value, Outcome.NACKED.value, Outcome.DEAD_LETTERED.value
_CLOSED_AT, _HELD, _OUTCOME = (ReceiptClosed.__struct_fields__.index(n) for n in ("closed_at_ms", "held_ms", "outcome"))
_RECEIVED_AT = ReceiptClosed.__struct_fields__.index("received_at_ms")
_INSTANTS = [place for place, name in enumerate(ReceiptClosed.__struct_fields__) if name.endswith("_at_ms")]

_decode = msgspec.msgpack.Decoder(tuple).decode

Event = tuple[Any, ...]
"""The fields of a ``ReceiptClosed`` in their order."""
Facts = tuple[bytes, int, bytes, int, int | None]
"""What an event says of a message: id, when it was sent, its properties, the bytes of its body, its group."""


def facts_of(row: MessageRow) -> Facts:
    """Return what an event says of the message."""
    body = row.body
    size = len(body) if body.isascii() else len(body.encode())
    return row.id, row.sent_at_ms, row.properties, size, row.group_key


def _shown(event: Event, ahead_ms: int) -> Event:
    fields = list(event)
    for place in _INSTANTS:
        fields[place] += ahead_ms
    return tuple(fields)


class EventLog:
    """The events of one store that the open batch has made, and what is needed to make them."""

    def __init__(self, *, journal: Journal, options: EngineOptions, space: Space) -> None:
        """Go on behind the last event that ``journal`` has."""
        self.journal = journal
        self.now_ms = 0
        """The instant of the batch."""
        self.staged: list[Event] = []
        self._expired: dict[tuple[int, int], bytes] = {}
        self._facts: dict[int, Facts] = {}
        self._keys: dict[bytes, str] = {}
        self._space = space
        self._options = options
        meta = journal.meta()
        self.exported: int = meta.get(EXPORTED_TO, 0)
        self.dropped: int = meta.get(DROPPED, 0)
        rows = journal.rows("last_events")
        self.next = max(self.exported + 1, rows[0][0] if rows else 0)
        self.retired = {lane: QueueLog(self, name, ended_at_ms=at) for lane, name, at in journal.rows("logged_lanes")}

    def of(self, name: str, settings: QueueSettings) -> "QueueLog | None":
        """Return the log of a queue with these settings, ``None`` when it has none."""
        chosen = self._options.event_log if settings.event_log is None else settings.event_log
        return None if chosen == OFF else QueueLog(self, name, retention_s=settings.retention_s)

    def counts(self) -> EventCounts:
        """Tell how many events there are."""
        return EventCounts(recorded=self.next - 1, exported=self.exported, dropped=self.dropped)

    # The batch.

    def write(self, ahead_ms: int) -> None:
        """Write the events of the batch, and the receipts that a late delete may ask for, or neither.

        Events have shown times, ``ahead_ms`` later, for good; what is kept for a late delete is store time.
        """
        events, self.staged = self.staged, []
        expired, self._expired = self._expired, {}
        if self._space.is_short or self.next - self.exported > self._options.events_waiting_max:
            self._drop(len(events))
            return
        if ahead_ms:
            events = [_shown(event, ahead_ms) for event in events]
        self.journal.write("insert_events", self.next, len(events), encode(events))
        self.next += len(events)
        if expired:
            self.journal.write_many("insert_expired", [(*key, self.now_ms, event) for key, event in expired.items()])

    def _drop(self, events: int) -> None:
        if not self.dropped:
            log.warning("events are dropped: too many wait to be exported, or the disk is nearly full")
        self.dropped += events
        self.journal.put_meta(DROPPED, self.dropped)

    # Messages.

    def remember(self, row: MessageRow) -> None:
        """Keep what an event will say of a message, for a while, unless that is much."""
        if len(row.properties) > _REMEMBERED_BYTES_MAX:
            return
        if len(self._facts) >= _FACTS_MAX:
            del self._facts[next(iter(self._facts))]
        self._facts[row.position] = facts_of(row)

    def facts(self, position: int) -> Facts:
        """Return what an event says of the message at ``position``, which must be there."""
        found = self._facts.pop(position, None)
        return facts_of(self.journal.message_at(position)) if found is None else found

    def key(self, properties: bytes) -> str:
        """Return the routing key of a message with these properties."""
        if len(properties) > _REMEMBERED_BYTES_MAX:
            return key_of(properties, self._options.routing_attribute)
        found = self._keys.get(properties)
        if found is None:
            if len(self._keys) >= _KEYS_MAX:
                self._keys.clear()
            found = self._keys[properties] = key_of(properties, self._options.routing_attribute)
        return found

    # Receipts that expired.

    def keep_expired(self, lease: Lease, event: Event) -> None:
        """Keep the receipt of ``lease`` for the delete that may come late."""
        self._expired[lease.position, lease.generation] = encode(event)

    def take_expired(self, position: int, generation: int) -> Event | None:
        """Return the event of a receipt that was kept, and keep it no longer; ``None`` when there is none."""
        staged = self._expired.pop((position, generation), None)
        if staged is not None:
            return _decode(staged)
        rows = self.journal.write("take_expired", position, generation)
        return _decode(rows[0][0]) if rows else None

    def sweep(self, rows_max: int, now_ms: int) -> int:
        """Forget some of the receipts kept for longer than a day, or behind too many others; return how many."""
        rows = self.journal.rows("first_expired", rows_max)
        if not rows:
            return 0
        before = self.journal.rows("last_expired")[0][0] - EXPIRED_KEPT_MAX
        until_ms = now_ms - EXPIRED_KEPT_S * SECOND_MS
        old = [number for number, seen_at_ms in rows if number <= before or seen_at_ms <= until_ms]
        if old:
            self.journal.write("delete_expired", old[-1])
        return len(old)

    def due_ms(self) -> int:
        """Return when ``sweep`` has something to do by the clock; ``run.NEVER_MS`` when nothing is kept."""
        rows = self.journal.rows("first_expired", 1)
        return rows[0][1] + EXPIRED_KEPT_S * SECOND_MS if rows else NEVER_MS


class QueueLog:
    """The log of one queue, or of a lane that was purged."""

    __slots__ = ("_ended_at_ms", "_log", "_name", "_retention_ms")

    def __init__(self, events: EventLog, name: str, *, retention_s: int = 0, ended_at_ms: int | None = None) -> None:
        """``name`` is the queue's; ``ended_at_ms`` is when everything in a purged lane ended."""
        self._log = events
        self._name = name
        self._retention_ms = retention_s * SECOND_MS
        self._ended_at_ms = ended_at_ms

    # What happens to receipts.

    def received(self, chosen: Sequence[tuple[MessageRow, Lease, object]], requested_at_ms: int) -> None:
        """Take note of messages that are about to be hidden by a receive; their earlier receipts end with that."""
        events = self._log
        begun = held.begun(len(chosen), events.now_ms - requested_at_ms)
        for place, (row, lease, _) in enumerate(chosen):
            if lease.log:
                self._end_earlier(row, lease)
            lease.log = held.placed(begun, place) if place else begun
            events.remember(row)

    def claimed(self, chosen: Sequence[tuple[MessageRow, Lease, object]]) -> None:
        """Take note of messages that are about to be bound by a claim, which gives no receipts; earlier ones end."""
        for row, lease, _ in chosen:
            self._end_earlier(row, lease)
            lease.log = 0

    def _end_earlier(self, row: MessageRow, lease: Lease) -> None:
        if held.is_open(lease.log):
            event = self._event(lease, facts_of(row), lease.visible_at_ms, _EXPIRED)
            self._log.staged.append(event)
            self._log.keep_expired(lease, event)

    def deleted(self, lease: Lease) -> None:
        """Take note of a message that is about to be deleted by its receipt, in time or late."""
        if not held.is_open(lease.log):
            return
        events = self._log
        facts = events.facts(lease.position)
        now_ms, end_ms = events.now_ms, lease.visible_at_ms
        if now_ms < end_ms:
            events.staged.append(self._event(lease, facts, now_ms, _DELETED))
        else:
            events.staged.append(self._event(lease, facts, end_ms, _EXPIRED))
            events.staged.append(self._event(lease, facts, now_ms, _LATE_DELETED))

    def deleted_by_earlier(self, lease: Lease, receipt: Receipt) -> None:
        """Take note of a message that is about to be deleted by ``receipt``, one before the latest, which ends now."""
        if lease.generation == receipt.generation:  # the same receive: a change alone has renewed its receipt
            self.deleted(lease)
            return
        if held.is_open(lease.log):
            events = self._log
            facts = events.facts(lease.position)
            is_live = events.now_ms < lease.visible_at_ms
            ends_at_ms = events.now_ms if is_live else lease.visible_at_ms
            events.staged.append(self._event(lease, facts, ends_at_ms, _BY_EARLIER if is_live else _EXPIRED))
        expired = self._log.take_expired(receipt.position, receipt.generation)
        if expired is not None:
            self._correct(expired)

    def changed(self, lease: Lease, *, released: bool) -> None:
        """Take note that the deadline of a lease, still the old one, is about to be moved."""
        if not released:
            lease.log = held.extended(lease.log)
        elif held.is_open(lease.log):
            events = self._log
            events.staged.append(self._event(lease, events.facts(lease.position), events.now_ms, _NACKED))
            lease.log |= held.CLOSED

    def late(self, receipt: Receipt, lease: Lease | None) -> bool:
        """Take note of a delete that does nothing: its receipt has ended, or its message has (``lease`` is ``None``).

        A receipt that a change has renewed is of the same receive, which goes on. Tells whether the lease, which lives
        on, says something else now and is to be filed anew.
        """
        if lease is not None and lease.generation == receipt.generation:
            if lease.epoch == receipt.epoch and held.is_open(lease.log):
                self.deleted(lease)
                lease.log |= held.CLOSED
                return True
            return False
        expired = self._log.take_expired(receipt.position, receipt.generation)
        if expired is None and lease is None:
            expired = self._late_of_unswept(receipt)
        if expired is not None:
            self._correct(expired)
        return False

    def _late_of_unswept(self, receipt: Receipt) -> Event | None:
        """Record the end of a receipt that retention or a purge has ended, before the janitor comes to it."""
        journal = self._log.journal
        ended = self._log.retired.get(positions.lane_of(receipt.position), self)
        for row in journal.rows("open_receipts", receipt.position, receipt.position + 1):
            if row[4] == receipt.generation:
                journal.write("close_receipt", receipt.position)
                return ended._expire_row(row)
        return None

    def _correct(self, expired: Event) -> None:
        late = list(expired)
        now_ms = self._log.now_ms
        late[_CLOSED_AT], late[_OUTCOME] = now_ms, _LATE_DELETED
        late[_HELD] = now_ms - expired[_RECEIVED_AT]
        self._log.staged.append(tuple(late))

    def ended(self, start: int, end: int) -> None:
        """Take note that the messages in ``[start, end)`` are about to be deleted, by anything but their receipts."""
        for row in self._log.journal.rows("open_receipts", start, end):
            event = self._expire_row(row)
            self._log.keep_expired(Lease(*row[:10]), event)

    def dead_lettered(self, row: MessageRow, lease: Lease) -> None:
        """Take note of a message that was moved to the dead-letter queue; its last receipt has ended already."""
        if lease.log:
            now_ms = self._log.now_ms
            self._log.staged.append(self._event(lease, facts_of(row), now_ms, _DEAD_LETTERED))

    def retire(self, lane: int) -> "QueueLog":
        """Return the log of a lane of that number, whose messages are deleted now, all at once."""
        events = self._log
        events.journal.write("put_logged_lane", lane, self._name, events.now_ms)
        retired = events.retired[lane] = QueueLog(events, self._name, ended_at_ms=events.now_ms)
        return retired

    def forget(self, lane: int) -> None:
        """Let go of a retired lane, of which nothing is left."""
        self._log.retired.pop(lane, None)
        self._log.journal.write("delete_logged_lane", lane)

    # Events.

    def _expire_row(self, row: tuple[Any, ...]) -> Event:
        lease = Lease(*row[:10])
        message_id, sent_at_ms, properties, size, first_sent_at_ms = row[10:]
        since_ms = sent_at_ms if first_sent_at_ms is None else first_sent_at_ms
        end_ms = self._ended_at_ms if self._ended_at_ms is not None else since_ms + self._retention_ms
        facts = (message_id, sent_at_ms, properties, size, lease.group_key)
        *_, waited_ms = held.read(lease.log)
        received_at_ms = lease.received_at_ms + waited_ms
        lease.visible_at_ms = max(received_at_ms, min(lease.visible_at_ms, end_ms))
        event = self._event(lease, facts, lease.visible_at_ms, _EXPIRED)
        self._log.staged.append(event)
        return event

    def _event(self, lease: Lease, facts: Facts, closed_at_ms: int, outcome: str) -> Event:
        message_id, sent_at_ms, properties, size, group = facts
        extensions, batch_size, batch_position, waited_ms = held.read(lease.log)
        received_at_ms = lease.received_at_ms + waited_ms
        return (
            self._name,
            self._log.key(properties) if properties else "",
            group,
            1 << size.bit_length(),
            message_id,
            lease.generation,
            sent_at_ms,
            received_at_ms,
            closed_at_ms,
            closed_at_ms - received_at_ms,
            outcome,
            lease.visible_at_ms - received_at_ms,
            extensions,
            lease.receive_count,
            batch_size,
            batch_position,
        )
