"""One database as a node has it open: commands in, statements out, answers when they are durable.

The database is the state. Commands on messages travel together, those of one kind on one queue (``Coalescer``): while
one of its statements is under way the next ones gather, and go out together when it is back; so under light load a
command travels alone and at once, under heavy load a hundred share a round trip. (Measured: four to seven times less
work for the database.) Everything else is rare and goes alone. What goes on by itself begins once the database was
reached.

One node at a time exports events: it holds an advisory lock, on a connection of its own, from the plan of a range until
it is forgotten; others wait for it. When the node or its connection ends, the lock ends with it; when it does nothing
for a while, it lets go of it. The next one finds the range that was planned, and makes the same files of it.
"""

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import asyncpg

from veilmq.core import commands
from veilmq.core.commands import Command, Done, Timer, Wake
from veilmq.core.errors import QueueNotFound, ShuttingDown, StoreUnavailable
from veilmq.core.limits import SECOND_MS
from veilmq.core.receipts import CountEvents, ExportedElsewhere, ForgetEvents, PlanExport, ReadEvents, ReceiptCodec
from veilmq.store.clock import SystemClock, stopwatch_s
from veilmq.store.cold import READS, STEPS
from veilmq.store.moves import MoveStep
from veilmq.store.port import STANDBY, UNREACHABLE, Histogram, Metric, execute
from veilmq.store.postgres.background import JANITOR_MS, SLICE_EVENTS, ClockGuard, number_events
from veilmq.store.postgres.database import (
    BUSY_MS,
    IN_DOUBT,
    OF_ALL,
    Database,
    DatabaseClock,
    Mover,
    PostgresOptions,
    Turn,
    failure_of,
)
from veilmq.store.postgres.messages import change, delete, send
from veilmq.store.postgres.node import Node
from veilmq.store.postgres.outbox import Relay
from veilmq.store.postgres.queues import PartitionRetired, Queue
from veilmq.store.postgres.receives import receive
from veilmq.store.postgres.transaction import run_cold, sweep

log = logging.getLogger(__name__)

_PROBE_S = 2.0
_JANITOR_TURN, _EXPORT_TURN = 0x7665696C6D72, 0x7665696C6D73  # the keys of locks, beside that of migrations
_EXPORT_TURN_S_MAX = 20  # how long another one is waited for
_IDLE_MS_MAX = 60 * SECOND_MS

T = TypeVar("T")


class Hot(NamedTuple):
    """What commands of one kind on one queue do together on a connection, and how many messages one of them brings.

    ``work`` returns the result or ``VeilmqError`` of each, and may raise ``PartitionRetired``. Where it ``is_relaxed``,
    a crash of the database may undo it, if the node runs so and knows the queue as a standard one.
    """

    work: Callable[[Node, Any, Queue, Sequence[Any]], Awaitable[list[Any]]]
    messages: Callable[[Any], int]
    is_relaxed: bool = True


_NAMED_BY_SOURCE = (commands.StartMove, commands.CancelMove, commands.ListMoves)


def named_by(command: Command) -> str | None:
    """Return the full name of the queue that a command is on, if it is on one."""
    name: str | None = command.source if isinstance(command, _NAMED_BY_SOURCE) else getattr(command, "queue", None)
    return name


HOT: dict[type[Command], Hot] = {
    commands.Send: Hot(send, lambda command: len(command.messages), is_relaxed=False),
    commands.Receive: Hot(receive, lambda command: command.count),
    commands.Delete: Hot(delete, lambda command: len(command.receipts)),
    commands.ChangeVisibility: Hot(change, lambda command: len(command.changes)),
}


