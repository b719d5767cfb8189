"""One database as a node has it open: commands in, statements out, answers when they are durable.

The database is the state. Commands on messages travel together, those of one kind on one queue (``queues.Coalescer``);
everything else is rare and goes alone.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from operator import attrgetter
from os import urandom
from typing import Any, Self

from veilmq.core import commands
from veilmq.core.commands import Command
from veilmq.core.errors import ShuttingDown
from veilmq.core.ports import Done, Wake
from veilmq.core.receipts import KEY_BYTES, ReceiptBook
from veilmq.store import claims, moves, publications
from veilmq.store.cold import COLD, READS, Cold
from veilmq.store.port import STANDBY, UNREACHABLE, Figure, Survey, execute
from veilmq.store.postgres.background import ClockGuard, EventExport, Janitor, Mover
from veilmq.store.postgres.database import IN_DOUBT, Database, DatabaseClock, MachineClock, PostgresOptions, failure_of
from veilmq.store.postgres.messages import Receipts, Sends
from veilmq.store.postgres.node import Node, Start
from veilmq.store.postgres.nodes import Nodes, Rounds
from veilmq.store.postgres.queues import SQL, Coalescer, Measured, Work
from veilmq.store.postgres.receives import Receives
from veilmq.store.postgres.transaction import ColdCommands
from veilmq.store.queue_commands import SurveyQueues

_PROBE_S = 2.0
_RECEIPT_KEY = "receipt_key"
_TOKEN_KEY = "token_key"


Alone = Callable[[Any], Awaitable[Any]]
"""Carries out one command: returns its result, or raises ``VeilmqError``."""

Together = tuple[Work, Callable[[Any], int]]
"""Carries commands of one kind on one queue out together; and how many messages one of them brings."""


class Machine(Node):
    """What a node can do: ``together`` and ``alone`` have an entry for each type of command.

    The others are its workers, of which each says how exactly one node at a time does its work.
    """

    def __init__(
        self, *, database: Database, options: PostgresOptions, clock: DatabaseClock, book: ReceiptBook, start: Start
    ) -> None:
        super().__init__(database=database, options=options, clock=clock, book=book, start=start)
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
        self.watches.elsewhere = self.nodes = Nodes(self, rounds=self.rounds, look_for_moves=self.mover.look)
        cold.schedulers[moves.MoveStep] = self.nodes.moves_changed
        self.clock_guard = ClockGuard(self, name=self.nodes.name)
        self._clock_look = Mover(step=self.clock_guard.look, clock=clock, start=start)
        self.events = EventExport(self, cold.running)
        self.alone: dict[type[Command], Alone] = {
            **{kind: cold.running(run, changes=kind not in READS) for kind, run in COLD.items()},
            **self.events.handlers,
        }

    def _worker(self, step: Cold, kind: type[Command], **pause: int) -> Mover:
        """Return what does slices of such work, and has them done after a transaction that schedules it."""
        work = partial(self.cold.running(step, changes=True), kind())
        mover = Mover(step=work, clock=self.clock, start=self.start, **pause)
        self.cold.schedulers[kind] = mover.look
        return mover

    def begin(self) -> None:
        """Begin with the work that goes on by itself; commands need not wait for it."""
        if self.options.listens:
            self.nodes.open()
        for worker in (self.mover, self.publisher, self.claimant, self._clock_look):
            worker.look()
        self.janitor.look_later()

    async def stop(self) -> None:
        """End that work, and leave all turns to others."""
        for worker in (self.mover, self.publisher, self.claimant, self._clock_look, self.rounds):
            worker.stop()
        await self.nodes.stop()
        await self.janitor.stop()
        self.events.stop()


class PostgresEngine:
    """``store.port.Store`` on a server of PostgreSQL. Every method belongs to the event loop's thread."""

    def __init__(
        self,
        *,
        database: Database,
        options: PostgresOptions,
        clock: DatabaseClock,
        receipt_key: bytes,
        token_key: bytes,
    ) -> None:
        self.token_key = token_key
        self.clock = clock
        self._database = database
        self._options = options
        self._closing = False
        self._measured = Measured()
        self._tasks: set[asyncio.Task[None]] = set()
        self._lines: dict[tuple[str, type[Command]], Coalescer] = {}
        self.machine = Machine(
            database=database,
            options=options,
            clock=self.clock,
            book=ReceiptBook(keys=[receipt_key]),
            start=self._start,
        )
        """What this node can do, and does by itself."""
        self.machine.begin()

    @classmethod
    async def open(cls, url: str, *, clock: MachineClock, options: PostgresOptions | None = None) -> Self:
        """Connect to ``url`` (``postgresql://…``); make or upgrade the schema there.

        ``clock`` is the machine's; the engine's own follows the database's, whose business it is what is visible.
        """
        options = options or PostgresOptions()
        database = await Database.open(url, options=options, clock=clock)
        try:
            async with database.connection() as connection:
                receipt_key, token_key = [
                    await connection.fetchval(SQL["kept_key"], name, urandom(KEY_BYTES))
                    for name in (_RECEIPT_KEY, _TOKEN_KEY)
                ]
        except BaseException:
            await database.close()
            raise
        return cls(
            database=database, options=options, clock=DatabaseClock(clock), receipt_key=receipt_key, token_key=token_key
        )

    def submit(self, command: Command, done: Done) -> None:
        """Take ``command``; call ``done`` with its result or error once that is durable."""
        if self._closing:
            done(ShuttingDown())
            return
        together = self.machine.together.get(type(command))
        if together is None:
            self._start(self._do(self.machine.alone[type(command)], command, done))
            return
        key = command.queue, type(command)  # type: ignore[attr-defined]
        line = self._lines.get(key)
        if line is None:
            work, weight = together
            line = self._lines[key] = Coalescer(
                self._measured.together(type(command), work),
                weight=weight,
                weight_max=self._options.coalesced_max,
                drained=partial(self._lines.pop, key),
            )
        line.add(command, done)

    async def _do(self, work: Alone, command: Command, done: Done) -> None:
        try:
            with self._measured.taking(type(command)):
                try:
                    answer = await work(command)
                except IN_DOUBT:
                    if type(command) not in READS:
                        raise
                    answer = await work(command)  # it changes nothing, so it may be asked again
            done(answer)
        except Exception as error:  # noqa: BLE001 - the caller is answered, and a fault of ours is in the log
            done(failure_of(error, type(command).__name__))

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def withdraw(self, done: Done) -> None:
        """Drop the command submitted with ``done`` if it has not been begun; its client has gone."""
        for line in self._lines.values():
            line.withdraw(done)

    def watch(self, queue: str, wake: Wake) -> None:
        """Call ``wake`` when ``queue`` may have a message; see ``core.ports.Engine``."""
        self.machine.watches.begin(queue, wake)

    def unwatch(self, queue: str) -> None:
        """End the watch on ``queue``."""
        self.machine.watches.end(queue)

    async def close(self) -> None:
        """Answer what was submitted, and end all connections."""
        self._closing = True
        await self.machine.stop()
        await self.answered()
        await self._database.close()

    # What an operator asks, and a test.

    @property
    def kept(self) -> str:
        """Where messages are kept; see ``store.port.Store``."""
        return f"in PostgreSQL, {self._database.place}"

    async def obstacles(self) -> list[str]:
        """Return why no requests should be sent here."""
        try:
            async with asyncio.timeout(_PROBE_S), self._database.connection() as connection:
                return [STANDBY] if await connection.fetchval("SELECT pg_is_in_recovery()") else []
        except Exception:  # noqa: BLE001 - whatever it is, requests would meet it too
            return [UNREACHABLE]

    def warnings(self) -> list[str]:
        """Return what is wrong although requests are answered."""
        return self.machine.clock_guard.warnings()

    async def trust_clock(self) -> str:
        """Take the present time for right; see ``store.port.Store``."""
        try:
            return await self.machine.clock_guard.trust()
        except Exception as error:
            raise failure_of(error, "trust in the clock") from error

    def figures(self) -> list[Figure]:
        """Return what this node tells of itself and of its way to the database."""
        of_node = self.machine.nodes.figures() + self.machine.clock_guard.figures()
        return [*self._database.figures(), *self._measured.figures(), *of_node]

    async def survey(self, names_max: int) -> Survey:
        """Return the first ``names_max`` queues by name, and how many there are; raises ``VeilmqError``."""
        survey: Survey = await execute(self, SurveyQueues(names_max=names_max))
        return survey

    async def keep(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return what the database keeps under ``name`` for all its nodes; raises ``VeilmqError``."""
        try:
            async with self._database.connection() as connection:
                kept = await connection.fetchval(SQL["setting"], name)
                content: bytes = await connection.fetchval(SQL["kept_key"], name, make()) if kept is None else kept
                return content
        except Exception as error:
            raise failure_of(error, "a secret") from error

    async def answered(self) -> None:
        """Return when nothing waits and nothing is under way."""
        while under_way := {*self._tasks, *(line.task for line in self._lines.values() if line.task is not None)}:
            await asyncio.wait(under_way)
