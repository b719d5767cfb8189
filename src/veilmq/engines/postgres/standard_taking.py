"""What receives take from standard queues: what became visible first, of the first priority that has any."""

from collections.abc import Sequence
from operator import itemgetter
from random import getrandbits
from typing import Any, NamedTuple

from veilmq.core.errors import InternalError
from veilmq.engines.postgres.catalog import Catalog, Queue
from veilmq.engines.postgres.event_log import EventLog, logged, places_of
from veilmq.engines.postgres.fair_queues import FAIR, LANE, FairQueues
from veilmq.engines.postgres.low_water import BEGINNING, LowWater
from veilmq.engines.postgres.on_queue import COLLISIONS, COLLISIONS_MAX, GENERATION_BITS, retention_ms
from veilmq.engines.postgres.positions import Positions
from veilmq.engines.postgres.redrive import redrive_of
from veilmq.engines.postgres.terms import Terms
from veilmq.engines.postgres.watches import Watches

_FAIR_LOGGED = logged(FAIR)


class _Asked(NamedTuple):
    """What is asked of a claim; ``receives_max`` makes a message dead, and ``taken`` are positions that it leaves.

    Of a queue with groups, ``noisy`` are those that have to wait.
    """

    terms: Terms
    shares: Sequence[int]
    receives_max: int | None = None
    taken: tuple[int, ...] = ()
    noisy: list[int] | None = None


class StandardTaking:
    """Leases messages; those that are dead leave in the same transaction."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        watches: Watches,
        low_water: LowWater,
        positions: Positions,
        log: EventLog,
        fair: FairQueues,
    ) -> None:
        """``watches`` hears of dead letters, which get some of the ``positions``; ``low_water`` knows where to look.

        ``log`` hears of receipts that have ended; ``fair`` knows which groups have to wait.
        """
        self._fair = fair
        self._log = log
        self._positions = positions
        self._low_water = low_water
        self._catalog = catalog
        self._watches = watches

    async def take(self, connection: Any, queue: Queue, count: int, terms: Terms, shares: Sequence[int]) -> list[Any]:
        """Return the rows of up to ``count`` messages, leased, of which each receive gets its share, in order."""
        if not queue.settings.receives_max:
            return await self._claim(connection, queue, count, _Asked(terms, shares))
        for _ in range(COLLISIONS_MAX):
            try:
                async with connection.transaction():
                    return await self._take_living(connection, queue, count, terms, shares)
            except COLLISIONS:  # a dead letter would have had the position that another node has just given
                continue
        raise InternalError

    async def _take_living(
        self, connection: Any, queue: Queue, count: int, terms: Terms, shares: Sequence[int]
    ) -> list[Any]:
        redrive = await redrive_of(connection, self._catalog, queue, self._watches, self._positions)
        if redrive is None:
            return await self._claim(connection, queue, count, _Asked(terms, shares))
        taken: list[Any] = []
        claims = 0
        while (left := count - len(taken)) > 0 and not redrive.is_over:
            asked = _Asked(terms, shares, queue.settings.receives_max, tuple(row["seq"] for row in taken))
            rows = await self._claim(connection, queue, left, asked)
            living = await redrive.living(connection, rows)
            self._log.check_moved(queue, living)
            taken += living
            claims += bool(living)
            if len(rows) < left:
                break
        if claims > 1:
            await self._log.place(connection, queue, taken, shares)
        return taken

    async def _claim(self, connection: Any, queue: Queue, count: int, asked: _Asked) -> list[Any]:
        """Lease up to ``count`` messages."""
        if self._fair.has(queue):
            return await self._claim_fairly(connection, queue, count, asked)
        behind = self._low_water.of(queue.partition)
        rows = await self._lease(connection, queue, count, asked, behind)
        if not rows and (beginning := self._low_water.instead(queue.partition)) is not None:
            rows = await self._lease(connection, queue, count, asked, beginning)
        if any(row["priority"] > LANE for row in rows):
            self._fair.meet(queue)
        self._low_water.found(queue.partition, [row for row in rows if row["priority"] < LANE])
        return sorted(rows, key=itemgetter("priority", "was_visible_at", "seq"))

    async def _claim_fairly(self, connection: Any, queue: Queue, count: int, asked: _Asked) -> list[Any]:
        """Do so in a queue with groups: quiet ones first."""
        noisy = await self._fair.noisy(connection, queue)
        rows = await self._lease(connection, queue, count, asked._replace(noisy=noisy), BEGINNING)
        self._fair.drained(queue, rows)
        return sorted(rows, key=itemgetter("place"))

    async def _lease(self, connection: Any, queue: Queue, count: int, asked: _Asked, behind: list[int]) -> list[Any]:
        statements = self._log.sql(queue)
        if asked.noisy is not None:
            statements = _FAIR_LOGGED if self._log.has(queue) else FAIR
        of_log: tuple[Any, ...] = ()
        if self._log.has(queue):
            of_log = (asked.receives_max, *places_of(asked.shares), *self._log.terms(queue))
        rows: list[Any] = await connection.fetch(
            statements["receive"],
            queue.partition,
            count,
            asked.terms.timeout_ms,
            getrandbits(GENERATION_BITS),
            behind,
            retention_ms(queue),
            *asked.terms.requested,
            asked.taken or None,
            *([] if asked.noisy is None else [asked.noisy]),
            *of_log,
        )
        return rows
