"""The export of the event log, as far as the store has a part in it: which range is next, its rows, and their end.

One node at a time exports: it holds an advisory lock, on a connection of its own, from the plan of a range until it is
forgotten. Others that want to export wait for it. When the node or its connection ends, the lock ends with it; when it
does nothing for a while, it lets go of it. The next one finds the range that was planned, and makes the same files of
it. Should the first one still write then, nothing is lost: those are the same files. Whoever still reads when the other
one is through finds that events are missing, and must not make files of what is left.
"""

from collections.abc import Awaitable, Callable
from os import urandom
from typing import Any

import asyncpg

from veilmq.core.commands import Command
from veilmq.core.errors import ShuttingDown
from veilmq.core.events import (
    CountEvents,
    EventCounts,
    EventPage,
    EventRange,
    ExportedElsewhere,
    ForgetEvents,
    Forgotten,
    PlanExport,
    ReadEvents,
)
from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Clock, Timer
from veilmq.engines.postgres.catalog import SQL as QUEUES
from veilmq.engines.postgres.database import Database
from veilmq.engines.postgres.event_log import SQL
from veilmq.engines.postgres.event_numbers import SLICE_EVENTS, EventNumbers

_TURN = 0x7665696C6D73  # the key of the lock, beside those of migrations and the janitor
_TURN_S_MAX = 20  # how long another one is waited for
_IDLE_MS_MAX = 60 * SECOND_MS
_READ_BATCHES = 64
_FORGOTTEN_PER_COMMAND = 500  # batches

_NODE = "event_node"
_NODE_BYTES = 4


class EventExport:
    """The commands of whoever exports events."""

    def __init__(self, *, database: Database, numbers: EventNumbers, clock: Clock) -> None:
        """``numbers`` has events numbered before they are told of; ``clock`` says when a turn was idle for too long."""
        self._database = database
        self._numbers = numbers
        self._clock = clock
        self._turn: asyncpg.Connection[Any] | None = None
        self._stopped = False
        self._timer: Timer | None = None
        self.handlers: dict[type[Command], Callable[[Any], Awaitable[Any]]] = {
            PlanExport: self.plan,
            ReadEvents: self.read,
            ForgetEvents: self.forget,
            CountEvents: self.count,
        }

    @property
    def has_turn(self) -> bool:
        """Whether this node is the one that exports."""
        return self._turn is not None and not self._turn.is_closed()

    async def plan(self, command: PlanExport) -> EventRange | None:
        """Choose the next range, or tell the one that was chosen before, once this node has the turn."""
        await self._take_turn()
        events_max = max(1, command.events_max)
        async with self._database.connection() as connection:
            await self._numbers.number(connection, min(SLICE_EVENTS, events_max))
            async with connection.transaction():
                state = await connection.fetchrow(SQL["lock_state"])
                first, last = state["exported"] + 1, state["planned"]
                if last < first:
                    last = await connection.fetchval(SQL["planned_to"], first + events_max)
                    if last is None or last < first:
                        self._leave_turn()
                        return None
                    await connection.execute(SQL["plan"], last)
            node = await connection.fetchval(QUEUES["kept_key"], _NODE, urandom(_NODE_BYTES))
        return EventRange(node=node.hex(), first=first, last=last)

    async def read(self, command: ReadEvents) -> EventPage:
        """Read some batches of a range; raises ``ExportedElsewhere`` when another node has exported it meanwhile."""
        self._stay()
        async with self._database.connection() as connection:
            rows = await connection.fetch(SQL["read"], command.first, command.last, _READ_BATCHES)
        if command.first <= command.last and (not rows or rows[0]["number"] != command.first):
            raise ExportedElsewhere  # the first ones are forgotten first
        batches: list[tuple[int, bytes]] = []
        left, following = command.bytes_max, command.first
        for number, events, encoded in rows:
            batches.append((number, encoded))
            following = number + events
            left -= len(encoded)
            if left <= 0:
                break
        else:
            if len(rows) < _READ_BATCHES:
                following = command.last + 1
        return EventPage(batches=batches, next=following)

    async def forget(self, command: ForgetEvents) -> Forgotten:
        """Note that a range is exported, and remove a slice of what is."""
        self._stay()
        async with self._database.connection() as connection:
            await connection.execute(SQL["export"], command.last)
            gone = await connection.fetchval(SQL["forget"], _FORGOTTEN_PER_COMMAND)
        if gone < _FORGOTTEN_PER_COMMAND:
            self._leave_turn()
        return Forgotten(more=gone == _FORGOTTEN_PER_COMMAND)

    async def count(self, command: CountEvents) -> EventCounts:
        """Tell how many events there are."""
        async with self._database.connection() as connection:
            return await self._numbers.number(connection)

    def stop(self) -> None:
        """Leave the turn to others, and take no more."""
        self._stopped = True
        self._leave_turn()

    # The turn.

    async def _take_turn(self) -> None:
        """Wait until no other node exports; raises ``ExportedElsewhere`` when that takes too long."""
        if not self.has_turn:
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
