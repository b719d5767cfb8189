"""A lane: the messages of one queue at one priority.

Two runs hold them: *fresh* (never received, by position) and *hidden* (everything with a lease, by the instant of its
visibility; what is past that instant has returned). A receive merges both by the time each message became visible, so
a released poison message does not come first for ever, and nothing in memory grows with the backlog.

A lane is one incarnation: a purge retires the queue's lanes and the next send opens a new one. A lane whose positions
are used up is followed by another of the same priority.
"""

from collections.abc import Callable, Sequence
from random import getrandbits

from veilmq.core.limits import SECOND_MS
from veilmq.engines.embedded import positions
from veilmq.engines.embedded.counters import Counters
from veilmq.engines.embedded.event_log import QueueLog
from veilmq.engines.embedded.fresh import BodyCache, Fresh, FreshRun
from veilmq.engines.embedded.hidden import HiddenRun
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.moved import ENDED_PER_COMMAND, Moved
from veilmq.engines.embedded.options import EngineOptions
from veilmq.engines.embedded.rows import LaneRow, Lease, MessageRow
from veilmq.engines.embedded.run import NEVER_MS, ON_DISK
from veilmq.engines.embedded.series import Series, stored_series

PLAIN, FAIR, FIFO = range(3)
"""The kinds of lanes: messages without a group, those of groups that share fairly, and those of ordered groups."""

_GENERATION_BITS = 32
NO_ROW = 0
"""The visible-at of a lease that ``take`` has just made: the store has no row of it."""

_row = tuple.__new__  # of a NamedTuple, without the Python frame that its constructor costs


Taken = tuple[MessageRow, Lease, "Lane"]
"""A message that is received, its lease and its lane."""


