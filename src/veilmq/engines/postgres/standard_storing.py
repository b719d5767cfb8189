"""How messages of standard queues are stored: one statement for all."""

from typing import Any

from veilmq.core.commands import NewMessage, Send
from veilmq.core.errors import InternalError, MessageTooLong
from veilmq.core.limits import PRIORITY, SECOND_MS
from veilmq.engines.postgres.catalog import Queue
from veilmq.engines.postgres.fair_queues import FAIR, LANE, FairQueues, keys_of
from veilmq.engines.postgres.on_queue import COLLISIONS, COLLISIONS_MAX, STANDARD
from veilmq.engines.postgres.positions import COUNTER_BITS, Positions
from veilmq.engines.postgres.totals import Totals

_COUNTERS = 1 << COUNTER_BITS


class StandardStoring:
    """Stores messages of standard queues for one node."""

    def __init__(self, *, positions: Positions, totals: Totals, fair: FairQueues | None = None) -> None:
        """``positions`` and ``totals`` are the node's; ``fair`` hears of messages that name groups, if any do."""
        self._fair = fair
        self._totals = totals
        self._positions = positions

    def check(self, new: NewMessage, command: Send, queue: Queue) -> NewMessage:
        """Return ``new`` if its queue takes it; raises ``MessageTooLong``."""
        if new.size_bytes > queue.settings.message_bytes_max:
            raise MessageTooLong(queue.settings.message_bytes_max)
        return new

    async def store(
        self, connection: Any, queue: Queue, asked: list[tuple[NewMessage, Send]], ids: list[bytes]
    ) -> list[Any]:
        """Return the stored row of each message, in their order; none where the partition was retired.

        Inserts with other counters where another node has sent with the same in the same millisecond.
        """
        for _ in range(COLLISIONS_MAX):
            try:
                return await self.insert(connection, queue, [each for each, _ in asked], ids)
            except COLLISIONS:
                self._positions.jump()
        raise InternalError

    async def insert(self, connection: Any, queue: Queue, new: list[NewMessage], ids: list[bytes]) -> list[Any]:
        """Do so once; raises what is among ``on_queue.COLLISIONS``."""
        groups = keys_of(new)
        priorities = [
            each.priority if group is None else LANE + each.priority for each, group in zip(new, groups, strict=True)
        ]
        added = sorted(set(priorities) - {PRIORITY.default})
        if added:
            await connection.execute(STANDARD["add_priorities"], queue.partition, added)
        is_fair = any(group is not None for group in groups)
        first = self._positions.take(len(new))
        rows = await connection.fetch(
            (FAIR if is_fair else STANDARD)["send"],
            queue.partition,
            [number % _COUNTERS for number in range(first, first + len(new))],
            priorities,
            [(queue.settings.delay_s if each.delay_s is None else each.delay_s) * SECOND_MS for each in new],
            ids,
            [each.properties or None for each in new],
            [each.body for each in new],
            *([groups] if is_fair else []),
        )
        if not rows:
            return []
        self._totals.stored(queue, len(rows))
        by_id = {row["id"]: row for row in rows}
        stored = [by_id[each] for each in ids]
        if is_fair and self._fair is not None:
            self._fair.sent(queue, groups, stored)
        return stored
