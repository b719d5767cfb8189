"""Work that one node at a time does: slices in the background, the janitor, numbers of events.

A node that begins work in the background looks at once, every other one now and then: that is how it goes on when a
node has died.

One node at a time is the janitor: it holds an advisory lock on the connection on which it works. It deletes messages
past their retention, what purged and deleted queues had, and what is remembered for a while only. Nothing depends on
when that happens, as every statement looks at retention by itself. A slice is a statement and a transaction of its own,
with a pause behind each full one.

Events that are committed are taken away, a slice at a time, numbered, and stored as one batch, under the lock of one
row; so numbers rise without a gap. No event stands before one that it follows: what wrote the later one had seen the
earlier one, so it was there to be taken, and has the lower place in its table. Where too many wait to be exported the
newest are dropped and counted.

A step of the database's clock must not delete what waits. Retention is reckoned from an instant at most an hour after
the last one that a node confirmed (``mq.retention_now()``). A node confirms an instant to which its own boot clock has
come as well. Where the clock stepped by more than an hour, and the node's wall clock does not say the same, the node
writes that it doubts the clock: then no node confirms, and retention ends nothing, until an operator trusts the clock
or the step is undone.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from operator import itemgetter
from typing import Any

from veilmq.core.limits import ATTEMPT_S, RETENTION_S, SECOND_MS
from veilmq.core.receipts import encode_events
from veilmq.store.events import EXPIRED_KEPT_MAX, EXPIRED_KEPT_S, event_of, routing_key
from veilmq.store.named_queries import load, shared
from veilmq.store.port import NOTHING_HELD_BACK, Metric, gauge
from veilmq.store.postgres.database import PostgresOptions
from veilmq.store.postgres.node import Node
from veilmq.store.postgres.queues import EVENTS, Queue, logged, of_fifo, queue_of, retention_ms, terms_of_log

log = logging.getLogger(__name__)

JANITOR_MS = RETENTION_S.minimum * SECOND_MS
"""How often each node looks for the janitor's: often enough for every retention."""

SQL = {**shared(), **load("veilmq.store.postgres", "sweeps.sql"), "forget_expired": EVENTS["forget_expired"]}
SQL["drop_fifo_messages"] = of_fifo(SQL["drop_messages"])
SQL["drop_turns"] = SQL["drop_groups"].replace("fifo_group", "fair_turn").replace("group_id", "group_key")
SQL["forget_attempts"] = SQL["forget_accepted"].replace("accepted", "attempt").replace("expires_at", "attempted_at")

_SQL_LOGGED = logged(SQL)

_PAUSE_S = 0.01
_PAGE = 100
_GROUPS_PER_SLICE = 100  # some 15 ms
_RETIRED_MS = 300 * SECOND_MS  # far longer than a statement may take

_OF_PART = ("drop_messages", "drop_fifo_messages", "drop_expired", "drop_groups", "drop_turns")


async def sweep_all(node: Node, connection: Any) -> None:
    """Delete whatever is due in a whole store."""
    rows_max = node.options.sweep_rows
    async for partition, *of_log in _pages(connection, "parts"):
        for name in _OF_PART:
            await _all(node, connection, name, partition, rows_max, of_log=of_log if of_log[0] is not None else ())
        await _forget(node, connection, partition)
        await connection.execute(SQL["drop_part"], partition, _RETIRED_MS)
    async for row in _pages(connection, "queues_behind"):
        await sweep_queue(node, connection, queue_of(row, node.options.event_log))
    await connection.execute(SQL["end_outboxes"])
    await connection.execute(SQL["drop_outboxes"], _RETIRED_MS)
    await number_events(connection, node.options)


