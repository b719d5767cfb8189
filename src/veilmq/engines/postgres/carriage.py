"""How messages get from the outbox of one database to a queue of another: in three steps, each a transaction.

1. At the source: the messages of a batch are decided, and it gets the next number of its transit, and a token.
2. At the target: the batch's number is noted beside the messages, unless it was before.
3. At the source: the messages of the batch are deleted (together with step 1 of the next one).

Whatever ends between two of them is done again by whoever comes next: the batch is the same, and what has arrived is
not stored twice. A number that has arrived with another token is of a database that has forgotten what it sent; it
counts on from there. Ids of messages would not do: a message may come back to a queue that it was in before.
"""

import enum
from os import urandom
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from veilmq.core.limits import DEDUPLICATION_S, SECOND_MS
from veilmq.core.redrive import SLICE_BYTES, SLICE_MESSAGES
from veilmq.core.settings import QueueSettings
from veilmq.engines.postgres.catalog import Queue, queue_of
from veilmq.engines.postgres.fifo_storing import key_of
from veilmq.engines.postgres.on_queue import STANDARD
from veilmq.engines.postgres.positions import Positions
from veilmq.engines.postgres.transits import OUTBOX, SHARDS

CLAIM_MS = 10 * SECOND_MS
"""For how long nodes leave a batch to the one that has begun with it."""

_TOKEN_BYTES = 16
_RETIRED_MS = 300 * SECOND_MS  # far longer than a transaction may take


class Transit(NamedTuple):
    """A way from a queue to one elsewhere; ``source_id`` is 0 for a topic."""

    partition: int
    source_id: int
    source: str
    place: int
    target_id: int
    target: str
    fifo: bool


class Carried(NamedTuple):
    """A message on its way: all of its row in JSON, and what of it matters on arrival."""

    id: bytes
    priority: int
    group: str | None
    source: str | None
    whole: str


class Batch(NamedTuple):
    """Messages that go together."""

    number: int
    token: bytes
    messages: list[Carried]


class Fate(enum.Enum):
    """What became of a batch at its target."""

    ARRIVED = "arrived"
    QUEUE_GONE = "queue gone"


class Arrived(NamedTuple):
    """``queue`` is where the batch came to, visible from ``due_ms`` on; ``last_number`` is of another one that has.

    A queue ``is_changed`` that has messages of another priority than ever before, or with groups.
    """

    fate: Fate
    queue: Queue | None = None
    due_ms: int = 0
    last_number: int | None = None
    is_changed: bool = False


async def due(connection: Any) -> list[Transit]:
    """Return the transits that have something to be carried."""
    return [
        Transit._make([*rest, msgspec.json.decode(settings, type=QueueSettings).fifo])
        for *rest, settings in await connection.fetch(OUTBOX["due"])
    ]


async def take(connection: Any, transit: Transit, done: Batch | None) -> Batch | None:
    """Delete what has arrived with ``done``, and return the batch that goes next, if any; within a transaction."""
    open_batch = await connection.fetchrow(OUTBOX["lock_transit"], transit.partition)
    if open_batch is None:
        return None
    number, token, seqs, _ = open_batch
    if done is not None and (number, token) == (done.number, done.token) and seqs:
        await _depart(connection, transit, seqs)
        await connection.execute(OUTBOX["close_batch"], transit.partition)
        seqs = []
    if not seqs:
        rows = await connection.fetch(OUTBOX[_of(transit, "first")], transit.partition, SLICE_MESSAGES, SLICE_BYTES)
        if not rows:
            return None
        seqs, token = [seq for (seq,) in rows], urandom(_TOKEN_BYTES)
        number = await connection.fetchval(OUTBOX["open_batch"], transit.partition, token, seqs, CLAIM_MS)
    return Batch(number, token, await _messages(connection, transit, seqs))


async def _messages(connection: Any, transit: Transit, seqs: list[int]) -> list[Carried]:
    rows = await connection.fetch(OUTBOX[_of(transit, "messages")], transit.partition, seqs)
    return [Carried(*row) for row in rows]


