"""How commands on messages find their queue: by what the node knows, and once more where that was old."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from asyncpg import DeadlockDetectedError, SerializationError, UniqueViolationError

from veilmq.core.errors import QueueNotFound
from veilmq.core.limits import SECOND_MS
from veilmq.engines.named_sql import load
from veilmq.engines.postgres.catalog import Catalog, Queue
from veilmq.engines.postgres.database import Database

STANDARD = load("veilmq.engines.postgres", "messages.sql")
FIFO = load("veilmq.engines.postgres", "fifo.sql")

GENERATION_BITS = 32
COLLISIONS = (DeadlockDetectedError, SerializationError, UniqueViolationError)
"""What nodes do to each other now and then; nothing was done, and trying again helps."""
COLLISIONS_MAX = 5

Work = Callable[[Any, Queue, Sequence[Any]], Awaitable[list[Any]]]
"""Carries commands out together on one connection; may raise ``PartitionRetired``."""


def sql(queue: Queue) -> dict[str, str]:
    """Return the statements on messages of a queue of that type."""
    return FIFO if queue.settings.fifo else STANDARD


def retention_ms(queue: Queue) -> int:
    """Return how long a message is kept from its sending."""
    return queue.settings.retention_s * SECOND_MS + queue.kept_longer_ms


class PartitionRetired(Exception):
    """What the node knows of the queue is old: it was purged or deleted, and nothing was done."""


async def hold(connection: Any, queue: Queue) -> None:
    """Hold off a purge until the end of the transaction; raises ``PartitionRetired``."""
    if await connection.fetchrow(STANDARD["hold"], queue.partition) is None:
        raise PartitionRetired


class OnQueue:
    """Has work done on a queue of the store."""

    def __init__(self, *, database: Database, catalog: Catalog) -> None:
        """``catalog`` is the node's."""
        self._database = database
        self._catalog = catalog

    async def __call__(self, work: Work, together: Sequence[Any], *, relaxed: bool = False) -> list[Any]:
        """Return the answers of ``work`` to ``together``, commands on one queue; raises ``QueueNotFound``.

        ``relaxed`` work may be undone by a crash of the database, where the node runs so and the queue is a standard
        one.
        """
        for _ in range(2):
            try:
                if relaxed and self._database.relaxes:
                    return await self._relaxed(work, together)
                async with self._database.connection() as connection:
                    queue = await self._catalog.queue(connection, together[0].queue)
                    return await work(connection, queue, together)
            except PartitionRetired:
                self._catalog.forget(together[0].queue)
        raise QueueNotFound(together[0].queue)

    async def _relaxed(self, work: Work, together: Sequence[Any]) -> list[Any]:
        """Do so on the connection that the type of the queue asks for, which is looked at first."""
        queue = self._catalog.known(together[0].queue)
        if queue is None:
            async with self._database.connection() as connection:
                queue = await self._catalog.sure(connection, together[0].queue)
        turn = self._database.connection() if queue.settings.fifo else self._database.relaxed()
        async with turn as connection:
            return await work(connection, queue, together)
