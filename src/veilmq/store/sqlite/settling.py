"""Deletes and changes of visibility: what the receipts of a batch do, for both kinds of queues.

Nearly all deletes bring the receipt of the latest receive, whose deadline is as the receipt says: then one statement
for all queues of a kind deletes the rows that are as the receipts have them, and nothing is read but, in FIFO queues,
the groups of the messages. Everything else reads the rows of all receipts first, applies the commands to them in
order, and writes what has become of them.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from veilmq.core import commands, visibility
from veilmq.core.errors import ReceiptInvalid, VeilmqError
from veilmq.core.receipts import Receipt
from veilmq.core.results import LeaseChange, ReceiptState
from veilmq.store.queues import NEVER_MS, Queue
from veilmq.store.sqlite import fair, groups
from veilmq.store.sqlite.session import Row, Session
from veilmq.store.sqlite.statements import SQL

_DELETE_AS_RECEIVED = SQL["standard_delete_as_received"]
_ORDERED_DELETE_AS_RECEIVED = SQL["ordered_delete_as_received"]
_GROUP_OF = SQL["group_of_message"]

_LIVE, _EXPIRED, _GONE = ReceiptState.LIVE, ReceiptState.EXPIRED, ReceiptState.GONE
_GONE_DELETED: ReceiptState | LeaseChange = _GONE
_GONE_CHANGED: ReceiptState | LeaseChange = LeaseChange(state=_GONE)

Settling = commands.Delete | commands.ChangeVisibility
Answers = list[Any]
_Asked = tuple[list[Any], int, Receipt, Any]
"""Where the state of a receipt goes (an answer and the place in it), the receipt, and its command."""


class _Plain(NamedTuple):
    """The deletes of one queue of which a receipt acts as it is or not at all: those to try, and those to look up."""

    queue: Queue
    asked: list[_Asked]
    rest: list[_Asked]
    commands: int


def settle(
    session: Session, works: list[tuple[Queue, list[tuple[int, Settling]]]], now_ms: int, answers: Answers
) -> None:
    """Apply the commands of each queue in order; each answer is a list with a result or an error for each receipt."""
    plain: dict[bool, list[_Plain]] = {}
    for queue, items in works:
        todo = _asked(session, queue, items, now_ms, answers)
        is_plain = not queue.shares and all(_is_plain(command) for _, command in items)
        if not is_plain or len({each[2][1] for each in todo}) < len(todo):
            _settle_in_order(session, queue, todo, len(items), now_ms)
            continue
        asked: list[_Asked] = []
        rest: list[_Asked] = []
        for each in todo:
            acts = each[2][4] > now_ms or not (queue.fifo or each[3].only_live)
            tries = acts and (queue.log is None or session.events.knows(each[2]))
            (asked if tries else rest).append(each)
        plain.setdefault(queue.fifo, []).append(_Plain(queue, asked, rest, len(items)))
    for fifo, deletes in plain.items():
        hits = iter(_delete_grouped(session, deletes) if fifo else _delete_plain(session, deletes))
        for of_queue in deletes:
            _settle_plain(session, of_queue, list(islice(hits, len(of_queue.asked))), now_ms)


def _settle_plain(session: Session, plain: _Plain, hits: list[int], now_ms: int) -> None:
    """Count what the statement has deleted (``hits`` for each receipt), and look the rest up."""
    queue, asked, rest, count = plain
    freed: set[int] = set()
    messages = queue.messages
    if asked:
        rest += _take_out(session, queue, asked, hits, now_ms, freed)
    if rest:
        rows = _find(session, queue, [receipt for _, _, receipt, _ in rest])
        gone: list[Row] = []
        for answer, at, receipt, command in rest:
            answer[at] = _delete(session, queue, rows, receipt, command, now_ms, gone)
        _write_deleted(session, queue, gone, now_ms)
        if queue.fifo:
            freed.update([row[6] for row in gone])
    if queue.fifo and queue.messages < messages:
        groups.refile(session, queue, freed)
        groups.notify(session, queue, now_ms, count)


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


def _is_plain(command: Settling) -> bool:
    """Tell whether only the receipt of the latest receive or change acts in a command, which deletes."""
    return type(command) is commands.Delete and not (command.any_epoch or command.any_receive)


def _take_out(
    session: Session, queue: Queue, asked: list[_Asked], hits: list[int], now_ms: int, freed: set[int]
) -> list[_Asked]:
    """Count the messages out whose receipts hit; return what is still to be answered.

    In a FIFO queue ``freed`` gets the groups of what was deleted: a message knows its group.
    """
    deleted: list[Row] = []
    for (answer, at, (_, seq, generation, _, visible_at_ms), _), hit in zip(asked, hits, strict=True):
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
    return [] if len(deleted) == len(asked) else [each for each, hit in zip(asked, hits, strict=True) if not hit]


def _delete_plain(session: Session, deletes: list[_Plain]) -> list[int]:
    """Delete the rows that are as their receipts say; return for each receipt whether it deleted."""
    changes = session.connection.changes
    hits: list[int] = []

    def bindings() -> Iterator[Row]:
        for queue, asked, _, _ in deletes:
            partition = queue.partition
            for _, _, (_, seq, generation, epoch, visible_at_ms), _ in asked:
                yield partition, seq, visible_at_ms, generation, epoch
                hits.append(changes())  # of the statement that has just run with these values

    session.executemany(_DELETE_AS_RECEIVED, bindings())
    return hits


def _delete_grouped(session: Session, deletes: list[_Plain]) -> list[int]:
    """Do the same in FIFO queues, whose rows are found by group."""
    changes, group_of = session.connection.changes, session.group_of
    unknown = [(receipt[1],) for each in deletes for _, _, receipt, _ in each.asked if receipt[1] not in group_of]
    if unknown:
        group_of.update(session.executemany(_GROUP_OF, unknown))
    hits: list[int] = []

    def bindings() -> Iterator[Row]:
        for queue, asked, _, _ in deletes:
            partition = queue.partition
            for _, _, (_, seq, generation, epoch, visible_at_ms), _ in asked:
                yield partition, group_of.get(seq, -1), seq, visible_at_ms, generation, epoch
                hits.append(changes())  # as above

    session.executemany(_ORDERED_DELETE_AS_RECEIVED, bindings())
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


def _judge(
    queue: Queue, rows: dict[int, list[Any]], receipt: Receipt, command: Settling, now_ms: int
) -> tuple[ReceiptState, list[Any] | None]:
    """Return what the receipt is now, and the row of its message if that is there."""
    row = rows.get(receipt[1])
    if row is None:
        return _GONE, None
    _, visible_at_ms, _, generation, epoch = row[:5]
    current = generation == receipt[2] and (epoch == receipt[3] or command.any_epoch)
    if not current and command.any_receive and not queue.fifo and visible_at_ms < NEVER_MS:  # else it is claimed
        return ReceiptState.EARLIER, row
    return visibility.receipt_state(current=current, visible_at_ms=visible_at_ms or 0, now_ms=now_ms), row


def _delete(
    session: Session,
    queue: Queue,
    rows: dict[int, list[Any]],
    receipt: Receipt,
    command: commands.Delete,
    now_ms: int,
    gone: list[Row],
) -> ReceiptState:
    state, row = _judge(queue, rows, receipt, command, now_ms)
    acts = visibility.receipt_acts(state, only_live=command.only_live or queue.fifo)
    if queue.log is not None:
        session.events.deleted(queue, receipt, row, now_ms, acts=acts)
    if row is not None and acts:
        del rows[receipt[1]]
        queue.unhide(row[1] or 0, received=row[2] > 0)
        gone.append(tuple(row))
    return state


def _write_deleted(session: Session, queue: Queue, gone: list[Row], now_ms: int) -> None:
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
        fair.ended(session, queue, [(row[0], row[7], row[6]) for row in gone], now_ms)
    if queue.at_limit:
        queue.free_place(now_ms)


def _settle_in_order(session: Session, queue: Queue, todo: list[_Asked], count: int, now_ms: int) -> None:
    """Apply ``count`` commands, whose receipts may be of the same messages."""
    if not todo:
        return
    if queue.shares:
        fair.sharing_of(session, queue)  # with what is in flight before these end it
    rows = _find(session, queue, [receipt for _, _, receipt, _ in todo])
    gone: list[Row] = []
    changed: dict[int, list[Any]] = {}
    due: list[int] = []
    for answer, at, receipt, command in todo:
        if type(command) is commands.Delete:
            answer[at] = _delete(session, queue, rows, receipt, command, now_ms, gone)
            if receipt[1] not in rows:
                changed.pop(receipt[1], None)
        else:
            try:
                answer[at] = _change(session, queue, rows, receipt, command, at, now_ms, changed, due)
            except VeilmqError as error:
                answer[at] = error
    _write_changed(session, queue, changed, now_ms)
    _write_deleted(session, queue, gone, now_ms)
    if queue.fifo and (gone or changed):
        groups.refile(session, queue, {row[6] for row in [*gone, *changed.values()]})
        groups.notify(session, queue, now_ms, count)
    else:
        for due_ms in due:
            queue.notify(due_ms)


def _asked(
    session: Session, queue: Queue, items: list[tuple[int, Settling]], now_ms: int, answers: Answers
) -> list[_Asked]:
    """Return the receipts of messages that may be there; answer the others."""
    read, number, floor = session.book.read, queue.number, queue.floor(now_ms)
    asked: list[_Asked] = []
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
                asked.append((answer, at, receipt, command))
            elif queue.log is not None and isinstance(command, commands.Delete):
                session.events.deleted(queue, receipt, None, now_ms, acts=False)
    return asked


def _write_changed(session: Session, queue: Queue, changed: dict[int, list[Any]], now_ms: int) -> None:
    if changed:
        rows: list[Row] = [(row[1], row[4], queue.partition, row[0]) for row in changed.values()]
        if queue.fifo:
            rows = [(row[1], row[4], queue.partition, row[6], row[0]) for row in changed.values()]
        session.many("ordered_change" if queue.fifo else "standard_change", rows)
        session.touch(queue)
        if queue.log is not None:
            session.events.keep(queue.partition, changed.values(), fifo=queue.fifo)
        if queue.shares:
            fair.changed(session, queue, changed.values(), now_ms)


def _change(
    session: Session,
    queue: Queue,
    rows: dict[int, list[Any]],
    receipt: Receipt,
    command: commands.ChangeVisibility,
    at: int,
    now_ms: int,
    changed: dict[int, list[Any]],
    due: list[int],
) -> LeaseChange:
    state, row = _judge(queue, rows, receipt, command, now_ms)
    if row is None or not visibility.receipt_acts(state, only_live=command.only_live or queue.fifo):
        return LeaseChange(state=state)
    received = row[2] > 0
    since_ms = row[5] if received else now_ms  # nobody has asked for a delayed message yet
    timeout_s = command.changes[at].timeout_s
    visible_at_ms = visibility.changed_deadline_ms(now_ms, timeout_s, since_ms, command.lease_s_max)
    if queue.log is not None:
        session.events.changed(queue, row, now_ms, released=not timeout_s)
    queue.unhide(row[1] or 0, received=received)
    queue.hide(visible_at_ms, received=received)
    row[1] = visible_at_ms
    if command.renew_receipt:
        row[4] += 1
    changed[row[0]] = row
    due.append(visible_at_ms)
    renewed = None
    if command.renew_receipt:
        renewed = session.book.issue(queue.number, row[0], row[3], row[4], visible_at_ms)
    return LeaseChange(state=state, visible_at_ms=visible_at_ms, hidden_for_ms=visible_at_ms - now_ms, receipt=renewed)
