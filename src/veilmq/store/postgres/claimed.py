"""The messages of claims on PostgreSQL: they stay where they are, and say of which claim and shard they are.

What binds has the lock of the source's row, and holds a purge off; a slice of an end has the lock of the claim's row.
"""

from collections.abc import Sequence
from random import getrandbits
from typing import Any, NamedTuple

from veilmq.core.claims import ClaimedMessage
from veilmq.core.limits import (
    CLAIM_SHARDS_MAX,
    DEAD_LETTER_BYTES_PER_RECEIVE,
    DEAD_LETTERS_PER_RECEIVE,
    STORED_BYTES_MAX,
)
from veilmq.store.claimed import (
    ACKNOWLEDGED,
    Backlog,
    BoundClaim,
    ClaimedMessages,
    Part,
    Wish,
    filled,
    placed,
    shards_of_groups,
)
from veilmq.store.postgres.catalog import Catalog, Queue
from veilmq.store.postgres.coalescing import GENERATION_BITS, STANDARD, PartitionRetired, hold, retention_ms
from veilmq.store.postgres.counts import SQL, Ready, Totals, count
from veilmq.store.postgres.event_log import EventLog
from veilmq.store.postgres.options import PostgresOptions
from veilmq.store.postgres.sends import Positions
from veilmq.store.postgres.taking import properties_of, target_of
from veilmq.store.postgres.watches import next_visible_ms
from veilmq.store.transaction import QueueRow, Transaction

_SLICES_MAX = 16
_PREFETCHED = 100  # rows; their bodies may be large
_ENDINGS = {
    (True, False): "delete_some",
    (True, True): "delete_some_fifo",
    (False, False): "give_back_some",
    (False, True): "give_back_some_fifo",
}


class ClaimsAtNode:
    """What the claims of one node share."""

    def __init__(self, *, catalog: Catalog, positions: Positions, options: PostgresOptions, totals: Totals) -> None:
        """Dead letters get some of the ``positions``; ``totals`` count what is bound and deleted."""
        self.catalog = catalog
        self.positions = positions
        self.options = options
        self.totals = totals
        self.log = EventLog(options=options)
        self.ready = Ready()


class _Chosen(NamedTuple):
    """What a slice takes: positions of living and of dead messages, and whether it ended before its time."""

    living: list[int]
    dead: list[int]
    is_cut: bool


