"""The messages of claims on SQLite: how they are read, given back, deleted and evicted; ``claim_binding`` binds them.

What is claimed stands in ``claimed_run`` and ``claimed``, and is not among the messages that its queue counts. It comes
back with a row in ``visibility``, as a message that was received once more.
"""

from collections.abc import Iterable, Sequence
from heapq import merge
from itertools import chain
from random import getrandbits

from veilmq.core.claims import ClaimedMessage
from veilmq.core.errors import CursorInvalid
from veilmq.core.limits import BATCH_ROW_BYTES, RETENTION_S, SECOND_MS
from veilmq.store.claims import ACKNOWLEDGED, Backlog, BoundClaim, ClaimedMessages, Part, Wish
from veilmq.store.queues import NEVER_MS, SEQ_SHIFT, Queue
from veilmq.store.sqlite import fair, groups, moving, standard, totals
from veilmq.store.sqlite.claim_binding import GENERATION_BITS, bind
from veilmq.store.sqlite.session import Row, Session
from veilmq.store.sqlite.statements import SQL
from veilmq.store.transaction import QueueRow

_RUN_EFFORT = 4  # in rows that are merely deleted, as all of these
_RETURNED_EFFORT = 2
_GROUPED_EFFORT = 7
_BYTES_PER_EFFORT = 16_384  # of a body that is deleted


