"""What becomes of messages that were received: receipts settle them, time ends them, and they move to other queues.

Receipts: nearly all deletes bring the receipt of the latest receive, whose deadline is as the receipt says: then one
statement for all queues of a kind deletes the rows that are as the receipts have them, and nothing is read but, in FIFO
queues, the groups of the messages. Everything else reads the rows of all receipts first, applies the commands to them
in order, and writes what has become of them.

Time: commands keep totals up, and what the passing of time alone makes visible is counted out here, which reads the
index only once something hidden can have become visible.

Moves, in the transaction of the command that moves. A dead letter of a standard queue keeps its row and its seq, and so
the time at which it was sent. Any other message gets a seq behind all that its new queue has: a dead letter of a FIFO
queue, and what is sent on as a new message, with another id and without a past. All are visible at once where they come
to; what is left of their groups in the queue that they leave is the caller's to file anew. Where the dead-letter queue
cannot take a message (gone, its permission withdrawn, the disk nearly full), it stays and is delivered once more.
"""

from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from veilmq.core import commands
from veilmq.core.commands import LeaseChange, QueueCounts
from veilmq.core.errors import ReceiptInvalid, ReceiptState, VeilmqError
from veilmq.core.messages import decode_properties, encode_properties
from veilmq.core.receipts import Receipt, changed_deadline_ms, receipt_acts, receipt_state
from veilmq.core.settings import dead_letter_refusal
from veilmq.store.events import Logged
from veilmq.store.queues import NEVER_MS, SEQ_SHIFT, Queue
from veilmq.store.sqlite import fair, fifo
from veilmq.store.sqlite.database import SQL
from veilmq.store.sqlite.event_log import KIND
from veilmq.store.sqlite.session import Row, Session
from veilmq.store.sqlite.standard import Answers, DeadLetterSink, runs_of, take

_SWEPT_AT_ONCE = 1_000

_LIVE, _EXPIRED, _GONE = ReceiptState.LIVE, ReceiptState.EXPIRED, ReceiptState.GONE
_GONE_DELETED: ReceiptState | LeaseChange = _GONE
_GONE_CHANGED: ReceiptState | LeaseChange = LeaseChange(state=_GONE)

Settling = commands.Delete | commands.ChangeVisibility
_Item = tuple[list[Any], int, Receipt, Any]
"""Where the state of a receipt goes (an answer and the place in it), the receipt, and its command."""


def settle(
    session: Session, works: list[tuple[Queue, list[tuple[int, Settling]]]], now_ms: int, answers: Answers
) -> None:
    """Apply the commands of each queue in order; each answer is a list with a result or an error for each receipt."""
    kinds: dict[bool, list[_Receipts]] = {}
    for queue, items in works:
        kinds.setdefault(queue.fifo, []).append(_Receipts(session, queue, items, now_ms, answers))
    for is_fifo, found in kinds.items():
        hits = iter(_delete_as_received(session, found, is_fifo=is_fifo))
        for each in found:
            each.finish(hits)


