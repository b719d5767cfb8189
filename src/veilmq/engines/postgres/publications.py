"""Publications: the commands of ``core.publications``.

Staged messages stand in tables of their own, in pieces (``engines.staging``). Publishing decides, in a transaction that
holds the lock of the writer's row: the writer's last batch is raised, which guards against a second time, and what was
staged for it is handed to a row of ``mq.publication``. From then on the rest happens by itself, a slice at a time
(``publication_slices``), at whichever node comes to it.
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from veilmq.core.commands import Command
from veilmq.core.errors import InternalError, StageMissing
from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Clock
from veilmq.core.publications import Abandon, ListWriters, Publish, Published, Stage, Staged, WriterView
from veilmq.engines import staging
from veilmq.engines.named_sql import load
from veilmq.engines.postgres.catalog import Catalog, Queue
from veilmq.engines.postgres.database import Database
from veilmq.engines.postgres.mover import Mover
from veilmq.engines.postgres.on_queue import COLLISIONS, COLLISIONS_MAX, PartitionRetired
from veilmq.engines.postgres.positions import Positions
from veilmq.engines.postgres.publication_slices import PublicationSlices
from veilmq.engines.postgres.totals import Totals
from veilmq.engines.postgres.watches import Watches

SQL = load("veilmq.engines.postgres", "publications.sql")

_DECIDED_WITH_SLICE = 100  # stages; deciding on more of them is work enough for one command
_SEEN_MS = 3_600 * SECOND_MS
_BUSY_MS = 10  # while another node is at the slice
_FIRST_BATCH = 0

Work = Callable[[Any, Queue, Any], Awaitable[Any]]
"""Carries out a command in a transaction."""


class _Decided(NamedTuple):
    """What a publish found or did: the writer's number, whether it was published before, and of how many stages."""

    writer: int
    again: bool
    stages: int


