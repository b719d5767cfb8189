"""The port ``store.transaction`` on a PostgreSQL connection, cold commands, the janitor, and the numbering of events.

Claimed messages stay in their table, with columns for the claim and the shard. A bind locks the row of the source and
blocks purges; each slice of an end locks the row of the claim.

The janitor is the node that holds an advisory lock on its working connection. It deletes messages past their retention,
rows of purged and deleted queues, and expired deduplication entries and attempts, in slices: one statement and
transaction each, with a pause after a full one. The timing does not matter, because every statement checks retention.

Committed events are numbered without gaps, in batches, under the lock of one row. Causal order is kept: the writer of a
later event saw the earlier one, so that one is committed and has a lower number in its table. If too many events wait
for export, the newest are dropped and counted.
"""

# Callers pass the queues that the transaction has found, so its methods accept only ``Queue`` of this dialect.
# mypy: disable-error-code="override"

import asyncio
import logging
from asyncio import get_running_loop
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import accumulate
from operator import itemgetter
from random import getrandbits
from typing import Any, TypeVar

import asyncpg
import msgspec

from veilmq.core import limits
from veilmq.core.claims import ClaimedMessage
from veilmq.core.commands import Command, MessageState, QueueCounts, SentMessage
from veilmq.core.errors import InternalError
from veilmq.core.limits import SECOND_MS
from veilmq.core.messages import NewMessage, routing_key_of
from veilmq.core.receipts import encode_events
from veilmq.core.settings import QueueSettings
from veilmq.store import claims
from veilmq.store.claims import BindRequest, BindResult, BoundClaim
from veilmq.store.clock import stopwatch_s
from veilmq.store.cold import COLD, READS, SNAPSHOTS
from veilmq.store.events import EXPIRED_KEPT_MAX, EXPIRED_KEPT_S, event_of
from veilmq.store.named_queries import load
from veilmq.store.postgres import queues
from veilmq.store.postgres.database import COLLISIONS, COLLISIONS_MAX, NOT_APPLIED, PostgresOptions
from veilmq.store.postgres.messages import insert, key_of
from veilmq.store.postgres.node import GROUPED, Node, interval_ms
from veilmq.store.postgres.queues import EVENTS, FAIR, FIFO, SQL, STANDARD, PartitionRetired, Queue, retention_ms, sql
from veilmq.store.postgres.receives import dead_letter_args, move, properties_of, target_of
from veilmq.store.queue_commands import delete_cooldowns
from veilmq.store.transaction import FIFO_PRIORITY, Lock, Row, StoredMessage, Transaction, VisibleMessage

log = logging.getLogger(__name__)

CLAIMS = load("veilmq.store.postgres", "claims.sql")
CLAIMS["read_fifo"] = queues.fifo_variant(CLAIMS["read"])
CLAIMS["lock_visible"] = queues.locking_statement(STANDARD, "seq, receive_count, group_key")

T = TypeVar("T")

MANY_MESSAGES = 100_000  # their count is reused for ``interval_ms``, at most a minute
_COUNT_KEPT_MS_MAX = 60 * SECOND_MS
_TOTALS = "redelivered", "sent", "received", "deleted"
_SLICES_MAX = 16
_PREFETCHED = 100  # rows; their bodies may be large


def _split_dead_letters(rows: Sequence[Any], receives_max: int) -> tuple[list[int], list[int], bool]:
    """Return positions to bind, those of dead letters (none if ``receives_max`` is 0), and whether rows are left."""
    alive: list[int] = []
    dead: list[int] = []
    bytes_left = limits.DEAD_LETTER_BYTES_PER_RECEIVE
    for row in rows:
        if not receives_max or row["receive_count"] < receives_max:
            alive.append(row["seq"])
        elif len(dead) == limits.DEAD_LETTERS_PER_RECEIVE or bytes_left <= 0:
            return alive, dead, True
        else:
            dead.append(row["seq"])
            bytes_left -= row["size_bytes"]
    return alive, dead, False


