"""One database as a node has it open: commands in, statements out, answers when they are durable.

The database is the state. Commands on messages travel together, those of one kind on one queue (``queues.Coalescer``);
everything else is rare and goes alone. What goes on by itself begins once the database was reached.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from operator import attrgetter
from typing import Any, Self, TypeVar

import asyncpg

from veilmq.core import commands
from veilmq.core.commands import Command, Done, Wake
from veilmq.core.errors import ShuttingDown, StoreUnavailable
from veilmq.core.receipts import ReceiptBook
from veilmq.store import claims, moves, publications
from veilmq.store.clock import stopwatch_s
from veilmq.store.cold import COLD, READS, Cold
from veilmq.store.port import STANDBY, UNREACHABLE, Figure
from veilmq.store.postgres.background import JANITOR_MS, ClockGuard, EventExport, Janitor, Mover
from veilmq.store.postgres.database import IN_DOUBT, Database, DatabaseClock, MachineClock, PostgresOptions, failure_of
from veilmq.store.postgres.messages import Receipts, Sends
from veilmq.store.postgres.node import Node
from veilmq.store.postgres.nodes import Nodes, Rounds
from veilmq.store.postgres.queues import Coalescer, Measured, Work
from veilmq.store.postgres.receives import Receives
from veilmq.store.postgres.transaction import ColdCommands

_PROBE_S = 2.0

T = TypeVar("T")

Alone = Callable[[Any], Awaitable[Any]]
"""Carries out one command: returns its result, or raises ``VeilmqError``."""

Together = tuple[Work, Callable[[Any], int]]
"""Carries commands of one kind on one queue out together; and how many messages one of them brings."""


class PostgresEngine(Node):
    """``core.commands.Engine`` on one database, that at ``place`` of a store. Methods belong to the loop's thread.

    ``together`` and ``alone`` have an entry for each type of command. The other parts are workers, of which each says
    how exactly one node at a time does its work.
    """

    def __init__(
        self, database: Database, *, options: PostgresOptions, clock: DatabaseClock, book: ReceiptBook, place: int = 0
    ) -> None:
        super().__init__(database=database, options=options, clock=clock, book=book, start=self._start)
        self.place = place
        self.token_key = b""
        self.is_open = False
        """Whether the database was reached, and the work that goes on by itself has begun."""
        self.is_closing = False
        self.opening = asyncio.Lock()
        self._measured = Measured()
        self._tasks: set[asyncio.Task[None]] = set()
        self._lines: dict[tuple[str, type[Command]], Coalescer] = {}
        sends, receives, receipts = Sends(self), Receives(self), Receipts(self)
        self.together: dict[type[Command], Together] = {
            commands.Send: (sends.send, lambda command: len(command.messages)),
            commands.Receive: (receives.receive, attrgetter("count")),
            commands.Delete: (receipts.delete, lambda command: len(command.receipts)),
            commands.ChangeVisibility: (receipts.change, lambda command: len(command.changes)),
        }
        self.cold = cold = ColdCommands(self)
        self.mover = self._worker(moves.step, moves.MoveStep)
        self.publisher = self._worker(publications.step, publications.PublicationStep, pause_ms_min=1)
        self.claimant = self._worker(claims.step, claims.ClaimStep, pause_ms_min=1)
        self.janitor = Janitor(self, sweep=cold.sweep)
        self.rounds = Rounds(self)
        self.watches.elsewhere = self.nodes = Nodes(self, rounds=self.rounds, schedule_moves=self.mover.schedule)
        cold.schedulers[moves.MoveStep] = self.nodes.moves_changed
        self.clock_guard = ClockGuard(self, name=self.nodes.name)
        self._clock_check = Mover(step=self.clock_guard.check, clock=clock, start=self._start)
        self.events = EventExport(self, cold.running)
        self.alone: dict[type[Command], Alone] = {
            **{kind: cold.running(run, changes=kind not in READS) for kind, run in COLD.items()},
            **self.events.handlers,
        }

    def _worker(self, step: Cold, kind: type[Command], **pause: int) -> Mover:
        """Return what does slices of such work, and has them done after a transaction that schedules it."""
        work = partial(self.cold.running(step, changes=True), kind())
        mover = Mover(step=work, clock=self.clock, start=self._start, **pause)
        self.cold.schedulers[kind] = mover.schedule
        return mover

    @classmethod
    def at(cls, url: str, *, clock: MachineClock, options: PostgresOptions, place: int = 0) -> Self:
        """Return the engine of a database that was not reached yet."""
        database = Database(url, options=options, clock=clock)
        book = ReceiptBook(keys=[])
        return cls(database, options=options, clock=DatabaseClock(clock), book=book, place=place)

    def begin(self, receipt_key: bytes, token_key: bytes) -> None:
        """Begin with the work that goes on by itself, as the database was reached; commands need not wait for it."""
        self.book = ReceiptBook(keys=[receipt_key])
        self.token_key = token_key
        self.is_open = True
        if self.options.listens:
            self.nodes.open()
        for worker in (self.mover, self.publisher, self.claimant, self._clock_check):
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
            self._start(self._do(self.alone[type(command)], command, done))
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
            try:
                answer = await work(command)
            except IN_DOUBT:
                if type(command) not in READS:
                    raise
                answer = await work(command)  # it changes nothing, so it may be asked again
        except Exception as error:  # noqa: BLE001 - the caller is answered, and a fault of ours is in the log
            answer = failure_of(error, type(command).__name__)
        self._measured.note([command], began_s)
        done(answer)

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
        try:
            try:
                async with self.database.connection() as connection:
                    return await work(connection)
            except IN_DOUBT:
                async with self.database.connection() as connection:
                    return await work(connection)
        except (*IN_DOUBT, asyncpg.PostgresError) as error:
            raise StoreUnavailable from error

    async def readiness_failures(self) -> list[str]:
        """Return why no requests should be sent here."""
        try:
            async with asyncio.timeout(_PROBE_S), self.database.connection() as connection:
                return [STANDBY] if await connection.fetchval("SELECT pg_is_in_recovery()") else []
        except Exception:  # noqa: BLE001 - whatever it is, requests would meet it too
            return [UNREACHABLE]

    def warnings(self) -> list[str]:
        """Return what is wrong although requests are answered."""
        return self.clock_guard.warnings()

    async def trust_clock(self) -> str:
        """Take the present time for right; see ``store.port.Store``."""
        try:
            return await self.clock_guard.trust()
        except Exception as error:
            raise failure_of(error, "trust in the clock") from error

    def figures(self) -> list[Figure]:
        """Return what this node tells of itself and of its way to the database."""
        of_node = self.nodes.figures() + self.clock_guard.figures()
        return [*self.database.figures(), *self._measured.figures(), *of_node]

    async def answered(self) -> None:
        """Return when nothing waits and nothing is under way."""
        while under_way := {*self._tasks, *(line.task for line in self._lines.values() if line.task is not None)}:
            await asyncio.wait(under_way)

    async def stop(self) -> None:
        """End the work that goes on by itself, and leave all turns to others."""
        for worker in (
            *(self.mover, self.publisher, self.claimant, self._clock_check),
            *(self.janitor, self.events, self.rounds),
        ):
            worker.stop()
        await self.nodes.stop()

    async def close(self) -> None:
        """Answer what was submitted, and end all connections."""
        self.is_closing = True
        await self.stop()
        await self.answered()
        await self.database.close()
