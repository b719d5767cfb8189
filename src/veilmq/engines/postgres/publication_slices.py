"""The way of published messages into their queue: a slice is a transaction that holds the publication's row.

Pieces of the named stages become messages of the queue, as if they were sent at that moment, and are deleted with it;
when none is left, what was not named is dropped, and the row with it. So a node that dies loses no slice and repeats
none. Dropping alone (an abandoned batch, a silent writer, a deleted queue) is a publication that names no stage.
"""

from typing import Any, NamedTuple

from veilmq.core.commands import NewMessage
from veilmq.core.errors import InternalError
from veilmq.core.ids import IdSource
from veilmq.core.limits import SECOND_MS, WRITER_SILENCE_S
from veilmq.engines import staging
from veilmq.engines.named_sql import load
from veilmq.engines.postgres.catalog import Queue, queue_of
from veilmq.engines.postgres.database import Database
from veilmq.engines.postgres.fifo_storing import FifoStoring, key_of
from veilmq.engines.postgres.next_visible import rouse_groups
from veilmq.engines.postgres.on_queue import COLLISIONS, COLLISIONS_MAX, PartitionRetired
from veilmq.engines.postgres.positions import Positions
from veilmq.engines.postgres.standard_storing import StandardStoring
from veilmq.engines.postgres.totals import Totals
from veilmq.engines.postgres.watches import Watches

SQL = load("veilmq.engines.postgres", "publications.sql")

SLICE_MESSAGES = staging.PIECE_MESSAGES
_SLICE_BYTES = staging.PIECE_BYTES
_SLICES_PER_S = 10
_DROPPED_PIECES = 16
_DROPPED_STAGES = 500
_WRITERS = 100
_PAUSE_MS = 10
_SILENCE_MS = WRITER_SILENCE_S * SECOND_MS
_ALL_BATCHES = (0, (1 << 63) - 1)


class _Entered(NamedTuple):
    """What a slice did: the stages that are left, how many messages entered, and when the first of them is visible."""

    stages: list[int]
    messages: int
    duplicates: int
    due_ms: int | None


