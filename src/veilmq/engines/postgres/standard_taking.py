"""What receives take from standard queues: what became visible first, of the first priority that has any."""

from operator import itemgetter
from random import getrandbits
from typing import Any

from veilmq.core.errors import InternalError
from veilmq.engines.postgres.catalog import Catalog, Queue
from veilmq.engines.postgres.low_water import LowWater
from veilmq.engines.postgres.on_queue import COLLISIONS, COLLISIONS_MAX, GENERATION_BITS, STANDARD, retention_ms
from veilmq.engines.postgres.positions import Positions
from veilmq.engines.postgres.redrive import redrive_of
from veilmq.engines.postgres.terms import Terms
from veilmq.engines.postgres.watches import Watches


class StandardTaking:
    """Leases messages; those that are dead leave in the same transaction."""

    def __init__(self, *, catalog: Catalog, watches: Watches, low_water: LowWater, positions: Positions) -> None:
        """``watches`` hears of dead letters, which get some of the ``positions``; ``low_water`` knows where to look."""
        self._positions = positions
        self._low_water = low_water
        self._catalog = catalog
        self._watches = watches

    async def take(self, connection: Any, queue: Queue, count: int, terms: Terms) -> list[Any]:
        """Return the rows of up to ``count`` messages, leased."""
        if not queue.settings.receives_max:
            return await self._claim(connection, queue, count, terms, [])
        for _ in range(COLLISIONS_MAX):
            try:
                async with connection.transaction():
                    return await self._take_living(connection, queue, count, terms)
            except COLLISIONS:  # a dead letter would have had the position that another node has just given
                continue
        raise InternalError

    async def _take_living(self, connection: Any, queue: Queue, count: int, terms: Terms) -> list[Any]:
        redrive = await redrive_of(connection, self._catalog, queue, self._watches, self._positions)
        if redrive is None:
            return await self._claim(connection, queue, count, terms, [])
        taken: list[Any] = []
        while (left := count - len(taken)) > 0 and not redrive.is_over:
            rows = await self._claim(connection, queue, left, terms, taken)
            taken += await redrive.living(connection, rows)
            if len(rows) < left:
                break
        return taken

    async def _claim(self, connection: Any, queue: Queue, count: int, terms: Terms, taken: list[Any]) -> list[Any]:
        """Lease up to ``count`` messages that are not ``taken`` already."""
        low_ms = self._low_water.of(queue.partition)
        rows = await self._lease(connection, queue, count, terms, taken, low_ms)
        if not rows and self._low_water.drop(queue.partition):
            low_ms = self._low_water.of(queue.partition)
            rows = await self._lease(connection, queue, count, terms, taken, low_ms)
        self._low_water.found(queue.partition, rows)
        return sorted(rows, key=itemgetter("priority", "was_visible_at", "seq"))

    async def _lease(
        self, connection: Any, queue: Queue, count: int, terms: Terms, taken: list[Any], low_ms: list[int]
    ) -> list[Any]:
        rows: list[Any] = await connection.fetch(
            STANDARD["receive"],
            queue.partition,
            count,
            terms.timeout_ms,
            getrandbits(GENERATION_BITS),
            low_ms,
            retention_ms(queue),
            *terms.requested,
            [row["seq"] for row in taken] or None,
        )
        return rows