async def sweep_queue(node: Node, connection: Any, queue: Queue) -> None:
    """Delete what is due in a queue."""
    rows_max, expired = node.options.sweep_rows, (EXPIRED_KEPT_S * SECOND_MS, EXPIRED_KEPT_MAX)
    await _all(node, connection, "forget_expired", queue.origin, rows_max, *expired)
    terms = queue.partition, retention_ms(queue), rows_max
    late, ended_before = await connection.fetchrow(SQL["unfinished"], queue.partition) or (0, 0)
    if queue.settings.fifo:
        if late:  # the groups follow a new delay
            last: Any = (0, 0)
            while last is not None:
                last = await settle_late(connection, queue, *last)
                await asyncio.sleep(_PAUSE_S)
            await connection.execute(SQL["settled"], queue.partition, late)
            node.watches.wake(queue.name, 0)
        deleted = await _all(node, connection, "sweep_fifo", *terms, *terms_of_log(queue))
        await _forget(node, connection, queue.origin)
    else:
        deleted = await _all(node, connection, "sweep", *terms, of_log=terms_of_log(queue))
        await _all(node, connection, "sweep_turns", queue.partition, rows_max)
        if ended_before:
            await connection.execute(SQL["forget_ended"], queue.partition, ended_before)
    if deleted:
        node.watches.wake(queue.name, 0)


async def _forget(node: Node, connection: Any, origin: int) -> None:
    for name, kept_ms in (("forget_accepted", 0), ("forget_attempts", ATTEMPT_S * SECOND_MS)):
        await _all(node, connection, name, origin, node.options.sweep_rows, kept_ms)


async def settle_late(connection: Any, queue: Queue, at_ms: int = 0, head: int = 0) -> Any:
    """Have some groups follow a new delay, behind one; return the last of them where there may be more."""
    terms = queue.partition, retention_ms(queue), at_ms, head, _GROUPS_PER_SLICE
    settled = await connection.fetch(SQL["settle_late"], *terms)
    return settled[-1][:2] if len(settled) == _GROUPS_PER_SLICE else None


async def _all(node: Node, connection: Any, name: str, *terms: Any, of_log: Sequence[Any] = ()) -> int:
    """Have a statement done until it finds no more; return how many rows it has deleted.

    It writes the ends of receipts, if it ends any, where it is given what the log needs of them.
    """
    statement = SQL[name]
    if of_log and _SQL_LOGGED[name] != statement:
        statement, terms = _SQL_LOGGED[name], (*terms, *of_log)
    deleted = 0
    while True:
        status: str = await connection.execute(statement, *terms)
        rows = int(status.rpartition(" ")[2])
        deleted += rows
        if rows < node.options.sweep_rows:
            return deleted
        await asyncio.sleep(_PAUSE_S)


async def _pages(connection: Any, name: str) -> AsyncIterator[Sequence[Any]]:
    """Yield the rows that ``name`` selects, whose first column rises."""
    after = 0
    while rows := await connection.fetch(SQL[name], after, _PAGE):
        for row in rows:
            yield row
        after = rows[-1][0]


STEP_MS = 3_600 * SECOND_MS
"""How far a clock may be from what is expected; the same hour stands in ``mq.retention_now()``."""

_CONFIRMED_AGAIN_MS = 300 * SECOND_MS  # so that many nodes write one row seldom


