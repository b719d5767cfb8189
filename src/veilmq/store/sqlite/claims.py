"""The messages of claims on SQLite: how they are bound, a slice at a time, read, given back, deleted and evicted.

Runs of the ready list move to ``claimed`` as they are, or cut where a shard ends, so what was never received costs by
runs and not by messages. A message with a row of its own in ``visibility`` loses it to a run of one: no statement of
the hot path sees a claimed message, and its queue does not count it. In a FIFO queue the row stays, hidden for ever,
and blocks its group. What comes back has a row in ``visibility``, as a message that was received once more.
"""

from collections.abc import AsyncGenerator, Iterable
from heapq import merge
from itertools import chain
from random import getrandbits
from typing import Any

from veilmq.core.claims import ClaimedMessage
from veilmq.core.errors import CursorInvalid
from veilmq.core.limits import BATCH_ROW_BYTES, RETENTION_S, SECOND_MS
from veilmq.store import claims
from veilmq.store.claims import BindRequest, BindResult, BoundClaim, ClaimTransaction
from veilmq.store.queues import NEVER_MS, SEQ_SHIFT, Queue
from veilmq.store.sqlite import fair, fifo, standard
from veilmq.store.sqlite.database import BARE, SQL
from veilmq.store.sqlite.event_log import KIND
from veilmq.store.sqlite.fair import GROUPED
from veilmq.store.sqlite.session import Row, Session
from veilmq.store.sqlite.settling import add_messages, advance_time, dead_letter, dead_letter_sink, update_groups
from veilmq.store.sqlite.standard import GENERATION_BITS

# Efforts, in rows that are merely deleted.
_RUN_EFFORT = 4
_MEASURED_PER_EFFORT = 5
_BOUND_EFFORT = 5
_BOUND_GROUPED_EFFORT = 12
_RETURNED_EFFORT = 2
_RETURNED_GROUPED_EFFORT = 7
_BYTES_PER_EFFORT = 16_384  # of a body that is deleted
_SEQ, _LANE, _RECEIVE_COUNT, _BYTES, _GROUP, _VISIBLE_AT = 0, 1, 2, 6, 11, 12  # of a row that is offered

_Taken = tuple[int, int, int, Row | None]
"""Messages that a slice takes: first and last seq and lane of a piece of a run, or one message with its row."""
_Placed = Iterable[tuple[int, int, int, _Taken]]
"""What was taken, behind its shard, first and last seq."""
_Back = tuple[int, int, int, int | None, int, int, int | None]
"""What comes back: first and last seq, lane, group, receives, epoch, and of one alone when it was first received."""


