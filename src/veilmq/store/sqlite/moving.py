"""How messages move from one queue to another of its type, in the transaction of the command that moves them.

A dead letter of a standard queue keeps its row and its seq, and so the time at which it was sent and its retention. Any
other message gets a seq of its own, behind all that its new queue has: a dead letter of a FIFO queue, and what is sent
on as a new message, with another id and without a past.

All are visible at once where they come to. ``rows`` are as receives are offered them; what is left of their groups in
the queue that they leave is the caller's to file anew.

A receive does not give a message that was received as often as its queue allows: it moves it to the dead-letter queue.
It moves no more than so many messages and bytes, so that it stays short. Where the dead-letter queue cannot take a
message (gone, its permission withdrawn, the disk nearly full), the message stays and is delivered once more.
"""

from typing import Any
from uuid import UUID

from msgspec.structs import replace

from veilmq.core import properties, redrive
from veilmq.core.limits import DEAD_LETTER_BYTES_PER_RECEIVE, DEAD_LETTERS_PER_RECEIVE
from veilmq.store.queues import SEQ_SHIFT, Queue
from veilmq.store.sqlite import ready
from veilmq.store.sqlite.groups import refile
from veilmq.store.sqlite.session import Row, Session
from veilmq.store.sqlite.totals import settle_time


class DeadLetterSink:
    """Where a receive of one queue sends its dead letters."""

    __slots__ = ("_bytes_left", "_left", "_now_ms", "_queue", "_receives_max", "_session", "target")

    def __init__(self, session: Session, queue: Queue, target: Queue, now_ms: int) -> None:
        """``target`` is the dead-letter queue of ``queue``, and takes its messages."""
        self._session = session
        self._queue = queue
        self.target = target
        self._now_ms = now_ms
        self._receives_max = queue.settings.receives_max
        self._left = DEAD_LETTERS_PER_RECEIVE
        self._bytes_left = DEAD_LETTER_BYTES_PER_RECEIVE

    @property
    def is_over(self) -> bool:
        """Whether no more may be sent there in this receive."""
        return self._left <= 0 or self._bytes_left <= 0

    def takes(self, row: Row) -> bool:
        """Tell whether the message of a row as it is offered is a dead letter; the caller has it moved."""
        if row[2] < self._receives_max:
            return False
        self._left -= 1
        self._bytes_left -= len(row[6]) + len(row[7])
        return True

    def move(self, rows: list[Row]) -> None:
        """Move the messages of ``rows`` to the target, visible at once."""
        session, queue, now_ms = self._session, self._queue, self._now_ms
        if queue.log is not None:
            session.events.dead_lettered(queue, [row[0] for row in rows], now_ms)
        bury(session, queue, self.target, rows, now_ms)

    def notify(self) -> None:
        """Wake the dead-letter queue's watch if anything came to it."""
        if self._left < DEAD_LETTERS_PER_RECEIVE:
            self.target.notify(self._now_ms)


def sink_of(session: Session, queue: Queue, now_ms: int) -> DeadLetterSink | None:
    """Return where the dead letters of ``queue`` go; ``None`` when they stay where they are."""
    settings = queue.settings
    target = session.find(settings.dead_letter_queue)
    if target is None or redrive.refusal(queue.name, settings, target.name, target.settings) is not None:
        return None
    if session.space.is_short and session.space.look_again(now_ms):
        return None
    return DeadLetterSink(session, queue, target, now_ms)


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
