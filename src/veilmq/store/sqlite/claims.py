"""The messages of claims on SQLite: how they are bound, a slice at a time, read, given back, deleted and evicted.

Runs of the ready list move to ``claimed_run`` as they are, or cut where a shard ends, so what was never received costs
by runs and not by messages. A message with a row of its own in ``visibility`` loses it to ``claimed``: no statement of
the hot path sees a claimed message, and its queue does not count it. In a FIFO queue the row stays, hidden for ever,
and blocks its group. What comes back has a row in ``visibility``, as a message that was received once more.
"""

from collections.abc import Iterable, Sequence
from heapq import merge
from itertools import chain
from operator import itemgetter
from random import getrandbits

from veilmq.core.claims import ClaimedMessage
from veilmq.core.errors import CursorInvalid
from veilmq.core.limits import BATCH_ROW_BYTES, RETENTION_S, SECOND_MS
from veilmq.store.claims import (
    ACKNOWLEDGED,
    Backlog,
    BoundClaim,
    ClaimedMessages,
    Part,
    Wish,
    placed,
    shards_of_groups,
)
from veilmq.store.queues import NEVER_MS, SEQ_SHIFT, Queue
from veilmq.store.sqlite import fair, fifo, standard
from veilmq.store.sqlite.database import SQL
from veilmq.store.sqlite.event_log import KIND
from veilmq.store.sqlite.fair import GROUPED
from veilmq.store.sqlite.session import Row, Session
from veilmq.store.sqlite.settling import bury, counts, settle_time, sink_of
from veilmq.store.sqlite.standard import GENERATION_BITS
from veilmq.store.transaction import QueueRow

# Efforts, in rows that are merely deleted.
_RUN_EFFORT = 4
_MEASURED_PER_EFFORT = 5
_BOUND_EFFORT = 5
_BOUND_GROUPED_EFFORT = 12
_RETURNED_EFFORT = 2
_RETURNED_GROUPED_EFFORT = 7
_BYTES_PER_EFFORT = 16_384  # of a body that is deleted
_SEQ, _LANE, _RECEIVE_COUNT, _EPOCH, _FIRST_AT, _GROUP, _VISIBLE_AT, _BYTES = range(8)  # of what is claimable

_Taken = tuple[int, int, int, Row | None]
"""Messages that a slice takes: first and last seq and lane of a piece of a run, or one message with its row."""
_Placed = Iterable[tuple[int, int, int, _Taken]]
"""What was taken, behind its shard, first and last seq."""


