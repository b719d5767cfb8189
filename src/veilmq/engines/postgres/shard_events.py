"""The event logs of several databases, exported as one: a range of one of them at a time, in turns.

Each database numbers its own events and names itself, so that no two ranges have one name.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from veilmq.core.commands import Command
from veilmq.core.errors import StoreUnavailable
from veilmq.core.events import (
    CountEvents,
    EventCounts,
    EventPage,
    EventRange,
    ForgetEvents,
    Forgotten,
    PlanExport,
    ReadEvents,
)
from veilmq.engines.execute import execute
from veilmq.engines.postgres.shard import Shard


class ShardEvents:
    """The commands of whoever exports events, one range after the other."""

    def __init__(self, shards: Mapping[int, Shard]) -> None:
        """``shards`` are all databases by their places; they may change."""
        self._shards = shards
        self._place = 0
        self.handlers: dict[type[Command], Callable[[Any], Awaitable[Any]]] = {
            PlanExport: self.plan,
            ReadEvents: self.read,
            ForgetEvents: self.forget,
            CountEvents: self.count,
        }

    async def plan(self, command: PlanExport) -> EventRange | None:
        """Choose the next range, of the database whose turn it is or of the next one that has any.

        One that is down is passed over; raises ``StoreUnavailable`` if it may be the only one that has any.
        """
        failure: StoreUnavailable | None = None
        for shard in sorted(self._shards.values(), key=lambda shard: (shard.place < self._place, shard.place)):
            try:
                planned: EventRange | None = await execute(shard, command)
            except StoreUnavailable as error:
                failure = error
                continue
            if planned is not None:
                self._place = shard.place
                return planned
        if failure is not None:
            raise failure
        return None

    async def read(self, command: ReadEvents) -> EventPage:
        """Read events of the database whose range was planned."""
        page: EventPage = await execute(self._planned(), command)
        return page

    async def forget(self, command: ForgetEvents) -> Forgotten:
        """Take it that they are exported; then it is the next one's turn."""
        forgotten: Forgotten = await execute(self._planned(), command)
        if not forgotten.more:
            self._place += 1
        return forgotten

    async def count(self, command: CountEvents) -> EventCounts:
        """Tell how many there are in all; raises ``StoreUnavailable`` while a database is down."""
        counts: list[EventCounts] = [await execute(shard, command) for shard in list(self._shards.values())]
        return EventCounts(
            recorded=sum(each.recorded for each in counts),
            exported=sum(each.exported for each in counts),
            dropped=sum(each.dropped for each in counts),
        )

    def _planned(self) -> Shard:
        shard = self._shards.get(self._place)
        if shard is None:
            raise StoreUnavailable
        return shard
