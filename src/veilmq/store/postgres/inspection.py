"""Inspection of queues on PostgreSQL: messages as they are, without their bodies."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from veilmq.core.looks import MessageState
from veilmq.store.postgres.catalog import Queue
from veilmq.store.postgres.coalescing import retention_ms, sql
from veilmq.store.postgres.fair import FAIR, LANE, FairQueues
from veilmq.store.postgres.taking import properties_of
from veilmq.store.queues import FIFO_PRIORITY
from veilmq.store.transaction import QueueRow, StoredMessage

_LOOKS = {
    None: "look",
    MessageState.VISIBLE: "look_visible",
    MessageState.IN_FLIGHT: "look_in_flight",
    MessageState.DELAYED: "look_delayed",
}


async def find(
    connection: Any, queue: QueueRow, state: MessageState | None, count: int, passed_max: int
) -> list[StoredMessage]:
    """Return messages as ``Transaction.inspect`` has them."""
    assert isinstance(queue, Queue)
    first = () if state is None else (passed_max + count,)
    return await _fetch(connection, queue, sql(queue)[_LOOKS[state]], count, retention_ms(queue), *first)


async def received_at(connection: Any, queue: QueueRow, seqs: Sequence[int]) -> list[StoredMessage]:
    """Return those of the messages that are there and were received."""
    assert isinstance(queue, Queue)
    return await _fetch(connection, queue, sql(queue)["received_at"], seqs, retention_ms(queue))


async def offered(connection: Any, queue: QueueRow, count: int, fair: FairQueues) -> list[StoredMessage]:
    """Return what a receive of ``count`` would take, in its order."""
    assert isinstance(queue, Queue)
    if queue.settings.fifo or not fair.has(queue):
        return await _fetch(connection, queue, sql(queue)["peek"], count, retention_ms(queue))
    noisy = await fair.noisy(connection, queue, judge=False)
    return await _fetch(connection, queue, FAIR["peek"], count, retention_ms(queue), noisy)


async def _fetch(connection: Any, queue: Queue, statement: str, *terms: Any) -> list[StoredMessage]:
    """Return the messages that a statement finds."""
    rows = await connection.fetch(_stored(statement, fifo=queue.settings.fifo), queue.partition, *terms)
    found = [StoredMessage(*row) for row in rows]
    return [each._replace(properties=properties_of(queue, each._asdict())) if each.source else each for each in found]


@cache
def _stored(statement: str, *, fifo: bool) -> str:
    """Return the statement with the columns of ``StoredMessage`` alone. (No body is read to know how long it is.)"""
    priority, due = f"priority % {LANE}", "visible_at"
    if fifo:
        delay = "(SELECT delay FROM mq.part WHERE qp = $1)"
        priority, due = f"{FIFO_PRIORITY}", f"mq.due(visible_at, sent_at, receive_count, {delay})"
    return f"""
        SELECT seq, id, coalesce(properties, ''), octet_length(body), {priority}, source, sent_at, {due}, receive_count,
            receives_before, generation, epoch, received_at, first_received_at, coalesce(log, 0), claim IS NOT NULL,
            mq.now_ms()
        FROM ({statement}
        ) AS found
    """
