"""A database as the target of a copy from another kind of store: one transaction, so all of it or nothing.

Messages that a receipt may name keep their position as their ``seq``, and so do those of FIFO queues, which are in
order. All others get one of their time of coming, unless theirs is one.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from veilmq.core.limits import DEDUPLICATION_S, SECOND_MS
from veilmq.engines.copying import CopiedAcceptance, CopiedMessage, CopiedQueue, CopyRefused, Remembered
from veilmq.store.postgres.copy_lock import SQL, CopyLock
from veilmq.store.postgres.doctor import invariants
from veilmq.store.postgres.fair import LANE
from veilmq.store.postgres.sends import COUNTER_BITS

_COUNTERS = (1 << COUNTER_BITS) - 1
_COLUMNS = (
    "qp", "seq", "visible_at", "sent_at", "first_received_at", "received_at", "receive_count", "generation", "epoch",
    "id", "properties", "source", "receives_before", "log", "body",
)  # fmt: skip
_MOVE = (
    "number", "id", "queue_id", "source", "destination", "moves_per_s_max", "status", "moved", "to_move", "started_at",
    "next_at", "failure", "starter",
)  # fmt: skip
_TOPIC = ("topic_id", "name", "settings", "created_at", "modified_at")
_SUBSCRIPTION = ("topic_id", "name", "content", "pushed", "created_at", "modified_at")
_CLOCKS_MS = 60 * SECOND_MS


class DatabaseTarget:
    """``engines.copying.Target`` of a database without queues."""

    def __init__(self, lock: CopyLock) -> None:
        """``lock`` is that of the database."""
        self._lock = lock
        self._partitions: dict[int, int] = {}
        self._fifo: dict[int, int] = {}  # the retention of each
        self._counter = 0
        self._last_instant_ms = 0

    async def begin(self, values: dict[str, bytes], *, now_ms: int, last_queue: int) -> None:
        """See ``Target``; makes the schema, or upgrades it."""
        connection = self._lock.connection
        await self._lock.migrate()
        await self._lock.hold()
        await refuse_used(self._lock)
        await self._lock.without_triggers()
        self._last_instant_ms = now_ms + _CLOCKS_MS
        if abs(await connection.fetchval(SQL["now"]) - now_ms) > _CLOCKS_MS:
            raise CopyRefused(
                f"The clock of {self._lock.place} is more than a minute from that of the store that is copied: set it "
                "right first, since leases and delays end by it."
            )
        for name, value in values.items():
            await connection.execute(SQL["put_setting"], name, value)
        if last_queue:
            await connection.execute(SQL["number_behind"], "mq.queue", "queue_id", last_queue)

    async def add_queue(self, queue: CopiedQueue) -> None:
        """See ``Target``."""
        connection = self._lock.connection
        delay_ms = queue.settings.delay_s * SECOND_MS if queue.settings.fifo else 0
        partition = await connection.fetchval(SQL["add_part"], queue.number, delay_ms)
        told = queue.number, queue.name, queue.encoded, queue.created_at_ms, queue.modified_at_ms, partition
        await connection.execute(SQL["add_queue"], *told)
        self._partitions[queue.number] = partition
        if queue.settings.fifo:
            self._fifo[queue.number] = queue.settings.retention_s * SECOND_MS

    async def add_messages(self, queue: CopiedQueue, messages: Sequence[CopiedMessage]) -> None:
        """See ``Target``."""
        connection = self._lock.connection
        partition = self._partitions[queue.number]
        if queue.settings.fifo:
            records = [(*self._row(partition, each, each.position), each.group) for each in messages]
            await self._copy("fifo_msg", (*_COLUMNS, "group_id"), records)
            return
        groups = [None if each.group is None else _key_of(each.group) for each in messages]
        priorities = [each.priority + (each.group is not None) * LANE for each in messages]
        await connection.execute(SQL["add_priorities"], partition, sorted(set(priorities)))
        records = [
            (*self._row(partition, each, self._seq(each)), priority, group)
            for each, priority, group in zip(messages, priorities, groups, strict=True)
        ]
        await self._copy("msg", (*_COLUMNS, "priority", "group_key"), records)

    async def _copy(self, table: str, columns: Sequence[str], records: Sequence[Any]) -> None:
        await self._lock.connection.copy_records_to_table(table, schema_name="mq", columns=columns, records=records)

    def _seq(self, message: CopiedMessage) -> int:
        if message.has_history or message.position >> COUNTER_BITS == message.sent_at_ms:
            return message.position
        self._counter += 1
        return (message.came_at_ms << COUNTER_BITS) | (self._counter & _COUNTERS)

    def _row(self, partition: int, message: CopiedMessage, seq: int) -> tuple[Any, ...]:
        if message.position >> COUNTER_BITS > self._last_instant_ms:
            raise CopyRefused(
                f"A position of the store ({message.position}) is of an instant to come: its clock was set back, or "
                "it is not sound."
            )
        return (
            partition,
            seq,
            message.visible_at_ms,
            message.sent_at_ms,
            message.first_received_at_ms,
            message.received_at_ms,
            message.receive_count,
            message.generation,
            message.epoch,
            message.id,
            message.properties or None,
            message.source,
            message.receives_before,
            message.log or None,
            message.body,
        )

    async def remember(self, remembered: Remembered) -> None:
        """See ``Target``. What only its key tells the queue of is remembered for each: it is another's in none."""
        await self._copy("accepted", ("qp", "key", "expires_at", "seq", "id"), self._acceptances(remembered.accepted))
        await self._copy("move", _MOVE, remembered.moves)
        await self._copy("pause", ("kind", "name", "begun_at"), remembered.pauses)
        await self._copy("topic", _TOPIC, remembered.topics)
        await self._copy("subscription", _SUBSCRIPTION, remembered.subscriptions)
        for table, column, rows in (
            ("mq.move", "number", remembered.moves),
            ("mq.topic", "topic_id", remembered.topics),
        ):
            if rows:
                last = max(each.number for each in rows)
                await self._lock.connection.execute(SQL["number_behind"], table, column, last)

    def _acceptances(self, accepted: Sequence[CopiedAcceptance]) -> list[Any]:
        latest = {each.key: each for each in accepted}  # a key may have been accepted again
        return [
            (self._partitions[queue], key, each.accepted_at_ms + DEDUPLICATION_S * SECOND_MS, each.sequence, each.id)
            for key, each in latest.items()
            for queue in (self._fifo if each.queue is None else [each.queue])
        ]

    async def finish(self) -> None:
        """See ``Target``."""
        for number, partition in self._partitions.items():
            if number in self._fifo:
                await self._lock.connection.execute(SQL["add_groups"], partition, self._fifo[number])
            else:
                await self._lock.connection.execute(SQL["add_turns"], partition)
        broken = [finding.check for finding in await invariants(self._lock.connection) if not finding.ok]
        if broken:
            raise CopyRefused(f"The copy was not kept, because it breaks this: {'; '.join(broken)}.")
        await self._lock.commit()


def _key_of(group: str) -> int:
    """Return the number of a group, as ``store.postgres.fair`` has it."""
    return int.from_bytes(blake2b(group.encode(), digest_size=8).digest()) >> 1


async def refuse_used(lock: CopyLock) -> None:
    """Raise ``CopyRefused`` unless there is nothing in the store of ``lock``, which is none of several databases."""
    if await lock.connection.fetchval(SQL["is_used"]):
        raise CopyRefused(
            f"{lock.place} has queues, topics or settings of accounts, or what is left of some, or is one of several "
            "databases of a store: name an empty one, and copy again."
        )
