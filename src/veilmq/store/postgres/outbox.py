"""What travels from one database of a store to another: exactly once, and in the order of its groups.

For each pair of a queue here and a queue elsewhere there is a *transit*: a partition of the tables of messages, which
stands for the other queue. Whoever moves messages (dead letters, move tasks, forwards, publications) does so as if the
queue was here, by the same statements in the same transaction; that is what makes the message's way durable. Then a
*carrier* takes it on, in three steps, each a transaction:

1. At the source: the messages of a batch are decided, and it gets the next number of its transit, and a token.
2. At the target: the batch's number is noted beside the messages, unless it was before.
3. At the source: the messages of the batch are deleted (together with step 1 of the next one).

Whatever ends between two of them is done again by whoever comes next: the batch is the same, and what has arrived is
not stored twice. A number that has arrived with another token is of a database that has forgotten what it sent; it
counts on from there. Ids of messages would not do: a message may come back to a queue that it was in before.
"""

import asyncio
import logging
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from os import urandom
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import msgspec

from veilmq.core.errors import StoreUnavailable, VeilmqError
from veilmq.core.limits import DEDUPLICATION_S, SECOND_MS
from veilmq.core.ports import Clock, Timer
from veilmq.core.redrive import SLICE_BYTES, SLICE_MESSAGES
from veilmq.core.settings import QueueSettings
from veilmq.store.named_queries import load
from veilmq.store.postgres.database import IN_DOUBT
from veilmq.store.postgres.messages import key_of
from veilmq.store.postgres.node import Node, Positions, Start
from veilmq.store.postgres.queues import COLLISIONS, COLLISIONS_MAX, STANDARD, Queue, queue_of

log = logging.getLogger(__name__)

OUTBOX = load("veilmq.store.postgres", "outbox.sql")


class Placed(NamedTuple):
    """A queue of the database at ``place``."""

    place: int
    queue: Queue


def _as_away(partition: int, queue: Queue) -> Queue:
    """Return ``queue`` with a number that no queue here has."""
    return queue._replace(number=-partition, partition=partition, origin=partition, away=True)


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