class PostgresTransaction(claims.ClaimTransaction, Transaction):
    """A transaction on one connection; of a command that only reads, each statement is its own transaction."""

    def __init__(self, connection: Any, node: Node) -> None:
        self.connection = connection
        self._fetch: Callable[..., Awaitable[list[Any]]] = connection.fetch
        self.node = node
        self.after_commit: list[Callable[[], object]] = []
        self.ids = node.ids
        self.codec = node.codec
        self.options = node.options

    async def rows(self, query: str, *values: Any, lock: Lock | None = None) -> list[Row]:
        return await self._fetch(queues.with_lock(SQL[query], lock), *values)

    async def run(self, query: str, *values: Any) -> None:
        await self.connection.execute(SQL[query], *values)

    async def run_many(self, query: str, rows: Sequence[Row]) -> None:
        await self.connection.executemany(SQL[query], rows)

    async def lock(self, kind: str, *key: Any) -> None:
        await self._fetch(SQL[f"lock_{kind}"], *key)

    async def now(self) -> int:
        return int(await self.connection.fetchval(SQL["now"]))

    def shown(self, at_ms: int) -> int:
        return at_ms

    async def find(self, name: str, lock: Lock | None = None) -> Queue | None:
        return await self.node.catalog.look_up(self.connection, name, lock)

    async def find_all(self, names: Sequence[str]) -> list[Queue]:
        return [self.node.catalog.read(row) for row in await self._fetch(SQL["find_queues"], names)]

    async def find_target(self, name: str, source: tuple[int, str]) -> Queue | None:
        """Return the cached queue, or look it up."""
        return self.node.catalog.fresh(name) or await self.node.catalog.outbox.target(self.connection, name, source)

    async def settings(self, name: str) -> QueueSettings | None:
        queue = await self.find(name)
        if queue is None:
            _, queue = await self.node.catalog.shards.find(name) or (0, None)
        return None if queue is None else queue.settings

    async def has_sources(self, name: str) -> bool:
        return await super().has_sources(name) or bool(await self.node.catalog.shards.has_sources(name))

    async def counts(self, counted: Sequence[Queue], *, recent: bool = False) -> list[QueueCounts]:
        """Count the queues of each kind in one statement; a count of many messages is ``recent`` for up to a minute."""
        began_s, cache, rows = stopwatch_s(), self.node.counts, dict[int, Any]()
        if recent:
            rows = {each.partition: cache[each.partition][1] for each in counted if cache[each.partition][0] > began_s}
        for statements, fifo in ((STANDARD, False), (FIFO, True)):
            wanted = [each for each in counted if each.settings.fifo == fifo and each.partition not in rows]
            args = [each.partition for each in wanted], [*map(retention_ms, wanted)]
            for queue, row in zip(wanted, await self._fetch(statements["count"], *args) if wanted else (), strict=True):
                rows[queue.partition] = row
                if row["visible"] + row["in_flight"] + row["delayed"] >= MANY_MESSAGES:
                    kept_ms = min(_COUNT_KEPT_MS_MAX, interval_ms(began_s))
                    cache[queue.partition] = began_s + kept_ms / SECOND_MS, row
        totals = [{name: self.node.totals[each.number][name] for name in _TOTALS} for each in counted]
        return [QueueCounts(**rows[each.partition], **its) for each, its in zip(counted, totals, strict=True)]

    async def retire(self, queue: Queue, *, is_deleted: bool) -> None:
        if is_deleted:
            await self.run("delete_arrivals", queue.origin)
            self.after_commit.append(lambda: self.node.totals.pop(queue.number, None))

    async def change(self, queue: Queue, settings: QueueSettings, modified_at_ms: int) -> None:
        """Apply a new delay or a shorter retention (which unblocks groups) to some; the janitor does the rest."""
        connection, is_longer = self.connection, settings.retention_s > queue.settings.retention_s
        if is_longer and settings.fifo:  # expired messages must stay expired: they are deleted now
            await sweep_queue(self.node, connection, queue)
        elif is_longer:
            await connection.execute(SWEEPS["keep_expired"], queue.partition, retention_ms(queue))
        await self.run("update_queue", queue.number, msgspec.json.encode(settings), modified_at_ms)
        if settings.fifo and settings.delay_s != queue.settings.delay_s:
            await settle_groups(connection, queue)
        if settings.fifo and settings.retention_s != queue.settings.retention_s:
            more = () if is_longer else (self.node.options.sweep_rows, *queues.event_log_args(queue))
            args = queue.partition, retention_ms(queue._replace(settings=settings)), *more
            await connection.execute(SWEEPS["settle_leased" if is_longer else "sweep_fifo"], *args)
        self.invalidate(queue)

    def invalidate(self, queue: Queue) -> None:
        self.after_commit.append(partial(self.node.catalog.forget, queue.name))
        self._after_reply(self.node.watches.changed, queue.name)

    def require_space(self) -> None:
        """Do nothing: on a full disk, the statement fails."""

    async def store(self, queue: Queue, messages: Sequence[NewMessage], ids: Sequence[bytes]) -> list[SentMessage]:
        has_keys = queue.settings.fifo and not queue.away  # the database of an ``away`` queue deduplicates
        keys = [key_of(each.group or "", each.dedup_id or "", queue) if has_keys else None for each in messages]
        return _sent(queue, await self._insert(queue, messages, ids, keys))

    async def _insert(
        self, queue: Queue, messages: Sequence[NewMessage], ids: Sequence[bytes], keys: list[bytes | None]
    ) -> list[Any]:
        """Store messages; return their rows. A FIFO queue logs them under their deduplication keys."""
        rows = await insert(self.node, self.connection, queue, list(messages), keys, list(ids))
        self.notify(queue.name, min(row["visible_at"] for row in rows))
        return rows

    async def select_visible(self, queue: Queue, count: int) -> tuple[list[VisibleMessage], bool]:
        """Lock the messages; of a FIFO queue, their groups, of which only so many without messages are skipped."""
        has_expired = await self._expire(queue)
        rows = await self._fetch(sql(queue)["lock_visible"], queue.partition, count, retention_ms(queue))
        messages = [VisibleMessage(row["seq"], row["source"], row["size_bytes"], row) for row in rows]
        return messages, has_expired or len(rows) == count

    async def move(self, queue: Queue, target: Queue, messages: Sequence[VisibleMessage]) -> int:
        seqs = [each.seq for each in messages]
        await queues.write_ended_receipts(self.connection, queue, "supersede", seqs)
        properties = [properties_of(queue, each.row) or None for each in messages]
        return await self._move(queue, target, seqs, None, [self.ids.next() for _ in seqs], properties)

    async def _move(
        self,
        queue: Queue,
        target: Queue,
        seqs: list[int],
        source: str | None,
        ids: list[bytes] | None = None,
        properties: list[bytes | None] | None = None,
    ) -> int:
        """Move locked messages, as dead letters of ``source`` or as new ones with ``ids``; return their number."""
        if queue.settings.fifo:
            args = queue.partition, target.partition, seqs, ids, properties, self.node.positions.take(len(seqs) + 1)
            moved: int = await self.connection.fetchval(FIFO["move"], *args, retention_ms(queue), source)
        else:
            moved = await move(self.connection, self.node, queue, target, seqs, source, 0, ids)
        if not moved:
            raise PartitionRetired(target.name)
        self.notify(target.name)
        return moved

    async def find_leased(self, queue: Queue, seqs: Sequence[int]) -> list[StoredMessage]:
        """Lock the messages; of a FIFO queue, their groups."""
        if queue.settings.fifo:
            await self.connection.execute(FIFO["lock"], queue.partition, seqs)
        return await self._stored(queue, sql(queue)["lock_messages"], seqs, has_bodies=True)

    async def delete(self, queue: Queue, messages: Sequence[StoredMessage]) -> None:
        seqs = [each.seq for each in messages]
        await queues.write_ended_receipts(self.connection, queue, "delete", seqs)
        await self.connection.execute(sql(queue)["remove"], queue.partition, seqs, retention_ms(queue))
        self.after_commit.append(partial(self.node.deleted, queue, seqs, messages[0].read_at_ms))
        if queue.settings.fifo:
            self.notify(queue.name)

    async def dead_letter(
        self, queue: Queue, target: Queue, messages: Sequence[StoredMessage], new: Sequence[NewMessage]
    ) -> list[SentMessage]:
        """Move to the dead-letter queue, without deduplication."""
        rows = await self._insert(target, new, [each.id for each in messages], [None] * len(new))
        receives = [each.receives_before + each.receive_count for each in messages]
        first = [each.first_received_at_ms for each in messages]
        sent = [row["sent_at"] for row in rows] if target.settings.fifo else [each.sent_at_ms for each in messages]
        args = target.partition, [row["seq"] for row in rows], queue.name, receives, first, sent
        await self.connection.execute(sql(target)["make_dead_letters"], *args)
        self.node.stored(target, -len(rows))  # moved, not sent
        await self.delete(queue, messages)
        return _sent(target, rows)

    async def inspect(
        self, queue: Queue, state: MessageState | None, count: int, passed_max: int
    ) -> list[StoredMessage]:
        if state is None:
            return await self._stored(queue, sql(queue)["inspect"], count)
        if queue.settings.fifo:
            return await self._stored(queue, FIFO[f"inspect_{state.name.lower()}"], count, passed_max + count)
        return await self._stored(queue, STANDARD["inspect_at"], count, passed_max + count, state.value)

    async def inspect_at(self, queue: Queue, seqs: Sequence[int]) -> list[StoredMessage]:
        return await self._stored(queue, sql(queue)["received"], seqs)

    async def receivable(self, queue: Queue, count: int) -> list[StoredMessage]:
        await self._expire(queue)
        if (shares := self.node.fair_of(queue)) is None:
            return await self._stored(queue, sql(queue)["peek"], count)
        noisy = await shares.find_noisy(self.connection, queue, judge=False)
        return await self._stored(queue, FAIR["peek"], count, noisy)

    async def _expire(self, queue: Queue) -> bool:
        """Return whether a FIFO queue had expired messages; delete some if possible, as the others place the groups."""
        if queue.settings.fifo:
            args = queue.partition, retention_ms(queue), *queues.event_log_args(queue)
            with suppress(*COLLISIONS, *NOT_APPLIED, asyncpg.DiskFullError):  # a receive may delete them
                async with self.connection.transaction():
                    return bool(await self.connection.fetchval(FIFO["expire"], *args))
        return False

    async def _stored(
        self, queue: Queue, statement: str, which: Any, *rest: Any, has_bodies: bool = False
    ) -> list[StoredMessage]:
        statement = _stored(statement, fifo=queue.settings.fifo, body=", body" if has_bodies else "")
        args = queue.partition, which, retention_ms(queue), *rest
        found = [StoredMessage(*row) for row in await self._fetch(statement, *args)]
        return [row._replace(properties=properties_of(queue, row._asdict())) if row.source else row for row in found]

    async def bodies(self, queue: Queue, seqs: Sequence[int]) -> Mapping[int, str]:
        return dict(await self._fetch(sql(queue)["bodies"], queue.partition, seqs))

    # Claims.

    async def bind(self, queue: Queue, claim: BoundClaim, request: BindRequest) -> BindResult:
        """Bind a slice; an error of ``COLLISIONS`` repeats the transaction."""
        if await self.connection.fetchrow(STANDARD["block_purge"], queue.partition) is None:
            raise PartitionRetired(queue.name)
        count = min(request.messages, self.node.options.claim_slice_rows)
        if request.bytes is not None:
            rows_max = _SLICES_MAX * (request.bytes // limits.STORED_BYTES_MAX)
            claim_bytes = await self.connection.fetchval(CLAIMS["claim_bytes"], queue.partition, claim.id)
            bytes_left = request.bytes - int(claim_bytes)
            request = request._replace(bytes=bytes_left)
            if queue.settings.fifo:  # bound without reading sizes, so as many as fit at the maximum size
                count = min(count, bytes_left // limits.STORED_BYTES_MAX) if claim.messages < rows_max else 0
        if count <= 0:
            return BindResult(0, claim.shards, claim.filled, more=False)
        target = await target_of(self.node, self.connection, queue)
        bind = self._bind_fifo if queue.settings.fifo else self._bind_standard
        return await bind(queue, claim, request, count, target)

    async def _bind_standard(
        self, queue: Queue, claim: BoundClaim, request: BindRequest, count: int, target: Queue | None
    ) -> BindResult:
        connection = self.connection
        rows = await connection.fetch(CLAIMS["lock_visible"], queue.partition, count, retention_ms(queue))
        is_full = False
        if request.bytes is not None:
            fitting = bisect_right(list(accumulate(row["size_bytes"] for row in rows)), request.bytes)
            rows, is_full = rows[:fitting], fitting < len(rows)
        alive, dead, has_rest = _split_dead_letters(rows, 0 if target is None else queue.settings.receives_max)
        if target is not None and dead:
            await queues.write_ended_receipts(connection, queue, "die", dead)
            try:
                await self._move(queue, target, dead, queue.name)
            except PartitionRetired:  # the target was just purged or deleted: deliver them once more
                alive, dead, has_rest = _split_dead_letters(rows, 0)
        await queues.write_ended_receipts(connection, queue, "supersede", alive)
        messages = len(alive)
        if queue.has_groups:
            keys = {row["seq"]: row["seq"] if row["group_key"] is None else row["group_key"] for row in rows}
            total = claim.shards or claims.shards_of_groups(len(rows), more=len(rows) == count, request=request)
            shards, grown = [keys[seq] % total for seq in alive], (total, 0)
        else:
            pieces, grown = claims.assign_shards(messages, claim, request.shard_messages)
            shards = [shard for shard, size in pieces for _ in range(size)]
        generation = getrandbits(queues.GENERATION_BITS)
        await connection.execute(CLAIMS["bind"], queue.partition, claim.id, alive, shards, generation)
        self.node.totals[queue.number]["received"] += messages
        more = not is_full and (len(rows) == count or has_rest) and messages < request.messages
        return BindResult(messages, *grown, more=more)

    async def _bind_fifo(
        self, queue: Queue, claim: BoundClaim, request: BindRequest, count: int, target: Queue | None
    ) -> BindResult:
        generation, kept_ms = getrandbits(queues.GENERATION_BITS), retention_ms(queue)
        args = (count, request.messages, claim.shards, request.shard_messages, generation, kept_ms)
        dead_args = (*dead_letter_args(self.node, queue, target), limits.DEAD_LETTERS_PER_RECEIVE)
        bound, shards, dead_letters = await self.connection.fetchrow(
            CLAIMS["bind_fifo"], queue.partition, claim.id, *args, *dead_args, *queues.event_log_args(queue)
        )
        self.node.totals[queue.number]["received"] += bound
        if target is not None and dead_letters:
            self.notify(target.name)
        more = (bound == count or dead_letters == limits.DEAD_LETTERS_PER_RECEIVE) and bound < request.messages
        return BindResult(bound, min(shards, limits.CLAIM_SHARDS_MAX), 0, more=more)

    async def read_claim(
        self, queue: Queue, claim: BoundClaim, shard: int, seq: int, count: int
    ) -> AsyncGenerator[tuple[int, ClaimedMessage], None]:
        statement = CLAIMS["read_fifo" if queue.settings.fifo else "read"]
        args = (claim.partition, claim.id, shard, seq, count)
        async for row in self.connection.cursor(statement, *args, prefetch=_PREFETCHED):
            seq, content = row["seq"], (row["id"], row["body"], properties_of(queue, row))
            sequence = seq if queue.settings.fifo else None
            yield seq, ClaimedMessage(*content, row["sent_at"], claim.bound_at_ms, row["receive_count"], sequence)

    async def evict(self, queue: Queue, claim: BoundClaim, seq: int, target: Queue) -> None:
        if queue.settings.fifo:
            await self.connection.execute(FIFO["lock"], queue.partition, [seq])
        await self._move(queue, target, [seq], queue.name)
        self.notify(queue.name)

    async def end_slice(self, queue: Queue | None, claim: BoundClaim) -> bool:
        """Delete or return a slice of a claim; the janitor deletes messages of retired partitions."""
        if queue is None or queue.partition != claim.partition:
            return False
        is_deleted = claim.state == claims.ACKNOWLEDGED
        statement = CLAIMS["end_slice_fifo" if queue.settings.fifo else "end_slice"]
        rows_max = self.node.options.claim_slice_rows
        args = claim.partition, claim.id, rows_max, retention_ms(queue), "delete" if is_deleted else "give_back"
        done: int = await self.connection.fetchval(statement, *args)
        if is_deleted:
            self.node.totals[queue.number]["deleted"] += done
        self.notify(queue.name)
        return done >= rows_max

    async def next_visible_ms(self, queue: Queue) -> int | None:
        return await queues.next_visible_ms(self.connection, queue)

    def schedule(self, step: type[Command]) -> None:
        self.after_commit.append(self.node.workers[step].schedule)

    def notify(self, name: str, due_ms: int = 0) -> None:
        self._after_reply(self.node.watches.wake, name, due_ms)

    def _after_reply(self, call: Callable[..., object], *args: object) -> None:
        self.after_commit.append(partial(get_running_loop().call_soon, call, *args))


@cache
def _stored(statement: str, *, fifo: bool, body: str) -> str:
    """Return the statement with the columns of ``StoredMessage``; ``octet_length`` does not read the body."""
    priority, due = f"priority % {GROUPED}", "visible_at"
    if fifo:
        delay = "(SELECT delay FROM mq.part WHERE qp = $1)"
        priority, due = f"{FIFO_PRIORITY}", f"greatest(sent_at, mq.due(visible_at, sent_at, receive_count, {delay}))"
    return f"""
        SELECT seq, id, coalesce(properties, ''), octet_length(body), {priority}, source, sent_at, {due}, receive_count,
            receives_before, generation, epoch, received_at, first_received_at, coalesce(log, 0), claim IS NOT NULL,
            mq.now_ms(){body}
        FROM ({statement}
        ) AS found
    """


def _sent(queue: Queue, rows: list[Any]) -> list[SentMessage]:
    """Return the results for stored rows; a message for another database gets its sequence there."""
    has_sequence = queue.settings.fifo and not queue.away
    return [SentMessage(id=row["id"], sequence=row["seq"] if has_sequence else None) for row in rows]


async def transact(node: Node, work: Callable[[PostgresTransaction], Awaitable[T]], *, snapshot: bool = False) -> T:
    """Return the result of ``work`` in a transaction, repeated after conflicts."""
    async with node.database.connection() as connection:
        for _ in range(COLLISIONS_MAX):
            tx = PostgresTransaction(connection, node)
            try:
                async with connection.transaction(isolation="repeatable_read" if snapshot else None):
                    result = await work(tx)
            except COLLISIONS:
                node.positions.jump()
            except PartitionRetired as retired:
                node.catalog.forget(*retired.args)
            else:
                break
        else:
            raise InternalError
    # Not while the connection is released, which takes iterations of the loop: a poll that is woken and submitted again
    # must see the change, such as a new policy.
    for call in tx.after_commit:
        call()
    return result


async def run_cold(node: Node, command: Command) -> Any:
    """Run a cold command, in a transaction unless it only reads and needs no snapshot."""
    kind = type(command)
    if kind in READS and kind not in SNAPSHOTS:
        async with node.database.connection() as connection:
            return await COLD[kind](PostgresTransaction(connection, node), command)
    return await transact(node, lambda tx: COLD[kind](tx, command), snapshot=kind in SNAPSHOTS)


JANITOR_MS = limits.RETENTION_S.minimum * SECOND_MS
"""Interval at which each node tries to be the janitor."""

SWEEPS = {**load("veilmq.store.postgres", "sweeps.sql"), "delete_old_receipts": EVENTS["delete_old_receipts"]}
SWEEPS["delete_fifo_messages"] = queues.fifo_variant(SWEEPS["delete_messages"])
SWEEPS["delete_turns"] = SWEEPS["delete_groups"].replace("fifo_group", "fair_turn").replace("group_id", "group_key")
_ACCEPTED = SWEEPS["delete_accepted"]
SWEEPS["delete_attempts"] = _ACCEPTED.replace("accepted", "attempt").replace("expires_at", "attempted_at")
_SWEEPS_LOGGED = queues.log_variants(SWEEPS)

_PAUSE_S = 0.01
_PAGE = 100
_GROUPS_PER_SLICE = 100  # some 15 ms
_RETIRED_MS = 300 * SECOND_MS  # far longer than the statement timeout

_RETIRED_DELETES = ("delete_messages", "delete_fifo_messages", "delete_receipts", "delete_groups", "delete_turns")


async def sweep(node: Node, connection: Any) -> None:
    """Delete all due rows of the database, and number its events."""
    await delete_cooldowns(PostgresTransaction(connection, node))
    rows_max = node.options.sweep_rows
    async for partition, *of_log in _rows(connection, SWEEPS["parts"]):
        log_args = of_log if of_log[0] is not None else ()
        for name in _RETIRED_DELETES:
            await _run_to_end(node, connection, name, partition, rows_max, log_args=log_args)
        await _delete_expired(node, connection, partition)
        await connection.execute(SWEEPS["delete_part"], partition, _RETIRED_MS)
    async for row in _rows(connection, SQL["queues_after"]):
        await sweep_queue(node, connection, queues.queue_of(row, node.options.event_log))
    await connection.execute(SWEEPS["end_outboxes"])
    await connection.execute(SWEEPS["delete_outboxes"], _RETIRED_MS)
    await number_events(connection, node.options)


async def sweep_queue(node: Node, connection: Any, queue: Queue) -> None:
    """Delete the due rows of a queue."""
    rows_max, expired = node.options.sweep_rows, (EXPIRED_KEPT_S * SECOND_MS, EXPIRED_KEPT_MAX)
    await _run_to_end(node, connection, "delete_old_receipts", queue.origin, rows_max, *expired)
    args = queue.partition, retention_ms(queue), rows_max
    pending = await connection.fetchrow(SWEEPS["pending_changes"], queue.partition)
    late_until, ended_before, has_claims = pending or (0, 0, False)
    if queue.settings.fifo:
        if late_until:  # groups that still follow the old delay
            last: Any = (0, 0)
            while last is not None:
                last = await settle_groups(connection, queue, *last)
                await asyncio.sleep(_PAUSE_S)
            await connection.execute(SWEEPS["end_late"], queue.partition, late_until)
            node.watches.wake(queue.name, 0)
        if has_claims:  # claimed messages stay; those past their retention end when they return, and receives pass them
            await connection.execute(SWEEPS["keep_expired"], *args[:2])
        deleted = await _run_to_end(node, connection, "sweep_fifo", *args, *queues.event_log_args(queue))
        await _delete_expired(node, connection, queue.origin)
    else:
        deleted = await _run_to_end(node, connection, "sweep", *args, log_args=queues.event_log_args(queue))
        await _run_to_end(node, connection, "sweep_turns", queue.partition, rows_max)
        if ended_before:
            await connection.execute(SWEEPS["clear_ended"], queue.partition, ended_before)
    if deleted:
        node.watches.wake(queue.name, 0)


async def _delete_expired(node: Node, connection: Any, origin: int) -> None:
    for name, kept_ms in (("delete_accepted", 0), ("delete_attempts", limits.ATTEMPT_S * SECOND_MS)):
        await _run_to_end(node, connection, name, origin, node.options.sweep_rows, kept_ms)


async def settle_groups(connection: Any, queue: Queue, at_ms: int = 0, head: int = 0) -> Any:
    """Apply a new delay to the next slice of groups; return the last position, ``None`` after the last slice."""
    args = queue.partition, retention_ms(queue), at_ms, head, _GROUPS_PER_SLICE
    settled = await connection.fetch(SWEEPS["settle_groups"], *args)
    return settled[-1][:2] if len(settled) == _GROUPS_PER_SLICE else None


async def _run_to_end(node: Node, connection: Any, name: str, *args: Any, log_args: Sequence[Any] = ()) -> int:
    """Run a statement until a slice is not full, with ``log_args`` its logged variant; return the number of rows."""
    statement = SWEEPS[name]
    if log_args and _SWEEPS_LOGGED[name] != statement:
        statement, args = _SWEEPS_LOGGED[name], (*args, *log_args)
    deleted = 0
    while True:
        status: str = await connection.execute(statement, *args)
        rows = int(status.rpartition(" ")[2])
        deleted += rows
        if rows < node.options.sweep_rows:
            return deleted
        await asyncio.sleep(_PAUSE_S)


async def _rows(connection: Any, statement: str) -> AsyncIterator[Sequence[Any]]:
    """Yield the rows of a query, which is ordered by its first column."""
    after = 0
    while rows := await connection.fetch(statement, after, _PAGE):
        for row in rows:
            yield row
        after = rows[-1][0]


SLICE_EVENTS = 1_000


async def number_events(connection: Any, options: PostgresOptions, slice_events: int = SLICE_EVENTS) -> None:
    """Number all committed events."""
    await connection.execute(EVENTS["create_state"])
    while True:
        async with connection.transaction():
            state = await connection.fetchrow(EVENTS["lock_state"])
            rows = sorted(await connection.fetch(EVENTS["take"], slice_events), key=itemgetter("number"))
            if not rows:
                return
            room = max(0, options.events_waiting_max - (state["recorded"] - state["exported"]))
            kept, dropped = rows[:room], rows[room:]
            if kept:
                encoded = encode_events(
                    [
                        event_of(queue, routing_key_of(properties, options.routing_attribute), *what)
                        for _, _, queue, properties, *what in kept
                    ]
                )
                await connection.execute(SQL["insert_event_batch"], state["recorded"] + 1, len(kept), encoded)
            if dropped and not state["dropped"]:
                log.warning("events are dropped: too many wait to be exported")
            expired = [(row["qp"], row["number"]) for row in dropped if row["outcome"] == "expired"]
            if expired:
                await connection.executemany(EVENTS["delete_receipt"], expired)
            await connection.execute(EVENTS["add_numbers"], len(kept), len(dropped))
        if len(rows) < slice_events:
            return
