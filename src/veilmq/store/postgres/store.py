"""A store on PostgreSQL: one database, its home, or several; each queue is wholly in one, and its commands go there.

The home knows the other databases and where each queue is, and has what is of no queue (accounts, topics). What must go
from one database to another goes through an outbox (``outbox``). A database is opened as soon as it can be reached. One
that is down takes its queues with it, and no other's; what needs all of them is refused meanwhile, as half of a
listing would be a wrong one. One that is added or removed meanwhile is noticed within seconds, or when a queue there is
named.

The place of a queue is written at the home before the queue is made. A queue never moves. A command goes to the
database that is known to have its queue, or else to the home; one that has no such queue asks the home where it
is, and has the command done there.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2s
from itertools import chain
from typing import Any, Self

import asyncpg

from veilmq.core import commands
from veilmq.core.commands import Command, Done, QueuePage, QueueView, Wake
from veilmq.core.errors import QueueNotFound, ShuttingDown, StoreUnavailable, VeilmqError
from veilmq.core.receipts import CountEvents, EventCounts, EventRange, ForgetEvents, Forgotten, PlanExport, ReadEvents
from veilmq.store.clock import SystemClock
from veilmq.store.port import NOTHING_HELD_BACK, Metric, Store, StoreError, Survey, SurveyQueues, execute
from veilmq.store.postgres import databases
from veilmq.store.postgres.database import UNREACHABLE, Database, Mover, PostgresOptions, failure_of, sentence
from veilmq.store.postgres.databases import SHARDS, Identity, named
from veilmq.store.postgres.engine import PostgresEngine, named_by
from veilmq.store.postgres.outbox import Arrived, Batch, Outbox, arrive
from veilmq.store.postgres.queues import SQL, Queue
from veilmq.store.postgres.transaction import transact
from veilmq.store.urls import remove_passwords, without_passwords

log = logging.getLogger(__name__)

REFRESH_MS = 10_000
"""How often a node looks which databases there are."""
_KNOWN_MAX = 100_000
_PAGE = 500
_TRIES_MAX = 5


class Shards(Store):
    """The store on one database or several. Every method belongs to the event loop's thread."""

    def __init__(self, urls: Sequence[str], *, clock: SystemClock, options: PostgresOptions) -> None:
        self._machine_clock = clock
        self._options = options
        self._given = dict(enumerate(urls))
        self._closing = False
        self._watched: dict[str, Wake] = {}
        self._creating, self._looking = asyncio.Lock(), asyncio.Lock()
        self._identity: Identity | None = None  # what the store is, once a database was reached
        self._places: dict[str, int] = {}  # of queues that were looked for elsewhere than at the home
        self._exported_place = 0
        self._removed: set[int] = set()  # the places of databases that were removed
        self.shards: dict[int, PostgresEngine] = {}
        """All databases by their places, the home at 0; some are not open yet."""
        self._home = self._add(0, urls[0])
        self.clock = self._home.clock
        """That of the home: the clocks of all databases are taken to agree."""
        self._of_all: dict[type[Command], Callable[[Any], Awaitable[Any]]] = {
            commands.CreateQueue: self._create,
            commands.ListQueues: self._list,
            commands.ListDeadLetterSources: self._list_sources,
            SurveyQueues: self._survey,
            PlanExport: self._plan_export,
            ReadEvents: self._of_export,
            ForgetEvents: self._forget_events,
            CountEvents: self._count_events,
        }
        self._refresher = Mover(step=self.refresh, clock=self.clock, start=self._home.start, poll_ms_max=REFRESH_MS)

    # Which databases there are.

    @classmethod
    async def open(cls, urls: Sequence[str], *, clock: SystemClock, options: PostgresOptions | None = None) -> Self:
        """Connect to the home, the first of ``urls`` (``postgresql://…``), and to all that it knows.

        Further URLs, in the order of their places, are made known to it. A database that cannot be reached is opened as
        soon as it can, if another one knows the store. Raises ``StoreError``, which has no password.
        """
        store = cls(urls, clock=clock, options=options or PostgresOptions())
        try:
            with named(urls[0]):
                await store._meet()
        except BaseException:
            await store.close()
            raise
        store._refresher.schedule(REFRESH_MS)
        return store

    async def _meet(self) -> None:
        """Open all databases that can be reached."""
        failure = await self._reach(self._home)
        for place, url in self._given.items():
            self._add(place, url)
        if failure is None:
            await self._meet_home()
        else:  # a database that has joined the store says what it is
            self._home.database.breaker.failed()
            self._take(databases.last_known(self._home.database.url))
        for engine in list(self.shards.values()):
            with named(engine.database.url), suppress(*UNREACHABLE):
                await self._open(engine)
        if failure is not None and self._identity is None:
            others = " No other known database of its store can be reached." if len(self.shards) > 1 else ""
            raise StoreError(f"{self._home.database.place} cannot be used: {sentence(failure)}{others}")

    async def _reach(self, engine: PostgresEngine) -> BaseException | None:
        """Return why a database cannot be reached, if so; raises ``StoreError`` for one that cannot be used."""
        with named(engine.database.url):
            try:
                await engine.database.open()
            except UNREACHABLE as error:
                return error
        return None

    async def _meet_home(self) -> None:
        """Make known what was given, and take what the home knows."""
        given = [engine for place, engine in self.shards.items() if place]
        reached = [engine for engine in given if await self._reach(engine) is None]
        async with self._home.database.connection() as connection:
            with named(self._home.database.url):
                home = self._identity = await databases.found(connection)
            async with connection.transaction():
                await connection.execute(SHARDS["lock_members"])
                for engine in given:
                    with named(engine.database.url):
                        is_sure = False
                        if engine in reached:
                            async with engine.database.connection() as there:
                                is_sure = await databases.require_place(there, store=home.store, place=engine.place)
                        await databases.register(connection, engine.place, engine.database.url, is_sure=is_sure)
            members = await databases.members(connection)
        self._take(members)

    def _add(self, place: int, url: str) -> PostgresEngine:
        if place not in self.shards:
            known: Any = {"options": self._options, "clock": self._machine_clock}
            self.shards[place] = PostgresEngine(Database(url, **known), place=place, store=self, **known)
        return self.shards[place]

    def _take(self, members: list[databases.Member]) -> None:
        """Have the databases be those of ``members``, and keep them; raises ``StoreError`` for one without a URL."""
        unknown: list[int] = []
        for member in members:
            place, url, is_removed = member.place, member.url, member.removed
            engine = self.shards.get(place)
            if is_removed:
                self._removed.add(place)
            # Where the home knows another URL than this node, one that the settings give counts more.
            has_moved = (
                engine is not None
                and url not in (None, remove_passwords(engine.database.url))
                and place not in self._given
            )
            if engine is not None and (is_removed or has_moved):
                self._drop(engine)
            if url is not None and not is_removed:
                self._add(place, url)
            elif not is_removed and place not in self.shards:
                unknown.append(place + 1)
        if unknown:
            raise StoreError(
                f"{self._home.database.place} does not know the URL of database {unknown[0]} of its store: start a "
                "server with the URLs of all once, in their order, or add it with `veilmq database add`."
            )
        databases.keep(self._home.database.url, members)

    async def refresh(self) -> None:
        """Look which databases there are, and open those that are new."""
        try:
            self._take(await self._home.read(databases.members))
        except (StoreUnavailable, StoreError) as error:
            log.warning("the list of databases could not be read, and is read later: %s", error)
        await asyncio.gather(*(self.open_late(engine) for engine in self.shards.values() if not engine.is_open))

    async def _open(self, engine: PostgresEngine) -> None:
        """Have a database take part; raises what keeps it from being reached, or used."""
        place = engine.place
        async with engine.opening:
            if engine.is_open or engine.is_closing:
                return
            await engine.database.open()
            async with engine.database.connection() as connection:
                home = self._identity = self._identity or await databases.identity(connection)
                if home is None:
                    return
                await databases.join(connection, home, place)
                sent_ms = self._machine_clock.now_ms()
                engine.clock.saw(await connection.fetchval(SQL["now"]), sent_ms=sent_ms)
            # Numbers of queues are of one database, and receipts of no other.
            key = home.receipt_key if place == 0 else blake2s(b"shard %d" % place, key=home.receipt_key).digest()
            engine.begin(key, home.token_key)
        for queue, wake in self._watched.items():
            if self._likely(queue) is engine:
                engine.watch(queue, wake)

    async def open_late(self, engine: PostgresEngine) -> None:
        """Have a database take part if that is possible now; a log line says why not."""
        try:
            await self._open(engine)
        except (*UNREACHABLE, asyncpg.PostgresError, VeilmqError) as error:
            engine.database.breaker.failed()
            log.warning("%s cannot be used yet: %s", engine.database.place, without_passwords(str(error)))

    def _drop(self, engine: PostgresEngine) -> None:
        """Have a database take part no more."""
        del self.shards[engine.place]
        engine.rest()
        self._home.start(engine.close())

    def _opened(self, place: int) -> PostgresEngine:
        """Return the database; raises ``StoreUnavailable`` where it is not open yet, or removed."""
        engine = self.shards.get(place)
        if engine is None or not engine.is_open:
            raise StoreUnavailable if engine is None else engine.unavailable()
        return engine

    # Where a queue is.

    def _likely(self, name: str) -> PostgresEngine:
        """Return the database that is known to have a queue, or the home."""
        return self.shards.get(self._places.get(name, 0), self._home)

    def _note_place(self, name: str, engine: PostgresEngine) -> PostgresEngine:
        if len(self._places) >= _KNOWN_MAX:
            self._places.clear()
        self._places[name] = engine.place
        return engine

    async def engine_of(self, name: str, *, not_at: int | None = None) -> PostgresEngine:
        """Look up the database that has a queue, which is not that ``not_at``.

        Raises ``QueueNotFound`` and ``StoreUnavailable``.
        """
        try:
            place: int | None = await self._home.read(lambda connection: connection.fetchval(SHARDS["locate"], name))
        except StoreUnavailable:  # another database may have it; of any other queue only the home can tell
            for other in list(self.shards.values()):
                with suppress(StoreUnavailable):
                    if other is not self._home and await self._queue_at(other, name) is not None:
                        place = other.place
                        break
            else:
                raise
        if place is None or place == not_at:
            raise QueueNotFound(name)
        await self._find_place(place)
        engine = self._note_place(name, self.shards[place])
        if (wake := self._watched.get(name)) is not None:
            self.unwatch(name)  # one without the queue would wake it whenever it looks
            self.watch(name, wake)
        return engine

    async def _find_place(self, place: int) -> None:
        """Look which databases there are where that one is not known; raises ``StoreUnavailable`` if there is none."""
        if place not in self.shards:
            async with self._looking:
                if place not in self.shards:
                    await self.refresh()
        if place not in self.shards:
            raise StoreUnavailable

    async def _reserve(self, name: str) -> None:
        """Give a queue its place, where the fewest are of the databases that can be reached, unless it has one."""
        async with self._opened(0).database.connection() as connection:
            loads = dict(await connection.fetch(SHARDS["loads"]))
            for place, engine in sorted(self.shards.items(), key=lambda each: (loads.get(each[0], 0), each[0])):
                with suppress(StoreUnavailable):
                    await engine.read(lambda there: there.fetchval("SELECT true"))
                    await connection.execute(SHARDS["reserve"], name, place)
                    return
        raise StoreUnavailable

    async def sweep_places(self, home: Any) -> None:
        """Forget the places of queues that are gone; ``home`` is the connection of its janitor."""
        for engine in list(self.shards.values()):
            after = ""
            while rows := await home.fetch(SHARDS["placed"], engine.place, after, _PAGE):
                (after,) = rows[-1]
                if unused := await self._unused(engine, rows):
                    async with home.transaction():  # looked up again, while none of them can be made
                        held = await home.fetch(SHARDS["take_places"], unused, engine.place)
                        dropped = await self._unused(engine, held)
                        await home.execute(SHARDS["drop_places_of"], dropped)

    async def _unused(self, engine: PostgresEngine, rows: Sequence[Any]) -> list[str]:
        """Return which of the names in ``rows`` no queue has there, as far as that can be known."""
        with suppress(StoreUnavailable):
            names = [name for (name,) in rows]
            return [name for (name,) in await engine.read(lambda there: there.fetch(SHARDS["unused"], names))]
        return []

    # What a relay of the outbox asks for.

    async def find(self, name: str) -> tuple[int, Queue] | None:
        """Return the queue of that full name and its place; raises ``StoreUnavailable`` where that cannot be known."""
        engine = self.shards.get(self._places.get(name, -1))
        queue = None if engine is None else await self._queue_at(engine, name)
        if queue is None:
            with suppress(QueueNotFound):
                engine = await self.engine_of(name)
                queue = await self._queue_at(engine, name)
        return None if engine is None or queue is None else (engine.place, queue)

    async def _queue_at(self, engine: PostgresEngine, name: str) -> Queue | None:
        return engine.catalog.known(name) or await engine.read(lambda there: engine.catalog.find(there, name))

    async def has_sources(self, name: str) -> bool:
        """Tell whether the queue is the dead-letter queue of one at any place; raises ``StoreUnavailable``."""
        for engine in list(self.shards.values()):
            if await engine.read(lambda there: there.fetch(SQL["queue_sources"], name, "", 1)):
                return True
        return False

    async def arrive(self, outbox: Outbox, from_place: int, batch: Batch) -> Arrived:
        """Have a batch stored at its target; raises ``StoreUnavailable``."""
        if outbox.place in self._removed:
            return Arrived(is_there=False)
        work = partial(arrive, outbox=outbox, from_place=from_place, batch=batch)
        return await transact(self._opened(outbox.place), work)

    # ``core.commands.Engine``.

    @property
    def token_key(self) -> bytes:
        assert self._identity is not None, "the store is known"
        return self._identity.token_key

    def submit(self, command: Command, done: Done) -> None:
        if self._closing:
            done(ShuttingDown())
            return
        of_all = self._of_all.get(type(command))
        if of_all is not None:
            self._home.start(self._do(of_all, command, done))
            return
        engine = home = self._home
        if len(self.shards) > 1 and (name := named_by(command)) is not None:
            engine = self._likely(name)
            if engine is home and home.database.breaker.is_open and home.catalog.seen(name) is None:
                # It may be in another one, which asks all others.
                reached = (each for each in self._open_ones() if not each.database.breaker.is_open)
                engine = self._note_place(name, next(reached, home))
        engine.submit(command, done)

    async def _do(self, work: Callable[[Any], Awaitable[Any]], command: Command, done: Done) -> None:
        try:
            done(await work(command))
        except Exception as error:  # noqa: BLE001 - the caller is answered, and a fault of ours is in the log
            done(failure_of(error, type(command).__name__))

    def withdraw(self, done: Done) -> None:
        for engine in self._open_ones():
            engine.withdraw(done)

    def watch(self, queue: str, wake: Wake) -> None:
        self._watched[queue] = wake
        engine = self._likely(queue)
        if engine.is_open:
            engine.watch(queue, wake)

    def unwatch(self, queue: str) -> None:
        self._watched.pop(queue, None)
        for engine in self._open_ones():
            engine.unwatch(queue)

    def _open_ones(self) -> list[PostgresEngine]:
        return [engine for engine in self.shards.values() if engine.is_open]

    # Commands that concern more than one database.

    async def _everywhere(self, command: Command) -> list[Any]:
        """Return the answers of all databases; raises ``StoreUnavailable`` while one is down."""
        return await asyncio.gather(*(execute(engine, command) for engine in self.shards.values()))

    async def _create(self, command: commands.CreateQueue) -> QueueView:
        async with self._creating:
            for _ in range(_TRIES_MAX):
                async with self._opened(0).database.connection() as connection, connection.transaction():
                    place = await connection.fetchval(SHARDS["hold_place"], command.queue)
                    if place is not None:  # it stays while the queue is made
                        await self._find_place(place)
                        view: QueueView = await execute(self.shards[place], command)
                        return view
                await self._reserve(command.queue)
            raise StoreUnavailable

    async def _list(self, command: commands.ListQueues) -> QueuePage:
        pages: list[QueuePage] = await self._everywhere(command)
        names = sorted(name for page in pages for name in page.names)
        views = sorted((view for page in pages for view in page.views), key=lambda view: view.queue)
        more = len(names) > command.count or any(page.more for page in pages)
        return QueuePage(names=names[: command.count], more=more, views=views[: command.count])

    async def _survey(self, command: SurveyQueues) -> Survey:
        surveys: list[Survey] = await self._everywhere(command)
        names = sorted(name for survey in surveys for name in survey.names)
        return Survey(names[: command.names_max], sum(survey.in_all for survey in surveys))

    async def _list_sources(self, command: commands.ListDeadLetterSources) -> QueuePage:
        if await self.find(command.queue) is None:
            raise QueueNotFound(command.queue)
        terms = command.queue, command.after, command.count + 1
        read = [each.read(lambda there: there.fetch(SQL["queue_sources"], *terms)) for each in self.shards.values()]
        found = await asyncio.gather(*read)
        names = sorted(name for (name,) in chain(*found))
        return QueuePage(names=names[: command.count], more=len(names) > command.count)

    async def _plan_export(self, command: PlanExport) -> EventRange | None:
        """Choose the next range, of the database whose turn it is or of the next one that has any.

        One that is down is passed over; raises ``StoreUnavailable`` if it may be the only one that has any.
        """
        is_sure = True
        for place in sorted(self.shards, key=lambda place: (place < self._exported_place, place)):
            try:
                planned: EventRange | None = await execute(self._opened(place), command)
            except StoreUnavailable:
                is_sure = False
                continue
            if planned is not None:
                self._exported_place = place
                return planned
        if not is_sure:
            raise StoreUnavailable
        return None

    async def _of_export(self, command: ReadEvents | ForgetEvents) -> Any:
        return await execute(self._opened(self._exported_place), command)

    async def _forget_events(self, command: ForgetEvents) -> Forgotten:
        """Take it that they are exported; then it is the next one's turn."""
        forgotten: Forgotten = await self._of_export(command)
        if not forgotten.more:
            self._exported_place += 1
        return forgotten

    async def _count_events(self, command: CountEvents) -> EventCounts:
        counts: list[EventCounts] = await self._everywhere(command)
        names = EventCounts.__struct_fields__
        return EventCounts(**{name: sum(getattr(each, name) for each in counts) for name in names})

    # ``store.port.Store``.

    @property
    def location(self) -> str:
        return f"in PostgreSQL, {' and '.join(engine.database.place for engine in self.shards.values())}"

    async def readiness_failures(self) -> list[str]:
        """Return why no requests should be sent here: as long as one database answers there is something to do."""
        found = [await engine.readiness_failures() for engine in self._open_ones()]
        return found[0] if all(found) else []

    def warnings(self) -> list[str]:
        return list(dict.fromkeys(text for engine in self._open_ones() for text in engine.clock_guard.warnings()))

    async def trust_clock(self) -> str:
        """Take the present time of all databases that are open for right; see ``store.port.Store``."""
        try:
            texts = [await engine.clock_guard.trust() for engine in self._open_ones()]
        except Exception as error:
            raise failure_of(error, "trust in the clock") from error
        return next((text for text in texts if text != NOTHING_HELD_BACK), NOTHING_HELD_BACK)

    def metrics(self) -> Sequence[Metric]:
        """Return what the database tells; of several by its number, or, where a figure has a label, together."""
        if len(self.shards) == 1:
            return self._home.metrics()
        merged: dict[str, Metric] = {}
        for engine in self._open_ones():
            for figure in (*engine.metrics(), *engine.catalog.outbox.metrics()):
                samples: dict[str, Any] = dict(merged[figure.name].samples) if figure.name in merged else {}
                for value, sample in figure.samples.items():
                    key = value if figure.label else str(engine.place + 1)
                    samples[key] = samples[key] + sample if key in samples else sample
                merged[figure.name] = figure._replace(samples=samples, label=figure.label or "database")
        return list(merged.values())

    async def load_or_create(self, name: str, create: Callable[[], bytes]) -> bytes:
        """Return what the home keeps under ``name`` for all nodes; raises ``VeilmqError``."""
        try:
            async with self._opened(0).database.connection() as connection:
                kept = await connection.fetchval(SQL["setting"], name)
                content: bytes = await connection.fetchval(SQL["kept_key"], name, create()) if kept is None else kept
                return content
        except Exception as error:
            raise failure_of(error, "a secret") from error

    async def drain(self) -> None:
        """Return when nothing waits and nothing is under way, the outbox included."""
        while under_way := {task for engine in self.shards.values() for task in engine.under_way()}:
            await asyncio.wait(under_way)

    async def close(self) -> None:
        self._closing = True
        self._refresher.stop()
        for engine in self.shards.values():
            engine.rest()  # else some are busy whenever others are not
        await self.drain()
        for engine in self.shards.values():
            await engine.close()
