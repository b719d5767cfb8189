"""How messages leave a queue or change state: by receipts, by time, and by moves.

Receipts: most deletes have the receipt of the latest receive, with the current deadline. One statement then deletes all
rows that match their receipts; only the groups of FIFO queues are read. Everything else reads the rows of all receipts,
applies the commands in order, and writes the changed rows.

Time: commands update the totals. ``advance_time`` counts what became visible since, and reads the index only if
something hidden can have become visible.

Moves: a dead letter of a standard queue keeps its row and its seq, and thus its sending time. All other messages get a
seq after all others: dead letters of a FIFO queue, and messages moved as new ones, with a new id and no history. All
are visible at once in the target, and the cursors of their old groups are updated. A message that the dead-letter queue
cannot take (it is deleted, permission is withdrawn, the disk is nearly full) stays and is delivered again.
"""

from collections.abc import Collection, Iterable
from typing import Any

from veilmq.core import commands
from veilmq.core.commands import LeaseChange, QueueCounts
from veilmq.core.errors import ReceiptInvalid, ReceiptState, VeilmqError
from veilmq.core.messages import dead_letter_properties
from veilmq.core.receipts import Receipt, changed_deadline_ms, receipt_acts, receipt_state
from veilmq.core.settings import dead_letter_refusal
from veilmq.store.events import Logged
from veilmq.store.sqlite import fair, fifo
from veilmq.store.sqlite.database import SQL, SQL_WITH_SIZES
from veilmq.store.sqlite.queues import SEQ_MAX, Queue
from veilmq.store.sqlite.session import (
    EPOCH,
    FIRST_RECEIVED_AT,
    FIRST_RECEIVED_BEFORE,
    GROUP,
    ID,
    LANE,
    PROPERTIES,
    RECEIVE_COUNT,
    RECEIVES_BEFORE,
    SEQ,
    Row,
    Session,
)
from veilmq.store.sqlite.standard import DeadLetterSink, Results, ends_after, remove_runs, to_runs
from veilmq.store.transaction import NEVER_MS, SEQ_SHIFT

_DELETED_AT_ONCE = 1_000

_LIVE, _EXPIRED, _GONE = ReceiptState.LIVE, ReceiptState.EXPIRED, ReceiptState.GONE
_GONE_DELETED: ReceiptState | LeaseChange = _GONE
_GONE_CHANGED: ReceiptState | LeaseChange = LeaseChange(state=_GONE)

SettleCommand = commands.Delete | commands.ChangeVisibility
# Where the state of a receipt goes (a result list and an index), the receipt, and its command.
_Item = tuple[list[Any], int, Receipt, Any]


def settle(session: Session, queue: Queue, items: list[tuple[int, SettleCommand]], results: Results) -> None:
    """Apply commands on a queue in order; each result is a list of states or errors, one for each receipt."""
    found, is_plain = _read(session, queue, items, results)
    now_ms = session.now_ms
    tried: list[_Item] = []
    rest = found
    if is_plain and len({each[2][1] for each in found}) == len(found):
        rest = []
        for each in found:
            receipt = each[2]
            acts = receipt[4] > now_ms or not (queue.fifo or each[3].only_live)
            (tried if acts else rest).append(each)
    freed: set[int] = set()  # groups of a FIFO queue whose cursors need an update
    if tried:
        rest += _delete_as_received(session, queue, tried, freed)
    due = _apply(session, queue, rest, freed) if rest else []
    if freed:
        fifo.update_cursors(session, queue, freed)
        fifo.notify(session, queue, len(items))
    elif not queue.fifo:
        for due_ms in due:
            queue.notify(due_ms)


def _read(
    session: Session, queue: Queue, items: list[tuple[int, SettleCommand]], results: Results
) -> tuple[list[_Item], bool]:
    """Decode receipts, set results of those without a message; return the others, and whether all are plain deletes."""
    read, number = session.codec.read, queue.number
    floor, is_plain = queue.floor(session.now_ms), not queue.has_groups
    found: list[_Item] = []
    for slot, command in items:
        if isinstance(command, commands.Delete):
            texts, missing = command.receipts, _GONE_DELETED
        else:
            texts, missing, is_plain = tuple([change.receipt for change in command.changes]), _GONE_CHANGED, False
        result: list[Any] = [missing] * len(texts)
        results[slot] = result
        for at, text in enumerate(texts):
            try:
                receipt = read(text)
            except VeilmqError as error:
                result[at] = error
                continue
            if receipt[0] != number:
                result[at] = ReceiptInvalid()
            elif receipt[1] >= floor:
                found.append((result, at, receipt, command))
            elif isinstance(command, commands.Delete):
                session.events.deleted(queue, receipt, None, acts=False)
    return found, is_plain


