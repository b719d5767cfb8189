"""The databases of a store, as one node has them open, and where each queue is.

A database is opened as soon as it can be reached. Each queue is at the place that the home says, which was written
before the queue was made. A queue never moves; so a place that is known may be old only where the queue was deleted,
and the database there says so.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from hashlib import blake2s
from typing import Any, TypeVar

import asyncpg

from veilmq.core.commands import Command
from veilmq.core.errors import StoreUnavailable, VeilmqError
from veilmq.core.ports import Done
from veilmq.store.port import StoreError
from veilmq.store.postgres import databases
from veilmq.store.postgres.database import (
    IN_DOUBT,
    UNREACHABLE,
    Breaker,
    Database,
    DatabaseClock,
    MachineClock,
    PostgresOptions,
    sentence,
)
from veilmq.store.postgres.databases import SHARDS, Identity
from veilmq.store.postgres.engine import PostgresEngine
from veilmq.store.postgres.node import Start
from veilmq.store.postgres.outbox import Arrived, Batch, Placed, Transit, arrive
from veilmq.store.postgres.queues import COLLISIONS, COLLISIONS_MAX, SQL, Queue, wake_groups
from veilmq.store.urls import bare, without_passwords

log = logging.getLogger(__name__)

T = TypeVar("T")


class Shard:
    """The database at ``place``; everything that is asked of it is refused as long as it is not open."""

    def __init__(self, cluster: "Cluster", place: int, url: str) -> None:
        self.url = url
        self.place = place
        self.engine: PostgresEngine | None = None
        """``None`` until the database could be reached once."""
        self.clock = DatabaseClock(cluster.clock)
        """That of the database, as far as this node knows it."""
        self._cluster = cluster
        self._database: Database | None = None
        self._breaker = Breaker(clock=cluster.clock)
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
            self._database = await Database.open(self.url, options=self._cluster.options, clock=self.clock.machine)
        return self._database

    async def open(self) -> None:
        """Open the engine, as one of the store; raises ``StoreError``, and what ``connect`` does."""
        async with self._opening:
            if self.engine is not None or self._closed:
                return
            home = self._cluster.identity
            assert home is not None, "the store is known before its databases are opened"
            database = await self.connect()
            async with database.connection() as connection:
                if self.place:
                    await databases.join(connection, home, self.place)
                else:
                    reason = databases.objection(await databases.found(connection), store=home.store, place=0)
                    if reason:
                        raise StoreError(reason)
            self.engine = PostgresEngine(
                database=database,
                options=self._cluster.options,
                clock=self.clock,
                receipt_key=_key_at(self.place, home.receipt_key),
                token_key=home.token_key,
            )
        self._cluster.opened(self)

    def opened(self) -> PostgresEngine:
        """Return the engine; raises ``StoreUnavailable`` where it is not there yet, and tries again to open it."""
        if self.engine is None:
            self._try_again()
            raise StoreUnavailable
        return self.engine

    def connection(self) -> Any:
        """Return a context that has a connection; raises ``StoreUnavailable``."""
        self.opened()
        return self.database.connection()

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

    def submit(self, command: Command, done: Done) -> None:
        """Have the engine do ``command``; see ``core.ports.Engine``."""
        try:
            engine = self.opened()
        except StoreUnavailable as error:
            done(error)
        else:
            engine.submit(command, done)

    async def close(self) -> None:
        """Let go of the database."""
        self._closed = True
        if self.engine is not None:
            await self.engine.close()
        elif self._database is not None:
            await self._database.close()

    def _try_again(self) -> None:
        """Try to open the engine in the background, unless that was tried just now."""
        with suppress(StoreUnavailable):
            if not self._closed and not self._opening.locked():
                self._breaker.check()
                self._cluster.start(self.open_late())

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


_KNOWN_MAX = 100_000
_PAGE = 500
_TRIES_MAX = 5


class Directory:
    """The places of queues as one node knows them, and the way there (``outbox.Directory``)."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._shards = cluster.shards
        self._known: dict[str, int] = {}

    def known(self, name: str) -> int | None:
        """Return the place of a queue that was met before."""
        return self._known.get(name)

    def forget(self, name: str) -> None:
        """Look it up again when it is named next."""
        self._known.pop(name, None)

    def clear(self) -> None:
        """Look all of them up again."""
        self._known.clear()

    async def place_of(self, name: str) -> int | None:
        """Look up the place of a queue; ``None`` for one that never was; raises ``StoreUnavailable``."""
        try:
            place = await self._cluster.home.ask(lambda connection: connection.fetchval(SHARDS["locate"], name))
        except StoreUnavailable:
            place = await self._place_without_home(name)
        return None if place is None else self._note(name, place)

    async def _place_without_home(self, name: str) -> int:
        """Return where another database has the queue; of any other queue only the home can tell."""
        for shard in [each for each in self._shards.values() if each.place]:
            with suppress(StoreUnavailable):
                if await shard.ask(lambda connection: connection.fetchval(SHARDS["has_queue"], name)):
                    return shard.place
        raise StoreUnavailable

    @asynccontextmanager
    async def held(self, name: str) -> Any:
        """Give a queue its place, unless it has one, and keep it while the queue is made; raises ``StoreUnavailable``.

        A new queue goes where the fewest are, of the databases that can be reached.
        """
        for _ in range(_TRIES_MAX):
            if await self.place_of(name) is None:
                await self._reserve(name)
            async with self._cluster.home.connection() as connection, connection.transaction():
                place = await connection.fetchval(SHARDS["hold_place"], name)
                if place is not None:
                    yield self._note(name, place)
                    return
                # It was at the home before there were others.
                await connection.execute(SHARDS["reserve"], name, 0)
        raise StoreUnavailable

    async def _reserve(self, name: str) -> None:
        async with self._cluster.home.connection() as connection:
            loads = dict(await connection.fetch(SHARDS["loads"]))
            for shard in sorted(self._shards.values(), key=lambda shard: (loads.get(shard.place, 0), shard.place)):
                try:
                    await shard.ask(lambda connection: connection.fetchval("SELECT true"))
                except StoreUnavailable:
                    continue
                await connection.execute(SHARDS["reserve"], name, shard.place)
                return
        raise StoreUnavailable

    async def sweep(self, connection: Any) -> None:
        """Forget the places of queues that are gone; ``connection`` is to the home."""
        for shard in list(self._shards.values()):
            after = ""
            while rows := await connection.fetch(SHARDS["placed"], shard.place, after, _PAGE):
                names = [name for (name,) in rows]
                for name in await self._unused(shard, names):
                    async with connection.transaction():
                        held = await connection.fetchval(SHARDS["take_place"], name, shard.place)
                        if held is not None and await self._unused(shard, [name]):
                            await connection.execute(SHARDS["drop_place"], name)
                            self.forget(name)
                after = names[-1]

    async def _unused(self, shard: Shard, names: list[str]) -> list[str]:
        try:
            rows = await shard.ask(lambda connection: connection.fetch(SHARDS["unused"], names))
        except StoreUnavailable:
            return []
        return [name for (name,) in rows]

    def _note(self, name: str, place: int) -> int:
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[name] = place
        return place

    # Queues, and messages that arrive.

    async def find(self, name: str) -> Placed | None:
        """Return the queue of that full name; raises ``StoreUnavailable`` where nobody can tell."""
        place = self.known(name)
        if place is not None:
            queue = await self._queue_at(place, name)
            if queue is not None:
                return Placed(place, queue)
            self.forget(name)
        found = await self.place_of(name)
        if found is None or found == place:
            return None
        queue = await self._queue_at(found, name)
        return None if queue is None else Placed(found, queue)

    async def _queue_at(self, place: int, name: str) -> Queue | None:
        catalog = self._engine_at(place).machine.catalog
        return catalog.known(name) or await self._shards[place].ask(lambda connection: catalog.find(connection, name))

    def _engine_at(self, place: int) -> PostgresEngine:
        shard = self._shards.get(place)
        if shard is None:
            raise StoreUnavailable
        return shard.opened()

    async def has_sources(self, name: str) -> bool:
        """Tell whether the queue is the dead-letter queue of one at any place; raises ``StoreUnavailable``."""
        for shard in list(self._shards.values()):
            if await shard.ask(lambda connection: connection.fetch(SQL["queue_sources"], name, "", 1)):
                return True
        return False

    async def arrive(self, transit: Transit, from_place: int, batch: Batch) -> Arrived:
        """Have a batch stored at its target, and wake who waits there; raises ``StoreUnavailable``."""
        if transit.place in self._cluster.removed:
            return Arrived(None)
        engine = self._engine_at(transit.place)
        for _ in range(COLLISIONS_MAX):
            try:
                async with self._shards[transit.place].connection() as connection, connection.transaction():
                    arrived = await arrive(connection, transit, from_place, batch, engine.machine.positions)
                break
            except COLLISIONS:
                engine.machine.positions.jump()
        else:
            raise StoreUnavailable
        if arrived.is_changed:
            engine.machine.catalog.forget(transit.target)
            engine.machine.watches.changed(transit.target, arrived.due_ms)
        elif arrived.queue is not None:
            await self.wake(transit.place, arrived.queue, arrived.due_ms)
        return arrived

    async def wake(self, place: int, queue: Queue, due_ms: int = 0) -> None:
        """Wake who waits for ``queue`` at ``place``, which has something at ``due_ms``."""
        engine = self._shards[place].engine
        if engine is None:
            return
        watches = engine.machine.watches
        if queue.settings.fifo:
            await self._shards[place].ask(lambda connection: wake_groups(connection, queue, watches))
        else:
            watches.wake(queue.name, due_ms)


