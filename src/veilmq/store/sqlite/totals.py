"""What is in a queue by state, and what hears of messages that passed their retention."""

from veilmq.core.results import QueueCounts
from veilmq.store.queues import SEQ_SHIFT, Queue
from veilmq.store.sqlite import fair, groups
from veilmq.store.sqlite.session import Row, Session


def counts(session: Session, queue: Queue, now_ms: int) -> QueueCounts:
    """Count the messages of a queue by state."""
    session.settle_time(queue, now_ms, swept)
    oldest = session.oldest(queue)
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


def swept(session: Session, queue: Queue, rows: list[Row], now_ms: int) -> None:
    """Tell waiters of what the end of retention made free: places, or groups."""
    if queue.fifo:
        groups.refile(session, queue, {row[3] for row in rows})
    elif queue.shares:
        fair.ended(session, queue, [(row[0], row[4], row[3]) for row in rows], now_ms)
    queue.free_place(now_ms)
    if queue.fifo:
        groups.notify(session, queue, now_ms, 1)
