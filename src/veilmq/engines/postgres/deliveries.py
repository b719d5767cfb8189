"""What a publication delivers: messages with their ids to queues, all of them or none.

They are stored in the transaction of whoever has them: in the queue, or, for one that is away, in the outbox.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from veilmq.core.commands import NewMessage
from veilmq.engines.postgres.catalog import Queue
from veilmq.engines.postgres.fifo_storing import FifoStoring, key_of
from veilmq.engines.postgres.on_queue import PartitionRetired
from veilmq.engines.postgres.positions import Positions
from veilmq.engines.postgres.standard_storing import StandardStoring
from veilmq.engines.postgres.totals import Totals
from veilmq.store.transaction import Delivery


class Deliveries:
    """Stores deliveries for one node."""

    def __init__(self, *, positions: Positions, totals: Totals) -> None:
        """Both are the node's."""
        self._standard = StandardStoring(positions=positions, totals=totals)
        self._fifo = FifoStoring(positions=positions, totals=totals)

    async def store(self, connection: Any, deliveries: Sequence[Delivery]) -> list[int]:
        """Return when each message is visible; raises ``PartitionRetired``, and what is among ``COLLISIONS``.

        Queues are taken in one order, so that two publications do not wait for each other.
        """
        due_ms = [0] * len(deliveries)
        for place in sorted(range(len(deliveries)), key=lambda place: deliveries[place].queue.partition):
            queue, message, message_id = deliveries[place]
            assert isinstance(queue, Queue), "it was looked up here"
            rows = await self._insert(connection, queue, message, message_id)
            if not rows:
                raise PartitionRetired
            due_ms[place] = rows[0]["visible_at"]
        return due_ms

    async def _insert(self, connection: Any, queue: Queue, message: NewMessage, message_id: bytes) -> list[Any]:
        if not queue.settings.fifo:
            return await self._standard.insert(connection, queue, [message], [message_id])
        # One that is away remembers it by itself.
        key = None if queue.away else key_of(message.group or "", str(UUID(bytes=message_id)), queue)
        return await self._fifo.insert(connection, queue, [message], [key], [message_id])
