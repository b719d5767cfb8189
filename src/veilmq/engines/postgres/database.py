"""The connections of a node to one PostgreSQL server, each set up for short statements on indexed rows.

Plans are pinned: statistics of an empty table would have the planner scan it when it is full (measured: 2.4 times the
cost).
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import asyncpg

from veilmq.core.errors import StoreUnavailable
from veilmq.core.ports import Clock
from veilmq.engines.postgres.breaker import Breaker
from veilmq.engines.postgres.failures import IN_DOUBT, UNREACHABLE
from veilmq.engines.postgres.migrate import migrate
from veilmq.engines.postgres.options import PostgresOptions

SETTINGS = {
    "application_name": "veilmq",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "idle_in_transaction_session_timeout": "30s",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}
"""Of every connection."""

_CONNECT_S = 5.0
_ANSWER_S = 5.0  # beyond what the server allows a statement, for a server that is silent


class Database:
    """The pool of one server."""

    def __init__(self, url: str, pool: "asyncpg.Pool[Any]", *, options: PostgresOptions, clock: Clock) -> None:
        """Use ``open``."""
        self._url = url
        self._pool = pool
        self._options = options
        self._breaker = Breaker(clock=clock)
        self.on_lost: list[Callable[[], None]] = []
        """Called when a connection has ended: the next one may be to another server, whose clock differs."""

    @classmethod
    async def open(cls, url: str, *, options: PostgresOptions, clock: Clock) -> Self:
        """Connect to ``url`` (``postgresql://…``) and bring its schema up to date."""
        pool = await asyncpg.create_pool(
            url,
            min_size=1,
            max_size=options.connections,
            timeout=_CONNECT_S,
            command_timeout=options.statement_s + _ANSWER_S,
            server_settings=_settings(options),
        )
        async with pool.acquire() as connection:
            await migrate(connection)
        return cls(url, pool, options=options, clock=clock)

    def connection(self) -> "_Turn":
        """Return a context that has a connection; raises ``StoreUnavailable`` where there is none to be had."""
        return _Turn(self)

    async def acquire(self) -> Any:
        """Return a connection of the pool; raises ``StoreUnavailable``."""
        self._breaker.check()
        try:
            # A timeout costs a task, and is not needed where a connection lies ready.
            timeout_s = None if self._pool.get_idle_size() else self._options.acquire_s
            connection = await self._pool.acquire(timeout=timeout_s)
        except UNREACHABLE as error:
            if not self._is_exhausted():
                self._breaker.failed()
            raise StoreUnavailable from error
        self._breaker.worked()
        return connection

    async def release(self, connection: Any, error: BaseException | None) -> None:
        """Give a connection back, after ``error`` if there was one."""
        if isinstance(error, IN_DOUBT):
            for tell in self.on_lost:
                tell()
        await self._pool.release(connection)

    def _is_exhausted(self) -> bool:
        return self._pool.get_size() == self._options.connections and not self._pool.get_idle_size()

    async def connect(self) -> "asyncpg.Connection[Any]":
        """Return a connection beside the pool's, for whoever keeps one; it is theirs to close."""
        return await asyncpg.connect(self._url, timeout=_CONNECT_S, server_settings=_settings(self._options))

    async def close(self) -> None:
        """Wait for what is under way, and end all connections; those that the server has ended are no matter."""
        try:
            await self._pool.close()
        except IN_DOUBT:
            self._pool.terminate()


class _Turn:
    """A connection for the time of a ``with`` statement."""

    __slots__ = ("_connection", "_database")

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Any = None

    async def __aenter__(self) -> Any:
        self._connection = await self._database.acquire()
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._database.release(self._connection, error)


def _settings(options: PostgresOptions) -> dict[str, str]:
    return {**SETTINGS, "statement_timeout": f"{options.statement_s * 1_000:.0f}ms"}
