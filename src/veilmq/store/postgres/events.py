"""The event log: what became of receipts, how events get their numbers, and which node exports them.

On a logged queue a statement is another one than elsewhere, where nothing is paid: it has the lines behind "log:" in
the files of statements, and writes an event for each receipt that it ends (``mq.outcomes``). What an event says of the
receive stands with the message (``store.events``). Receipts that ended without a deletion are kept for a day, for the
delete that may come late.

Events that are committed are taken away, a slice at a time, numbered, and stored as one batch, under the lock of one
row; so numbers rise without a gap. No event stands before one that it follows: what wrote the later one had seen the
earlier one, so it was there to be taken, and has the lower place in its table. Where too many wait to be exported the
newest are dropped and counted.

One node at a time exports: it holds an advisory lock, on a connection of its own, from the plan of a range until it is
forgotten; others wait for it. When the node or its connection ends, the lock ends with it; when it does nothing for a
while, it lets go of it. The next one finds the range that was planned, and makes the same files of it.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import asyncpg

from veilmq.core.commands import Command
from veilmq.core.errors import ShuttingDown
from veilmq.core.events import (
    CountEvents,
    ExportedElsewhere,
    ForgetEvents,
    PlanExport,
    ReadEvents,
    encode,
)
from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Clock, Timer
from veilmq.core.receipts import Receipt
from veilmq.core.results import ReceiptState
from veilmq.store import events
from veilmq.store.events import Event, event_of, is_logged, log_begun, log_placed, routing_key
from veilmq.store.named_queries import load
from veilmq.store.postgres.database import Database, PostgresOptions
from veilmq.store.postgres.queues import FIFO, STANDARD, PartitionRetired, Queue, retention_ms

log = logging.getLogger(__name__)

_WITHOUT = re.compile(r"^.*-- no log\n", re.MULTILINE)

SQL = load("veilmq.store.postgres", "events.sql")


def logged(statements: dict[str, str]) -> dict[str, str]:
    """Return the statements as they are for logged queues."""
    return {name: _WITHOUT.sub("", text).replace("-- log: ", "") for name, text in statements.items()}


_STANDARD_LOGGED = logged(STANDARD)


class EventLog:
    """Which queues are logged by one node, and how."""

    def __init__(self, *, options: PostgresOptions) -> None:
        self._default = options.event_log

    def has(self, queue: Queue) -> bool:
        """Tell whether the receipts of ``queue`` are logged."""
        return is_logged(queue.settings, self._default)

    def sql(self, queue: Queue) -> dict[str, str]:
        """Return the statements on messages of ``queue``, whose last terms are then its ``terms``."""
        if queue.settings.fifo:
            return FIFO
        return _STANDARD_LOGGED if self.has(queue) else STANDARD

    def terms(self, queue: Queue) -> tuple[Any, ...]:
        """Return what a statement is told about the log."""
        if self.has(queue):
            return queue.origin, queue.name
        return (queue.origin, None) if queue.settings.fifo else ()

    def check_moved(self, queue: Queue, living: Sequence[Any]) -> None:
        """Raise ``PartitionRetired`` where a dead letter, of which that is written, could not be moved."""
        if self.has(queue) and any(row["receive_count"] > queue.settings.receives_max for row in living):
            raise PartitionRetired

    async def place(self, connection: Any, queue: Queue, rows: Sequence[Any], shares: Sequence[int]) -> None:
        """Say anew of messages that a receive took in several steps which place each has in its share."""
        if not self.has(queue):
            return
        logs = []
        for place, (first, end) in zip(range(len(rows)), zip(*places_of(shares), strict=True), strict=False):
            waited_ms = max(0, rows[place]["now"] - rows[place]["received_at"])
            begun = log_begun(min(end, len(rows)) - first, waited_ms)
            logs.append(log_placed(begun, place - first))
        seqs = [row["seq"] for row in rows]
        await connection.execute(_STANDARD_LOGGED["log"], queue.partition, seqs, logs)

    async def note(self, connection: Any, queue: Queue, how: str, seqs: list[int]) -> None:
        """Write the ends of receipts, if ``queue`` is logged; ``how`` is for ``mq.outcomes``."""
        if seqs and self.has(queue):
            await connection.execute(self.sql(queue)["note"], queue.partition, how, seqs, queue.origin, queue.name)

    async def late(
        self,
        connection: Any,
        queue: Queue,
        useless: Mapping[ReceiptState, Sequence[Receipt]],
        *,
        earlier: Sequence[Receipt],
    ) -> None:
        """Write what deletes that do nothing tell of their receipts, which are given by what they were.

        ``earlier`` are superseded ones that did delete.
        """
        if not (useless or earlier) or not self.has(queue):
            return
        expired = useless.get(ReceiptState.EXPIRED, ())
        ended = await self._end(connection, queue, queue.partition, expired)
        superseded = [each for each in expired if each.position not in ended]  # by a receive since they were looked at
        await self._correct(connection, queue, [*superseded, *useless.get(ReceiptState.SUPERSEDED, ()), *earlier])
        left = await self._correct(connection, queue, useless.get(ReceiptState.GONE, ()))
        if left:  # what ended them may not have been seen by anybody yet
            rows = await connection.fetch(SQL["retired_parts"], queue.number)
            for partition in (queue.partition, *(number for (number,) in rows)):
                ended = await self._end(connection, queue, partition, left)
                left = [each for each in left if each.position not in ended]

    async def _correct(self, connection: Any, queue: Queue, gone: Sequence[Receipt]) -> list[Receipt]:
        """Correct the ends that are written; return the receipts that have none."""
        if not gone:
            return []
        rows = await connection.fetch(SQL["correct"], queue.origin, *_columns(gone))
        corrected = {seq for (seq,) in rows}
        return [each for each in gone if each.position not in corrected]

    async def _end(self, connection: Any, queue: Queue, partition: int, receipts: Sequence[Receipt]) -> set[int]:
        """Write the late ends of those that are open; return their positions."""
        if not receipts:
            return set()
        rows = await connection.fetch(
            self.sql(queue)["end_receipts"],
            partition,
            *_columns(receipts),
            retention_ms(queue),
            queue.origin,
            queue.name,
        )
        return {seq for (seq,) in rows}


def places_of(shares: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return where the share begins and ends to which each place belongs."""
    firsts: list[int] = []
    ends: list[int] = []
    for share in shares:
        first = len(firsts)
        firsts += [first] * share
        ends += [first + share] * share
    return firsts, ends


