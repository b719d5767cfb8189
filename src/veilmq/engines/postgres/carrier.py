"""The carrier of one database: when this node takes on what is in the outbox there.

Every node carries what it has put there, at once; and looks now and then for what others have left. It keeps nothing,
and two that come to one batch do it no harm. A database that cannot be reached keeps what is for it waiting, and that
alone.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol

import asyncpg

from veilmq.core.errors import StoreUnavailable, VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Clock, Timer
from veilmq.engines.postgres.carriage import Arrived, Batch, Fate, Transit, due, forget_ended, give_back, take
from veilmq.engines.postgres.catalog import Queue
from veilmq.engines.postgres.database import Database
from veilmq.engines.postgres.failures import IN_DOUBT
from veilmq.engines.postgres.on_queue import COLLISIONS, COLLISIONS_MAX
from veilmq.engines.postgres.positions import Positions
from veilmq.engines.postgres.transits import OUTBOX

log = logging.getLogger(__name__)

LOOK_MS = 10 * SECOND_MS
"""How often a node looks that has put nothing there."""
PAUSE_MS = 2 * SECOND_MS
"""When it tries again what could not be done."""

_FAILED = (*IN_DOUBT, asyncpg.PostgresError, VeilmqError)


class Destinations(Protocol):
    """The other databases."""

    async def arrive(self, transit: Transit, from_place: int, batch: Batch) -> Arrived:
        """Have a batch stored at its target, and wake who waits there; raises ``StoreUnavailable``."""

    async def wake(self, place: int, queue: Queue, due_ms: int = 0) -> None:
        """Wake who waits for ``queue`` at ``place``, which has something at ``due_ms``."""


class Carrier:
    """Carries what is in the outbox of the database at ``place``."""

    def __init__(
        self,
        *,
        place: int,
        database: Database,
        positions: Positions,
        destinations: Destinations,
        clock: Clock,
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """``positions`` are the node's for that database; ``start`` makes a task of the store."""
        self._place = place
        self._database = database
        self._destinations = destinations
        self._clock = clock
        self._start = start
        self._positions = positions
        self._timer: Timer | None = None
        self._is_out = False
        self._again = False
        self._is_tidy = False
        self._stopped = False
        self.carried = 0
        """How many messages have arrived."""
        self.failures = 0
        """How often one way or the other was not free."""

    def look(self) -> None:
        """Carry what is there now; what comes while the carrier is out goes in its next round."""
        if self._stopped:
            return
        if self._is_out:
            self._again = True
            return
        self._is_out = True
        self._start(self._work())

    def look_later(self, after_ms: int = LOOK_MS) -> None:
        """Do so in a while."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._stopped:
            self._timer = self._clock.call_at(self._clock.now_ms() + after_ms, self._look_by_itself)

    def _look_by_itself(self) -> None:
        self._is_tidy = False
        self.look()

    def stop(self) -> None:
        """Carry no more than what is under way."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    async def _work(self) -> None:
        self._again = True
        after_ms = LOOK_MS
        try:
            while self._again and not self._stopped:
                self._again = False
                if not await self._round():
                    after_ms = PAUSE_MS
            await self._tidy()
        except _FAILED as error:
            self.failures += 1
            log.warning("the outbox of database %s rests for a while: %s", self._place + 1, error)
            after_ms = PAUSE_MS
        self._is_out = False
        self.look_later(after_ms)
        if self._again and after_ms == LOOK_MS:
            self.look()

    async def _tidy(self) -> None:
        if not self._is_tidy:
            self._is_tidy = True
            async with self._database.connection() as connection:
                await forget_ended(connection)

    async def _round(self) -> bool:
        """Carry what is due, to all places at a time; tell whether all of it could be carried."""
        async with self._database.connection() as connection:
            transits = sorted(await due(connection), key=attrgetter("place"))
        ways = [self._carry_all(list(alike)) for _, alike in groupby(transits, key=attrgetter("place"))]
        return all(await asyncio.gather(*ways))

    async def _carry_all(self, transits: Sequence[Transit]) -> bool:
        """Carry all that goes to one place; where one cannot go, put the others off."""
        for number, transit in enumerate(transits):
            try:
                await self._carry(transit)
            except _FAILED as error:
                self.failures += 1
                log.warning("messages for %s wait in the outbox: %s", transit.target, error)
                async with self._database.connection() as connection:
                    for left in transits[number:]:
                        await connection.execute(OUTBOX["put_off"], left.partition, PAUSE_MS)
                return False
        return True

    async def _carry(self, transit: Transit) -> None:
        batch = await self._take(transit, None)
        while batch is not None:
            arrived = await self._destinations.arrive(transit, self._place, batch)
            if arrived.fate is Fate.QUEUE_GONE:
                await self._give_back(transit)
                return
            if arrived.last_number is not None:
                async with self._database.connection() as connection:
                    await connection.execute(
                        OUTBOX["renumber"], transit.partition, arrived.last_number, batch.number, batch.token
                    )
            else:
                self.carried += len(batch.messages)
            batch = await self._take(transit, batch)

    async def _take(self, transit: Transit, done: Batch | None) -> Batch | None:
        async with self._database.connection() as connection, connection.transaction():
            return await take(connection, transit, done)

    async def _give_back(self, transit: Transit) -> None:
        for _ in range(COLLISIONS_MAX):
            try:
                while await self._give_back_some(transit):
                    pass
                return
            except COLLISIONS:
                self._positions.jump()
        raise StoreUnavailable

    async def _give_back_some(self, transit: Transit) -> bool:
        async with self._database.connection() as connection, connection.transaction():
            queue, messages = await give_back(connection, transit, self._positions)
        if messages and queue is None:
            log.warning(
                "%s messages on their way from %s to %s are deleted, as both are gone",
                messages,
                transit.source,
                transit.target,
            )
        if messages and queue is not None:
            log.warning("%s messages for %s, which is gone, are in %s again", messages, transit.target, queue.name)
            await self._destinations.wake(self._place, queue)
        return bool(messages)