class Publications:
    """The commands on writers, at one node."""

    def __init__(
        self,
        *,
        database: Database,
        catalog: Catalog,
        watches: Watches,
        positions: Positions,
        clock: Clock,
        start: Callable[[Coroutine[Any, Any, None]], None],
        totals: Totals,
    ) -> None:
        """``watches`` hears of what enters, at some of the ``positions``; ``start`` makes a task of the engine."""
        self._database = database
        self._catalog = catalog
        self._slices = PublicationSlices(database=database, watches=watches, positions=positions, totals=totals)
        self.mover = Mover(step=self._slices.step, clock=clock, start=start, pause_ms_min=1)
        """Does the slices that nobody asks for, and forgets who fell silent."""

    @property
    def handlers(self) -> dict[type[Command], Callable[[Any], Awaitable[Any]]]:
        """What carries out each command."""
        return {
            Stage: self.stage,
            Publish: self.publish,
            Abandon: self.abandon,
            ListWriters: self.list_writers,
        }

    async def _do(self, connection: Any, work: Work, command: Any) -> Any:
        """Have ``work`` done in a transaction, which is repeated where nodes were in each other's way."""
        for _ in range(COLLISIONS_MAX):
            try:
                async with connection.transaction():
                    queue = await self._catalog.sure(connection, command.queue)
                    if await connection.fetchval(SQL["lock_part"], queue.partition) is None:
                        raise PartitionRetired
                    return await work(connection, queue, command)
            except (*COLLISIONS, PartitionRetired):
                continue
        raise InternalError

    async def stage(self, command: Stage) -> Staged:
        """Keep the messages, all of them or none."""
        async with self._database.connection() as connection:
            staged: Staged = await self._do(connection, self._stage, command)
        self.mover.look()
        return staged

    async def _stage(self, connection: Any, queue: Queue, command: Stage) -> Staged:
        staging.check(command.messages, queue.settings)
        await connection.execute(SQL["see_writer"], queue.origin, command.writer, _SEEN_MS)
        await connection.execute(SQL["add_writer"], queue.origin, command.writer)
        writer = await connection.fetchrow(SQL["share_writer"], queue.origin, command.writer)
        if writer["batch"] is not None and command.batch <= writer["batch"]:
            return Staged(messages=0, again=True)
        stage, messages = await connection.fetchrow(
            SQL["put_stage"], writer["writer_id"], command.batch, command.attempt
        )
        if await connection.fetchval(SQL["has_part"], stage, command.part):
            return Staged(messages=messages, again=True)
        pieces = list(staging.pieces(command.messages, queue.settings))
        counts, contents = [count for count, _ in pieces], [content for _, content in pieces]
        await connection.execute(SQL["add_pieces"], stage, command.part, list(range(len(pieces))), counts, contents)
        await connection.execute(SQL["add_to_stage"], stage, len(command.messages))
        return Staged(messages=messages + len(command.messages))

    async def publish(self, command: Publish) -> Published:
        """Decide, unless it was, and do a slice."""
        async with self._database.connection() as connection:
            decided: _Decided = await self._do(connection, self._decide, command)
            is_taken = False
            if decided.stages <= _DECIDED_WITH_SLICE:
                is_taken = not await self._slices.advance_of(connection, decided.writer)
            queue = await self._catalog.queue(connection, command.queue)
            published = await self._told(connection, queue, command, again=decided.again, is_taken=is_taken)
        self.mover.look(_BUSY_MS)
        return published

    async def _decide(self, connection: Any, queue: Queue, command: Publish) -> _Decided:
        writer = await connection.fetchrow(SQL["lock_writer"], queue.origin, command.writer)
        if writer is not None and writer["batch"] is not None and command.batch <= writer["batch"]:
            return _Decided(writer["writer_id"], again=True, stages=0)
        stages = await self._named(connection, writer, command)
        if writer is None:
            await connection.execute(SQL["add_writer"], queue.origin, command.writer)
            writer = await connection.fetchrow(SQL["lock_writer"], queue.origin, command.writer)
        number = writer["writer_id"]
        messages = sum(dict(command.attempts).values())
        await connection.execute(SQL["publish_batch"], number, command.batch, messages)
        terms = (queue.origin, number, command.batch, stages, command.messages_per_s_max)
        await self._slices.hand_over(connection, terms, (_FIRST_BATCH, command.batch))
        return _Decided(number, again=False, stages=len(stages))

    async def _named(self, connection: Any, writer: Any, command: Publish) -> list[int]:
        """Return the stages that the command names; raises ``StageMissing``."""
        there: dict[str, tuple[int, int]] = {}
        if writer is not None:
            rows = await connection.fetch(SQL["stages_of"], writer["writer_id"], command.batch)
            there = {attempt: (stage, messages) for attempt, stage, messages in rows}
        stages = []
        for attempt, wanted in dict(command.attempts).items():
            stage, messages = there.get(attempt, (0, 0))
            if messages != wanted:
                raise StageMissing(attempt, messages, wanted)
            if messages:
                stages.append(stage)
        return stages

    async def _told(self, connection: Any, queue: Queue, command: Publish, *, again: bool, is_taken: bool) -> Published:
        writer = await connection.fetchrow(SQL["find_writer"], queue.origin, command.writer)
        is_last = writer is not None and writer["batch"] == command.batch
        entering = None if writer is None else await connection.fetchrow(SQL["entering"], writer["writer_id"])
        due_ms = None
        if entering is not None:
            at_ms = 0 if entering["messages_per_s_max"] is None else entering["next_at"]
            due_ms = max(entering["now"] + (_BUSY_MS if is_taken else 0), at_ms)
        return Published(
            messages=writer["messages"] if is_last else 0,
            duplicates=writer["duplicates"] if is_last else 0,
            again=again,
            more=entering is not None,
            next_due_ms=due_ms,
        )

    async def abandon(self, command: Abandon) -> None:
        """Have what is staged for the batch dropped."""
        async with self._database.connection() as connection:
            await self._do(connection, self._abandon, command)
        self.mover.look()

    async def _abandon(self, connection: Any, queue: Queue, command: Abandon) -> None:
        writer = await connection.fetchrow(SQL["lock_writer"], queue.origin, command.writer)
        if writer is not None:
            terms = queue.origin, writer["writer_id"], command.batch, list[int](), None
            await self._slices.hand_over(connection, terms, (command.batch, command.batch))

    async def list_writers(self, command: ListWriters) -> list[WriterView]:
        """Tell the writers of a queue."""
        async with self._database.connection() as connection:
            queue = await self._catalog.sure(connection, command.queue)
            rows = await connection.fetch(SQL["writers_of"], queue.origin, command.count)
        return [
            WriterView(
                writer=row["name"],
                batch=row["batch"],
                messages=row["messages"],
                duplicates=row["duplicates"],
                staged=row["staged"],
                seen_at_ms=row["seen_at"],
            )
            for row in rows
        ]