def _delete_as_received(session: Session, queue: Queue, tried: list[_Item], freed: set[int]) -> list[_Item]:
    """Delete messages that match their receipts; return the others. In a FIFO queue rows are found by group."""
    group_of, partition, fifo = session.group_of, queue.partition, queue.fifo
    leases: dict[int, Any] = {}
    if queue.log is not None:
        found = session.events.find(partition, [receipt[1] for _, _, receipt, _ in tried], kind=queue.kind)
        leases = {lease[0]: lease for lease in found}
    if fifo:
        unknown = [(receipt[1],) for _, _, receipt, _ in tried if receipt[1] not in group_of]
        group_of.update(session.executemany(SQL["group_of_message"], unknown))

    receipts: list[Row] = [
        (partition, group_of.get(seq, -1) if fifo else None, seq, visible_at_ms, generation, epoch)
        for _, _, (_, seq, generation, epoch, visible_at_ms), _ in tried
    ]
    hits = session.change_many(f"{queue.kind}_delete_as_received", receipts)
    now_ms, others = session.now_ms, []
    deleted: list[Row] = []
    for each, hit in zip(tried, hits, strict=True):
        if not hit:
            others.append(each)
            continue
        result, at, receipt, _ = each
        _, seq, generation, _, visible_at_ms = receipt
        if queue.log is not None:
            session.events.deleted(queue, receipt, leases[seq], acts=True)
        deleted.append((seq,))
        result[at] = _EXPIRED
        if visible_at_ms > now_ms:
            result[at] = _LIVE
            if generation:
                queue.in_flight -= 1
            else:
                queue.delayed -= 1
    if deleted:
        if fifo:
            freed.update([group_of.pop(seq) for (seq,) in deleted])
        _count_deleted(session, queue, deleted)
    return others


def _count_deleted(session: Session, queue: Queue, deleted: list[Row]) -> None:
    session.delete_messages(queue.partition, deleted, ordered=queue.fifo)
    queue.messages -= len(deleted)
    queue.deleted += len(deleted)
    session.dirty.add(queue)
    if queue.at_limit:
        queue.notify_freed(session.now_ms)


def _apply(session: Session, queue: Queue, items: list[_Item], freed: set[int]) -> list[int]:
    """Apply commands to the rows of their messages in order, and write the changes; return the new deadlines."""
    if queue.has_groups:
        fair.accounts_of(session, queue)  # counts the messages in flight before these end
    rows = _find(session, queue, [receipt for _, _, receipt, _ in items])
    deleted: list[Row] = []
    changes: dict[int, list[Any]] = {}
    due: list[int] = []
    for result, at, receipt, command in items:
        row = rows.get(receipt[1])
        state, acts = (_GONE, False) if row is None else _state(session, queue, receipt, command, row)
        if isinstance(command, commands.Delete):
            session.events.deleted(queue, receipt, row, acts=acts)
            result[at] = state
            if row is not None and acts:
                del rows[receipt[1]]
                changes.pop(receipt[1], None)
                queue.remove_hidden(row[1] or 0, received=row[2] > 0)
                deleted.append(tuple(row))
        elif row is None or not acts:
            result[at] = LeaseChange(state=state)
        else:
            try:
                result[at] = _change(session, queue, row, state, command, at)
            except VeilmqError as error:
                result[at] = error
                continue
            changes[row[0]] = row
            due.append(row[1])
    _write(session, queue, changes.values(), deleted)
    if queue.fifo:
        freed.update([row[6] for row in (*deleted, *changes.values())])
    return due


def _write(session: Session, queue: Queue, changed: Collection[list[Any]], deleted: list[Row]) -> None:
    partition, kind = queue.partition, queue.kind
    if changed:
        if queue.log is None:
            session.run_many(f"{kind}_change", [(partition, row[6], row[0], row[1], row[4], None) for row in changed])
        else:
            session.events.update(partition, changed, kind=kind)
        session.dirty.add(queue)
        if queue.has_groups:
            fair.changed(session, queue, changed)
    if deleted:
        session.run_many(f"{kind}_delete", [(partition, row[6], row[0]) for row in deleted])
        _count_deleted(session, queue, [(row[0],) for row in deleted])
        if queue.has_groups:
            fair.ended(session, queue, [(row[0], row[7], row[6]) for row in deleted])


