"""The janitor, the numbering of events, and the check of the database's clock.

The janitor is the node that holds an advisory lock on its working connection. It deletes messages past their retention,
rows of purged and deleted queues, and expired deduplication entries and attempts, in slices: one statement and
transaction each, with a pause after a full one. The timing does not matter, because every statement checks retention.

Committed events are numbered without gaps, in batches, under the lock of one row. Causal order is kept: the writer of a
later event saw the earlier one, so that one is committed and has a lower number in its table. If too many events wait
for export, the newest are dropped and counted.

A step of the database's clock must not delete messages. Retention is computed from an instant at most one hour after
the last confirmed one (``mq.retention_now()``). A node confirms the database's time if its boot clock agrees. After a
step of more than an hour that the node's wall clock does not confirm, the node records its doubt: then no node
confirms, and retention deletes nothing, until an operator trusts the clock or the step is undone.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from operator import itemgetter
from typing import Any

from veilmq.core.limits import ATTEMPT_S, RETENTION_S, SECOND_MS
from veilmq.core.messages import routing_key_of
from veilmq.core.receipts import encode_events
from veilmq.store.events import EXPIRED_KEPT_MAX, EXPIRED_KEPT_S, event_of
from veilmq.store.named_queries import load, shared
from veilmq.store.port import NOTHING_HELD_BACK, Metric, gauge
from veilmq.store.postgres.database import PostgresOptions
from veilmq.store.postgres.node import Node
from veilmq.store.postgres.queues import (
    EVENTS,
    Queue,
    event_log_args,
    fifo_variant,
    log_variants,
    queue_of,
    retention_ms,
)

log = logging.getLogger(__name__)

JANITOR_MS = RETENTION_S.minimum * SECOND_MS
"""Interval at which each node tries to be the janitor."""

SQL = {**shared(), **load("veilmq.store.postgres", "sweeps.sql"), "delete_old_receipts": EVENTS["delete_old_receipts"]}
SQL["delete_fifo_messages"] = fifo_variant(SQL["delete_messages"])
SQL["delete_turns"] = SQL["delete_groups"].replace("fifo_group", "fair_turn").replace("group_id", "group_key")
SQL["delete_attempts"] = SQL["delete_accepted"].replace("accepted", "attempt").replace("expires_at", "attempted_at")

_SQL_LOGGED = log_variants(SQL)

_PAUSE_S = 0.01
_PAGE = 100
_GROUPS_PER_SLICE = 100  # some 15 ms
_RETIRED_MS = 300 * SECOND_MS  # far longer than the statement timeout

_RETIRED_DELETES = ("delete_messages", "delete_fifo_messages", "delete_receipts", "delete_groups", "delete_turns")


async def sweep(node: Node, connection: Any) -> None:
    """Delete all due rows of the database, and number its events."""
    rows_max = node.options.sweep_rows
    async for partition, *of_log in _rows(connection, "parts"):
        log_args = of_log if of_log[0] is not None else ()
        for name in _RETIRED_DELETES:
            await _run_to_end(node, connection, name, partition, rows_max, log_args=log_args)
        await _delete_expired(node, connection, partition)
        await connection.execute(SQL["delete_part"], partition, _RETIRED_MS)
    async for row in _rows(connection, "queues_after"):
        await sweep_queue(node, connection, queue_of(row, node.options.event_log))
    await connection.execute(SQL["end_outboxes"])
    await connection.execute(SQL["delete_outboxes"], _RETIRED_MS)
    await number_events(connection, node.options)


async def sweep_queue(node: Node, connection: Any, queue: Queue) -> None:
    """Delete the due rows of a queue."""
    rows_max, expired = node.options.sweep_rows, (EXPIRED_KEPT_S * SECOND_MS, EXPIRED_KEPT_MAX)
    await _run_to_end(node, connection, "delete_old_receipts", queue.origin, rows_max, *expired)
    args = queue.partition, retention_ms(queue), rows_max
    late_until, ended_before, has_claims = await connection.fetchrow(SQL["pending_changes"], args[0]) or (0, 0, False)
    if queue.settings.fifo:
        if late_until:  # groups that still follow the old delay
            last: Any = (0, 0)
            while last is not None:
                last = await settle_groups(connection, queue, *last)
                await asyncio.sleep(_PAUSE_S)
            await connection.execute(SQL["end_late"], queue.partition, late_until)
            node.watches.wake(queue.name, 0)
        if has_claims:  # claimed messages stay; those past their retention end when they return, and receives pass them
            await connection.execute(SQL["keep_expired"], *args[:2])
        deleted = await _run_to_end(node, connection, "sweep_fifo", *args, *event_log_args(queue))
        await _delete_expired(node, connection, queue.origin)
    else:
        deleted = await _run_to_end(node, connection, "sweep", *args, log_args=event_log_args(queue))
        await _run_to_end(node, connection, "sweep_turns", queue.partition, rows_max)
        if ended_before:
            await connection.execute(SQL["clear_ended"], queue.partition, ended_before)
    if deleted:
        node.watches.wake(queue.name, 0)


async def _delete_expired(node: Node, connection: Any, origin: int) -> None:
    for name, kept_ms in (("delete_accepted", 0), ("delete_attempts", ATTEMPT_S * SECOND_MS)):
        await _run_to_end(node, connection, name, origin, node.options.sweep_rows, kept_ms)


async def settle_groups(connection: Any, queue: Queue, at_ms: int = 0, head: int = 0) -> Any:
    """Apply a new delay to the next slice of groups; return the last position, ``None`` after the last slice."""
    args = queue.partition, retention_ms(queue), at_ms, head, _GROUPS_PER_SLICE
    settled = await connection.fetch(SQL["settle_groups"], *args)
    return settled[-1][:2] if len(settled) == _GROUPS_PER_SLICE else None


async def _run_to_end(node: Node, connection: Any, name: str, *args: Any, log_args: Sequence[Any] = ()) -> int:
    """Run a statement until a slice is not full, with ``log_args`` its logged variant; return the number of rows."""
    statement = SQL[name]
    if log_args and _SQL_LOGGED[name] != statement:
        statement, args = _SQL_LOGGED[name], (*args, *log_args)
    deleted = 0
    while True:
        status: str = await connection.execute(statement, *args)
        rows = int(status.rpartition(" ")[2])
        deleted += rows
        if rows < node.options.sweep_rows:
            return deleted
        await asyncio.sleep(_PAUSE_S)


async def _rows(connection: Any, name: str) -> AsyncIterator[Sequence[Any]]:
    """Yield the rows of the query ``name``, which is ordered by its first column."""
    after = 0
    while rows := await connection.fetch(SQL[name], after, _PAGE):
        for row in rows:
            yield row
        after = rows[-1][0]


STEP_MS = 3_600 * SECOND_MS
"""A larger deviation of a clock is a step; ``mq.retention_now()`` has the same hour."""

_CONFIRM_INTERVAL_MS = 300 * SECOND_MS  # all nodes write the same row


class ClockGuard:
    """This node's check of the database's clock."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._name = node.watches.name
        self._last_good: tuple[int, int] | None = None  # time of the database, and of the boot clock
        self._trusts = 0
        self._is_suspicious = False  # the last check found a step; the next one decides
        self._doubt_ms: int | None = None

    async def check(self) -> None:
        """Confirm or doubt the database's clock."""
        async with self._node.database.connection() as connection:
            row = await connection.fetchrow(SQL["clock"])
            now_ms: int = row["now"]
            boot_ms = self._node.clock.machine.boot_ms()
            if row["trusts"] != self._trusts:
                self._trusts, self._last_good = row["trusts"], None
            confirmed_ms = now_ms if row["confirmed_at"] is None else row["confirmed_at"]
            doubter, is_suspicious = row["doubted_by"], False
            last_good_ms, last_good_boot_ms = (confirmed_ms, boot_ms) if self._last_good is None else self._last_good
            if abs(now_ms - last_good_ms - (boot_ms - last_good_boot_ms)) <= STEP_MS:
                # A node with a good time from before the step may clear the doubt of another node.
                known_ms = now_ms if self._last_good is None else min(last_good_ms, now_ms)
                may_confirm = doubter in (None, self._name) or known_ms <= confirmed_ms + STEP_MS
                is_due = row["confirmed_at"] is None or abs(now_ms - confirmed_ms) > _CONFIRM_INTERVAL_MS
                confirms = may_confirm and (doubter is not None or is_due)
                self._last_good, is_doubted = (now_ms, boot_ms), not may_confirm
            elif abs(now_ms - self._node.clock.machine.wall_ms()) <= STEP_MS:
                confirms = doubter == self._name
                self._last_good, is_doubted = (now_ms, boot_ms), doubter not in (None, self._name)
            else:
                confirms, is_doubted = False, doubter is not None or self._is_suspicious
                if doubter is None and self._is_suspicious:
                    await connection.execute(SQL["doubt_clock"], self._name, confirmed_ms)
                is_suspicious = True
            if confirms:
                await connection.execute(SQL["confirm_clock"], doubter)
                confirmed_ms = now_ms
        self._is_suspicious, ahead_ms = is_suspicious, now_ms - confirmed_ms
        if is_doubted and self._doubt_ms is None:
            log.warning(
                "the database's clock is doubted: it is %d s from the last confirmed instant", ahead_ms // 1_000
            )
        self._doubt_ms = ahead_ms if is_doubted else None
        self._node.catalog.keep_longer(ahead_ms if is_doubted or ahead_ms > STEP_MS else 0)

    async def trust(self) -> str:
        """Confirm the present time on behalf of an operator; return the effect, as a sentence."""
        was_doubted = self._doubt_ms is not None
        async with self._node.database.connection() as connection:
            await connection.execute(SQL["trust_clock"])
        await self.check()
        return "The database's clock is trusted: retention deletes again." if was_doubted else NOTHING_HELD_BACK

    def warnings(self) -> list[str]:
        """Return a warning while the clock is doubted."""
        if self._doubt_ms is None:
            return []
        hours = self._doubt_ms / STEP_MS
        text = f"The clock of the database is doubted: it is {hours:+.1f} h from the last confirmed instant, and"
        remedy = "Set the clock right, or, if it is right, run veilmq clock trust."
        return [f"{text} retention deletes nothing. {remedy}"]

    def metrics(self) -> list[Metric]:
        """Return whether the clock is doubted."""
        is_doubted = self._doubt_ms is not None
        return [gauge("store_clock_doubted", "1 while a clock is doubted and retention deletes nothing.", is_doubted)]


