"""How queues are made and removed: their rows, in the transaction of whoever does it."""

from typing import Any

import msgspec

from veilmq.core.settings import QueueSettings
from veilmq.engines.postgres import claim_rows
from veilmq.engines.postgres.catalog import SQL, Queue, queue_of
from veilmq.engines.postgres.transits import OUTBOX
from veilmq.store.named_queries import shared

SHARED = shared()


async def insert(connection: Any, name: str, settings: QueueSettings) -> Queue | None:
    """Add a queue; ``None`` when another node has just done so."""
    made = await connection.fetchrow(SQL["insert_queue"], name, msgspec.json.encode(settings))
    return None if made is None else queue_of(await connection.fetchrow(SQL["place_queue"], *made))


async def remove(connection: Any, queue: Queue) -> None:
    """Remove a queue that the transaction has locked, and its messages, at a cost that does not depend on them."""
    await claim_rows.lock_all(connection, queue)
    await connection.execute(SQL["retire_part"], queue.partition)
    await claim_rows.forget_all(connection, queue)
    await connection.execute(SQL["delete_queue"], queue.number)
    await connection.execute(OUTBOX["forget_arrivals"], queue.origin)
    await connection.execute(SHARED["delete_moves"], queue.number)
