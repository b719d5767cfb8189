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

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from operator import itemgetter
from random import getrandbits
from typing import Any, NamedTuple

from asyncpg import QueryCanceledError

from veilmq.core import limits
from veilmq.core.commands import Receive, Received, ReceivedMessage
from veilmq.core.errors import ReceivesThrottled, StoreUnavailable, VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.core.messages import dead_letter_properties, routing_key_of
from veilmq.core.settings import dead_letter_refusal, read_table
from veilmq.store.events import log_begun, log_placed
from veilmq.store.postgres import queues
from veilmq.store.postgres.database import COLLISIONS, failure_of
from veilmq.store.postgres.node import LANE, Node
from veilmq.store.postgres.queues import FAIR, FIFO, STANDARD, PartitionRetired, Queue, retention_ms, sql

_FAIR_LOGGED = queues.logged(FAIR)
_KEY_BYTES = 16
_ALONE = (VeilmqError, QueryCanceledError, *COLLISIONS)
"""What ends one claim, of several on a connection: the others are answered with what those before it have leased."""

_read_table = lru_cache(maxsize=256)(read_table)


class _Terms(NamedTuple):
    """What receives share that are served by one claim; ``ruled`` where each message has its own timeout.

    Of a receive that waited: when it was asked for, and the last instant of its lease. No lease is longer than
    ``lease_ms_max`` from when it was asked for. One with an ``attempt_id`` shares nothing: ``alone`` tells it apart.
    """

    timeout_ms: int
    requested_at_ms: int | None
    last_ms: int | None
    lease_ms_max: int | None
    ruled: bool
    alone: int | None
    attempt_id: str | None


async def target_of(node: Node, connection: Any, queue: Queue) -> Queue | None:
    """Return the queue that takes the dead letters of ``queue`` as things are now, if one does."""
    settings = queue.settings
    if not settings.receives_max:
        return None
    try:
        target = await node.catalog.target(connection, settings.dead_letter_queue, (queue.number, queue.name))
    except StoreUnavailable:  # of the other database: this one has time
        return None
    if target is None or dead_letter_refusal(queue.name, settings, target.name, target.settings) is not None:
        return None
    return target


def dead_letter_terms(node: Node, queue: Queue, target: Queue | None) -> tuple[int, int | None, str, int]:
    """Return what the functions of FIFO queues have to know of dead letters, which go to ``target``."""
    partition, counter = None, 0
    if target is not None:
        partition, counter = target.partition, node.positions.take(limits.DEAD_LETTERS_PER_RECEIVE)
    return queue.settings.receives_max, partition, queue.name, counter


async def move(connection: Any, node: Node, queue: Queue, target: Queue, seqs: list[int], *terms: Any) -> int:
    """Move messages of a standard queue, locked in the transaction, as the last terms of the statement say.

    Returns how many: none where the target was retired.
    """
    counter = node.positions.take(len(seqs) + 1)
    moved = await connection.fetch(STANDARD["move"], queue.partition, target.partition, seqs, counter, *terms)
    if moved:
        priorities = sorted({row["priority"] for row in moved})
        await connection.execute(STANDARD["add_priorities"], target.partition, priorities)
    return len(moved)


def properties_of(queue: Queue, row: Any) -> bytes:
    """Return the properties of a message as its receiver sees them."""
    properties: bytes = row["properties"] or b""
    return dead_letter_properties(properties, row["id"]) if queue.settings.fifo and row["source"] else properties


async def receive(node: Node, connection: Any, queue: Queue, together: Sequence[Receive]) -> list[Any]:
    """Lease what is visible, up to the number that each command names."""
    per_s_max = queue.settings.receives_per_s_max
    # Those that waited were counted before, and what is refused does not count.
    new = [place for place, command in enumerate(together) if command.requested_at_ms is None] if per_s_max else []
    if not new:
        return await _served(node, connection, queue, together)
    admitted = await connection.fetchval(STANDARD["admit"], queue.origin, len(new), per_s_max, SECOND_MS)
    too_many = set(new[admitted:])
    served = [command for place, command in enumerate(together) if place not in too_many]
    received = iter(await _served(node, connection, queue, served))
    return [ReceivesThrottled(per_s_max) if place in too_many else next(received) for place in range(len(together))]


