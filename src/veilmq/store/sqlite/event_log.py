"""The event log on SQLite: the end of each receipt, written with the batch that ended it.

A logged queue has a ``Logged`` in ``Queue.log``; others have ``None``, which costs one comparison. Events are collected
in memory and written as one row per batch. The data of the receive that an event needs is in the column ``log``, next
to the message's deadline (``store.events``).

A receipt that ended without a deletion is kept with its event for a day (``expired_receipt``). A late delete may
correct the event, once, even if the message was received again or deleted meanwhile. Nothing runs when a lease expires;
its end is recorded by the next command that delivers, moves, changes or deletes the message, or by the janitor. If the
disk is nearly full, or too many events wait to be exported, new events are dropped and counted; everything else
continues.
"""

import logging
from collections.abc import Collection, Iterable
from typing import Any

import apsw
import msgspec

from veilmq.core.limits import SECOND_MS
from veilmq.core.messages import routing_key_of
from veilmq.core.receipts import Outcome, Receipt, ReceiptClosed, encode_events
from veilmq.store import events
from veilmq.store.events import EXPIRED_KEPT_MAX, LOG_CLOSED, Event, Logged, log_is_open, read_log
from veilmq.store.sqlite.database import SQL, Database, EngineOptions
from veilmq.store.sqlite.queues import Queue
from veilmq.store.transaction import SEQ_SHIFT

log = logging.getLogger(__name__)

_FIELDS = ReceiptClosed.__struct_fields__
_RECEIVED_AT, _CLOSED_AT = _FIELDS.index("received_at_ms"), _FIELDS.index("closed_at_ms")
_HELD, _OUTCOME = _FIELDS.index("held_ms"), _FIELDS.index("outcome")
_INSTANTS = [index for index, name in enumerate(_FIELDS) if name.endswith("_at_ms")]

_SEQ, _VISIBLE_AT, _GENERATION, _EPOCH, _RECEIVED_SINCE, _GROUP, _LOG = 0, 1, 3, 4, 5, 6, 8  # of a lease
_KEY, _SENT_AT, _DELIVERED_AT = 12, 13, 14

_decode = msgspec.msgpack.Decoder(tuple).decode

Row = tuple[Any, ...]
# A row of ``standard_logged`` or ``ordered_logged``, with the routing key instead of the properties, followed by the
# delivery time (after the wait of the receive).
Lease = list[Any]