class Arrived(NamedTuple):
    """``queue`` is where the batch came to, visible from ``due_ms`` on; ``None`` where the queue is gone.

    ``last_number`` is of another batch that has arrived. A queue ``is_changed`` that has messages of another priority
    than ever before, or with groups.
    """

    queue: Queue | None
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

    Raises what is among ``COLLISIONS`` when it is to be repeated.
    """
    row = await connection.fetchrow(OUTBOX["lock_end"], transit.target)
    if row is None or row["queue_id"] != transit.target_id:
        return Arrived(None)
    queue = queue_of(row)
    whence = queue.origin, from_place, transit.partition
    if await connection.fetchval(OUTBOX["note_arrival"], *whence, batch.number, batch.token) is None:
        number, token = await connection.fetchrow(OUTBOX["arrived"], *whence)
        is_ours = (number, token) == (batch.number, batch.token)
        return Arrived(queue, last_number=None if is_ours else number)
    due_ms, is_changed = await _store(connection, queue, batch.messages, positions)
    return Arrived(queue, due_ms, is_changed=is_changed)


async def _store(connection: Any, queue: Queue, messages: list[Carried], positions: Positions) -> tuple[int, bool]:
    """Store messages in their order; return when there is one, 0 in FIFO queues and for none, and if that is new."""
    if not messages:
        return 0, False
    counter = positions.take(len(messages) + 1)
    come = f"[{','.join(each.whole for each in messages)}]"
    if queue.settings.fifo:
        # What was forwarded or published is remembered by its id, a dead letter is not.
        keys = [None if each.source else key_of(each.group or "", str(UUID(bytes=each.id)), queue) for each in messages]
        terms = queue.partition, queue.origin, come, keys, DEDUPLICATION_S * SECOND_MS, counter
        await connection.execute(OUTBOX["fifo_arrive"], *terms)
        return 0, False
    priorities = sorted({each.priority for each in messages})
    status = await connection.execute(STANDARD["add_priorities"], queue.partition, priorities)
    rows = await connection.fetch(OUTBOX["arrive"], queue.partition, come, counter)
    return min(int(row["visible_at"]) for row in rows), status == "UPDATE 1"


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
    row = await connection.fetchrow(OUTBOX["lock_end"], transit.source)
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


LOOK_MS = 10 * SECOND_MS
"""How often a node looks that has put nothing there."""
PAUSE_MS = 2 * SECOND_MS
"""When it tries again what could not be done."""

_FAILED = (*IN_DOUBT, asyncpg.PostgresError, VeilmqError)


class Carrier:
    """Carries what is in the outbox of the database at ``place``; what its node knows of queues elsewhere."""

    def __init__(self, place: int, *, node: Node, directory: Any, clock: Clock, start: Start) -> None:
        """``directory`` is ``cluster.Directory``; ``start`` makes a task of the store."""
        self._place = place
        self._database = node.database
        self._positions = node.positions
        self._directory = directory
        self._clock = clock
        self._start = start
        self._timer: Timer | None = None
        self._is_out = False
        self._again = False
        self._is_tidy = False
        self._stopped = False
        self.carried = 0
        """How many messages have arrived."""
        self.failures = 0
        """How often one way or the other was not free."""

    # Queues elsewhere, as ``queues.Catalog`` needs them.

    async def settings(self, name: str) -> QueueSettings | None:
        """Return the settings of a queue elsewhere; ``None`` when there is none; raises ``StoreUnavailable``."""
        found: Placed | None = await self._directory.find(name)
        return None if found is None else found.queue.settings

    async def has_sources(self, name: str) -> bool:
        """Tell whether any queue's dead-letter queue it is; raises ``StoreUnavailable``."""
        return bool(await self._directory.has_sources(name))

    async def target(self, connection: Any, name: str, source: tuple[int, str]) -> Queue | None:
        """Return a queue elsewhere as its transit stands for it, to which messages of ``source`` can be moved.

        ``source`` is number and name, 0 and the name for a topic. The transit is made in the connection's transaction.
        While the other database cannot be reached, the queue is as it was last; raises ``StoreUnavailable`` if it was
        never met.
        """
        try:
            found: Placed | None = await self._directory.find(name)
        except StoreUnavailable:
            return await self._last_known(connection, name, source)
        if found is None or found.place == self._place:
            return None
        queue = found.queue
        partition = await self._partition(connection, found, source)
        self._database.afterwards(connection, self.look)
        return _as_away(partition, queue)

    async def _partition(self, connection: Any, found: Placed, source: tuple[int, str]) -> int:
        queue = found.queue
        settings = msgspec.json.encode(queue.settings)
        row = await connection.fetchrow(OUTBOX["find_transit"], source[0], found.place, queue.number)
        if row is not None and row["settings"] == settings:
            return int(row["qp"])
        made = await connection.fetchval(
            OUTBOX["make_transit"], *source, found.place, queue.number, queue.name, settings
        )
        return int(made)

    async def _last_known(self, connection: Any, name: str, source: tuple[int, str]) -> Queue:
        row = await connection.fetchrow(OUTBOX["known_transit"], source[0], name)
        if row is None:
            raise StoreUnavailable
        settings = msgspec.json.decode(row["settings"], type=QueueSettings)
        self._database.afterwards(connection, self.look)
        return _as_away(row["qp"], Queue(row["target_id"], name, settings, 0, 0, 0, 0))

    # What carries.

    def look(self) -> None:
        """Carry what is there now; what comes while the carrier is out goes in its next round."""
        if self._stopped:
            return
        if self._is_out:
            self._again = True
            return
        self._is_out = True
        self._start(self._work())

    def look_later(self, after_ms: int = LOOK_MS) -> None:
        """Do so in a while."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._stopped:
            self._timer = self._clock.call_at(self._clock.now_ms() + after_ms, self._look_by_itself)

    def _look_by_itself(self) -> None:
        self._is_tidy = False
        self.look()

    def stop(self) -> None:
        """Carry no more than what is under way."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    async def _work(self) -> None:
        self._again = True
        after_ms = LOOK_MS
        try:
            while self._again and not self._stopped:
                self._again = False
                if not await self._round():
                    after_ms = PAUSE_MS
            await self._tidy()
        except _FAILED as error:
            self.failures += 1
            log.warning("the outbox of database %s rests for a while: %s", self._place + 1, error)
            after_ms = PAUSE_MS
        self._is_out = False
        self.look_later(after_ms)
        if self._again and after_ms == LOOK_MS:
            self.look()

    async def _tidy(self) -> None:
        if not self._is_tidy:
            self._is_tidy = True
            async with self._database.connection() as connection:
                await forget_ended(connection)

    async def _round(self) -> bool:
        """Carry what is due, to all places at a time; tell whether all of it could be carried."""
        async with self._database.connection() as connection:
            transits = sorted(await due(connection), key=attrgetter("place"))
        ways = [self._carry_all(list(alike)) for _, alike in groupby(transits, key=attrgetter("place"))]
        return all(await asyncio.gather(*ways))

    async def _carry_all(self, transits: Sequence[Transit]) -> bool:
        """Carry all that goes to one place; where one cannot go, put the others off."""
        for number, transit in enumerate(transits):
            try:
                await self._carry(transit)
            except _FAILED as error:
                self.failures += 1
                log.warning("messages for %s wait in the outbox: %s", transit.target, error)
                async with self._database.connection() as connection:
                    for left in transits[number:]:
                        await connection.execute(OUTBOX["put_off"], left.partition, PAUSE_MS)
                return False
        return True

    async def _carry(self, transit: Transit) -> None:
        batch = await self._take(transit, None)
        while batch is not None:
            arrived: Arrived = await self._directory.arrive(transit, self._place, batch)
            if arrived.queue is None:
                await self._give_back(transit)
                return
            if arrived.last_number is not None:
                async with self._database.connection() as connection:
                    await connection.execute(
                        OUTBOX["renumber"], transit.partition, arrived.last_number, batch.number, batch.token
                    )
            else:
                self.carried += len(batch.messages)
            batch = await self._take(transit, batch)

    async def _take(self, transit: Transit, done: Batch | None) -> Batch | None:
        async with self._database.connection() as connection, connection.transaction():
            return await take(connection, transit, done)

    async def _give_back(self, transit: Transit) -> None:
        for _ in range(COLLISIONS_MAX):
            try:
                while await self._give_back_some(transit):
                    pass
                return
            except COLLISIONS:
                self._positions.jump()
        raise StoreUnavailable

    async def _give_back_some(self, transit: Transit) -> bool:
        async with self._database.connection() as connection, connection.transaction():
            queue, messages = await give_back(connection, transit, self._positions)
        if messages and queue is None:
            log.warning(
                "%s messages on their way from %s to %s are deleted, as both are gone",
                messages,
                transit.source,
                transit.target,
            )
        if messages and queue is not None:
            log.warning("%s messages for %s, which is gone, are in %s again", messages, transit.target, queue.name)
            await self._directory.wake(self._place, queue)
        return bool(messages)