class _Receipts:
    """The receipts that the commands of a batch on one queue bring, and what becomes of their messages."""

    def __init__(
        self, session: Session, queue: Queue, items: list[tuple[int, Settling]], now_ms: int, answers: Answers
    ) -> None:
        """Read the receipts, and answer those whose messages cannot be there."""
        self._session = session
        self.queue = queue
        self._now_ms = now_ms
        self._commands = len(items)
        self.tried: list[_Item] = []  # each acts as it is or not at all
        self._rest: list[_Item] = []  # those to look up
        self._rows: dict[int, list[Any]] = {}
        self._gone: list[Row] = []
        self._changed: dict[int, list[Any]] = {}
        self._freed: set[int] = set()  # groups of a FIFO queue that are to be filed anew
        self._due: list[int] = []
        read, number, floor, log = session.book.read, queue.number, queue.floor(now_ms), queue.log
        is_plain = not queue.shares
        for slot, command in items:
            if isinstance(command, commands.Delete):
                texts, gone = command.receipts, _GONE_DELETED
                is_plain = is_plain and not (command.any_epoch or command.any_receive)
            else:
                texts, gone, is_plain = tuple([change.receipt for change in command.changes]), _GONE_CHANGED, False
            answer: list[Any] = [gone] * len(texts)
            answers[slot] = answer
            for at, text in enumerate(texts):
                try:
                    receipt = read(text)
                except VeilmqError as error:
                    answer[at] = error
                    continue
                if receipt[0] != number:
                    answer[at] = ReceiptInvalid()
                elif receipt[1] >= floor:
                    self._rest.append((answer, at, receipt, command))
                elif log is not None and isinstance(command, commands.Delete):
                    session.events.deleted(queue, receipt, None, now_ms, acts=False)
        if is_plain and len({each[2][1] for each in self._rest}) == len(self._rest):
            self._try(self._rest)

    def _try(self, items: list[_Item]) -> None:
        """Have the deletes tried that do not have to look at their messages."""
        self._rest = []
        for each in items:
            receipt = each[2]
            acts = receipt[4] > self._now_ms or not (self.queue.fifo or each[3].only_live)
            is_tried = acts and (self.queue.log is None or self._session.events.knows(receipt))
            (self.tried if is_tried else self._rest).append(each)

    def finish(self, hits: Iterator[int]) -> None:
        """Count what the statement has deleted (``hits``, of each receipt that it tried), and look the rest up."""
        session, queue, now_ms = self._session, self.queue, self._now_ms
        deleted: list[Row] = []
        for each, hit in zip(self.tried, hits, strict=False):  # the others are of other queues
            if not hit:
                self._rest.append(each)
                continue
            answer, at, (_, seq, generation, _, visible_at_ms), _ = each
            deleted.append((seq,))
            answer[at] = _EXPIRED
            if visible_at_ms > now_ms:
                answer[at] = _LIVE
                if generation:
                    queue.in_flight -= 1
                else:
                    queue.delayed -= 1
        if deleted:
            if queue.log is not None:
                session.events.deleted_as_received(queue.log, deleted, now_ms)
            if queue.fifo:
                self._freed.update([session.group_of.pop(seq) for (seq,) in deleted])
            self._count_out(deleted)
        if self._rest:
            self._look_up()
        if self._freed:
            fifo.refile(session, queue, self._freed)
            fifo.notify(session, queue, now_ms, self._commands)
        elif not queue.fifo:
            for due_ms in self._due:
                queue.notify(due_ms)

    def _count_out(self, deleted: list[Row]) -> None:
        session, queue = self._session, self.queue
        session.ended(queue.partition, deleted, ordered=queue.fifo)
        queue.messages -= len(deleted)
        queue.deleted += len(deleted)
        if not queue.touched:
            session.touch(queue)
        if queue.at_limit:
            queue.free_place(self._now_ms)

    def _look_up(self) -> None:
        """Apply commands to their messages in order, and write what has become of them."""
        session, queue = self._session, self.queue
        if queue.shares:
            fair.sharing_of(session, queue)  # with what is in flight before these end it
        self._rows = _find(session, queue, [receipt for _, _, receipt, _ in self._rest])
        for answer, at, receipt, command in self._rest:
            if type(command) is commands.Delete:
                answer[at] = self._delete(receipt, command)
                continue
            try:
                answer[at] = self._change(receipt, command, at)
            except VeilmqError as error:
                answer[at] = error
        gone, changed, partition, kind = self._gone, self._changed.values(), queue.partition, KIND[queue.fifo]
        if changed:
            session.many(f"{kind}_change", [(row[1], row[4], partition, row[6], row[0]) for row in changed])
            session.touch(queue)
            if queue.log is not None:
                session.events.keep(partition, changed, fifo=queue.fifo)
            if queue.shares:
                fair.changed(session, queue, changed, self._now_ms)
        if gone:
            session.many(f"{kind}_delete", [(partition, row[6], row[0]) for row in gone])
            self._count_out([(row[0],) for row in gone])
            if queue.shares:
                fair.ended(session, queue, [(row[0], row[7], row[6]) for row in gone], self._now_ms)
        if queue.fifo:
            self._freed.update([row[6] for row in (*gone, *changed)])

    def _judge(self, receipt: Receipt, command: Settling) -> tuple[ReceiptState, list[Any] | None, bool]:
        """Return what the receipt is now, the row of its message if that is there, and whether it acts."""
        row = self._rows.get(receipt[1])
        if row is None:
            return _GONE, None, False
        _, visible_at_ms, _, generation, epoch = row[:5]
        current = generation == receipt[2] and (epoch == receipt[3] or command.any_epoch)
        state = receipt_state(current=current, visible_at_ms=visible_at_ms or 0, now_ms=self._now_ms)
        if not current and command.any_receive and not self.queue.fifo and visible_at_ms < NEVER_MS:  # else: claimed
            state = ReceiptState.EARLIER
        return state, row, receipt_acts(state, only_live=command.only_live or self.queue.fifo)

    def _delete(self, receipt: Receipt, command: commands.Delete) -> ReceiptState:
        queue = self.queue
        state, row, acts = self._judge(receipt, command)
        if queue.log is not None:
            self._session.events.deleted(queue, receipt, row, self._now_ms, acts=acts)
        if row is not None and acts:
            del self._rows[receipt[1]]
            self._changed.pop(receipt[1], None)
            queue.unhide(row[1] or 0, received=row[2] > 0)
            self._gone.append(tuple(row))
        return state

    def _change(self, receipt: Receipt, command: commands.ChangeVisibility, at: int) -> LeaseChange:
        """Raises what is wrong with the timeout."""
        queue, now_ms = self.queue, self._now_ms
        state, row, acts = self._judge(receipt, command)
        if row is None or not acts:
            return LeaseChange(state=state)
        received = row[2] > 0
        since_ms = row[5] if received else now_ms  # a delayed message was not received yet
        timeout_s = command.changes[at].timeout_s
        visible_at_ms = changed_deadline_ms(now_ms, timeout_s, since_ms, command.lease_s_max)
        if queue.log is not None:
            self._session.events.changed(queue.log, row, now_ms, released=not timeout_s)
        queue.unhide(row[1] or 0, received=received)
        queue.hide(visible_at_ms, received=received)
        row[1] = visible_at_ms
        renewed = None
        if command.renew_receipt:
            row[4] += 1
            renewed = self._session.book.issue(queue.number, row[0], row[3], row[4], visible_at_ms)
        self._changed[row[0]] = row
        self._due.append(visible_at_ms)
        hidden_ms = visible_at_ms - now_ms
        return LeaseChange(state=state, visible_at_ms=visible_at_ms, hidden_for_ms=hidden_ms, receipt=renewed)


