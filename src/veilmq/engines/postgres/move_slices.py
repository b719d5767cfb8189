"""The work of move tasks: a slice is a transaction that holds the task's row, so that one node at a time does it.

It moves some messages and writes the progress, so a crash at any moment neither loses nor doubles a message nor
miscounts. What is moved are the messages visible when a slice comes to them, in the order in which they would be
received, and not more than were visible when the task began.
"""

from typing import Any, NamedTuple

from veilmq.core import redrive
from veilmq.core.errors import StoreUnavailable
from veilmq.core.ids import IdSource
from veilmq.core.ports import MaySend
from veilmq.core.results import MoveStatus
from veilmq.engines.postgres.catalog import Catalog, Queue
from veilmq.engines.postgres.database import Database
from veilmq.engines.postgres.event_log import EventLog
from veilmq.engines.postgres.moves import SQL
from veilmq.engines.postgres.moving import move_on
from veilmq.engines.postgres.next_visible import rouse_groups
from veilmq.engines.postgres.on_queue import retention_ms, sql
from veilmq.engines.postgres.positions import Positions
from veilmq.engines.postgres.watches import Watches

_AWAY_MS = 10_000
"""How long a task rests whose next message goes to a database that cannot be reached: the others go on."""


class _Part(NamedTuple):
    """What a slice moves: rows in their order with the queues that they go to; and why the next one cannot go.

    ``is_away``: where that one goes cannot be told yet.
    """

    rows: list[tuple[Any, Queue]]
    failure: str | None = None
    is_away: bool = False


class MoveSlices:
    """The slices that this node does."""

    def __init__(
        self,
        *,
        database: Database,
        catalog: Catalog,
        watches: Watches,
        positions: Positions,
        log: EventLog,
        may_send: MaySend | None,
    ) -> None:
        """``watches`` hears of the messages where they come to, ``log`` of receipts; ``positions`` are the node's.

        A task goes on as long as ``may_send`` allows it.
        """
        self._log = log
        self._may_send = may_send
        self._database = database
        self._catalog = catalog
        self._watches = watches
        self._positions = positions
        self._ids = IdSource()

    async def step(self) -> int | None:
        """Do a slice of the task that has waited longest; return in how many ms the next one is due, if any is."""
        async with self._database.connection() as connection:
            async with connection.transaction():
                task = await connection.fetchrow(SQL["due_move"])
                targets = [] if task is None else await self._advance(connection, task)
            for target in targets:
                await self._rouse(connection, target)
            due_ms: int | None = await connection.fetchval(SQL["next_move"])
            return due_ms

    async def _rouse(self, connection: Any, target: Queue) -> None:
        if target.settings.fifo:
            await rouse_groups(connection, target, self._watches)
        else:
            self._watches.wake(target.name, 0)

    async def _advance(self, connection: Any, task: Any) -> list[Queue]:
        """Do a slice of ``task``; return the queues that messages came to."""
        source = await self._catalog.find(connection, task["source"])
        if source is None or source.number != task["queue_id"]:
            await connection.execute(SQL["delete_moves"], task["queue_id"])
            return []
        left = task["to_move"] - task["moved"]
        count = min(redrive.moved_at_once(task["moves_per_s_max"]), left)
        rows = await connection.fetch(sql(source)["choose"], source.partition, count, retention_ms(source))
        part = await self._part(connection, task, source, rows)
        moved = 0
        targets = list({target.number: target for _, target in part.rows}.values())
        for target in targets:
            letters = [row for row, to in part.rows if to is target]
            ids = [self._ids.next() for _ in letters]
            await self._log.note(connection, source, "supersede", [row["seq"] for row in letters])
            moved += await move_on(connection, source, target, letters, ids, self._positions)
        is_over = moved >= left or moved == len(rows) < count
        status = MoveStatus.FAILED if part.failure else MoveStatus.COMPLETED if is_over else MoveStatus.RUNNING
        pause_ms = _AWAY_MS if part.is_away else redrive.pause_ms(task["moves_per_s_max"], moved)
        await connection.execute(SQL["update_move"], task["number"], moved, pause_ms, status.value, part.failure)
        return targets

    async def _part(self, connection: Any, task: Any, source: Queue, rows: list[Any]) -> _Part:
        """Return what of ``rows`` goes where, as far as a slice may go."""
        going: list[tuple[Any, Queue]] = []
        known: dict[str, Queue | None] = {}
        size_bytes = 0
        for row in rows:
            if size_bytes >= redrive.SLICE_BYTES:
                break
            name = task["destination"] or row["source"]
            if name is None:
                return _Part(going, redrive.SOURCE_UNKNOWN)
            if name not in known:
                try:
                    known[name] = await self._catalog.target(connection, name, (source.number, source.name))
                except StoreUnavailable:
                    return _Part(going, is_away=True)
                if not self._is_allowed(task, known[name]):
                    return _Part(going, redrive.NOT_ALLOWED)
            target = known[name]
            if target is None or target.number == source.number or target.settings.fifo != source.settings.fifo:
                return _Part(going, redrive.QUEUE_MISSING)
            going.append((row, target))
            size_bytes += row["size_bytes"]
        return _Part(going)

    def _is_allowed(self, task: Any, target: Queue | None) -> bool:
        if self._may_send is None or task["starter"] is None or target is None:
            return True
        return self._may_send(task["starter"], target.name, target.settings.policy)
