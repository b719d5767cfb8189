"""Receives: those that travel together are served by as few claims as their terms allow.

Of standard queues they take what became visible first, of FIFO queues the messages of free groups.

Visibility rules: where a receive names no timeout, each message is hidden for that of its class. The class depends on
what the message says of itself, which is not read in SQL: the claim hides all for as long as a lease may be, and a
second statement of the same transaction hides each for its own time.

Dead letters, which were received as often as their queue allows, are not given out. In the transaction of the receive
they leave for the dead-letter queue; so each is in exactly one of the two, whenever a node or the database ends. Where
the dead-letter queue cannot take them, they are delivered once more.

A receive of a FIFO queue with an attempt id can be repeated, because its answer may have been lost. The same id gives
the same messages with the same receipts again, hidden anew from now on and without another receive counted, as long as
every one of them is as it was left (SQS API Reference, the receive's attempt id). Else the attempt is void, and the
receive an ordinary one, which is remembered in its place.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from random import getrandbits
from typing import Any, NamedTuple
from uuid import UUID

from asyncpg import QueryCanceledError
from msgspec.structs import replace

from veilmq.core import properties, redrive
from veilmq.core.commands import Receive
from veilmq.core.errors import InternalError, ReceivesThrottled, StoreUnavailable, VeilmqError
from veilmq.core.limits import (
    ATTEMPT_S,
    DEAD_LETTER_BYTES_PER_RECEIVE,
    DEAD_LETTERS_PER_RECEIVE,
    LEASE_S_MAX,
    PRIORITY,
    SECOND_MS,
)
from veilmq.core.results import Received, ReceivedMessage
from veilmq.core.routing import read_table
from veilmq.store.postgres.database import failure_of
from veilmq.store.postgres.node import FAIR, LANE, Node
from veilmq.store.postgres.queues import (
    BEGINNING,
    COLLISIONS,
    COLLISIONS_MAX,
    FIFO,
    GENERATION_BITS,
    STANDARD,
    Catalog,
    Queue,
    logged,
    next_visible_ms,
    places_of,
    retention_ms,
    sql,
)

Take = Callable[[], Awaitable[list[Any]]]
"""Leases messages and returns their rows."""

_FAIR_LOGGED = logged(FAIR)
_LETTERS_MAX = 1_000  # numbers for the dead letters of one receive of a FIFO queue

_read_table = lru_cache(maxsize=256)(read_table)


class _Terms(NamedTuple):
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


async def _take_by_class(connection: Any, queue: Queue, take: Take, bound_ms: int | None) -> list[Any]:
    """Return the rows of what ``take`` leases, hidden for the timeout of each message's class."""
    async with connection.transaction():
        return await _hide_by_class(connection, queue, await take(), bound_ms)


async def _hide_by_class(connection: Any, queue: Queue, rows: list[Any], bound_ms: int | None) -> list[Any]:
    """Hide messages that were leased in this transaction; return their rows with the deadlines that hold.

    None is later than ``bound_ms`` from when the message was asked for, if that is given.
    """
    if not rows:
        return rows
    table = _read_table(queue.settings.visibility_rules)
    timeouts_ms = [table.timeout_s(row["properties"] or b"", row["receive_count"] - 1) * SECOND_MS for row in rows]
    hidden = await connection.fetch(
        sql(queue)["hide"], queue.partition, [row["seq"] for row in rows], timeouts_ms, bound_ms, retention_ms(queue)
    )
    until_ms = dict(hidden)
    return [{**row, "visible_at": until_ms[row["seq"]]} for row in rows]


class _DeadLetterSink:
    """Where the dead letters of one receive go."""

    def __init__(self, node: Node, source: Queue, target: Queue) -> None:
        self._node = node
        self._source = source
        self._target = target
        self._left = DEAD_LETTERS_PER_RECEIVE
        self._bytes_left = DEAD_LETTER_BYTES_PER_RECEIVE

    @property
    def is_over(self) -> bool:
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
            self._node.positions.take(len(dead) + 1),
            self._source.name,
        )
        if not moved:
            return rows
        await connection.execute(
            STANDARD["add_priorities"], self._target.partition, sorted({row["priority"] for row in moved})
        )
        self._left -= len(dead)
        self._bytes_left -= sum(len(row["body"]) + len(row["properties"] or b"") for row in dead)
        self._node.watches.wake(self._target.name, dead[0]["now"])
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

    terms: _Terms
    shares: Sequence[int]
    receives_max: int | None = None
    taken: tuple[int, ...] = ()
    noisy: list[int] | None = None


