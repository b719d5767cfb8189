"""What receives take from FIFO queues: of groups with nothing in flight, each as many as it has."""

from collections.abc import Sequence
from operator import itemgetter
from random import getrandbits
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from veilmq.core import properties
from veilmq.core.errors import InternalError
from veilmq.engines.postgres.catalog import Catalog, Queue
from veilmq.engines.postgres.event_log import EventLog
from veilmq.engines.postgres.on_queue import (
    COLLISIONS,
    COLLISIONS_MAX,
    FIFO,
    GENERATION_BITS,
    retention_ms,
)
from veilmq.engines.postgres.positions import Positions
from veilmq.engines.postgres.redrive import target_of
from veilmq.engines.postgres.terms import Terms
from veilmq.engines.postgres.watches import Watches

_LETTERS_MAX = 1_000  # numbers for the dead letters of one receive


class FifoTaking:
    """Leases messages; those that are dead leave in the same statement."""

    def __init__(self, *, catalog: Catalog, watches: Watches, positions: Positions, log: EventLog) -> None:
        """``watches`` hears of dead letters, which get some of the node's ``positions``; ``log`` of ended receipts."""
        self._log = log
        self._positions = positions
        self._catalog = catalog
        self._watches = watches

    async def take(self, connection: Any, queue: Queue, count: int, terms: Terms, shares: Sequence[int]) -> list[Any]:
        """Return the rows of up to ``count`` messages, leased: groups as they came up, each in order.

        There is one share: no two receives go together.
        """
        target = await target_of(connection, self._catalog, queue)
        rows = await self._claim(connection, queue, count, terms, target)
        if target is not None and any(row["seq"] is None for row in rows):
            self._watches.wake(target.name, rows[0]["now"])
        return sorted((row for row in rows if row["seq"] is not None), key=itemgetter("turn", "seq"))

    async def _claim(self, connection: Any, queue: Queue, count: int, terms: Terms, target: Queue | None) -> list[Any]:
        """Lease; begin again where a dead letter would have had the position that another node has just given."""
        for _ in range(COLLISIONS_MAX):
            try:
                async with connection.transaction():
                    rows: list[Any] = await connection.fetch(
                        FIFO["receive"],
                        queue.partition,
                        count,
                        terms.timeout_ms,
                        getrandbits(GENERATION_BITS),
                        0,
                        retention_ms(queue),
                        *terms.requested,
                        queue.settings.receives_max,
                        None if target is None else target.partition,
                        queue.name,
                        0 if target is None else self._positions.take(_LETTERS_MAX),
                        *self._log.terms(queue),
                    )
                return rows
            except COLLISIONS:
                continue
        raise InternalError


def properties_of(queue: Queue, row: Any) -> bytes:
    """Return the properties of a message as its receiver sees them."""
    return told_apart(row) if queue.settings.fifo and row["source"] else row["properties"] or b""


def told_apart(row: Any) -> bytes:
    """Return the properties of a dead letter with its id in place of the deduplication id that its sender gave.

    SQS Developer Guide, "Using dead-letter queues": two messages that shared a deduplication id are told apart.
    """
    sent = properties.decode(row["properties"] or b"")
    return properties.encode(replace(sent, dedup_id=str(UUID(bytes=row["id"]))))
