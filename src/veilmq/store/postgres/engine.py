"""The engine on one database: it runs commands as SQL statements and replies when they are durable.

Commands of one kind on one queue share statements (``Coalescer``): while a statement runs, the next commands are
collected for the following one. So under light load a command runs alone and at once; under heavy load a hundred share
a round trip. (Measured: four to seven times less work for the database.) All other commands are rare and run alone.

One node at a time exports events: it holds an advisory lock from planning a range until the range is deleted, at most a
minute after its last command. The next node finds the planned range and writes the same files.
"""

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from veilmq.core import commands
from veilmq.core.commands import Command, Done, Timer, Wake
from veilmq.core.errors import QueueNotFound, ShuttingDown, StoreUnavailable, VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.core.receipts import CountEvents, ExportedElsewhere, ForgetEvents, PlanExport, ReadEvents, ReceiptCodec
from veilmq.store.clock import SystemClock, stopwatch_s
from veilmq.store.cold import READS, STEPS
from veilmq.store.moves import MoveStep
from veilmq.store.port import STANDBY, UNREACHABLE, Histogram, Metric
from veilmq.store.postgres.database import (
    BUSY_MS,
    FAILURES,
    IN_DOUBT,
    SHARED_FAILURES,
    AdvisoryLock,
    Database,
    DatabaseClock,
    PostgresOptions,
    Worker,
    failure_of,
)
from veilmq.store.postgres.messages import change, delete, send
from veilmq.store.postgres.node import ClockGuard, Node
from veilmq.store.postgres.outbox import Relay
from veilmq.store.postgres.queues import PartitionRetired, Queue
from veilmq.store.postgres.receives import receive
from veilmq.store.postgres.transaction import JANITOR_MS, SLICE_EVENTS, number_events, run_cold, sweep

log = logging.getLogger(__name__)

_PROBE_S = 2.0
_IS_READ_ONLY = "SELECT current_setting('transaction_read_only')::bool FROM mq.setting LIMIT 1"
_JANITOR_LOCK, _EXPORT_LOCK = 0x7665696C6D72, 0x7665696C6D73  # schema.py has the key before these
_EXPORT_LOCK_S_MAX = 20  # maximum wait for the lock
_IDLE_MS_MAX = 60 * SECOND_MS
FINISH_S_MAX = 3.0
"""How long commands and background work may run while the engine closes; requests had their time before."""

T = TypeVar("T")


class Hot(NamedTuple):
    """How commands of one kind on one queue run together.

    ``work`` returns a result or ``VeilmqError`` for each command, and may raise ``PartitionRetired``.
    """

    work: Callable[[Node, Any, Queue, Sequence[Any]], Awaitable[list[Any]]]
    messages: Callable[[Any], int]  # of a command
    is_relaxed: bool = True  # on standard queues with Durability.STANDARD, a crash of the database may undo it


_COMMANDS_WITH_SOURCE = (commands.StartMove, commands.CancelMove, commands.ListMoves)


def queue_name_of(command: Command) -> str | None:
    """Return the full name of the queue of a command, if it has one."""
    name: str | None = command.source if isinstance(command, _COMMANDS_WITH_SOURCE) else getattr(command, "queue", None)
    return name


HOT: dict[type[Command], Hot] = {
    commands.Send: Hot(send, lambda command: len(command.messages), is_relaxed=False),
    commands.Receive: Hot(receive, lambda command: command.count),
    commands.Delete: Hot(delete, lambda command: len(command.receipts)),
    commands.ChangeVisibility: Hot(change, lambda command: len(command.changes)),
}