def _columns(receipts: Sequence[Receipt]) -> tuple[list[int], list[int]]:
    ordered = sorted({(each.position, each.generation) for each in receipts})
    return [position for position, _ in ordered], [generation for _, generation in ordered]


SLICE_EVENTS = 1_000


class EventNumbers:
    """Numbers the events of one store."""

    def __init__(self, *, options: PostgresOptions) -> None:
        self._options = options

    async def number(self, connection: Any, slice_events: int = SLICE_EVENTS) -> None:
        """Number all events that are committed."""
        await connection.execute(SQL["state"])
        while await self._slice(connection, slice_events) == slice_events:
            pass

    async def _slice(self, connection: Any, slice_events: int) -> int:
        async with connection.transaction():
            state = await connection.fetchrow(SQL["lock_state"])
            rows = sorted(await connection.fetch(SQL["take"], slice_events), key=lambda row: row["number"])
            if not rows:
                return 0
            room = max(0, self._options.events_waiting_max - (state["recorded"] - state["exported"]))
            kept, dropped = rows[:room], rows[room:]
            if kept:
                encoded = encode([self._event(row) for row in kept])
                await connection.execute(SQL["insert_batch"], state["recorded"] + 1, len(kept), encoded)
            if dropped:
                await self._drop(connection, dropped, is_first=not state["dropped"])
            await connection.execute(SQL["number"], len(kept), len(dropped))
        return len(rows)

    async def _drop(self, connection: Any, dropped: list[Any], *, is_first: bool) -> None:
        if is_first:
            log.warning("events are dropped: too many wait to be exported")
        numbers: dict[int, list[int]] = {}
        for row in dropped:
            if row["outcome"] == "expired":
                numbers.setdefault(row["qp"], []).append(row["number"])
        for origin, of_queue in numbers.items():
            await connection.execute(SQL["drop_expired"], origin, of_queue)

    def _event(self, row: Any) -> Event:
        return event_of(
            queue=row["queue"],
            key=routing_key(row["properties"], self._options.routing_attribute),
            group_hash=row["group_hash"],
            size=row["size"],
            message_id=row["id"],
            generation=row["generation"],
            sent_at_ms=row["came_at"],
            received_at_ms=row["received_at"],
            visible_at_ms=row["visible_at"],
            receive_count=row["receive_count"],
            log=row["log"],
            outcome=row["outcome"],
            closed_at_ms=row["closed_at"],
        )


