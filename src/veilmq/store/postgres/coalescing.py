"""Commands that arrive together share a statement, on the queue that they name.

A coalescer has the commands of one kind on one queue. While one of its statements is under way the next ones gather,
and go out together when it is back; so under light load a command travels alone and at once, under heavy load a hundred
share a round trip. (Measured: four to seven times less work for the database.) Commands find their queue by what the
node knows, and once more where that was old.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from asyncpg import DeadlockDetectedError, SerializationError, UniqueViolationError

from veilmq.core.commands import Command
from veilmq.core.errors import QueueNotFound
from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Done
from veilmq.engines.clock import stopwatch_s
from veilmq.engines.figures import Figure, Series
from veilmq.engines.named_sql import load
from veilmq.store.postgres.catalog import Catalog, Queue
from veilmq.store.postgres.database import Database
from veilmq.store.postgres.failures import OF_ALL, told

log = logging.getLogger(__name__)

STANDARD = load("veilmq.store.postgres", "messages.sql")
FIFO = load("veilmq.store.postgres", "fifo.sql")

GENERATION_BITS = 32
COLLISIONS = (DeadlockDetectedError, SerializationError, UniqueViolationError)
"""What nodes do to each other now and then; nothing was done, and trying again helps."""
COLLISIONS_MAX = 5

Work = Callable[[Sequence[Any]], Awaitable[list[Any]]]
"""Carries commands out together: the result or ``VeilmqError`` of each."""


class Coalescer:
    """Commands of one kind on one queue; each brings its ``weight``, and up to ``weight_max`` goes at once."""

    def __init__(
        self, work: Work, *, weight: Callable[[Any], int], weight_max: int, drained: Callable[[], object]
    ) -> None:
        """``work`` is called with at least one command, and never twice at a time; ``drained`` when nothing is left."""
        self._work = work
        self._drained = drained
        self._weight = weight
        self._weight_max = weight_max
        self._waiting: deque[tuple[Command, Done]] = deque()
        self.task: asyncio.Task[None] | None = None
        """What is under way; ``None`` while nothing is."""

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
            together = self._take()
            answers = await self._answers([command for command, _ in together])
            for (command, done), answer in zip(together, answers, strict=True):
                try:
                    done(answer)
                except Exception:  # what was asked is done, and the others wait for theirs
                    log.exception("the answer to a %s was not taken", type(command).__name__)
        self.task = None
        self._drained()

    def _take(self) -> list[tuple[Command, Done]]:
        taken = [self._waiting.popleft()]
        left = self._weight_max - self._weight(taken[0][0])
        while self._waiting and (weight := self._weight(self._waiting[0][0])) <= left:
            taken.append(self._waiting.popleft())
            left -= weight
        return taken

    async def _answers(self, together: list[Command]) -> list[Any]:
        try:
            return await self._work(together)
        except Exception as error:  # noqa: BLE001 - whoever asked is told, and a fault of ours is in the log
            if len(together) == 1 or isinstance(error, OF_ALL):
                return [told(error, type(together[0]).__name__)] * len(together)
        # One of them is at fault: each alone, so that the others do not pay for it.
        return [answer for command in together for answer in await self._answers([command])]


def sql(queue: Queue) -> dict[str, str]:
    """Return the statements on messages of a queue of that type."""
    return FIFO if queue.settings.fifo else STANDARD


def retention_ms(queue: Queue) -> int:
    """Return how long a message is kept from its sending."""
    return queue.settings.retention_s * SECOND_MS + queue.kept_longer_ms


class PartitionRetired(Exception):
    """What the node knows of the queue is old: it was purged or deleted, and nothing was done."""


async def hold(connection: Any, queue: Queue) -> None:
    """Hold off a purge until the end of the transaction; raises ``PartitionRetired``."""
    if await connection.fetchrow(STANDARD["hold"], queue.partition) is None:
        raise PartitionRetired


WorkOnQueue = Callable[[Any, Queue, Sequence[Any]], Awaitable[list[Any]]]
"""Carries commands out together on one connection; may raise ``PartitionRetired``."""


class OnQueue:
    """Has work done on a queue of the store."""

    def __init__(self, *, database: Database, catalog: Catalog) -> None:
        """``catalog`` is the node's."""
        self._database = database
        self._catalog = catalog

    async def __call__(self, work: WorkOnQueue, together: Sequence[Any], *, relaxed: bool = False) -> list[Any]:
        """Return the answers of ``work`` to ``together``, commands on one queue; raises ``QueueNotFound``.

        ``relaxed`` work may be undone by a crash of the database, where the node runs so and the queue is a standard
        one.
        """
        for _ in range(2):
            try:
                if relaxed and self._database.relaxes:
                    return await self._relaxed(work, together)
                async with self._database.connection() as connection:
                    queue = await self._catalog.queue(connection, together[0].queue)
                    return await work(connection, queue, together)
            except PartitionRetired:
                self._catalog.forget(together[0].queue)
        raise QueueNotFound(together[0].queue)

    async def _relaxed(self, work: WorkOnQueue, together: Sequence[Any]) -> list[Any]:
        """Do so on the connection that the type of the queue asks for, which is looked at first."""
        queue = self._catalog.known(together[0].queue)
        if queue is None:
            async with self._database.connection() as connection:
                queue = await self._catalog.sure(connection, together[0].queue)
        turn = self._database.connection() if queue.settings.fifo else self._database.relaxed()
        async with turn as connection:
            return await work(connection, queue, together)


class Measured:
    """The measures of one node."""

    def __init__(self) -> None:
        """Begin with none."""
        self._durations: dict[str, Series] = {}
        self._commands: Counter[str] = Counter()

    def together(self, kind: type, work: Work) -> Work:
        """Return ``work``, measured, which carries out commands of ``kind`` together."""

        async def measured(commands: Sequence[Any]) -> list[Any]:
            with self.taking(kind, len(commands)):
                return await work(commands)

        return measured

    @contextmanager
    def taking(self, kind: type, commands: int = 1) -> Iterator[None]:
        """Count what happens meanwhile as one turn of ``commands`` of ``kind``."""
        begun_s = stopwatch_s()
        try:
            yield
        finally:
            name = kind.__name__
            series = self._durations.get(name)
            if series is None:
                series = self._durations[name] = Series()
            series.add(stopwatch_s() - begun_s)
            self._commands[name] += commands

    def figures(self) -> list[Figure]:
        """Return what was measured so far."""
        return [
            Figure(
                "store_turn_duration_seconds",
                "How long commands that went together took at the database, and waited for a connection.",
                "durations",
                {name: series.copy() for name, series in sorted(self._durations.items())},
                label="command",
            ),
            Figure(
                "store_commands",
                "Commands that the database was asked to carry out.",
                "counter",
                dict(sorted(self._commands.items())),
                label="command",
            ),
        ]
