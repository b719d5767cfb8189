"""The port of ``store.transaction`` on one connection of PostgreSQL. Waiters are told after the commit."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from veilmq.core.commands import Command, NewMessage
from veilmq.core.ids import IdSource
from veilmq.core.limits import PRIORITY
from veilmq.core.looks import MessageState
from veilmq.core.receipts import Receipt, ReceiptBook
from veilmq.core.results import QueueCounts, SentMessage
from veilmq.core.settings import QueueSettings
from veilmq.engines.named_sql import load
from veilmq.store.claimed import ClaimTransaction
from veilmq.store.postgres import inspection
from veilmq.store.postgres.catalog import SQL as QUEUES
from veilmq.store.postgres.catalog import Catalog, Queue
from veilmq.store.postgres.claimed import ClaimsAtNode, PostgresClaimed
from veilmq.store.postgres.coalescing import (
    FIFO,
    STANDARD,
    PartitionRetired,
    retention_ms,
    sql,
)
from veilmq.store.postgres.counts import InFlight, Totals
from veilmq.store.postgres.database import Database
from veilmq.store.postgres.event_log import EventLog
from veilmq.store.postgres.fair import LANE, FairQueues
from veilmq.store.postgres.options import PostgresOptions
from veilmq.store.postgres.outbox import OUTBOX
from veilmq.store.postgres.sends import FifoStoring, Positions, StandardStoring, key_of
from veilmq.store.postgres.sweeper import Sweeper, settle_late
from veilmq.store.postgres.taking import properties_of
from veilmq.store.postgres.watches import Watches, next_group_ms
from veilmq.store.transaction import Chosen, Leased, QueueRow, Row, StoredMessage, Waiting

SQL = {
    **QUEUES,
    **load("veilmq.store.postgres", "cold.sql"),
    **load("veilmq.store.postgres", "publications.sql"),
}


class Parts:
    """What all transactions of a node share."""

    def __init__(
        self,
        *,
        database: Database,
        catalog: Catalog,
        watches: Watches,
        positions: Positions,
        totals: Totals,
        options: PostgresOptions,
        fair: FairQueues,
        book: ReceiptBook,
        in_flight: InFlight,
    ) -> None:
        """All are the node's."""
        self.database = database
        self.log = EventLog(options=options)
        self.may_send = options.may_send
        self.options = options
        self.sweeper = Sweeper(options=options, watches=watches)
        self.schedulers: dict[type[Command], Callable[[], object]] = {}
        """What has slices of each kind of work in the background done."""
        self.positions = positions
        self.catalog = catalog
        self.watches = watches
        self.totals = totals
        self.standard = StandardStoring(positions=positions, totals=totals, fair=fair)
        self.fifo = FifoStoring(positions=positions, totals=totals)
        self.fair = fair
        self.book = book
        self._in_flight = in_flight
        self.claims = ClaimsAtNode(catalog=catalog, positions=positions, options=options, totals=totals)
        self.ids = IdSource()

    def deleted(self, queue: Queue, seqs: list[int], now_ms: int) -> None:
        """Take note of messages in flight that were deleted."""
        self.totals.deleted[queue.number] += len(seqs)
        self._in_flight.freed(queue, len(seqs), now_ms)
        self.fair.ended(queue, seqs, now_ms)


