"""Binding on SQLite: what is visible becomes a claim's, a slice at a time.

Runs of the ready list move as they are, or cut where a shard ends, so what was never received costs by runs and not by
messages. A message with a row of its own in ``visibility`` loses it to ``claimed``: no statement of the hot path sees a
claimed message. In a FIFO queue the row stays, hidden for ever, and blocks its group.
"""

from collections.abc import Iterator
from heapq import merge
from itertools import chain
from operator import itemgetter
from random import getrandbits
from typing import NamedTuple

from veilmq.core.limits import BATCH_ROW_BYTES
from veilmq.store.claims import BoundClaim, Part, Wish, filled, placed, shards_of_groups
from veilmq.store.queues import NEVER_MS, SEQ_SHIFT, Queue
from veilmq.store.sqlite import fair, groups, ready
from veilmq.store.sqlite.fair import GROUPED
from veilmq.store.sqlite.moving import sink_of
from veilmq.store.sqlite.session import Row, Session
from veilmq.store.sqlite.totals import settle_time

GENERATION_BITS = 32
_RUN_EFFORT = 4  # in rows that are merely deleted
_MEASURED_PER_EFFORT = 5
_TAKEN_EFFORT = 5
_GROUPED_EFFORT = 12
_SEQ, _LANE, _RECEIVE_COUNT, _EPOCH, _FIRST_AT, _GROUP, _VISIBLE_AT, _BYTES = range(8)


class _Taken(NamedTuple):
    """Messages that a slice takes: a piece of a run of the ready list, or one message with its row."""

    first: int
    last: int
    lane: int
    row: Row | None = None


class _Slice:
    """What a slice takes of a queue, and how much more it may."""

    def __init__(self, session: Session, queue: Queue, claim: BoundClaim, wish: Wish, now_ms: int) -> None:
        self._session = session
        self._queue = queue
        self.wanted = wish.messages
        self.effort_left = session.options.claim_slice_rows
        ((has_bytes,),) = session.rows("claim_bytes", claim.id)
        self.bytes_left = None if wish.bytes is None else 0 if has_bytes is None else wish.bytes - has_bytes
        self.floor = queue.floor(now_ms)
        self.expires = now_ms >= queue.expires_at_ms
        self.is_full = False
        """Whether the next message is too long for the claim."""
        self.taken: list[_Taken] = []
        self.messages = 0
        self.bytes = 0
        self._sink = sink_of(session, queue, now_ms) if queue.settings.receives_max else None
        self._dead: list[Row] = []

    @property
    def goes_on(self) -> bool:
        """Whether it may take more."""
        return self.wanted > 0 and self.effort_left > 0 and not self.is_full

    @property
    def more(self) -> bool:
        """Whether there may be more of what is wished."""
        return self.wanted > 0 and not self.is_full and (self.effort_left <= 0 or self.expires)

    def take(self, row: Row) -> None:
        """Take a message, or have it moved as a dead letter; one past its retention stays."""
        effort = _TAKEN_EFFORT if row[_GROUP] is None else _GROUPED_EFFORT
        if row[_SEQ] >= self.floor and (self._sink is None or not self._is_dead(row)):
            self._count(1, row[_BYTES] or 0)
            if not self.is_full:
                self.taken.append(_Taken(row[_SEQ], row[_SEQ], row[_LANE], row))
        self.effort_left -= effort

    def _is_dead(self, row: Row) -> bool:
        if row[_RECEIVE_COUNT] < self._queue.settings.receives_max:
            return False
        assert self._sink is not None
        if self._sink.is_over:
            self.effort_left = 0
            return True
        kind = "ordered_leased" if self._queue.fifo else "standard_leased"
        (offered,) = self._session.rows(kind, self._queue.partition, row[_SEQ])
        self._sink.takes(offered)
        self._dead.append(offered)
        return True

    def take_run(self, lane: int, first: int, last: int) -> int:
        """Take messages of the ready list from ``first`` on; return the first one that is left."""
        last = min(last, first + self.wanted - 1)
        effort = _RUN_EFFORT
        if self.bytes_left is not None:
            last = self._fitting(first, last)
            effort += (last - first + 1) // _MEASURED_PER_EFFORT
        else:
            self._count(last - first + 1, 0)
        if last >= first:
            self.taken.append(_Taken(first, last, lane))
        self.effort_left -= effort
        return last + 1

    def _fitting(self, first: int, last: int) -> int:
        """Count the messages of a run that there is room for; return the last of them."""
        for seq, size_bytes in self._session.rows(
            "message_sizes", first, last, self.effort_left * _MEASURED_PER_EFFORT
        ):
            self._count(1, size_bytes)
            if self.is_full:
                break
            first = seq + 1
        return first - 1

    def _count(self, messages: int, size_bytes: int) -> None:
        if self.bytes_left is not None and size_bytes > self.bytes_left - self.bytes:
            self.is_full = True
        else:
            self.messages += messages
            self.wanted -= messages
            self.bytes += size_bytes

    def bury(self) -> list[Row]:
        """Move the dead letters; return them, whose groups are to be filed anew."""
        if self._sink is not None and self._dead:
            self._sink.move(self._dead)
            self._sink.notify()
        return self._dead