class SqliteClaims(ClaimTransaction):
    """What claims do with messages in the open batch; queues are those that were looked up there."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def bind(self, queue: Any, claim: BoundClaim, request: BindRequest) -> BindResult:
        advance_time(self._session, queue)
        return _Binding(self._session, queue, claim, request).bind()

    async def read_claim(
        self, queue: Any, claim: BoundClaim, shard: int, seq: int, count: int
    ) -> AsyncGenerator[tuple[int, ClaimedMessage], None]:
        if 0 < seq < (claim.bound_at_ms - RETENTION_S.maximum * SECOND_MS) << SEQ_SHIFT:
            raise CursorInvalid  # it is of the store that this one was converted from; reading begins anew
        ((_, ahead_ms),) = self._session.rows("claim_terms", claim.id)
        rows = self._session.execute(SQL["read_claimed"], (claim.id, shard, seq, count))
        for at, message_id, body, properties, receive_count in rows:
            sequence = at if queue.settings.fifo else None
            times = (at >> SEQ_SHIFT) + ahead_ms, claim.bound_at_ms + ahead_ms
            yield at, ClaimedMessage(message_id, body, properties, *times, receive_count, sequence)

    async def evict(self, queue: Any, claim: BoundClaim, seq: int, target: Any) -> None:
        """Move a message of the claim to ``target``: it comes back, and dies."""
        session, partition = self._session, queue.partition
        advance_time(session, queue)
        ((last, first, *what, shard),) = session.rows("claimed_at", partition, seq)
        session.run("delete_claimed", partition, last)
        pieces = [(partition, end, start) for start, end in ((first, seq - 1), (seq + 1, last)) if start <= end]
        session.run_many("insert_claimed", [(*piece, *what, claim.id, shard) for piece in pieces])
        session.run("grow_claim", -1, 0, None, claim.id)
        lane, group, receive_count, epoch, first_at_ms = what
        back: list[_Back] = [(seq, seq, lane, group, receive_count, epoch, first_at_ms)]
        _return(session, queue, claim, back)
        dead_letter(session, queue, target, session.rows(f"{KIND[queue.fifo]}_leased", partition, seq))
        _notify(session, queue)

    async def end_slice(self, queue: Any, claim: BoundClaim) -> bool:
        session = self._session
        if queue is not None and queue.partition != claim.partition:
            queue = None  # the partition of its messages is retired
        if queue is not None:
            advance_time(session, queue)
        partition, messages, effort_left = claim.partition, 0, session.options.claim_slice_rows
        deletes = queue is None or claim.state == claims.ACKNOWLEDGED
        floor = NEVER_MS if queue is None or deletes else queue.floor(session.now_ms)
        ended: list[Row] = []
        rest: list[Row] = []  # of a run that is not at its end
        gone: list[Row] = []
        back: list[_Back] = []
        rows = session.rows("claimed_of", claim.id, effort_left // _RETURNED_EFFORT + 1, deletes)
        for last, first, lane, group, receive_count, epoch, first_at_ms, shard, size_bytes in rows:
            end = last
            if first == last:
                effort_left -= (size_bytes or 0) // _BYTES_PER_EFFORT
                effort_left -= _RETURNED_EFFORT if group is None else _RETURNED_GROUPED_EFFORT
            else:
                end, effort_left = _end_of_run(session, first, last, effort_left - _RUN_EFFORT, deletes=deletes)
            kept = min(max(first, floor), end + 1)
            if kept > first:
                gone.append((first, kept - 1, lane, group))
            if kept <= end:
                back.append((kept, end, lane, group, receive_count, epoch, first_at_ms))
            messages += end - first + 1
            ended.append((partition, last))
            if end < last:
                rest.append((partition, last, end + 1, lane, group, receive_count, epoch, first_at_ms, claim.id, shard))
            if effort_left <= 0:
                break
        session.run_many("delete_claimed", ended)
        session.run_many("insert_claimed", rest)
        session.run_many("delete_messages", [row[:2] for row in gone])
        if queue is None or queue.fifo:
            session.run_many("ordered_delete", [(partition, row[3], row[0]) for row in gone if row[3] is not None])
        session.run("grow_claim", -messages, 0, None, claim.id)
        session.write_bytes_left -= (session.options.claim_slice_rows - effort_left) * BATCH_ROW_BYTES
        if queue is not None:
            _return(session, queue, claim, back)
            if deletes:
                queue.deleted += messages
            update_groups(session, queue, [(row[0], *row[2:4]) for row in (*gone, *back)])
            _notify(session, queue)
        return effort_left <= 0

    async def next_visible_ms(self, queue: Any) -> int | None:
        due_ms = standard.next_message_ms(self._session, queue)
        return None if due_ms >= NEVER_MS else due_ms


# Binding.


class _Binding:
    """A slice of binding: what it takes of a queue, and how much more it may."""

    def __init__(self, session: Session, queue: Queue, claim: BoundClaim, request: BindRequest) -> None:
        self._session = session
        self._queue = queue
        self._claim = claim
        self._request = request
        self._wanted = request.messages
        self._effort_left = session.options.claim_slice_rows
        ((has_bytes, _),) = session.rows("claim_terms", claim.id)
        self._bytes_left = None if request.bytes is None else 0 if has_bytes is None else request.bytes - has_bytes
        self._floor = queue.floor(session.now_ms)
        self._expires = session.now_ms >= queue.expires_at_ms
        self._is_full = False  # the next message is too long for the claim
        self._taken: list[_Taken] = []
        self._blocks: list[Row] = []  # of groups of a FIFO queue that gave something
        self._unsettled: set[int] = set()  # those that are to be filed anew
        self._messages = 0
        self._bytes = 0
        self._sink = dead_letter_sink(session, queue) if queue.settings.receives_max else None

    def bind(self) -> BindResult:
        """Bind the slice."""
        session, queue, claim = self._session, self._queue, self._claim
        if queue.fifo:
            self._choose_groups()
        else:
            for priority in fair.priorities(queue):
                if self._goes_on:
                    self._choose(priority)
        if self._sink is not None:
            self._sink.move()
        # There may be more of what is wished.
        more = self._wanted > 0 and not self._is_full and (self._effort_left <= 0 or self._expires)
        if queue.fifo or queue.has_groups:
            shards = claim.shards or claims.shards_of_groups(self._messages, more=more, request=self._request)
            self._write(self._by_group(shards))
            grown = shards, 0
        else:
            pieces, grown = claims.assign_shards(self._messages, claim, self._request.shard_messages)
            self._write(self._in_turn(pieces))
        if self._messages:
            queue.messages -= self._messages
            queue.received += self._messages
            queue.claims = True
            session.mark_dirty(queue)
            size_bytes = None if self._bytes_left is None else self._bytes
            session.run("grow_claim", self._messages, size_bytes, session.ahead_ms, claim.id)
        session.write_bytes_left -= (session.options.claim_slice_rows - self._effort_left) * BATCH_ROW_BYTES
        return BindResult(self._messages, *grown, more=more, expires=self._expires)

    def _write(self, in_shards: _Placed) -> None:
        """Write what was taken; the receipts of what was received before end."""
        session, queue, claim, now_ms = self._session, self._queue, self._claim, self._session.now_ms
        partition = queue.partition
        received = [seq for seq, _, _, row in self._taken if row is not None and row[_RECEIVE_COUNT]]
        session.events.end_receipts(queue.log, partition, received, fifo=queue.fifo)
        runs: list[Row] = []
        rows: list[Row] = []  # of messages that have rows of their own
        for shard, start, end, (_, _, lane, row) in in_shards:
            if row is None:
                runs.append((partition, end, start, lane, None, 1, 1, None, claim.id, shard))
            else:
                _, _, receive_count, epoch, first_at_ms, *_, group, _ = row
                what = lane, group, receive_count + 1, epoch + 1, now_ms if first_at_ms is None else first_at_ms
                rows.append((partition, end, start, *what, claim.id, shard))
        if runs:
            standard.remove_runs(
                session, partition, [(run[3], run[2], run[1]) for run in runs], at_front=not self._expires
            )
        session.run_many("insert_claimed", runs + rows)
        if queue.fifo:
            generation = getrandbits(GENERATION_BITS) or 1
            leases = [(partition, row[4], row[1], 0, NEVER_MS, generation, now_ms, now_ms) for row in rows]
            session.run_many("ordered_mark", leases)
            session.run_many("block_group", self._blocks)
            session.leave_runs(partition, [(row[1],) for row in rows])
            fifo.update_cursors(session, queue, self._unsettled)
            return
        session.run_many("standard_delete", [(partition, None, row[1]) for row in rows])
        update_groups(session, queue, [row[2:5] for row in rows])

    @property
    def _goes_on(self) -> bool:
        return self._wanted > 0 and self._effort_left > 0 and not self._is_full

    def _take(self, row: Row) -> None:
        """Take a message, or have it moved as a dead letter; one past its retention stays."""
        self._effort_left -= _BOUND_EFFORT if row[_GROUP] is None else _BOUND_GROUPED_EFFORT
        if row[_SEQ] < self._floor:
            return
        if self._sink is not None and row[_RECEIVE_COUNT] >= self._queue.settings.receives_max:
            if self._sink.is_full:
                self._effort_left = 0
            else:
                kind = KIND[self._queue.fifo]
                (offered,) = self._session.rows(f"{kind}_leased", self._queue.partition, row[_SEQ])
                self._sink.accept(offered)
            return
        self._count(1, row[_BYTES])
        if not self._is_full:
            self._taken.append((row[_SEQ], row[_SEQ], row[_LANE], row))

    def _take_run(self, lane: int, first: int, last: int) -> int:
        """Take messages of the ready list from ``first`` on; return the first one that is left."""
        last = min(last, first + self._wanted - 1)
        rows_max = self._effort_left * _MEASURED_PER_EFFORT
        self._effort_left -= _RUN_EFFORT
        if self._bytes_left is None:
            self._count(last - first + 1, 0)
        else:
            sizes = self._session.rows("message_sizes", first, last, rows_max)
            last = first - 1
            for seq, size_bytes in sizes:
                self._count(1, size_bytes)
                if self._is_full:
                    break
                last = seq
            self._effort_left -= (last - first + 1) // _MEASURED_PER_EFFORT
        if last >= first:
            self._taken.append((first, last, lane, None))
        return last + 1

    def _count(self, messages: int, size_bytes: int) -> None:
        if self._bytes_left is not None and size_bytes > self._bytes_left - self._bytes:
            self._is_full = True
        else:
            self._messages += messages
            self._wanted -= messages
            self._bytes += size_bytes

    def _choose(self, priority: int) -> None:
        """Take the visible messages of a priority in the order of their visibility."""
        session, partition, rows_max = self._session, self._queue.partition, self._effort_left // _RUN_EFFORT + 1
        lanes = [lane for lane in (priority, GROUPED + priority) if lane in self._queue.lanes]
        terms = session.now_ms, rows_max
        found: list[Any] = [session.execute(BARE["standard_take"], (partition, lane, *terms)) for lane in lanes]
        returned = merge(*found, key=standard.by_visibility)
        runs = iter(session.rows("ready_runs", partition, priority, self._floor, rows_max))
        first, last = next(runs, (NEVER_MS, 0))
        first = max(first, self._floor)
        for row in chain(returned, (None,)):
            bound = NEVER_MS if row is None else max(row[_VISIBLE_AT] << SEQ_SHIFT, row[_SEQ])
            while self._goes_on and first < bound:
                first = self._take_run(priority, first, min(last, bound - 1))
                if first > last:
                    first, last = next(runs, (NEVER_MS, 0))
            if not self._goes_on:
                break
            if row is not None:
                self._take(row)

    def _in_turn(self, pieces: list[tuple[int, int]]) -> _Placed:
        """Yield what was taken in turn: runs are cut where a shard is full."""
        places = iter(pieces)
        shard = left = 0
        for each in self._taken:
            first, end, _, _ = each
            while first <= end:
                if not left:
                    shard, left = next(places)
                last = min(end, first + left - 1)
                yield shard, first, last, each
                left -= last - first + 1
                first = last + 1

    def _by_group(self, shards: int) -> _Placed:
        """Yield messages of a group where it belongs, and runs divided among all shards."""
        for each in self._taken:
            start, end, _, row = each
            if row is not None and row[_GROUP] is not None:
                yield row[_GROUP] % shards, start, end, each
                continue
            messages = end - start + 1
            parts = min(shards, messages)
            for part in range(parts):
                first = start + part * messages // parts
                yield (start + part) % shards, first, start + (part + 1) * messages // parts - 1, each

    def _choose_groups(self) -> None:
        """Take what groups of a FIFO queue give."""
        session, queue, taken = self._session, self._queue, self._taken
        for group in fifo.ready_groups(session, queue, self._groups_left):
            if not self._goes_on:
                break
            start = len(taken)
            for row in fifo.group_messages(session, queue, group, self._groups_left):
                if self._goes_on:
                    self._take(row)
            mine = taken[start:]
            if mine:
                self._blocks.append((NEVER_MS, mine[0][0], mine[-1][0], len(mine), queue.partition, group))
            else:
                self._unsettled.add(group)

    @property
    def _groups_left(self) -> int:
        """How many more messages, of a group each, may be taken."""
        return min(self._wanted, self._effort_left // _BOUND_GROUPED_EFFORT + 1)


# The end of a claim.


def _end_of_run(session: Session, first: int, last: int, effort_left: int, *, deletes: bool) -> tuple[int, int]:
    """Return how far a slice comes in a run, and what is left of its effort; large messages weigh more."""
    if not deletes:
        end = min(last, first + max(1, effort_left // _RETURNED_EFFORT) - 1)
        return end, effort_left - (end - first + 1) * _RETURNED_EFFORT
    end = first
    for seq, size_bytes in session.rows("message_sizes", first, last, max(1, effort_left)):
        end = seq
        effort_left -= 1 + size_bytes // _BYTES_PER_EFFORT
        if effort_left <= 0:
            break
    return end, effort_left


def _return(session: Session, queue: Queue, claim: BoundClaim, rows: list[_Back]) -> None:
    """Make messages visible now; the caller files their groups anew.

    Those of a FIFO queue are counted into the runs that have their seqs; what is in none begins runs of its own.
    """
    partition, now_ms, bound_at_ms = queue.partition, session.now_ms, claim.bound_at_ms
    if queue.fifo:
        session.run_many("ordered_change", [(partition, row[3], row[0], now_ms, row[5], None) for row in rows])
        session.write_deletions()
        new: list[tuple[int, int]] = []
        for seq, *_ in sorted(rows):
            session.run("grow_ordered_run", partition, seq)
            if not session.connection.changes():
                new.append((0, seq))
        runs = standard.to_runs(new)
        session.run_many("insert_ordered_run", [(partition, last, first, last - first + 1) for _, first, last in runs])
    else:
        terms = partition, now_ms, getrandbits(GENERATION_BITS) or 1, bound_at_ms
        session.run_many("return_claimed", [(*terms, *row[:6], row[6] or bound_at_ms) for row in rows])
    for first, last, lane, *_ in rows:
        add_messages(queue, lane, first, last - first + 1)
    session.mark_dirty(queue)


def _notify(session: Session, queue: Queue) -> None:
    """Notify the queue's watch: messages are back, or more may be claimed."""
    if queue.fifo:
        fifo.notify(session, queue)
    else:
        queue.notify(session.now_ms)
