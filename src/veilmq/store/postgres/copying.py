"""Copies of a stopped store: a database as their source and as their target.

A copy holds one transaction at each server; no node is at work there, and none begins before it has ended. What did not
come to its end is undone by the server.

From database to database every table is copied as it is, so that nothing has to be known of what it means. Receipts act
on the copy, claims and publications go on there; counters go on behind the source's. What a crash may empty (unlogged
tables) is left out. From another kind of store, messages that a receipt may name keep their position as their ``seq``,
and so do those of FIFO queues, which are in order; all others get one of their time of coming, unless theirs is one.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import Any, ClassVar, Self

import asyncpg
import msgspec

from veilmq.core.limits import DEDUPLICATION_S, SECOND_MS
from veilmq.store import copying
from veilmq.store.copying import TABLES, CopiedDeduplication, CopiedMessage, CopiedQueue, CopyRefused, Source
from veilmq.store.named_queries import load
from veilmq.store.postgres.database import sentence
from veilmq.store.postgres.node import COUNTER_BITS, LANE, keys_of
from veilmq.store.postgres.queues import SQL as QUEUES
from veilmq.store.postgres.queues import STANDARD
from veilmq.store.postgres.schema import CONNECT_S, SchemaRefused, invariants, migrate, read_format, require
from veilmq.store.urls import without_passwords

SQL = {**QUEUES, **load("veilmq.store.postgres", "copies.sql")}

_FETCHED_ROWS = 64  # at once: each may have 1 MiB
_SETTINGS = {"application_name": "veilmq copy", "jit": "off", "lock_timeout": "10s", "search_path": "mq"}
TROUBLE = (OSError, asyncpg.InterfaceError, asyncpg.PostgresError, TimeoutError)
"""What ends a copy: the connection is lost, or the server refuses something."""


class CopyLock:
    """The one transaction of a copy at one server; what did not come to its end is undone by the server."""

    def __init__(self, url: str) -> None:
        self.place = without_passwords(url)
        self._url = url
        self.connection: Any = None
        """The connection, whose transaction is the copy."""
        self._transaction: Any = None

    async def __aenter__(self) -> Self:
        """Connect; raises ``CopyRefused`` where that is not possible."""
        try:
            self.connection = await asyncpg.connect(self._url, timeout=CONNECT_S, server_settings=_SETTINGS)
        except (*TROUBLE, ValueError) as error:
            raise CopyRefused(f"{self.place} cannot be used: {sentence(error)}") from error
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End the connection, and with it what was not committed."""
        self.connection.terminate()
        with self.failing():
            if error is not None:
                raise error

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Have what this server raises be ``CopyRefused``, which says so."""
        try:
            yield
        except TROUBLE as error:
            raise CopyRefused(f"{self.place} failed, and nothing was copied: {sentence(error)}") from error

    async def hold(self, schema: Callable[[Any], Awaitable[Any]]) -> None:
        """Have the schema be of this version (``require``, or ``migrate``), and begin the transaction.

        Raises ``CopyRefused``, also when a node is connected.
        """
        try:
            await schema(self.connection)
        except SchemaRefused as error:
            raise CopyRefused(f"{self.place}: {error}") from error
        await self.connection.execute("SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0")
        self._transaction = self.connection.transaction(isolation="repeatable_read")
        await self._transaction.start()
        # A node that starts asks for the keys, and waits here until the copy is over.
        await self.connection.execute("LOCK TABLE mq.setting IN ACCESS EXCLUSIVE MODE")
        await self.check_alone()

    async def hold_empty(self) -> None:
        """Do so with what is to be filled; raises ``CopyRefused`` unless it has nothing, and is a store by itself.

        Triggers rest until ``commit``: what they would add is added as it is.
        """
        await self.hold(migrate)
        if await self.connection.fetchval(SQL["is_used"]):
            raise CopyRefused(
                f"{self.place} is not empty (queues, topics, settings of accounts, or rows of deleted ones), or is "
                "one of several databases of a store: use an empty one, and copy again."
            )
        await self.connection.execute("ALTER TABLE mq.msg DISABLE TRIGGER USER")

    async def check_alone(self) -> None:
        """Raise ``CopyRefused`` when a node is connected, other than one that waits for the end of the copy.

        One that had lost its connections for a while, and was not seen when the copy began, may be back at its end.
        """
        await self.connection.execute("SELECT pg_stat_clear_snapshot()")  # else it is as it was seen first
        nodes = await self.connection.fetchval(SQL["nodes"])
        if nodes:
            raise CopyRefused(
                f"{self.place} has {nodes} connections of veilmq: stop all servers that use it, and copy again."
            )

    async def commit(self) -> None:
        """Make what was done durable, and have it looked through for the planner."""
        await self.connection.execute("ALTER TABLE mq.msg ENABLE TRIGGER USER")
        await self._transaction.commit()
        with suppress(*TROUBLE):  # autovacuum does it too, and what was copied is there
            await self.connection.execute("ANALYZE")


class DatabaseSource(Source):
    """``store.copying.Source`` of a database."""

    SQL = SQL
    COPIED = frozenset(
        {"accepted", "fifo_msg", "msg", "queue", "setting"}
        | {"attempt", "clock", "event_state", "expired_receipt", "fair_turn", "fifo_group", "piece"}
    )
    UNLESS_ENDED: ClassVar[Mapping[str, str]] = {
        **Source.UNLESS_ENDED,
        "part": "log_queue IS NOT NULL AND (EXISTS (SELECT FROM msg WHERE msg.qp = part.qp) "
        "OR EXISTS (SELECT FROM fifo_msg WHERE fifo_msg.qp = part.qp))",
    }

    def __init__(self, lock: CopyLock) -> None:
        self._lock = lock

    @classmethod
    async def open(cls, lock: CopyLock) -> Self:
        """Begin to read; raises ``CopyRefused``, also for a schema of another version."""
        await lock.hold(require)
        if await lock.connection.fetchval(SQL["is_one_of_several"]):
            raise CopyRefused(
                f"{lock.place} is one of several databases of a store, which cannot be copied to a data folder. Copy "
                "each to its own database."
            )
        source = cls(lock)
        source.now_ms = await lock.connection.fetchval(SQL["now"])
        return source

    async def fetch(self, text: str, *values: Any) -> Sequence[Any]:
        rows: list[Any] = await self._lock.connection.fetch(text, *values)
        return rows

    async def messages(self, queue: CopiedQueue) -> AsyncIterator[list[CopiedMessage]]:
        fifo = queue.settings.fifo
        terms = SQL["fifo" if fifo else "standard"], queue.number, queue.retained_ms(self.now_ms)
        cursor = await self._lock.connection.cursor(*terms)
        while rows := await cursor.fetch(_FETCHED_ROWS):
            yield [CopiedMessage(*row) if fifo else CopiedMessage(*row).named() for row in rows]

    async def deduplication_log(self) -> list[CopiedDeduplication]:
        """See ``Source``; also the last moment to see that somebody has been at work meanwhile."""
        await self._lock.check_alone()
        rows = await self.fetch(SQL["deduplication_log"], DEDUPLICATION_S * SECOND_MS)
        return [CopiedDeduplication(*row) for row in rows]


_COUNTERS = (1 << COUNTER_BITS) - 1
_CLOCKS_MS = 60 * SECOND_MS
_ALIKE = [name for name in CopiedMessage._fields if name not in ("position", "came_at_ms", "priority", "group")]
_COLUMNS = ("qp", "seq", *(name.removesuffix("_ms") for name in _ALIKE))
_VALUES = attrgetter(*_ALIKE)


class DatabaseTarget(copying.Target):
    """``store.copying.Target`` of a database without queues."""

    def __init__(self, lock: CopyLock) -> None:
        self._lock = lock
        self._partitions: dict[int, int] = {}
        self._fifo: dict[int, int] = {}  # the retention of each
        self._counter = 0
        self._last_instant_ms = 0

    async def begin(self, values: dict[str, bytes], *, now_ms: int, last_queue: int) -> None:
        """See ``Target``; makes the schema, or upgrades it."""
        connection = self._lock.connection
        await self._lock.hold_empty()
        self._last_instant_ms = now_ms + _CLOCKS_MS
        if abs(await connection.fetchval(SQL["now"]) - now_ms) > _CLOCKS_MS:
            raise CopyRefused(
                f"The clock of {self._lock.place} differs by more than a minute from that of the copied store: "
                "correct it first, because leases and delays end by it."
            )
        await connection.executemany(SQL["put_setting"], values.items())
        if last_queue:
            await connection.execute(SQL["number_behind"], "mq.queue", "queue_id", last_queue)

    async def add_queue(self, queue: CopiedQueue) -> None:
        connection = self._lock.connection
        delay_ms = queue.settings.delay_s * SECOND_MS if queue.settings.fifo else 0
        partition = await connection.fetchval(SQL["add_part"], queue.number, delay_ms)
        encoded, times = msgspec.json.encode(queue.settings), (queue.created_at_ms, queue.modified_at_ms)
        await connection.execute(SQL["add_queue"], queue.number, queue.name, encoded, *times, partition)
        self._partitions[queue.number] = partition
        if queue.settings.fifo:
            self._fifo[queue.number] = queue.settings.retention_s * SECOND_MS

    async def add_messages(self, queue: CopiedQueue, messages: Sequence[CopiedMessage]) -> None:
        connection = self._lock.connection
        partition = self._partitions[queue.number]
        if queue.settings.fifo:
            records: Any = [(*self._row(partition, each, each.position), each.group) for each in messages]
            await connection.copy_records_to_table("fifo_msg", columns=(*_COLUMNS, "group_id"), records=records)
            return
        groups = keys_of(messages)
        priorities = [each.priority + (each.group is not None) * LANE for each in messages]
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
        """See ``Target``. What only its key tells the queue of is remembered for each: it is another's in none."""
        latest = {each.key: each for each in entries}  # a key may have been logged again
        records = (  # as many as entries times queues
            (self._partitions[queue], key, each.logged_at_ms + DEDUPLICATION_S * SECOND_MS, each.sequence, each.id)
            for key, each in latest.items()
            for queue in (self._fifo if each.queue is None else [each.queue])
        )
        columns = ("qp", "key", "expires_at", "seq", "id")
        await self._lock.connection.copy_records_to_table("accepted", columns=columns, records=records)

    async def add_rows(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        connection, columns = self._lock.connection, TABLES[table]
        await connection.copy_records_to_table(table, columns=columns, records=rows)
        if rows and table in ("move", "topic"):  # which are numbered
            await connection.execute(SQL["number_behind"], f"mq.{table}", columns[0], max(row[0] for row in rows))

    async def finish(self) -> None:
        for number, partition in self._partitions.items():
            if number in self._fifo:
                await self._lock.connection.execute(SQL["add_groups"], partition, self._fifo[number])
            else:
                await self._lock.connection.execute(SQL["add_turns"], partition)
        broken = [finding.check for finding in await invariants(self._lock.connection) if not finding.ok]
        if broken:
            raise CopyRefused(f"The copy was discarded, because these checks failed: {'; '.join(broken)}.")
        await self._lock.commit()


_PARTS_AHEAD = 16
_END = b""


async def copy_tables(source: CopyLock, target: CopyLock, *, progress: copying.Progress | None = None) -> int:
    """Copy all that is in ``source``; return how many messages there were. Raises ``CopyRefused``.

    ``progress`` is called once their table is copied.
    """
    await source.hold(require)
    await target.hold_empty()
    formats = [(await read_format(each.connection))[0] for each in (source, target)]
    if formats[0] != formats[1]:
        raise CopyRefused(
            f"{source.place} and {target.place} have other formats: run `veilmq migrate` on both, and copy again."
        )
    tables = [name for (name,) in await source.connection.fetch(SQL["copied_tables"])]
    for name in ("setting", "event_state"):  # every store has some from the beginning
        await target.connection.execute(f"DELETE FROM mq.{name}")
    in_all = await source.connection.fetchval(SQL["copied_count"])
    messages = 0
    for table in tables:
        rows = await _copy_table(source, target, table)
        messages += rows if table in ("msg", "fifo_msg") else 0
        if progress is not None:
            progress(messages, max(messages, in_all))
    await target.connection.execute(SQL["forget_urls"])
    for table, column, sequence in await source.connection.fetch(SQL["sequences"]):
        last = await source.connection.fetchval("SELECT pg_sequence_last_value($1::text::regclass)", sequence)
        if last is not None:
            await target.connection.execute(SQL["number_behind"], f"mq.{table}", column, last)
    await source.check_alone()
    await target.commit()
    return messages


async def _copy_table(source: CopyLock, target: CopyLock, table: str) -> int:
    columns = [name for (name,) in await source.connection.fetch(SQL["columns"], f"mq.{table}")]
    terms: dict[str, Any] = {"columns": columns, "format": "binary"}
    parts: asyncio.Queue[bytes] = asyncio.Queue(_PARTS_AHEAD)

    async def read() -> None:
        with source.failing():
            await source.connection.copy_from_table(table, output=parts.put, **terms)
        await parts.put(_END)

    async def arriving() -> AsyncIterator[bytes]:
        while (part := await parts.get()) != _END:
            yield part

    async def write() -> str:
        with target.failing():
            own = "qp > 0" if "qp" in columns else None  # every store has the rows of mq.fill
            status: str = await target.connection.copy_to_table(table, source=arriving(), where=own, **terms)
            return status

    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(read())
            copied = both.create_task(write())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return int(copied.result().rsplit(" ", 1)[-1])