class SqliteClaimed(ClaimedMessages):
    """What claims do with messages in the open batch."""

    def __init__(self, session: Session, now_ms: int) -> None:
        self._session = session
        self._now_ms = now_ms

    def _queue(self, queue: QueueRow) -> Queue:
        assert isinstance(queue, Queue), "it was looked up here"
        return queue

    async def bind(self, queue: QueueRow, claim: BoundClaim, wish: Wish) -> Part:
        """Bind a slice of the visible messages."""
        return _Binding(self._session, self._queue(queue), claim, wish, self._now_ms).bind()

    async def read(
        self, queue: QueueRow, claim: BoundClaim, shard: int, seq: int, count: int, bytes_max: int
    ) -> Sequence[tuple[int, ClaimedMessage]]:
        """Return up to ``count`` messages of a shard from ``seq`` on."""
        if 0 < seq < (claim.bound_at_ms - RETENTION_S.maximum * SECOND_MS) << SEQ_SHIFT:
            raise CursorInvalid  # it is of the store that this one was converted from; reading begins anew
        ((_, ahead_ms),) = self._session.rows("claim_terms", claim.id)
        queries = SQL["read_claimed_runs"], SQL["read_claimed"]
        cursors = [self._session.execute(query, (claim.id, shard, seq, count)) for query in queries]
        page: list[tuple[int, ClaimedMessage]] = []
        for at, message_id, body, properties, receive_count in merge(*cursors):
            sequence = at if queue.settings.fifo else None
            sent_at_ms, received_at_ms = (at >> SEQ_SHIFT) + ahead_ms, claim.bound_at_ms + ahead_ms
            shown = ClaimedMessage(message_id, body, properties, sent_at_ms, received_at_ms, receive_count, sequence)
            page.append((at, shown))
            bytes_max -= len(body) + len(properties)
            if bytes_max <= 0 or len(page) == count:
                break
        for cursor in cursors:
            cursor.close()
        return page

    async def find(self, claim: BoundClaim, message: bytes) -> int | None:
        """Return the seq of the message of that id."""
        row = self._session.row("find_claimed", claim.id, message)
        return None if row is None else int(row[0])

    async def evict(self, queue: QueueRow, claim: BoundClaim, seq: int, target: QueueRow) -> None:
        """Move a message of the claim to ``target``: it comes back, and dies."""
        session, ours, theirs, now_ms = self._session, self._queue(queue), self._queue(target), self._now_ms
        settle_time(session, ours, now_ms)
        row = session.row("claimed_at", ours.partition, seq) or self._cut_out(claim, seq)
        session.run("delete_claimed", ours.partition, seq)
        session.run("shrink_claim", 1, claim.id)
        _return(session, ours, claim, [row], now_ms)
        bury(session, ours, theirs, session.rows(f"{KIND[ours.fifo]}_leased", ours.partition, seq), now_ms)
        theirs.notify(now_ms)
        _refile(session, ours, [row], now_ms)

    def _cut_out(self, claim: BoundClaim, seq: int) -> Row:
        """Take one message out of a run; return it as ``claimed_at`` does."""
        session, partition = self._session, claim.partition
        ((first, last, lane, shard),) = session.rows("claimed_run_at", partition, seq)
        session.run("delete_claimed_run", partition, last)
        pieces = [(partition, seq - 1, first, lane, claim.id, shard), (partition, last, seq + 1, lane, claim.id, shard)]
        session.many("insert_claimed_run", [piece for piece in pieces if piece[2] <= piece[1]])
        return seq, lane, None, 1, 1, claim.bound_at_ms

    async def end(self, queue: QueueRow | None, claim: BoundClaim) -> bool:
        """Delete a slice of a claim, or give one back; tell whether there may be more."""
        at_home = queue is not None and queue.partition == claim.partition
        home = self._queue(queue) if queue is not None and at_home else None
        if home is not None:
            settle_time(self._session, home, self._now_ms)
        return _Ending(self._session, home, claim, self._now_ms).more()

    async def backlog(self, queue: QueueRow, *, lately: bool) -> Backlog:
        """Count what waits, which costs nothing."""
        now = counts(self._session, self._queue(queue), self._now_ms)
        return Backlog(now.visible, now.oldest_sent_at_ms)

    async def next_visible_ms(self, queue: QueueRow) -> int | None:
        """Return the instant from which a message is visible."""
        ours = self._queue(queue)
        due_ms = standard.next_message_ms(self._session, ours, self._now_ms)
        return None if due_ms >= NEVER_MS else due_ms


# Binding.