async def _served(node: Node, connection: Any, queue: Queue, together: Sequence[Receive]) -> list[Any]:
    settings = queue.settings
    wanted = sum(command.count for command in together)
    places, place_due_ms = await node.in_flight.places(connection, queue, wanted)
    given: dict[int, list[ReceivedMessage]] = {}
    due_ms: int | None = None
    failed: VeilmqError | None = None
    of_terms: defaultdict[_Terms, list[int]] = defaultdict(list)
    for place, command in enumerate(together):
        if command.count:
            of_terms[_terms(command, queue, place)].append(place)
    for terms, group in of_terms.items():
        shares = [together[at].count for at in group]
        count = min(places, sum(shares))
        try:
            taking = _Taking(node, connection, queue, terms, shares, count)
            rows = await taking.rows() if count or terms.attempt_id else []
        except _ALONE as error:
            if not any(given.values()):
                raise
            failed = failure_of(error, "Receive")
            break
        new = [row for row in rows if "issued_visible_at" not in row]  # a repeated attempt has its places
        totals = node.totals[queue.number]
        totals["received"] += len(new)
        totals["redelivered"] += sum(row["receive_count"] > 1 for row in new)
        places -= len(new)
        if (fair := node.fair_of(queue)) is not None:
            fair.received(queue, rows)
        await node.in_flight.given(connection, queue, sum(row["visible_at"] > row["now"] for row in new))
        of_receive = Counter(row["receive"] for row in rows if "receive" in row)
        for number, at in enumerate(group, 1):
            share = of_receive[number] if settings.fifo else together[at].count
            if terms.attempt_id is not None:  # it is repeated as a whole, whatever count its repetition names
                share = len(rows)
            given[at] = [_message(node, queue, row) for row in rows[:share]]
            due_ms = rows[0]["now"] if rows else due_ms
            rows = rows[share:]
    if due_ms is None:
        due_ms = place_due_ms
    if due_ms is None:  # a fair queue goes by turns, not by marks
        low_water = node.low_water.get(queue.partition) if node.fair_of(queue) is None else None
        marks = () if low_water is None else (low_water.last, low_water.again_ms)
        due_ms = await queues.next_visible_ms(connection, queue, *marks)
    over_limit = place_due_ms is not None and not settings.fifo
    return [
        Received(
            messages=given.get(at, []),
            next_due_ms=due_ms,
            receive_wait_s=settings.receive_wait_s,
            over_limit=over_limit and not given.get(at),
            smq_base64=settings.smq_base64,
        )
        if failed is None or at in given
        else failed
        for at in range(len(together))
    ]


def _message(node: Node, queue: Queue, row: Any) -> ReceivedMessage:
    says_ms = row.get("issued_visible_at", row["visible_at"])
    is_fifo = queue.settings.fifo
    return ReceivedMessage(
        id=row["id"],
        receipt=node.book.issue(queue.number, row["seq"], row["generation"], row["epoch"], says_ms),
        body=row["body"],
        properties=properties_of(queue, row),
        sent_at_ms=row["sent_at"],
        first_received_at_ms=row["first_received_at"],
        receive_count=row["receive_count"] + row["receives_before"],
        visible_at_ms=row["visible_at"],
        priority=limits.PRIORITY.default if is_fifo else row["priority"] % LANE,
        sequence=row["seq"] if is_fifo else None,
        source=row["source"],
    )


def _terms(command: Receive, queue: Queue, place: int) -> _Terms:
    ruled = command.timeout_s is None and bool(queue.settings.visibility_rules)
    timeout_s = queue.settings.visibility_timeout_s if command.timeout_s is None else command.timeout_s
    bound_s, requested_ms = command.lease_s_max, command.requested_at_ms
    timeout_s = limits.LEASE_S_MAX if ruled else timeout_s if bound_s is None else min(timeout_s, bound_s)
    bound_ms = None if bound_s is None else bound_s * SECOND_MS
    last_ms = None if bound_ms is None or requested_ms is None else requested_ms + bound_ms
    attempt_id = command.attempt_id if queue.settings.fifo else None
    alone = None if attempt_id is None else place
    return _Terms(timeout_s * SECOND_MS, requested_ms, last_ms, bound_ms, ruled, alone, attempt_id)


