"""What travels from one database of a store to another: exactly once, and in the order of its groups.

For each pair of a queue here and a queue elsewhere there is an *outbox*: a partition of the tables of messages, which
stands for the other queue. Whoever moves messages (dead letters, move tasks, forwards, publications) does so as if the
queue was here, by the same statements in the same transaction; that is what makes the message's way durable. Then a
*relay* takes it on, in three steps, each a transaction:

1. At the source: the messages of a batch are decided, and it gets the next number of its outbox, and a token.
2. At the target: the batch's number is noted beside the messages, unless it was before.
3. At the source: the messages of the batch are deleted (together with step 1 of the next one).

Whatever ends between two of them is done again by whoever comes next: the batch is the same, and what has arrived is
not stored twice. A number that has arrived with another token is of a database that has forgotten what it sent; it
counts on from there. Ids of messages would not do: a message may come back to a queue that it was in before.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from os import urandom
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import msgspec

from veilmq.core.errors import StoreUnavailable, VeilmqError
from veilmq.core.limits import MOVE_SLICE_BYTES, MOVE_SLICE_MESSAGES, SECOND_MS
from veilmq.store.named_queries import load
from veilmq.store.port import Metric, counter
from veilmq.store.postgres.database import IN_DOUBT, Mover
from veilmq.store.postgres.messages import AT_ONCE_MS, insert_fifo, key_of
from veilmq.store.postgres.node import Node
from veilmq.store.postgres.queues import STANDARD, Queue
from veilmq.store.postgres.transaction import PostgresTransaction, transact
from veilmq.store.transaction import read_settings

log = logging.getLogger(__name__)

OUTBOX = load("veilmq.store.postgres", "outbox.sql")
OUTBOX |= {f"fifo_{name}": OUTBOX[name].replace("mq.msg", "mq.fifo_msg") for name in ("first", "messages")}

CLAIM_MS = 10 * SECOND_MS
"""For how long nodes leave a batch to the one that has begun with it."""
PAUSE_MS = 2 * SECOND_MS
"""When it tries again what could not be done."""

_TOKEN_BYTES = 16
_FAILED = (*IN_DOUBT, asyncpg.PostgresError, VeilmqError)


class Outbox(NamedTuple):
    """A way from a queue to one elsewhere; ``source_id`` is 0 for a topic."""

    partition: int
    source_id: int
    source: str
    place: int
    target_id: int
    target: str
    fifo: bool

    def sql(self, name: str) -> str:
        """Return the statement of that name on its messages."""
        return OUTBOX[f"fifo_{name}" if self.fifo else name]


class Batch(NamedTuple):
    """Messages that go together: all of the row of each, as JSON has it, and how long it waits to be seen."""

    number: int
    token: bytes
    messages: list[dict[str, Any]]


class Arrived(NamedTuple):
    """``is_there`` unless the queue is gone; ``last_number`` is of another batch that has arrived."""

    is_there: bool
    last_number: int | None = None


async def due(connection: Any) -> list[Outbox]:
    """Return the outboxes that have something to be relayed."""
    rows = await connection.fetch(OUTBOX["due"])
    return [Outbox._make([*between, read_settings(settings).fifo]) for *between, settings in rows]


async def take(tx: PostgresTransaction, outbox: Outbox, done: Batch | None) -> Batch | None:
    """Delete what has arrived with ``done``, and return the batch that goes next, if any."""
    connection = tx.connection
    open_batch = await connection.fetchrow(OUTBOX["lock_outbox"], outbox.partition)
    if open_batch is None:
        return None
    number, token, seqs = open_batch
    if done is not None and (number, token) == (done.number, done.token) and seqs:
        await connection.execute(outbox.sql("depart"), outbox.partition, seqs)
        await connection.execute(OUTBOX["close_batch"], outbox.partition)
        seqs = []
    if not seqs:
        seqs, token = await _first(connection, outbox), urandom(_TOKEN_BYTES)
        if not seqs:
            return None
        number = await connection.fetchval(OUTBOX["open_batch"], outbox.partition, token, seqs, CLAIM_MS)
    return Batch(number, token, await _messages(connection, outbox, seqs))


async def _first(connection: Any, outbox: Outbox) -> list[int]:
    rows = await connection.fetch(outbox.sql("first"), outbox.partition, MOVE_SLICE_MESSAGES, MOVE_SLICE_BYTES)
    return [seq for (seq,) in rows]


async def _messages(connection: Any, outbox: Outbox, seqs: list[int]) -> list[dict[str, Any]]:
    rows = await connection.fetch(outbox.sql("messages"), outbox.partition, seqs)
    return [msgspec.json.decode(whole) for (whole,) in rows]


async def arrive(tx: PostgresTransaction, outbox: Outbox, from_place: int, batch: Batch) -> Arrived:
    """Store the messages of ``batch`` in its target, where they are not yet."""
    queue = await _end(tx, outbox.target, outbox.target_id)
    if queue is None:
        return Arrived(is_there=False)
    whence = queue.origin, from_place, outbox.partition
    if await tx.connection.fetchval(OUTBOX["note_arrival"], *whence, batch.number, batch.token) is None:
        number, token = await tx.connection.fetchrow(OUTBOX["arrived"], *whence)
        is_ours = (number, token) == (batch.number, batch.token)
        tx.notify(queue.name)  # what stored it may have ended before it did so
        return Arrived(is_there=True, last_number=None if is_ours else number)
    await _store(tx, queue, batch.messages)
    return Arrived(is_there=True)


async def _end(tx: PostgresTransaction, name: str, number: int) -> Queue | None:
    """Return the queue where a way begins or ends, which stays as it is in this transaction; ``None`` if it is gone."""
    queue = await tx.node.catalog.find(tx.connection, name, "share")
    return None if queue is None or queue.number != number else queue


async def _store(tx: PostgresTransaction, queue: Queue, messages: list[dict[str, Any]]) -> None:
    """Store messages in their order."""
    if not messages:
        return
    connection, counter, due_ms = tx.connection, tx.node.positions.take(len(messages) + 1), 0
    if queue.settings.fifo:
        rows = await insert_fifo(connection, queue, counter, *_fifo_columns(queue, messages))
        if any(each["first_received_at"] or each["source"] for each in messages):
            seqs, received = [row["seq"] for row in rows], msgspec.json.encode(messages).decode()
            await connection.execute(OUTBOX["fifo_received"], queue.partition, seqs, received)
    else:
        priorities = sorted({each["priority"] for each in messages})
        if await connection.execute(STANDARD["add_priorities"], queue.partition, priorities) == "UPDATE 1":
            tx.invalidate(queue)  # it has messages of another priority than ever before, or with groups
        arrived = msgspec.json.encode(messages).decode()
        rows = await connection.fetch(OUTBOX["arrive"], queue.partition, arrived, counter)
        due_ms = min(row["visible_at"] for row in rows)
    tx.notify(queue.name, due_ms)


def _fifo_columns(queue: Queue, messages: list[dict[str, Any]]) -> tuple[list[Any], ...]:
    """Return messages as they are sent anew. What was forwarded or published is remembered by its id."""
    groups, ids = [each["group_id"] for each in messages], [_bytes(each["id"]) for each in messages]
    return (
        groups,
        [
            None if each["source"] else key_of(group, str(UUID(bytes=of_message)), queue)
            for each, group, of_message in zip(messages, groups, ids, strict=True)
        ],
        ids,
        [_bytes(each["properties"]) for each in messages],
        [each["body"] for each in messages],
        [each["waits"] or AT_ONCE_MS for each in messages],
    )


def _bytes(text: str | None) -> Any:
    """Return what JSON of the database has as hex digits behind two characters."""
    return None if text is None else bytes.fromhex(text[2:])


async def give_back(tx: PostgresTransaction, outbox: Outbox) -> tuple[Queue | None, int]:
    """Return messages whose target is gone to the queue that they came from, to be received there once more.

    A slice of them: returns that queue, ``None`` when it is gone too and they are deleted; and how many there were.
    """
    if await tx.connection.fetchrow(OUTBOX["lock_outbox"], outbox.partition) is None:
        return None, 0
    await tx.connection.execute(OUTBOX["end_outbox"], outbox.partition)
    seqs = await _first(tx.connection, outbox)
    queue = await _end(tx, outbox.source, outbox.source_id)
    if queue is not None:
        # Without what the way to a dead-letter queue has changed: receives are those of the queue again.
        back = [
            {**each, "source": None, "receive_count": each["receives_before"], "receives_before": 0}
            for each in await _messages(tx.connection, outbox, seqs)
        ]
        await _store(tx, queue, back)
    await tx.connection.execute(outbox.sql("depart"), outbox.partition, seqs)
    return queue, len(seqs)


class Relay(Mover):
    """Relays what is in the outboxes of the database of ``node``."""

    def __init__(self, node: Node, place: int, *, directory: Any) -> None:
        """``directory`` is ``store.Shards``."""
        super().__init__(step=self._round, clock=node.clock, start=node.start, pause_ms_min=0)
        self._place = place
        self._node = node
        self._directory = directory
        self.relayed = 0
        self.failures = 0

    async def target(self, connection: Any, name: str, source: tuple[int, str]) -> Queue | None:
        """Return a queue elsewhere as its outbox stands for it, to which messages of ``source`` can be moved.

        ``source`` is number and name, 0 and the name for a topic. The outbox is made in the connection's transaction.
        While the other database cannot be reached, the queue is as it was last; raises ``StoreUnavailable`` if it was
        never met.
        """
        known = await connection.fetchrow(OUTBOX["known_outbox"], source[0], name)
        try:
            found: tuple[int, Queue] | None = await self._directory.find(name)
        except StoreUnavailable:
            if known is None:
                raise
            settings = read_settings(known["settings"])
            queue, partition = Queue(known["target_id"], name, settings, 0, 0, 0, 0), known["qp"]
        else:
            if found is None or found[0] == self._place:
                return None
            place, queue = found
            encoded = msgspec.json.encode(queue.settings)
            if known is not None and tuple(known)[1:] == (queue.number, place, encoded):
                partition = known["qp"]
            else:
                terms = *source, place, queue.number, queue.name, encoded
                partition = await connection.fetchval(OUTBOX["make_outbox"], *terms)
        self._node.database.calls[id(connection)] = self.schedule
        # Its number is one that no queue here has.
        return queue._replace(number=-partition, partition=partition, origin=partition, away=True)

    def metrics(self) -> list[Metric]:
        """Return what was relayed."""
        return [
            counter("store_outbox_relayed", "Messages relayed to other databases.", self.relayed),
            counter("store_outbox_failures", "Times that some could not be relayed.", self.failures),
        ]

    # The relay.

    async def _round(self) -> int | None:
        """Relay what is due, to all places at a time; return when to go on, where that is soon."""
        try:
            async with self._node.database.connection() as connection:
                outboxes = sorted(await due(connection), key=attrgetter("place"))
            ways = [self._relay_all(list(alike)) for _, alike in groupby(outboxes, key=attrgetter("place"))]
            are_free = all(await asyncio.gather(*ways))
        except _FAILED as error:
            self.failures += 1
            log.warning("the relay of database %s pauses: %s", self._place + 1, error)
            return PAUSE_MS
        return None if are_free else PAUSE_MS

    async def _relay_all(self, outboxes: Sequence[Outbox]) -> bool:
        """Relay all that goes to one place; where one cannot go, put the others off."""
        for number, outbox in enumerate(outboxes):
            try:
                await self._relay(outbox)
            except _FAILED as error:
                self.failures += 1
                log.warning("messages for %s wait in the outbox: %s", outbox.target, error)
                async with self._node.database.connection() as connection:
                    for left in outboxes[number:]:
                        await connection.execute(OUTBOX["put_off"], left.partition, PAUSE_MS)
                return False
        return True

    async def _relay(self, outbox: Outbox) -> None:
        done: Batch | None = None
        while (batch := await transact(self._node, partial(take, outbox=outbox, done=done))) is not None:
            arrived: Arrived = await self._directory.arrive(outbox, self._place, batch)
            if not arrived.is_there:
                while (back := await transact(self._node, partial(give_back, outbox=outbox)))[1]:
                    queue, messages = back
                    if queue is None:
                        text = "%s messages from %s to %s were deleted, because both queues are deleted"
                        log.warning(text, messages, outbox.source, outbox.target)
                    else:
                        text = "%s messages for %s, which is deleted, returned to %s"
                        log.warning(text, messages, outbox.target, queue.name)
                return
            if arrived.last_number is not None:
                terms = outbox.partition, arrived.last_number, batch.number, batch.token
                async with self._node.database.connection() as connection:
                    await connection.execute(OUTBOX["renumber"], *terms)
            else:
                self.relayed += len(batch.messages)
            done = batch