class PostgresTransaction(ClaimTransaction):
    """A transaction on one connection; statements of a command that only reads have one each."""

    def __init__(self, connection: Any, parts: Parts) -> None:
        """``parts`` are those of the node."""
        self._connection = connection
        self._parts = parts
        self._after: list[Callable[[], object]] = []
        self._due_ms: dict[str, int] = {}
        self._changed: set[str] = set()
        self._now_ms = 0
        self._notified: set[str] = set()
        self._groups_of: dict[str, Queue] = {}
        self.known: list[str] = []
        """The queues that were taken for what the node knew of them."""
        self.ids = parts.ids
        self.may_send = parts.may_send
        self.book = parts.book
        self.options = parts.options
        self.claimed = PostgresClaimed(self, connection, parts.claims)

    async def rows(self, query: str, *values: Any) -> Sequence[Row]:
        """Return the rows of a named query."""
        rows: list[Row] = await self._connection.fetch(SQL[query], *values)
        return rows

    async def run(self, query: str, *values: Any) -> None:
        """Run a named query that changes something."""
        await self._connection.execute(SQL[query], *values)

    async def many(self, query: str, rows: Sequence[Row]) -> None:
        """Run a named query that changes something, once for each of ``rows``."""
        await self._connection.executemany(SQL[query], rows)

    async def locked(self, query: str, *values: Any) -> Sequence[Row]:
        """Return the rows of a named query once no other transaction has them locked, and lock them until the end."""
        rows: list[Row] = await self._connection.fetch(f"{SQL[query]} FOR UPDATE", *values)
        return rows

    async def unlocked(self, query: str, *values: Any) -> Sequence[Row]:
        """Return those rows of a named query that no other transaction has locked, and lock them until the end."""
        rows: list[Row] = await self._connection.fetch(f"{SQL[query]} FOR UPDATE SKIP LOCKED", *values)
        return rows

    async def lock(self, kind: str, *key: Any) -> bool:
        """Wait for the row of ``lock_<kind>``, and keep it until the end; tell whether there is one."""
        return bool(await self._connection.fetch(SQL[f"lock_{kind}"], *key))

    async def now(self) -> int:
        """Return the present instant of the database."""
        now_ms: int = await self._connection.fetchval(SQL["now"])
        return now_ms

    def shown(self, at_ms: int) -> int:
        """Return the instant itself: the database's clock is the one that users see."""
        return at_ms

    async def find(self, name: str) -> Queue | None:
        """Look up the queue of that full name."""
        return await self._parts.catalog.find(self._connection, name)

    async def target(self, name: str, source: tuple[int, str]) -> Queue | None:
        """Return the queue as the node knows it, or look it up, here and in the other databases."""
        queue = self._parts.catalog.known(name)
        if queue is None:
            return await self._parts.catalog.target(self._connection, name, source)
        self.known.append(name)
        return queue

    async def settings(self, name: str) -> QueueSettings | None:
        """Return the settings of a queue, in whichever database it is."""
        return await self._parts.catalog.settings(self._connection, name)

    async def has_sources(self, name: str) -> bool:
        """Tell whether it is the dead-letter queue of any queue, in whichever database."""
        elsewhere = self._parts.catalog.elsewhere
        if await self._connection.fetch(QUEUES["queue_sources"], name, "", 1):
            return True
        return elsewhere is not None and await elsewhere.has_sources(name)

    async def counts(self, queue: QueueRow) -> QueueCounts:
        """Count the messages of a queue by state."""
        assert isinstance(queue, Queue)
        row = await self._connection.fetchrow(sql(queue)["count"], queue.partition, retention_ms(queue))
        totals = self._parts.totals
        return QueueCounts(
            visible=row["visible"],
            in_flight=row["in_flight"],
            delayed=row["delayed"],
            oldest_sent_at_ms=row["oldest_sent_at"],
            redelivered=totals.redelivered[queue.number],
            sent=totals.sent[queue.number],
            received=totals.received[queue.number],
            deleted=totals.deleted[queue.number],
        )

    async def retire(self, queue: QueueRow, *, is_deleted: bool) -> None:
        """Retire the partition of a queue."""
        assert isinstance(queue, Queue)
        await self.run("retire_part", queue.partition, await self.now())
        if is_deleted:
            await self._connection.execute(OUTBOX["forget_arrivals"], queue.origin)
            self.after(lambda: self._parts.totals.forget(queue.number))

    async def change(self, queue: QueueRow, settings: QueueSettings, modified_at_ms: int) -> None:
        """Give a queue other settings; the first groups follow a new delay now, and the others by the janitor."""
        assert isinstance(queue, Queue)
        if settings.retention_s > queue.settings.retention_s:
            await self._parts.sweeper.end_what_has_ended(self._connection, queue)
        await self.run("update_queue", queue.number, msgspec.json.encode(settings), modified_at_ms)
        if settings.fifo and settings.delay_s != queue.settings.delay_s:
            await settle_late(self._connection, queue)
        self.changed(queue)

    def changed(self, queue: QueueRow) -> None:
        """Have every node look the queue up again after the commit."""
        self._changed.add(queue.name)
        self.after(lambda: self._parts.catalog.forget(queue.name))

    def need_room(self) -> None:
        """Do nothing: a full disk of the database fails the statement."""

    async def store(self, queue: QueueRow, messages: Sequence[NewMessage], ids: Sequence[bytes]) -> list[SentMessage]:
        """Store messages that were checked as if they were sent now; waiters hear of them."""
        assert isinstance(queue, Queue)
        is_named = queue.settings.fifo and not queue.away  # one that is away tells repeated ones apart itself
        keys = [key_of(each.group or "", each.dedup_id or "", queue) if is_named else None for each in messages]
        return _sent(queue, await self._insert(queue, messages, ids, keys))

    async def _insert(
        self, queue: Queue, messages: Sequence[NewMessage], ids: Sequence[bytes], keys: list[bytes | None]
    ) -> list[Any]:
        """Return the stored row of each message; a FIFO queue remembers them under their keys."""
        terms = self._connection, queue, list(messages)
        if queue.settings.fifo:
            rows = await self._parts.fifo.insert(*terms, keys, list(ids))
        else:
            rows = await self._parts.standard.insert(*terms, list(ids))
        if not rows:
            raise PartitionRetired
        if queue.settings.fifo:
            self._groups_of[queue.name] = queue
        else:
            due_ms = min(row["visible_at"] for row in rows)
            self._due_ms[queue.name] = min(due_ms, self._due_ms.get(queue.name, due_ms))
        return rows

    async def choose(self, queue: QueueRow, count: int, bytes_max: int) -> Chosen:
        """Return the first visible messages of a queue, locked; of a FIFO queue, their groups are."""
        assert isinstance(queue, Queue)
        rows = await self._connection.fetch(sql(queue)["choose"], queue.partition, count, retention_ms(queue))
        messages: list[Waiting] = []
        for row in rows:
            if bytes_max <= 0:
                break
            messages.append(Waiting(row["seq"], row["source"], row["size_bytes"], row))
            bytes_max -= row["size_bytes"]
        return Chosen(messages, more=len(rows) == count or len(messages) < len(rows))

    async def move(self, queue: QueueRow, target: QueueRow, messages: Sequence[Waiting]) -> int:
        """Move chosen messages to another queue of the type as new ones, visible at once; waiters hear of them."""
        assert isinstance(queue, Queue)
        assert isinstance(target, Queue)
        connection, seqs = self._connection, [each.seq for each in messages]
        await self._parts.log.note(connection, queue, "supersede", seqs)
        terms = (queue.partition, target.partition, seqs, [self.ids.next() for _ in seqs])
        counter = self._parts.positions.take(len(seqs) + 1)
        if queue.settings.fifo:
            properties = [properties_of(queue, each.row) or None for each in messages]
            moved = await connection.fetch(FIFO["move_on"], *terms, properties, counter, retention_ms(queue))
            self._groups_of[target.name] = target
        else:
            moved = await connection.fetch(STANDARD["move_on"], *terms, counter)
            priorities = sorted({row["priority"] for row in moved})
            await connection.execute(STANDARD["add_priorities"], target.partition, priorities)
            self._due_ms[target.name] = 0
        if not moved:
            raise PartitionRetired
        return len(moved)

    async def leased(self, queue: QueueRow, seqs: Sequence[int]) -> list[Leased]:
        """Return those of some messages that are in a queue, locked; of a FIFO queue, their groups are."""
        assert isinstance(queue, Queue)
        if queue.settings.fifo:
            await self._connection.execute(FIFO["lock"], queue.partition, seqs)
        rows = await self._connection.fetch(sql(queue)["found"], queue.partition, seqs, retention_ms(queue))
        return [_leased(queue, row) for row in rows]

    async def delete(self, queue: QueueRow, messages: Sequence[Leased]) -> None:
        """Delete messages in flight, which are locked."""
        assert isinstance(queue, Queue)
        seqs = [each.receipt.position for each in messages]
        await self._parts.log.note(self._connection, queue, "delete", seqs)
        await self._connection.execute(sql(queue)["remove"], queue.partition, seqs, retention_ms(queue))
        self.after(partial(self._parts.deleted, queue, seqs, messages[0].looked_at_ms))
        if queue.settings.fifo:
            self._groups_of[queue.name] = queue

    async def bury(
        self, queue: QueueRow, target: QueueRow, messages: Sequence[Leased], new: Sequence[NewMessage]
    ) -> list[SentMessage]:
        """Move messages in flight to another queue of the type as dead letters, which are nobody's duplicates."""
        assert isinstance(target, Queue)
        was = [each.row for each in messages]
        rows = await self._insert(target, new, [each.id for each in messages], [None] * len(new))
        await self._connection.execute(
            sql(target)["bury"],
            target.partition,
            [row["seq"] for row in rows],
            queue.name,
            [row["receives_before"] + row["receive_count"] for row in was],
            [row["first_received_at"] for row in was],
            [row["sent_at"] for row in was],
        )
        self._parts.totals.stored(target, -len(rows))  # moved, not sent
        await self.delete(queue, messages)
        return _sent(target, rows)

    async def inspect(
        self, queue: QueueRow, state: MessageState | None, count: int, passed_max: int
    ) -> list[StoredMessage]:
        """Find the first ``count`` messages, or those in ``state``."""
        return await inspection.find(self._connection, queue, state, count, passed_max)

    async def inspect_at(self, queue: QueueRow, seqs: Sequence[int]) -> list[StoredMessage]:
        """Find those of the messages ``seqs`` that are in the queue and were received."""
        return await inspection.received_at(self._connection, queue, seqs)

    async def offered(self, queue: QueueRow, count: int) -> list[StoredMessage]:
        """Find what a receive of ``count`` would take, in its order."""
        return await inspection.offered(self._connection, queue, count, self._parts.fair)

    async def bodies(self, queue: QueueRow, seqs: Sequence[int]) -> Mapping[int, str]:
        """Return the bodies of messages by seq."""
        assert isinstance(queue, Queue)
        return dict(await self._connection.fetch(sql(queue)["bodies"], queue.partition, seqs))

    def after(self, call: Callable[[], object]) -> None:
        """Make ``call`` after the commit."""
        self._after.append(call)

    def schedule(self, step: type[Command]) -> None:
        """Have slices of that work in the background done after the commit."""
        self.after(self._parts.schedulers[step])

    def notify(self, name: str) -> None:
        """Have the watch on a queue, here and at other nodes, look at it after the commit."""
        self._notified.add(name)

    async def end(self) -> None:
        """Do what follows the commit, and find out what there is to tell."""
        for call in self._after:
            call()
        watches = self._parts.watches
        if self._changed or self._notified:
            self._now_ms = await self.now()
        for name in self._notified:
            queue = self._parts.catalog.seen(name)
            if queue is not None and queue.settings.fifo and not queue.away:
                self._groups_of[name] = queue
            else:
                self._due_ms[name] = self._now_ms
        for queue in self._groups_of.values():
            due_ms = await next_group_ms(self._connection, queue, watches)
            if due_ms is not None:
                self._due_ms[queue.name] = due_ms

    def tell(self) -> None:
        """Wake the waiters, here and at other nodes."""
        watches = self._parts.watches
        for name in self._changed:
            watches.changed(name, self._now_ms)
        for name, due_ms in self._due_ms.items():
            watches.wake(name, due_ms)


def _leased(queue: Queue, row: Any) -> Leased:
    return Leased(
        receipt=Receipt(queue.number, row["seq"], row["generation"], row["epoch"], row["visible_at"]),
        receive_count=row["receive_count"],
        id=row["id"],
        body=row["body"],
        properties=properties_of(queue, row),
        priority=PRIORITY.default if queue.settings.fifo else row["priority"] % LANE,
        looked_at_ms=row["now"],
        row=row,
    )


def _sent(queue: Queue, rows: list[Any]) -> list[SentMessage]:
    """Return the answers of rows that were stored; what goes to another database is numbered there."""
    has_sequence = queue.settings.fifo and not queue.away
    return [SentMessage(id=row["id"], sequence=row["seq"] if has_sequence else None) for row in rows]
