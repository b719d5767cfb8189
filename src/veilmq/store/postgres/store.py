"""A store on one or more PostgreSQL databases; each queue is in one of them, and its commands run there.

The home, the first database, lists the other databases and the place of each queue, and has accounts and topics.
Messages move between databases through an outbox (``outbox``). While a database is down, its queues are unavailable,
and commands that need all databases, such as listings, fail. Nodes notice added and removed databases within seconds.

The home records the place of a queue before the queue is created; a queue never moves. A command goes to the database
that has its queue according to a cache, or to the home. A database without the queue looks up its place at the home,
and forwards the command.
"""

import asyncio
import logging
from collections import ChainMap
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2s
from itertools import chain
from operator import methodcaller
from typing import Any, Self

from veilmq.core import commands
from veilmq.core.commands import Command, Done, QueuePage, QueueView, Wake
from veilmq.core.errors import QueueNotFound, ShuttingDown, StoreUnavailable, VeilmqError
from veilmq.core.receipts import CountEvents, EventCounts, EventRange, ForgetEvents, Forgotten, PlanExport, ReadEvents
from veilmq.store.clock import SystemClock
from veilmq.store.port import NOTHING_HELD_BACK, CountQueues, Metric, Store, StoreError, Survey, SurveyQueues, execute
from veilmq.store.postgres import databases
from veilmq.store.postgres.database import (
    FAILURES,
    UNREACHABLE,
    Database,
    PostgresOptions,
    Worker,
    failure_of,
    sentence,
)
from veilmq.store.postgres.databases import SHARDS, Identity, store_errors
from veilmq.store.postgres.engine import PostgresEngine, queue_name_of
from veilmq.store.postgres.outbox import Batch, Outbox, store_batch
from veilmq.store.postgres.queues import SQL, Queue
from veilmq.store.postgres.transaction import transact
from veilmq.store.urls import remove_passwords, without_passwords

log = logging.getLogger(__name__)

REFRESH_MS = 10_000
"""Interval at which a node reads the list of databases."""
_KNOWN_MAX = 100_000
_PAGE = 500
_TRIES_MAX = 5