class Lane:
    """The messages of one incarnation of a queue at one priority."""

    __slots__ = (
        "_delayed",
        "_direct",
        "_fresh",
        "_hidden",
        "_journal",
        "_moved",
        "counters",
        "delay_ms",
        "expires_at_ms",
        "kind",
        "log",
        "neighbours",
        "number",
        "priority",
        "queue",
        "sequence_base",
        "touched",
    )

    def __init__(
        self, row: LaneRow, *, journal: Journal, cache: BodyCache, options: EngineOptions, stored: bool
    ) -> None:
        """``stored`` tells a lane read from the disk from a new one, which needs no reading."""
        number = row.number
        self.number = number
        self.queue = row.queue
        self.priority = row.priority
        self.kind = row.kind
        self.neighbours: Sequence[Lane] = []  # all lanes of the queue
        self.sequence_base = row.sequence_base
        self.touched = False
        self.log: QueueLog | None = None
        self.delay_ms = 0  # how long messages without leases are hidden after their sending: in ordered groups alone
        self.counters = Counters(row)
        self.expires_at_ms = 0 if row.messages else NEVER_MS  # not later than the first message's end of retention
        self._journal = journal
        self._direct = stored_series(
            positions.direct_start(number), row.direct_floor, row.direct_next, options.lane_sequences_max, row.dense
        )
        self._delayed = stored_series(
            positions.delayed_start(number), row.delayed_floor, row.delayed_next, options.lane_sequences_max
        )
        self._moved = self._new_moved() if stored else None  # whether it has any is seen when retention is looked at
        self._fresh = self._make_fresh(cache, options, stored=stored)
        self._hidden = self._make_hidden(options, stored=stored)

    def _make_fresh(self, cache: BodyCache, options: EngineOptions, *, stored: bool) -> Fresh:
        start = end = self._direct.next
        if stored:  # messages are received in order: all behind the last one that has a lease were never received
            start = self._journal.after_last_taken(positions.direct_start(self.number), self._direct.floor, end)
        return FreshRun(
            journal=self._journal, cache=cache, window_max=options.ready_window_messages, start=start, end=end
        )

    def _make_hidden(self, options: EngineOptions, *, stored: bool) -> HiddenRun:
        return HiddenRun(
            journal=self._journal,
            lane=self.number,
            window_max=options.hidden_window_leases,
            horizon=ON_DISK if stored else None,
            alive=self._alive,
        )

    def row(self) -> LaneRow:
        """Return the lane as it is to be stored."""
        counters = self.counters
        return LaneRow(
            self.number,
            self.queue,
            self.priority,
            self._direct.floor,
            self._direct.next,
            self._delayed.floor,
            self._delayed.next,
            counters.messages,
            counters.in_flight,
            counters.delayed,
            counters.counted_at_ms,
            self.kind,
            self.sequence_base,
            self._direct.dense,
        )

    def sequence_of(self, position: int) -> int:
        """Return the sequence number of the message at ``position``; it means something in FIFO queues alone."""
        return self.sequence_base + position - positions.direct_start(self.number)

    @property
    def next_sequence(self) -> int:
        """Return the sequence number that the next message gets."""
        return self.sequence_of(self._direct.next)

    @property
    def last_delayed(self) -> int:
        """Return the position of the message that was sent last with a delay."""
        return self._delayed.next - 1

    @property
    def is_full(self) -> bool:
        """Whether one of the lane's series has used up its positions."""
        return self._direct.next >= self._direct.end or self._delayed.next >= self._delayed.end

    # Sending.

    def add(self, message_id: bytes, body: str, properties: bytes, now_ms: int, group_key: int | None = None) -> None:
        """Store a message that is visible at once."""
        series = self._direct
        row = _row(MessageRow, (series.next, message_id, now_ms, body, properties, group_key, None, None, None, None))
        series.next += 1
        self._fresh.append(row)
        self._added(row)

    def add_moved(self, row: MessageRow, now_ms: int) -> None:
        """Store a message of another lane, visible at once; its position and ``sent_at_ms`` are given here."""
        series = self._direct
        row = row._replace(position=series.next, sent_at_ms=now_ms)
        series.next += 1
        self._fresh.append(row)
        self._added(row)
        self.counters.moved += 1
        if row.first_sent_at_ms is not None:
            self._moved = self._moved or self._new_moved()
            self.expires_at_ms = 0

    def _new_moved(self) -> Moved:
        return Moved(journal=self._journal, lane=self.number, series=self._direct)

    def add_delayed(
        self,
        message_id: bytes,
        body: str,
        properties: bytes,
        now_ms: int,
        visible_at_ms: int,
        group_key: int | None = None,
    ) -> None:
        """Store a message that is hidden until ``visible_at_ms``."""
        series = self._delayed
        row = MessageRow(series.next, message_id, now_ms, body, properties, group_key)
        series.next += 1
        self._hide(Lease(row.position, self.number, visible_at_ms, group_key=group_key), self._journal.add_lease)
        self._added(row)

    def _added(self, row: MessageRow) -> None:
        self.counters.messages += 1
        if self.expires_at_ms == NEVER_MS:
            self.expires_at_ms = 0
        self._journal.add_message(row)
        if not self.touched:
            self._journal.touch(self)

    # Receiving.

    def visible_since_ms(self, now_ms: int) -> int:
        """Return when the message that would be taken first became visible; ``NEVER_MS`` when there is none."""
        row = self._fresh.head()
        lease = self._returned_head(now_ms)
        sent_at_ms = NEVER_MS if row is None else row.sent_at_ms
        return sent_at_ms if lease is None else min(sent_at_ms, lease.visible_at_ms)

    def take(self, now_ms: int) -> Taken | None:
        """Take the message that became visible first; the caller hides it when all of a receive are chosen."""
        row = self._fresh.head()
        lease = self._returned_head(now_ms)
        if lease is not None and (row is None or lease.visible_at_ms <= row.sent_at_ms):
            self._hidden.take()
            self.counters.unhide(lease)
            row = self._journal.message_at(lease.position)
        elif row is None:
            return None
        else:
            self._fresh.take()
            lease = Lease(row.position, self.number, NO_ROW, group_key=row.group_key)
        self._journal.batch_bytes += len(row.body)
        if row.first_sent_at_ms is not None and self._moved is not None and self._moved.has_ended(row):
            return self._take_behind(lease, self._moved, now_ms)
        return row, lease, self

    def _take_behind(self, ended: Lease, moved: Moved, now_ms: int) -> Taken | None:
        """Take the next message instead of one past its retention; none while there are too many such."""
        self.let_go(ended)
        self._sweep_moved(moved, ENDED_PER_COMMAND)
        return None if moved.left else self.take(now_ms)

    def let_go(self, lease: Lease) -> None:
        """Delete a message that was taken."""
        if lease.log and self.log is not None:
            self.log.ended(lease.position, lease.position + 1)
        self.counters.messages -= 1
        self._journal.remove(lease.position)
        self._journal.touch(self)

    def give_back(self, taken: Taken) -> None:
        """Undo the ``take`` that was the last thing to happen to the lane."""
        row, lease, _ = taken
        if lease.visible_at_ms == NO_ROW:
            self._fresh.put_back(row)
        else:
            self.counters.hide(lease)
            self._hidden.put(lease.position, lease)

    def _returned_head(self, now_ms: int) -> Lease | None:
        lease = self._hidden.head(now_ms)
        while lease is not None and self._is_expired(lease.position):
            self._hidden.take()
            lease = self._hidden.head(now_ms)
        return lease

    def lease(self, lease: Lease, now_ms: int, visible_at_ms: int, requested_at_ms: int) -> None:
        """Hide a message that was taken, for one more receive, which was asked for at ``requested_at_ms``."""
        stage = self._journal.add_lease if lease.visible_at_ms == NO_ROW else self._journal.put_lease
        if lease.receive_count == 0:
            lease.first_received_at_ms = now_ms
        else:
            self.counters.redelivered += 1
        lease.receive_count += 1
        lease.epoch += 1
        lease.generation = getrandbits(_GENERATION_BITS)
        lease.received_at_ms = requested_at_ms
        lease.visible_at_ms = visible_at_ms
        self._hide(lease, stage)
        if not self.touched:
            self._journal.touch(self)

    def _hide(self, lease: Lease, stage: Callable[[Lease], None]) -> None:
        self.counters.hide(lease)
        self._hidden.put(lease.position, lease)
        stage(lease)

    def next_due_ms(self, now_ms: int) -> int:
        """Return the instant from which the lane has a visible message: ``now_ms``, later, or ``NEVER_MS``."""
        if self._fresh.head() is not None:
            return now_ms
        lease = self._hidden.head()
        return NEVER_MS if lease is None else max(now_ms, lease.visible_at_ms)

    def next_place_ms(self, now_ms: int) -> int:
        """Return when the next lease in flight ends, or an instant before that at which to look again."""
        at_ms = self._journal.next_end_ms(self.number, now_ms)
        return NEVER_MS if at_ms is None else at_ms

    # Receipts.

    def find(self, position: int) -> Lease | None:
        """Return the lease of the message at ``position``, ``None`` when the message is gone."""
        lease = None if self._is_expired(position) else self._hidden.get(position)
        if lease is not None and self._moved is not None and self._moved.hides(position):
            return None
        return lease

    def move(self, lease: Lease, now_ms: int, visible_at_ms: int, *, supersede: bool) -> None:
        """Make the message visible at ``visible_at_ms``; ``supersede`` puts all receipts issued so far out of force."""
        self.counters.unhide(lease)
        lease.visible_at_ms = visible_at_ms
        if supersede:
            lease.epoch += 1
        self._hide(lease, self._journal.put_lease)
        self._journal.touch(self)

    def remove(self, lease: Lease, now_ms: int) -> None:
        """Delete the message."""
        self.counters.unhide(lease)
        self.counters.messages -= 1
        self._hidden.drop(lease.position)
        self._journal.remove(lease.position)
        if not self.touched:
            self._journal.touch(self)

    # Time: retention and counting.

    def _alive(self) -> tuple[int, int, int]:
        return self._direct.floor, positions.delayed_start(self.number), self._delayed.floor

    def _is_expired(self, position: int) -> bool:
        return position < (self._delayed if position & positions.SEQUENCES_MAX else self._direct).floor

    def expire(self, now_ms: int, retention_s: int) -> None:
        """Put everything sent ``retention_s`` or longer ago out of reach; asked when ``expires_at_ms`` has come."""
        floors = self._direct.floor, self._delayed.floor
        retention_ms = retention_s * SECOND_MS
        sent = [series.expire(self._journal, now_ms - retention_ms) for series in (self._direct, self._delayed)]
        self.expires_at_ms = min((at + retention_ms for at in sent if at is not None), default=NEVER_MS)
        if self._moved is not None:
            self.expires_at_ms = min(self.expires_at_ms, self._expire_moved(self._moved, now_ms, retention_ms))
        if floors != (self._direct.floor, self._delayed.floor):
            self._fresh.skip_to(self._direct.floor)
            self._journal.touch(self)

    def _expire_moved(self, moved: Moved, now_ms: int, retention_ms: int) -> int:
        """Delete moved messages past their retention, so many as a command may; return when to do so again."""
        moved.expire(now_ms - retention_ms)
        self._sweep_moved(moved, ENDED_PER_COMMAND)
        first_ms = moved.first_sent_ms()
        if first_ms is None:
            self._moved = None
            return NEVER_MS
        return max(now_ms, first_ms + retention_ms)

    def _sweep_moved(self, moved: Moved, rows_max: int) -> int:
        gone = self._ended(moved, rows_max)
        for lease in [self._hidden.get(position) for position in gone]:
            if lease is not None:
                self.counters.unhide(lease)
                self._hidden.drop(lease.position)
        for position in gone:
            if self.log is not None:
                self.log.ended(position, position + 1)
            self._journal.remove(position)
        if gone:
            self._direct.dense = False
            self.counters.messages -= len(gone)
            self._fresh.drop(set(gone))
            self._journal.touch(self)
        return len(gone)

    def _ended(self, moved: Moved, rows_max: int) -> list[int]:
        return moved.sweep(rows_max)

    def retire(self) -> None:
        """Part the lane from its queue: everything in it is deleted, and swept in time."""
        self.queue = None
        self._direct.retire()
        self._delayed.retire()
        self._fresh.clear()
        self.expires_at_ms = NEVER_MS
        self._moved = None
        self._journal.touch(self)

    @property
    def swept(self) -> bool:
        """Whether no row is left that retention or a purge has put out of reach."""
        return self._direct.swept and self._delayed.swept and (self._moved is None or not self._moved.left)

    def sweep(self, rows_max: int) -> int:
        """Delete rows out of reach, at most ``rows_max`` messages of each half; return how many."""
        rows = sum(self._sweep(each, rows_max) for each in (self._direct, self._delayed) if not each.swept)
        moved = self._moved
        return rows if moved is None or not moved.left else rows + self._sweep_moved(moved, rows_max)

    def _sweep(self, series: Series, rows_max: int) -> int:
        return self._delete_between(*series.sweep(self._journal, rows_max))

    def _delete_between(self, start: int, end: int) -> int:
        if self.log is not None:
            self.log.ended(start, end)
        messages, delayed, in_flight = self._journal.delete_between(start, end, self.counters.counted_at_ms)
        self.counters.messages -= messages
        self.counters.delayed -= delayed
        self.counters.in_flight -= in_flight
        self._journal.touch(self)
        return messages

    def catch_up(self, now_ms: int) -> Counters:
        """Return the counters as they are now."""
        self.counters.catch_up(self._journal, self.number, now_ms)
        return self.counters
