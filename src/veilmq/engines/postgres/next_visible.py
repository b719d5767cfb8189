"""When a queue has its next message, as the database sees it."""

from typing import Any

from veilmq.engines.postgres.catalog import Queue
from veilmq.engines.postgres.low_water import BEGINNING
from veilmq.engines.postgres.on_queue import PartitionRetired, retention_ms, sql
from veilmq.engines.postgres.watches import Watches


async def next_visible_ms(
    connection: Any, queue: Queue, behind: list[int] = BEGINNING, again_ms: int | None = None
) -> int | None:
    """Return the instant from which there is a message, the present if there is one; ``None``: none comes by itself.

    Of a standard queue what is ``behind`` the marks is looked at; the instant is ``again_ms`` from now at the latest.
    """
    marks = () if queue.settings.fifo else (behind,)
    row = await connection.fetchrow(sql(queue)["next_visible"], queue.partition, retention_ms(queue), *marks)
    if row is None:
        raise PartitionRetired
    instants = [] if row["visible_at"] is None else [max(row["now"], row["visible_at"])]
    if again_ms is not None:
        instants.append(row["now"] + again_ms)
    return min(instants, default=None)


async def next_group_ms(connection: Any, queue: Queue, watches: Watches) -> int | None:
    """Return when the next group of a FIFO queue is free, which only the database knows; ``None``: no waiter asks.

    What it is asked for is committed, and must not seem to have failed: a queue that was purged since has none.
    """
    if not watches.has(queue.name):
        return None
    try:
        return await next_visible_ms(connection, queue)
    except PartitionRetired:
        return None


async def rouse_groups(connection: Any, queue: Queue, watches: Watches) -> None:
    """Wake the waiters of a FIFO queue when the next of its groups is free."""
    due_ms = await next_group_ms(connection, queue, watches)
    if due_ms is not None:
        watches.wake(queue.name, due_ms)
