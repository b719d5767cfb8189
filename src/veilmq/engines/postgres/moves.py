"""Move tasks: their commands. The work is done a slice at a time (``move_slices``), by whichever node is there."""

from collections.abc import Callable
from typing import Any

from veilmq.core import commands, redrive
from veilmq.core.errors import (
    DestinationRefused,
    MoveTaskNotFound,
    MoveTaskRunning,
    NotADeadLetterQueue,
    QueueNotFound,
)
from veilmq.core.ids import IdSource
from veilmq.core.limits import MOVE_TASKS_KEPT
from veilmq.core.results import MoveStatus, MoveTask
from veilmq.core.settings import QueueSettings
from veilmq.engines.named_sql import load
from veilmq.engines.postgres.catalog import SQL as QUEUES
from veilmq.engines.postgres.catalog import Catalog, Queue
from veilmq.engines.postgres.database import Database
from veilmq.engines.postgres.on_queue import retention_ms, sql

SQL = load("veilmq.engines.postgres", "moves.sql")


class Moves:
    """The commands ``StartMove``, ``CancelMove`` and ``ListMoves``."""

    def __init__(self, *, database: Database, catalog: Catalog, changed: Callable[[], None]) -> None:
        """``changed`` is called when there is a slice to be done, or none any more."""
        self._database = database
        self._catalog = catalog
        self._changed = changed
        self._ids = IdSource()

    async def start(self, command: commands.StartMove) -> MoveTask:
        """Begin a task; its first slice follows at once."""
        async with self._database.connection() as connection, connection.transaction():
            source = await self._catalog.sure(connection, command.source)
            if not await self._has_sources(connection, source):
                raise NotADeadLetterQueue(source.name)
            if command.destination is not None:
                destination = await self._catalog.settings(connection, command.destination)
                _check(source, command.destination, destination)
            row = await self._insert(connection, source, command)
        self._changed()
        return _told(row)

    async def _has_sources(self, connection: Any, queue: Queue) -> bool:
        if await connection.fetch(QUEUES["list_sources"], queue.name, "", 1):
            return True
        return self._catalog.elsewhere is not None and await self._catalog.elsewhere.has_sources(queue.name)

    async def _insert(self, connection: Any, source: Queue, command: commands.StartMove) -> Any:
        counts = await connection.fetchrow(sql(source)["count"], source.partition, retention_ms(source))
        row = await connection.fetchrow(
            SQL["insert_move"],
            source.number,
            self._ids.next(),
            source.name,
            command.destination,
            command.moves_per_s_max,
            counts["visible"],
            command.starter,
        )
        if row is None:
            raise MoveTaskRunning(source.name)
        await connection.execute(SQL["delete_older_moves"], source.number, MOVE_TASKS_KEPT)
        return row

    async def cancel(self, command: commands.CancelMove) -> MoveTask:
        """End a task that is running."""
        async with self._database.connection() as connection:
            source = await self._catalog.sure(connection, command.source)
            row = await connection.fetchrow(SQL["cancel_move"], source.number, command.task)
        if row is None:
            raise MoveTaskNotFound
        self._changed()
        return _told(row)

    async def list(self, command: commands.ListMoves) -> list[MoveTask]:
        """Tell the latest tasks of a queue, newest first."""
        async with self._database.connection() as connection:
            source = await self._catalog.sure(connection, command.source)
            rows = await connection.fetch(SQL["moves_of"], source.number, command.count)
        return [_told(row) for row in rows]


def _check(source: Queue, destination: str, theirs: QueueSettings | None) -> None:
    if theirs is None:
        raise QueueNotFound(destination)
    why = redrive.destination_refusal(source.name, source.settings, destination, theirs)
    if why is not None:
        raise DestinationRefused(destination, why)


def _told(row: Any) -> MoveTask:
    return MoveTask(
        id=row["id"],
        source=row["source"],
        destination=row["destination"],
        moves_per_s_max=row["moves_per_s_max"],
        status=MoveStatus(row["status"]),
        messages_moved=row["moved"],
        messages_to_move=row["to_move"],
        started_at_ms=row["started_at"],
        failure=row["failure"],
    )