class ClockGuard:
    """What one node makes of the database's clock."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._name = node.watches.name
        self._good: tuple[int, int] | None = None  # the database's clock beside the boot clock of the machine
        self._trusts = 0
        self._suspects = False  # the last check found a step; a second one makes sure
        self._doubted_by_ms: int | None = None

    async def check(self) -> None:
        """Confirm the database's clock, or doubt it."""
        async with self._node.database.connection() as connection:
            row = await connection.fetchrow(SQL["clock"])
            now_ms: int = row["now"]
            boot_ms = self._node.clock.machine.boot_ms()
            if row["trusts"] != self._trusts:
                self._trusts, self._good = row["trusts"], None
            confirmed_ms = now_ms if row["confirmed_at"] is None else row["confirmed_at"]
            doubter, suspects = row["doubted_by"], False
            # How far the clock is from where this node expects it: where its boot clock has come since.
            good_ms, good_boot_ms = (confirmed_ms, boot_ms) if self._good is None else self._good
            if abs(now_ms - good_ms - (boot_ms - good_boot_ms)) <= STEP_MS:
                # A node that knows the time from before the step may end the doubts of another.
                known_ms = now_ms if self._good is None else min(good_ms, now_ms)
                is_ours = doubter in (None, self._name) or known_ms <= confirmed_ms + STEP_MS
                is_old = row["confirmed_at"] is None or abs(now_ms - confirmed_ms) > _CONFIRMED_AGAIN_MS
                confirms = is_ours and (doubter is not None or is_old)
                self._good, is_doubted = (now_ms, boot_ms), not is_ours
            elif abs(now_ms - self._node.clock.machine.wall_ms()) <= STEP_MS:
                confirms = doubter == self._name
                self._good, is_doubted = (now_ms, boot_ms), doubter not in (None, self._name)
            else:
                confirms, is_doubted = False, doubter is not None or self._suspects
                if doubter is None and self._suspects:
                    await connection.execute(SQL["doubt_clock"], self._name, confirmed_ms)
                suspects = True
            if confirms:
                await connection.execute(SQL["confirm_clock"], doubter)
                confirmed_ms = now_ms
        self._suspects = suspects
        self._hold(now_ms - confirmed_ms, is_doubted=is_doubted)

    def _hold(self, ahead_ms: int, *, is_doubted: bool) -> None:
        """Have messages kept longer by what no node has confirmed."""
        if is_doubted and self._doubted_by_ms is None:
            log.warning(
                "the database's clock is doubted: it is %d s from the last confirmed instant", ahead_ms // 1_000
            )
        self._doubted_by_ms = ahead_ms if is_doubted else None
        self._node.catalog.keep_longer(ahead_ms if is_doubted or ahead_ms > STEP_MS else 0)

    async def trust(self) -> str:
        """Confirm the present instant, as an operator says that it is right; return what that changed."""
        was_doubted = self._doubted_by_ms is not None
        async with self._node.database.connection() as connection:
            await connection.execute(SQL["trust_clock"])
        await self.check()
        return "The database's clock is trusted: retention deletes again." if was_doubted else NOTHING_HELD_BACK

    def warnings(self) -> list[str]:
        """Return what is wrong although requests are answered."""
        if self._doubted_by_ms is None:
            return []
        hours = self._doubted_by_ms / STEP_MS
        text = f"The clock of the database is doubted: it is {hours:+.1f} h from the last confirmed instant, and"
        remedy = "Set the clock right, or, if it is right, run veilmq clock trust."
        return [f"{text} retention deletes nothing. {remedy}"]

    def metrics(self) -> list[Metric]:
        """Return whether the clock is doubted."""
        is_doubted = self._doubted_by_ms is not None
        return [gauge("store_clock_doubted", "1 while a clock is doubted and retention deletes nothing.", is_doubted)]


SLICE_EVENTS = 1_000


async def number_events(connection: Any, options: PostgresOptions, slice_events: int = SLICE_EVENTS) -> None:
    """Number all events that are committed."""
    await connection.execute(EVENTS["state"])
    while True:
        async with connection.transaction():
            state = await connection.fetchrow(EVENTS["lock_state"])
            rows = sorted(await connection.fetch(EVENTS["take"], slice_events), key=itemgetter("number"))
            if not rows:
                return
            room = max(0, options.events_waiting_max - (state["recorded"] - state["exported"]))
            kept, dropped = rows[:room], rows[room:]
            if kept:
                encoded = encode_events(
                    [
                        event_of(queue, routing_key(properties, options.routing_attribute), *what)
                        for _, _, queue, properties, *what in kept
                    ]
                )
                await connection.execute(SQL["insert_event_batch"], state["recorded"] + 1, len(kept), encoded)
            if dropped and not state["dropped"]:
                log.warning("events are dropped: too many wait to be exported")
            expired = [(row["qp"], row["number"]) for row in dropped if row["outcome"] == "expired"]
            if expired:
                await connection.executemany(EVENTS["drop_expired"], expired)
            await connection.execute(EVENTS["number"], len(kept), len(dropped))
        if len(rows) < slice_events:
            return
