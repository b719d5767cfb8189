"""The outbox: it moves messages from one database of a store to another, exactly once and in the order of groups.

An *outbox* is a partition of the message tables that stands for a queue in another database, for one local source.
Dead letters, move tasks, forwards and publications move messages there with the same statements, in the same
transaction, as to a local queue. Then a *relay* forwards them in three steps, each a transaction:

1. At the source: choose the messages of a batch; the batch gets the next number of its outbox, and a token.
2. At the target: store the messages and the batch's number, unless the number is stored already.
3. At the source: delete the messages of the batch (together with step 1 of the next batch).

After a failure, any node repeats the batch, and the target stores it once. If the target has the number with another
token, the source lost its counter (it was restored from a backup), and continues from the target's number. Message ids
cannot detect duplicates, because a message may return to a queue.
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

import msgspec

from veilmq.core.errors import QueueNotFound, StoreUnavailable, VeilmqError
from veilmq.core.limits import DEDUPLICATION_S, MOVE_SLICE_BYTES, MOVE_SLICE_MESSAGES, SECOND_MS
from veilmq.store.named_queries import load
from veilmq.store.port import Metric, counter
from veilmq.store.postgres.database import FAILURES, Worker
from veilmq.store.postgres.messages import key_of
from veilmq.store.postgres.node import Node
from veilmq.store.postgres.queues import STANDARD, Queue
from veilmq.store.postgres.transaction import PostgresTransaction, transact
from veilmq.store.transaction import read_settings

log = logging.getLogger(__name__)

OUTBOX = load("veilmq.store.postgres", "outbox.sql")
OUTBOX |= {f"fifo_{name}": OUTBOX[name].replace("mq.msg", "mq.fifo_msg") for name in ("next_seqs", "messages")}

CLAIM_MS = 10 * SECOND_MS
"""How long other nodes leave a batch to the node that opened it."""
PAUSE_MS = 2 * SECOND_MS
"""Pause after a failure."""

_TOKEN_BYTES = 16


class Outbox(NamedTuple):
    """The outbox from a queue or topic (``source_id`` 0) to a queue in the database ``place``."""

    partition: int
    source_id: int
    source: str
    place: int
    target_id: int
    target: str
    fifo: bool

    def sql(self, name: str) -> str:
        return OUTBOX[f"fifo_{name}" if self.fifo else name]


class Batch(NamedTuple):
    """Messages that are relayed together: the row of each as decoded JSON, and its remaining delay, ``waits``."""

    number: int
    token: bytes
    messages: list[dict[str, Any]]


async def due(connection: Any) -> list[Outbox]:
    """Return the outboxes with messages to relay."""
    rows = await connection.fetch(OUTBOX["due"])
    return [Outbox._make([*between, read_settings(settings).fifo]) for *between, settings in rows]


async def next_batch(tx: PostgresTransaction, outbox: Outbox, done: Batch | None) -> Batch | None:
    """Delete the messages of the relayed batch ``done``, and return the next batch, if any."""
    connection = tx.connection
    open_batch = await connection.fetchrow(OUTBOX["lock_outbox"], outbox.partition)
    if open_batch is None:
        return None
    number, token, seqs = open_batch
    if done is not None and (number, token) == (done.number, done.token) and seqs:
        await connection.execute(outbox.sql("delete_relayed"), outbox.partition, seqs)
        await connection.execute(OUTBOX["renumber"], outbox.partition, number, number, token)
        seqs = []
    if not seqs:
        seqs, token = await _first_seqs(connection, outbox), urandom(_TOKEN_BYTES)
        if not seqs:
            return None
        number = await connection.fetchval(OUTBOX["open_batch"], outbox.partition, token, seqs, CLAIM_MS)
    return Batch(number, token, await _messages(connection, outbox, seqs))


async def _first_seqs(connection: Any, outbox: Outbox) -> list[int]:
    rows = await connection.fetch(outbox.sql("next_seqs"), outbox.partition, MOVE_SLICE_MESSAGES, MOVE_SLICE_BYTES)
    return [seq for (seq,) in rows]


async def _messages(connection: Any, outbox: Outbox, seqs: list[int]) -> list[dict[str, Any]]:
    rows = await connection.fetch(outbox.sql("messages"), outbox.partition, seqs)
    return [msgspec.json.decode(whole) for (whole,) in rows]


async def store_batch(tx: PostgresTransaction, outbox: Outbox, from_place: int, batch: Batch) -> int | None:
    """Store the messages of ``batch`` in the target queue, unless they arrived before; raises ``QueueNotFound``.

    If the number was stored with another token, return the last number.
    """
    queue = await _lock_queue(tx, outbox.target, outbox.target_id)
    if queue is None:
        raise QueueNotFound(outbox.target)
    arrival_key = queue.origin, from_place, outbox.partition
    if await tx.connection.fetchval(OUTBOX["record_arrival"], *arrival_key, batch.number, batch.token) is None:
        number, token = await tx.connection.fetchrow(OUTBOX["last_arrival"], *arrival_key)
        tx.notify(queue.name)  # the node that stored it may have failed before the notification
        return None if (number, token) == (batch.number, batch.token) else int(number)
    await _store(tx, queue, batch.messages)
    return None


async def _lock_queue(tx: PostgresTransaction, name: str, number: int) -> Queue | None:
    """Look up the source or target queue and lock it against changes; ``None`` if it was deleted."""
    queue = await tx.node.catalog.look_up(tx.connection, name, "share")
    return None if queue is None or queue.number != number else queue


async def _store(tx: PostgresTransaction, queue: Queue, messages: list[dict[str, Any]]) -> None:
    if not messages:
        return
    connection, counter = tx.connection, tx.node.positions.take(len(messages) + 1)
    args = queue.partition, msgspec.json.encode(messages).decode()
    if queue.settings.fifo:  # forwarded and published messages are deduplicated by their id
        ids = [str(UUID(hex=each["id"].removeprefix("\\x"))) for each in messages]
        keys = [
            None if each["source"] else key_of(each["group_id"], own, queue)
            for each, own in zip(messages, ids, strict=True)
        ]
        rows = await connection.fetch(
            OUTBOX["fifo_store_batch"], *args, counter, queue.origin, DEDUPLICATION_S * SECOND_MS, keys
        )
        if any(each["first_received_at"] or each["source"] for each in messages):
            await connection.execute(OUTBOX["fifo_set_receives"], *args, [row["o_seq"] for row in rows])
        tx.notify(queue.name)
        return
    priorities = sorted({each["priority"] for each in messages})
    if await connection.execute(STANDARD["add_priorities"], queue.partition, priorities) == "UPDATE 1":
        tx.invalidate(queue)  # the first messages with this priority, or with groups
    rows = await connection.fetch(OUTBOX["store_batch"], *args, counter)
    tx.notify(queue.name, min(row["visible_at"] for row in rows))


async def return_messages(tx: PostgresTransaction, outbox: Outbox) -> int:
    """Return a slice of messages to their source queue, because the target was deleted; return their number.

    Without a source queue, they are deleted.
    """
    if await tx.connection.fetchrow(OUTBOX["lock_outbox"], outbox.partition) is None:
        return 0
    await tx.connection.execute(OUTBOX["end_outbox"], outbox.partition)
    seqs = await _first_seqs(tx.connection, outbox)
    queue = await _lock_queue(tx, outbox.source, outbox.source_id)
    if queue is not None:
        # Undo the move to a dead-letter queue.
        returned = [
            {**each, "source": None, "receive_count": each["receives_before"], "receives_before": 0}
            for each in await _messages(tx.connection, outbox, seqs)
        ]
        await _store(tx, queue, returned)
    await tx.connection.execute(outbox.sql("delete_relayed"), outbox.partition, seqs)
    if seqs:
        fate = "deleted, as both queues are" if queue is None else "returned, as that queue is deleted"
        text = "%s messages from %s to %s were %s"
        tx.after_commit.append(partial(log.warning, text, len(seqs), outbox.source, outbox.target, fate))
    return len(seqs)


class Relay(Worker):
    """Relays the messages in the outboxes of the node's database."""

    def __init__(self, node: Node, place: int, *, shards: Any) -> None:
        super().__init__(step=self._run, clock=node.clock, start=node.start, pause_ms_min=0)
        self._place = place
        self._node = node
        self._shards = shards  # store.Shards
        self.relayed = 0
        self.failures = 0

    async def target(self, connection: Any, name: str, source: tuple[int, str]) -> Queue | None:
        """Look up the target of a move, in its transaction; the queue may be in another database.

        ``source`` is number and name of the source queue; 0 and the name of a topic. The partition of a queue elsewhere
        is the outbox, created in the transaction. While its database is down, the last known settings are used; raises
        ``StoreUnavailable`` if there is no outbox yet.
        """
        if (here := await self._node.catalog.look_up(connection, name)) is not None:
            return here
        known_outbox = await connection.fetchrow(OUTBOX["known_outbox"], source[0], name)
        try:
            home = None if self._place else connection
            found: tuple[int, Queue] | None = await self._shards.find(name, home=home)
        except StoreUnavailable:
            if known_outbox is None:
                raise
            settings = read_settings(known_outbox["settings"])
            queue, partition = Queue(known_outbox["target_id"], name, settings, 0, 0, 0, 0), known_outbox["qp"]
        else:
            if found is None or found[0] == self._place:
                return None
            place, queue = found
            encoded = msgspec.json.encode(queue.settings)
            if known_outbox is not None and tuple(known_outbox)[1:] == (queue.number, place, encoded):
                partition = known_outbox["qp"]
            else:
                args = *source, place, queue.number, queue.name, encoded
                partition = await connection.fetchval(OUTBOX["make_outbox"], *args)
        self._node.database.release_callbacks[id(connection)] = self.schedule
        # No local queue has a negative number.
        return queue._replace(number=-partition, partition=partition, origin=partition, away=True)

    def metrics(self) -> list[Metric]:
        return [
            counter("store_outbox_relayed", "Messages relayed to other databases.", self.relayed),
            counter("store_outbox_failures", "Times that some could not be relayed.", self.failures),
        ]

    async def _run(self) -> int | None:
        """Relay all due messages, to all databases concurrently; return a pause after a failure."""
        async with self._node.database.connection() as connection:
            outboxes = sorted(await due(connection), key=attrgetter("place"))
        relays = [self._send_all(list(same_place)) for _, same_place in groupby(outboxes, key=attrgetter("place"))]
        return None if all(await asyncio.gather(*relays)) else PAUSE_MS

    async def _send_all(self, outboxes: Sequence[Outbox]) -> bool:
        """Relay all outboxes to one database; after a failure, postpone the rest and return False."""
        for number, outbox in enumerate(outboxes):
            try:
                await self._send(outbox)
            except (*FAILURES, VeilmqError) as error:
                self.failures += 1
                log.warning("messages for %s wait in the outbox: %s", outbox.target, error)
                async with self._node.database.connection() as connection:
                    for left in outboxes[number:]:
                        await connection.execute(OUTBOX["postpone"], left.partition, PAUSE_MS)
                return False
        return True

    async def _send(self, outbox: Outbox) -> None:
        done: Batch | None = None
        while (batch := await transact(self._node, partial(next_batch, outbox=outbox, done=done))) is not None:
            try:
                last_number: int | None = await self._shards.store_batch(outbox, self._place, batch)
            except QueueNotFound:
                while await transact(self._node, partial(return_messages, outbox=outbox)):
                    pass
                return
            if last_number is not None:
                args = outbox.partition, last_number, batch.number, batch.token
                async with self._node.database.connection() as connection:
                    await connection.execute(OUTBOX["renumber"], *args)
            else:
                self.relayed += len(batch.messages)
            done = batch