def _delete_as_received(session: Session, found: list[_Receipts], *, is_fifo: bool) -> list[int]:
    """Delete the rows that are as their receipts say; return for each receipt that is tried whether it deleted.

    Those of FIFO queues are found by group.
    """
    changes, group_of = session.connection.changes, session.group_of
    hits: list[int] = []
    if is_fifo:
        unknown = [(receipt[1],) for each in found for _, _, receipt, _ in each.tried if receipt[1] not in group_of]
        if unknown:
            group_of.update(session.executemany(SQL["group_of_message"], unknown))

    def bindings() -> Iterator[Row]:
        for each in found:
            partition = each.queue.partition
            for _, _, (_, seq, generation, epoch, visible_at_ms), _ in each.tried:
                yield partition, group_of.get(seq, -1) if is_fifo else None, seq, visible_at_ms, generation, epoch
                hits.append(changes())  # of the statement that has just run with these values

    session.executemany(SQL[f"{KIND[is_fifo]}_delete_as_received"], bindings())
    return hits


def _find(session: Session, queue: Queue, receipts: list[Receipt]) -> dict[int, list[Any]]:
    """Return the rows of the messages of ``receipts`` by seq: seq, visible_at, receives, generation, epoch, ..."""
    partition = queue.partition
    seqs = {receipt[1] for receipt in receipts}
    if queue.log is not None:
        rows = {lease[0]: lease for lease in session.events.find(partition, seqs, fifo=queue.fifo)}
    else:
        found = session.executemany(SQL[f"{KIND[queue.fifo]}_find"], [(partition, seq) for seq in seqs])
        rows = {row[0]: list(row) for row in found}
    if queue.claims and not queue.fifo:
        claimed = session.executemany(SQL["claimed_receipt"], [(partition, seq) for seq in seqs - rows.keys()])
        rows |= {row[0]: list(row) for row in claimed}
    return rows