class SqliteClaimed(ClaimedMessages):
    """What claims do with messages in the open batch."""

    def __init__(self, session: Session, now_ms: int) -> None:
        """``session`` has the batch."""
        self._session = session
        self._now_ms = now_ms
        self.claimed_max = session.options.claimed_max

    def _queue(self, queue: QueueRow) -> Queue:
        assert isinstance(queue, Queue), "it was looked up here"
        return queue

    async def bind(self, queue: QueueRow, claim: BoundClaim, wish: Wish) -> Part:
        """Bind a slice of the visible messages."""
        return bind(self._session, self._queue(queue), claim, wish, self._now_ms)

    async def read(
        self, queue: QueueRow, claim: BoundClaim, shard: int, seq: int, count: int, bytes_max: int
    ) -> Sequence[tuple[int, ClaimedMessage]]:
        """Return up to ``count`` messages of a shard from ``seq`` on."""
        if 0 < seq < (claim.bound_at_ms - RETENTION_S.maximum * SECOND_MS) << SEQ_SHIFT:
            raise CursorInvalid  # it is of the store that this one was converted from; reading begins anew
        ((ahead_ms,),) = self._session.rows("claim_ahead", claim.id)
        cursors = [
            self._session.execute(SQL[query], (claim.id, shard, seq, count))
            for query in ("read_claimed_runs", "read_claimed")
        ]
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

    async def find(self, queue: QueueRow, claim: BoundClaim, message: bytes) -> int | None:
        """Return the seq of the message of that id."""
        row = self._session.row("find_claimed", claim.id, message)
        return None if row is None else int(row[0])

    async def evict(self, queue: QueueRow, claim: BoundClaim, seq: int, target: QueueRow) -> None:
        """Move a message of the claim to ``target``: it comes back, and dies."""
        session, ours, theirs, now_ms = self._session, self._queue(queue), self._queue(target), self._now_ms
        totals.settle_time(session, ours, now_ms)
        row = session.row("claimed_at", ours.partition, seq) or self._cut_out(claim, seq)
        session.run("delete_claimed", ours.partition, seq)
        session.run("shrink_claim", 1, claim.id)
        _return(session, ours, claim, [row], now_ms)
        offered = session.rows("ordered_leased" if ours.fifo else "standard_leased", ours.partition, seq)
        moving.bury(session, ours, theirs, offered, now_ms)
        theirs.notify(now_ms)
        _refile(session, ours, [row], now_ms)

    def _cut_out(self, claim: BoundClaim, seq: int) -> Row:
        """Take one message out of a run; return it as ``claimed_at`` does."""
        session, partition = self._session, claim.partition
        ((first, last, lane, shard),) = session.rows("claimed_run_at", partition, seq)
        session.run("delete_claimed_run", partition, last)
        pieces = [(first, seq - 1), (seq + 1, last)]
        session.many(
            "insert_claimed_run",
            [(partition, end, start, lane, claim.id, shard) for start, end in pieces if start <= end],
        )
        return seq, lane, None, 1, 1, claim.bound_at_ms

    async def end(self, queue: QueueRow | None, claim: BoundClaim) -> bool:
        """Delete a slice of a claim, or give one back; tell whether there may be more."""
        at_home = queue is not None and queue.partition == claim.partition
        home = self._queue(queue) if queue is not None and at_home else None
        if home is not None:
            totals.settle_time(self._session, home, self._now_ms)
        return _Ending(self._session, home, claim, self._now_ms).more()

    async def backlog(self, queue: QueueRow, *, lately: bool) -> Backlog:
        """Count what waits, which costs nothing."""
        counts = totals.counts(self._session, self._queue(queue), self._now_ms)
        return Backlog(counts.visible, counts.oldest_sent_at_ms)

    async def next_visible_ms(self, queue: QueueRow) -> int | None:
        """Return the instant from which a message is visible."""
        ours = self._queue(queue)
        due_ms = (groups if ours.fifo else standard).next_message_ms(self._session, ours, self._now_ms)
        return None if due_ms >= NEVER_MS else due_ms


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
        end = self._weighed(first, last)
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

    def _weighed(self, first: int, last: int) -> int:
        """Return where a slice that begins with ``first`` ends: large messages weigh more where they are deleted."""
        self._effort_left -= _RUN_EFFORT
        if not self._deletes:
            end = min(last, first + max(1, self._effort_left // _RETURNED_EFFORT) - 1)
            self._effort_left -= (end - first + 1) * _RETURNED_EFFORT
            return end
        end = first
        for seq, size_bytes in self._session.rows("message_sizes", first, last, max(1, self._effort_left)):
            end = seq
            self._effort_left -= 1 + size_bytes // _BYTES_PER_EFFORT
            if self._effort_left <= 0:
                break
        return end

    def _end_singles(self) -> int:
        """End messages with rows of their own; return how many."""
        session, queue, partition = self._session, self._queue, self._claim.partition
        gone: list[Row] = []
        back: list[Row] = []
        for row in session.rows("claimed_of", self._claim.id, self._effort_left // _RETURNED_EFFORT + 1):
            weight = row[6] // _BYTES_PER_EFFORT if self._deletes else 0
            self._effort_left -= weight + (_RETURNED_EFFORT if row[2] is None else _GROUPED_EFFORT)
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
        session.many(
            "return_claimed",
            [
                (partition, seq, lane, now_ms, group, receive_count, generation, epoch, claim.bound_at_ms, first_at_ms)
                for seq, lane, group, receive_count, epoch, first_at_ms in rows
            ],
        )
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
    new: list[list[int]] = []
    for seq in seqs:
        session.run("grow_ordered_run", partition, seq)
        if session.connection.changes():
            continue
        if new and new[-1][1] == seq - 1:
            new[-1][1] = seq
        else:
            new.append([seq, seq])
    session.many("insert_ordered_run", [(partition, last, first, last - first + 1) for first, last in new])


def _refile(session: Session, queue: Queue, rows: Iterable[Row], now_ms: int) -> None:
    """File the groups of messages anew."""
    if queue.fifo:
        groups.refile(session, queue, {row[2] for row in rows})
    elif queue.shares:
        fair.refile(session, queue, {row[1:3] for row in rows if row[2] is not None}, now_ms)
    _notify(session, queue, now_ms)


def _notify(session: Session, queue: Queue, now_ms: int) -> None:
    """Notify the queue's watch: messages are back, groups are free, or more may be claimed."""
    if queue.fifo:
        groups.notify(session, queue, now_ms, 1)
    else:
        queue.notify(now_ms)
