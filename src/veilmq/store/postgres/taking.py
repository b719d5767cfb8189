"""What receives take: of standard queues what became visible first, of FIFO queues the messages of free groups.

Visibility rules: where a receive names no timeout, each message is hidden for that of its class. The class depends on
what the message says of itself, which is not read in SQL: the claim hides all for as long as a lease may be, and a
second statement of the same transaction hides each for its own time.

Dead letters, which were received as often as their queue allows, are not given out. In the transaction of the receive
they leave for the dead-letter queue, with the same id, body and properties and a position of their own there; so each
is in exactly one of the two, whenever a node or the database ends. Where the dead-letter queue cannot take them, they
are delivered once more.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from random import getrandbits
from typing import Any, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from veilmq.core import properties, redrive
from veilmq.core.errors import InternalError, StoreUnavailable
from veilmq.core.limits import DEAD_LETTER_BYTES_PER_RECEIVE, DEAD_LETTERS_PER_RECEIVE, SECOND_MS
from veilmq.core.routing import read_table
from veilmq.store.postgres.catalog import Catalog, Queue
from veilmq.store.postgres.coalescing import (
    COLLISIONS,
    COLLISIONS_MAX,
    FIFO,
    GENERATION_BITS,
    STANDARD,
    retention_ms,
    sql,
)
from veilmq.store.postgres.event_log import EventLog, logged, places_of
from veilmq.store.postgres.fair import FAIR, LANE, FairQueues
from veilmq.store.postgres.low_water import BEGINNING, LowWater
from veilmq.store.postgres.sends import Positions
from veilmq.store.postgres.watches import Watches

Take = Callable[[], Awaitable[list[Any]]]
"""Leases messages and returns their rows."""

_FAIR_LOGGED = logged(FAIR)
_LETTERS_MAX = 1_000  # numbers for the dead letters of one receive of a FIFO queue

_read_table = lru_cache(maxsize=256)(read_table)


class Terms(NamedTuple):
    """Of a receive that did not wait, ``requested_at_ms`` is 0; ``ruled`` where each message has its own timeout.

    No lease is longer than ``lease_ms_max`` from when it was asked for, 0 for any.

    Receives of FIFO queues share nothing, as two receivers must not have messages of one group: ``alone`` tells them
    apart, and ``attempt_id`` is theirs.
    """

    timeout_ms: int
    requested_at_ms: int
    lease_ms_max: int
    ruled: bool = False
    alone: int = 0
    attempt_id: str | None = None

    @property
    def requested(self) -> tuple[int | None, int | None]:
        """Return when the receive was asked for and the last instant of its lease; nothing of one that did not wait."""
        if not self.requested_at_ms:
            return None, None
        last_ms = self.requested_at_ms + self.lease_ms_max if self.lease_ms_max else None
        return self.requested_at_ms, last_ms

    @property
    def bound_ms(self) -> int | None:
        """Return how long a lease may be; ``None`` for any time."""
        return self.lease_ms_max or None


async def take_by_class(connection: Any, queue: Queue, take: Take, bound_ms: int | None) -> list[Any]:
    """Return the rows of what ``take`` leases, hidden for the timeout of each message's class."""
    async with connection.transaction():
        return await hide_by_class(connection, queue, await take(), bound_ms)


async def hide_by_class(connection: Any, queue: Queue, rows: list[Any], bound_ms: int | None) -> list[Any]:
    """Hide messages that were leased in this transaction; return their rows with the deadlines that hold.

    None is later than ``bound_ms`` from when the message was asked for, if that is given.
    """
    if not rows:
        return rows
    table = _read_table(queue.settings.visibility_rules)
    timeouts_ms = [table.timeout_s(row["properties"] or b"", row["receive_count"] - 1) * SECOND_MS for row in rows]
    hidden = await connection.fetch(
        sql(queue)["hide"],
        queue.partition,
        [row["seq"] for row in rows],
        timeouts_ms,
        bound_ms,
        retention_ms(queue),
    )
    until_ms = dict(hidden)
    return [{**row, "visible_at": until_ms[row["seq"]]} for row in rows]