class Shards(Store):
    """The store on one or more databases. Call methods in the event loop's thread."""

    def __init__(self, urls: Sequence[str], *, clock: SystemClock, options: PostgresOptions) -> None:
        self._machine_clock = clock
        self._options = options
        self._configured_urls = dict(enumerate(urls))
        self._is_closing = False
        self._watched: dict[str, Wake] = {}
        self._create_lock, self._refresh_lock = asyncio.Lock(), asyncio.Lock()
        self._identity: Identity | None = None  # known once a database was reached
        self._places: dict[str, int] = {}  # places of queues outside the home, as a cache
        self._export_place = 0
        self._removed: set[int] = set()  # places of removed databases
        self.shards: dict[int, PostgresEngine] = {}  # by place; some may not be open yet
        self._home = self._add(0, urls[0])
        self.clock = self._home.clock  # the clocks of all databases are assumed to agree
        self._store_commands: dict[type[Command], Callable[[Any], Awaitable[Any]]] = {
            commands.CreateQueue: self._create,
            commands.ListQueues: self._list,
            commands.ListDeadLetterSources: self._list_sources,
            SurveyQueues: self._survey,
            CountQueues: self._count_queues,
            PlanExport: self._plan_export,
            ReadEvents: self._run_export,
            ForgetEvents: self._forget_events,
            CountEvents: self._count_events,
        }
        self._refresher = Worker(step=self.refresh, clock=self.clock, start=self._home.start, poll_ms_max=REFRESH_MS)

    @classmethod
    async def open(cls, urls: Sequence[str], *, clock: SystemClock, options: PostgresOptions | None = None) -> Self:
        """Connect to the home, the first of ``urls`` (``postgresql://…``), and to all databases that it lists.

        Further URLs, in the order of their places, are added to the list. At least one database of the store must be
        reachable. Raises ``StoreError``, without passwords.
        """
        store = cls(urls, clock=clock, options=options or PostgresOptions())
        try:
            with store_errors(urls[0]):
                await store._open_all()
        except BaseException:
            await store.close()
            raise
        store._refresher.schedule(REFRESH_MS)
        return store

    async def _open_all(self) -> None:
        """Open all reachable databases."""
        failures: dict[int, BaseException] = {}
        for engine in [self._add(place, url) for place, url in self._configured_urls.items()]:
            with store_errors(engine.database.url):
                try:
                    await engine.database.open()
                except UNREACHABLE as error:
                    failures[engine.place] = error
        failure = failures.get(0)
        if failure is None:
            await self._read_home([engine for place, engine in self.shards.items() if place not in failures])
        else:  # the other databases have the identity of the store
            self._home.database.breaker.failed()
            self._apply_members(databases.load_members(self._home.database.url))
        for engine in list(self.shards.values()):
            with store_errors(engine.database.url), suppress(*UNREACHABLE):
                await self._open(engine)
        if failure is not None and self._identity is None:
            others = " No other known database of its store can be reached." if len(self.shards) > 1 else ""
            raise StoreError(f"{self._home.database.shown_url} cannot be used: {sentence(failure)}{others}")

    async def _read_home(self, reached: Sequence[PostgresEngine]) -> None:
        """Register the given URLs at the home, and read its list."""
        async with self._home.database.connection() as connection:
            with store_errors(self._home.database.url):
                home = self._identity = await databases.home_identity(connection)
            async with connection.transaction():
                await connection.execute(SHARDS["lock_members"])
                for engine in list(self.shards.values())[1:]:
                    with store_errors(engine.database.url):
                        is_sure = False
                        if engine in reached:
                            async with engine.database.connection() as there:
                                is_sure = await databases.require_place(there, store=home.store, place=engine.place)
                        await databases.register(connection, engine.place, engine.database.url, is_sure=is_sure)
            members = await databases.members(connection)
        self._apply_members(members)

    def _add(self, place: int, url: str) -> PostgresEngine:
        if place not in self.shards:
            shared: Any = {"options": self._options, "clock": self._machine_clock}
            self.shards[place] = PostgresEngine(Database(url, **shared), place=place, store=self, **shared)
        return self.shards[place]

    def _apply_members(self, members: list[databases.Member]) -> None:
        """Apply a new list of databases, and save it; raises ``StoreError`` for a member without a URL."""
        unknown: list[int] = []
        for member in members:
            place, url, is_removed = member.place, member.url, member.removed
            engine = self.shards.get(place)
            if is_removed:
                self._removed.add(place)
            # A URL in the settings takes precedence over that of the home.
            has_moved = (
                engine is not None
                and url not in (None, remove_passwords(engine.database.url))
                and place not in self._configured_urls
            )
            if engine is not None and (is_removed or has_moved):
                self._drop(engine)
            if url is not None and not is_removed:
                self._add(place, url)
            elif not is_removed and place not in self.shards:
                unknown.append(place + 1)
        if unknown:
            raise StoreError(
                f"{self._home.database.shown_url} does not know the URL of database {unknown[0]} of its store: start a "
                "server with the URLs of all once, in their order, or add it with `veilmq database add`."
            )
        databases.save_members(self._home.database.url, members)

    async def refresh(self) -> None:
        """Read the list of databases, and open new ones."""
        try:
            self._apply_members(await self._home.read(databases.members))
        except (StoreUnavailable, StoreError) as error:
            log.warning("the list of databases could not be read, and is read later: %s", error)
        await asyncio.gather(*(self.open_late(engine) for engine in self.shards.values() if not engine.is_open))

    async def _open(self, engine: PostgresEngine) -> None:
        """Open a database; raises the error if it cannot be reached or used."""
        place = engine.place
        async with engine.open_lock:
            if engine.is_open or engine.is_closing:
                return
            await engine.database.open()
            async with engine.database.connection() as connection:
                home = self._identity = self._identity or await databases.identity(connection)
                if home is None:
                    return
                await databases.join(connection, home, place)
                sent_ms = self._machine_clock.now_ms()
                engine.clock.synchronize(await connection.fetchval(SQL["now"]), sent_ms=sent_ms)
            # Queue numbers are unique only within a database, so each has its own receipt key.
            key = home.receipt_key if place == 0 else blake2s(b"shard %d" % place, key=home.receipt_key).digest()
            engine.begin(key, home.token_key)
        for queue, wake in self._watched.items():
            if self._cached_engine(queue) is engine:
                engine.watch(queue, wake)

    async def open_late(self, engine: PostgresEngine) -> None:
        """Open a database; log a failure."""
        try:
            await self._open(engine)
        except (*FAILURES, VeilmqError) as error:
            engine.database.breaker.failed()
            log.warning("%s cannot be used yet: %s", engine.database.shown_url, without_passwords(str(error)))

    def _drop(self, engine: PostgresEngine) -> None:
        """Close a database and remove it."""
        del self.shards[engine.place]
        engine.stop_background()
        self._home.start(engine.close())

    def _engine_at(self, place: int) -> PostgresEngine:
        """Return the open database at ``place``; raises ``StoreUnavailable`` if it is not open or was removed."""
        engine = self.shards.get(place)
        if engine is None or not engine.is_open:
            raise StoreUnavailable if engine is None else engine.unavailable()
        return engine

    def _cached_engine(self, name: str) -> PostgresEngine:
        """Return the database that has the queue according to the cache, or the home."""
        return self.shards.get(self._places.get(name, 0), self._home)

    def _cache_place(self, name: str, engine: PostgresEngine) -> PostgresEngine:
        if len(self._places) >= _KNOWN_MAX:
            self._places.clear()
        self._places[name] = engine.place
        return engine

    async def engine_of(self, name: str, *, not_at: int | None = None, home: Any = None) -> PostgresEngine:
        """Look up the database of a queue; raises ``QueueNotFound``, also for ``not_at``, and ``StoreUnavailable``."""
        locate = methodcaller("fetchval", SHARDS["locate"], name)
        try:  # with the caller's connection to the home, if it has one: to wait for another one could exhaust them
            place: int | None = await (self._home.read(locate) if home is None else locate(home))
        except StoreUnavailable:  # the home is down: try the other databases
            for other in list(self.shards.values()):
                with suppress(StoreUnavailable):
                    if other is not self._home and await self._queue_at(other, name) is not None:
                        place = other.place
                        break
            else:
                raise
        if place is None or place == not_at:
            raise QueueNotFound(name)
        await self._require_place(place)
        engine = self._cache_place(name, self.shards[place])
        if (wake := self._watched.get(name)) is not None:
            self.unwatch(name)  # a database without the queue would wake it at each poll
            self.watch(name, wake)
        return engine

    async def _require_place(self, place: int) -> None:
        """Read the list of databases if ``place`` is unknown; raises ``StoreUnavailable`` if it does not exist."""
        if place not in self.shards:
            async with self._refresh_lock:
                if place not in self.shards:
                    await self.refresh()
        if place not in self.shards:
            raise StoreUnavailable

    async def _reserve(self, name: str) -> None:
        """Give a new queue its place: the reachable database with the fewest queues."""
        async with self._engine_at(0).database.connection() as connection:
            loads = dict(await connection.fetch(SHARDS["loads"]))
            for place, engine in sorted(self.shards.items(), key=lambda each: (loads.get(each[0], 0), each[0])):
                with suppress(StoreUnavailable):
                    await engine.read(lambda there: there.fetchval("SELECT true"))
                    await connection.execute(SHARDS["reserve"], name, place)
                    return
        raise StoreUnavailable

    async def sweep(self, home: Any) -> None:
        """Delete the places of deleted queues; ``home`` is the connection of the home's janitor."""
        for engine in list(self.shards.values()):
            after = ""
            while rows := await home.fetch(SHARDS["placed"], engine.place, after, _PAGE):
                (after,) = rows[-1]
                if unused := await self._unused(engine, rows):
                    async with home.transaction():  # check again while the queues cannot be created
                        held = await home.fetch(SHARDS["lock_places"], unused, engine.place)
                        dropped = await self._unused(engine, held)
                        await home.execute(SHARDS["delete_places_of"], dropped)

    async def _unused(self, engine: PostgresEngine, rows: Sequence[Any]) -> list[str]:
        """Return the names in ``rows`` without a queue; none while the database is down."""
        with suppress(StoreUnavailable):
            names = [name for (name,) in rows]
            return [name for (name,) in await engine.read(lambda there: there.fetch(SHARDS["unused"], names))]
        return []

    async def find(self, name: str, *, home: Any = None) -> tuple[int, Queue] | None:
        """Return the place and the queue of a full name, as ``engine_of``; raises ``StoreUnavailable``."""
        engine = self.shards.get(self._places.get(name, -1))
        queue = None if engine is None else await self._queue_at(engine, name)
        if queue is None:
            with suppress(QueueNotFound):
                engine = await self.engine_of(name, home=home)
                queue = await self._queue_at(engine, name)
        return None if engine is None or queue is None else (engine.place, queue)

    async def _queue_at(self, engine: PostgresEngine, name: str) -> Queue | None:
        return engine.catalog.fresh(name) or await engine.read(lambda there: engine.catalog.look_up(there, name))

    async def has_sources(self, name: str) -> bool:
        """Return whether the queue is the dead-letter queue of any queue; raises ``StoreUnavailable``."""
        for engine in list(self.shards.values()):
            if await engine.read(lambda there: there.fetch(SQL["queue_sources"], name, "", 1)):
                return True
        return False

    async def store_batch(self, outbox: Outbox, from_place: int, batch: Batch) -> int | None:
        """Store a batch as ``outbox.store_batch``; raises ``QueueNotFound`` and ``StoreUnavailable``."""
        if outbox.place in self._removed:
            raise QueueNotFound(outbox.target)
        work = partial(store_batch, outbox=outbox, from_place=from_place, batch=batch)
        return await transact(self._engine_at(outbox.place), work)

    # ``core.commands.Engine``.

    @property
    def token_key(self) -> bytes:
        assert self._identity is not None, "the store is open"
        return self._identity.token_key

    def submit(self, command: Command, done: Done) -> None:
        if self._is_closing:
            done(ShuttingDown())
            return
        run = self._store_commands.get(type(command))
        if run is not None:
            self._home.start(self._run(run, command, done))
            return
        engine = home = self._home
        if len(self.shards) > 1 and (name := queue_name_of(command)) is not None:
            engine = self._cached_engine(name)
            if engine is home and home.database.breaker.is_open and home.catalog.cached(name) is None:
                # Another database may have it, and can search the rest.
                reached = (each for each in self._open_engines() if not each.database.breaker.is_open)
                engine = self._cache_place(name, next(reached, home))
        engine.submit(command, done)

    async def _run(self, work: Callable[[Any], Awaitable[Any]], command: Command, done: Done) -> None:
        try:
            result = await work(command)
        except Exception as error:  # noqa: BLE001 - becomes the reply; failure_of logs defects
            result = failure_of(error, type(command).__name__)
        done(result)

    def withdraw(self, matches: Callable[[Done], bool]) -> list[Done]:
        return [done for engine in self._open_engines() for done in engine.withdraw(matches)]

    def watch(self, queue: str, wake: Wake) -> None:
        self._watched[queue] = wake
        engine = self._cached_engine(queue)
        if engine.is_open:
            engine.watch(queue, wake)

    def unwatch(self, queue: str) -> None:
        self._watched.pop(queue, None)
        for engine in self._open_engines():
            engine.unwatch(queue)

    def _open_engines(self) -> list[PostgresEngine]:
        return [engine for engine in self.shards.values() if engine.is_open]

    async def _run_on_all(self, command: Command) -> list[Any]:
        """Return the results of all databases; raises ``StoreUnavailable`` while one is down."""
        return await asyncio.gather(*(execute(engine, command) for engine in self.shards.values()))

    async def _create(self, command: commands.CreateQueue) -> QueueView:
        async with self._create_lock:
            for _ in range(_TRIES_MAX):
                async with self._engine_at(0).database.connection() as connection, connection.transaction():
                    place = await connection.fetchval(SHARDS["lock_place"], command.queue)
                    if place is not None:  # locked while the queue is created
                        await self._require_place(place)
                        view: QueueView = await execute(self.shards[place], command)
                        return view
                await self._reserve(command.queue)
            raise StoreUnavailable

    async def _list(self, command: commands.ListQueues) -> QueuePage:
        pages: list[QueuePage] = await self._run_on_all(command)
        names = sorted(name for page in pages for name in page.names)
        views = sorted((view for page in pages for view in page.views), key=lambda view: view.queue)
        more = len(names) > command.count or any(page.more for page in pages)
        return QueuePage(names=names[: command.count], more=more, views=views[: command.count])

    async def _survey(self, command: SurveyQueues) -> Survey:
        surveys: list[Survey] = await self._run_on_all(command)
        names = sorted(name for survey in surveys for name in survey.names)
        _, in_all, claims, staged = zip(*surveys, strict=True)
        return Survey(names[: command.names_max], sum(in_all), ChainMap(*claims), ChainMap(*staged))

    async def _count_queues(self, command: CountQueues) -> list[QueueView]:
        """Search the databases one by one, those that are down last; raises ``StoreUnavailable`` if it must."""
        found, left = list[QueueView](), set(command.names)
        for engine in sorted(self.shards.values(), key=self._is_down):
            found += await execute(engine, CountQueues(names=[*left])) if left else []
            left.difference_update(view.queue for view in found)
        return found

    async def _list_sources(self, command: commands.ListDeadLetterSources) -> QueuePage:
        if await self.find(command.queue) is None:
            raise QueueNotFound(command.queue)
        args = command.queue, command.after, command.count + 1
        read = [each.read(lambda there: there.fetch(SQL["queue_sources"], *args)) for each in self.shards.values()]
        found = await asyncio.gather(*read)
        names = sorted(name for (name,) in chain(*found))
        return QueuePage(names=names[: command.count], more=len(names) > command.count)

    async def _plan_export(self, command: PlanExport) -> EventRange | None:
        """Plan the next range of the first database with events, from the current one on.

        Raises ``StoreUnavailable`` if only databases that are down may have events.
        """
        is_sure = True
        for place in sorted(self.shards, key=lambda place: (place < self._export_place, place)):
            try:
                planned: EventRange | None = await execute(self._engine_at(place), command)
            except StoreUnavailable:
                is_sure = False
                continue
            if planned is not None:
                self._export_place = place
                return planned
        if not is_sure:
            raise StoreUnavailable
        return None

    async def _run_export(self, command: ReadEvents | ForgetEvents) -> Any:
        return await execute(self._engine_at(self._export_place), command)

    async def _forget_events(self, command: ForgetEvents) -> Forgotten:
        """Delete exported events; after the last one, continue with the next database."""
        forgotten: Forgotten = await self._run_export(command)
        if not forgotten.more:
            self._export_place += 1
        return forgotten

    async def _count_events(self, command: CountEvents) -> EventCounts:
        counts: list[EventCounts] = await self._run_on_all(command)
        names = EventCounts.__struct_fields__
        return EventCounts(**{name: sum(getattr(each, name) for each in counts) for name in names})

    # ``store.port.Store``.

    @staticmethod
    def _is_down(engine: PostgresEngine) -> bool:
        return not engine.is_open or engine.database.breaker.is_open

    @property
    def location(self) -> str:
        return f"in PostgreSQL, {' and '.join(engine.database.shown_url for engine in self.shards.values())}"

    async def readiness_failures(self) -> list[str]:
        """Return a reason only if all databases fail: one that works can serve its queues."""
        found = [await engine.readiness_failures() for engine in self._open_engines()]
        return found[0] if all(found) else []

    def warnings(self) -> list[str]:
        down = [*filter(self._is_down, self.shards.values())]
        texts = [f"Database {each.place + 1} cannot be reached, and its queues are unavailable." for each in down]
        guards = (each.clock_guard.warnings() for each in self._open_engines())
        return list(dict.fromkeys(chain(texts if len(down) < len(self.shards) else (), *guards)))

    async def trust_clock(self) -> str:
        """Trust the clocks of all open databases; see ``store.port.Store``."""
        try:
            texts = [await engine.clock_guard.trust() for engine in self._open_engines()]
        except Exception as error:
            raise failure_of(error, "trust in the clock") from error
        return next((text for text in texts if text != NOTHING_HELD_BACK), NOTHING_HELD_BACK)

    def metrics(self) -> Sequence[Metric]:
        """Return the metrics; of several databases by number, or their sum where a metric has a label."""
        if len(self.shards) == 1:
            return self._home.metrics()
        merged: dict[str, Metric] = {}
        for engine in self.shards.values():
            for metric in (*engine.metrics(), *engine.catalog.outbox.metrics()):
                samples: dict[str, Any] = dict(merged[metric.name].samples) if metric.name in merged else {}
                for value, sample in metric.samples.items():
                    key = value if metric.label else str(engine.place + 1)
                    samples[key] = samples[key] + sample if key in samples else sample
                merged[metric.name] = metric._replace(samples=samples, label=metric.label or "database")
        return list(merged.values())

    async def load_or_create(self, name: str, create: Callable[[], bytes]) -> bytes:
        """Return the setting ``name`` of the home, created on first use; raises ``VeilmqError``."""
        try:
            async with self._engine_at(0).database.connection() as connection:
                kept = await connection.fetchval(SQL["setting"], name)
                content: bytes = (
                    await connection.fetchval(SQL["insert_setting"], name, create()) if kept is None else kept
                )
                return content
        except Exception as error:
            raise failure_of(error, "a secret") from error

    async def drain(self) -> None:
        """Wait until no command or background work is pending, the outbox included."""
        while pending := {task for engine in self.shards.values() for task in engine.running_tasks()}:
            await asyncio.wait(pending)

    async def close(self) -> None:
        self._is_closing = True
        self._refresher.stop()
        for engine in self.shards.values():
            engine.stop_background()  # first of all engines, because one causes work for another
        await self.drain()
        for engine in self.shards.values():
            await engine.close()
