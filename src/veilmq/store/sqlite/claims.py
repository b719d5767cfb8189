"""The messages of claims on SQLite: binding a slice at a time, reading, returning, deleting and evicting.

Runs of the ready list move to ``claimed`` whole, or split at the end of a shard, so messages that were never received
cost per run and not per message. A message with a row in ``visibility`` loses that row and becomes a run of one: no
statement of the hot path sees claimed messages, and their queue does not count them. In a FIFO queue the row stays,
hidden forever, and blocks its group. A message that returns gets a row in ``visibility`` with one more receive.
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
from veilmq.store.sqlite import fair, fifo, standard
from veilmq.store.sqlite.database import SQL, SQL_WITH_SIZES
from veilmq.store.sqlite.fair import GROUPED
from veilmq.store.sqlite.queues import SEQ_MAX, Queue
from veilmq.store.sqlite.session import BODY, GROUP, LANE, RECEIVE_COUNT, SEQ, VISIBLE_AT, Row, Session
from veilmq.store.sqlite.settling import add_messages, dead_letter, dead_letter_sink, update_groups
from veilmq.store.sqlite.standard import GENERATION_BITS
from veilmq.store.transaction import NEVER_MS, SEQ_SHIFT

# The effort of operations; 1 is the deletion of a row.
_RUN_EFFORT = 4
_MEASURED_PER_EFFORT = 5
_BOUND_EFFORT = 5
_BOUND_GROUPED_EFFORT = 12
_RETURNED_EFFORT = 2
_RETURNED_GROUPED_EFFORT = 7
_BYTES_PER_EFFORT = 16_384  # of a deleted body
_BYTES = BODY  # in rows of ``SQL_WITH_SIZES``

# Messages that a slice takes: first and last seq and lane of a part of a run, or one message with its row.
_Taken = tuple[int, int, int, Row | None]
_Placed = Iterable[tuple[int, int, int, _Taken]]  # taken messages, each after its shard, first and last seq
# Messages that return: first and last seq, lane, group, receive count, epoch, and of a single one its first receive.
_Returned = tuple[int, int, int, int | None, int, int, int | None]


class SqliteClaims(ClaimTransaction):
    """The operations of claims on messages in the open batch; queues come from its ``find``."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def bind(self, queue: Any, claim: BoundClaim, request: BindRequest) -> BindResult:
        return _Binding(self._session, queue, claim, request).bind()

    async def read_claim(
        self, queue: Any, claim: BoundClaim, shard: int, seq: int, count: int
    ) -> AsyncGenerator[tuple[int, ClaimedMessage], None]:
        if 0 < seq < (claim.bound_at_ms - RETENTION_S.maximum * SECOND_MS) << SEQ_SHIFT:
            raise CursorInvalid  # a cursor from before the conversion of the store; the client restarts reading
        ((_, ahead_ms),) = self._session.rows("claim_columns", claim.id)
        rows = self._session.execute(SQL["read_claimed"], (claim.id, shard, seq, count))
        for at, message_id, body, properties, receive_count in rows:
            sequence = at if queue.settings.fifo else None
            times = (at >> SEQ_SHIFT) + ahead_ms, claim.bound_at_ms + ahead_ms
            yield at, ClaimedMessage(message_id, body, properties, *times, receive_count, sequence)

    async def evict(self, queue: Any, claim: BoundClaim, seq: int, target: Any) -> None:
        """Move a message of the claim to ``target``: return it, then dead-letter it."""
        session, partition = self._session, queue.partition
        ((last, first, *what, shard),) = session.rows("claimed_at", partition, seq)
        session.run("delete_claimed", partition, last)
        pieces = [(partition, end, start) for start, end in ((first, seq - 1), (seq + 1, last)) if start <= end]
        session.run_many("insert_claimed", [(*piece, *what, claim.id, shard) for piece in pieces])
        session.run("grow_claim", -1, 0, None, claim.id)
        lane, group, receive_count, epoch, first_at_ms = what
        returned: list[_Returned] = [(seq, seq, lane, group, receive_count, epoch, first_at_ms)]
        _return(session, queue, claim, returned)
        dead_letter(session, queue, target, session.rows(f"{queue.kind}_leased", partition, seq))
        _notify(session, queue)

    async def end_slice(self, queue: Any, claim: BoundClaim) -> bool:
        session = self._session
        if queue is not None and queue.partition != claim.partition:
            queue = None  # the claim's partition is retired
        partition, messages, effort_left = claim.partition, 0, session.options.claim_slice_rows
        is_delete = queue is None or claim.state == claims.ACKNOWLEDGED
        floor = SEQ_MAX if queue is None or is_delete else queue.floor(session.now_ms)
        ended: list[Row] = []
        rest: list[Row] = []  # the rest of a run
        deleted: list[Row] = []
        returned: list[_Returned] = []
        rows = session.rows("claimed_of", claim.id, effort_left // _RETURNED_EFFORT + 1, is_delete)
        for last, first, lane, group, receive_count, epoch, first_at_ms, shard, size_bytes in rows:
            end = last
            if first == last:
                effort_left -= (size_bytes or 0) // _BYTES_PER_EFFORT
                effort_left -= _RETURNED_EFFORT if group is None else _RETURNED_GROUPED_EFFORT
            else:
                end, effort_left = _end_of_run(session, first, last, effort_left - _RUN_EFFORT, is_delete=is_delete)
            first_kept = min(max(first, floor), end + 1)
            if first_kept > first:
                deleted.append((first, first_kept - 1, lane, group))
            if first_kept <= end:
                returned.append((first_kept, end, lane, group, receive_count, epoch, first_at_ms))
            messages += end - first + 1
            ended.append((partition, last))
            if end < last:
                rest.append((partition, last, end + 1, lane, group, receive_count, epoch, first_at_ms, claim.id, shard))
            if effort_left <= 0:
                break
        session.run_many("delete_claimed", ended)
        session.run_many("insert_claimed", rest)
        session.run_many("delete_messages", [row[:2] for row in deleted])
        if queue is None or queue.fifo:
            session.run_many("ordered_delete", [(partition, row[3], row[0]) for row in deleted if row[3] is not None])
        session.run("grow_claim", -messages, 0, None, claim.id)
        session.write_bytes_left -= (session.options.claim_slice_rows - effort_left) * BATCH_ROW_BYTES
        if queue is not None:
            _return(session, queue, claim, returned)
            if is_delete:
                queue.deleted += messages
            update_groups(session, queue, [(row[0], *row[2:4]) for row in (*deleted, *returned)])
            _notify(session, queue)
        return effort_left <= 0

    async def next_visible_ms(self, queue: Any) -> int | None:
        due_ms = standard.next_message_ms(self._session, queue)
        return None if due_ms >= NEVER_MS else due_ms


# Binding.


class _Binding:
    """A slice of binding: the messages taken of a queue, and what is left of its limits."""

    def __init__(self, session: Session, queue: Queue, claim: BoundClaim, request: BindRequest) -> None:
        self._session = session
        self._queue = queue
        self._claim = claim
        self._request = request
        self._wanted = request.messages
        self._effort_left = session.options.claim_slice_rows
        ((has_bytes, _),) = session.rows("claim_columns", claim.id)
        self._bytes_left = None if request.bytes is None else 0 if has_bytes is None else request.bytes - has_bytes
        self._floor = queue.floor(session.now_ms)
        self._expires = session.now_ms >= queue.expires_at_ms
        self._is_full = False  # the next message is too long for the claim
        self._taken: list[_Taken] = []
        self._blocks: list[Row] = []  # cursors of groups with taken messages
        self._unsettled: set[int] = set()  # other groups whose cursors need an update
        self._messages = 0
        self._bytes = 0
        self._sink = dead_letter_sink(session, queue) if queue.settings.receives_max else None

    def bind(self) -> BindResult:
        session, queue, claim = self._session, self._queue, self._claim
        if queue.fifo:
            self._choose_groups()
        else:
            for priority in fair.priorities(queue):
                if self._has_capacity:
                    self._choose(priority)
        if self._sink is not None:
            self._sink.move()
        more = self._wanted > 0 and not self._is_full and (self._effort_left <= 0 or self._expires)
        if queue.fifo or queue.has_groups:
            shards = claim.shards or claims.shards_of_groups(self._messages, more=more, request=self._request)
            self._write(self._by_group(shards))
            grown = shards, 0
        else:
            pieces, grown = claims.assign_shards(self._messages, claim, self._request.shard_messages)
            self._write(self._fill_shards(pieces))
        if self._messages:
            queue.messages -= self._messages
            queue.received += self._messages
            queue.claims = True
            session.dirty.add(queue)
            size_bytes = None if self._bytes_left is None else self._bytes
            session.run("grow_claim", self._messages, size_bytes, session.ahead_ms, claim.id)
        session.write_bytes_left -= (session.options.claim_slice_rows - self._effort_left) * BATCH_ROW_BYTES
        return BindResult(self._messages, *grown, more=more, expires=self._expires)

    def _write(self, in_shards: _Placed) -> None:
        session, queue, claim, now_ms = self._session, self._queue, self._claim, self._session.now_ms
        partition = queue.partition
        received = [seq for seq, _, _, row in self._taken if row is not None and row[RECEIVE_COUNT]]
        session.events.end_receipts(queue.log, partition, received, kind=queue.kind)
        runs: list[Row] = []
        rows: list[Row] = []  # single messages
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
            session.run_many("ordered_lease", leases)
            session.run_many("block_group", self._blocks)
            session.leave_runs(partition, [(row[1],) for row in rows])
            fifo.update_cursors(session, queue, self._unsettled)
            return
        session.run_many("standard_delete", [(partition, None, row[1]) for row in rows])
        update_groups(session, queue, [row[2:5] for row in rows])

    @property
    def _has_capacity(self) -> bool:
        return self._wanted > 0 and self._effort_left > 0 and not self._is_full

    def _take(self, row: Row) -> None:
        """Take a message, or pass it to the dead-letter sink; skip an expired one."""
        self._effort_left -= _BOUND_EFFORT if row[GROUP] is None else _BOUND_GROUPED_EFFORT
        if row[SEQ] < self._floor:
            return
        if self._sink is not None and row[RECEIVE_COUNT] >= self._queue.settings.receives_max:
            if self._sink.is_full:
                self._effort_left = 0
            else:
                queue = self._queue
                (candidate,) = self._session.rows(f"{queue.kind}_leased", queue.partition, row[SEQ])
                self._sink.accept(candidate)
            return
        self._count(1, row[_BYTES])
        if not self._is_full:
            self._taken.append((row[SEQ], row[SEQ], row[LANE], row))

    def _take_run(self, lane: int, first: int, last: int) -> int:
        """Take messages of the ready list starting at ``first``; return the first one not taken."""
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
        session, partition, rows_max = self._session, self._queue.partition, self._effort_left // _RUN_EFFORT + 1
        lanes = [lane for lane in (priority, GROUPED + priority) if lane in self._queue.lanes]
        take, args = SQL_WITH_SIZES["standard_take"], (session.now_ms, rows_max)
        found: list[Any] = [session.execute(take, (partition, lane, *args)) for lane in lanes]
        returned = merge(*found, key=standard.by_visibility)
        runs = iter(session.rows("ready_runs", partition, priority, self._floor, rows_max))
        first, last = next(runs, (SEQ_MAX, 0))
        first = max(first, self._floor)
        for row in chain(returned, (None,)):
            end_seq = SEQ_MAX if row is None else max(row[VISIBLE_AT] << SEQ_SHIFT, row[SEQ])
            while self._has_capacity and first < end_seq:
                first = self._take_run(priority, first, min(last, end_seq - 1))
                if first > last:
                    first, last = next(runs, (SEQ_MAX, 0))
            if not self._has_capacity:
                break
            if row is not None:
                self._take(row)

    def _fill_shards(self, pieces: list[tuple[int, int]]) -> _Placed:
        """Yield the taken messages in order, splitting runs where a shard is full."""
        remaining = iter(pieces)
        shard = left = 0
        for each in self._taken:
            first, end, _, _ = each
            while first <= end:
                if not left:
                    shard, left = next(remaining)
                last = min(end, first + left - 1)
                yield shard, first, last, each
                left -= last - first + 1
                first = last + 1

    def _by_group(self, shards: int) -> _Placed:
        """Yield messages with a group in the shard of the group, and runs divided among all shards."""
        for each in self._taken:
            start, end, _, row = each
            if row is not None and row[GROUP] is not None:
                yield row[GROUP] % shards, start, end, each
                continue
            messages = end - start + 1
            parts = min(shards, messages)
            for part in range(parts):
                first = start + part * messages // parts
                yield (start + part) % shards, first, start + (part + 1) * messages // parts - 1, each

    def _choose_groups(self) -> None:
        session, queue, taken = self._session, self._queue, self._taken
        for group in fifo.ready_groups(session, queue, self._groups_left):
            if not self._has_capacity:
                break
            start = len(taken)
            for row in fifo.group_messages(session, queue, group, self._groups_left):
                if self._has_capacity:
                    self._take(row)
            own = taken[start:]
            if own:
                self._blocks.append((NEVER_MS, own[0][0], own[-1][0], len(own), queue.partition, group))
            else:
                self._unsettled.add(group)

    @property
    def _groups_left(self) -> int:
        return min(self._wanted, self._effort_left // _BOUND_GROUPED_EFFORT + 1)


# The end of a claim.


def _end_of_run(session: Session, first: int, last: int, effort_left: int, *, is_delete: bool) -> tuple[int, int]:
    """Return the end of a slice in a run, and the effort left after it: none before ``last``."""
    if not is_delete:
        end = min(last, first + max(1, -(-effort_left // _RETURNED_EFFORT)) - 1)
        return end, effort_left - (end - first + 1) * _RETURNED_EFFORT
    end = first  # large messages cost more
    for seq, size_bytes in session.rows("message_sizes", first, last, max(1, effort_left)):
        end = seq
        effort_left -= 1 + size_bytes // _BYTES_PER_EFFORT
        if effort_left <= 0:
            break
    return end, effort_left


def _return(session: Session, queue: Queue, claim: BoundClaim, rows: list[_Returned]) -> None:
    """Make messages visible now, those of a FIFO queue in their old or new runs; the caller updates the groups."""
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
        args = partition, now_ms, getrandbits(GENERATION_BITS) or 1, bound_at_ms
        session.run_many("return_claimed", [(*args, *row[:6], row[6] or bound_at_ms) for row in rows])
    for first, last, lane, *_ in rows:
        add_messages(queue, lane, first, last - first + 1)
    session.dirty.add(queue)


def _notify(session: Session, queue: Queue) -> None:
    if queue.fifo:
        fifo.notify(session, queue)
    else:
        queue.notify(session.now_ms)
