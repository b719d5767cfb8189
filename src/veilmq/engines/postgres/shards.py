"""A store on several databases: each queue is wholly in one of them, and its commands go there.

The first is the home: it knows where each queue is, and has what is of no queue (accounts, topics). What must go from
one database to another goes through an outbox (``transits``, ``carriage``). A database that is down takes its queues
with it, and no other's; what is asked of all of them is refused meanwhile, as half of a listing would be a wrong one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Self

import asyncpg

from veilmq.core import commands
from veilmq.core.commands import Command
from veilmq.core.errors import QueueNotFound, ShuttingDown, StoreUnavailable, VeilmqError
from veilmq.core.ports import Done, Timer, Wake
from veilmq.core.results import QueuePage, QueueView
from veilmq.engines.execute import execute
from veilmq.engines.figures import Figure, by_database
from veilmq.engines.postgres import identity
from veilmq.engines.postgres.carrier import Carrier
from veilmq.engines.postgres.catalog import SQL
from veilmq.engines.postgres.database_clock import MachineClock
from veilmq.engines.postgres.directory import Directory
from veilmq.engines.postgres.failures import IN_DOUBT, UNREACHABLE, told
from veilmq.engines.postgres.identity import Identity
from veilmq.engines.postgres.options import PostgresOptions
from veilmq.engines.postgres.placement import Placement
from veilmq.engines.postgres.shard import Shard
from veilmq.engines.postgres.shard_events import ShardEvents
from veilmq.engines.postgres.transits import Transits
from veilmq.engines.store import NOTHING_HELD_BACK, StoreError, Survey

log = logging.getLogger(__name__)

SWEEP_MS = 600_000
"""How often a node looks for places of queues that are gone."""

_TURN = 0x7665696C6D7A  # the key of the lock of whoever does
_NAMED_BY_SOURCE = (commands.StartMove, commands.CancelMove, commands.ListMoves)


class Shards:
    """``engines.store.Store`` on several databases. Every method belongs to the event loop's thread."""

    def __init__(self, urls: Sequence[str], *, clock: MachineClock, options: PostgresOptions) -> None:
        """Use ``open``."""
        self.clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._watched: dict[str, Wake] = {}
        self._finding: list[_Asked] = []
        self._creating = asyncio.Lock()
        self._timer: Timer | None = None
        self.carriers: dict[int, Carrier] = {}
        """Those that are at work, by the places from which they carry."""
        self.shards = [
            Shard(url, place=place, clock=clock, options=options, opened=self._opened, start=self._start)
            for place, url in enumerate(urls)
        ]
        """All databases, the home first."""
        self._placement = Placement(self.shards)
        self._directory = Directory(shards=self.shards, placement=self._placement)
        self._of_all: dict[type[Command], Callable[[Any], Awaitable[Any]]] = {
            commands.CreateQueue: self._create,
            commands.ListQueues: self._list,
            commands.ListDeadLetterSources: self._list_sources,
            **ShardEvents(self.shards).handlers,
        }

    @classmethod
    async def open(cls, urls: Sequence[str], *, clock: MachineClock, options: PostgresOptions | None = None) -> Self:
        """Connect to ``urls`` (``postgresql://…``), in the order of their places; raises ``StoreError``.

        One that cannot be reached is opened as soon as it can, if another one knows the store.
        """
        store = cls(urls, clock=clock, options=options or PostgresOptions())
        try:
            await store._open()
        except BaseException:
            await store.close()
            raise
        return store

    async def _open(self) -> None:
        reached = [shard for shard in self.shards if await _reach(shard)]
        home = await self._identity(reached)
        for shard in self.shards:
            shard.home = home
        for shard in reached:
            try:
                await shard.open()
            except StoreError as error:
                raise StoreError(f"{shard.name}: {error}") from error
        self._sweep_later()

    async def _identity(self, reached: Sequence[Shard]) -> Identity:
        """Return what the store is, from the home, or while that is down from one that has joined it."""
        home = self.shards[0]
        for shard in reached:
            async with (await shard.connect()).connection() as connection:
                try:
                    if shard is home:
                        return await identity.found(connection, len(self.shards))
                    known = await identity.read(connection)
                except StoreError as error:
                    raise StoreError(f"{shard.name}: {error}") from error
            if known is not None:
                return known._replace(places=max(known.places, len(self.shards)))
        raise StoreError(f"{home.name}, the first database of the store, cannot be reached, and no other one knows it.")

    def _opened(self, shard: Shard) -> None:
        """Have a database take part."""
        engine, database = shard.engine, shard.database
        assert engine is not None, "it was opened"
        carrier = self.carriers[shard.place] = Carrier(
            place=shard.place,
            database=database,
            positions=engine.machine.positions,
            destinations=self._directory,
            clock=self.clock,
            start=self._start,
        )
        engine.machine.catalog.elsewhere = Transits(
            place=shard.place, directory=self._directory, afterwards=database.afterwards, look=carrier.look
        )
        for queue, wake in self._watched.items():
            shard.watch(queue, wake)
        carrier.look()

    # ``core.ports.Engine``.

    @property
    def token_key(self) -> bytes:
        """Return the secret of the store."""
        return next(shard.home.token_key for shard in self.shards if shard.home is not None)

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
            self.shards[0].submit(command, done)
            return
        asked = _Asked(self, command, name, done)
        place = self._placement.known(name)
        if place is None:
            self._find(asked)
        else:
            self._submit_at(place, asked)

    def _submit_at(self, place: int, asked: "_Asked") -> None:
        asked.place = place
        if place < len(self.shards):
            self.shards[place].submit(asked.command, asked)
        else:  # a node that was started later knows more databases
            asked.done(StoreUnavailable())

    def not_there(self, asked: "_Asked", error: QueueNotFound) -> None:
        """Look for the queue of a command again, which is not where it was; answer ``error`` if it is nowhere else."""
        self._placement.forget(asked.name)
        asked.error = error
        self._find(asked)

    def _watch_again(self, place: int, queue: str) -> None:
        """Watch a queue that is not where it was."""
        if queue in self._watched:
            self.shards[place].watch(queue, self._watched[queue])

    def _find(self, asked: "_Asked") -> None:
        self._finding.append(asked)
        self._start(self._submit_where_it_is(asked))

    async def _submit_where_it_is(self, asked: "_Asked") -> None:
        try:
            place = await self._placement.place_of(asked.name)
        except Exception as error:  # noqa: BLE001 - whoever asked is told
            asked.error, place = told(error, "a look for a queue"), None
        if asked not in self._finding:  # its client has gone
            return
        self._finding.remove(asked)
        if place is None or place == asked.place:
            asked.done(asked.error or QueueNotFound(asked.name))
        else:
            self._watch_again(place, asked.name)
            self._submit_at(place, asked)

    async def _do(self, work: Callable[[Any], Awaitable[Any]], command: Command, done: Done) -> None:
        try:
            done(await work(command))
        except Exception as error:  # noqa: BLE001 - whoever asked is told, and a fault of ours is in the log
            done(told(error, type(command).__name__))

    def withdraw(self, done: Done) -> None:
        """Drop the command submitted with ``done`` if it has not been begun."""
        self._finding = [asked for asked in self._finding if asked != done]
        for shard in self.shards:
            shard.withdraw(done)

    def watch(self, queue: str, wake: Wake) -> None:
        """Call ``wake`` when ``queue`` may have a message, wherever it is; see ``core.ports.Engine``."""
        self._watched[queue] = wake
        place = self._placement.known(queue)
        for shard in self.shards if place is None else self.shards[place : place + 1]:
            shard.watch(queue, wake)

    def unwatch(self, queue: str) -> None:
        """End the watch on ``queue``."""
        self._watched.pop(queue, None)
        for shard in self.shards:
            shard.unwatch(queue)

    async def sweep_places(self) -> None:
        """Forget the places of queues that are gone, unless another node is at that."""
        try:
            async with self.shards[0].connection() as connection:
                if await connection.fetchval("SELECT pg_try_advisory_lock($1)", _TURN):
                    try:
                        await self._placement.sweep(connection)
                    finally:
                        await connection.execute("SELECT pg_advisory_unlock($1)", _TURN)
        except (*IN_DOUBT, asyncpg.PostgresError, StoreUnavailable) as error:
            log.warning("places of queues that are gone are forgotten later: %s", error)

    def _sweep_later(self) -> None:
        self._timer = self.clock.call_at(self.clock.now_ms() + SWEEP_MS, self._sweep)

    def _sweep(self) -> None:
        self._start(self.sweep_places())
        self._sweep_later()

    # Commands that concern more than one database.

    async def _create(self, command: commands.CreateQueue) -> QueueView:
        async with self._creating, self._placement.held(command.queue) as place:
            view: QueueView = await execute(self.shards[place], command)
            return view

    async def _list(self, command: commands.ListQueues) -> QueuePage:
        pages: list[QueuePage] = await asyncio.gather(*(execute(shard, command) for shard in self.shards))
        names = sorted(name for page in pages for name in page.names)
        views = sorted((view for page in pages for view in page.views), key=lambda view: view.queue)
        more = len(names) > command.count or any(page.more for page in pages)
        return QueuePage(names=names[: command.count], more=more, views=views[: command.count])

    async def _list_sources(self, command: commands.ListDeadLetterSources) -> QueuePage:
        if await self._directory.find(command.queue) is None:
            raise QueueNotFound(command.queue)
        terms = command.queue, command.after, command.count + 1
        found = [
            await shard.ask(lambda connection: connection.fetch(SQL["queue_sources"], *terms)) for shard in self.shards
        ]
        names = sorted(name for rows in found for (name,) in rows)
        return QueuePage(names=names[: command.count], more=len(names) > command.count)

    # ``engines.store.Store``.

    @property
    def kept(self) -> str:
        """Where messages are kept."""
        return f"in PostgreSQL, {' and '.join(shard.name for shard in self.shards)}"

    async def obstacles(self) -> list[str]:
        """Return why no requests should be sent here: as long as one database answers there is something to do."""
        open_ones = [shard.engine for shard in self.shards if shard.engine is not None]
        found = [await engine.obstacles() for engine in open_ones]
        return found[0] if all(found) else []

    def warnings(self) -> list[str]:
        """Return what is wrong although requests are answered."""
        open_ones = [shard.engine for shard in self.shards if shard.engine is not None]
        return list(dict.fromkeys(text for engine in open_ones for text in engine.warnings()))

    async def trust_clock(self) -> str:
        """Take the present time of all databases that are open for right; see ``engines.store.Store``."""
        texts = [await shard.engine.trust_clock() for shard in self.shards if shard.engine is not None]
        return next((text for text in texts if text != NOTHING_HELD_BACK), NOTHING_HELD_BACK)

    def figures(self) -> Sequence[Figure]:
        """Return what each database tells, by its number, and what is carried from one to another."""
        told = [(shard.place, shard.engine.figures()) for shard in self.shards if shard.engine is not None]
        return [*by_database(told), *self._of_carriers()]

    def _of_carriers(self) -> list[Figure]:
        carried = {str(place + 1): float(carrier.carried) for place, carrier in self.carriers.items()}
        failures = {str(place + 1): float(carrier.failures) for place, carrier in self.carriers.items()}
        return [
            Figure("store_outbox_carried", "Messages carried to other databases.", "counter", carried, "database"),
            Figure("store_outbox_failures", "Times that some could not be carried.", "counter", failures, "database"),
        ]

    async def survey(self, names_max: int) -> Survey:
        """Return the first ``names_max`` queues by name, and how many there are; raises ``VeilmqError``."""
        surveys = [await shard.survey(names_max) for shard in self.shards]
        names = sorted(name for survey in surveys for name in survey.names)
        return Survey(names[:names_max], sum(survey.in_all for survey in surveys))

    async def keep(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return what the home keeps under ``name`` for all nodes; raises ``VeilmqError``."""
        return await self.shards[0].keep(name, make)

    async def answered(self) -> None:
        """Return when nothing waits and nothing is under way, the outbox included."""
        while True:
            for shard in self.shards:
                await shard.answered()
            if not self._tasks:
                return
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Answer what was submitted, and end all connections."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        for carrier in self.carriers.values():
            carrier.stop()
        await self.answered()
        for shard in self.shards:
            await shard.close()

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


async def _reach(shard: Shard) -> bool:
    """Tell whether the database can be reached; raises ``StoreError`` for one that can, and cannot be used."""
    try:
        await shard.connect()
    except UNREACHABLE:
        return False
    except (VeilmqError, ValueError, asyncpg.PostgresError) as error:
        raise StoreError(f"{shard.name}: {error}") from error
    return True
