"""What becomes of messages that were received: receipts settle them, time ends them, and they move to other queues.

Receipts: nearly all deletes bring the receipt of the latest receive, whose deadline is as the receipt says: then one
statement for all queues of a kind deletes the rows that are as the receipts have them, and nothing is read but, in FIFO
queues, the groups of the messages. Everything else reads the rows of all receipts first, applies the commands to them
in order, and writes what has become of them.

Time: totals are exact and cost nothing that grows with the queue. Commands keep them up, and what the passing of time
alone makes visible is counted out here, which reads the index only once something hidden can have become visible.

Moves, in the transaction of the command that moves. A dead letter of a standard queue keeps its row and its seq, and so
the time at which it was sent and its retention. Any other message gets a seq of its own, behind all that its new queue
has: a dead letter of a FIFO queue, and what is sent on as a new message, with another id and without a past. All are
visible at once where they come to; what is left of their groups in the queue that they leave is the caller's to file
anew. Where the dead-letter queue cannot take a message (gone, its permission withdrawn, the disk nearly full), the
message stays and is delivered once more.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from veilmq.core import commands, properties, redrive, visibility
from veilmq.core.errors import ReceiptInvalid, VeilmqError
from veilmq.core.receipts import Receipt
from veilmq.core.results import LeaseChange, QueueCounts, ReceiptState
from veilmq.store.events import Logged
from veilmq.store.queues import NEVER_MS, SEQ_SHIFT, Queue
from veilmq.store.sqlite import fair, fifo
from veilmq.store.sqlite.database import SQL
from veilmq.store.sqlite.session import Row, Session
from veilmq.store.sqlite.standard import Answers, DeadLetterSink, take

_DELETE_AS_RECEIVED = SQL["standard_delete_as_received"]
_ORDERED_DELETE_AS_RECEIVED = SQL["ordered_delete_as_received"]
_GROUP_OF = SQL["group_of_message"]
_SWEPT_AT_ONCE = 1_000

_LIVE, _EXPIRED, _GONE = ReceiptState.LIVE, ReceiptState.EXPIRED, ReceiptState.GONE
_GONE_DELETED: ReceiptState | LeaseChange = _GONE
_GONE_CHANGED: ReceiptState | LeaseChange = LeaseChange(state=_GONE)

Settling = commands.Delete | commands.ChangeVisibility
_Item = tuple[list[Any], int, Receipt, Any]
"""Where the state of a receipt goes (an answer and the place in it), the receipt, and its command."""


class _Plain(NamedTuple):
    """The deletes of one queue of which a receipt acts as it is or not at all: those to try, and those to look up."""

    queue: Queue
    tried: list[_Item]
    rest: list[_Item]
    commands: int


def settle(
    session: Session, works: list[tuple[Queue, list[tuple[int, Settling]]]], now_ms: int, answers: Answers
) -> None:
    """Apply the commands of each queue in order; each answer is a list with a result or an error for each receipt."""
    plain: dict[bool, list[_Plain]] = {}
    for queue, items in works:
        todo = _read(session, queue, items, now_ms, answers)
        is_plain = not queue.shares and all(
            type(command) is commands.Delete and not (command.any_epoch or command.any_receive) for _, command in items
        )
        if not is_plain or len({each[2][1] for each in todo}) < len(todo):
            _settle_in_order(session, queue, todo, len(items), now_ms)
            continue
        tried: list[_Item] = []
        rest: list[_Item] = []
        for each in todo:
            acts = each[2][4] > now_ms or not (queue.fifo or each[3].only_live)
            tries = acts and (queue.log is None or session.events.knows(each[2]))
            (tried if tries else rest).append(each)
        plain.setdefault(queue.fifo, []).append(_Plain(queue, tried, rest, len(items)))
    for is_fifo, deletes in plain.items():
        hits = iter(_delete_as_received(session, deletes, is_fifo=is_fifo))
        for of_queue in deletes:
            _settle_plain(session, of_queue, list(islice(hits, len(of_queue.tried))), now_ms)


def _settle_plain(session: Session, plain: _Plain, hits: list[int], now_ms: int) -> None:
    """Count what the statement has deleted (``hits`` for each receipt), and look the rest up."""
    queue, tried, rest, count = plain
    freed: set[int] = set()
    messages = queue.messages
    if tried:
        rest += _take_out(session, queue, tried, hits, now_ms, freed)
    if rest:
        found = _Found(session, queue, rest, now_ms)
        for answer, at, receipt, command in rest:
            answer[at] = found.delete(receipt, command)
        found.write_deleted()
        if queue.fifo:
            freed.update([row[6] for row in found.gone])
    if queue.fifo and queue.messages < messages:
        fifo.refile(session, queue, freed)
        fifo.notify(session, queue, now_ms, count)


def _read(
    session: Session, queue: Queue, items: list[tuple[int, Settling]], now_ms: int, answers: Answers
) -> list[_Item]:
    """Return the receipts of messages that may be there; answer the others."""
    read, number, floor = session.book.read, queue.number, queue.floor(now_ms)
    found: list[_Item] = []
    for slot, command in items:
        if isinstance(command, commands.Delete):
            texts, gone = command.receipts, _GONE_DELETED
        else:
            texts, gone = tuple([change.receipt for change in command.changes]), _GONE_CHANGED
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
                found.append((answer, at, receipt, command))
            elif queue.log is not None and isinstance(command, commands.Delete):
                session.events.deleted(queue, receipt, None, now_ms, acts=False)
    return found


def _take_out(
    session: Session, queue: Queue, tried: list[_Item], hits: list[int], now_ms: int, freed: set[int]
) -> list[_Item]:
    """Count the messages out whose receipts hit; return what is still to be answered.

    In a FIFO queue ``freed`` gets the groups of what was deleted: a message knows its group.
    """
    deleted: list[Row] = []
    for (answer, at, (_, seq, generation, _, visible_at_ms), _), hit in zip(tried, hits, strict=True):
        if hit:
            deleted.append((seq,))
            if visible_at_ms > now_ms:
                if generation:
                    queue.in_flight -= 1
                else:
                    queue.delayed -= 1
                answer[at] = _LIVE
            else:
                answer[at] = _EXPIRED
    if deleted:
        session.ended(queue.partition, deleted, ordered=queue.fifo)
        if queue.log is not None:
            session.events.deleted_as_received(queue.log, deleted, now_ms)
        if queue.fifo:
            freed.update([session.group_of.pop(seq) for (seq,) in deleted])
        queue.messages -= len(deleted)
        queue.deleted += len(deleted)
        if not queue.touched:
            session.touch(queue)
        if queue.at_limit:
            queue.free_place(now_ms)
    return [] if len(deleted) == len(tried) else [each for each, hit in zip(tried, hits, strict=True) if not hit]


def _delete_as_received(session: Session, deletes: list[_Plain], *, is_fifo: bool) -> list[int]:
    """Delete the rows that are as their receipts say; return for each receipt whether it deleted.

    Those of FIFO queues are found by group.
    """
    changes, group_of = session.connection.changes, session.group_of
    hits: list[int] = []
    if is_fifo:
        unknown = [(receipt[1],) for each in deletes for _, _, receipt, _ in each.tried if receipt[1] not in group_of]
        if unknown:
            group_of.update(session.executemany(_GROUP_OF, unknown))

    def bindings() -> Iterator[Row]:
        for queue, tried, _, _ in deletes:
            partition = queue.partition
            for _, _, (_, seq, generation, epoch, visible_at_ms), _ in tried:
                if is_fifo:
                    yield partition, group_of.get(seq, -1), seq, visible_at_ms, generation, epoch
                else:
                    yield partition, seq, visible_at_ms, generation, epoch
                hits.append(changes())  # of the statement that has just run with these values

    session.executemany(_ORDERED_DELETE_AS_RECEIVED if is_fifo else _DELETE_AS_RECEIVED, bindings())
    return hits


def _find(session: Session, queue: Queue, receipts: list[Receipt]) -> dict[int, list[Any]]:
    """Return the rows of the messages of ``receipts`` by seq: seq, visible_at, receives, generation, epoch, ..."""
    query = SQL["ordered_find" if queue.fifo else "standard_find"]
    partition = queue.partition
    seqs = {receipt[1] for receipt in receipts}
    if queue.log is not None:
        rows = {lease[0]: lease for lease in session.events.find(partition, seqs, fifo=queue.fifo)}
    else:
        rows = {row[0]: list(row) for row in session.executemany(query, [(partition, seq) for seq in seqs])}
    if queue.claims and not queue.fifo:
        claimed = session.executemany(SQL["claimed_receipt"], [(partition, seq) for seq in seqs - rows.keys()])
        rows |= {row[0]: list(row) for row in claimed}
    return rows


class _Found:
    """The messages of receipts of one queue, looked up, and what the commands on them change, in order."""

    def __init__(self, session: Session, queue: Queue, items: list[_Item], now_ms: int) -> None:
        self._session = session
        self._queue = queue
        self._now_ms = now_ms
        self._rows = _find(session, queue, [receipt for _, _, receipt, _ in items])
        self.gone: list[Row] = []
        self.changed: dict[int, list[Any]] = {}
        self.due: list[int] = []

    def _judge(self, receipt: Receipt, command: Settling) -> tuple[ReceiptState, list[Any] | None]:
        """Return what the receipt is now, and the row of its message if that is there."""
        row = self._rows.get(receipt[1])
        if row is None:
            return _GONE, None
        _, visible_at_ms, _, generation, epoch = row[:5]
        current = generation == receipt[2] and (epoch == receipt[3] or command.any_epoch)
        if not current and command.any_receive and not self._queue.fifo and visible_at_ms < NEVER_MS:  # else: claimed
            return ReceiptState.EARLIER, row
        return visibility.receipt_state(current=current, visible_at_ms=visible_at_ms or 0, now_ms=self._now_ms), row

    def delete(self, receipt: Receipt, command: commands.Delete) -> ReceiptState:
        """Delete by a receipt, if it acts."""
        queue = self._queue
        state, row = self._judge(receipt, command)
        acts = visibility.receipt_acts(state, only_live=command.only_live or queue.fifo)
        if queue.log is not None:
            self._session.events.deleted(queue, receipt, row, self._now_ms, acts=acts)
        if row is not None and acts:
            del self._rows[receipt[1]]
            self.changed.pop(receipt[1], None)
            queue.unhide(row[1] or 0, received=row[2] > 0)
            self.gone.append(tuple(row))
        return state

    def change(self, receipt: Receipt, command: commands.ChangeVisibility, at: int) -> LeaseChange:
        """Change a deadline by a receipt, if it acts; raises what is wrong with the timeout."""
        queue, now_ms = self._queue, self._now_ms
        state, row = self._judge(receipt, command)
        if row is None or not visibility.receipt_acts(state, only_live=command.only_live or queue.fifo):
            return LeaseChange(state=state)
        received = row[2] > 0
        since_ms = row[5] if received else now_ms  # a delayed message was not received yet
        timeout_s = command.changes[at].timeout_s
        visible_at_ms = visibility.changed_deadline_ms(now_ms, timeout_s, since_ms, command.lease_s_max)
        if queue.log is not None:
            self._session.events.changed(queue, row, now_ms, released=not timeout_s)
        queue.unhide(row[1] or 0, received=received)
        queue.hide(visible_at_ms, received=received)
        row[1] = visible_at_ms
        renewed = None
        if command.renew_receipt:
            row[4] += 1
            renewed = self._session.book.issue(queue.number, row[0], row[3], row[4], visible_at_ms)
        self.changed[row[0]] = row
        self.due.append(visible_at_ms)
        hidden_ms = visible_at_ms - now_ms
        return LeaseChange(state=state, visible_at_ms=visible_at_ms, hidden_for_ms=hidden_ms, receipt=renewed)

    def write_changed(self) -> None:
        """Write the rows that were changed."""
        session, queue, changed = self._session, self._queue, self.changed.values()
        if not changed:
            return
        if queue.fifo:
            session.many("ordered_change", [(row[1], row[4], queue.partition, row[6], row[0]) for row in changed])
        else:
            session.many("standard_change", [(row[1], row[4], queue.partition, row[0]) for row in changed])
        session.touch(queue)
        if queue.log is not None:
            session.events.keep(queue.partition, changed, fifo=queue.fifo)
        if queue.shares:
            fair.changed(session, queue, changed, self._now_ms)

    def write_deleted(self) -> None:
        """Delete the rows of messages that are gone, and count them out."""
        session, queue, gone = self._session, self._queue, self.gone
        if not gone:
            return
        if queue.fifo:
            session.many("ordered_delete", [(queue.partition, row[6], row[0]) for row in gone])
        else:
            session.many("standard_delete", [(queue.partition, row[0]) for row in gone])
        session.ended(queue.partition, [(row[0],) for row in gone], ordered=queue.fifo)
        queue.messages -= len(gone)
        queue.deleted += len(gone)
        session.touch(queue)
        if queue.shares:
            fair.ended(session, queue, [(row[0], row[7], row[6]) for row in gone], self._now_ms)
        if queue.at_limit:
            queue.free_place(self._now_ms)


def _settle_in_order(session: Session, queue: Queue, todo: list[_Item], count: int, now_ms: int) -> None:
    """Look up all messages, and apply the commands to them in order."""
    if not todo:
        return
    if queue.shares:
        fair.sharing_of(session, queue)  # with what is in flight before these end it
    found = _Found(session, queue, todo, now_ms)
    for answer, at, receipt, command in todo:
        if type(command) is commands.Delete:
            answer[at] = found.delete(receipt, command)
            continue
        try:
            answer[at] = found.change(receipt, command, at)
        except VeilmqError as error:
            answer[at] = error
    found.write_changed()
    found.write_deleted()
    if queue.fifo and (found.gone or found.changed):
        fifo.refile(session, queue, {row[6] for row in [*found.gone, *found.changed.values()]})
        fifo.notify(session, queue, now_ms, count)
    else:
        for due_ms in found.due:
            queue.notify(due_ms)


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
            due, received = _count_due(session, queue, queue.counted_at_ms, now_ms)
            queue.in_flight -= received
            queue.delayed -= due - received
            queue.hidden_until_ms = _next_hidden_ms(session, queue, now_ms)
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
    found = [session.row("ordered_oldest" if queue.fifo else "standard_oldest", queue.partition)]
    found += [session.row("ready_first", queue.partition, lane) for lane in queue.lanes]
    return min([row[0] for row in found if row is not None], default=None)


def _count_due(session: Session, queue: Queue, after_ms: int, until_ms: int) -> tuple[int, int]:
    """Count the messages that became visible in (after, until], and those of them that had been received."""
    if queue.fifo:
        ((due, received),) = session.rows("ordered_count_due", queue.partition, after_ms, until_ms)
        return due, received
    due = received = 0
    for lane in queue.lanes:
        ((count, leases),) = session.rows("standard_count_due", queue.partition, lane, after_ms, until_ms)
        due += count
        received += leases
    return due, received


def _next_hidden_ms(session: Session, queue: Queue, after_ms: int) -> int:
    """Return when the next hidden message becomes visible after an instant; ``NEVER_MS`` when none does."""
    if queue.fifo:
        ((next_ms,),) = session.rows("ordered_next_hidden", queue.partition, after_ms)
        return NEVER_MS if next_ms is None else int(next_ms)
    rows = [session.row("standard_ends_after", queue.partition, lane, after_ms, 1) for lane in queue.lanes]
    return min([row[0] for row in rows if row is not None], default=NEVER_MS)


def _sweep(session: Session, queue: Queue, now_ms: int, rows_max: int) -> list[Row]:
    """Delete up to ``rows_max`` messages past their retention; return them as ``delete_below`` does."""
    place = queue.partition, queue.lanes, queue.floor(now_ms)
    rows = delete_below(session, *place, rows_max, queue.log, now_ms, is_fifo=queue.fifo)
    if rows:
        for _, visible_at_ms, receive_count, *_ in rows:
            queue.unhide(visible_at_ms or 0, received=receive_count > 0)
        queue.messages -= len(rows)
        session.touch(queue)
    if len(rows) == rows_max:
        queue.expires_at_ms = now_ms
    else:
        oldest = _oldest(session, queue)
        queue.expires_at_ms = NEVER_MS if oldest is None else (oldest >> SEQ_SHIFT) + queue.retention_ms
    return rows


def delete_below(
    session: Session,
    partition: int,
    lanes: Iterable[int],
    floor: int,
    rows_max: int,
    log: Logged | None,
    now_ms: int,
    *,
    is_fifo: bool,
) -> list[Row]:
    """Delete up to ``rows_max`` messages of a partition below a seq.

    Returns seq, visible_at, receive_count, group, and in a standard queue the lane of each.
    """
    session.settle_ended()
    if is_fifo:
        rows = session.rows("ordered_below", partition, floor - 1, rows_max)
    else:
        rows = session.rows("standard_below", partition, floor, rows_max)
    if log is not None:
        session.events.end(log, partition, [row[0] for row in rows if row[2]], now_ms, fifo=is_fifo)
    if is_fifo:
        session.many("ordered_delete", [(partition, row[3], row[0]) for row in rows])
    else:
        session.many("standard_delete", [(partition, row[0]) for row in rows])
    for lane in lanes:
        waiting = session.rows("ready_below", partition, lane, floor - 1, rows_max - len(rows))
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
    if target is None or redrive.refusal(queue.name, settings, target.name, target.settings) is not None:
        return None
    if session.database.is_short and session.database.look_again(now_ms):
        return None

    def move(rows: list[Row]) -> None:
        if queue.log is not None:
            session.events.dead_lettered(queue, [row[0] for row in rows], now_ms)
        bury(session, queue, target, rows, now_ms)

    return DeadLetterSink(target, settings.receives_max, move)


def bury(session: Session, source: Queue, target: Queue, rows: list[Row], now_ms: int) -> list[int]:
    """Move dead letters, whose receipts have ended; return their seqs there.

    They keep their ids, and count receives and the time since the first one on.
    """
    settle_time(session, target, now_ms)
    pasts = [(source.name, row[2] + (row[9] or 0), row[4] if row[10] is None else row[10]) for row in rows]
    if source.fifo:
        # Two that shared a deduplication id are told apart by their own ids (SQS, "Using dead-letter queues").
        kept = [properties.encode(replace(properties.decode(row[7]), dedup_id=str(UUID(bytes=row[5])))) for row in rows]
        what = [(row[5], own, *past) for row, own, past in zip(rows, kept, pasts, strict=True)]
        seqs = _move_ordered(session, source, target, rows, what, now_ms)
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
    move = _move_ordered if source.fifo else _move_standard
    _count_moved(session, source, target, rows, move(session, source, target, rows, what, now_ms), now_ms)


def _count_moved(session: Session, source: Queue, target: Queue, rows: list[Row], seqs: list[int], now_ms: int) -> None:
    """Count what has left one queue for the other, with these seqs there."""
    if not target.fifo:
        target.lanes = tuple(sorted({*target.lanes, *[row[1] for row in rows]}))
        grouped = [
            (target.partition, row[1], row[11], now_ms, seq)
            for row, seq in zip(rows, seqs, strict=True)
            if row[11] is not None
        ]
        target.shares = target.shares or bool(grouped)
        session.many("admit_fair_group", grouped)
    target.expires_at_ms = min(target.expires_at_ms, (min(seqs) >> SEQ_SHIFT) + target.retention_ms)
    source.messages -= len(rows)
    target.messages += len(rows)
    session.touch(source)
    session.touch(target)


def _move_standard(
    session: Session, source: Queue, target: Queue, rows: list[Row], what: list[Row], now_ms: int
) -> list[int]:
    """Move messages of a standard queue; ``what`` has id, properties and past of each. Returns their seqs."""
    seqs = _new_seqs(session, len(rows), now_ms)
    session.many("standard_delete", [(source.partition, row[0]) for row in rows if row[3] is not None])
    take(session, source, [(row[1], row[0]) for row in rows if row[3] is None])
    session.many(
        "renumber_message",
        [(seq, row[11], *its, row[0]) for seq, row, its in zip(seqs, rows, what, strict=True)],
    )
    runs: list[list[int]] = []
    grouped: list[Row] = []
    for seq, row in zip(seqs, rows, strict=True):
        lane, group = row[1], row[11]
        if group is not None:
            grouped.append((target.partition, seq, lane, now_ms, group))
        elif runs and runs[-1][1:3] == [lane, seq - 1]:
            runs[-1][2] = seq
        else:
            runs.append([target.partition, lane, seq, seq])
    session.many("standard_insert", grouped)
    session.many("insert_ready", [tuple(run) for run in runs])
    return seqs


def _move_ordered(
    session: Session, source: Queue, target: Queue, rows: list[Row], what: list[Row], now_ms: int
) -> list[int]:
    """Do the same with messages of a FIFO queue, in their groups there."""
    seqs = _new_seqs(session, len(rows), now_ms)
    numbers: dict[Any, int] = {}
    for seq, row in zip(seqs, rows, strict=True):
        if row[11] not in numbers:
            ((name_hash,),) = session.rows("group_hash", source.partition, row[11])
            numbers[row[11]] = session.group_numbers.of_hash(target.partition, name_hash, seq)
    partition = target.partition
    last = {numbers[row[11]]: seq for seq, row in zip(seqs, rows, strict=True)}
    session.many(
        "ordered_move",
        [
            (partition, numbers[row[11]], seq, now_ms, source.partition, row[11], row[0])
            for seq, row in zip(seqs, rows, strict=True)
        ],
    )
    session.many(
        "renumber_message",
        [(seq, numbers[row[11]], *its, row[0]) for seq, row, its in zip(seqs, rows, what, strict=True)],
    )
    session.left(source.partition, [(row[0],) for row in rows])
    session.run("insert_ordered_run", partition, seqs[-1], seqs[0], len(rows))
    session.many("admit_own", [(partition, group, seq) for group, seq in last.items()])
    fifo.refile(session, target, last)
    return seqs


def _new_seqs(session: Session, count: int, now_ms: int) -> list[int]:
    first = session.next_seq(now_ms)
    session.last_seq = first + count - 1
    return list(range(first, first + count))
