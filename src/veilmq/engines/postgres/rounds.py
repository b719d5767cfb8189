"""Rounds: a node looks by itself at all queues that somebody waits for there, in one statement for each kind.

They make up for every notice that was lost, and for all of them where none arrives: with a pooler between node and
server that passes none on, rounds are five times as frequent. While nobody waits there are none. Their answers also
tell what the database's clock says. (Measured elsewhere in the design: 51 µs for one queue, 3.7 ms for a thousand.)
"""

import logging
from collections.abc import Callable, Coroutine
from itertools import groupby
from typing import Any

import asyncpg

from veilmq.core.errors import QueueNotFound, StoreUnavailable
from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Timer
from veilmq.engines.named_sql import load
from veilmq.engines.postgres.catalog import Catalog, Queue
from veilmq.engines.postgres.database import Database
from veilmq.engines.postgres.database_clock import DatabaseClock
from veilmq.engines.postgres.failures import IN_DOUBT
from veilmq.engines.postgres.on_queue import retention_ms
from veilmq.engines.postgres.options import PostgresOptions
from veilmq.engines.postgres.watches import Watches

SQL = load("veilmq.engines.postgres", "wakeups.sql")

log = logging.getLogger(__name__)

_DEAF_FACTOR = 5


class Rounds:
    """The rounds of one node."""

    def __init__(
        self,
        *,
        database: Database,
        catalog: Catalog,
        watches: Watches,
        options: PostgresOptions,
        clock: DatabaseClock,
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """``watches`` are looked after; ``start`` makes a task of the engine."""
        self._database = database
        self._catalog = catalog
        self._watches = watches
        self._interval_ms = int(options.round_s * SECOND_MS)
        self._clock = clock
        self._start = start
        self._timer: Timer | None = None
        self._at_ms: int | None = None
        self._stopped = False
        self.hears = False
        """Whether notices of other nodes arrive."""

    @property
    def interval_ms(self) -> int:
        """Return the time from one round to the next."""
        return self._interval_ms if self.hears else self._interval_ms // _DEAF_FACTOR

    def look(self, after_ms: int | None = None) -> None:
        """Have a round then, or in its time, unless one comes before."""
        if self._stopped:
            return
        at_ms = self._clock.now_ms() + (self.interval_ms if after_ms is None else after_ms)
        if self._at_ms is not None and self._at_ms <= at_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._at_ms = at_ms
        self._timer = self._clock.call_at(at_ms, self._look)

    def stop(self) -> None:
        """Have no more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._at_ms = None
        names = self._watches.here
        if names:
            self._start(self._work(names))

    async def _work(self, names: list[str]) -> None:
        try:
            await self._ask(names)
        except (*IN_DOUBT, asyncpg.PostgresError, StoreUnavailable):
            log.debug("a look at what is waited for failed, and is repeated", exc_info=True)
        except Exception:  # nobody else would have the next one
            log.exception("a look at what is waited for failed, and is repeated")
        self.look()

    async def _ask(self, names: list[str]) -> None:
        async with self._database.connection() as connection:
            known = [await self._known(connection, name) for name in names]
            queues = sorted((queue for queue in known if queue is not None), key=_kind)
            for fifo, alike in groupby(queues, key=_kind):
                await self._ask_of(connection, list(alike), "awaited_groups" if fifo else "awaited")

    async def _known(self, connection: Any, name: str) -> Queue | None:
        """Return the queue, whatever its age here: the statement tells whether its partition is in use."""
        try:
            return self._catalog.seen(name) or await self._catalog.sure(connection, name)
        except QueueNotFound:
            self._watches.rouse(name, 0)
            return None

    async def _ask_of(self, connection: Any, queues: list[Queue], statement: str) -> None:
        partitions = [queue.partition for queue in queues]
        sent_ms = self._clock.machine.now_ms()
        rows = await connection.fetch(SQL[statement], partitions, [retention_ms(queue) for queue in queues])
        self._clock.saw(rows[0]["now"], sent_ms=sent_ms)
        for row in rows:
            queue = queues[row["place"] - 1]
            if not row["is_used"]:  # it was purged or deleted
                self._catalog.forget(queue.name)
                self._watches.rouse(queue.name, row["now"])
            elif row["visible_at"] is not None:
                self._watches.rouse(queue.name, max(row["now"], row["visible_at"]))


def _kind(queue: Queue) -> bool:
    return queue.settings.fifo
