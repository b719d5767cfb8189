"""A store on PostgreSQL: one database, its home, or several; each queue is wholly in one, and its commands go there.

The home knows the other databases and where each queue is, and has what is of no queue (accounts, topics). What must go
from one database to another goes through an outbox (``outbox``). A database that is down takes its
queues with it, and no other's; what is asked of all of them is refused meanwhile, as half of a listing would be a wrong
one. A database that is added or removed meanwhile is noticed within seconds, or when a queue there is named.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import asyncpg

from veilmq.core import commands
from veilmq.core.commands import Command
from veilmq.core.errors import QueueNotFound, ShuttingDown, StoreUnavailable, VeilmqError
from veilmq.core.events import CountEvents, EventCounts, EventRange, ForgetEvents, Forgotten, PlanExport, ReadEvents
from veilmq.core.ports import Done, Wake
from veilmq.core.results import QueuePage, QueueView
from veilmq.store.port import NOTHING_HELD_BACK, Figure, Report, StoreError, Survey, by_database, execute
from veilmq.store.postgres.background import Mover
from veilmq.store.postgres.cluster import REFRESH_MS, Cluster, Directory, Shard
from veilmq.store.postgres.database import IN_DOUBT, MachineClock, PostgresOptions, failure_of, sentence
from veilmq.store.postgres.engine import PostgresEngine
from veilmq.store.postgres.outbox import Carrier
from veilmq.store.postgres.queues import SQL
from veilmq.store.postgres.schema import CONNECT_S, Durability, SchemaRefused, examine, look, migrate
from veilmq.store.urls import without_passwords

log = logging.getLogger(__name__)

SWEEP_MS = 600_000
"""How often a node looks for places of queues that are gone."""

_TURN = 0x7665696C6D7A  # the key of the lock of the one that does
_NAMED_BY_SOURCE = (commands.StartMove, commands.CancelMove, commands.ListMoves)


class Shards:
    """``store.port.Store`` on several databases. Every method belongs to the event loop's thread."""

    def __init__(self, urls: Sequence[str], *, clock: MachineClock, options: PostgresOptions) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._watched: dict[str, Wake] = {}
        self._finding: list[_Asked] = []
        self._creating = asyncio.Lock()
        self.carriers: dict[int, Carrier] = {}
        """Those that are at work, by the places from which they carry."""
        self._cluster = Cluster(
            urls, clock=clock, options=options, opened=self._opened, dropped=self._dropped, start=self._start
        )
        self.shards = self._cluster.shards
        """All databases by their places, the home at 0."""
        self._directory = Directory(self._cluster)
        self._of_all: dict[type[Command], Callable[[Any], Awaitable[Any]]] = {
            commands.CreateQueue: self._create,
            commands.ListQueues: self._list,
            commands.ListDeadLetterSources: self._list_sources,
            **_Exports(self.shards).handlers,
        }
        self._home = self._cluster.home
        self.clock = self._home.clock
        """That of the home: the clocks of all databases are taken to agree."""
        self._workers = {
            Mover(step=step, clock=self.clock, start=self._start, look_ms_max=every_ms): every_ms
            for step, every_ms in ((self._cluster.refresh, REFRESH_MS), (self.sweep_places, SWEEP_MS))
        }

    @classmethod
    async def open(cls, urls: Sequence[str], *, clock: MachineClock, options: PostgresOptions | None = None) -> Self:
        """Connect to the home, the first of ``urls`` (``postgresql://…``), and to all that it knows.

        Further URLs, in the order of their places, are made known to it. A database that cannot be reached is opened as
        soon as it can, if another one knows the store. Raises ``StoreError``.
        """
        store = cls(urls, clock=clock, options=options or PostgresOptions())
        try:
            await store._cluster.open()
        except BaseException:
            await store.close()
            raise
        for worker, every_ms in store._workers.items():
            worker.look(every_ms)
        return store

    def _opened(self, shard: Shard) -> None:
        """Have a database take part."""
        engine = shard.engine
        assert engine is not None, "it was opened"
        carrier = self.carriers[shard.place] = Carrier(
            shard.place, node=engine.machine, directory=self._directory, clock=self.clock, start=self._start
        )
        engine.machine.catalog.elsewhere = carrier
        for queue, wake in self._watched.items():
            engine.watch(queue, wake)
        carrier.look()

    def _dropped(self, shard: Shard) -> None:
        """Have a database take part no more."""
        self._directory.clear()
        carrier = self.carriers.pop(shard.place, None)
        if carrier is not None:
            carrier.stop()
        self._start(shard.close())

    # ``core.ports.Engine``.

    @property
    def token_key(self) -> bytes:
        """Return the secret of the store."""
        assert self._cluster.identity is not None, "the store is known"
        return self._cluster.identity.token_key

    def submit(self, command: Command, done: Done) -> None:
        """Take ``command``; call ``done`` with its result or error once that is durable."""
        if self._closing:
            done(ShuttingDown())
            return
        of_all = self._of_all.get(type(command))
        if of_all is not None:
            self._start(self._do(of_all, command, done))
            return
        name = command.source if isinstance(command, _NAMED_BY_SOURCE) else getattr(command, "queue", None)
        if name is None:
            self._home.submit(command, done)
            return
        asked = _Asked(self, command, name, done)
        place = 0 if len(self.shards) == 1 else self._directory.known(name)
        shard = None if place is None else self.shards.get(place)
        if shard is None:
            self._find(asked)
        else:
            asked.place = place
            shard.submit(command, asked)

    def not_there(self, asked: "_Asked", error: QueueNotFound) -> None:
        """Look for the queue of a command again, which is not where it was; answer ``error`` if it is nowhere else."""
        self._directory.forget(asked.name)
        asked.error = error
        self._find(asked)

    def _find(self, asked: "_Asked") -> None:
        self._finding.append(asked)
        self._start(self._submit_where_it_is(asked))

    async def _submit_where_it_is(self, asked: "_Asked") -> None:
        try:
            place = await self._directory.place_of(asked.name)
            shard = None if place is None or place == asked.place else await self._cluster.at(place)
        except Exception as error:  # noqa: BLE001 - the caller is answered
            asked.error, place, shard = failure_of(error, "a look for a queue"), None, None
        if asked not in self._finding:  # its client has gone
            return
        self._finding.remove(asked)
        if shard is None:
            asked.done(asked.error or QueueNotFound(asked.name))
            return
        if asked.name in self._watched and shard.engine is not None:
            shard.engine.watch(asked.name, self._watched[asked.name])
        asked.place = place
        shard.submit(asked.command, asked)

    async def _do(self, work: Callable[[Any], Awaitable[Any]], command: Command, done: Done) -> None:
        try:
            done(await work(command))
        except Exception as error:  # noqa: BLE001 - the caller is answered, and a fault of ours is in the log
            done(failure_of(error, type(command).__name__))

    def withdraw(self, done: Done) -> None:
        """Drop the command submitted with ``done`` if it has not been begun."""
        self._finding = [asked for asked in self._finding if asked != done]
        for engine in self._engines():
            engine.withdraw(done)

    def watch(self, queue: str, wake: Wake) -> None:
        """Call ``wake`` when ``queue`` may have a message, wherever it is; see ``core.ports.Engine``."""
        self._watched[queue] = wake
        place = self._directory.known(queue)
        for engine in self._engines(place):
            engine.watch(queue, wake)

    def unwatch(self, queue: str) -> None:
        """End the watch on ``queue``."""
        self._watched.pop(queue, None)
        for engine in self._engines():
            engine.unwatch(queue)

    async def sweep_places(self) -> None:
        """Forget the places of queues that are gone, unless another node is at that."""
        try:
            async with self._home.connection() as connection:
                if await connection.fetchval("SELECT pg_try_advisory_lock($1)", _TURN):
                    try:
                        await self._directory.sweep(connection)
                    finally:
                        await connection.execute("SELECT pg_advisory_unlock($1)", _TURN)
        except (*IN_DOUBT, asyncpg.PostgresError, StoreUnavailable) as error:
            log.warning("places of queues that are gone are forgotten later: %s", error)

    # Commands that concern more than one database.

    async def _create(self, command: commands.CreateQueue) -> QueueView:
        async with self._creating, self._directory.held(command.queue) as place:
            view: QueueView = await execute((await self._cluster.at(place)).opened(), command)
            return view

    async def _list(self, command: commands.ListQueues) -> QueuePage:
        pages: list[QueuePage] = await asyncio.gather(*(execute(engine, command) for engine in self._all()))
        names = sorted(name for page in pages for name in page.names)
        views = sorted((view for page in pages for view in page.views), key=lambda view: view.queue)
        more = len(names) > command.count or any(page.more for page in pages)
        return QueuePage(names=names[: command.count], more=more, views=views[: command.count])

    async def _list_sources(self, command: commands.ListDeadLetterSources) -> QueuePage:
        if await self._directory.find(command.queue) is None:
            raise QueueNotFound(command.queue)
        terms = command.queue, command.after, command.count + 1
        found = [
            await shard.ask(lambda connection: connection.fetch(SQL["queue_sources"], *terms))
            for shard in list(self.shards.values())
        ]
        names = sorted(name for rows in found for (name,) in rows)
        return QueuePage(names=names[: command.count], more=len(names) > command.count)

    # ``store.port.Store``.

    @property
    def kept(self) -> str:
        """Where messages are kept."""
        return f"in PostgreSQL, {' and '.join(shard.name for shard in self.shards.values())}"

    async def obstacles(self) -> list[str]:
        """Return why no requests should be sent here: as long as one database answers there is something to do."""
        found = [await engine.obstacles() for engine in self._engines()]
        return found[0] if all(found) else []

    def warnings(self) -> list[str]:
        """Return what is wrong although requests are answered."""
        return list(dict.fromkeys(text for engine in self._engines() for text in engine.warnings()))

    async def trust_clock(self) -> str:
        """Take the present time of all databases that are open for right; see ``store.port.Store``."""
        texts = [await engine.trust_clock() for engine in self._engines()]
        return next((text for text in texts if text != NOTHING_HELD_BACK), NOTHING_HELD_BACK)

    def figures(self) -> Sequence[Figure]:
        """Return what the database tells; of several each, by its number, and what is carried from one to another."""
        figures = [(shard.place, shard.engine.figures()) for shard in self.shards.values() if shard.engine is not None]
        if len(self.shards) == 1:
            return figures[0][1]
        carried = {str(place + 1): float(carrier.carried) for place, carrier in self.carriers.items()}
        failures = {str(place + 1): float(carrier.failures) for place, carrier in self.carriers.items()}
        return [
            *by_database(figures),
            Figure("store_outbox_carried", "Messages carried to other databases.", "counter", carried, "database"),
            Figure("store_outbox_failures", "Times that some could not be carried.", "counter", failures, "database"),
        ]

    async def survey(self, names_max: int) -> Survey:
        """Return the first ``names_max`` queues by name, and how many there are; raises ``VeilmqError``."""
        surveys = [await engine.survey(names_max) for engine in self._all()]
        names = sorted(name for survey in surveys for name in survey.names)
        return Survey(names[:names_max], sum(survey.in_all for survey in surveys))

    async def keep(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return what the home keeps under ``name`` for all nodes; raises ``VeilmqError``."""
        return await self._home.opened().keep(name, make)

    async def answered(self) -> None:
        """Return when nothing waits and nothing is under way, the outbox included."""
        while True:
            for engine in self._engines():
                await engine.answered()
            if not self._tasks:
                return
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Answer what was submitted, and end all connections."""
        self._closing = True
        for worker in self._workers:
            worker.stop()
        for carrier in self.carriers.values():
            carrier.stop()
        await self.answered()
        for shard in self.shards.values():
            await shard.close()

    def _engines(self, place: int | None = None) -> list[PostgresEngine]:
        """Return those that are open, or the one at ``place`` if that is there."""
        shards = [self.shards[place]] if place in self.shards else self.shards.values()
        return [shard.engine for shard in shards if shard.engine is not None]

    def _all(self) -> list[PostgresEngine]:
        """Return those of all databases; raises ``StoreUnavailable`` while one is down."""
        return [shard.opened() for shard in self.shards.values()]

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Asked:
    """A command that is with one of the databases; equal to what is called when it is done."""

    __slots__ = ("_store", "command", "done", "error", "name", "place")

    def __init__(self, store: Shards, command: Command, name: str, done: Done) -> None:
        self._store = store
        self.command = command
        self.name = name
        self.done = done
        self.place: int | None = None
        self.error: VeilmqError | None = None

    def __call__(self, answer: Any) -> None:
        if isinstance(answer, QueueNotFound) and answer.queue == self.name and self.error is None:
            self._store.not_there(self, answer)
        else:
            self.done(answer)

    def __eq__(self, other: object) -> bool:
        return self is other or self.done == other

    def __hash__(self) -> int:
        return hash(self.done)


class _Exports:
    """The commands that export events, of one database after the other."""

    def __init__(self, shards: Mapping[int, Shard]) -> None:
        self._shards = shards
        self._place = 0
        self.handlers: dict[type[Command], Callable[[Any], Awaitable[Any]]] = {
            PlanExport: self._plan,
            ReadEvents: self._read,
            ForgetEvents: self._forget,
            CountEvents: self._count,
        }

    async def _plan(self, command: PlanExport) -> EventRange | None:
        """Choose the next range, of the database whose turn it is or of the next one that has any.

        One that is down is passed over; raises ``StoreUnavailable`` if it may be the only one that has any.
        """
        failure: StoreUnavailable | None = None
        for shard in sorted(self._shards.values(), key=lambda shard: (shard.place < self._place, shard.place)):
            try:
                planned: EventRange | None = await execute(shard.opened(), command)
            except StoreUnavailable as error:
                failure = error
                continue
            if planned is not None:
                self._place = shard.place
                return planned
        if failure is not None:
            raise failure
        return None

    async def _read(self, command: ReadEvents) -> Any:
        return await execute(self._planned(), command)

    async def _forget(self, command: ForgetEvents) -> Forgotten:
        """Take it that they are exported; then it is the next one's turn."""
        forgotten: Forgotten = await execute(self._planned(), command)
        if not forgotten.more:
            self._place += 1
        return forgotten

    async def _count(self, command: CountEvents) -> EventCounts:
        counts: list[EventCounts] = [await execute(shard.opened(), command) for shard in list(self._shards.values())]
        return EventCounts(
            recorded=sum(each.recorded for each in counts),
            exported=sum(each.exported for each in counts),
            dropped=sum(each.dropped for each in counts),
        )

    def _planned(self) -> PostgresEngine:
        shard = self._shards.get(self._place)
        if shard is None:
            raise StoreUnavailable
        return shard.opened()


async def open_store(urls: Sequence[str], *, clock: MachineClock, options: PostgresOptions) -> Shards:
    """Return the store whose home is the first of ``urls``; raises ``StoreError``, which has no password.

    The others, in the order of their places, are made known to the home.
    """
    with _said(urls[0]):
        return await Shards.open(urls, clock=clock, options=options)


class Upgrade(NamedTuple):
    """The database (without a password), the number of its format before, and the names of the upgrades."""

    place: str
    found: int
    upgrades: list[str]


async def upgrade(url: str, *, apply: bool) -> Upgrade:
    """Bring the schema up to date, or only tell what that would be; raises ``StoreError``."""
    with _said(url):
        connection = await asyncpg.connect(url, timeout=CONNECT_S)
        try:
            found, pending = await look(connection)
            applied = await migrate(connection) if apply else pending
        finally:
            await connection.close()
    return Upgrade(without_passwords(url), found, [script.name for script in applied])


async def examination(url: str, *, durability: str) -> tuple[str, Report]:
    """Return the database (without a password) and what the doctor says about it; raises ``StoreError``."""
    with _said(url):
        return without_passwords(url), await examine(url, durability=Durability(durability))


@contextmanager
def _said(url: str) -> Iterator[None]:
    try:
        yield
    except SchemaRefused as error:
        raise StoreError(f"{without_passwords(url)}: {error}") from error
    except asyncpg.ReadOnlySQLTransactionError as error:
        raise StoreError(f"{without_passwords(url)} is a standby, which keeps nothing: name the primary.") from error
    except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError, VeilmqError) as error:
        raise StoreError(f"{without_passwords(url)} cannot be used: {sentence(error)}") from error
