"""Copies of a stopped store, with a database as the source or the target.

A copy is one transaction on each server; no node may run meanwhile, and none can start.

Between databases, every logged table is copied unchanged, so receipts, claims and publications stay valid. From another
kind of store, messages that a receipt may name, and those of FIFO queues, keep their position as their ``seq``; others
get a position from their arrival time, unless theirs is such a position.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, Self

import msgspec

from veilmq.core.limits import DEDUPLICATION_S, SECOND_MS
from veilmq.store import copying
from veilmq.store.copying import TABLES, CopiedDeduplication, CopiedMessage, CopiedQueue, CopyRefused, Source
from veilmq.store.named_queries import load
from veilmq.store.postgres.database import FAILURES
from veilmq.store.postgres.databases import store_errors
from veilmq.store.postgres.node import COUNTER_BITS, GROUPED, keys_of
from veilmq.store.postgres.queues import SQL as QUEUES
from veilmq.store.postgres.queues import STANDARD
from veilmq.store.postgres.schema import SQL as SCHEMA
from veilmq.store.postgres.schema import connect, invariants, migrate, read_format, require
from veilmq.store.urls import without_passwords

SQL = {**QUEUES, **SCHEMA, **load("veilmq.store.postgres", "copies.sql")}

_FETCHED_ROWS = 64  # each may have 1 MiB
_FAILED = "failed, and nothing was copied"


class CopyTransaction:
    """The transaction of a copy on one server."""

    def __init__(self, connection: Any, url: str) -> None:
        self.connection = connection
        self.shown_url = without_passwords(url)
        self.errors = partial(store_errors, url, _FAILED, kind=CopyRefused)
        self._transaction: Any = None

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator[Self]:
        """Connect; at the end, close the connection, which rolls back an uncommitted copy. Raises ``CopyRefused``."""
        with store_errors(url, kind=CopyRefused):
            connection = await connect(url, application_name="veilmq copy", jit="off", lock_timeout="10s")
        transaction = cls(connection, url)
        try:
            with transaction.errors():
                yield transaction
        finally:
            connection.terminate()

    async def begin_transaction(self, schema: Callable[[Any], Awaitable[Any]]) -> None:
        """Run ``schema`` (``require`` or ``migrate``), and begin the transaction; raises ``CopyRefused``."""
        with self.errors():
            await schema(self.connection)
        self._transaction = self.connection.transaction(isolation="repeatable_read")
        await self._transaction.start()
        # A starting node reads the keys, and so waits until the copy ends.
        await self.connection.execute("LOCK TABLE mq.setting IN ACCESS EXCLUSIVE MODE")
        await self.check_alone()

    async def begin_empty(self) -> None:
        """Begin the transaction of a target, without triggers; raises ``CopyRefused`` unless it is empty and alone."""
        await self.begin_transaction(migrate)
        if await self.connection.fetchval(SQL["is_used"]):
            raise CopyRefused(
                f"{self.shown_url} is not empty (queues, topics, settings of accounts, or rows of deleted ones), or is "
                "one of several databases of a store: use an empty one, and copy again."
            )
        await self.connection.execute("ALTER TABLE mq.msg DISABLE TRIGGER USER")

    async def check_alone(self) -> None:
        """Raise ``CopyRefused`` if a node is connected, except one that waits for the end of the copy.

        A node that had lost its connections at the beginning may be back at the end, so check again.
        """
        await self.connection.execute("SELECT pg_stat_clear_snapshot()")  # otherwise the first result is repeated
        nodes = await self.connection.fetchval(SQL["nodes"])
        if nodes:
            raise CopyRefused(
                f"{self.shown_url} has {nodes} connections of veilmq: stop all servers that use it, and copy again."
            )

    async def commit(self) -> None:
        """Commit the copy, and analyze its tables for the planner."""
        await self.connection.execute("ALTER TABLE mq.msg ENABLE TRIGGER USER")
        await self._transaction.commit()
        with suppress(*FAILURES):  # autovacuum analyzes too
            await self.connection.execute("ANALYZE")


class DatabaseSource(Source):
    """``store.copying.Source`` of a database."""

    SQL = SQL
    COPIED = frozenset(
        {"accepted", "fifo_msg", "msg", "queue", "setting"}
        | {"attempt", "clock", "event_state", "expired_receipt", "fair_turn", "fifo_group", "piece"}
        | {"arrival", "database", "shard_of"}  # of databases that were removed
    )
    BLOCKING_ROWS: ClassVar[Mapping[str, str]] = {
        **Source.BLOCKING_ROWS,
        "outbox": "seqs <> '{}' OR EXISTS (SELECT FROM msg WHERE msg.qp = outbox.qp)",
        "part": "log_queue IS NOT NULL AND (EXISTS (SELECT FROM msg WHERE msg.qp = part.qp) "
        "OR EXISTS (SELECT FROM fifo_msg WHERE fifo_msg.qp = part.qp))",
    }

    def __init__(self, transaction: CopyTransaction) -> None:
        self._transaction = transaction

    @classmethod
    async def open(cls, transaction: CopyTransaction) -> Self:
        """Begin the transaction of a source; raises ``CopyRefused``, also for a schema of another version."""
        await transaction.begin_transaction(require)
        if await transaction.connection.fetchval(SQL["is_one_of_several"]):
            raise CopyRefused(
                f"{transaction.shown_url} is one of several databases of a store, which cannot be copied to a data "
                "folder. Copy each to its own database."
            )
        source = cls(transaction)
        source.now_ms = await transaction.connection.fetchval(SQL["now"])
        return source

    async def fetch(self, text: str, *values: Any) -> Sequence[Any]:
        rows: list[Any] = await self._transaction.connection.fetch(text, *values)
        return rows

    async def messages(self, queue: CopiedQueue) -> AsyncIterator[list[CopiedMessage]]:
        fifo = queue.settings.fifo
        args = SQL["fifo" if fifo else "standard"], queue.number, queue.expired_until_ms(self.now_ms)
        cursor = await self._transaction.connection.cursor(*args)
        while rows := await cursor.fetch(_FETCHED_ROWS):
            yield [CopiedMessage(*row) if fifo else CopiedMessage(*row).named() for row in rows]

    async def deduplication_log(self) -> list[CopiedDeduplication]:
        """See ``Source``; also checks for nodes, as this is the last read."""
        await self._transaction.check_alone()
        rows = await self.fetch(SQL["deduplication_log"], DEDUPLICATION_S * SECOND_MS)
        return [CopiedDeduplication(*row) for row in rows]


_COUNTERS = (1 << COUNTER_BITS) - 1
_CLOCK_DIFFERENCE_MS_MAX = 60 * SECOND_MS
_SAME_FIELDS = [name for name in CopiedMessage._fields if name not in ("position", "came_at_ms", "priority", "group")]
_COLUMNS = ("qp", "seq", *(name.removesuffix("_ms") for name in _SAME_FIELDS))
_VALUES = attrgetter(*_SAME_FIELDS)


class DatabaseTarget(copying.Target):
    """``store.copying.Target`` of a database without queues."""

    def __init__(self, transaction: CopyTransaction) -> None:
        self._transaction = transaction
        self._partitions: dict[int, int] = {}
        self._fifo: dict[int, int] = {}  # the retention of each
        self._counter = 0
        self._last_instant_ms = 0

    async def begin(self, values: dict[str, bytes], *, now_ms: int, last_queue: int) -> None:
        """See ``Target``; creates or upgrades the schema."""
        connection = self._transaction.connection
        await self._transaction.begin_empty()
        self._last_instant_ms = now_ms + _CLOCK_DIFFERENCE_MS_MAX
        if abs(await connection.fetchval(SQL["now"]) - now_ms) > _CLOCK_DIFFERENCE_MS_MAX:
            raise CopyRefused(
                f"The clock of {self._transaction.shown_url} differs by more than a minute from that of the copied "
                "store: correct it first, because leases and delays end by it."
            )
        await connection.executemany(SQL["put_setting"], values.items())
        if last_queue:
            await connection.execute(SQL["advance_sequence"], "mq.queue", "queue_id", last_queue)

    async def add_queue(self, queue: CopiedQueue) -> None:
        connection = self._transaction.connection
        delay_ms = queue.settings.delay_s * SECOND_MS if queue.settings.fifo else 0
        partition = await connection.fetchval(SQL["add_part"], queue.number, delay_ms)
        encoded, times = msgspec.json.encode(queue.settings), (queue.created_at_ms, queue.modified_at_ms)
        await connection.execute(SQL["add_queue"], queue.number, queue.name, encoded, *times, partition)
        self._partitions[queue.number] = partition
        if queue.settings.fifo:
            self._fifo[queue.number] = queue.settings.retention_s * SECOND_MS

    async def add_messages(self, queue: CopiedQueue, messages: Sequence[CopiedMessage]) -> None:
        connection = self._transaction.connection
        partition = self._partitions[queue.number]
        if queue.settings.fifo:
            records: Any = [(*self._row(partition, each, each.position), each.group) for each in messages]
            await connection.copy_records_to_table("fifo_msg", columns=(*_COLUMNS, "group_id"), records=records)
            return
        groups = keys_of(messages)
        priorities = [each.priority + (each.group is not None) * GROUPED for each in messages]
        await connection.execute(STANDARD["add_priorities"], partition, sorted(set(priorities)))
        records = [
            (*self._row(partition, each, self._seq(each)), priority, group)
            for each, priority, group in zip(messages, priorities, groups, strict=True)
        ]
        await connection.copy_records_to_table("msg", columns=(*_COLUMNS, "priority", "group_key"), records=records)

    def _seq(self, message: CopiedMessage) -> int:
        if message.has_history or message.position >> COUNTER_BITS == message.sent_at_ms:
            return message.position
        self._counter += 1
        return (message.came_at_ms << COUNTER_BITS) | (self._counter & _COUNTERS)

    def _row(self, partition: int, message: CopiedMessage, seq: int) -> tuple[Any, ...]:
        if message.position >> COUNTER_BITS > self._last_instant_ms:
            raise CopyRefused(
                f"A position of the store ({message.position}) is in the future: its clock was set back, or it is "
                "damaged."
            )
        stored: Any = message
        return partition, seq, *_VALUES(stored._replace(properties=message.properties or None, log=message.log or None))

    async def add_deduplication_log(self, entries: Sequence[CopiedDeduplication]) -> None:
        """See ``Target``. Entries without a queue are added to each FIFO queue: a key contains its queue."""
        latest = {each.key: each for each in entries}  # a key may have been logged again
        records = (  # up to entries times queues
            (self._partitions[queue], key, each.logged_at_ms + DEDUPLICATION_S * SECOND_MS, each.sequence, each.id)
            for key, each in latest.items()
            for queue in (self._fifo if each.queue is None else [each.queue])
        )
        columns = ("qp", "key", "expires_at", "seq", "id")
        await self._transaction.connection.copy_records_to_table("accepted", columns=columns, records=records)

    async def add_rows(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        connection, columns = self._transaction.connection, TABLES[table]
        await connection.copy_records_to_table(table, columns=columns, records=rows)
        if rows and table in ("move", "topic"):  # continue their sequences
            await connection.execute(SQL["advance_sequence"], f"mq.{table}", columns[0], max(row[0] for row in rows))

    async def finish(self) -> None:
        for number, partition in self._partitions.items():
            if number in self._fifo:
                await self._transaction.connection.execute(SQL["add_groups"], partition, self._fifo[number])
            else:
                await self._transaction.connection.execute(SQL["add_turns"], partition)
        broken = [finding.check for finding in await invariants(self._transaction.connection) if not finding.ok]
        if broken:
            raise CopyRefused(f"The copy was discarded, because these checks failed: {'; '.join(broken)}.")
        await self._transaction.commit()


_CHUNKS_AHEAD = 16
_END = b""


async def copy_tables(
    source: CopyTransaction, target: CopyTransaction, *, progress: copying.Progress | None = None
) -> int:
    """Copy all tables, with ``progress`` after each; return the number of messages. Raises ``CopyRefused``."""
    await source.begin_transaction(require)
    await target.begin_empty()
    formats = [(await read_format(each.connection))[0] for each in (source, target)]
    if formats[0] != formats[1]:
        raise CopyRefused(
            f"{source.shown_url} and {target.shown_url} have different formats: run `veilmq migrate` on both, "
            "and copy again."
        )
    tables = [name for (name,) in await source.connection.fetch(SQL["copied_tables"])]
    for name in ("setting", "event_state", "clock"):  # an empty store has rows in them
        await target.connection.execute(f"DELETE FROM mq.{name}")
    total = await source.connection.fetchval(SQL["copied_count"])
    messages = 0
    for table in tables:
        rows = await _copy_table(source, target, table)
        messages += rows if table in ("msg", "fifo_msg") else 0
        if progress is not None:
            progress(messages, max(messages, total))
    await target.connection.execute(SQL["delete_urls"])
    for table, column, last in await source.connection.fetch(SQL["sequences"]):
        if last is not None:
            await target.connection.execute(SQL["advance_sequence"], table, column, last)
    await source.check_alone()
    await target.commit()
    return messages


async def _copy_table(source: CopyTransaction, target: CopyTransaction, table: str) -> int:
    columns = [name for (name,) in await source.connection.fetch(SQL["columns"], f"mq.{table}")]
    args: dict[str, Any] = {"columns": columns, "format": "binary"}
    chunks: asyncio.Queue[bytes] = asyncio.Queue(_CHUNKS_AHEAD)

    async def read() -> None:
        with source.errors():
            await source.connection.copy_from_table(table, output=chunks.put, **args)
        await chunks.put(_END)

    async def received() -> AsyncIterator[bytes]:
        while (chunk := await chunks.get()) != _END:
            yield chunk

    async def write() -> str:
        with target.errors():
            condition = "qp > 0" if "qp" in columns else None  # a new store has the rows of mq.fill
            status: str = await target.connection.copy_to_table(table, source=received(), where=condition, **args)
            return status

    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(read())
            copied = both.create_task(write())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return int(copied.result().rsplit(" ", 1)[-1])