class PostgresClaimed(ClaimedMessages):
    """What claims do with messages in one transaction."""

    def __init__(self, tx: Transaction, connection: Any, node: ClaimsAtNode) -> None:
        """``connection`` has the transaction."""
        self._tx = tx
        self._connection = connection
        self._node = node
        self._rows = node.options.claim_slice_rows
        self.claimed_max = node.options.claimed_max

    async def bind(self, queue: QueueRow, claim: BoundClaim, wish: Wish) -> Part:
        """Bind a slice; raises what is among ``COLLISIONS`` when the transaction is to be repeated."""
        assert isinstance(queue, Queue)
        await hold(self._connection, queue)
        count = min(wish.messages, self._rows)
        if wish.bytes is not None:
            rows_max = _SLICES_MAX * (wish.bytes // STORED_BYTES_MAX)
            of = "claim_bytes_fifo" if queue.settings.fifo else "claim_bytes"
            bytes_left = wish.bytes - int(await self._connection.fetchval(SQL[of], queue.partition, claim.id))
            wish = wish._replace(bytes=bytes_left)
            if queue.settings.fifo:  # which are bound without being looked at: as many as fit, however long
                count = min(count, bytes_left // STORED_BYTES_MAX) if claim.messages < rows_max else 0
        if count <= 0:
            return Part(0, claim.shards, claim.filled, more=False)
        target = await target_of(self._connection, self._node.catalog, queue)
        bind = self._bind_fifo if queue.settings.fifo else self._bind_standard
        return await bind(queue, claim, wish, count, target)

    async def _bind_standard(
        self, queue: Queue, claim: BoundClaim, wish: Wish, count: int, target: Queue | None
    ) -> Part:
        connection, log = self._connection, self._node.log
        rows = await connection.fetch(SQL["choose"], queue.partition, count, retention_ms(queue))
        rows, is_full = _fitting(rows, wish.bytes)
        chosen = _chosen(rows, 0 if target is None else queue.settings.receives_max)
        if target is not None:
            await log.note(connection, queue, "die", chosen.dead)
        if target is not None and not await self._send_dead(queue, target, chosen.dead):
            chosen = _chosen(rows, 0)  # where it was purged or deleted just now, they are delivered once more
        await log.note(connection, queue, "supersede", chosen.living)
        messages = len(chosen.living)
        if queue.has_groups:
            keys = {row["seq"]: row["seq"] if row["group_key"] is None else row["group_key"] for row in rows}
            total = claim.shards or shards_of_groups(len(rows), more=len(rows) == count, wish=wish)
            shards, grown = [keys[seq] % total for seq in chosen.living], (total, 0)
        else:
            pieces = placed(messages, claim, wish.shard_messages)
            shards, grown = [shard for shard, of_it in pieces for _ in range(of_it)], filled(pieces, claim)
        generation = getrandbits(GENERATION_BITS)
        await connection.execute(SQL["bind"], queue.partition, claim.id, chosen.living, shards, generation)
        self._node.totals.received[queue.number] += messages
        more = not is_full and (len(rows) == count or chosen.is_cut) and messages < wish.messages
        return Part(messages, *grown, more=more)

    async def _bind_fifo(self, queue: Queue, claim: BoundClaim, wish: Wish, count: int, target: Queue | None) -> Part:
        bound, shards, letters = await self._connection.fetchrow(
            SQL["bind_fifo"],
            queue.partition,
            claim.id,
            count,
            wish.messages,
            claim.shards,
            wish.shard_messages,
            getrandbits(GENERATION_BITS),
            retention_ms(queue),
            queue.settings.receives_max,
            None if target is None else target.partition,
            queue.name,
            0 if target is None else self._node.positions.take(DEAD_LETTERS_PER_RECEIVE),
            DEAD_LETTERS_PER_RECEIVE,
            *self._node.log.terms(queue),
        )
        self._node.totals.received[queue.number] += bound
        if target is not None and letters:
            self._tx.notify(target.name)
        more = (bound == count or letters == DEAD_LETTERS_PER_RECEIVE) and bound < wish.messages
        return Part(bound, min(shards, CLAIM_SHARDS_MAX), 0, more=more)

    async def _send_dead(self, queue: Queue, target: Queue, dead: list[int]) -> int:
        """Send locked messages of a standard queue on as dead letters; return how many: all or none."""
        if not dead:
            return 0
        counter = self._node.positions.take(len(dead) + 1)
        terms = (queue.partition, target.partition, dead, counter, queue.name)
        moved = await self._connection.fetch(SQL["send_dead"], *terms)
        if moved:
            priorities = sorted({row["priority"] for row in moved})
            await self._connection.execute(STANDARD["add_priorities"], target.partition, priorities)
            self._tx.notify(target.name)
        return len(moved)

    async def read(
        self, queue: QueueRow, claim: BoundClaim, shard: int, seq: int, count: int, bytes_max: int
    ) -> Sequence[tuple[int, ClaimedMessage]]:
        """Return up to ``count`` messages of a shard from ``seq`` on."""
        assert isinstance(queue, Queue)
        statement = SQL["read_fifo" if queue.settings.fifo else "read"]
        terms = (claim.partition, claim.id, shard, seq, count)
        page: list[tuple[int, ClaimedMessage]] = []
        async for row in self._connection.cursor(statement, *terms, prefetch=_PREFETCHED):
            shown = ClaimedMessage(
                row["id"],
                row["body"],
                properties_of(queue, row),
                row["sent_at"],
                claim.bound_at_ms,
                row["receive_count"],
                row["seq"] if queue.settings.fifo else None,
            )
            page.append((row["seq"], shown))
            bytes_max -= len(shown.body) + len(shown.properties)
            if bytes_max <= 0:
                break
        return page

    async def find(self, queue: QueueRow, claim: BoundClaim, message: bytes) -> int | None:
        """Return the position of the message of that id."""
        find = SQL["find_fifo" if queue.settings.fifo else "find"]
        position: int | None = await self._connection.fetchval(find, claim.partition, claim.id, message)
        return position

    async def evict(self, queue: QueueRow, claim: BoundClaim, seq: int, target: QueueRow) -> None:
        """Move a message of the claim to ``target``."""
        assert isinstance(queue, Queue)
        assert isinstance(target, Queue)
        if queue.settings.fifo:
            await hold(self._connection, target)
            counter = self._node.positions.take(1)
            terms = (queue.partition, target.partition, seq, queue.name, counter, retention_ms(queue))
            await self._connection.execute(SQL["evict_fifo"], *terms)
            self._tx.notify(target.name)
        elif not await self._send_dead(queue, target, [seq]):
            raise PartitionRetired
        self._tx.notify(queue.name)

    async def end(self, queue: QueueRow | None, claim: BoundClaim) -> bool:
        """Delete a slice of an acknowledged claim, or give one back; the janitor deletes what is in a retired one."""
        if queue is None or queue.partition != claim.partition:
            return False
        assert isinstance(queue, Queue)
        is_deleted, is_fifo = claim.state == ACKNOWLEDGED, queue.settings.fifo
        terms = [claim.partition, claim.id, self._rows]
        if is_fifo or not is_deleted:
            terms.append(retention_ms(queue))
        done = int(await self._connection.fetchval(SQL[_ENDINGS[is_deleted, is_fifo]], *terms))
        if is_deleted:
            self._node.totals.deleted[queue.number] += done
        self._tx.notify(queue.name)
        return done >= self._rows

    async def backlog(self, queue: QueueRow, *, lately: bool) -> Backlog:
        """Count what waits, which looks at each message."""
        assert isinstance(queue, Queue)
        return await (self._node.ready.lately if lately else count)(self._connection, queue)

    async def next_visible_ms(self, queue: QueueRow) -> int | None:
        """Return the instant from which a message is visible."""
        assert isinstance(queue, Queue)
        return await next_visible_ms(self._connection, queue)


def _fitting(rows: Sequence[Any], bytes_left: int | None) -> tuple[Sequence[Any], bool]:
    """Return the rows that so many bytes have room for, and whether they end there."""
    for place, row in enumerate(rows if bytes_left is not None else ()):
        bytes_left -= row["size_bytes"]
        if bytes_left < 0:
            return rows[:place], True
    return rows, False


def _chosen(rows: Sequence[Any], receives_max: int) -> _Chosen:
    """Divide what could be taken; dead are those that were received ``receives_max`` times, if that is not 0."""
    living: list[int] = []
    dead: list[int] = []
    bytes_left = DEAD_LETTER_BYTES_PER_RECEIVE
    for row in rows:
        if not receives_max or row["receive_count"] < receives_max:
            living.append(row["seq"])
        elif len(dead) == DEAD_LETTERS_PER_RECEIVE or bytes_left <= 0:
            return _Chosen(living, dead, is_cut=True)
        else:
            dead.append(row["seq"])
            bytes_left -= row["size_bytes"]
    return _Chosen(living, dead, is_cut=False)