def _state(
    session: Session, queue: Queue, receipt: Receipt, command: SettleCommand, row: list[Any]
) -> tuple[ReceiptState, bool]:
    """Return the state of a receipt, and whether it acts."""
    _, visible_at_ms, _, generation, epoch = row[:5]
    current = generation == receipt[2] and (epoch == receipt[3] or command.any_epoch)
    state = receipt_state(current=current, visible_at_ms=visible_at_ms or 0, now_ms=session.now_ms)
    if not current and command.any_receive and not queue.fifo and visible_at_ms < NEVER_MS:  # NEVER_MS: claimed
        state = ReceiptState.EARLIER
    return state, receipt_acts(state, only_live=command.only_live or queue.fifo)


def _change(
    session: Session, queue: Queue, row: list[Any], state: ReceiptState, command: commands.ChangeVisibility, at: int
) -> LeaseChange:
    """Change the deadline in a row; raises an error for an invalid timeout."""
    received, now_ms, timeout_s = row[2] > 0, session.now_ms, command.changes[at].timeout_s
    since_ms = row[5] if received else now_ms  # else a delayed message
    visible_at_ms = changed_deadline_ms(now_ms, timeout_s, since_ms, command.lease_s_max)
    if queue.log is not None:
        session.events.changed(queue.log, row, released=not timeout_s)
    queue.remove_hidden(row[1] or 0, received=received)
    queue.add_hidden(visible_at_ms, received=received)
    row[1] = visible_at_ms
    renewed = None
    if command.renew_receipt:
        row[4] += 1
        renewed = session.codec.issue(queue.number, row[0], row[3], row[4], visible_at_ms)
    hidden_ms = visible_at_ms - now_ms
    return LeaseChange(state=state, visible_at_ms=visible_at_ms, hidden_for_ms=hidden_ms, receipt=renewed)


def _find(session: Session, queue: Queue, receipts: list[Receipt]) -> dict[int, list[Any]]:
    """Return the rows of messages by seq.

    Columns: seq, visible_at, receive_count, generation, epoch, received_at (when the receive was requested), group,
    lane.
    """
    partition, seqs = queue.partition, {receipt[1] for receipt in receipts}
    if queue.log is not None:
        found: Iterable[Any] = session.events.find(partition, seqs, kind=queue.kind)
    else:
        found = session.executemany(SQL[f"{queue.kind}_find"], [(partition, seq) for seq in seqs])
    rows = {row[0]: list(row) for row in found}
    if queue.claims and not queue.fifo:  # also claimed messages, or those behind them; no receipt has generation -1
        claimed = session.executemany(SQL["claimed_at"], [(partition, seq) for seq in seqs - rows.keys()])
        for seq, _, lane, group, receives, epoch, first_at_ms, _ in claimed:
            rows[seq] = [seq, NEVER_MS, receives, -1, epoch, first_at_ms, group, lane]
    return rows


def end_leases(session: Session, queue: Queue, receipts: list[Receipt]) -> None:
    """Record messages as deleted by their live receipts, in events and totals; their rows stay, to be moved."""
    if queue.has_groups:
        fair.accounts_of(session, queue)
    rows = {} if queue.log is None else _find(session, queue, receipts)
    for receipt in receipts:
        session.events.deleted(queue, receipt, rows.get(receipt.position), acts=True)
        queue.remove_hidden(receipt.visible_at_ms, received=True)
    queue.deleted += len(receipts)


# Time.


def advance_time(session: Session, queue: Queue) -> None:
    """Update the totals of a queue to the current time, and delete a slice of expired messages."""
    now_ms = session.now_ms
    if now_ms > queue.counted_at_ms:
        if not queue.in_flight and not queue.delayed:
            queue.hidden_until_ms = NEVER_MS
        elif now_ms >= queue.hidden_until_ms:
            partition, since = queue.partition, (queue.counted_at_ms, now_ms)
            keys: list[Row] = [(partition,)] if queue.fifo else [(partition, lane) for lane in queue.lanes]
            for key in keys:
                ((due, received),) = session.rows(f"{queue.kind}_count_due", *key, *since)
                queue.in_flight -= received
                queue.delayed -= due - received
            following = ends_after(session, queue, now_ms, 1)
            queue.hidden_until_ms = min([each[0] for ends in following for each in ends], default=NEVER_MS)
        queue.counted_at_ms = now_ms
    if now_ms >= queue.expires_at_ms and (rows := _expire(session, queue)):
        update_groups(session, queue, [row[:3] for row in rows])
        notify_freed(session, queue)