def bind(session: Session, queue: Queue, claim: BoundClaim, wish: Wish, now_ms: int) -> Part:
    """Bind a slice."""
    settle_time(session, queue, now_ms)
    part = _Slice(session, queue, claim, wish, now_ms)
    bound = (_bind_ordered if queue.fifo else _bind_standard)(session, queue, claim, wish, part, now_ms)
    session.write_bytes_left -= (session.options.claim_slice_rows - part.effort_left) * BATCH_ROW_BYTES
    return bound


def _bound(session: Session, queue: Queue, claim: BoundClaim, part: _Slice) -> None:
    """Count what was bound."""
    if part.messages:
        queue.messages -= part.messages
        queue.received += part.messages
        queue.claims = True
        session.touch(queue)
        size_bytes = None if part.bytes_left is None else part.bytes
        session.run("grow_claim", part.messages, size_bytes, session.ahead_ms, claim.id)


def _end_receipts(session: Session, queue: Queue, part: _Slice, now_ms: int) -> None:
    """Have the event log know that what was received before is taken."""
    if queue.log is not None:
        received = [each.first for each in part.taken if each.row is not None and each.row[_RECEIVE_COUNT]]
        session.events.end(queue.log, queue.partition, received, now_ms, fifo=queue.fifo)


# Standard queues.


def _bind_standard(session: Session, queue: Queue, claim: BoundClaim, wish: Wish, part: _Slice, now_ms: int) -> Part:
    for priority in sorted({lane if lane <= GROUPED else lane - GROUPED for lane in queue.lanes}):
        if part.goes_on:
            _choose(session, queue, priority, part, now_ms)
    dead = part.bury()
    if queue.shares:
        shards = claim.shards or shards_of_groups(part.messages, more=part.more, wish=wish)
        placed_in, grown = _by_group(part.taken, shards), (shards, 0)
    else:
        pieces = placed(part.messages, claim, wish.shard_messages)
        placed_in, grown = _in_turn(part.taken, pieces), filled(pieces, claim)
    _end_receipts(session, queue, part, now_ms)
    runs: list[Row] = []
    rows: list[Row] = []
    for shard, first, last, (_, _, lane, row) in placed_in:
        if row is None:
            runs.append((queue.partition, last, first, lane, claim.id, shard))
        else:
            rows.append(_claimed(queue, claim, row, shard, now_ms))
    if runs:
        ready.cut(session, queue, [(run[3], seq) for run in runs for seq in (run[2], run[1])], now_ms)
    session.many("insert_claimed_run", runs)
    session.many("standard_delete", [row[:2] for row in rows])
    session.many("insert_claimed", rows)
    if queue.shares:
        fair.ended(session, queue, [*[row[1:4] for row in rows], *[(row[0], row[1], row[11]) for row in dead]], now_ms)
    _bound(session, queue, claim, part)
    return Part(part.messages, *grown, more=part.more, expires=part.expires)


