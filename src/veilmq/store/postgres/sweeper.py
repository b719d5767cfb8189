"""What the janitor deletes: messages past their retention, what purged and deleted queues had, and what is remembered
for a while only.

Nothing depends on when that happens, as every statement looks at retention by itself. A slice is a statement and a
transaction of its own, with a pause behind each full one, so that nobody waits for long.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from veilmq.core.limits import ATTEMPT_S, SECOND_MS
from veilmq.engines.named_sql import load
from veilmq.store.events import EXPIRED_KEPT_MAX, EXPIRED_KEPT_S
from veilmq.store.named_queries import shared
from veilmq.store.postgres.catalog import SQL as QUEUES
from veilmq.store.postgres.catalog import Queue, queue_of
from veilmq.store.postgres.coalescing import retention_ms
from veilmq.store.postgres.event_log import SQL as EVENTS
from veilmq.store.postgres.event_log import EventLog, logged
from veilmq.store.postgres.event_numbers import EventNumbers
from veilmq.store.postgres.options import PostgresOptions
from veilmq.store.postgres.watches import Watches

SQL = {**shared(), **load("veilmq.store.postgres", "sweeps.sql")}

_SQL_LOGGED = logged(SQL)
_LOGGED = {"drop_messages", "drop_fifo_messages"}

_PAUSE_S = 0.01
_PAGE = 100
_GROUPS_PER_SLICE = 100  # some 15 ms
_RETIRED_MS = 300 * SECOND_MS  # far longer than a statement may take

_OF_PART = ("drop_messages", "drop_fifo_messages", "drop_expired", "drop_groups", "drop_turns", "forget_accepted")


class Sweeper:
    """Sweeps a whole store, on one connection."""

    def __init__(self, *, options: PostgresOptions, watches: Watches) -> None:
        """``watches`` hears of queues that lost messages, which may have taken places or blocked groups."""
        self._options = options
        self._log = EventLog(options=options)
        self._numbers = EventNumbers(options=options)
        self._watches = watches

    async def sweep(self, connection: Any) -> None:
        """Delete whatever is due."""
        async for partition, *of_log in _pages(connection, "parts"):
            await self._sweep_retired(connection, partition, tuple(of_log) if of_log[0] is not None else ())
        async for row in _pages(connection, "queues_behind"):
            await self.sweep_queue(connection, queue_of(row))
        await self._numbers.number(connection)

    async def _sweep_retired(self, connection: Any, partition: int, of_log: tuple[Any, ...]) -> None:
        for name in _OF_PART:
            needed = of_log if name in _LOGGED else ()
            await self._all(connection, name, partition, self._options.sweep_rows, of_log=needed)
        await self._forget_attempts(connection, partition)
        if await connection.fetchval(SQL["drop_part"], partition, _RETIRED_MS) is not None:
            await connection.execute(SQL["drop_throttle"], partition)
            await connection.execute(SQL["drop_count"], partition)

    async def sweep_queue(self, connection: Any, queue: Queue) -> None:
        """Delete what is due in a queue."""
        rows = self._options.sweep_rows
        of_log = (queue.origin, queue.name) if self._log.has(queue) else ()
        await self._forget_expired(connection, queue)
        if queue.settings.fifo:
            await self._settle_late(connection, queue)
            if self._log.has(queue):
                await self._all(connection, "end_fifo", queue.partition, retention_ms(queue), rows, of_log=of_log)
            deleted = await self._all(connection, "sweep_fifo", queue.partition, retention_ms(queue), rows)
            await self._all(connection, "forget_accepted", queue.origin, rows)
            await self._forget_attempts(connection, queue.origin)
        else:
            ended_before = await connection.fetchval(SQL["ended_before"], queue.partition)
            terms = (queue.partition, retention_ms(queue), rows)
            deleted = await self._all(connection, "sweep", *terms, of_log=of_log)
            deleted += await self._all(connection, "sweep_moved", *terms, of_log=of_log)
            await self._all(connection, "sweep_turns", queue.partition, rows)
            if ended_before is not None:
                await connection.execute(SQL["forget_ended"], queue.partition, ended_before)
        if deleted:
            self._watches.wake(queue.name, 0)

    async def end_what_has_ended(self, connection: Any, queue: Queue) -> None:
        """Have what the retention has ended stay so under a longer one: messages of groups are deleted at once."""
        if queue.settings.fifo:
            await self.sweep_queue(connection, queue)
        else:
            await connection.execute(QUEUES["end_what_has_ended"], queue.partition, retention_ms(queue))

    async def _settle_late(self, connection: Any, queue: Queue) -> None:
        """Have the groups follow a new delay."""
        late = await connection.fetchval(SQL["late"], queue.partition)
        if late is not None:
            last: Any = (0, 0)
            while last is not None:
                last = await settle_late(connection, queue, *last)
                await asyncio.sleep(_PAUSE_S)
            await connection.execute(SQL["settled"], queue.partition, late)
            self._watches.wake(queue.name, 0)

    async def _forget_expired(self, connection: Any, queue: Queue) -> None:
        while True:
            terms = (queue.origin, self._options.sweep_rows, EXPIRED_KEPT_S * SECOND_MS, EXPIRED_KEPT_MAX)
            if await connection.fetchval(EVENTS["forget_expired"], *terms) < self._options.sweep_rows:
                return
            await asyncio.sleep(_PAUSE_S)

    async def _forget_attempts(self, connection: Any, partition: int) -> None:
        await self._all(connection, "forget_attempts", partition, self._options.sweep_rows, ATTEMPT_S * SECOND_MS)

    async def _all(self, connection: Any, name: str, *terms: Any, of_log: tuple[Any, ...] = ()) -> int:
        """Have a statement done until it finds no more; return how many rows it has deleted.

        It writes the ends of receipts where it is given what the log needs of them.
        """
        statement = _SQL_LOGGED[name] if of_log else SQL[name]
        terms += of_log
        deleted = 0
        while True:
            rows: int = await connection.fetchval(statement, *terms)
            deleted += rows
            if rows < self._options.sweep_rows:
                return deleted
            await asyncio.sleep(_PAUSE_S)


async def settle_late(connection: Any, queue: Queue, at_ms: int = 0, head: int = 0) -> Any:
    """Have some groups follow a new delay, behind one; return the last of them where there may be more."""
    return await connection.fetchrow(
        SQL["settle_late"], queue.partition, retention_ms(queue), at_ms, head, _GROUPS_PER_SLICE
    )


async def _pages(connection: Any, name: str) -> AsyncIterator[Sequence[Any]]:
    """Yield the rows that ``name`` selects, whose first column rises."""
    after = 0
    while rows := await connection.fetch(SQL[name], after, _PAGE):
        for row in rows:
            yield row
        after = rows[-1][0]