def end_leases(session: Session, queue: Queue, receipts: list[Receipt], now_ms: int) -> None:
    """Do what deletes by live receipts do but delete: their messages are about to be moved."""
    if queue.shares:
        fair.sharing_of(session, queue)
    if queue.log is not None:
        rows = _find(session, queue, receipts)
        for receipt in receipts:
            session.events.deleted(queue, receipt, rows[receipt.position], now_ms, acts=True)
    for receipt in receipts:
        queue.unhide(receipt.visible_at_ms, received=True)
    queue.deleted += len(receipts)
    queue.free_place(now_ms)


# What time changes.


def settle_time(session: Session, queue: Queue, now_ms: int) -> None:
    """Bring a queue to the present: totals, and a slice of what is past its retention, which may free places."""
    if now_ms > queue.counted_at_ms:
        if not queue.in_flight and not queue.delayed:
            queue.hidden_until_ms = NEVER_MS
        elif now_ms >= queue.hidden_until_ms:
            _count_due(session, queue, queue.counted_at_ms, now_ms)
        queue.counted_at_ms = now_ms
    if now_ms < queue.expires_at_ms:
        return
    rows = _sweep(session, queue, now_ms, _SWEPT_AT_ONCE)
    if not rows:
        return
    if queue.shares:
        fair.ended(session, queue, [(row[0], row[4], row[3]) for row in rows], now_ms)
    queue.free_place(now_ms)
    if queue.fifo:
        fifo.refile(session, queue, {row[3] for row in rows})
        fifo.notify(session, queue, now_ms, 1)


def counts(session: Session, queue: Queue, now_ms: int) -> QueueCounts:
    """Count the messages of a queue by state."""
    settle_time(session, queue, now_ms)
    oldest = _oldest(session, queue)
    claimed = waiting = 0
    if queue.claims:
        ((claimed,),) = session.rows("claimed_count", queue.partition)
        ((also,),) = session.rows("claimed_oldest", queue.partition, queue.floor(now_ms))
        oldest = min([seq for seq in (oldest, also) if seq is not None], default=None)
    if queue.fifo and queue.delay_ms:
        ((waiting,),) = session.rows("ordered_waiting", queue.partition, (now_ms - queue.delay_ms + 1) << SEQ_SHIFT)
    return QueueCounts(
        visible=queue.messages - queue.in_flight - queue.delayed - waiting,
        in_flight=queue.in_flight + claimed,
        delayed=queue.delayed + waiting,
        oldest_sent_at_ms=None if oldest is None else oldest >> SEQ_SHIFT,
        redelivered=queue.redelivered,
        sent=queue.sent,
        received=queue.received,
        deleted=queue.deleted,
    )


def _oldest(session: Session, queue: Queue) -> int | None:
    """Return the first seq of a queue."""
    session.settle_ended()
    found = [session.row(f"{KIND[queue.fifo]}_oldest", queue.partition)]
    found += [session.row("ready_first", queue.partition, lane) for lane in queue.lanes]
    return min([row[0] for row in found if row is not None], default=None)