def update_groups(session: Session, queue: Queue, rows: list[tuple[int, int, int | None]]) -> None:
    """Update the cursors or heads of groups that lost messages other than by receipts: seq, lane and group of each."""
    if queue.fifo:
        fifo.update_cursors(session, queue, {group for _, _, group in rows if group is not None})
    elif queue.has_groups:
        fair.ended(session, queue, rows)


def notify_freed(session: Session, queue: Queue) -> None:
    """Notify the watch of free capacity, or of the next ready group."""
    queue.notify_freed(session.now_ms)
    if queue.fifo:
        fifo.notify(session, queue)


def counts(session: Session, queue: Queue) -> QueueCounts:
    """Count the messages of a queue by state; its totals are up to date."""
    now_ms, oldest = session.now_ms, _first_seq(session, queue)
    claimed = waiting = 0
    if queue.claims:
        ((claimed,),) = session.rows("claimed_count", queue.partition)
        floor = queue.floor(now_ms)
        for _, first, *_ in session.rows("claimed_at", queue.partition, floor):
            oldest = min(oldest or SEQ_MAX, max(first, floor))
    if queue.fifo and queue.delay_ms:
        since = (now_ms - queue.delay_ms + 1) << SEQ_SHIFT
        ((waiting,),) = session.rows("ordered_waiting", queue.partition, since, SEQ_MAX, -1)
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


def _first_seq(session: Session, queue: Queue) -> int | None:
    session.write_deletions()
    found = [session.row(f"{queue.kind}_between", queue.partition, 0, SEQ_MAX, 1)]
    found += [session.row("ready_runs", queue.partition, lane, 0, 1) for lane in queue.lanes]
    return min([row[0] for row in found if row is not None], default=None)


def _expire(session: Session, queue: Queue) -> list[Row]:
    lanes, now_ms = None if queue.fifo else queue.lanes, session.now_ms
    rows = delete_below(session, queue.partition, lanes, queue.floor(now_ms), _DELETED_AT_ONCE, queue.log)
    for *_, visible_at_ms, receive_count in rows:
        queue.remove_hidden(visible_at_ms or 0, received=receive_count > 0)
    if rows:
        queue.messages -= len(rows)
        session.dirty.add(queue)
    queue.expires_at_ms = now_ms
    if len(rows) < _DELETED_AT_ONCE:
        oldest = _first_seq(session, queue)
        queue.expires_at_ms = NEVER_MS if oldest is None else (oldest >> SEQ_SHIFT) + queue.retention_ms
    return rows


def delete_below(
    session: Session, partition: int, lanes: Iterable[int] | None, end: int, count: int, log: Logged | None
) -> list[Row]:
    """Delete at most ``count`` messages of a partition before the seq ``end``; a FIFO queue has no ``lanes``.

    Returns seq, lane, group, visible_at and receive_count of each.
    """
    session.write_deletions()
    kind = "ordered" if lanes is None else "standard"
    rows = session.rows(f"{kind}_between", partition, 0, end - 1, count)
    session.events.end_receipts(log, partition, [row[0] for row in rows if row[4]], kind=kind)
    session.run_many(f"{kind}_delete", [(partition, row[2], row[0]) for row in rows])
    cuts: list[Row] = []
    for lane in lanes or ():
        before = len(rows)
        for seq, *_ in session.execute(SQL_WITH_SIZES["ready_take"], (0, partition, lane, -1, count - before)):
            if seq >= end:
                break
            rows.append((seq, lane, None, 0, 0))
        if len(rows) > before:
            cuts.append((lane, 0, rows[-1][0]))
    remove_runs(session, partition, cuts, at_front=True)
    session.delete_messages(partition, [(row[0],) for row in rows], ordered=lanes is None)
    return rows


# Moves.


def dead_letter_sink(session: Session, queue: Queue) -> DeadLetterSink | None:
    """Return the sink for dead letters of a queue that limits receives, or ``None`` if they cannot be moved."""
    settings = queue.settings
    target = session.find(settings.dead_letter_queue)
    if target is None or dead_letter_refusal(queue.name, settings, target.name, target.settings) is not None:
        return None
    if session.database.low_disk_space and session.database.recheck_space():
        return None

    def move(rows: list[Row]) -> None:
        session.events.end_receipts(queue.log, queue.partition, [row[SEQ] for row in rows], kind=queue.kind, dead=True)
        dead_letter(session, queue, target, rows)

    return DeadLetterSink(settings.receives_max, move)


