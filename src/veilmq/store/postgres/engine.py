"""One database as a node has it open: commands in, statements out, answers when they are durable.

The database is the state. Commands on messages travel together, those of one kind on one queue (``queues.Coalescer``);
everything else is rare and goes alone. What goes on by itself begins once the database was reached.

One node at a time exports events: it holds an advisory lock, on a connection of its own, from the plan of a range until
it is forgotten; others wait for it. When the node or its connection ends, the lock ends with it; when it does nothing
for a while, it lets go of it. The next one finds the range that was planned, and makes the same files of it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import asyncpg

from veilmq.core import commands
from veilmq.core.commands import Command, Done, Timer, Wake
from veilmq.core.errors import ShuttingDown, StoreUnavailable
from veilmq.core.limits import SECOND_MS
from veilmq.core.receipts import CountEvents, ExportedElsewhere, ForgetEvents, PlanExport, ReadEvents, ReceiptBook
from veilmq.store.clock import SystemClock, stopwatch_s
from veilmq.store.cold import COLD, READS, STEPS
from veilmq.store.moves import MoveStep
from veilmq.store.port import STANDBY, UNREACHABLE, Figure
from veilmq.store.postgres.background import JANITOR_MS, SLICE_EVENTS, ClockGuard, Janitor, number_events
from veilmq.store.postgres.database import (
    BUSY_MS,
    IN_DOUBT,
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
from veilmq.store.postgres.queues import Coalescer, Measured, Work
from veilmq.store.postgres.receives import receive
from veilmq.store.postgres.transaction import running, sweep

_PROBE_S = 2.0
_EXPORT_TURN = 0x7665696C6D73  # the key of its lock
_EXPORT_TURN_S_MAX = 20  # how long another one is waited for
_IDLE_MS_MAX = 60 * SECOND_MS

T = TypeVar("T")

Alone = Callable[[Any], Awaitable[Any]]
"""Carries out one command: returns its result, or raises ``VeilmqError``."""


class PostgresEngine(Node):
    """``core.commands.Engine`` on one database, that at ``place`` of a store. Methods belong to the loop's thread.

    ``together`` and ``alone`` have an entry for each type of command.
    """

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
        self._measured = Measured()
        self._lines: dict[tuple[str, type[Command]], Coalescer] = {}
        self.together: dict[type[Command], tuple[Work, Callable[[Any], int]]] = {
            commands.Send: (partial(self.on_queue, send, relaxed=False), lambda command: len(command.messages)),
            commands.Receive: (partial(self.on_queue, receive, relaxed=True), lambda command: command.count),
            commands.Delete: (partial(self.on_queue, delete, relaxed=True), lambda command: len(command.receipts)),
            commands.ChangeVisibility: (partial(self.on_queue, change, relaxed=True), lambda each: len(each.changes)),
        }
        """What commands of one kind on one queue do together, and how many messages one of them brings."""
        self.workers: dict[type[Command], Mover] = {}
        """What does slices of work in the background, by the step that does one."""
        for kind in STEPS:
            step = partial(running(self, COLD[kind], changes=True), kind())
            pause_ms_min = BUSY_MS if kind is MoveStep else 1
            worker = Mover(step=step, clock=self.clock, start=self.start, pause_ms_min=pause_ms_min)
            self.workers[kind], self.schedulers[kind] = worker, worker.schedule
        self.watches.schedule_moves = self.workers[MoveStep].schedule
        self.schedulers[MoveStep] = self.watches.moves_changed
        self.janitor = Janitor(self, sweep=partial(sweep, self))
        self.clock_guard = ClockGuard(self)
        clock_check = Mover(step=self.clock_guard.check, clock=self.clock, start=self.start)
        self._by_itself = [*self.workers.values(), clock_check]
        if store is not None:
            self.catalog.elsewhere, self.catalog.outbox = store, Relay(self, place, directory=store)
            self._by_itself.append(self.catalog.outbox)
        self.alone: dict[type[Command], Alone] = {
            kind: running(self, run, changes=kind not in READS) for kind, run in COLD.items()
        }
        self.events = EventExport(self)

    def begin(self, receipt_key: bytes, token_key: bytes) -> None:
        """Begin with the work that goes on by itself, as the database was reached; commands need not wait for it."""
        self.book = ReceiptBook(keys=[receipt_key])
        self.token_key = token_key
        self.is_open = True
        if self.options.listens:
            self.watches.open()
        for worker in self._by_itself:
            worker.schedule()
        self.janitor.schedule(JANITOR_MS)

    # ``core.commands.Engine``.

    def submit(self, command: Command, done: Done) -> None:
        """Take ``command``; call ``done`` with its result or error once that is durable."""
        if self.is_closing:
            done(ShuttingDown())
            return
        together = self.together.get(type(command))
        if together is None:
            self.start(self._do(self.alone[type(command)], command, done))
            return
        key = command.queue, type(command)  # type: ignore[attr-defined]
        line = self._lines.get(key)
        if line is None:
            work, weight = together
            line = self._lines[key] = Coalescer(
                work,
                weight=weight,
                weight_max=self.options.coalesced_max,
                drained=partial(self._lines.pop, key),
                measured=self._measured,
            )
        line.add(command, done)

    async def _do(self, work: Alone, command: Command, done: Done) -> None:
        began_s = stopwatch_s()
        try:
            answer = await (_reading(partial(work, command)) if type(command) in READS else work(command))
        except Exception as error:  # noqa: BLE001 - the caller is answered, and a fault of ours is in the log
            answer = failure_of(error, type(command).__name__)
        self._measured.note([command], began_s)
        done(answer)

    def withdraw(self, done: Done) -> None:
        """Drop the command submitted with ``done`` if it has not been begun; its client has gone."""
        for line in self._lines.values():
            line.withdraw(done)

    def watch(self, queue: str, wake: Wake) -> None:
        """Call ``wake`` when ``queue`` may have a message; see ``core.commands.Engine``."""
        self.watches.begin(queue, wake)

    def unwatch(self, queue: str) -> None:
        """End the watch on ``queue``."""
        self.watches.end(queue)

    # What a store needs of it.

    async def read(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Return what ``work``, which changes nothing, finds out on a connection; raises ``StoreUnavailable``."""

        async def once() -> T:
            async with self.database.connection() as connection:
                return await work(connection)

        try:
            return await _reading(once)
        except (*IN_DOUBT, asyncpg.PostgresError) as error:
            raise StoreUnavailable from error

    async def readiness_failures(self) -> list[str]:
        """Return why no requests should be sent here."""
        try:
            async with asyncio.timeout(_PROBE_S), self.database.connection() as connection:
                return [STANDBY] if await connection.fetchval("SELECT pg_is_in_recovery()") else []
        except Exception:  # noqa: BLE001 - whatever it is, requests would meet it too
            return [UNREACHABLE]

    async def trust_clock(self) -> str:
        """Take the present time for right; see ``store.port.Store``."""
        try:
            return await self.clock_guard.trust()
        except Exception as error:
            raise failure_of(error, "trust in the clock") from error

    def figures(self) -> list[Figure]:
        """Return the metrics of this node and of its way to the database."""
        of_node = self.watches.figures() + self.clock_guard.figures()
        return [*self.database.figures(), *self._measured.figures(), *of_node]

    def under_way(self) -> set[asyncio.Task[None]]:
        """Return all that is under way; nothing waits for anything else."""
        return {*self.tasks, *(line.task for line in self._lines.values() if line.task is not None)}

    async def answered(self) -> None:
        """Return when nothing waits and nothing is under way."""
        while under_way := self.under_way():
            await asyncio.wait(under_way)

    def rest(self) -> None:
        """Begin no more of the work that goes on by itself."""
        for worker in (*self._by_itself, self.janitor):
            worker.stop()

    async def close(self) -> None:
        """End the work that goes on by itself, answer what was submitted, and end all connections."""
        self.is_closing = True
        self.rest()
        self.events.stop()
        await self.watches.stop()
        await self.answered()
        await self.database.close()


