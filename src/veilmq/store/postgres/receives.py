"""Receives: those that travel together are served by as few claims as their terms allow.

A receive of a FIFO queue with an attempt id can be repeated, because its answer may have been lost. The same id gives
the same messages with the same receipts again, hidden anew from now on and without another receive counted, as long as
every one of them is as it was left (SQS API Reference, the receive's attempt id). Else the attempt is void, and the
receive an ordinary one, which is remembered in its place.
"""

from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from typing import Any

from asyncpg import QueryCanceledError

from veilmq.core.commands import Receive
from veilmq.core.errors import ReceivesThrottled, VeilmqError
from veilmq.core.limits import ATTEMPT_S, LEASE_S_MAX, PRIORITY, SECOND_MS
from veilmq.core.receipts import ReceiptBook
from veilmq.core.results import Received, ReceivedMessage
from veilmq.store.postgres.catalog import Catalog, Queue
from veilmq.store.postgres.coalescing import COLLISIONS, FIFO, STANDARD, OnQueue, retention_ms
from veilmq.store.postgres.counts import InFlight, Totals
from veilmq.store.postgres.event_log import EventLog
from veilmq.store.postgres.failures import told
from veilmq.store.postgres.fair import LANE, FairQueues
from veilmq.store.postgres.low_water import LowWater
from veilmq.store.postgres.sends import Positions
from veilmq.store.postgres.taking import (
    FifoTaking,
    StandardTaking,
    Take,
    Terms,
    hide_by_class,
    properties_of,
    take_by_class,
)
from veilmq.store.postgres.watches import Watches, next_visible_ms

_ALONE = (VeilmqError, QueryCanceledError, *COLLISIONS)
"""What ends one claim, of several on a connection: what those before it have leased is given to who asked for it."""


_KEY_BYTES = 16


class Receives:
    """The command ``Receive``."""

    def __init__(
        self,
        *,
        on_queue: OnQueue,
        catalog: Catalog,
        book: ReceiptBook,
        watches: Watches,
        in_flight: InFlight,
        low_water: LowWater,
        positions: Positions,
        log: EventLog,
        fair: FairQueues,
        totals: Totals,
    ) -> None:
        """``book`` has the receipts' keys; ``watches`` hears of dead letters; ``in_flight`` knows the quotas.

        ``log`` hears of receipts that have ended, and ``fair`` of what is given out.
        """
        self._on_queue = on_queue
        self._book = book
        self._in_flight = in_flight
        self._watches = watches
        self._low_water = low_water
        self._fair = fair
        self._standard = StandardTaking(
            catalog=catalog, watches=watches, low_water=low_water, positions=positions, log=log, fair=fair
        )
        self._fifo = FifoTaking(catalog=catalog, watches=watches, positions=positions, log=log)
        self._totals = totals

    async def receive(self, together: Sequence[Receive]) -> list[Any]:
        """Lease what is visible, up to the number that each asks for."""
        return await self._on_queue(self._receive, together, relaxed=True)

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
        places, place_due_ms = await self._in_flight.places(connection, queue, wanted)
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
                failed = told(error, "Receive")
                break
            new = [row for row in rows if "issued_visible_at" not in row]  # a repeated attempt has its places
            self._totals.received[queue.number] += len(new)
            self._totals.redelivered[queue.number] += sum(row["receive_count"] > 1 for row in new)
            places -= len(new)
            self._fair.received(queue, rows)
            self._in_flight.given(queue, sum(row["visible_at"] > row["now"] for row in new))
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

    async def _take(self, connection: Any, queue: Queue, count: int, terms: Terms, shares: list[int]) -> list[Any]:
        taking: StandardTaking | FifoTaking = self._fifo if queue.settings.fifo else self._standard
        take: Take = partial(taking.take, connection, queue, count, terms, shares)
        with self._watches.held():  # dead letters leave in a transaction
            return await self._taken(connection, queue, terms, take)

    async def _taken(self, connection: Any, queue: Queue, terms: Terms, take: Take) -> list[Any]:
        if terms.ruled:
            take = partial(take_by_class, connection, queue, take, terms.bound_ms)
        if terms.attempt_id is None:
            return await take()
        return await _repeat_or_take(connection, queue, terms.attempt_id, terms, take)

    async def _next_visible_ms(self, connection: Any, queue: Queue) -> int | None:
        if self._fair.has(queue):  # which goes by turns, not by marks
            return await next_visible_ms(connection, queue)
        return await next_visible_ms(connection, queue, *self._low_water.known(queue.partition))

    def _message(self, queue: Queue, row: Any) -> ReceivedMessage:
        says_ms = row.get("issued_visible_at", row["visible_at"])
        receipt = self._book.issue(queue.number, row["seq"], row["generation"], row["epoch"], says_ms)
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


def _terms(command: Receive, queue: Queue, place: int) -> Terms:
    ruled = command.timeout_s is None and bool(queue.settings.visibility_rules)
    timeout_s = queue.settings.visibility_timeout_s if command.timeout_s is None else command.timeout_s
    bound_s = command.lease_s_max
    timeout_s = LEASE_S_MAX if ruled else timeout_s if bound_s is None else min(timeout_s, bound_s)
    terms = Terms(timeout_s * SECOND_MS, command.requested_at_ms or 0, (bound_s or 0) * SECOND_MS, ruled)
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


async def _repeat_or_take(connection: Any, queue: Queue, attempt_id: str, terms: Terms, take: Take) -> list[Any]:
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


async def _repeat(connection: Any, queue: Queue, attempt: Any, terms: Terms) -> list[Any]:
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
        rows = await hide_by_class(connection, queue, rows, terms.bound_ms)
    found = {row["seq"]: row for row in rows}
    if not found:
        return []
    return [{**found[seq], "issued_visible_at": at_ms} for seq, at_ms in zip(seqs, issued, strict=True)]