_SLICE_EVENTS = 1_000


async def number_events(connection: Any, options: PostgresOptions) -> None:
    """Number all committed events."""
    await connection.execute(EVENTS["create_state"])
    while True:
        async with connection.transaction():
            state = await connection.fetchrow(EVENTS["lock_state"])
            rows = sorted(await connection.fetch(EVENTS["take"], _SLICE_EVENTS), key=itemgetter("number"))
            if not rows:
                return
            room = max(0, options.events_waiting_max - (state["recorded"] - state["exported"]))
            kept, dropped = rows[:room], rows[room:]
            if kept:
                encoded = encode_events(
                    [
                        event_of(queue, routing_key_of(properties, options.routing_attribute), *what)
                        for _, _, queue, properties, *what in kept
                    ]
                )
                await connection.execute(SQL["insert_event_batch"], state["recorded"] + 1, len(kept), encoded)
            if dropped and not state["dropped"]:
                log.warning("events are dropped: too many wait to be exported")
            expired = [(row["qp"], row["number"]) for row in dropped if row["outcome"] == "expired"]
            if expired:
                await connection.executemany(EVENTS["delete_receipt"], expired)
            await connection.execute(EVENTS["add_numbers"], len(kept), len(dropped))
        if len(rows) < _SLICE_EVENTS:
            return
