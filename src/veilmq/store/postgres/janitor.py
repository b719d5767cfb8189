"""The janitor: work in the background that exactly one node does at a time.

Whoever holds an advisory lock of the database has the turn, and works on the connection that holds it: when the node or
its connection ends, the lock ends with it, and the next one that looks takes over.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import asyncpg

from veilmq.core.limits import RETENTION_S, SECOND_MS
from veilmq.core.ports import Clock, Timer
from veilmq.store.postgres.database import Database

log = logging.getLogger(__name__)

LOOK_MS = RETENTION_S.minimum * SECOND_MS
"""How often each node looks: often enough for every retention."""

_CLOSE_S = 5.0

_TURN = 0x7665696C6D72  # the key of the lock, beside that of migrations


class Janitor:
    """Sweeps when it is time, if this node has the turn."""

    def __init__(
        self,
        *,
        database: Database,
        sweep: Callable[[Any], Awaitable[None]],
        clock: Clock,
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """``sweep`` does the work on the connection that it is given; ``start`` makes a task of the engine."""
        self._database = database
        self._sweep = sweep
        self._clock = clock
        self._start = start
        self._connection: asyncpg.Connection[Any] | None = None
        self._timer: Timer | None = None
        self._stopped = False

    @property
    def has_turn(self) -> bool:
        """Whether this node is the one that sweeps."""
        return self._connection is not None and not self._connection.is_closed()

    def look_later(self) -> None:
        """Look in a while."""
        if not self._stopped:
            self._timer = self._clock.call_at(self._clock.now_ms() + LOOK_MS, self._look)

    async def stop(self) -> None:
        """Do no more, and leave the turn to others."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        await self._leave()

    def _look(self) -> None:
        self._start(self._work())

    async def _work(self) -> None:
        try:
            if await self._take_turn():
                await self._sweep(self._connection)
        except Exception:  # whatever it is, the turn must not stay with somebody who does nothing
            if not self._stopped:
                log.warning("the janitor was interrupted, and goes on later", exc_info=True)
            await self._leave()
        if self._stopped:  # while this was connecting
            await self._leave()
        self.look_later()

    async def _take_turn(self) -> bool:
        if self.has_turn:
            return True
        connection = await self._database.connect()
        try:
            if await connection.fetchval("SELECT pg_try_advisory_lock($1)", _TURN):
                self._connection = connection
            else:
                await connection.close(timeout=_CLOSE_S)
        except BaseException:
            connection.terminate()
            raise
        return self.has_turn

    async def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
