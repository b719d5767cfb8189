"""Evictions: one message of an open claim goes to the dead-letter queue, by an operator's decision."""

from typing import Any

from veilmq.core import redrive
from veilmq.core.errors import DeadLetterQueueRefused, MessageNotClaimed
from veilmq.engines.postgres.catalog import Catalog, Queue
from veilmq.engines.postgres.claim_binding import send_dead
from veilmq.engines.postgres.claim_rows import SQL, BoundClaim
from veilmq.engines.postgres.on_queue import PartitionRetired, retention_ms
from veilmq.engines.postgres.positions import Positions


class Evictions:
    """Takes messages out of claims, in the transaction of a command that holds the source's lock."""

    def __init__(self, *, catalog: Catalog, positions: Positions) -> None:
        """A message gets one of the ``positions`` where it goes."""
        self._catalog = catalog
        self._positions = positions

    async def evict(self, connection: Any, queue: Queue, claim: BoundClaim, message: bytes) -> Queue:
        """Move a message of an open claim; return the queue that it came to.

        Raises ``MessageNotClaimed``, ``DeadLetterQueueRefused``, and what has the transaction repeated.
        """
        find = SQL["find_fifo" if queue.settings.fifo else "find"]
        position = await connection.fetchval(find, claim.partition, claim.id, message)
        if position is None:
            raise MessageNotClaimed(claim.number)
        target = await self._target(connection, queue)
        if queue.settings.fifo:
            await self._evict_fifo(connection, queue, target, position)
        elif not await send_dead(connection, queue, target, [position], self._positions):
            raise PartitionRetired
        await connection.execute(SQL["grow_claim"], claim.id, -1, claim.shards, claim.filled)
        return target

    async def _evict_fifo(self, connection: Any, queue: Queue, target: Queue, position: int) -> None:
        if await connection.fetchrow(SQL["lock_part"], target.partition) is None:
            raise PartitionRetired
        counter = self._positions.take(1)
        terms = (queue.partition, target.partition, position, queue.name, counter, retention_ms(queue))
        await connection.execute(SQL["evict_fifo"], *terms)

    async def _target(self, connection: Any, queue: Queue) -> Queue:
        name = queue.settings.dead_letter_queue
        if not name:
            raise DeadLetterQueueRefused("", f"The queue {queue.name} has no dead-letter queue; give it one first.")
        target = await self._catalog.target(connection, name, (queue.number, queue.name))
        why = redrive.refusal(queue.name, queue.settings, name, None if target is None else target.settings)
        if target is None or why is not None:
            raise DeadLetterQueueRefused(name, why or "")
        return target
