"""The engine on PostgreSQL: commands in, statements out, answers when they are durable.

Nothing is kept here but what can be looked up again. Commands on messages travel together, those of one kind on one
queue (``lines``); everything else is rare and goes alone.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from os import urandom
from typing import Any, Self

from veilmq.core.commands import Command
from veilmq.core.errors import ShuttingDown
from veilmq.core.ports import Done, Wake
from veilmq.core.receipts import KEY_BYTES, ReceiptBook
from veilmq.engines.execute import execute
from veilmq.engines.figures import Figure
from veilmq.engines.store import STANDBY, UNREACHABLE, Survey
from veilmq.store.cold import READS
from veilmq.store.postgres.catalog import SQL
from veilmq.store.postgres.coalescing import Coalescer, Measured
from veilmq.store.postgres.database import Database
from veilmq.store.postgres.database_clock import DatabaseClock, MachineClock
from veilmq.store.postgres.failures import IN_DOUBT, told
from veilmq.store.postgres.machine import Alone, Machine
from veilmq.store.postgres.options import PostgresOptions
from veilmq.store.queue_commands import SurveyQueues

_PROBE_S = 2.0
_RECEIPT_KEY = "receipt_key"
_TOKEN_KEY = "token_key"


class PostgresEngine:
    """``engines.store.Store`` on a server of PostgreSQL. Every method belongs to the event loop's thread."""

    def __init__(
        self,
        *,
        database: Database,
        options: PostgresOptions,
        clock: DatabaseClock,
        receipt_key: bytes,
        token_key: bytes,
    ) -> None:
        """Use ``open``."""
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
            database=database,
            options=options,
            clock=DatabaseClock(clock),
            receipt_key=receipt_key,
            token_key=token_key,
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
                answer = await self._answer(work, command)
            done(answer)
        except Exception as error:  # noqa: BLE001 - whoever asked is told, and a fault of ours is in the log
            done(told(error, type(command).__name__))

    async def _answer(self, work: Alone, command: Command) -> Any:
        try:
            return await work(command)
        except IN_DOUBT:
            if type(command) not in READS:
                raise
        return await work(command)  # it changes nothing, so it may be asked again

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
        """Where messages are kept; see ``engines.store.Store``."""
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
        return self.machine.background.clock_guard.warnings()

    async def trust_clock(self) -> str:
        """Take the present time for right; see ``engines.store.Store``."""
        try:
            return await self.machine.background.clock_guard.trust()
        except Exception as error:
            raise told(error, "trust in the clock") from error

    def figures(self) -> list[Figure]:
        """Return what this node tells of itself and of its way to the database."""
        background = self.machine.background
        of_node = background.nodes.figures() + background.clock_guard.figures()
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
            raise told(error, "a secret") from error

    async def answered(self) -> None:
        """Return when nothing waits and nothing is under way."""
        while under_way := {*self._tasks, *(line.task for line in self._lines.values() if line.task is not None)}:
            await asyncio.wait(under_way)