@dataclass(slots=True)
class _Taking:
    """What receives of the same terms take together: up to ``count`` messages, each receive its share, in order.

    ``woken`` are queues that have dead letters, and since when: they leave in a transaction.
    """

    node: Node
    connection: Any
    queue: Queue
    terms: _Terms
    shares: Sequence[int]
    count: int
    woken: dict[str, int] = field(default_factory=dict)

    async def rows(self) -> list[Any]:
        """Lease the messages, or those of an attempt again, and return their rows.

        A row of a repetition has ``issued_visible_at``, the deadline that its receipt says.
        """
        attempt_id, origin, connection = self.terms.attempt_id, self.queue.origin, self.connection
        if attempt_id is None:
            rows = await self._take()
        else:
            key = blake2b(attempt_id.encode(), digest_size=_KEY_BYTES).digest()
            async with connection.transaction():
                terms = self.terms.timeout_ms, self.terms.lease_ms_max, retention_ms(self.queue)
                of_attempt = self.queue.partition, origin, key, limits.ATTEMPT_S * SECOND_MS
                rows = await connection.fetch(FIFO["repeat"], *of_attempt, *terms)
                rows = await self._hide_by_class(rows) if self.terms.ruled else rows
                if rows:
                    await connection.execute(FIFO["move_attempt"], origin, key, [row["visible_at"] for row in rows])
                elif rows := await self._take():  # which are the attempt's
                    columns = [[row[name] for row in rows] for name in ("seq", "generation", "epoch", "visible_at")]
                    await connection.execute(FIFO["note_attempt"], origin, key, *columns)
        for name, due_ms in self.woken.items():
            self.node.watches.wake(name, due_ms)
        return rows

    async def _take(self) -> list[Any]:
        if not self.terms.ruled:
            return await self._lease_all()
        async with self.connection.transaction():
            return await self._hide_by_class(await self._lease_all())

    async def _hide_by_class(self, rows: list[Any]) -> list[Any]:
        """Hide what was leased in this transaction for the timeout of its class; return the rows as they are then."""
        if not rows:
            return rows
        queue = self.queue
        table = _read_table(queue.settings.visibility_rules)
        keys = [routing_key_of(row["properties"] or b"", table.attribute) for row in rows]
        timeouts_ms = [
            table.timeout_s(key, row["receive_count"] - 1) * SECOND_MS for key, row in zip(keys, rows, strict=True)
        ]
        terms = queue.partition, [row["seq"] for row in rows], timeouts_ms, self.terms.lease_ms_max, retention_ms(queue)
        until_ms = dict(await self.connection.fetch(sql(queue)["hide"], *terms))
        return [{**row, "visible_at": until_ms[row["seq"]]} for row in rows]

    async def _lease_all(self) -> list[Any]:
        """Lease, and move dead letters; begin again where one would have a position that another node just gave."""
        settings = self.queue.settings
        if not (settings.fifo or settings.receives_max):
            return await self._claim(self.count)

        async def lease() -> list[Any]:
            if not (settings.receives_max or self.connection.is_in_transaction()):
                return await self._lease_fifo()
            async with self.connection.transaction():
                return await (self._lease_fifo() if settings.fifo else self._lease_living())

        return await self.node.repeated(lease)

    async def _lease_fifo(self) -> list[Any]:
        """Lease messages of groups as they came up, those of a group for one ``receive``; dead letters leave too."""
        queue = self.queue
        target = await target_of(self.node, self.connection, queue) if queue.settings.receives_max else None
        rows = await self.connection.fetch(
            FIFO["receive"],
            *(queue.partition, self.shares, self.count, self.terms.timeout_ms, getrandbits(queues.GENERATION_BITS)),
            *(retention_ms(queue), self.terms.requested_at_ms, self.terms.last_ms),
            *dead_letter_terms(self.node, queue, target),
            *queues.terms_of_log(queue),
        )
        if target is not None and any(row["seq"] is None for row in rows):
            self.woken[target.name] = rows[0]["now"]
        return sorted((row for row in rows if row["seq"] is not None), key=itemgetter("turn", "seq"))

    async def _lease_living(self) -> list[Any]:
        """Lease messages of a standard queue; dead letters leave in the same transaction."""
        queue, receives_max = self.queue, self.queue.settings.receives_max
        target = None
        if queue.logs:  # events say which are dead; else one is looked up once it is needed
            target = await target_of(self.node, self.connection, queue)
            if target is None:
                return await self._claim(self.count)
        letters_left, bytes_left = limits.DEAD_LETTERS_PER_RECEIVE, limits.DEAD_LETTER_BYTES_PER_RECEIVE
        taken: list[Any] = []
        claims = 0
        while (left := self.count - len(taken)) > 0 and letters_left > 0 and bytes_left > 0:
            rows = living = await self._claim(left, receives_max, [row["seq"] for row in taken] or None)
            dead = [row for row in rows if row["receive_count"] > receives_max]
            if dead and target is None:
                target = await target_of(self.node, self.connection, queue)
            seqs = sorted(row["seq"] for row in dead)  # which stay in the order of sending
            if target and dead and await move(self.connection, self.node, queue, target, seqs, queue.name, 1, None):
                letters_left -= len(dead)
                bytes_left -= sum(len(row["body"]) + len(row["properties"] or b"") for row in dead)
                self.woken[target.name] = dead[0]["now"]
                living = [row for row in rows if row["receive_count"] <= receives_max]
            elif dead and queue.logs:  # of which it is written that they are dead
                raise PartitionRetired(queue.name)
            taken += living
            claims += bool(living)
            if len(rows) < left:
                break
        if claims > 1 and queue.logs:
            await self._place(taken)
        return taken

    async def _place(self, rows: Sequence[Any]) -> None:
        """Say anew of logged messages that were taken in several steps which place each has in its share."""
        logs = []
        for place, (first, end) in zip(range(len(rows)), zip(*_places_of(self.shares), strict=True), strict=False):
            waited_ms = max(0, rows[place]["now"] - rows[place]["received_at"])
            begun = log_begun(min(end, len(rows)) - first, waited_ms)
            logs.append(log_placed(begun, place - first))
        seqs = [row["seq"] for row in rows]
        await self.connection.execute(sql(self.queue)["log"], self.queue.partition, seqs, logs)

    async def _claim(self, count: int, receives_max: int | None = None, taken: list[int] | None = None) -> list[Any]:
        """Lease up to ``count`` messages but for those at the positions ``taken``; ``receives_max`` makes one dead.

        In a queue with groups, quiet ones come first.
        """
        queue, node, fetch = self.queue, self.node, self.connection.fetch
        of_log = queues.terms_of_log(queue)
        if of_log:
            of_log = receives_max, *_places_of(self.shares), *of_log
        first = queue.partition, count, self.terms.timeout_ms, getrandbits(queues.GENERATION_BITS)
        rest = retention_ms(queue), self.terms.requested_at_ms, self.terms.last_ms, taken, *of_log
        shares = node.fair_of(queue)
        if shares is not None:
            noisy = await shares.find_noisy(self.connection, queue)
            rows: list[Any] = await fetch((_FAIR_LOGGED if of_log else FAIR)["receive"], *first, noisy, *rest)
            shares.passed_over(rows)
            return sorted(rows, key=itemgetter("place"))
        statement, low_water = sql(queue)["receive"], node.low_water[queue.partition]
        rows = await fetch(statement, *first, low_water.begin(), *rest)
        if not rows and (beginning := low_water.instead()) is not None:
            rows = await fetch(statement, *first, beginning, *rest)
        if any(row["priority"] > LANE for row in rows):
            node.fair[queue.partition].refresh_at_ms = 0  # it is a fair queue from now on
        low_water.found([row for row in rows if row["priority"] < LANE])
        return sorted(rows, key=itemgetter("priority", "was_visible_at", "seq"))


def _places_of(shares: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return where the share begins and ends to which each place belongs."""
    firsts: list[int] = []
    ends: list[int] = []
    for share in shares:
        first = len(firsts)
        firsts += [first] * share
        ends += [first + share] * share
    return firsts, ends