_TURN = 0x7665696C6D73  # the key of the lock, beside those of migrations and the janitor
_TURN_S_MAX = 20  # how long another one is waited for
_IDLE_MS_MAX = 60 * SECOND_MS


Running = Callable[..., Callable[[Any], Awaitable[Any]]]
"""Makes a handler of a cold command; see ``transaction.ColdCommands.running``."""


class EventExport:
    """The commands of whoever exports events."""

    def __init__(self, *, database: Database, numbers: EventNumbers, clock: Clock, running: Running) -> None:
        self._database = database
        self._numbers = numbers
        self._clock = clock
        self._running = running
        self._turn: asyncpg.Connection[Any] | None = None
        self._stopped = False
        self._timer: Timer | None = None
        self.handlers: dict[type[Command], Callable[[Any], Awaitable[Any]]] = {
            PlanExport: self._plan,
            ReadEvents: self._read,
            ForgetEvents: self._forget,
            CountEvents: self._count,
        }

    async def _plan(self, command: PlanExport) -> Any:
        """Choose the next range, or return the one that was chosen before, once this node has the turn."""
        await self._take_turn()
        await self._number(min(SLICE_EVENTS, max(1, command.events_max)))
        planned = await self._running(events.plan_export, changes=True)(command)
        if planned is None:
            self._leave_turn()
        return planned

    async def _read(self, command: ReadEvents) -> Any:
        """Read some batches of a range; raises ``ExportedElsewhere`` when another node has exported it meanwhile."""
        self._stay()
        return await self._running(events.read_events, changes=False)(command)

    async def _forget(self, command: ForgetEvents) -> Any:
        """Note that a range is exported, and remove a slice of what is."""
        self._stay()
        forgotten = await self._running(events.forget_events, changes=True)(command)
        if not forgotten.more:
            self._leave_turn()
        return forgotten

    async def _count(self, command: CountEvents) -> Any:
        await self._number(SLICE_EVENTS)
        return await self._running(events.count_events, changes=False)(command)

    async def _number(self, slice_events: int) -> None:
        async with self._database.connection() as connection:
            await self._numbers.number(connection, slice_events)

    def stop(self) -> None:
        """Leave the turn to others, and take no more."""
        self._stopped = True
        self._leave_turn()

    # The turn.

    async def _take_turn(self) -> None:
        """Wait until no other node exports; raises ``ExportedElsewhere`` when that takes too long."""
        if self._turn is None or self._turn.is_closed():
            connection = await self._database.connect()
            try:
                await connection.execute(f"SET lock_timeout = '{_TURN_S_MAX}s'")
                await connection.execute("SELECT pg_advisory_lock($1)", _TURN)
            except asyncpg.LockNotAvailableError:
                connection.terminate()
                raise ExportedElsewhere from None
            except BaseException:
                connection.terminate()
                raise
            if self._stopped:
                connection.terminate()
                raise ShuttingDown
            self._turn = connection
        self._stay()

    def _stay(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_at(self._clock.now_ms() + _IDLE_MS_MAX, self._leave_turn)

    def _leave_turn(self) -> None:
        turn, self._turn = self._turn, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if turn is not None:
            turn.terminate()
