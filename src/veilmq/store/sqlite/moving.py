"""How messages move from one queue to another of its type, in the transaction of the command that moves them.

A dead letter of a standard queue keeps its row and its seq, and so the time at which it was sent and its retention. Any
other message gets a seq of its own, behind all that its new queue has: a dead letter of a FIFO queue, and what is sent
on as a new message, with another id and without a past.

All are visible at once where they come to. ``rows`` are as receives are offered them; what is left of their groups in
the queue that they leave is the caller's to file anew.
"""

from typing import Any
from uuid import UUID

from msgspec.structs import replace

from veilmq.core import properties
from veilmq.store.queues import SEQ_SHIFT, Queue
from veilmq.store.sqlite import ready
from veilmq.store.sqlite.groups import refile
from veilmq.store.sqlite.session import Row, Session


def bury(session: Session, source: Queue, target: Queue, rows: list[Row], now_ms: int) -> list[int]:
    """Move dead letters, whose receipts have ended; return their seqs there.

    They keep their ids, and count receives and the time since the first one on.
    """
    session.settle_time(target, now_ms, _swept)
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
    _settle(session, source, target, rows, seqs, now_ms)
    return seqs


def send_on(session: Session, source: Queue, target: Queue, rows: list[Row], now_ms: int) -> None:
    """Move messages as new ones to a queue that is settled at the present instant."""
    if source.log is not None:
        received = [row[0] for row in rows if row[2]]
        session.events.end(source.log, source.partition, received, now_ms, fifo=source.fifo)
    what = [(session.ids.next(), row[7], None, None, None) for row in rows]
    move = _move_ordered if source.fifo else _move_standard
    _settle(session, source, target, rows, move(session, source, target, rows, what, now_ms), now_ms)


def _settle(session: Session, source: Queue, target: Queue, rows: list[Row], seqs: list[int], now_ms: int) -> None:
    """Have the queues know what has gone and come, with these seqs."""
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
    ready.take(session, source, [(row[1], row[0]) for row in rows if row[3] is None])
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
    refile(session, target, last)
    return seqs


def _new_seqs(session: Session, count: int, now_ms: int) -> list[int]:
    first = session.next_seq(now_ms)
    session.last_seq = first + count - 1
    return list(range(first, first + count))


def _swept(session: Session, queue: Queue, rows: list[Row], now_ms: int) -> None:
    """Wake nobody: the message that arrives does."""
    if queue.fifo:
        refile(session, queue, {row[3] for row in rows})
        return
    grouped = [(queue.partition, row[4], row[3]) for row in rows if row[3] is not None]
    session.many("delete_fair_group", grouped)
    session.many("file_fair_group", grouped)