class _Binding:
    """A slice of binding: what it takes of a queue, and how much more it may."""

    def __init__(self, session: Session, queue: Queue, claim: BoundClaim, wish: Wish, now_ms: int) -> None:
        settle_time(session, queue, now_ms)
        self._session = session
        self._queue = queue
        self._claim = claim
        self._wish = wish
        self._now_ms = now_ms
        self._wanted = wish.messages
        self._effort_left = session.options.claim_slice_rows
        ((has_bytes, _),) = session.rows("claim_terms", claim.id)
        self._bytes_left = None if wish.bytes is None else 0 if has_bytes is None else wish.bytes - has_bytes
        self._floor = queue.floor(now_ms)
        self._expires = now_ms >= queue.expires_at_ms
        self._is_full = False  # the next message is too long for the claim
        self._taken: list[_Taken] = []
        self._blocks: list[Row] = []  # of groups of a FIFO queue that gave something
        self._unsettled: set[int] = set()  # those that are to be filed anew
        self._messages = 0
        self._bytes = 0
        self._sink = sink_of(session, queue, now_ms) if queue.settings.receives_max else None

    def bind(self) -> Part:
        """Bind the slice."""
        session, queue, claim = self._session, self._queue, self._claim
        if queue.fifo:
            self._choose_groups()
        else:
            for priority in fair.priorities(queue):
                if self._goes_on:
                    self._choose(priority)
        dead = [] if self._sink is None else self._sink.move()
        if queue.fifo or queue.shares:
            shards = claim.shards or shards_of_groups(self._messages, more=self._more, wish=self._wish)
            self._write(self._by_group(shards), dead)
            grown = shards, 0
        else:
            pieces, grown = placed(self._messages, claim, self._wish.shard_messages)
            self._write(self._in_turn(pieces), dead)
        if self._messages:
            queue.messages -= self._messages
            queue.received += self._messages
            queue.claims = True
            session.touch(queue)
            size_bytes = None if self._bytes_left is None else self._bytes
            session.run("grow_claim", self._messages, size_bytes, session.ahead_ms, claim.id)
        session.write_bytes_left -= (session.options.claim_slice_rows - self._effort_left) * BATCH_ROW_BYTES
        return Part(self._messages, *grown, more=self._more, expires=self._expires)

    def _write(self, in_shards: _Placed, dead: list[Row]) -> None:
        """Write what was taken; the receipts of what was received before end."""
        session, queue, claim, now_ms = self._session, self._queue, self._claim, self._now_ms
        partition = queue.partition
        if queue.log is not None:
            received = [seq for seq, _, _, row in self._taken if row is not None and row[_RECEIVE_COUNT]]
            session.events.end(queue.log, partition, received, now_ms, fifo=queue.fifo)
        runs: list[Row] = []
        rows: list[Row] = []
        for shard, start, end, (_, _, lane, row) in in_shards:
            if row is None:
                runs.append((partition, end, start, lane, claim.id, shard))
            else:
                seq, _, receive_count, epoch, first_at_ms, group, *_ = row
                first_at_ms = now_ms if first_at_ms is None else first_at_ms
                counts = receive_count + 1, epoch + 1
                rows.append((partition, seq, lane, group, *counts, first_at_ms, claim.id, shard))
        if runs:
            standard.cut(session, queue, [(run[3], seq) for run in runs for seq in (run[2], run[1])], now_ms)
        session.many("insert_claimed_run", runs)
        session.many("insert_claimed", rows)
        if queue.fifo:
            generation = getrandbits(GENERATION_BITS) or 1
            leases = [(0, NEVER_MS, generation, now_ms, now_ms, partition, row[3], row[1]) for row in rows]
            session.many("ordered_mark", leases)
            session.many("block_group", self._blocks)
            session.left(partition, [(row[1],) for row in rows])
            fifo.refile(session, queue, self._unsettled.union([row[11] for row in dead]))
            return
        session.many("standard_delete", [(partition, None, row[1]) for row in rows])
        if queue.shares:
            gone = [row[1:4] for row in rows] + [(row[0], row[1], row[11]) for row in dead]
            fair.ended(session, queue, gone, now_ms)

    @property
    def _goes_on(self) -> bool:
        return self._wanted > 0 and self._effort_left > 0 and not self._is_full

    @property
    def _more(self) -> bool:
        """Whether there may be more of what is wished."""
        return self._wanted > 0 and not self._is_full and (self._effort_left <= 0 or self._expires)

    def _take(self, row: Row) -> None:
        """Take a message, or have it moved as a dead letter; one past its retention stays."""
        if row[_SEQ] >= self._floor and (self._sink is None or not self._is_dead(row)):
            self._count(1, row[_BYTES] or 0)
            if not self._is_full:
                self._taken.append((row[_SEQ], row[_SEQ], row[_LANE], row))
        self._effort_left -= _BOUND_EFFORT if row[_GROUP] is None else _BOUND_GROUPED_EFFORT

    def _is_dead(self, row: Row) -> bool:
        if row[_RECEIVE_COUNT] < self._queue.settings.receives_max:
            return False
        assert self._sink is not None
        if self._sink.is_over:
            self._effort_left = 0
            return True
        (offered,) = self._session.rows(f"{KIND[self._queue.fifo]}_leased", self._queue.partition, row[_SEQ])
        return self._sink.takes(offered)

    def _take_run(self, lane: int, first: int, last: int) -> int:
        """Take messages of the ready list from ``first`` on; return the first one that is left."""
        last = min(last, first + self._wanted - 1)
        self._effort_left -= _RUN_EFFORT
        if self._bytes_left is None:
            self._count(last - first + 1, 0)
        else:
            left = self._effort_left + _RUN_EFFORT
            sizes = self._session.rows("message_sizes", first, last, left * _MEASURED_PER_EFFORT)
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
        """Take the visible messages of a priority in the order of visibility."""
        rows, partition = self._session.rows, self._queue.partition
        rows_max = self._effort_left // _RUN_EFFORT + 1
        terms = (self._now_ms, self._bytes_left is not None, rows_max)
        lanes = [lane for lane in (priority, GROUPED + priority) if lane in self._queue.lanes]
        found = [rows("standard_claimable", partition, lane, *terms) for lane in lanes]
        returned = merge(*found, key=itemgetter(_VISIBLE_AT, _SEQ))
        runs = iter(rows("ready_runs", partition, priority, self._floor, rows_max))
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
        for group in fifo.ready(session, queue, self._groups_left, self._now_ms):
            if not self._goes_on:
                break
            start = len(taken)
            terms = (self._now_ms, self._bytes_left is not None, queue.delay_ms, self._groups_left, self._floor)
            for row in session.rows("ordered_claimable", queue.partition, group, *terms):
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