def _choose(session: Session, queue: Queue, priority: int, part: _Slice, now_ms: int) -> None:
    """Take the visible messages of a priority in the order of visibility."""
    rows_max = part.effort_left // _RUN_EFFORT + 1
    terms = (now_ms, part.bytes_left is not None, rows_max)
    lanes = [lane for lane in (priority, GROUPED + priority) if lane in queue.lanes]
    returned = merge(
        *(session.rows("standard_claimable", queue.partition, lane, *terms) for lane in lanes),
        key=itemgetter(_VISIBLE_AT, _SEQ),
    )
    runs = iter(session.rows("ready_runs", queue.partition, priority, part.floor, rows_max))
    first, last = next(runs, (NEVER_MS, 0))
    first = max(first, part.floor)
    for row in chain(returned, (None,)):
        bound = NEVER_MS if row is None else max(row[_VISIBLE_AT] << SEQ_SHIFT, row[_SEQ])
        while part.goes_on and first < bound:
            first = part.take_run(priority, first, min(last, bound - 1))
            if first > last:
                first, last = next(runs, (NEVER_MS, 0))
        if not part.goes_on:
            break
        if row is not None:
            part.take(row)


def _in_turn(taken: list[_Taken], pieces: list[tuple[int, int]]) -> Iterator[tuple[int, int, int, _Taken]]:
    """Yield what was taken with the shard that it goes to, first and last seq: runs are cut where a shard is full."""
    places = iter(pieces)
    shard = left = 0
    for each in taken:
        first = each.first
        while first <= each.last:
            if not left:
                shard, left = next(places)
            last = min(each.last, first + left - 1)
            yield shard, first, last, each
            left -= last - first + 1
            first = last + 1


def _by_group(taken: list[_Taken], shards: int) -> Iterator[tuple[int, int, int, _Taken]]:
    """Yield the same where messages of a group go by it, and runs are divided among all shards."""
    for each in taken:
        messages = each.last - each.first + 1
        if each.row is not None and each.row[_GROUP] is not None:
            yield each.row[_GROUP] % shards, each.first, each.last, each
            continue
        parts = min(shards, messages)
        for part in range(parts):
            first = each.first + part * messages // parts
            yield (each.first + part) % shards, first, each.first + (part + 1) * messages // parts - 1, each


def _claimed(queue: Queue, claim: BoundClaim, row: Row, shard: int, now_ms: int) -> Row:
    seq, lane, receive_count, epoch, first_at_ms, group, *_ = row
    first_at_ms = now_ms if first_at_ms is None else first_at_ms
    return queue.partition, seq, lane, group, receive_count + 1, epoch + 1, first_at_ms, claim.id, shard


# FIFO queues.


def _bind_ordered(session: Session, queue: Queue, claim: BoundClaim, wish: Wish, part: _Slice, now_ms: int) -> Part:
    blocks: list[Row] = []
    unsettled: set[int] = set()
    for group in groups.ready(session, queue, min(part.wanted, part.effort_left // _GROUPED_EFFORT + 1), now_ms):
        if not part.goes_on:
            break
        start = len(part.taken)
        count = min(part.wanted, part.effort_left // _GROUPED_EFFORT + 1)
        terms = (now_ms, part.bytes_left is not None, queue.delay_ms, count, part.floor)
        for row in session.rows("ordered_claimable", queue.partition, group, *terms):
            if part.goes_on:
                part.take(row)
        if len(part.taken) > start:
            first, last = part.taken[start].first, part.taken[-1].first
            blocks.append((NEVER_MS, first, last, len(part.taken) - start, queue.partition, group))
        else:
            unsettled.add(group)
    unsettled |= {row[11] for row in part.bury()}
    shards = claim.shards or shards_of_groups(part.messages, more=part.more, wish=wish)
    rows = [_claimed(queue, claim, each.row, each.row[_GROUP] % shards, now_ms) for each in part.taken if each.row]
    generation = getrandbits(GENERATION_BITS) or 1
    session.many("insert_claimed", rows)
    leases = [(NEVER_MS, generation, now_ms, now_ms, queue.partition, row[3], row[1]) for row in rows]
    _end_receipts(session, queue, part, now_ms)
    session.many("ordered_mark", leases)
    session.many("block_group", blocks)
    session.left(queue.partition, [(row[1],) for row in rows])
    groups.refile(session, queue, unsettled)
    _bound(session, queue, claim, part)
    return Part(part.messages, shards, 0, more=part.more, expires=part.expires)