REFRESH_MS = 10_000
"""How often a node looks which databases there are."""


class Cluster:
    """The databases by their places; they change while the node runs."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        clock: MachineClock,
        options: PostgresOptions,
        opened: Callable[[Shard], None],
        dropped: Callable[[Shard], None],
        start: Start,
    ) -> None:
        self.clock = clock
        self.options = options
        self.opened = opened
        self.start = start
        self._dropped = dropped
        self._given = dict(enumerate(urls))
        self._refreshing: asyncio.Task[None] | None = None
        self.identity: Identity | None = None
        """What the store is; ``None`` until a database was asked."""
        self.shards: dict[int, Shard] = {}
        self.removed: set[int] = set()
        """The places of databases that were removed."""
        self.home = self._add(0, urls[0])

    async def open(self) -> None:
        """Connect to all that can be reached; raises ``StoreError``, see ``Shards.open``."""
        failure = await _failure(self.home)
        if failure is None:
            await self._meet_home()
        else:
            for place, url in self._given.items():
                self._add(place, url)
            self._take(databases.last_known(self.home.url))
            self.identity = await self._identity_elsewhere(failure)
        for shard in list(self.shards.values()):
            if await _failure(shard) is None:
                with _named(shard):
                    await shard.open()

    async def _meet_home(self) -> None:
        """Make known what was given, and take what the home knows."""
        given = [self._add(place, url) for place, url in self._given.items() if place]
        reached = [shard for shard in given if await _failure(shard) is None]
        async with (await self.home.connect()).connection() as connection:
            with _named(self.home):
                home = self.identity = await databases.found(connection)
            async with databases.locked(connection):
                for shard in given:
                    with _named(shard):
                        is_sure = shard in reached and await _fits(shard, home)
                        await databases.register(connection, shard.place, shard.url, is_sure=is_sure)
            members = await databases.members(connection)
        self._take(members)
        databases.keep(self.home.url, members)

    async def _identity_elsewhere(self, failure: BaseException) -> Identity:
        """Return what the store is from a database that has joined it, as the home is down."""
        for shard in self.shards.values():
            if shard is not self.home and await _failure(shard) is None:
                async with (await shard.connect()).connection() as connection:
                    known = await databases.read(connection)
                if known is not None:
                    return known
        raise StoreError(
            f"{self.home.name} cannot be used: {sentence(failure)}"
            + (" No other database of its store that is known here can be asked." if self.shards.keys() - {0} else "")
        )

    def _add(self, place: int, url: str) -> Shard:
        if place not in self.shards:
            self.shards[place] = Shard(self, place, url)
        return self.shards[place]

    def _take(self, members: Sequence[databases.Member]) -> None:
        """Have the databases be those of ``members``; raises ``StoreError`` for one without a known URL."""
        unknown: list[int] = []
        for member in members:
            shard = self.shards.get(member.place)
            # Where the home knows another URL than this node, one that the settings give counts more.
            has_moved = (
                shard is not None and member.url not in (None, bare(shard.url)) and member.place not in self._given
            )
            if shard is not None and (member.removed or has_moved):
                del self.shards[member.place]
                self._dropped(shard)
                shard = None
            if member.removed:
                self.removed.add(member.place)
            elif shard is None and member.url is None:
                unknown.append(member.place + 1)
            elif shard is None and member.url is not None:
                self._add(member.place, member.url)
        if unknown:
            raise StoreError(
                f"{self.home.name} does not know the URL of database {unknown[0]} of its store: start a "
                "server with the URLs of all once, in their order, or add it with `veilmq database add`."
            )

    async def refresh(self) -> None:
        """Look which databases there are, and open those that are new."""
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
        await self._refreshing

    async def _refresh(self) -> None:
        try:
            members = await self.home.ask(databases.members)
            self._take(members)
            databases.keep(self.home.url, members)
        except (StoreUnavailable, StoreError) as error:
            log.warning("which databases there are is looked up later: %s", error)
        finally:
            self._refreshing = None
        closed = [shard for shard in self.shards.values() if shard.engine is None]
        await asyncio.gather(*(shard.open_late() for shard in closed))

    async def at(self, place: int) -> Shard:
        """Return the database at ``place``, which may have been added a moment ago; raises ``StoreUnavailable``."""
        if place not in self.shards:
            await self.refresh()
        if place not in self.shards:
            raise StoreUnavailable
        return self.shards[place]


async def _failure(shard: Shard) -> BaseException | None:
    """Return why the database cannot be reached, if so; raises ``StoreError`` for one that can, and cannot be used."""
    try:
        await shard.connect()
    except UNREACHABLE as error:
        return error
    except (VeilmqError, ValueError, asyncpg.PostgresError) as error:
        raise StoreError(f"{shard.name}: {error}") from error
    return None


async def _fits(shard: Shard, home: Identity) -> bool:
    """Tell whether a database knows that it has its place; raises ``StoreError`` where it cannot have it."""
    async with (await shard.connect()).connection() as connection:
        ours = await databases.read(connection)
        if ours is None and not await connection.fetchval(SHARDS["is_empty"]):
            raise StoreError(f"it has queues of its own, so it cannot be number {shard.place + 1} of another store.")
    reason = databases.objection(ours, store=home.store, place=shard.place)
    if reason:
        raise StoreError(reason)
    return ours is not None


@contextmanager
def _named(shard: Shard) -> Iterator[None]:
    """Say which database a ``StoreError`` is about."""
    try:
        yield
    except StoreError as error:
        raise StoreError(f"{shard.name}: {error}") from error