def properties_of(queue: Queue, row: Any) -> bytes:
    """Return the properties of a message as its receiver sees them."""
    return _told_apart(row) if queue.settings.fifo and row["source"] else row["properties"] or b""


def _told_apart(row: Any) -> bytes:
    """Return the properties of a dead letter with its id in place of the deduplication id that its sender gave.

    SQS Developer Guide, "Using dead-letter queues": two messages that shared a deduplication id are told apart.
    """
    sent = properties.decode(row["properties"] or b"")
    return properties.encode(replace(sent, dedup_id=str(UUID(bytes=row["id"]))))


_ALONE = (VeilmqError, QueryCanceledError, *COLLISIONS)
"""What ends one claim, of several on a connection: what those before it have leased is given to who asked for it."""


_KEY_BYTES = 16


class Receives:
    """The command ``Receive``."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def receive(self, together: Sequence[Receive]) -> list[Any]:
        """Lease what is visible, up to the number that each asks for."""
        return await self._node.on_queue(self._receive, together, relaxed=True)

    async def _receive(self, connection: Any, queue: Queue, together: Sequence[Receive]) -> list[Any]:
        too_many = await _refused(connection, queue, together)
        served = [command for place, command in enumerate(together) if place not in too_many] if too_many else together
        received = iter(await self._served(connection, queue, served))
        return [
            ReceivesThrottled(queue.settings.receives_per_s_max) if place in too_many else next(received)
            for place in range(len(together))
        ]

    async def _served(self, connection: Any, queue: Queue, together: Sequence[Receive]) -> list[Any]:
        wanted = sum(command.count for command in together)
        places, place_due_ms = await self._node.in_flight.places(connection, queue, wanted)
        given: dict[int, list[ReceivedMessage]] = {}
        now_ms: int | None = None
        failed: VeilmqError | None = None
        asking = sorted(
            (_terms(command, queue, place), place) for place, command in enumerate(together) if command.count
        )
        for terms, alike in groupby(asking, key=itemgetter(0)):
            group = [place for _, place in alike]
            shares = [together[at].count for at in group]
            count = min(places, sum(shares))
            try:
                rows = await self._take(connection, queue, count, terms, shares) if count or terms.attempt_id else []
            except _ALONE as error:
                if not any(given.values()):
                    raise
                failed = failure_of(error, "Receive")
                break
            new = [row for row in rows if "issued_visible_at" not in row]  # a repeated attempt has its places
            self._node.totals.received[queue.number] += len(new)
            self._node.totals.redelivered[queue.number] += sum(row["receive_count"] > 1 for row in new)
            places -= len(new)
            self._node.fair.received(queue, rows)
            self._node.in_flight.given(queue, sum(row["visible_at"] > row["now"] for row in new))
            for at in group:
                # An attempt is repeated as a whole, whatever count its repetition names; nothing else is in its group.
                share = together[at].count if terms.attempt_id is None else len(rows)
                given[at] = [self._message(queue, row) for row in rows[:share]]
                now_ms = rows[0]["now"] if rows else now_ms
                rows = rows[share:]
        due_ms = now_ms
        if due_ms is None:
            due_ms = await self._next_visible_ms(connection, queue) if place_due_ms is None else place_due_ms
        over_limit = place_due_ms is not None and not queue.settings.fifo
        return [
            _received(given.get(at, []), due_ms, queue, over_limit) if failed is None or at in given else failed
            for at in range(len(together))
        ]

    async def _take(self, connection: Any, queue: Queue, count: int, terms: _Terms, shares: list[int]) -> list[Any]:
        taking = self._take_fifo if queue.settings.fifo else self._take_standard
        take: Take = partial(taking, connection, queue, count, terms, shares)
        if terms.ruled:
            take = partial(_take_by_class, connection, queue, take, terms.bound_ms)
        with self._node.watches.held():  # dead letters leave in a transaction
            if terms.attempt_id is None:
                return await take()
            return await _repeat_or_take(connection, queue, terms.attempt_id, terms, take)

    async def _next_visible_ms(self, connection: Any, queue: Queue) -> int | None:
        if self._node.fair.has(queue):  # which goes by turns, not by marks
            return await next_visible_ms(connection, queue)
        return await next_visible_ms(connection, queue, *self._node.low_water.known(queue.partition))

    def _message(self, queue: Queue, row: Any) -> ReceivedMessage:
        says_ms = row.get("issued_visible_at", row["visible_at"])
        receipt = self._node.book.issue(queue.number, row["seq"], row["generation"], row["epoch"], says_ms)
        is_fifo = queue.settings.fifo
        return ReceivedMessage(
            id=row["id"],
            receipt=receipt,
            body=row["body"],
            properties=properties_of(queue, row),
            sent_at_ms=row["sent_at"],
            first_received_at_ms=row["first_received_at"],
            receive_count=row["receive_count"] + row["receives_before"],
            visible_at_ms=row["visible_at"],
            priority=PRIORITY.default if is_fifo else row["priority"] % LANE,
            sequence=row["seq"] if is_fifo else None,
            source=row["source"],
        )

    # Standard queues: what is dead leaves in the same transaction.

    async def _take_standard(
        self, connection: Any, queue: Queue, count: int, terms: _Terms, shares: Sequence[int]
    ) -> list[Any]:
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
        self, connection: Any, queue: Queue, count: int, terms: _Terms, shares: Sequence[int]
    ) -> list[Any]:
        target = await target_of(connection, self._node.catalog, queue)
        if target is None:
            return await self._claim(connection, queue, count, _Asked(terms, shares))
        sink = _DeadLetterSink(self._node, queue, target)
        taken: list[Any] = []
        claims = 0
        while (left := count - len(taken)) > 0 and not sink.is_over:
            asked = _Asked(terms, shares, queue.settings.receives_max, tuple(row["seq"] for row in taken))
            rows = await self._claim(connection, queue, left, asked)
            living = await sink.living(connection, rows)
            self._node.log.check_moved(queue, living)
            taken += living
            claims += bool(living)
            if len(rows) < left:
                break
        if claims > 1:
            await self._node.log.place(connection, queue, taken, shares)
        return taken

    async def _claim(self, connection: Any, queue: Queue, count: int, asked: _Asked) -> list[Any]:
        """Lease up to ``count`` messages."""
        if self._node.fair.has(queue):
            return await self._claim_fairly(connection, queue, count, asked)
        behind = self._node.low_water.of(queue.partition)
        rows = await self._lease(connection, queue, count, asked, behind)
        if not rows and (beginning := self._node.low_water.instead(queue.partition)) is not None:
            rows = await self._lease(connection, queue, count, asked, beginning)
        if any(row["priority"] > LANE for row in rows):
            self._node.fair.meet(queue)
        self._node.low_water.found(queue.partition, [row for row in rows if row["priority"] < LANE])
        return sorted(rows, key=itemgetter("priority", "was_visible_at", "seq"))

    async def _claim_fairly(self, connection: Any, queue: Queue, count: int, asked: _Asked) -> list[Any]:
        """Do so in a queue with groups: quiet ones first."""
        noisy = await self._node.fair.noisy(connection, queue)
        rows = await self._lease(connection, queue, count, asked._replace(noisy=noisy), BEGINNING)
        self._node.fair.drained(queue, rows)
        return sorted(rows, key=itemgetter("place"))

    async def _lease(self, connection: Any, queue: Queue, count: int, asked: _Asked, behind: list[int]) -> list[Any]:
        statements = self._node.log.sql(queue)
        if asked.noisy is not None:
            statements = _FAIR_LOGGED if self._node.log.has(queue) else FAIR
        of_log: tuple[Any, ...] = ()
        if self._node.log.has(queue):
            of_log = (asked.receives_max, *places_of(asked.shares), *self._node.log.terms(queue))
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

    # FIFO queues: what is dead leaves in the same statement.

    async def _take_fifo(
        self, connection: Any, queue: Queue, count: int, terms: _Terms, shares: Sequence[int]
    ) -> list[Any]:
        """Return the rows of up to ``count`` messages, leased: groups as they came up, each in order.

        There is one share: no two receives go together.
        """
        target = await target_of(connection, self._node.catalog, queue)
        rows = await self._claim_fifo(connection, queue, count, terms, target)
        if target is not None and any(row["seq"] is None for row in rows):
            self._node.watches.wake(target.name, rows[0]["now"])
        return sorted((row for row in rows if row["seq"] is not None), key=itemgetter("turn", "seq"))

    async def _claim_fifo(
        self, connection: Any, queue: Queue, count: int, terms: _Terms, target: Queue | None
    ) -> list[Any]:
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
                        0 if target is None else self._node.positions.take(_LETTERS_MAX),
                        *self._node.log.terms(queue),
                    )
                return rows
            except COLLISIONS:
                continue
        raise InternalError


def _terms(command: Receive, queue: Queue, place: int) -> _Terms:
    ruled = command.timeout_s is None and bool(queue.settings.visibility_rules)
    timeout_s = queue.settings.visibility_timeout_s if command.timeout_s is None else command.timeout_s
    bound_s = command.lease_s_max
    timeout_s = LEASE_S_MAX if ruled else timeout_s if bound_s is None else min(timeout_s, bound_s)
    terms = _Terms(timeout_s * SECOND_MS, command.requested_at_ms or 0, (bound_s or 0) * SECOND_MS, ruled)
    return terms._replace(alone=place, attempt_id=command.attempt_id) if queue.settings.fifo else terms


def _received(messages: list[ReceivedMessage], due_ms: int | None, queue: Queue, over_limit: bool) -> Received:
    return Received(
        messages=messages,
        next_due_ms=due_ms,
        receive_wait_s=queue.settings.receive_wait_s,
        over_limit=over_limit and not messages,
        smq_base64=queue.settings.smq_base64,
    )


async def _refused(connection: Any, queue: Queue, together: Sequence[Receive]) -> set[int]:
    """Return which of the receives, by their places, are too many in a second for all nodes together.

    Those that waited were counted before, and what is refused does not count.
    """
    per_s_max = queue.settings.receives_per_s_max
    if not per_s_max:
        return set()
    asked = [place for place, command in enumerate(together) if command.requested_at_ms is None]
    if not asked:
        return set()
    admitted = await connection.fetchval(STANDARD["admit"], queue.origin, len(asked), per_s_max, SECOND_MS)
    return set(asked[admitted:])


async def _repeat_or_take(connection: Any, queue: Queue, attempt_id: str, terms: _Terms, take: Take) -> list[Any]:
    """Return the rows of the attempt's messages again, or those that ``take`` gives, which are then the attempt's.

    A row of a repetition has ``issued_visible_at``, the deadline that its receipt says.
    """
    key = blake2b(attempt_id.encode(), digest_size=_KEY_BYTES).digest()
    async with connection.transaction():
        attempt = await connection.fetchrow(FIFO["find_attempt"], queue.origin, key, ATTEMPT_S * SECOND_MS)
        rows = [] if attempt is None else await _repeat(connection, queue, attempt, terms)
        if rows:
            await connection.execute(FIFO["move_attempt"], queue.origin, key, [row["visible_at"] for row in rows])
            return rows
        taken = await take()
        if taken:
            columns = [[row[name] for row in taken] for name in ("seq", "generation", "epoch", "visible_at")]
            await connection.execute(FIFO["note_attempt"], queue.origin, key, *columns)
        return taken


async def _repeat(connection: Any, queue: Queue, attempt: Any, terms: _Terms) -> list[Any]:
    seqs, generations, epochs, issued, deadlines = attempt
    rows = await connection.fetch(
        FIFO["repeat"],
        queue.partition,
        seqs,
        generations,
        epochs,
        deadlines,
        terms.timeout_ms,
        terms.bound_ms,
        retention_ms(queue),
    )
    if terms.ruled:
        rows = await _hide_by_class(connection, queue, rows, terms.bound_ms)
    found = {row["seq"]: row for row in rows}
    if not found:
        return []
    return [{**found[seq], "issued_visible_at": at_ms} for seq, at_ms in zip(seqs, issued, strict=True)]