def dead_letter(session: Session, source: Queue, target: Queue, rows: list[Row]) -> list[int]:
    """Move dead letters, whose receipts have ended, with ids and receive counts; return their seqs in the target."""
    advance_time(session, target)
    if not source.fifo and session.now_ms < target.expires_at_ms:  # the target has no message before its floor
        target.floor_seq = min([target.floor_seq, *[row[SEQ] for row in rows]])
    contents: list[Row] = [
        (
            row[ID],
            row[PROPERTIES],
            source.name,
            row[RECEIVE_COUNT] + (row[RECEIVES_BEFORE] or 0),
            row[FIRST_RECEIVED_AT] if row[FIRST_RECEIVED_BEFORE] is None else row[FIRST_RECEIVED_BEFORE],
        )
        for row in rows
    ]
    if source.fifo:
        contents = [(own, dead_letter_properties(properties, own), *past) for own, properties, *past in contents]
    return move(session, source, target, rows, contents, keep_seqs=not source.fifo)


def move(
    session: Session, source: Queue, target: Queue, rows: list[Row], contents: list[Row], *, keep_seqs: bool = False
) -> list[int]:
    """Move messages with new ``contents`` (id, properties, history); return their seqs, new unless ``keep_seqs``."""
    now_ms = session.now_ms
    if keep_seqs:
        seqs = [row[SEQ] for row in rows]
        moves = [(source.partition, None, row[SEQ], target.partition, row[GROUP], row[SEQ], now_ms) for row in rows]
        session.run_many("standard_move", moves)
        renumbered = [
            (row[SEQ], row[GROUP], *content, now_ms, row[SEQ]) for row, content in zip(rows, contents, strict=True)
        ]
        session.run_many("renumber_message", renumbered)
    else:
        seqs = _renumber(session, source, target, rows, contents)
    for row, seq in zip(rows, seqs, strict=True):
        add_messages(target, row[LANE], seq)
        if row[GROUP] is not None and not target.fifo:
            session.run("admit_fair_group", target.partition, row[LANE], row[GROUP], now_ms, seq)
    source.messages -= len(rows)
    session.dirty |= {source, target}
    update_groups(session, source, [(row[SEQ], row[LANE], row[GROUP]) for row in rows])
    target.notify(now_ms)
    return seqs


def add_messages(queue: Queue, lane: int, first: int, messages: int = 1) -> None:
    """Add messages of a lane that arrive in a queue, the first one with the seq ``first``, to its totals."""
    queue.messages += messages
    if not queue.fifo and lane not in queue.lanes:
        queue.lanes = tuple(sorted((*queue.lanes, lane)))
        queue.has_groups = queue.has_groups or lane > fair.GROUPED
    queue.expires_at_ms = min(queue.expires_at_ms, (first >> SEQ_SHIFT) + queue.retention_ms)


def _renumber(session: Session, source: Queue, target: Queue, rows: list[Row], contents: list[Row]) -> list[int]:
    first, partition, groups = session.next_seq(), target.partition, {row[GROUP]: row[GROUP] for row in rows}
    now_ms = session.now_ms
    session.last_seq = first + len(rows) - 1
    moves = list(enumerate(rows, first))
    if source.fifo:
        firsts = {row[GROUP]: seq for seq, row in reversed(moves)}
        for group, seq in firsts.items():
            ((name_hash,),) = session.rows("group_hash", source.partition, group)
            groups[group] = session.group_numbers.get_or_add(partition, name_hash, seq)
    renumbered = [
        (seq, groups[row[GROUP]], *content, None, row[SEQ]) for (seq, row), content in zip(moves, contents, strict=True)
    ]
    session.run_many("renumber_message", renumbered)
    if source.fifo:
        ordered = [
            (source.partition, row[GROUP], row[SEQ], partition, groups[row[GROUP]], seq, now_ms) for seq, row in moves
        ]
        session.run_many("ordered_move", ordered)
        session.leave_runs(source.partition, [(row[SEQ],) for row in rows])
        session.run("insert_ordered_run", partition, session.last_seq, first, len(rows))
        fifo.admit_delayed(session, target, {groups[row[GROUP]]: seq for seq, row in moves})
    else:
        returned = [(source.partition, None, row[SEQ]) for row in rows if row[EPOCH] is not None]
        session.run_many("standard_delete", returned)
        waiting = sorted((row[LANE], row[SEQ]) for row in rows if row[EPOCH] is None)
        remove_runs(session, source.partition, to_runs(waiting))
        grouped = [(partition, seq, row[LANE], now_ms, row[GROUP]) for seq, row in moves if row[GROUP] is not None]
        session.run_many("standard_insert", grouped)
        runs = to_runs([(row[LANE], seq) for seq, row in moves if row[GROUP] is None])
        session.run_many("insert_ready", [(partition, lane, last, start) for lane, start, last in runs])
    return [seq for seq, _ in moves]
