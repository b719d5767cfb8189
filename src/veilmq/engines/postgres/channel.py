"""The connection on which a node hears notices of others and tells its own, beside those that serve commands.

A notice never travels in the transaction that it is about: a commit with a NOTIFY waits for every other one (measured:
431 sends a second where there were 3,229). Here it follows a durable commit, and is not made durable itself. When the
connection ends, another one is made, after a pause that grows as long as none is to be had.
"""

import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import asyncpg

from veilmq.core.ports import Clock, Timer
from veilmq.engines.named_sql import load
from veilmq.engines.postgres.database import Database
from veilmq.engines.postgres.failures import UNREACHABLE

log = logging.getLogger(__name__)

SQL = load("veilmq.engines.postgres", "wakeups.sql")

_NAME = "veilmq"
_ANSWER_S = 5.0
_PAUSE_MS_MIN = 100
_PAUSE_MS_MAX = 5_000
_FAILURES = (*UNREACHABLE, asyncpg.PostgresError)


class Channel:
    """One node's part in what nodes tell each other."""

    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        start: Callable[[Coroutine[Any, Any, None]], None],
        opened: Callable[[], None],
        lost: Callable[[], None],
        heard: Callable[[str], None],
    ) -> None:
        """``opened`` is called when there is a connection, the first or another one, and
        ``lost`` when it has ended; ``heard`` with each notice.
        """
        self._database = database
        self._clock = clock
        self._start = start
        self._opened = opened
        self._lost = lost
        self._heard = heard
        self._connection: asyncpg.Connection[Any] | None = None
        self._pause_ms = 0
        self._timer: Timer | None = None
        self._stopped = False

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    def begin(self) -> None:
        """Connect, and go on doing so."""
        self._start(self._open())

    async def tell(self, texts: list[str]) -> None:
        """Have all nodes hear ``texts``, this one too; if that fails they hear nothing."""
        connection = self._connection
        if connection is None:
            return
        try:
            await connection.execute(SQL["notify"], texts, timeout=_ANSWER_S)
        except _FAILURES:
            connection.terminate()  # which is heard of like any other end of it

    async def stop(self) -> None:
        """End the connection."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*_FAILURES):
                await connection.close(timeout=_ANSWER_S)

    async def _open(self) -> None:
        try:
            connection = await self._database.connect()
        except _FAILURES:
            self._open_later()
            return
        try:
            await connection.execute(SQL["relax"])
            await connection.add_listener(_NAME, self._hear)
        except _FAILURES:
            connection.terminate()
            self._open_later()
            return
        connection.add_termination_listener(self._ended)
        if self._stopped or connection.is_closed():
            connection.terminate()
            self._open_later()
            return
        self._connection = connection
        self._pause_ms = 0
        self._opened()

    def _hear(self, connection: Any, pid: int, name: str, text: Any) -> None:
        self._heard(text)

    def _ended(self, connection: Any) -> None:
        if connection is self._connection:
            self._connection = None
            log.warning("the connection for notices of other nodes has ended; looking for another one")
            self._lost()
            self._open_later()

    def _open_later(self) -> None:
        if self._stopped:
            return
        self._pause_ms = min(_PAUSE_MS_MAX, max(_PAUSE_MS_MIN, 2 * self._pause_ms))
        self._timer = self._clock.call_at(self._clock.now_ms() + self._pause_ms, self.begin)