class DeadLetterSink:
    """Where the dead letters of one receive go."""

    def __init__(self, *, source: Queue, target: Queue, watches: Watches, positions: Positions) -> None:
        """``target`` is the dead-letter queue of ``source``; ``watches`` hears when something has come there."""
        self._positions = positions
        self._source = source
        self._target = target
        self._watches = watches
        self._left = DEAD_LETTERS_PER_RECEIVE
        self._bytes_left = DEAD_LETTER_BYTES_PER_RECEIVE

    @property
    def is_over(self) -> bool:
        """Whether no more may be moved in this receive."""
        return self._left <= 0 or self._bytes_left <= 0

    async def living(self, connection: Any, rows: list[Any]) -> list[Any]:
        """Return those of ``rows``, just received, that are given out; move the others."""
        receives_max = self._source.settings.receives_max
        dead = [row for row in rows if row["receive_count"] > receives_max]
        if not dead:
            return rows
        moved = await connection.fetch(
            STANDARD["move_dead"],
            self._source.partition,
            self._target.partition,
            [row["seq"] for row in dead],
            self._positions.take(len(dead) + 1),
            self._source.name,
        )
        if not moved:
            return rows
        await connection.execute(
            STANDARD["add_priorities"], self._target.partition, sorted({row["priority"] for row in moved})
        )
        self._left -= len(dead)
        self._bytes_left -= sum(len(row["body"]) + len(row["properties"] or b"") for row in dead)
        self._watches.wake(self._target.name, dead[0]["now"])
        return [row for row in rows if row["receive_count"] <= receives_max]


async def target_of(connection: Any, catalog: Catalog, queue: Queue) -> Queue | None:
    """Return the queue that takes the dead letters of ``queue`` as things are now, if one does."""
    settings = queue.settings
    if not settings.receives_max:
        return None
    try:
        target = await catalog.target(connection, settings.dead_letter_queue, (queue.number, queue.name))
    except StoreUnavailable:  # of the other database: this one has time
        return None
    if target is None or redrive.refusal(queue.name, settings, target.name, target.settings) is not None:
        return None
    return target


class _Asked(NamedTuple):
    """What is asked of a claim; ``receives_max`` makes a message dead, and ``taken`` are positions that it leaves.

    Of a queue with groups, ``noisy`` are those that have to wait.
    """

    terms: Terms
    shares: Sequence[int]
    receives_max: int | None = None
    taken: tuple[int, ...] = ()
    noisy: list[int] | None = None


