"""One of the databases of a store, and the engine on it, which is opened as soon as the database can be reached."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from hashlib import blake2s
from typing import Any, TypeVar

import asyncpg

from veilmq.core.commands import Command
from veilmq.core.errors import StoreUnavailable
from veilmq.core.ports import Done, Wake
from veilmq.engines.postgres import identity
from veilmq.engines.postgres.breaker import Breaker
from veilmq.engines.postgres.database import Database
from veilmq.engines.postgres.database_clock import DatabaseClock, MachineClock
from veilmq.engines.postgres.engine import PostgresEngine
from veilmq.engines.postgres.failures import IN_DOUBT, UNREACHABLE
from veilmq.engines.postgres.identity import Identity
from veilmq.engines.postgres.options import PostgresOptions
from veilmq.engines.store import StoreError, Survey
from veilmq.engines.store_urls import without_passwords

log = logging.getLogger(__name__)

T = TypeVar("T")


class Shard:
    """The database at ``place``; everything that is asked of it is refused as long as it is not open."""

    def __init__(
        self,
        url: str,
        *,
        place: int,
        clock: MachineClock,
        options: PostgresOptions,
        opened: Callable[["Shard"], None],
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """``opened`` is called when the engine is there; ``start`` makes a task of the store."""
        self.url = url
        self.place = place
        self.engine: PostgresEngine | None = None
        """``None`` until the database could be reached once."""
        self.home: Identity | None = None
        """What the store is; to be known before the engine is opened."""
        self.clock = DatabaseClock(clock)
        """That of the database, as far as this node knows it."""
        self._options = options
        self._opened = opened
        self._start = start
        self._database: Database | None = None
        self._breaker = Breaker(clock=clock)
        self._opening = asyncio.Lock()
        self._closed = False

    @property
    def name(self) -> str:
        """The URL, without a password."""
        return without_passwords(self.url)

    @property
    def database(self) -> Database:
        """The database, once it was reached."""
        assert self._database is not None, "it was reached"
        return self._database

    async def connect(self) -> Database:
        """Return the database; raises what keeps it from being reached, or used."""
        if self._database is None:
            self._database = await Database.open(self.url, options=self._options, clock=self.clock.machine)
        return self._database

    async def open(self) -> None:
        """Open the engine, as one of the store that ``home`` says; raises ``StoreError``, and what ``connect`` does."""
        async with self._opening:
            if self.engine is not None or self._closed:
                return
            assert self.home is not None, "the store is known before its databases are opened"
            database = await self.connect()
            async with database.connection() as connection:
                if self.place:
                    await identity.join(connection, self.home, self.place)
                else:
                    reason = identity.objection(await identity.found(connection), store=self.home.store, place=0)
                    if reason:
                        raise StoreError(reason)
            self.engine = PostgresEngine(
                database=database,
                options=self._options,
                clock=self.clock,
                receipt_key=_key_at(self.place, self.home.receipt_key),
                token_key=self.home.token_key,
            )
        self._opened(self)

    def connection(self) -> Any:
        """Return a context that has a connection; raises ``StoreUnavailable``."""
        self._try_again()
        if self.engine is None or self._database is None:
            raise StoreUnavailable
        return self._database.connection()

    async def ask(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Return what ``work``, which changes nothing, finds out on a connection; raises ``StoreUnavailable``."""
        try:
            try:
                async with self.connection() as connection:
                    return await work(connection)
            except IN_DOUBT:
                async with self.connection() as connection:
                    return await work(connection)
        except (*IN_DOUBT, asyncpg.PostgresError) as error:
            raise StoreUnavailable from error

    # The engine's own.

    @property
    def token_key(self) -> bytes:
        """The secret of the store."""
        assert self.home is not None, "the store is known"
        return self.home.token_key

    def submit(self, command: Command, done: Done) -> None:
        """Have the engine do ``command``; see ``core.ports.Engine``."""
        self._try_again()
        if self.engine is None:
            done(StoreUnavailable())
        else:
            self.engine.submit(command, done)

    def withdraw(self, done: Done) -> None:
        """Drop the command that was submitted with ``done``."""
        if self.engine is not None:
            self.engine.withdraw(done)

    def watch(self, queue: str, wake: Wake) -> None:
        """Watch ``queue`` there."""
        if self.engine is not None:
            self.engine.watch(queue, wake)

    def unwatch(self, queue: str) -> None:
        """End the watch."""
        if self.engine is not None:
            self.engine.unwatch(queue)

    async def survey(self, names_max: int) -> Survey:
        """Return the first queues and how many there are; raises ``VeilmqError``."""
        self._try_again()
        if self.engine is None:
            raise StoreUnavailable
        return await self.engine.survey(names_max)

    async def keep(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return what the database keeps under ``name``; raises ``VeilmqError``."""
        if self.engine is None:
            raise StoreUnavailable
        return await self.engine.keep(name, make)

    async def answered(self) -> None:
        """Return when the engine has nothing under way."""
        if self.engine is not None:
            await self.engine.answered()

    async def close(self) -> None:
        """Let go of the database."""
        self._closed = True
        if self.engine is not None:
            await self.engine.close()
        elif self._database is not None:
            await self._database.close()

    def _try_again(self) -> None:
        """Try to open the engine in the background, unless that was tried just now."""
        if self.engine is not None or self._closed or self._opening.locked():
            return
        try:
            self._breaker.check()
        except StoreUnavailable:
            return
        self._start(self.open_late())

    async def open_late(self) -> None:
        """Open the engine if that is possible now; a log line says why not."""
        try:
            await self.open()
            self._breaker.worked()
        except (*UNREACHABLE, asyncpg.PostgresError, StoreUnavailable, StoreError) as error:
            self._breaker.failed()
            log.warning("%s cannot be used yet: %s", self.name, without_passwords(str(error)))


def _key_at(place: int, key: bytes) -> bytes:
    """Return the key of receipts at ``place``: numbers of queues are of one database, and receipts of no other."""
    return key if place == 0 else blake2s(b"shard %d" % place, key=key).digest()
