"""The export of the event log from several nodes: whose turn it is; ``store.events`` has the export itself.

One node at a time exports: it holds an advisory lock, on a connection of its own, from the plan of a range until it is
forgotten. Others that want to export wait for it. When the node or its connection ends, the lock ends with it; when it
does nothing for a while, it lets go of it. The next one finds the range that was planned, and makes the same files of
it. Should the first one still write then, nothing is lost: those are the same files. Whoever still reads when the other
one is through finds that events are missing, and must not make files of what is left.
"""

from collections.abc import Awaitable, Callable
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
from veilmq.store import events
from veilmq.store.postgres.cold_commands import ColdCommands
from veilmq.store.postgres.database import Database
from veilmq.store.postgres.event_numbers import SLICE_EVENTS, EventNumbers

_TURN = 0x7665696C6D73  # the key of the lock, beside those of migrations and the janitor
_TURN_S_MAX = 20  # how long another one is waited for
_IDLE_MS_MAX = 60 * SECOND_MS


class EventExport:
    """The commands of whoever exports events."""

    def __init__(self, *, database: Database, numbers: EventNumbers, clock: Clock, cold: ColdCommands) -> None:
        """``numbers`` numbers events before they are exported; ``clock`` says when a turn was idle for too long."""
        self._database = database
        self._numbers = numbers
        self._clock = clock
        self._plan = cold.running(events.plan_export, changes=True)
        self._read = cold.running(events.read_events, changes=False)
        self._forget = cold.running(events.forget_events, changes=True)
        self._count = cold.running(events.count_events, changes=False)
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
        """Choose the next range, or return the one that was chosen before, once this node has the turn."""
        await self._take_turn()
        await self._number(min(SLICE_EVENTS, max(1, command.events_max)))
        planned: EventRange | None = await self._plan(command)
        if planned is None:
            self._leave_turn()
        return planned

    async def read(self, command: ReadEvents) -> EventPage:
        """Read some batches of a range; raises ``ExportedElsewhere`` when another node has exported it meanwhile."""
        self._stay()
        page: EventPage = await self._read(command)
        return page

    async def forget(self, command: ForgetEvents) -> Forgotten:
        """Note that a range is exported, and remove a slice of what is."""
        self._stay()
        forgotten: Forgotten = await self._forget(command)
        if not forgotten.more:
            self._leave_turn()
        return forgotten

    async def count(self, command: CountEvents) -> EventCounts:
        """Return how many events there are."""
        await self._number(SLICE_EVENTS)
        counts: EventCounts = await self._count(command)
        return counts

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