class StandardTaking:
    """Leases messages; those that are dead leave in the same transaction."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        watches: Watches,
        low_water: LowWater,
        positions: Positions,
        log: EventLog,
        fair: FairQueues,
    ) -> None:
        """``watches`` hears of dead letters, which get some of the ``positions``; ``low_water`` knows where to look.

        ``log`` hears of receipts that have ended; ``fair`` knows which groups have to wait.
        """
        self._fair = fair
        self._log = log
        self._positions = positions
        self._low_water = low_water
        self._catalog = catalog
        self._watches = watches

    async def take(self, connection: Any, queue: Queue, count: int, terms: Terms, shares: Sequence[int]) -> list[Any]:
        """Return the rows of up to ``count`` messages, leased, of which each receive gets its share, in order."""
        if not queue.settings.receives_max:
            return await self._claim(connection, queue, count, _Asked(terms, shares))
        for _ in range(COLLISIONS_MAX):
            try:
                async with connection.transaction():
                    return await self._take_living(connection, queue, count, terms, shares)
            except COLLISIONS:  # a dead letter would have had the position that another node has just given
                continue
        raise InternalError

    async def _take_living(
        self, connection: Any, queue: Queue, count: int, terms: Terms, shares: Sequence[int]
    ) -> list[Any]:
        target = await target_of(connection, self._catalog, queue)
        if target is None:
            return await self._claim(connection, queue, count, _Asked(terms, shares))
        sink = DeadLetterSink(source=queue, target=target, watches=self._watches, positions=self._positions)
        taken: list[Any] = []
        claims = 0
        while (left := count - len(taken)) > 0 and not sink.is_over:
            asked = _Asked(terms, shares, queue.settings.receives_max, tuple(row["seq"] for row in taken))
            rows = await self._claim(connection, queue, left, asked)
            living = await sink.living(connection, rows)
            self._log.check_moved(queue, living)
            taken += living
            claims += bool(living)
            if len(rows) < left:
                break
        if claims > 1:
            await self._log.place(connection, queue, taken, shares)
        return taken

    async def _claim(self, connection: Any, queue: Queue, count: int, asked: _Asked) -> list[Any]:
        """Lease up to ``count`` messages."""
        if self._fair.has(queue):
            return await self._claim_fairly(connection, queue, count, asked)
        behind = self._low_water.of(queue.partition)
        rows = await self._lease(connection, queue, count, asked, behind)
        if not rows and (beginning := self._low_water.instead(queue.partition)) is not None:
            rows = await self._lease(connection, queue, count, asked, beginning)
        if any(row["priority"] > LANE for row in rows):
            self._fair.meet(queue)
        self._low_water.found(queue.partition, [row for row in rows if row["priority"] < LANE])
        return sorted(rows, key=itemgetter("priority", "was_visible_at", "seq"))

    async def _claim_fairly(self, connection: Any, queue: Queue, count: int, asked: _Asked) -> list[Any]:
        """Do so in a queue with groups: quiet ones first."""
        noisy = await self._fair.noisy(connection, queue)
        rows = await self._lease(connection, queue, count, asked._replace(noisy=noisy), BEGINNING)
        self._fair.drained(queue, rows)
        return sorted(rows, key=itemgetter("place"))

    async def _lease(self, connection: Any, queue: Queue, count: int, asked: _Asked, behind: list[int]) -> list[Any]:
        statements = self._log.sql(queue)
        if asked.noisy is not None:
            statements = _FAIR_LOGGED if self._log.has(queue) else FAIR
        of_log: tuple[Any, ...] = ()
        if self._log.has(queue):
            of_log = (asked.receives_max, *places_of(asked.shares), *self._log.terms(queue))
        rows: list[Any] = await connection.fetch(
            statements["receive"],
            queue.partition,
            count,
            asked.terms.timeout_ms,
            getrandbits(GENERATION_BITS),
            behind,
            retention_ms(queue),
            *asked.terms.requested,
            asked.taken or None,
            *([] if asked.noisy is None else [asked.noisy]),
            *of_log,
        )
        return rows


class FifoTaking:
    """Leases messages; those that are dead leave in the same statement."""

    def __init__(self, *, catalog: Catalog, watches: Watches, positions: Positions, log: EventLog) -> None:
        """``watches`` hears of dead letters, which get some of the node's ``positions``; ``log`` of ended receipts."""
        self._log = log
        self._positions = positions
        self._catalog = catalog
        self._watches = watches

    async def take(self, connection: Any, queue: Queue, count: int, terms: Terms, shares: Sequence[int]) -> list[Any]:
        """Return the rows of up to ``count`` messages, leased: groups as they came up, each in order.

        There is one share: no two receives go together.
        """
        target = await target_of(connection, self._catalog, queue)
        rows = await self._claim(connection, queue, count, terms, target)
        if target is not None and any(row["seq"] is None for row in rows):
            self._watches.wake(target.name, rows[0]["now"])
        return sorted((row for row in rows if row["seq"] is not None), key=itemgetter("turn", "seq"))

    async def _claim(self, connection: Any, queue: Queue, count: int, terms: Terms, target: Queue | None) -> list[Any]:
        """Lease; begin again where a dead letter would have had the position that another node has just given."""
        for _ in range(COLLISIONS_MAX):
            try:
                async with connection.transaction():
                    rows: list[Any] = await connection.fetch(
                        FIFO["receive"],
                        queue.partition,
                        count,
                        terms.timeout_ms,
                        getrandbits(GENERATION_BITS),
                        retention_ms(queue),
                        *terms.requested,
                        queue.settings.receives_max,
                        None if target is None else target.partition,
                        queue.name,
                        0 if target is None else self._positions.take(_LETTERS_MAX),
                        *self._log.terms(queue),
                    )
                return rows
            except COLLISIONS:
                continue
        raise InternalError


def properties_of(queue: Queue, row: Any) -> bytes:
    """Return the properties of a message as its receiver sees them."""
    return told_apart(row) if queue.settings.fifo and row["source"] else row["properties"] or b""


def told_apart(row: Any) -> bytes:
    """Return the properties of a dead letter with its id in place of the deduplication id that its sender gave.

    SQS Developer Guide, "Using dead-letter queues": two messages that shared a deduplication id are told apart.
    """
    sent = properties.decode(row["properties"] or b"")
    return properties.encode(replace(sent, dedup_id=str(UUID(bytes=row["id"]))))