@dataclass(slots=True, eq=False)
class Coalescer:
    """Collects commands of one kind on one queue, its ``key``; a statement has up to ``coalesced_max`` messages."""

    engine: "PostgresEngine"
    key: tuple[str, type[Command]]
    hot: Hot
    task: asyncio.Task[None] | None = None
    _singles: int = 0  # how many of the next commands run alone
    _waiting: deque[tuple[Command, Done]] = field(default_factory=deque)

    def add(self, command: Command, done: Done) -> None:
        """Queue ``command`` for the next statement that has room."""
        self._waiting.append((command, done))
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self._run())

    def withdraw(self, matches: Callable[[Done], bool]) -> list[Done]:
        """Drop the commands that have not started and whose ``done`` matches, and return each ``done``."""
        withdrawn = [each for each in self._waiting if matches(each[1])]
        for each in withdrawn:
            self._waiting.remove(each)
        return [done for _, done in withdrawn]

    async def _run(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft()]
            left = -1 if self._singles else self.engine.options.coalesced_max - self.hot.messages(batch[0][0])
            self._singles -= self._singles > 0
            while self._waiting and (messages := self.hot.messages(self._waiting[0][0])) <= left:
                batch.append(self._waiting.popleft())
                left -= messages
            for (command, done), result in zip(batch, await self._run_batch(batch), strict=False):
                try:
                    done(result)
                except Exception:  # the command is done, and other commands wait for their replies
                    log.exception("the reply to a %s was not delivered", type(command).__name__)
        self.task = None
        del self.engine.coalescers[self.key]  # frees the memory of an idle queue

    async def _run_batch(self, batch: list[tuple[Command, Done]]) -> list[Any]:
        """Return the results, or none if the commands wait again, or were forwarded."""
        began_s, together = stopwatch_s(), [command for command, _ in batch]
        try:
            return await self.work(together)
        except QueueNotFound:
            self._waiting.extendleft(reversed(batch))
            await self.engine.forward(self.key[0], self._waiting)
        except Exception as error:  # noqa: BLE001 - becomes the reply; failure_of logs defects
            if len(batch) == 1 or isinstance(error, SHARED_FAILURES):
                return [failure_of(error, type(together[0]).__name__)] * len(batch)
            # One of them is at fault: run each alone, so that the others succeed.
            self._waiting.extendleft(reversed(batch))
            self._singles = len(batch)
        finally:
            self.engine.command_metrics.record(together, began_s)
        return []

    async def work(self, batch: Sequence[Command]) -> list[Any]:
        """Run commands on one connection and return their results; raises ``QueueNotFound``."""
        engine, catalog, (name, _) = self.engine, self.engine.catalog, self.key
        for _ in range(2):
            try:
                database = engine.database
                seen = catalog.cached(name) if database.relaxes and self.hot.is_relaxed else None
                is_relaxed = seen is not None and not seen.settings.fifo
                async with database.connection(relaxed=is_relaxed) as connection:
                    queue = catalog.fresh(name) or await catalog.look_up(connection, name)
                    if queue is None:
                        break
                    if is_relaxed and queue.settings.fifo:  # the queue was replaced by a FIFO queue
                        continue
                    return await self.hot.work(engine, connection, queue, batch)
            except PartitionRetired:
                catalog.forget(name)
        raise QueueNotFound(name)


class CommandMetrics:
    """The number and durations of commands."""

    def __init__(self) -> None:
        self._durations: defaultdict[str, Histogram] = defaultdict(Histogram)
        self._commands: Counter[str] = Counter()

    def record(self, batch: Sequence[Command], began_s: float) -> None:
        """Count a batch of commands of one kind that began at ``began_s`` of the stopwatch."""
        name = type(batch[0]).__name__
        self._durations[name].add(stopwatch_s() - began_s)
        self._commands[name] += len(batch)

    def metrics(self) -> list[Metric]:
        """Return the counts and durations by command."""
        durations = {name: histogram.copy() for name, histogram in sorted(self._durations.items())}
        commands = dict(sorted(self._commands.items()))
        text = "Time that a batch of commands took at the database, with the wait for a connection."
        return [
            Metric("store_batch_duration_seconds", text, "durations", durations, label="command"),
            Metric("store_commands", "Commands that the database carried out.", "counter", commands, label="command"),
        ]