@dataclass(slots=True, eq=False)
class Coalescer:
    """Commands of one kind on one queue, which are its ``key``; those of up to ``coalesced_max`` messages go at once.

    ``task`` is what is under way; ``None`` while nothing is.
    """

    engine: "PostgresEngine"
    key: tuple[str, type[Command]]
    hot: Hot
    task: asyncio.Task[None] | None = None
    _waiting: deque[tuple[Command, Done]] = field(default_factory=deque)

    def add(self, command: Command, done: Done) -> None:
        """Have ``command`` carried out; what else arrives in this turn of the loop goes with it."""
        self._waiting.append((command, done))
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self._run())

    def withdraw(self, done: Done) -> None:
        """Drop the command of ``done`` unless it was begun."""
        self._waiting = deque(each for each in self._waiting if each[1] != done)

    async def _run(self) -> None:
        while self._waiting:
            together = [self._waiting.popleft()]
            left = self.engine.options.coalesced_max - self.hot.messages(together[0][0])
            while self._waiting and (messages := self.hot.messages(self._waiting[0][0])) <= left:
                together.append(self._waiting.popleft())
                left -= messages
            answers = await self._answers([command for command, _ in together])
            for (command, done), answer in zip(together, answers, strict=True):
                try:
                    done(answer)
                except Exception:  # what was asked is done, and the others wait for theirs
                    log.exception("the reply to a %s was not delivered", type(command).__name__)
        self.task = None
        self.engine.drained(self.key)

    async def _answers(self, together: list[Command]) -> list[Any]:
        began_s = stopwatch_s()
        try:
            return await self.work(together)
        except QueueNotFound:
            return await self.engine.elsewhere(self.key[0], together)
        except Exception as error:  # noqa: BLE001 - the callers are answered, and a fault of ours is in the log
            if len(together) == 1 or isinstance(error, OF_ALL):
                return [failure_of(error, type(together[0]).__name__)] * len(together)
        finally:
            self.engine.measured.note(together, began_s)
        # One of them is at fault: each alone, so that the others do not pay for it.
        return [answer for command in together for answer in await self._answers([command])]

    async def work(self, together: Sequence[Command]) -> list[Any]:
        """Return the answers of commands; raises ``QueueNotFound``."""
        engine, catalog, (name, _) = self.engine, self.engine.catalog, self.key
        for _ in range(2):
            try:
                database = engine.database
                seen = catalog.seen(name) if database.relaxes and self.hot.is_relaxed else None
                is_relaxed = seen is not None and not seen.settings.fifo
                async with database.relaxed() if is_relaxed else database.connection() as connection:
                    queue = catalog.known(name) or await catalog.sure(connection, name)
                    if is_relaxed and queue.settings.fifo:  # it is another queue of that name
                        continue
                    return await self.hot.work(engine, connection, queue, together)
            except PartitionRetired:
                catalog.forget(name)
        raise QueueNotFound(name)


class Measured:
    """How long commands took, and how many there were."""

    def __init__(self) -> None:
        self._durations: defaultdict[str, Histogram] = defaultdict(Histogram)
        self._commands: Counter[str] = Counter()

    def note(self, together: Sequence[Command], began_s: float) -> None:
        """Count commands of one kind that went together, from that instant of the stopwatch until now."""
        name = type(together[0]).__name__
        self._durations[name].add(stopwatch_s() - began_s)
        self._commands[name] += len(together)

    def metrics(self) -> list[Metric]:
        """Return what was measured so far."""
        durations = {name: series.copy() for name, series in sorted(self._durations.items())}
        commands = dict(sorted(self._commands.items()))
        how_long = "Time that a batch of commands took at the database, with the wait for a connection."
        return [
            Metric("store_batch_duration_seconds", how_long, "durations", durations, label="command"),
            Metric("store_commands", "Commands that the database carried out.", "counter", commands, label="command"),
        ]


