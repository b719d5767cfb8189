"""Binding: what is visible becomes a claim's, a slice at a time.

Messages come in the order in which receives would give them; dead letters among them are moved as a receive does.
Shards are filled as the messages come, so that a message's shard is settled when it is bound; messages of a group go
by its name.
"""

from collections.abc import Sequence
from random import getrandbits
from typing import Any, NamedTuple

from veilmq.core.limits import (
    CLAIM_SHARDS_MAX,
    DEAD_LETTER_BYTES_PER_RECEIVE,
    DEAD_LETTERS_PER_RECEIVE,
    STORED_BYTES_MAX,
)
from veilmq.engines.postgres.catalog import Catalog, Queue
from veilmq.engines.postgres.claim_rows import SQL, BoundClaim, claim_of
from veilmq.engines.postgres.event_log import EventLog
from veilmq.engines.postgres.on_queue import GENERATION_BITS, STANDARD, retention_ms
from veilmq.engines.postgres.options import PostgresOptions
from veilmq.engines.postgres.positions import Positions
from veilmq.engines.postgres.redrive import target_of
from veilmq.engines.postgres.totals import Totals

_SLICES_MAX = 16


class Wish(NamedTuple):
    """Up to so many more messages, in shards of so many, and so many bytes of all the claim has."""

    messages: int
    shard_messages: int
    bytes: int | None = None


class Slice(NamedTuple):
    """What a slice did: the claim as it is then, whether there may be more, and the queue that dead letters came to."""

    claim: BoundClaim
    more: bool
    letters_to: Queue | None = None


class _Chosen(NamedTuple):
    """What a slice takes: positions of living and of dead messages, and whether it ended before its time."""

    living: list[int]
    dead: list[int]
    is_cut: bool


class Binding:
    """Binds slices, in the transaction of a command that holds the source's lock."""

    def __init__(self, *, catalog: Catalog, positions: Positions, options: PostgresOptions, totals: Totals) -> None:
        """Dead letters get some of the ``positions``; ``totals`` hear of what is bound."""
        self._totals = totals
        self._catalog = catalog
        self._positions = positions
        self._rows = options.claim_slice_rows
        self._log = EventLog(options=options)

    async def bind(self, connection: Any, queue: Queue, claim: BoundClaim, wish: Wish) -> Slice:
        """Bind a slice; raises what is among ``on_queue.COLLISIONS`` when the transaction is to be repeated."""
        count = min(wish.messages, self._rows)
        if wish.bytes is not None:
            rows_max = _SLICES_MAX * (wish.bytes // STORED_BYTES_MAX)
            of = "claim_bytes_fifo" if queue.settings.fifo else "claim_bytes"
            bytes_left = wish.bytes - int(await connection.fetchval(SQL[of], queue.partition, claim.id))
            wish = wish._replace(bytes=bytes_left)
            if queue.settings.fifo:  # which are bound without being looked at: as many as fit, however long
                count = min(count, bytes_left // STORED_BYTES_MAX) if claim.messages < rows_max else 0
        if count <= 0:
            return Slice(claim, more=False)
        target = await target_of(connection, self._catalog, queue)
        bind = self._bind_fifo if queue.settings.fifo else self._bind_standard
        return await bind(connection, queue, claim, wish, count, target)

    async def _bind_standard(
        self, connection: Any, queue: Queue, claim: BoundClaim, wish: Wish, count: int, target: Queue | None
    ) -> Slice:
        rows = await connection.fetch(SQL["choose"], queue.partition, count, retention_ms(queue))
        rows, is_full = _fitting(rows, wish.bytes)
        chosen = _chosen(rows, 0 if target is None else queue.settings.receives_max)
        if target is not None:
            await self._log.note(connection, queue, "die", chosen.dead)
        if target is not None and not await send_dead(connection, queue, target, chosen.dead, self._positions):
            chosen = _chosen(rows, 0)  # where it was purged or deleted just now, they are delivered once more
        await self._log.note(connection, queue, "supersede", chosen.living)
        if queue.has_groups:
            keys = {row["seq"]: row["seq"] if row["group_key"] is None else row["group_key"] for row in rows}
            total = claim.shards or _shards(len(rows), count, wish)
            shards, filled = [keys[seq] % total for seq in chosen.living], (total, 0)
        else:
            shards = placed(len(chosen.living), claim, wish.shard_messages)
            filled = _filled(shards, claim)
        generation = getrandbits(GENERATION_BITS)
        await connection.execute(SQL["bind"], queue.partition, claim.id, chosen.living, shards, generation)
        grown = await connection.fetchrow(SQL["grow_claim"], claim.id, len(shards), *filled)
        self._totals.received[queue.number] += len(chosen.living)
        more = not is_full and (len(rows) == count or chosen.is_cut) and len(chosen.living) < wish.messages
        return Slice(claim_of(grown), more=more, letters_to=target if chosen.dead else None)

    async def _bind_fifo(
        self, connection: Any, queue: Queue, claim: BoundClaim, wish: Wish, count: int, target: Queue | None
    ) -> Slice:
        bound, shards, letters = await connection.fetchrow(
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
            0 if target is None else self._positions.take(DEAD_LETTERS_PER_RECEIVE),
            DEAD_LETTERS_PER_RECEIVE,
            *self._log.terms(queue),
        )
        grown = await connection.fetchrow(SQL["grow_claim"], claim.id, bound, min(shards, CLAIM_SHARDS_MAX), 0)
        self._totals.received[queue.number] += bound
        more = (bound == count or letters == DEAD_LETTERS_PER_RECEIVE) and bound < wish.messages
        return Slice(claim_of(grown), more=more, letters_to=target if letters else None)


async def send_dead(connection: Any, queue: Queue, target: Queue, dead: list[int], positions: Positions) -> int:
    """Send locked messages of a standard queue on as dead letters; return how many: all or none."""
    if not dead:
        return 0
    counter = positions.take(len(dead) + 1)
    moved = await connection.fetch(SQL["send_dead"], queue.partition, target.partition, dead, counter, queue.name)
    if moved:
        priorities = sorted({row["priority"] for row in moved})
        await connection.execute(STANDARD["add_priorities"], target.partition, priorities)
    return len(moved)


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


def _shards(found: int, count: int, wish: Wish) -> int:
    """Return among how many shards the groups are divided, once and for all: what was found may be all there is."""
    messages = found if found < count else wish.messages
    return min(CLAIM_SHARDS_MAX, max(1, -(-messages // wish.shard_messages)))


def placed(messages: int, claim: BoundClaim, shard_messages: int) -> list[int]:
    """Return the shard of each of the next messages: what the last one has room for, the rest evenly over new ones."""
    room = min(messages, max(0, shard_messages - claim.filled)) if claim.shards else 0
    rest = messages - room
    parts = -(-rest // shard_messages)
    return [claim.shards - 1] * room + [claim.shards + place * parts // rest for place in range(rest)]


def _filled(shards: list[int], claim: BoundClaim) -> tuple[int, int]:
    """Return how many shards the claim has with these, and how many messages its last one has."""
    if not shards:
        return claim.shards, claim.filled
    last = shards[-1]
    return last + 1, shards.count(last) + (claim.filled if last == claim.shards - 1 else 0)