class PostgresEngine(Node):
    """``core.commands.Engine`` on one database, at ``place`` of a store. Call methods in the event loop's thread."""

    def __init__(
        self, database: Database, *, options: PostgresOptions, clock: SystemClock, place: int, store: Any
    ) -> None:
        super().__init__(database, options=options, clock=DatabaseClock(clock))
        self.place = place
        self.token_key = b""
        self.is_open = False  # the database was reached, and background work has started
        self.is_closing = False
        self.open_lock = asyncio.Lock()
        self.command_metrics = CommandMetrics()
        self.coalescers: dict[tuple[str, type[Command]], Coalescer] = {}
        for kind in STEPS:
            step = partial(run_cold, self, kind())
            pause_ms_min = BUSY_MS if kind is MoveStep else 1
            self.workers[kind] = Worker(step=step, clock=self.clock, start=self.start, pause_ms_min=pause_ms_min)
        interval = {"pause_ms_min": JANITOR_MS, "poll_ms_max": JANITOR_MS}
        self.janitor = Worker(step=self._sweep, clock=self.clock, start=self.start, **interval)
        self.janitor_lock = AdvisoryLock(database, _JANITOR_LOCK)
        self.clock_guard = ClockGuard(self)
        clock_worker = Worker(step=self.clock_guard.check, clock=self.clock, start=self.start)
        self.catalog.shards, self.catalog.outbox = store, Relay(self, place, shards=store)
        self._background = [*self.workers.values(), clock_worker, self.catalog.outbox]
        self.events = EventExport(self)

    def begin(self, receipt_key: bytes, token_key: bytes) -> None:
        """Accept commands and start background work, once the database was reached."""
        self.codec = ReceiptCodec(key=receipt_key)
        self.token_key = token_key
        self.is_open = True
        if self.options.listens:
            self.watches.open()
        for worker in self._background:
            worker.schedule()
        self.janitor.schedule(JANITOR_MS)

    async def _sweep(self) -> None:
        """Sweep if this node holds the janitor's lock."""
        try:
            if await self.janitor_lock.acquire():
                connection = self.janitor_lock.connection
                await sweep(self, connection)
                if self.place == 0:
                    await self.catalog.shards.sweep(connection)
        except BaseException:  # also if cancelled
            self.janitor_lock.release()
            raise

    # ``core.commands.Engine``.

    def submit(self, command: Command, done: Done) -> None:
        """Run ``command``; call ``done`` with its result or error once that is durable."""
        if self.is_closing or not self.is_open:
            _refuse(ShuttingDown() if self.is_closing else self.unavailable(), command, done)
            return
        hot = HOT.get(type(command))
        if hot is None:
            self.start(self._execute(command, done))
            return
        key = command.queue, type(command)  # type: ignore[attr-defined]
        coalescer = self.coalescers.get(key)
        if coalescer is None:
            coalescer = self.coalescers[key] = Coalescer(self, key, hot)
        coalescer.add(command, done)

    async def _execute(self, command: Command, done: Done) -> None:
        began_s = stopwatch_s()
        run = self.events.execute if isinstance(command, EXPORT_COMMANDS) else partial(run_cold, self)
        work = partial(run, command)
        try:
            result = await (_retry_once(work) if type(command) in READS else work())
        except Exception as error:  # noqa: BLE001 - becomes the reply; failure_of logs defects
            result = failure_of(error, type(command).__name__)
        self.command_metrics.record([command], began_s)
        if isinstance(result, QueueNotFound) and result.queue == queue_name_of(command):
            await self.forward(result.queue, deque([(command, done)]))
        else:
            done(result)

    async def forward(self, name: str, waiting: deque[tuple[Command, Done]]) -> None:
        """Submit the commands to the database that has the queue, if another one does; they may be withdrawn before."""
        try:
            submit = (await self.catalog.shards.engine_of(name, not_at=self.place)).submit
        except Exception as error:  # noqa: BLE001 - becomes the reply; failure_of logs defects
            submit = partial(_refuse, failure_of(error, "the lookup of a queue"))
        while waiting:
            submit(*waiting.popleft())

    def withdraw(self, matches: Callable[[Done], bool]) -> list[Done]:
        return [done for coalescer in self.coalescers.values() for done in coalescer.withdraw(matches)]

    def watch(self, queue: str, wake: Wake) -> None:
        self.watches.watch(queue, wake)

    def unwatch(self, queue: str) -> None:
        self.watches.unwatch(queue)

    # For ``store.Shards``.

    async def read(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Return the result of the read-only ``work`` on a connection; raises ``StoreUnavailable``."""
        if not self.is_open:
            raise self.unavailable()

        async def once() -> T:
            async with self.database.connection() as connection:
                return await work(connection)

        try:
            return await _retry_once(once)
        except FAILURES as error:
            raise StoreUnavailable from error

    def unavailable(self) -> StoreUnavailable:
        """Return the error for a request while the database is not open; start another attempt to open it."""
        if not self.is_closing and not self.open_lock.locked():
            with suppress(StoreUnavailable):
                self.database.breaker.check()
                self.start(self.catalog.shards.open_late(self))
        return StoreUnavailable()

    async def readiness_failures(self) -> list[str]:
        """Return a reason if the database is unusable, a standby or read-only."""
        try:
            async with asyncio.timeout(_PROBE_S), self.database.connection() as connection:
                return [STANDBY] if await connection.fetchval(_IS_READ_ONLY) else []
        except Exception:  # noqa: BLE001 - requests would fail too
            return [UNREACHABLE]

    def metrics(self) -> list[Metric]:
        """Return the metrics of the node and of its connections."""
        of_node = self.watches.metrics() + self.clock_guard.metrics()
        return [*self.database.metrics(), *self.command_metrics.metrics(), *of_node]

    def running_tasks(self) -> set[asyncio.Task[None]]:
        """Return all running tasks; pending commands belong to a running task."""
        return {*self.tasks, *(each.task for each in self.coalescers.values() if each.task is not None)}

    async def drain(self) -> None:
        """Wait until no command is pending."""
        while pending := self.running_tasks():
            await asyncio.wait(pending)

    def stop_background(self) -> None:
        """Start no more background work; what runs must finish in time, also if the database hangs."""
        for worker in (*self._background, self.janitor):
            worker.stop()
        self.janitor_lock.release()
        asyncio.get_running_loop().call_later(FINISH_S_MAX, self.database.terminate)

    async def close(self) -> None:
        """Stop background work, finish the submitted commands, and close all connections."""
        self.is_closing = True
        self.stop_background()
        await self.drain()
        self.events.release()
        await self.watches.stop()
        await self.database.close()


def _refuse(error: VeilmqError, _: Command, done: Done) -> None:
    asyncio.get_running_loop().call_soon(done, error)


async def _retry_once(work: Callable[[], Awaitable[T]]) -> T:
    """Run the read-only ``work``, once more if its reply was lost."""
    try:
        return await work()
    except IN_DOUBT:
        return await work()


EXPORT_COMMANDS = (PlanExport, ReadEvents, ForgetEvents, CountEvents)


class EventExport:
    """Commands that export events; ``PlanExport`` acquires the export lock until its range is deleted, or a timeout."""

    def __init__(self, engine: PostgresEngine) -> None:
        self._engine = engine
        self._lock = AdvisoryLock(engine.database, _EXPORT_LOCK)
        self._timer: Timer | None = None

    async def execute(self, command: Any) -> Any:
        """Run a command of ``EXPORT_COMMANDS``."""
        engine = self._engine
        if isinstance(command, PlanExport) and not await self._lock.acquire(wait_s=_EXPORT_LOCK_S_MAX):
            raise ExportedElsewhere
        if not isinstance(command, CountEvents):
            self._stop_timer()
            self._timer = engine.clock.call_at(engine.clock.now_ms() + _IDLE_MS_MAX, self.release)
        if isinstance(command, (PlanExport, CountEvents)):
            async with engine.database.connection() as connection:
                wanted = getattr(command, "events_max", SLICE_EVENTS)
                await number_events(connection, engine.options, min(SLICE_EVENTS, max(1, wanted)))
        result = await run_cold(engine, command)
        if result is None or (isinstance(command, ForgetEvents) and not result.more):
            self.release()
        return result

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def release(self) -> None:
        """Release the export lock."""
        self._stop_timer()
        self._lock.release()
