"""The connections of a node to one PostgreSQL server, each set up for short statements on indexed rows.

Plans are pinned: statistics of an empty table would have the planner scan it when it is full (measured: 2.4 times the
cost).
"""

import logging
from collections.abc import Callable
from typing import Any, Self

import asyncpg

from veilmq.core.ports import Clock
from veilmq.engines.figures import Figure, counter, gauge
from veilmq.engines.store_urls import without_passwords
from veilmq.store.postgres.breaker import Breaker
from veilmq.store.postgres.durability import RELAXED, SQL, Durability, Promise
from veilmq.store.postgres.migrate import migrate, require
from veilmq.store.postgres.options import PostgresOptions
from veilmq.store.postgres.pool import CONNECT_S, Pool, Turn

log = logging.getLogger(__name__)

SETTINGS = {
    "application_name": "veilmq",
    "default_transaction_isolation": "read committed",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "idle_in_transaction_session_timeout": "30s",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "search_path": "mq",
    "tcp_keepalives_count": "3",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
}
"""Of every connection. A node whose machine has vanished keeps locks and turns no longer than a minute."""


class Database:
    """What a node has to do with one server."""

    def __init__(
        self, url: str, *, options: PostgresOptions, breaker: Breaker, durable: Pool, relaxed: Pool | None
    ) -> None:
        """Use ``open``. ``relaxed`` connections are there where the options allow what they do."""
        self._url = url
        self._options = options
        self._breaker = breaker
        self._durable = durable
        self._relaxed = relaxed
        self.on_lost: list[Callable[[], None]] = []
        """Called when a connection has ended: the next one may be to another server, whose clock differs."""
        self._afterwards: dict[int, Callable[[], None]] = {}
        for pool in self._pools:
            pool.on_lost = self._lost
            pool.afterwards = self._afterwards

    @classmethod
    async def open(cls, url: str, *, options: PostgresOptions, clock: Clock) -> Self:
        """Connect to ``url`` (``postgresql://…``) and bring its schema up to date; say what commits are worth there."""
        breaker = Breaker(clock=clock)
        settings = _settings(options)
        durable = await Pool.open(url, settings=settings, prepare=_be_durable, options=options, breaker=breaker)
        relaxed = None
        if options.durability is Durability.STANDARD:
            settings |= RELAXED
            relaxed = await Pool.open(url, settings=settings, prepare=None, options=options, breaker=breaker)
        database = cls(url, options=options, breaker=breaker, durable=durable, relaxed=relaxed)
        connection = await database._connect(patience_s=None)  # an upgrade takes its time
        try:
            if options.migrates:
                await migrate(connection, ending_older_nodes=False)
            else:
                await require(connection)
            database._say(await Promise.of(connection, options.durability))
        finally:
            await connection.close()
        return database

    @property
    def relaxes(self) -> bool:
        """Whether ``relaxed`` is another thing than ``connection``."""
        return self._relaxed is not None

    def connection(self) -> Turn:
        """Return a context that has a connection, whose commits are durable; entering raises ``StoreUnavailable``."""
        return self._durable.connection()

    def relaxed(self) -> Turn:
        """Return one whose commits a crash of the database may undo, where the options allow that."""
        return self._durable.connection() if self._relaxed is None else self._relaxed.connection()

    def afterwards(self, connection: Any, call: Callable[[], None]) -> None:
        """Make ``call`` once ``connection`` is given back, when its transaction has ended in whichever way."""
        self._afterwards[id(connection)] = call

    @property
    def place(self) -> str:
        """Return the URL, without a password."""
        return without_passwords(self._url)

    async def connect(self) -> "asyncpg.Connection[Any]":
        """Return a durable connection beside the pools', for whoever keeps one; it is theirs to close.

        It waits for an answer as long as those of the pools do, then raises ``TimeoutError``.
        """
        return await self._connect(patience_s=self._options.statement_s + self._options.silence_s)

    async def _connect(self, *, patience_s: float | None) -> "asyncpg.Connection[Any]":
        connection = await asyncpg.connect(
            self._url, timeout=CONNECT_S, command_timeout=patience_s, server_settings=_settings(self._options)
        )
        try:
            await _be_durable(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    def figures(self) -> list[Figure]:
        """Return how the server can be reached, and what of the pools is in use."""
        in_use, opened, allowed = map(sum, zip(*(pool.sizes for pool in self._pools), strict=True))
        return [
            gauge(
                "store_reachable", "1 unless the last attempt to reach the database failed.", not self._breaker.is_open
            ),
            counter("store_connection_failures", "Attempts to reach the database that failed.", self._breaker.failures),
            gauge("store_connections_in_use", "Connections to the database that are at work.", in_use),
            gauge("store_connections_open", "Connections to the database that are open.", opened),
            gauge("store_connections_max", "Connections to the database that may be open.", allowed),
        ]

    async def close(self) -> None:
        """Wait for what is under way, and end all connections."""
        for pool in self._pools:
            await pool.close()

    @property
    def _pools(self) -> list[Pool]:
        return [pool for pool in (self._durable, self._relaxed) if pool is not None]

    def _lost(self) -> None:
        for tell in self.on_lost:
            tell()

    def _say(self, promise: Promise) -> None:
        log.info("%s: durability %s", self.place, promise)
        for doubt in promise.doubts:
            log.warning("%s: %s", self.place, doubt)


async def _be_durable(connection: Any) -> None:
    await connection.execute(SQL["be_durable"])


def _settings(options: PostgresOptions) -> dict[str, str]:
    return {**SETTINGS, "statement_timeout": f"{options.statement_s * 1_000:.0f}ms"}