class PostgresEngine(Node):
    """``core.commands.Engine`` on one database, that at ``place`` of a store. Methods belong to the loop's thread."""

    def __init__(
        self, database: Database, *, options: PostgresOptions, clock: SystemClock, place: int = 0, store: Any = None
    ) -> None:
        """``store`` is the ``store.Shards`` that it is one of, if it is."""
        super().__init__(database, options=options, clock=DatabaseClock(clock))
        self.place = place
        self.token_key = b""
        self.is_open = False
        """Whether the database was reached, and the work that goes on by itself has begun."""
        self.is_closing = False
        self.opening = asyncio.Lock()
        self.measured = Measured()
        self._coalescers: dict[tuple[str, type[Command]], Coalescer] = {}
        for kind in STEPS:
            step = partial(run_cold, self, kind())
            pause_ms_min = BUSY_MS if kind is MoveStep else 1
            self.workers[kind] = Mover(step=step, clock=self.clock, start=self.start, pause_ms_min=pause_ms_min)
        each_ms = {"pause_ms_min": JANITOR_MS, "poll_ms_max": JANITOR_MS}
        self.janitor = Mover(step=self._sweep, clock=self.clock, start=self.start, **each_ms)
        self.janitor_turn = Turn(database, _JANITOR_TURN)
        self.clock_guard = ClockGuard(self)
        clock_check = Mover(step=self.clock_guard.check, clock=self.clock, start=self.start)
        self._by_itself = [*self.workers.values(), clock_check]
        if store is not None:
            self.catalog.elsewhere, self.catalog.outbox = store, Relay(self, place, directory=store)
            self._by_itself.append(self.catalog.outbox)
        self.events = EventExport(self)

    def begin(self, receipt_key: bytes, token_key: bytes) -> None:
        """Begin with the work that goes on by itself, as the database was reached; commands need not wait for it."""
        self.book = ReceiptCodec(keys=[receipt_key])
        self.token_key = token_key
        self.is_open = True
        if self.options.listens:
            self.watches.open()
        for worker in self._by_itself:
            worker.schedule()
        self.janitor.schedule(JANITOR_MS)

    async def _sweep(self) -> None:
        """Do what the janitor does, if this node has the turn."""
        try:
            if await self.janitor_turn.take():
                await sweep(self, self.janitor_turn.connection)
                if self.place == 0 and self.catalog.elsewhere is not None:
                    await self.catalog.elsewhere.sweep_places(self.janitor_turn.connection)
        except BaseException:  # whatever it is, the turn must not stay with a node that does nothing
            self.janitor_turn.leave()
            raise

    # ``core.commands.Engine``.

    def submit(self, command: Command, done: Done) -> None:
        """Take ``command``; call ``done`` with its result or error once that is durable."""
        if self.is_closing or not self.is_open:
            done(ShuttingDown() if self.is_closing else self.unavailable())
            return
        hot = HOT.get(type(command))
        if hot is None:
            self.start(self._do(command, done))
            return
        key = command.queue, type(command)  # type: ignore[attr-defined]
        coalescer = self._coalescers.get(key)
        if coalescer is None:
            coalescer = self._coalescers[key] = Coalescer(self, key, hot)
        coalescer.add(command, done)

    def drained(self, key: tuple[str, type[Command]]) -> None:
        """Drop a coalescer that has nothing to do, so that queues that are named once take no memory."""
        del self._coalescers[key]

    async def _do(self, command: Command, done: Done) -> None:
        began_s = stopwatch_s()
        work = partial(self.events.do if isinstance(command, OF_EXPORT) else partial(run_cold, self), command)
        try:
            answer = await (_reading(work) if type(command) in READS else work())
        except Exception as error:  # noqa: BLE001 - the caller is answered, and a fault of ours is in the log
            answer = failure_of(error, type(command).__name__)
        self.measured.note([command], began_s)
        if isinstance(answer, QueueNotFound) and answer.queue == named_by(command):
            (answer,) = await self.elsewhere(answer.queue, [command])
        done(answer)

    async def elsewhere(self, name: str, together: Sequence[Command]) -> list[Any]:
        """Return the answers of commands on a queue that is not here: another database may have it."""
        try:
            if self.catalog.elsewhere is None:
                raise QueueNotFound(name)
            engine = await self.catalog.elsewhere.engine_of(name, not_at=self.place)
        except Exception as error:  # noqa: BLE001 - the callers are answered, and a fault of ours is in the log
            return [failure_of(error, "a look for a queue")] * len(together)
        return await asyncio.gather(*(execute(engine, each) for each in together), return_exceptions=True)

    def withdraw(self, done: Done) -> None:
        """Drop the command submitted with ``done`` if it has not been begun; its client has gone."""
        for coalescer in self._coalescers.values():
            coalescer.withdraw(done)

    def watch(self, queue: str, wake: Wake) -> None:
        """Call ``wake`` when ``queue`` may have a message; see ``core.commands.Engine``."""
        self.watches.begin(queue, wake)

    def unwatch(self, queue: str) -> None:
        """End the watch on ``queue``."""
        self.watches.end(queue)

    # What a store needs of it.

    async def read(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Return what ``work``, which changes nothing, finds out on a connection; raises ``StoreUnavailable``."""
        if not self.is_open:
            raise self.unavailable()

        async def once() -> T:
            async with self.database.connection() as connection:
                return await work(connection)

        try:
            return await _reading(once)
        except (*IN_DOUBT, asyncpg.PostgresError) as error:
            raise StoreUnavailable from error

    def unavailable(self) -> StoreUnavailable:
        """Return the error of what needs the database, which is not open yet; try again to open it."""
        if not self.is_closing and not self.opening.locked():
            with suppress(StoreUnavailable):
                self.database.breaker.check()
                self.start(self.catalog.elsewhere.open_late(self))
        return StoreUnavailable()

    async def readiness_failures(self) -> list[str]:
        """Return why no requests should be sent here."""
        try:
            async with asyncio.timeout(_PROBE_S), self.database.connection() as connection:
                return [STANDBY] if await connection.fetchval("SELECT pg_is_in_recovery()") else []
        except Exception:  # noqa: BLE001 - whatever it is, requests would meet it too
            return [UNREACHABLE]

    def metrics(self) -> list[Metric]:
        """Return the metrics of this node and of its way to the database."""
        of_node = self.watches.metrics() + self.clock_guard.metrics()
        return [*self.database.metrics(), *self.measured.metrics(), *of_node]

    def under_way(self) -> set[asyncio.Task[None]]:
        """Return all that is under way; nothing waits for anything else."""
        return {*self.tasks, *(each.task for each in self._coalescers.values() if each.task is not None)}

    async def drain(self) -> None:
        """Return when nothing waits and nothing is under way."""
        while under_way := self.under_way():
            await asyncio.wait(under_way)

    def rest(self) -> None:
        """Begin no more of the work that goes on by itself."""
        for worker in (*self._by_itself, self.janitor):
            worker.stop()
        self.janitor_turn.end()

    async def close(self) -> None:
        """End the work that goes on by itself, answer what was submitted, and end all connections."""
        self.is_closing = True
        self.rest()
        self.events.stop()
        await self.drain()
        await self.watches.stop()
        await self.database.close()


async def _reading(work: Callable[[], Awaitable[T]]) -> T:
    """Return what ``work`` returns, which changes nothing, and so may be called again when an answer was lost."""
    try:
        return await work()
    except IN_DOUBT:
        return await work()


OF_EXPORT = (PlanExport, ReadEvents, ForgetEvents, CountEvents)


class EventExport:
    """The commands that export events: who plans has the turn until its range is forgotten, or nothing comes."""

    def __init__(self, engine: PostgresEngine) -> None:
        self._engine = engine
        self._turn = Turn(engine.database, _EXPORT_TURN)
        self._timer: Timer | None = None

    async def do(self, command: Any) -> Any:
        """Return what the command returns."""
        if isinstance(command, CountEvents):
            await self._number(SLICE_EVENTS)
            return await run_cold(self._engine, command)
        if isinstance(command, PlanExport) and not await self._turn.take(wait_s=_EXPORT_TURN_S_MAX):
            raise ShuttingDown if self._turn.is_over else ExportedElsewhere
        self._stop_timer()
        clock = self._engine.clock
        self._timer = clock.call_at(clock.now_ms() + _IDLE_MS_MAX, self._leave_turn)
        if isinstance(command, PlanExport):
            await self._number(min(SLICE_EVENTS, max(1, command.events_max)))
        answer = await run_cold(self._engine, command)
        if answer is None or (isinstance(command, ForgetEvents) and not answer.more):
            self._leave_turn()
        return answer

    async def _number(self, slice_events: int) -> None:
        async with self._engine.database.connection() as connection:
            await number_events(connection, self._engine.options, slice_events)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _leave_turn(self) -> None:
        self._stop_timer()
        self._turn.leave()

    def stop(self) -> None:
        """Leave the turn to others, and take no more."""
        self._stop_timer()
        self._turn.end()
