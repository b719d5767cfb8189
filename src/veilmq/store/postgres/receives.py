"""Receives; those of a batch with the same key share one statement.

Visibility rules: if a receive has no timeout, each message gets the timeout of its class. The class depends on message
attributes, which SQL does not read: the first statement hides all messages for the longest lease, and a second one in
the same transaction sets each timeout.

Dead letters (messages over the maximum receive count) move to the dead-letter queue in the transaction of the receive.
If the dead-letter queue cannot take them, they are delivered once more.

A receive of a FIFO queue with an attempt id can be repeated if its reply was lost: it returns the same messages with
the same receipts, hidden again from now on, without counting a receive, as long as none of them has changed (SQS API
Reference, ReceiveRequestAttemptId). Otherwise it is an ordinary receive, which replaces the stored attempt.
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
from veilmq.store.postgres.node import GROUPED, Node
from veilmq.store.postgres.queues import FAIR, FIFO, STANDARD, PartitionRetired, Queue, retention_ms, sql

_FAIR_LOGGED = queues.log_variants(FAIR)
_KEY_BYTES = 16
_RECEIVE_FAILURES = (VeilmqError, QueryCanceledError, *COLLISIONS)
"""Errors of one statement of a batch; receives of earlier statements still get their messages."""

_read_table = lru_cache(maxsize=256)(read_table)


class _ReceiveKey(NamedTuple):
    """Key by which receives share one statement."""

    timeout_ms: int
    requested_at_ms: int | None  # of a parked receive
    lease_until_ms_max: int | None  # of a parked receive
    lease_ms_max: int | None  # from the request
    has_rules: bool  # each message has its own timeout
    unique: int | None  # a receive with an attempt id shares no statement
    attempt_id: str | None


async def target_of(node: Node, connection: Any, queue: Queue) -> Queue | None:
    """Return the dead-letter queue of ``queue``, if it has one that can take its messages now."""
    settings = queue.settings
    if not settings.receives_max:
        return None
    try:
        source = queue.number, queue.name
        target: Queue | None = await node.catalog.outbox.target(connection, settings.dead_letter_queue, source)
    except StoreUnavailable:  # of another database
        return None
    if target is None or dead_letter_refusal(queue.name, settings, target.name, target.settings) is not None:
        return None
    return target


def dead_letter_args(node: Node, queue: Queue, target: Queue | None) -> tuple[int, int | None, str, int]:
    """Return the dead-letter arguments of the functions for FIFO queues."""
    partition, counter = None, 0
    if target is not None:
        partition, counter = target.partition, node.positions.take(limits.DEAD_LETTERS_PER_RECEIVE)
    return queue.settings.receives_max, partition, queue.name, counter


async def move(connection: Any, node: Node, queue: Queue, target: Queue, seqs: list[int], *args: Any) -> int:
    """Move locked messages of a standard queue; return their number, 0 if the target was retired."""
    counter = node.positions.take(len(seqs) + 1)
    moved = await connection.fetch(STANDARD["move"], queue.partition, target.partition, seqs, counter, *args)
    if moved:
        priorities = sorted({row["priority"] for row in moved})
        await connection.execute(STANDARD["add_priorities"], target.partition, priorities)
    return len(moved)


def properties_of(queue: Queue, row: Any) -> bytes:
    """Return the properties of a message for its receiver."""
    properties: bytes = row["properties"] or b""
    return dead_letter_properties(properties, row["id"]) if queue.settings.fifo and row["source"] else properties


async def receive(node: Node, connection: Any, queue: Queue, commands: Sequence[Receive]) -> list[Any]:
    """Lease visible messages, up to ``count`` for each command; return a ``Received`` or an error for each."""
    settings, per_s_max, served = queue.settings, queue.settings.receives_per_s_max, list(range(len(commands)))
    errors: dict[int, VeilmqError] = {}
    # Parked receives were counted before; throttled ones do not count.
    if per_s_max and (unparked := [index for index in served if commands[index].requested_at_ms is None]):
        admitted = await connection.fetchval(STANDARD["admit"], queue.origin, len(unparked), per_s_max, SECOND_MS)
        errors.update(dict.fromkeys(unparked[admitted:], ReceivesThrottled(per_s_max)))
        served = [index for index in served if index not in errors]
    wanted = sum(commands[index].count for index in served)
    free_slots, slot_due_ms = await node.in_flight.free_slots(connection, queue, wanted)
    received_by_index: dict[int, list[ReceivedMessage]] = {}
    due_ms: int | None = None
    indices_by_key: defaultdict[_ReceiveKey, list[int]] = defaultdict(list)
    for index in served:
        if commands[index].count:
            indices_by_key[_key(commands[index], queue, index)].append(index)
    for key, indices in indices_by_key.items():
        shares = [commands[index].count for index in indices]
        count = min(free_slots, sum(shares))
        try:
            shared = _SharedReceive(node, connection, queue, key, shares, count)
            rows = await shared.rows() if count or key.attempt_id else []
        except _RECEIVE_FAILURES as error:
            if not any(received_by_index.values()):
                raise
            errors.update(dict.fromkeys(set(served) - received_by_index.keys(), failure_of(error, "Receive")))
            break
        new = [row for row in rows if "issued_visible_at" not in row]  # repeated attempts are counted already
        totals = node.totals[queue.number]
        totals["received"] += len(new)
        totals["redelivered"] += sum(row["receive_count"] > 1 for row in new)
        free_slots -= len(new)
        if (fair := node.fair_of(queue)) is not None:
            fair.received(queue, rows)
        await node.in_flight.delivered(connection, queue, sum(row["visible_at"] > row["now"] for row in new))
        counts_by_receive = Counter(row["receive"] for row in rows if "receive" in row)
        for number, index in enumerate(indices, 1):
            share = counts_by_receive[number] if settings.fifo else commands[index].count
            if key.attempt_id is not None:  # an attempt is repeated as a whole, whatever the count
                share = len(rows)
            received_by_index[index] = [_message(node, queue, row) for row in rows[:share]]
            due_ms = rows[0]["now"] if rows else due_ms
            rows = rows[share:]
    if due_ms is None:
        due_ms = slot_due_ms
    if due_ms is None:  # a fair queue scans groups, not marks
        low_water = node.low_water.get(queue.partition) if node.fair_of(queue) is None else None
        marks = () if low_water is None else (low_water.marks, low_water.full_scan_wait_ms)
        due_ms = await queues.next_visible_ms(connection, queue, *marks)
    over_limit = slot_due_ms is not None and not settings.fifo
    return [
        errors[index]
        if index in errors
        else Received(
            messages=received_by_index.get(index, []),
            next_due_ms=due_ms,
            receive_wait_s=settings.receive_wait_s,
            over_limit=over_limit and not received_by_index.get(index),
            smq_base64=settings.smq_base64,
        )
        for index in range(len(commands))
    ]


def _message(node: Node, queue: Queue, row: Any) -> ReceivedMessage:
    issued_ms = row.get("issued_visible_at", row["visible_at"])
    is_fifo = queue.settings.fifo
    return ReceivedMessage(
        id=row["id"],
        receipt=node.codec.issue(queue.number, row["seq"], row["generation"], row["epoch"], issued_ms),
        body=row["body"],
        properties=properties_of(queue, row),
        sent_at_ms=row["sent_at"],
        first_received_at_ms=row["first_received_at"],
        receive_count=row["receive_count"] + row["receives_before"],
        visible_at_ms=row["visible_at"],
        priority=limits.PRIORITY.default if is_fifo else row["priority"] % GROUPED,
        sequence=row["seq"] if is_fifo else None,
        source=row["source"],
    )


def _key(command: Receive, queue: Queue, index: int) -> _ReceiveKey:
    has_rules = command.timeout_s is None and bool(queue.settings.visibility_rules)
    timeout_s = queue.settings.visibility_timeout_s if command.timeout_s is None else command.timeout_s
    bound_s, requested_ms = command.lease_s_max, command.requested_at_ms
    timeout_s = limits.LEASE_S_MAX if has_rules else timeout_s if bound_s is None else min(timeout_s, bound_s)
    bound_ms = None if bound_s is None else bound_s * SECOND_MS
    lease_until_ms_max = None if bound_ms is None or requested_ms is None else requested_ms + bound_ms
    attempt_id = command.attempt_id if queue.settings.fifo else None
    unique = None if attempt_id is None else index
    return _ReceiveKey(timeout_s * SECOND_MS, requested_ms, lease_until_ms_max, bound_ms, has_rules, unique, attempt_id)


@dataclass(slots=True)
class _SharedReceive:
    """The statements of receives with the same key: up to ``count`` messages, each receive its share, in order."""

    node: Node
    connection: Any
    queue: Queue
    key: _ReceiveKey
    shares: Sequence[int]
    count: int
    woken: dict[str, int] = field(default_factory=dict)  # queues that got dead letters, and when

    async def rows(self) -> list[Any]:
        """Lease messages, or repeat an attempt, whose rows have ``issued_visible_at``, the deadline in the receipt."""
        attempt_id, origin, connection = self.key.attempt_id, self.queue.origin, self.connection
        if attempt_id is None:
            rows = await self._lease_with_rules()
        else:
            attempt_key = blake2b(attempt_id.encode(), digest_size=_KEY_BYTES).digest()
            async with connection.transaction():
                args = self.key.timeout_ms, self.key.lease_ms_max, retention_ms(self.queue)
                attempt_args = self.queue.partition, origin, attempt_key, limits.ATTEMPT_S * SECOND_MS
                rows = await connection.fetch(FIFO["repeat"], *attempt_args, *args)
                rows = await self._hide_by_class(rows) if self.key.has_rules else rows
                if rows:
                    deadlines = [row["visible_at"] for row in rows]
                    await connection.execute(FIFO["move_attempt"], origin, attempt_key, deadlines)
                elif rows := await self._lease_with_rules():
                    columns = [[row[name] for row in rows] for name in ("seq", "generation", "epoch", "visible_at")]
                    await connection.execute(FIFO["store_attempt"], origin, attempt_key, *columns)
        for name, due_ms in self.woken.items():
            self.node.watches.wake(name, due_ms)
        return rows

    async def _lease_with_rules(self) -> list[Any]:
        if not self.key.has_rules:
            return await self._lease()
        async with self.connection.transaction():
            return await self._hide_by_class(await self._lease())

    async def _hide_by_class(self, rows: list[Any]) -> list[Any]:
        """Set the timeout of each message leased in this transaction by its class; return the changed rows."""
        if not rows:
            return rows
        queue = self.queue
        table = _read_table(queue.settings.visibility_rules)
        keys = [routing_key_of(row["properties"] or b"", table.attribute) for row in rows]
        timeouts_ms = [
            table.timeout_s(key, row["receive_count"] - 1) * SECOND_MS for key, row in zip(keys, rows, strict=True)
        ]
        args = queue.partition, [row["seq"] for row in rows], timeouts_ms, self.key.lease_ms_max, retention_ms(queue)
        until_ms = dict(await self.connection.fetch(sql(queue)["hide"], *args))
        return [{**row, "visible_at": until_ms[row["seq"]]} for row in rows]

    async def _lease(self) -> list[Any]:
        """Lease messages and move dead letters; retry if another node has used the same position."""
        settings = self.queue.settings
        if not (settings.fifo or settings.receives_max):
            return await self._lease_standard(self.count)

        async def lease() -> list[Any]:
            if not (settings.receives_max or self.connection.is_in_transaction()):
                return await self._lease_fifo()
            async with self.connection.transaction():
                return await (self._lease_fifo() if settings.fifo else self._lease_and_move_dead_letters())

        return await self.node.retry_collisions(lease)

    async def _lease_fifo(self) -> list[Any]:
        """Lease messages of eligible groups, each group for one receive, and move dead letters."""
        queue = self.queue
        target = await target_of(self.node, self.connection, queue) if queue.settings.receives_max else None
        rows = await self.connection.fetch(
            FIFO["receive"],
            *(queue.partition, self.shares, self.count, self.key.timeout_ms, getrandbits(queues.GENERATION_BITS)),
            *(retention_ms(queue), self.key.requested_at_ms, self.key.lease_until_ms_max),
            *dead_letter_args(self.node, queue, target),
            *queues.event_log_args(queue),
        )
        if target is not None and any(row["seq"] is None for row in rows):
            self.woken[target.name] = rows[0]["now"]
        return sorted((row for row in rows if row["seq"] is not None), key=itemgetter("turn", "seq"))

    async def _lease_and_move_dead_letters(self) -> list[Any]:
        """Lease messages of a standard queue, and replace dead letters, which are moved, by further messages."""
        queue, receives_max = self.queue, self.queue.settings.receives_max
        target = None
        if queue.logs:  # the events name the dead letters; otherwise the target is looked up when needed
            target = await target_of(self.node, self.connection, queue)
            if target is None:
                return await self._lease_standard(self.count)
        letters_left, bytes_left = limits.DEAD_LETTERS_PER_RECEIVE, limits.DEAD_LETTER_BYTES_PER_RECEIVE
        taken: list[Any] = []
        statements = 0
        while (left := self.count - len(taken)) > 0 and letters_left > 0 and bytes_left > 0:
            rows = kept = await self._lease_standard(left, receives_max, [row["seq"] for row in taken] or None)
            dead = [row for row in rows if row["receive_count"] > receives_max]
            if dead and target is None:
                target = await target_of(self.node, self.connection, queue)
            seqs = sorted(row["seq"] for row in dead)  # keeps the order of sending
            if target and dead and await move(self.connection, self.node, queue, target, seqs, queue.name, 1, None):
                letters_left -= len(dead)
                bytes_left -= sum(len(row["body"]) + len(row["properties"] or b"") for row in dead)
                self.woken[target.name] = dead[0]["now"]
                kept = [row for row in rows if row["receive_count"] <= receives_max]
            elif dead and queue.logs:  # their events are written already
                raise PartitionRetired(queue.name)
            taken += kept
            statements += bool(kept)
            if len(rows) < left:
                break
        if statements > 1 and queue.logs:
            await self._renumber(taken)
        return taken

    async def _renumber(self, rows: Sequence[Any]) -> None:
        """Rewrite the index in its share of each logged message, because several statements leased them."""
        logs = []
        for index, (first, end) in zip(range(len(rows)), zip(*_share_bounds(self.shares), strict=True), strict=False):
            waited_ms = max(0, rows[index]["now"] - rows[index]["received_at"])
            begun = log_begun(min(end, len(rows)) - first, waited_ms)
            logs.append(log_placed(begun, index - first))
        seqs = [row["seq"] for row in rows]
        await self.connection.execute(sql(self.queue)["set_log"], self.queue.partition, seqs, logs)

    async def _lease_standard(
        self, count: int, receives_max: int | None = None, taken: list[int] | None = None
    ) -> list[Any]:
        """Lease up to ``count`` messages, without those at ``taken``; ``receives_max`` is for the events."""
        queue, node, fetch = self.queue, self.node, self.connection.fetch
        log_args = queues.event_log_args(queue)
        if log_args:
            log_args = receives_max, *_share_bounds(self.shares), *log_args
        first = queue.partition, count, self.key.timeout_ms, getrandbits(queues.GENERATION_BITS)
        rest = retention_ms(queue), self.key.requested_at_ms, self.key.lease_until_ms_max, taken, *log_args
        fair = node.fair_of(queue)
        if fair is not None:
            noisy = await fair.find_noisy(self.connection, queue)
            rows: list[Any] = await fetch((_FAIR_LOGGED if log_args else FAIR)["receive"], *first, noisy, *rest)
            for group in {row["group_key"] for row in rows if row["is_drained"]}:
                fair.mark_drained(group)
            return sorted(rows, key=itemgetter("place"))
        statement, low_water = sql(queue)["receive"], node.low_water[queue.partition]
        rows = await fetch(statement, *first, low_water.begin(), *rest)
        if not rows and (beginning := low_water.begin_full_scan()) is not None:
            rows = await fetch(statement, *first, beginning, *rest)
        if any(row["priority"] > GROUPED for row in rows):
            node.fair[queue.partition].refresh_at_ms = 0  # the queue is fair from now on
        low_water.record([row for row in rows if row["priority"] < GROUPED])
        return sorted(rows, key=itemgetter("priority", "was_visible_at", "seq"))


def _share_bounds(shares: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return, for each message, the begin and the end of the share to which it belongs."""
    firsts: list[int] = []
    ends: list[int] = []
    for share in shares:
        first = len(firsts)
        firsts += [first] * share
        ends += [first + share] * share
    return firsts, ends
