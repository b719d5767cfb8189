"""Dead letters: what a receive does with a message that was received as often as its queue allows.

It is not given out: in the transaction of the receive its visibility row moves to the dead-letter queue. A message of a
standard queue keeps its row and its seq, and so the time at which it was sent and its retention; in a FIFO queue it
gets a seq of its own there, behind all others of its group.

A receive moves no more than so many messages and bytes, so that it stays short. Where the dead-letter queue cannot take
a message (gone, its permission withdrawn, the disk nearly full), the message stays and is delivered once more.
"""

from uuid import UUID

from msgspec.structs import replace

from veilmq.core import properties, redrive
from veilmq.core.limits import DEAD_LETTER_BYTES_PER_RECEIVE, DEAD_LETTERS_PER_RECEIVE
from veilmq.store.queues import SEQ_SHIFT, Queue
from veilmq.store.sqlite.groups import refile
from veilmq.store.sqlite.session import Row, Session
from veilmq.store.sqlite.statements import SQL


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
        session, source, target, now_ms = self._session, self._queue, self.target, self._now_ms
        session.settle_time(target, now_ms, _ignore)
        if source.log is not None:
            session.events.dead_lettered(source, [row[0] for row in rows], now_ms)
        carried = [(row, row[2] + (row[9] or 0), row[4] if row[10] is None else row[10]) for row in rows]
        if source.fifo:
            self._move_ordered(carried)
        else:
            session.executemany(
                SQL["standard_move"], [(target.partition, now_ms, source.partition, row[0]) for row in rows]
            )
            session.executemany(
                SQL["carry_message"],
                [(source.name, count, first_ms, now_ms, row[0]) for row, count, first_ms in carried],
            )
            self._move_groups(rows)
            for row in rows:
                if row[1] not in target.lanes:
                    target.lanes = tuple(sorted((*target.lanes, row[1])))
                target.expires_at_ms = min(target.expires_at_ms, (row[0] >> SEQ_SHIFT) + target.retention_ms)
        source.messages -= len(rows)
        target.messages += len(rows)
        session.touch(source)
        session.touch(target)

    def _move_groups(self, rows: list[Row]) -> None:
        """Have the dead-letter queue know the groups of messages that have any."""
        grouped = [row for row in rows if row[11] is not None]
        if grouped:
            self._session.many(
                "admit_fair_group", [(self.target.partition, row[1], row[11], self._now_ms, row[0]) for row in grouped]
            )
            self.target.shares = True

    def _move_ordered(self, carried: list[tuple[Row, int, int]]) -> None:
        session, source, target, now_ms = self._session, self._queue, self.target, self._now_ms
        seq = first = session.next_seq(now_ms)
        groups: set[int] = set()
        # Two messages that shared a deduplication id are told apart by their own ids (SQS, "Using dead-letter queues").
        for row, count, first_ms in carried:
            kept = replace(properties.decode(row[7]), dedup_id=str(UUID(bytes=row[5])))
            ((name_hash,),) = session.rows("group_hash", source.partition, row[11])
            group = session.group_numbers.of_hash(target.partition, name_hash, seq)
            groups.add(group)
            session.run("ordered_move", target.partition, group, seq, now_ms, source.partition, row[11], row[0])
            session.run(
                "carry_ordered_message", seq, group, properties.encode(kept), source.name, count, first_ms, row[0]
            )
            session.last_seq = seq
            seq += 1
        session.left(source.partition, [(row[0],) for row, _, _ in carried])
        session.run("insert_ordered_run", target.partition, session.last_seq, first, len(carried))
        session.many("new_group_cursor", [(target.partition, group) for group in groups])
        refile(session, target, groups)
        target.expires_at_ms = min(target.expires_at_ms, now_ms + target.retention_ms)

    def notify(self) -> None:
        """Wake the dead-letter queue's watch if anything came to it."""
        if self._left < DEAD_LETTERS_PER_RECEIVE:
            self.target.notify(self._now_ms)


def _ignore(session: Session, queue: Queue, rows: list[Row], now_ms: int) -> None:
    """Wake nobody: the message that arrives does."""


def sink_of(session: Session, queue: Queue, now_ms: int) -> DeadLetterSink | None:
    """Return where the dead letters of ``queue`` go; ``None`` when they stay where they are."""
    settings = queue.settings
    target = session.find(settings.dead_letter_queue)
    if target is None or redrive.refusal(queue.name, settings, target.name, target.settings) is not None:
        return None
    if session.space.is_short and session.space.look_again(now_ms):
        return None
    return DeadLetterSink(session, queue, target, now_ms)
