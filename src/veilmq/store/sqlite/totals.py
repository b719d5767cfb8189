"""What is in a queue at an instant: its totals, and the end of what has passed its retention.

Totals are exact and cost nothing that grows with the queue: commands keep them up, and what the passing of time alone
makes visible is counted out here, which asks the index for it only once something hidden can have become visible.
"""

from collections.abc import Iterable

from veilmq.core.results import QueueCounts
from veilmq.store.events import Logged
from veilmq.store.queues import NEVER_MS, SEQ_SHIFT, Queue
from veilmq.store.sqlite import fair, groups
from veilmq.store.sqlite.session import Row, Session

_SWEPT_AT_ONCE = 1_000


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
    if queue.fifo:
        groups.refile(session, queue, {row[3] for row in rows})
    elif queue.shares:
        fair.ended(session, queue, [(row[0], row[4], row[3]) for row in rows], now_ms)
    queue.free_place(now_ms)
    if queue.fifo:
        groups.notify(session, queue, now_ms, 1)


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
    rows = [session.row("standard_next_hidden", queue.partition, lane, after_ms) for lane in queue.lanes]
    return min([row[0] for row in rows if row is not None], default=NEVER_MS)


# The end of retention.


def _sweep(session: Session, queue: Queue, now_ms: int, rows_max: int) -> list[Row]:
    """Delete up to ``rows_max`` messages past their retention; return them as ``delete_below`` does."""
    kind = "ordered" if queue.fifo else "standard"
    rows = delete_below(session, kind, queue.partition, queue.lanes, queue.floor(now_ms), rows_max, queue.log, now_ms)
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
    kind: str,
    partition: int,
    lanes: Iterable[int],
    floor: int,
    rows_max: int,
    log: Logged | None,
    now_ms: int,
) -> list[Row]:
    """Delete up to ``rows_max`` messages of a partition below a seq.

    Returns seq, visible_at, receive_count, group, and in a standard queue the lane of each.
    """
    session.settle_ended()
    is_ordered = kind == "ordered"
    rows = session.rows(f"{kind}_below", partition, floor - 1 if is_ordered else floor, rows_max)
    if log is not None:
        session.events.end(log, partition, [row[0] for row in rows if row[2]], now_ms, fifo=is_ordered)
    if is_ordered:
        session.many("ordered_delete", [(partition, row[3], row[0]) for row in rows])
    else:
        session.many("standard_delete", [(partition, row[0]) for row in rows])
    for lane in lanes:
        waiting = session.rows("ready_below", partition, lane, floor - 1, rows_max - len(rows))
        if waiting:
            session.run("cut_ready", partition, lane, 0, waiting[-1][0])
            session.run("cut_first_ready", partition, lane, waiting[-1][0])
            rows += waiting
    session.ended(partition, [(row[0],) for row in rows], ordered=is_ordered)
    return rows