async def arrive(connection: Any, transit: Transit, from_place: int, batch: Batch, positions: Positions) -> Arrived:
    """Store the messages of ``batch`` in its target, where they are not yet; within a transaction.

    Raises what is among ``on_queue.COLLISIONS`` when it is to be repeated.
    """
    row = await connection.fetchrow(SHARDS["lock_end"], transit.target)
    if row is None or row["queue_id"] != transit.target_id:
        return Arrived(Fate.QUEUE_GONE)
    queue = queue_of(row)
    whence = queue.origin, from_place, transit.partition
    if await connection.fetchval(OUTBOX["note_arrival"], *whence, batch.number, batch.token) is None:
        number, token = await connection.fetchrow(OUTBOX["arrived"], *whence)
        is_ours = (number, token) == (batch.number, batch.token)
        return Arrived(Fate.ARRIVED, queue, last_number=None if is_ours else number)
    due_ms, is_changed = await _store(connection, queue, batch.messages, positions)
    return Arrived(Fate.ARRIVED, queue, due_ms, is_changed=is_changed)


async def _store(connection: Any, queue: Queue, messages: list[Carried], positions: Positions) -> tuple[int, bool]:
    """Store messages in their order; return when there is one, 0 in FIFO queues and for none, and if that is new."""
    if not messages:
        return 0, False
    counter = positions.take(len(messages) + 1)
    come = f"[{','.join(each.whole for each in messages)}]"
    if queue.settings.fifo:
        keys = [_key(each, queue) for each in messages]
        terms = queue.partition, queue.origin, come, keys, DEDUPLICATION_S * SECOND_MS, counter
        await connection.execute(OUTBOX["fifo_arrive"], *terms)
        return 0, False
    priorities = sorted({each.priority for each in messages})
    status = await connection.execute(STANDARD["add_priorities"], queue.partition, priorities)
    rows = await connection.fetch(OUTBOX["arrive"], queue.partition, come, counter)
    return min(int(row["visible_at"]) for row in rows), status == "UPDATE 1"


def _key(message: Carried, queue: Queue) -> bytes | None:
    """Return under what a message is remembered: one that was forwarded or published by its id, a dead letter not."""
    return None if message.source else key_of(message.group or "", str(UUID(bytes=message.id)), queue)


async def give_back(connection: Any, transit: Transit, positions: Positions) -> tuple[Queue | None, int]:
    """Return messages whose target is gone to the queue that they came from, to be received there once more.

    A slice of them, within a transaction: returns that queue, ``None`` when it is gone too and they are deleted; and
    how many there were.
    """
    if await connection.fetchrow(OUTBOX["lock_transit"], transit.partition) is None:
        return None, 0
    await connection.execute(OUTBOX["end_transit"], transit.partition)
    first = await connection.fetch(OUTBOX[_of(transit, "first")], transit.partition, SLICE_MESSAGES, SLICE_BYTES)
    seqs = [seq for (seq,) in first]
    row = await connection.fetchrow(SHARDS["lock_end"], transit.source)
    queue = None if row is None or row["queue_id"] != transit.source_id else queue_of(row)
    if queue is not None:
        back = [_as_it_was(each) for each in await _messages(connection, transit, seqs)]
        await _store(connection, queue, back, positions)
    await _depart(connection, transit, seqs)
    return queue, len(seqs)


async def _depart(connection: Any, transit: Transit, seqs: list[int]) -> None:
    rows = await connection.fetch(OUTBOX[_of(transit, "depart")], transit.partition, seqs)
    groups = [] if transit.fifo else sorted({row["group_key"] for row in rows} - {None})
    if groups:
        await connection.execute(OUTBOX["settle"], transit.partition, groups)


def _as_it_was(message: Carried) -> Carried:
    """Return a message without what its way to a dead-letter queue has changed: its receives are its queue's again."""
    whole = msgspec.json.decode(message.whole)
    whole |= {"source": None, "receive_count": whole["receives_before"], "receives_before": 0}
    return message._replace(source=None, whole=msgspec.json.encode(whole).decode())


async def forget_ended(connection: Any) -> None:
    """Drop the transits of queues that are gone, once nobody can put anything there."""
    await connection.execute(OUTBOX["note_ends"])
    for (partition,) in await connection.fetch(OUTBOX["ended"], _RETIRED_MS):
        await connection.execute(OUTBOX["drop_transit"], partition)


def _of(transit: Transit, name: str) -> str:
    return f"fifo_{name}" if transit.fifo else name