class EventLog:
    """The events of the open batch. Before methods that read leases, the caller flushes what is staged of the queue."""

    def __init__(self, connection: apsw.Connection, *, options: EngineOptions, database: Database) -> None:
        self._execute = connection.execute
        self._executemany = connection.executemany
        self._options = options
        self._database = database
        self.now_ms = 0  # of the batch
        self.clear()

    def clear(self) -> None:
        """Drop what is staged."""
        self.staged: list[Event] = []  # events that the batch has yet to write, in store time
        self._expired: dict[tuple[int, int], tuple[int, bytes]] = {}

    def write(self, ahead_ms: int) -> None:
        """Write the staged events in shown time, and expired receipts in store time, or drop both."""
        staged, expired = self.staged, self._expired
        self.staged, self._expired = [], {}
        recorded, _, exported, dropped = self._execute(SQL["event_state"]).get
        if self._database.low_disk_space or recorded - exported >= self._options.events_waiting_max:
            if not dropped:
                log.warning("events are dropped: too many wait to be exported, or the disk is nearly full")
            self._execute(SQL["drop_events"], (len(staged),))
            return
        if ahead_ms:
            staged = [
                tuple([value + ahead_ms if index in _INSTANTS else value for index, value in enumerate(event)])
                for event in staged
            ]
        self._execute(SQL["insert_event_batch"], (recorded + 1, len(staged), encode_events(staged)))
        self._executemany(SQL["insert_expired"], [(*key, *kept) for key, kept in expired.items()])

    def sweep(self, rows_max: int) -> bool:
        """Delete a slice of expired receipts that are too old or too many; return whether there may be more."""
        args = rows_max, self.now_ms - events.EXPIRED_KEPT_S * SECOND_MS, EXPIRED_KEPT_MAX
        return len(self._execute(SQL["delete_old_receipts"], args).fetchall()) == rows_max

    # Leases.

    def find(self, partition: int, seqs: Iterable[int], *, kind: str) -> list[Lease]:
        """Return the leases of existing messages."""
        query = SQL[f"{kind}_logged"]
        leases = [list(row) for row in self._executemany(query, [(partition, seq) for seq in seqs])]
        for lease in leases:
            lease[_KEY] = routing_key_of(lease[_KEY], self._options.routing_attribute)
            lease.append((lease[_RECEIVED_SINCE] or 0) + read_log(lease[_LOG])[-1])
        return leases

    def update(self, partition: int, leases: Collection[Lease], *, kind: str) -> None:
        """Write changed leases."""
        rows = [(partition, each[_GROUP], each[_SEQ], each[_VISIBLE_AT], each[_EPOCH], each[_LOG]) for each in leases]
        self._executemany(SQL[f"{kind}_change"], rows)

    # Receipts.

    def received(self, queue: Queue, rows: list[Row], requested_at_ms: int) -> int:
        """End the earlier receipts of delivered messages, given as candidate rows; return the ``log`` of the first."""
        redelivered = [row[0] for row in rows if row[2]]
        if redelivered:
            self.end_receipts(queue.log, queue.partition, redelivered, kind=queue.kind)
        return events.log_begun(len(rows), self.now_ms - requested_at_ms)

    def end_receipts(
        self, logged: Logged | None, partition: int, seqs: Iterable[int], *, kind: str, dead: bool = False
    ) -> None:
        """End receipts, at their deadlines or with their messages, of messages that are received, moved or deleted.

        ``dead``: the messages become dead letters.
        """
        if logged is None:
            return
        for lease in self.find(partition, seqs, kind=kind):
            if log_is_open(lease[_LOG]):
                event = self._expire(logged, lease)
                self._expired[lease[_SEQ], lease[_GENERATION]] = self.now_ms, encode_events(event)
            if dead and lease[_LOG]:
                self._record(logged, lease, Outcome.DEAD_LETTERED, self.now_ms)

    def changed(self, logged: Logged, lease: Lease, *, released: bool) -> None:
        """Record in a lease, before the change, that its deadline changes; the caller writes the lease."""
        if not released:
            lease[_LOG] = events.log_extended(lease[_LOG])
        elif log_is_open(lease[_LOG]):
            self._record(logged, lease, Outcome.NACKED, self.now_ms)
            lease[_LOG] |= LOG_CLOSED

    def deleted(self, queue: Queue, receipt: Receipt, lease: Lease | None, *, acts: bool) -> None:
        """Record a delete; ``lease`` is ``None`` without a message. A renewed receipt belongs to the same receive."""
        if (logged := queue.log) is None:
            return
        if lease is not None and lease[_GENERATION] == receipt.generation:
            if log_is_open(lease[_LOG]) and (acts or lease[_EPOCH] == receipt.epoch):
                if self.now_ms < lease[_VISIBLE_AT]:
                    self._record(logged, lease, Outcome.DELETED, self.now_ms)
                else:
                    self._correct(self._expire(logged, lease))
                if not acts:
                    lease[_LOG] |= LOG_CLOSED
                    self.update(queue.partition, [lease], kind=queue.kind)
            return
        if acts and lease is not None and log_is_open(lease[_LOG]):  # a delete by an earlier receipt
            if self.now_ms < lease[_VISIBLE_AT]:
                self._record(logged, lease, Outcome.DELETED_BY_EARLIER, self.now_ms)
            else:
                self._expire(logged, lease)
        key = receipt.position, receipt.generation
        staged = self._expired.pop(key, None)
        expired = self._execute(SQL["take_expired"], key).get if staged is None else staged[1]
        if expired is not None:
            self._correct(_decode(expired))
        elif lease is None and (late := self._record_unswept(queue, logged, receipt)) is not None:
            self._correct(late)

    def _record_unswept(self, queue: Queue, logged: Logged, receipt: Receipt) -> Event | None:
        """Record the end of a receipt that retention or a purge has ended, before the janitor does."""
        partitions = [(queue.partition, logged)] if receipt.position < queue.floor(self.now_ms) else []
        for partition, name, ended_at_ms in self._execute(SQL["retired_parts"], (-1,)):
            if name == queue.name:
                partitions.append((partition, Logged(name, 0, ended_at_ms)))
        for partition, logged in partitions:
            for lease in self.find(partition, [receipt.position], kind=queue.kind):
                if lease[_GENERATION] == receipt.generation and log_is_open(lease[_LOG]):
                    lease[_LOG] |= LOG_CLOSED
                    self.update(partition, [lease], kind=queue.kind)
                    return self._expire(logged, lease)
        return None

    def _correct(self, expired: Event) -> None:
        late = list(expired)
        late[_CLOSED_AT], late[_OUTCOME] = self.now_ms, Outcome.LATE_DELETED
        late[_HELD] = self.now_ms - expired[_RECEIVED_AT]
        self.staged.append(tuple(late))

    def _expire(self, logged: Logged, lease: Lease) -> Event:
        end_ms = min(lease[_VISIBLE_AT], logged.end_ms(lease[_SEQ] >> SEQ_SHIFT))
        return self._record(logged, lease, Outcome.EXPIRED, max(lease[_DELIVERED_AT], end_ms))

    def _record(self, logged: Logged, lease: Lease, outcome: Outcome, closed_at_ms: int) -> Event:
        _, visible_at_ms, receive_count, generation, *_, log, group_hash, size, message_id = lease[:_KEY]
        if outcome is Outcome.EXPIRED:
            visible_at_ms = closed_at_ms
        content = (logged.queue, lease[_KEY], group_hash, size, message_id, generation)
        times = lease[_SENT_AT], lease[_DELIVERED_AT], visible_at_ms
        event = events.event_of(*content, *times, receive_count, log, outcome, closed_at_ms)
        self.staged.append(event)
        return event