async def _reading(work: Callable[[], Awaitable[T]]) -> T:
    """Return what ``work`` returns, which changes nothing, and so may be called again when an answer was lost."""
    try:
        return await work()
    except IN_DOUBT:
        return await work()


class EventExport:
    """The commands that export events: who plans has the turn until its range is forgotten, or nothing comes."""

    def __init__(self, engine: PostgresEngine) -> None:
        self._engine = engine
        self._turn = Turn(engine.database, _EXPORT_TURN)
        self._timer: Timer | None = None
        for kind in (PlanExport, ReadEvents, ForgetEvents, CountEvents):
            changes = kind in (PlanExport, ForgetEvents)
            engine.alone[kind] = partial(self._do, running(engine, COLD[kind], changes=changes))

    async def _do(self, work: Alone, command: Any) -> Any:
        if isinstance(command, CountEvents):
            await self._number(SLICE_EVENTS)
            return await work(command)
        if isinstance(command, PlanExport) and not await self._turn.take(wait_s=_EXPORT_TURN_S_MAX):
            raise ShuttingDown if self._turn.is_over else ExportedElsewhere
        self._stop_timer()
        clock = self._engine.clock
        self._timer = clock.call_at(clock.now_ms() + _IDLE_MS_MAX, self._leave_turn)
        if isinstance(command, PlanExport):
            await self._number(min(SLICE_EVENTS, max(1, command.events_max)))
        answer = await work(command)
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
