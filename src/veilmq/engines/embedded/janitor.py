"""The janitor: deletes what retention and purges have put out of reach, and returns drained space to the disk.

It is one more sender of commands: each ``Sweep`` is a slice of a bounded number of rows in some batch, and between two
of them is a pause, so it never keeps the writer for longer than a slice (a thousand rows: a few milliseconds, the most
that is allowed being 20). Retention is at least a minute, so a look a minute misses no end of it; nothing is ever
delivered late because of the janitor, since every command looks at retention by itself.
"""

import asyncio
from collections.abc import Callable, Iterator

import msgspec

from veilmq.core.commands import Command
from veilmq.core.errors import VeilmqError
from veilmq.core.limits import RETENTION_S, SECOND_MS
from veilmq.core.ports import Clock, Done, Timer
from veilmq.engines.embedded.catalog import Catalog
from veilmq.engines.embedded.claimable import ClaimableLane
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.pauses import QueuePauses
from veilmq.engines.embedded.queue import Queue
from veilmq.engines.embedded.remembered import Remembered
from veilmq.engines.embedded.run import NEVER_MS
from veilmq.engines.embedded.space import Space

_ROWS_PER_SLICE = 1_000
_LOOK_ROWS = 5  # what looking at a lane takes, in rows swept
_PAGES_PER_SLICE = 500
_FREE_PAGES_KEPT = 4_096
_PAUSE_S = 0.01
_PAUSE_S_AFTER_ERROR = 1.0
_LOOK_MS_MIN = SECOND_MS
_LOOK_MS_MAX = RETENTION_S.minimum * SECOND_MS


class Sweep(Command, frozen=True, kw_only=True):
    """Do one slice of the janitor's work. Answers ``Swept``."""


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """Whether more is to be done now, and else when to look again (``run.NEVER_MS``: there is nothing to look at)."""

    more: bool
    next_due_ms: int


class Sweeper:
    """The work itself, on what the catalog has."""

    def __init__(self, *, catalog: Catalog, journal: Journal, space: Space, pauses: QueuePauses) -> None:
        """All are the state machine's own."""
        self._catalog = catalog
        self._journal = journal
        self._space = space
        self._pauses = pauses
        self._remembered = Remembered(journal=journal)

    def sweep(self, command: Sweep, now_ms: int) -> Swept:
        """Do one slice."""
        self._catalog.unsettled = False
        self._space.look_again(now_ms)
        self._pauses.forget(now_ms)
        remembered = self._remembered.sweep(_ROWS_PER_SLICE // 2, now_ms)
        remembered += self._catalog.events.sweep(_ROWS_PER_SLICE // 4, now_ms)
        effort_left, left = _ROWS_PER_SLICE - remembered, remembered > 0
        for queue, lane in self._unswept(now_ms):
            rows = self._sweep(lane, max(1, effort_left))
            left = left or not lane.swept
            effort_left -= _LOOK_ROWS + rows
            if rows and queue is not None:
                queue.ended(now_ms)
            if effort_left <= 0:
                return Swept(more=True, next_due_ms=now_ms)
        more = self._give_back() or left or self._pauses.next_end_ms() <= now_ms
        return Swept(more=more, next_due_ms=now_ms if more else self._next_due_ms(now_ms))

    def _unswept(self, now_ms: int) -> Iterator[tuple[Queue | None, ClaimableLane]]:
        """Yield lanes that have, or may have, rows out of reach, with their queues; the retired ones first."""
        yield from [(None, lane) for lane in self._catalog.retired.values()]
        for queue in self._catalog.queues():
            due = any(now_ms >= lane.expires_at_ms for lane in queue.lanes)
            queue.expire(now_ms)
            yield from [(queue, lane) for lane in queue.lanes if due or not lane.swept]

    def _sweep(self, lane: ClaimableLane, rows_max: int) -> int:
        """Sweep a slice of one lane; return how many messages that deleted."""
        rows = lane.sweep(rows_max)
        if lane.queue is None and lane.swept:
            self._catalog.forget(lane)
        return rows

    def _give_back(self) -> bool:
        pages = self._journal.free_pages() - _FREE_PAGES_KEPT
        if pages > 0:
            self._journal.give_back(min(pages, _PAGES_PER_SLICE))
        return pages > 0

    def _next_due_ms(self, now_ms: int) -> int:
        lanes = (lane for queue in self._catalog.queues() for lane in queue.lanes)
        at_ms = min((lane.expires_at_ms for lane in lanes), default=NEVER_MS)
        at_ms = min(at_ms, self._pauses.next_end_ms(), self._remembered.due_ms(), self._catalog.events.due_ms())
        if at_ms == NEVER_MS:
            return NEVER_MS
        return min(max(at_ms, now_ms + _LOOK_MS_MIN), now_ms + _LOOK_MS_MAX)


class Janitor:
    """When to sweep: on demand, and when the next message may be past its retention."""

    def __init__(self, *, submit: Callable[[Command, Done], None], clock: Clock) -> None:
        """``submit`` is the engine's."""
        self._submit = submit
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._busy = False
        self._stopped = False
        self._timer: Timer | None = None
        self._pause: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether it neither works nor has arranged to."""
        return not self._busy and self._timer is None

    def wake(self) -> None:
        """Work now, unless it does."""
        if not self._busy:
            self._busy = True
            self._disarm()
            self._submit(Sweep(), self._swept)

    def look_later(self, now_ms: int) -> None:
        """Look before anything sent now can be past its retention."""
        self._timer = self._clock.call_at(now_ms + _LOOK_MS_MAX, self.wake)

    def stop(self) -> None:
        """Do no more."""
        self._stopped = True
        self._busy = True
        self._disarm()
        if self._pause is not None:
            self._pause.cancel()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _swept(self, result: Swept | VeilmqError) -> None:
        if isinstance(result, VeilmqError):
            self._again(_PAUSE_S_AFTER_ERROR)
        elif result.more:
            self._again(_PAUSE_S)
        else:
            self._busy = self._stopped
            if not self._stopped and result.next_due_ms != NEVER_MS:
                self._timer = self._clock.call_at(result.next_due_ms, self.wake)

    def _again(self, pause_s: float) -> None:
        if not self._stopped:
            self._pause = self._loop.call_later(pause_s, self._submit, Sweep(), self._swept)
