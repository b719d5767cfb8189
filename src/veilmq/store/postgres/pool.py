"""Connections of one kind to one server, for whoever has a statement to send.

A connection goes back as it came: statements and whole transactions leave nothing behind in the session, so nothing is
reset, which would cost a round trip each time. One whose command got no answer in time is ended, with all others of
the pool after it: the next one may find another server at that address. What goes wrong in giving a connection back is
nobody's answer.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self, cast

import asyncpg

from veilmq.core.errors import StoreUnavailable
from veilmq.store.postgres.breaker import Breaker
from veilmq.store.postgres.failures import ELSEWHERE, FULL, IN_DOUBT, UNREACHABLE
from veilmq.store.postgres.options import PostgresOptions

log = logging.getLogger(__name__)

CONNECT_S = 5.0
_RETURN_S = 5.0

Prepare = Callable[["asyncpg.Connection[Any]"], Awaitable[None]]


class Pool:
    """Up to ``connections`` of the options, opened when they are needed."""

    def __init__(self, pool: "asyncpg.Pool[Any]", *, options: PostgresOptions, breaker: Breaker) -> None:
        """Use ``open``."""
        self._pool = pool
        self._options = options
        self._breaker = breaker
        self.on_lost: Callable[[], None] | None = None
        """Called when a connection has ended."""
        self.afterwards: dict[int, Callable[[], None]] = {}
        """What is called once a connection, by its ``id``, is given back."""

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        settings: Mapping[str, str],
        prepare: Prepare | None,
        options: PostgresOptions,
        breaker: Breaker,
    ) -> Self:
        """Connect to nobody yet. ``prepare`` is called with each new connection; ``breaker`` is the server's."""
        pool = await asyncpg.create_pool(
            url,
            min_size=0,
            max_size=options.connections,
            timeout=CONNECT_S,
            command_timeout=options.statement_s + options.silence_s,
            server_settings=dict(settings),
            init=cast(Any, prepare),
            reset=_leave,
        )
        return cls(pool, options=options, breaker=breaker)

    def connection(self) -> "Turn":
        """Return a context that has a connection; raises ``StoreUnavailable`` where there is none to be had."""
        return Turn(self)

    async def acquire(self) -> Any:
        """Return a connection; raises ``StoreUnavailable``."""
        self._breaker.check()
        try:
            # A timeout costs a task, and is not needed where a connection lies ready.
            timeout_s = None if self._pool.get_idle_size() else self._options.acquire_s
            connection = await self._pool.acquire(timeout=timeout_s)
        except UNREACHABLE as error:
            if not self._is_exhausted(error):
                self._breaker.failed()
            log.warning("no connection to the database: %s", str(error) or type(error).__name__)
            raise StoreUnavailable from error
        self._breaker.worked()
        return connection

    async def release(self, connection: Any, error: BaseException | None) -> None:
        """Give a connection back, after ``error`` if there was one."""
        if isinstance(error, (*IN_DOUBT, *ELSEWHERE)):
            self._tell()
        if isinstance(error, (TimeoutError, *ELSEWHERE)):
            self._breaker.failed()
            connection.terminate()
            await self._pool.expire_connections()
        try:
            await self._pool.release(connection, timeout=_RETURN_S)
        except (*IN_DOUBT, asyncpg.PostgresError) as lost:
            log.warning("a connection to the database was lost between two commands: %s", lost)
        if self.afterwards and (call := self.afterwards.pop(id(connection), None)) is not None:
            call()

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Return how many connections are in use, open, and allowed."""
        size = self._pool.get_size()
        return size - self._pool.get_idle_size(), size, self._options.connections

    def _tell(self) -> None:
        if self.on_lost is not None:
            self.on_lost()

    def _is_exhausted(self, error: BaseException) -> bool:
        """Tell whether there are connections, and none to spare: at the server, or here."""
        if isinstance(error, FULL):
            return self._pool.get_size() > 0
        return self._pool.get_size() == self._options.connections and not self._pool.get_idle_size()

    async def close(self) -> None:
        """Wait for what is under way, and end all connections; those that the server has ended are no matter."""
        try:
            await self._pool.close()
        except IN_DOUBT:
            self._pool.terminate()


class Turn:
    """A connection for the time of a ``with`` statement."""

    __slots__ = ("_connection", "_pool")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._connection: Any = None

    async def __aenter__(self) -> Any:
        self._connection = await self._pool.acquire()
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._pool.release(self._connection, error)


async def _leave(connection: Any) -> None:
    """Leave the session as it is."""
