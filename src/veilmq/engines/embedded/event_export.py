"""The export of the event log, as far as the store has a part in it: which range is next, its rows, and their end.

What was planned is a number in the store, written before anybody acts on it, and stays until the range is forgotten: an
export begun again after a crash gets the same range with the same events, and puts the same files in the same places.
That a range is exported is written at once, its rows are removed in slices afterwards.
"""

from collections.abc import Callable
from typing import Any

from veilmq.core.commands import Command
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
from veilmq.engines.embedded.event_log import EXPORTED_TO, EventLog
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.keys import kept_key

_PLANNED_TO = "events_planned_to"
_NODE = "event_node"
_NODE_BYTES = 4
_FORGOTTEN_PER_COMMAND = 500  # batches: a few milliseconds


class EventExport:
    """The commands of whoever exports events."""

    def __init__(self, *, journal: Journal, events: EventLog) -> None:
        """``journal`` has what ``events`` wrote."""
        self._journal = journal
        self._events = events
        self._node = ""
        self._planned_to: int = journal.meta().get(_PLANNED_TO, 0)
        self.handlers: dict[type[Command], Callable[[Any, int], object]] = {
            PlanExport: self.plan,
            ReadEvents: self.read,
            ForgetEvents: self.forget,
            CountEvents: self.count,
        }

    def plan(self, command: PlanExport, now_ms: int) -> EventRange | None:
        """Choose the next range, or tell the one that was chosen before."""
        first = self._events.exported + 1
        if self._planned_to < first:
            rows = self._journal.rows("events_before", first + max(1, command.events_max))
            if not rows or rows[0][0] < first:
                return None
            self._planned_to = rows[0][0]
            self._journal.put_meta(_PLANNED_TO, self._planned_to)
        self._node = self._node or kept_key(self._journal, _NODE)[:_NODE_BYTES].hex()
        return EventRange(node=self._node, first=first, last=self._planned_to)

    def read(self, command: ReadEvents, now_ms: int) -> EventPage:
        """Read some batches of a range."""
        batches: list[tuple[int, bytes]] = []
        left, following = command.bytes_max, command.first
        for number, events, encoded in self._journal.stream("events_between", command.first, command.last):
            batches.append((number, encoded))
            following = number + events
            left -= len(encoded)
            if left <= 0:
                break
        else:
            following = command.last + 1
        return EventPage(batches=batches, next=following)

    def forget(self, command: ForgetEvents, now_ms: int) -> Forgotten:
        """Note that a range is exported, and remove a slice of what is."""
        if command.last > self._events.exported:
            self._events.exported = command.last
            self._journal.put_meta(EXPORTED_TO, command.last)
        gone = self._journal.write("delete_events", self._events.exported, _FORGOTTEN_PER_COMMAND)
        return Forgotten(more=len(gone) == _FORGOTTEN_PER_COMMAND)

    def count(self, command: CountEvents, now_ms: int) -> EventCounts:
        """Tell how many events there are."""
        return self._events.counts()