class _Ending:
    """A slice of the end of a claim; without a queue the partition of its messages is retired."""

    def __init__(self, session: Session, queue: Queue | None, claim: BoundClaim, now_ms: int) -> None:
        self._session = session
        self._queue = queue
        self._claim = claim
        self._now_ms = now_ms
        self._deletes = queue is None or claim.state == ACKNOWLEDGED
        self._floor = NEVER_MS if queue is None or self._deletes else queue.floor(now_ms)
        self._effort_left = session.options.claim_slice_rows

    def more(self) -> bool:
        """Do the slice; tell whether there may be more."""
        messages = 0
        while self._effort_left > 0:
            run = self._session.row("claimed_run_of", self._claim.id)
            if run is None:
                messages += self._end_singles()
                break
            messages += self._end_run(*run)
        self._session.run("shrink_claim", messages, self._claim.id)
        self._session.write_bytes_left -= (self._session.options.claim_slice_rows - self._effort_left) * BATCH_ROW_BYTES
        if self._queue is not None:
            self._session.touch(self._queue)
            if self._claim.state == ACKNOWLEDGED:
                self._queue.deleted += messages
            _notify(self._session, self._queue, self._now_ms)
        return self._effort_left <= 0

    def _end_run(self, first: int, last: int, lane: int) -> int:
        """End messages of a run from its front; return how many."""
        session, partition, bound_at_ms = self._session, self._claim.partition, self._claim.bound_at_ms
        self._effort_left -= _RUN_EFFORT
        end = first
        if self._deletes:  # large messages weigh more
            for seq, size_bytes in session.rows("message_sizes", first, last, max(1, self._effort_left)):
                end = seq
                self._effort_left -= 1 + size_bytes // _BYTES_PER_EFFORT
                if self._effort_left <= 0:
                    break
        else:
            end = min(last, first + max(1, self._effort_left // _RETURNED_EFFORT) - 1)
            self._effort_left -= (end - first + 1) * _RETURNED_EFFORT
        kept = min(max(first, self._floor), end + 1)
        if kept > first:
            session.run("delete_messages", first, kept - 1)
        if kept <= end and self._queue is not None:
            generation = getrandbits(GENERATION_BITS) or 1
            session.run("return_run", partition, lane, self._now_ms, generation, bound_at_ms, kept, end)
            _count_in(self._queue, lane, kept, end - kept + 1)
        if end < last:
            session.run("cut_claimed_run", end + 1, partition, last)
        else:
            session.run("delete_claimed_run", partition, last)
        return end - first + 1

    def _end_singles(self) -> int:
        """End messages with rows of their own; return how many."""
        session, queue, partition = self._session, self._queue, self._claim.partition
        gone: list[Row] = []
        back: list[Row] = []
        for row in session.rows("claimed_of", self._claim.id, self._effort_left // _RETURNED_EFFORT + 1):
            weight = row[6] // _BYTES_PER_EFFORT if self._deletes else 0
            self._effort_left -= weight + (_RETURNED_EFFORT if row[2] is None else _RETURNED_GROUPED_EFFORT)
            (gone if row[0] < self._floor else back).append(row[:6])
            if self._effort_left <= 0:
                break
        session.many("delete_claimed", [(partition, row[0]) for row in chain(gone, back)])
        session.ended(partition, [(row[0],) for row in gone], ordered=False)
        if queue is None or queue.fifo:
            session.many("ordered_delete", [(partition, row[2], row[0]) for row in gone if row[2] is not None])
        if queue is not None:
            _return(session, queue, self._claim, back, self._now_ms)
            _refile(session, queue, [*gone, *back], self._now_ms)
        return len(gone) + len(back)


def _return(session: Session, queue: Queue, claim: BoundClaim, rows: list[Row], now_ms: int) -> None:
    """Make messages visible now, rows of ``claimed_at``; the caller files their groups anew."""
    partition = queue.partition
    if queue.fifo:
        session.many("return_ordered", [(now_ms, partition, row[2], row[0]) for row in rows])
        _count_into_runs(session, partition, sorted(row[0] for row in rows))
    else:
        generation = getrandbits(GENERATION_BITS) or 1
        fences = generation, claim.bound_at_ms
        session.many("return_claimed", [(partition, now_ms, *fences, *row) for row in rows])
    for seq, lane, *_ in rows:
        _count_in(queue, lane, seq, 1)
    session.touch(queue)


def _count_in(queue: Queue, lane: int, first: int, messages: int) -> None:
    """Count messages that are back, the oldest of which is ``first``."""
    queue.messages += messages
    if not queue.fifo and lane not in queue.lanes:
        queue.lanes = tuple(sorted((*queue.lanes, lane)))
        queue.shares = queue.shares or lane > fair.GROUPED
    queue.expires_at_ms = min(queue.expires_at_ms, (first >> SEQ_SHIFT) + queue.retention_ms)


def _count_into_runs(session: Session, partition: int, seqs: list[int]) -> None:
    """Count messages of a FIFO queue into the runs that have their seqs; what is in none begins runs of its own."""
    session.settle_ended()
    new: list[tuple[int, int]] = []
    for seq in seqs:
        session.run("grow_ordered_run", partition, seq)
        if not session.connection.changes():
            new.append((0, seq))
    runs = standard.runs_of(new)
    session.many("insert_ordered_run", [(partition, last, first, last - first + 1) for _, first, last in runs])


def _refile(session: Session, queue: Queue, rows: Iterable[Row], now_ms: int) -> None:
    """File the groups of messages anew."""
    if queue.fifo:
        fifo.refile(session, queue, {row[2] for row in rows})
    elif queue.shares:
        fair.refile(session, queue, {row[1:3] for row in rows if row[2] is not None}, now_ms)
    _notify(session, queue, now_ms)


def _notify(session: Session, queue: Queue, now_ms: int) -> None:
    """Notify the queue's watch: messages are back, groups are free, or more may be claimed."""
    if queue.fifo:
        fifo.notify(session, queue, now_ms, 1)
    else:
        queue.notify(now_ms)