class PublicationSlices:
    """The slices that this node does."""

    def __init__(self, *, database: Database, watches: Watches, positions: Positions, totals: Totals) -> None:
        """``watches`` hears of the messages; ``positions`` and ``totals`` are the node's."""
        self._database = database
        self._watches = watches
        self._positions = positions
        self._standard = StandardStoring(positions=positions, totals=totals)
        self._fifo = FifoStoring(positions=positions, totals=totals)
        self._ids = IdSource()

    async def hand_over(self, connection: Any, terms: tuple[Any, ...], batches: tuple[int, int]) -> None:
        """Decide in those ``terms``, and give what the writer has staged for ``batches``, first to last, to that."""
        number = await connection.fetchval(SQL["decide"], *terms)
        if not await connection.fetchval(SQL["hand_over"], number, terms[1], *batches):
            await connection.execute(SQL["end_publication"], number)

    async def advance_of(self, connection: Any, writer: int) -> bool:
        """Do a slice of the writer's first publication, if it is time; tell whether no other node was at it."""
        row = await connection.fetchrow(SQL["entering"], writer)
        if row is None or (row["messages_per_s_max"] is not None and row["next_at"] > row["now"]):
            return True
        return await self._slice(connection, "take", row["number"])

    async def step(self) -> int | None:
        """Forget who fell silent, and do a slice; return in how many ms the next one is due, if any is."""
        async with self._database.connection() as connection:
            async with connection.transaction():
                await self._forget_silent(connection)
            await self._slice(connection, "due")
            due_ms: int | None = await connection.fetchval(SQL["next_slice"], _SILENCE_MS)
        return None if due_ms is None else due_ms if due_ms > 0 else _PAUSE_MS

    async def _forget_silent(self, connection: Any) -> None:
        for number, origin in await connection.fetch(SQL["silent_writers"], _SILENCE_MS, _WRITERS):
            await self.hand_over(connection, (origin, number, 0, [], None), _ALL_BATCHES)
            await connection.execute(SQL["delete_writer"], number)

    async def _slice(self, connection: Any, name: str, *terms: Any) -> bool:
        """Do a slice of the publication that ``name`` finds and locks; tell whether there was one."""
        for _ in range(COLLISIONS_MAX):
            try:
                async with connection.transaction():
                    row = await connection.fetchrow(SQL[name], *terms)
                    told = None if row is None else await self._advance(connection, row)
            except (*COLLISIONS, PartitionRetired):
                self._positions.jump()
                continue
            if told is not None:
                await self._tell(connection, *told)
            return row is not None
        raise InternalError

    async def _tell(self, connection: Any, queue: Queue, due_ms: int) -> None:
        if queue.settings.fifo:
            await rouse_groups(connection, queue, self._watches)
        else:
            self._watches.wake(queue.name, due_ms)

    async def _advance(self, connection: Any, row: Any) -> tuple[Queue, int] | None:
        """Do a slice; return the queue that messages came to, and when the first of them is visible."""
        found = await connection.fetchrow(SQL["queue_of"], row["qp"])
        if found is None or not row["stages"]:
            await self._drop(connection, row["number"])
            return None
        queue = queue_of(found)
        entered = await self._enter(connection, row, queue)
        rate = row["messages_per_s_max"]
        pause_ms = _PAUSE_MS if rate is None else max(_PAUSE_MS, -(-entered.messages * SECOND_MS // rate))
        await connection.execute(SQL["go_on"], row["number"], entered.stages, pause_ms)
        if entered.duplicates:
            await connection.execute(SQL["count_duplicates"], row["writer_id"], row["batch"], entered.duplicates)
        return None if entered.due_ms is None else (queue, entered.due_ms)

    async def _drop(self, connection: Any, number: int) -> None:
        """Delete some of what is not to enter, and the publication when nothing is left."""
        dropped = await connection.fetchval(SQL["drop_pieces"], number, _DROPPED_PIECES)
        dropped = dropped or await connection.fetchval(SQL["drop_stages"], number, _DROPPED_STAGES)
        if dropped:
            await connection.execute(SQL["go_on"], number, [], _PAUSE_MS)
        else:
            await connection.execute(SQL["end_publication"], number)

    async def _enter(self, connection: Any, row: Any, queue: Queue) -> _Entered:
        """Let the next messages enter, so many as a slice may."""
        rate = row["messages_per_s_max"]
        left = SLICE_MESSAGES if rate is None else min(SLICE_MESSAGES, max(1, rate // _SLICES_PER_S))
        stages = list(row["stages"])
        entered = duplicates = size = 0
        due_ms: list[int] = []
        while stages and left > 0 and size < _SLICE_BYTES:
            piece = await connection.fetchrow(SQL["first_piece"], stages[0])
            if piece is None:
                del stages[0]
                continue
            messages = staging.unpack(piece["content"])
            ids = [self._ids.next() for _ in messages[:left]]
            stored = await self._store(connection, queue, list(messages[:left]), ids)
            await self._cut(connection, stages[0], piece, messages[left:])
            due_ms.append(min(each["visible_at"] for each in stored))
            duplicates += sum(each["id"] != own for each, own in zip(stored, ids, strict=True))
            entered, left, size = entered + len(stored), left - len(messages), size + len(piece["content"])
        while stages and not await connection.fetchval(SQL["has_pieces"], stages[0]):
            del stages[0]
        return _Entered(stages, entered, duplicates, min(due_ms, default=None))

    async def _cut(self, connection: Any, stage: int, piece: Any, rest: tuple[NewMessage, ...]) -> None:
        """Leave of a piece what has not entered."""
        place = (stage, piece["part"], piece["place"])
        if rest:
            await connection.execute(SQL["put_piece"], *place, len(rest), staging.pack(rest))
        else:
            await connection.execute(SQL["delete_piece"], *place)

    async def _store(self, connection: Any, queue: Queue, new: list[NewMessage], ids: list[bytes]) -> list[Any]:
        """Return the row of each message, or of that whose duplicate it is; raises ``PartitionRetired``."""
        if queue.settings.fifo:
            keys: list[bytes | None] = [key_of(each.group or "", each.dedup_id or "", queue) for each in new]
            rows = await self._fifo.insert(connection, queue, new, keys, ids)
        else:
            rows = await self._standard.insert(connection, queue, new, ids)
        if not rows:
            raise PartitionRetired
        return rows


async def hold_all(connection: Any, queue: Queue) -> None:
    """Wait for slices of ``queue`` that are under way, and hold off others: its partition is about to be retired."""
    await connection.execute(SQL["lock_publications"], queue.origin)


async def take_all(connection: Any, queue: Queue) -> None:
    """Let nothing enter that was decided before the purge that this transaction is."""
    await connection.execute(SQL["empty_publications"], queue.origin)


async def forget_all(connection: Any, queue: Queue) -> None:
    """Forget all writers of ``queue``, which is deleted in this transaction, and have what they staged dropped."""
    await take_all(connection, queue)
    number = await connection.fetchval(SQL["decide"], queue.origin, None, 0, [], None)
    await connection.execute(SQL["hand_all_over"], number, queue.origin)
    await connection.execute(SQL["delete_writers"], queue.origin)
