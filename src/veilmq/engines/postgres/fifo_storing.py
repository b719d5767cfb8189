"""How messages of FIFO queues are stored: in their groups, unless they were accepted lately."""

from typing import Any

from msgspec.structs import replace

from veilmq.core import fifo
from veilmq.core.commands import NewMessage, Send
from veilmq.core.errors import InternalError
from veilmq.core.limits import DEDUPLICATION_S, SECOND_MS
from veilmq.engines.postgres.catalog import Queue
from veilmq.engines.postgres.on_queue import COLLISIONS, COLLISIONS_MAX, FIFO
from veilmq.engines.postgres.positions import Positions
from veilmq.engines.postgres.totals import Totals

_AT_ONCE_MS = -1  # of what no delay hides


class FifoStoring:
    """Stores messages of FIFO queues for one node."""

    def __init__(self, *, positions: Positions, totals: Totals) -> None:
        """Both are the node's."""
        self._positions = positions
        self._totals = totals

    def check(self, new: NewMessage, command: Send, queue: Queue) -> NewMessage:
        """Return ``new`` if its queue takes it; raises what is wrong with it."""
        fifo.group_of(new, queue.settings)
        _key(new, command, queue)
        return new

    async def store(
        self, connection: Any, queue: Queue, asked: list[tuple[NewMessage, Send]], ids: list[bytes]
    ) -> list[Any]:
        """Return the row of each message, or of that whose duplicate it is; none where the partition was retired.

        Nodes that send the same ids in another order at one time may be in each other's way: one of them tries again.
        """
        new = [_delayed(each, command, queue) for each, command in asked]
        keys = [_key(each, command, queue) for each, command in asked]
        for _ in range(COLLISIONS_MAX):
            try:
                return await self.insert(connection, queue, new, keys, ids)
            except COLLISIONS:
                self._positions.jump()
        raise InternalError

    async def insert(
        self, connection: Any, queue: Queue, new: list[NewMessage], keys: list[bytes | None], ids: list[bytes]
    ) -> list[Any]:
        """Do so once, each remembered under its key; raises what is among ``on_queue.COLLISIONS``."""
        rows: list[Any] = await connection.fetch(
            FIFO["send"],
            queue.partition,
            queue.origin,
            self._positions.take(len(new)),
            DEDUPLICATION_S * SECOND_MS,
            [each.group for each in new],
            keys,
            ids,
            [each.properties or None for each in new],
            [each.body for each in new],
            [None if each.delay_s is None else each.delay_s * SECOND_MS or _AT_ONCE_MS for each in new],
        )
        self._totals.stored(queue, sum(row["id"] == own for row, own in zip(rows, ids, strict=False)))
        return rows


def _delayed(new: NewMessage, command: Send, queue: Queue) -> NewMessage:
    """Return a message with the delay of its queue as its own, if the answer has a receipt: it says until when."""
    if new.delay_s is not None or command.terms is None or not command.terms.receipts or not queue.settings.delay_s:
        return new
    return replace(new, delay_s=queue.settings.delay_s)


def _key(new: NewMessage, command: Send, queue: Queue) -> bytes | None:
    """Return under what a message is remembered; ``None`` for one that is nobody's duplicate."""
    settings = queue.settings
    unrepeated = command.terms is not None and command.terms.unrepeated
    if unrepeated and new.dedup_id is None and not settings.content_deduplication:
        return None
    return key_of(new.group or "", fifo.id_of(new, settings), queue)


def key_of(group: str, dedup_id: str, queue: Queue) -> bytes:
    """Return the key under which ``queue`` stores that deduplication id."""
    return fifo.deduplication_key(queue.number, group, dedup_id, queue.settings)