def _count_due(session: Session, queue: Queue, after_ms: int, until_ms: int) -> None:
    """Count out what became visible in (after, until], and note when the next hidden message does."""
    counted: list[Row] = []
    following: list[Row] = []
    if queue.fifo:
        counted += session.rows("ordered_count_due", queue.partition, after_ms, until_ms)
        following += session.rows("ordered_next_hidden", queue.partition, until_ms)
    for lane in queue.lanes:
        counted += session.rows("standard_count_due", queue.partition, lane, after_ms, until_ms)
        following += session.rows("standard_ends_after", queue.partition, lane, until_ms, 1)
    for due, received in counted:
        queue.in_flight -= received
        queue.delayed -= due - received
    queue.hidden_until_ms = min([row[0] for row in following], default=NEVER_MS)


def _sweep(session: Session, queue: Queue, now_ms: int, rows_max: int) -> list[Row]:
    """Delete up to ``rows_max`` messages past their retention; return them as ``delete_below`` does."""
    lanes = None if queue.fifo else queue.lanes
    rows = delete_below(session, queue.partition, lanes, queue.floor(now_ms), rows_max, queue.log, now_ms)
    for _, visible_at_ms, receive_count, *_ in rows:
        queue.unhide(visible_at_ms or 0, received=receive_count > 0)
    if rows:
        queue.messages -= len(rows)
        session.touch(queue)
    queue.expires_at_ms = now_ms
    if len(rows) < rows_max:
        oldest = _oldest(session, queue)
        queue.expires_at_ms = NEVER_MS if oldest is None else (oldest >> SEQ_SHIFT) + queue.retention_ms
    return rows


def delete_below(
    session: Session, partition: int, lanes: Iterable[int] | None, end: int, most: int, log: Logged | None, now_ms: int
) -> list[Row]:
    """Delete at ``most`` so many messages of a partition before the seq ``end``; a FIFO queue has no ``lanes``.

    Returns seq, visible_at, receive_count, group, and in a standard queue the lane of each.
    """
    session.settle_ended()
    is_fifo = lanes is None
    rows = session.rows(f"{KIND[is_fifo]}_below", partition, end - 1, most)
    if log is not None:
        session.events.end(log, partition, [row[0] for row in rows if row[2]], now_ms, fifo=is_fifo)
    session.many(f"{KIND[is_fifo]}_delete", [(partition, row[3], row[0]) for row in rows])
    for lane in lanes or ():
        waiting = session.rows("ready_below", partition, lane, end - 1, most - len(rows))
        if waiting:
            session.run("cut_ready", partition, lane, 0, waiting[-1][0])
            session.run("cut_first_ready", partition, lane, waiting[-1][0])
            rows += waiting
    session.ended(partition, [(row[0],) for row in rows], ordered=is_fifo)
    return rows


# Moves.


def sink_of(session: Session, queue: Queue, now_ms: int) -> DeadLetterSink | None:
    """Return where the dead letters of a queue that bounds receives go; ``None``: they stay where they are."""
    settings = queue.settings
    target = session.find(settings.dead_letter_queue)
    if target is None or dead_letter_refusal(queue.name, settings, target.name, target.settings) is not None:
        return None
    if session.database.is_short and session.database.recheck_room(now_ms):
        return None

    def move(rows: list[Row]) -> None:
        if queue.log is not None:
            session.events.dead_lettered(queue, [row[0] for row in rows], now_ms)
        bury(session, queue, target, rows, now_ms)
        target.notify(now_ms)

    return DeadLetterSink(settings.receives_max, move)


