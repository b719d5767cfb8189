"""How messages go on to another queue as new ones, in the transaction that has them locked."""

from typing import Any

from veilmq.engines.postgres.catalog import Queue
from veilmq.engines.postgres.fifo_taking import properties_of
from veilmq.engines.postgres.on_queue import FIFO, STANDARD, retention_ms
from veilmq.engines.postgres.positions import Positions


async def move_on(
    connection: Any, source: Queue, target: Queue, rows: list[Any], ids: list[bytes], positions: Positions
) -> int:
    """Move the messages of ``rows``, which then have ``ids``; return how many: all, or none if ``target`` is retired.

    Both queues are of one type. Raises what is among ``on_queue.COLLISIONS`` when the transaction is to be repeated.
    """
    seqs = [row["seq"] for row in rows]
    terms = (source.partition, target.partition, seqs, ids)
    counter = positions.take(len(rows) + 1)
    if source.settings.fifo:
        properties = [properties_of(source, row) or None for row in rows]
        return len(await connection.fetch(FIFO["move_on"], *terms, properties, counter, retention_ms(source)))
    moved = await connection.fetch(STANDARD["move_on"], *terms, counter)
    if moved:
        priorities = sorted({row["priority"] for row in moved})
        await connection.execute(STANDARD["add_priorities"], target.partition, priorities)
    return len(moved)