def bury(session: Session, source: Queue, target: Queue, rows: list[Row], now_ms: int) -> list[int]:
    """Move dead letters, whose receipts have ended; return their seqs there.

    They keep their ids, and count receives and the time since the first one on.
    """
    settle_time(session, target, now_ms)
    pasts = [(source.name, row[2] + (row[9] or 0), row[4] if row[10] is None else row[10]) for row in rows]
    if source.fifo:
        # Two that shared a deduplication id are told apart by their own ids (SQS, "Using dead-letter queues").
        kept = [encode_properties(replace(decode_properties(row[7]), dedup_id=str(UUID(bytes=row[5])))) for row in rows]
        what = [(row[5], own, *past) for row, own, past in zip(rows, kept, pasts, strict=True)]
        seqs = _renumber(session, source, target, rows, what, now_ms)
    else:
        seqs = [row[0] for row in rows]
        session.many("standard_move", [(target.partition, now_ms, source.partition, seq) for seq in seqs])
        session.many("carry_message", [(row[7], *past, now_ms, row[0]) for row, past in zip(rows, pasts, strict=True)])
    _count_moved(session, source, target, rows, seqs, now_ms)
    return seqs


def send_on(session: Session, source: Queue, target: Queue, rows: list[Row], now_ms: int) -> None:
    """Move messages as new ones to a queue that is settled at the present instant."""
    if source.log is not None:
        received = [row[0] for row in rows if row[2]]
        session.events.end(source.log, source.partition, received, now_ms, fifo=source.fifo)
    what = [(session.ids.next(), row[7], None, None, None) for row in rows]
    _count_moved(session, source, target, rows, _renumber(session, source, target, rows, what, now_ms), now_ms)


def _count_moved(session: Session, source: Queue, target: Queue, rows: list[Row], seqs: list[int], now_ms: int) -> None:
    if not target.fifo:
        target.lanes = tuple(sorted({*target.lanes, *[row[1] for row in rows]}))
        moved = [(target.partition, row[1], row[11], now_ms, seq) for row, seq in zip(rows, seqs, strict=True)]
        grouped = [row for row in moved if row[2] is not None]
        target.shares = target.shares or bool(grouped)
        session.many("admit_fair_group", grouped)
    target.expires_at_ms = min(target.expires_at_ms, (min(seqs) >> SEQ_SHIFT) + target.retention_ms)
    source.messages -= len(rows)
    target.messages += len(rows)
    session.touch(source)
    session.touch(target)


def _renumber(
    session: Session, source: Queue, target: Queue, rows: list[Row], what: list[Row], now_ms: int
) -> list[int]:
    """Move messages behind all others; ``what`` has id, properties and past of each. Returns their seqs."""
    first, partition, groups = session.next_seq(now_ms), target.partition, {row[11]: row[11] for row in rows}
    session.last_seq = first + len(rows) - 1
    moves = list(enumerate(rows, first))
    if source.fifo:
        firsts = {row[11]: seq for seq, row in reversed(moves)}
        for group, seq in firsts.items():
            ((name_hash,),) = session.rows("group_hash", source.partition, group)
            groups[group] = session.group_numbers.of_hash(partition, name_hash, seq)
    renumbered = [(seq, groups[row[11]], *its, row[0]) for (seq, row), its in zip(moves, what, strict=True)]
    session.many("renumber_message", renumbered)
    if source.fifo:
        ordered = [(partition, groups[row[11]], seq, now_ms, source.partition, row[11], row[0]) for seq, row in moves]
        session.many("ordered_move", ordered)
        session.left(source.partition, [(row[0],) for row in rows])
        session.run("insert_ordered_run", partition, session.last_seq, first, len(rows))
        fifo.admit_own(session, target, {groups[row[11]]: seq for seq, row in moves})
    else:
        session.many("standard_delete", [(source.partition, None, row[0]) for row in rows if row[3] is not None])
        take(session, source, [(row[1], row[0]) for row in rows if row[3] is None])
        grouped = [(partition, seq, row[1], now_ms, row[11]) for seq, row in moves if row[11] is not None]
        session.many("standard_insert", grouped)
        runs = runs_of([(row[1], seq) for seq, row in moves if row[11] is None])
        session.many("insert_ready", [(partition, lane, last, start) for lane, start, last in runs])
    return [seq for seq, _ in moves]
