"""Statistics of queues for listings: queues on the page are counted at once, the others in the background.

Counting a queue costs the store some microseconds; ten thousand cannot be counted for each page. So a page's queues are
counted when it is requested. If it is not sorted by name, the last counts of all queues decide which are on it. While
pages are requested, all queues are counted in rounds: new ones first and without a break, then ``ROUND_QUEUES`` a
second, least recently counted first. ``WATCHED_QUEUES`` limits how many queues pages that update every second can
count per second.

Counting stops ``IDLE_MS_MAX`` after the last request. For ten thousand records, the history of each is in two arrays,
16 bytes a point.
"""

import asyncio
import logging
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from veilmq.core.commands import (
    BrowsedQueue,
    BrowsedQueues,
    BrowseQueues,
    Clock,
    Engine,
    ListQueues,
    QueueOrder,
    QueuePage,
    QueueView,
    Timer,
)
from veilmq.core.errors import VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.store.port import CountQueues, execute

HISTORY_MAX = 60
RATE_MS_MIN = SECOND_MS // 2
"""No rate is computed over less: a few messages would give a high one."""

_RATE_MS = 5 * SECOND_MS

_Totals = tuple[int, int, int, int]
"""A time, and the numbers of messages sent, received and deleted until then."""


class QueueRecord:
    """The counts of one queue; ``rates``: messages sent, received and deleted per second, ``None`` while unknown."""

    __slots__ = "_earlier", "_later", "_times", "_visible", "counted_at_ms", "counts", "created_at_ms", "rates", "view"

    def __init__(self, view: QueueView, now_ms: int, *, created_at_ms: int = 0) -> None:
        """Start with a first count; times are store time, except in ``view`` and ``counts``."""
        self.created_at_ms = created_at_ms
        self._times = array("q")
        self._visible = array("q")
        self._earlier: _Totals | None = None
        self._later: _Totals | None = None
        self.rates: tuple[float, float, float] | None = None
        self.add_count(view, now_ms)

    def add_count(self, view: QueueView, now_ms: int) -> None:
        """Add a count made at ``now_ms``."""
        assert view.counts is not None, "requested with counts"
        self.view = view
        self.counts = counts = view.counts
        self.counted_at_ms = now_ms
        # Rates span at least _RATE_MS if possible: from _earlier, which _later replaces. Totals that fell are those of
        # a store that was reopened, or of another queue of this name.
        totals = (now_ms, counts.sent, counts.received, counts.deleted)
        earlier, later = self._earlier, self._later
        if earlier is None or later is None or any(now < before for now, before in zip(totals, later, strict=True)):
            earlier = later = totals
        if now_ms - later[0] >= _RATE_MS:
            earlier, later = later, totals
        self._earlier, self._later, self.rates = earlier, later, None
        passed_ms, *changes = (now - before for now, before in zip(totals, earlier, strict=True))
        if passed_ms >= RATE_MS_MIN:
            sent, received, deleted = (change * SECOND_MS / passed_ms for change in changes)
            self.rates = sent, received, deleted
        if self._times and now_ms - self._times[-1] < SECOND_MS:
            self._visible[-1] = counts.visible
            return
        if len(self._times) == HISTORY_MAX:
            del self._times[0], self._visible[0]
        self._times.append(now_ms)
        self._visible.append(counts.visible)

    def shown(self, name: str, *, history: bool = True, shown_ahead_ms: int = 0) -> BrowsedQueue:
        """Return the queue as listings show it; shown time is ``shown_ahead_ms`` ahead of store time."""
        counts, settings = self.counts, self.view.settings
        per_s: Sequence[float | None] = self.rates or (None, None, None)
        points = zip(self._times, self._visible, strict=True) if history else ()
        return BrowsedQueue(
            name=name,
            fifo=settings.fifo,
            dead_letter_queue=settings.dead_letter_queue or None,
            visible=counts.visible,
            in_flight=counts.in_flight,
            delayed=counts.delayed,
            oldest_sent_at_ms=counts.oldest_sent_at_ms,
            sent=counts.sent,
            received=counts.received,
            deleted=counts.deleted,
            sent_per_s=per_s[0],
            received_per_s=per_s[1],
            deleted_per_s=per_s[2],
            counted_at_ms=self.counted_at_ms + shown_ahead_ms,
            history=[(at_ms + shown_ahead_ms, visible) for at_ms, visible in points],
        )


SORT_VALUES: Mapping[QueueOrder, Callable[[QueueRecord], float | None]] = {
    QueueOrder.VISIBLE: lambda record: record.counts.visible,
    QueueOrder.IN_FLIGHT: lambda record: record.counts.in_flight,
    QueueOrder.DELAYED: lambda record: record.counts.delayed,
    QueueOrder.OLDEST: lambda record: record.counts.oldest_sent_at_ms and -record.counts.oldest_sent_at_ms,
    QueueOrder.SENT: lambda record: record.rates and record.rates[0],
    QueueOrder.RECEIVED: lambda record: record.rates and record.rates[1],
    QueueOrder.DELETED: lambda record: record.rates and record.rates[2],
}
"""The value by which an order sorts; ``None`` if unknown."""

COUNT_BATCH = 16
"""How many queues are counted at once: a fraction of a millisecond."""

NEW_QUEUES_PER_PAGE = 320
"""How many new queues a page sorted by counts waits for."""

ROUND_QUEUES = 96
WATCHED_QUEUES = 128
IDLE_MS_MAX = 60 * SECOND_MS

_NAMES_PER_PAGE = 5_000
_FRESH_MS = SECOND_MS // 2

log = logging.getLogger(__name__)


class QueueStatistics:
    """The last counts of each queue."""

    def __init__(self, *, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._records: dict[str, QueueRecord] = {}  # by full name, least recently counted first
        self._new: set[str] = set()  # found but never counted
        self._requested_at_ms = 0
        self._timer: Timer | None = None
        self._round: asyncio.Task[None] | None = None
        self._watched_until_ms = 0
        self._watched_left = 0

    async def browse(self, command: BrowseQueues) -> BrowsedQueues:
        """Return a page of queues; raises ``VeilmqError``."""
        self._requested_at_ms = self._clock.now_ms()
        if command.names is not None:
            return await self._by_names(command, command.names)
        names = await self._find(command)
        if command.order is not QueueOrder.NAME:
            await self._count([name for name in names if name not in self._records][:NEW_QUEUES_PER_PAGE])
        if self._timer is None:
            self._start_round()
        page = self._sorted(command, names)[command.first : command.first + command.count]
        await self._count(page)
        shown = [self._shown(command, name) for name in self._sorted(command, page)]
        counted = sum(1 for name in names if name in self._records)
        return BrowsedQueues(queues=shown, in_all=len(names), counted=counted)

    async def _by_names(self, command: BrowseQueues, names: Sequence[str]) -> BrowsedQueues:
        """Return the queues of these names that exist; open pages request this every second."""
        full_names = [f"{command.account}/{name}" for name in names]
        now_ms = self._clock.now_ms()
        if now_ms >= self._watched_until_ms:
            self._watched_until_ms, self._watched_left = now_ms + SECOND_MS, WATCHED_QUEUES
        new = [name for name in full_names if name not in self._records]  # uncounted queues would look deleted
        known = [name for name in full_names if name in self._records and self._is_due(name)]
        due = sorted(known, key=lambda name: self._records[name].counted_at_ms)[: self._watched_left]
        self._watched_left = max(self._watched_left - len(new) - len(due), 0)
        await self._count(new + due)
        if self._timer is None:
            self._start_round()
        counted = [name for name in full_names if name in self._records]
        shown = [self._shown(command, name) for name in counted]
        return BrowsedQueues(queues=shown, in_all=len(counted), counted=len(counted))

    async def _find(self, command: BrowseQueues) -> list[str]:
        """Return the full names that match the search, in order; drop the records of deleted queues."""
        account, names = command.account, list[str]()
        more = True
        while more:
            after = names[-1] if names else ""
            page: QueuePage = await execute(
                self._engine, ListQueues(account=account, after=after, count=_NAMES_PER_PAGE)
            )
            names += page.names
            more = page.more
        full_names = [f"{account}/{name}" for name in names]
        known = {name for name in self._records if name.startswith(f"{account}/")}
        for name in known.difference(full_names):
            del self._records[name]
        self._new.update(set(full_names).difference(known))
        if not command.search:
            return full_names
        search, start = command.search.lower(), len(account) + 1
        return [name for name in full_names if search in name[start:].lower()]

    def _sorted(self, command: BrowseQueues, names: list[str]) -> list[str]:
        """Return ``names``, sorted by name, in the requested order; unknown or hidden values come last."""
        order = command.order
        if order is QueueOrder.NAME:
            return sorted(names, reverse=command.descending)
        values: dict[str, float] = {}
        value_of = SORT_VALUES[order]
        for name in names:
            record = self._records.get(name)
            value = None if record is None or not _may_see(command, record) else value_of(record)
            if value is not None:
                values[name] = -value if command.descending else value
        known = sorted(values, key=lambda name: (values[name], name))
        return known + [name for name in names if name not in values]

    def _shown(self, command: BrowseQueues, name: str) -> BrowsedQueue:
        own = name.partition("/")[2]
        record = self._records.get(name)
        if record is None or not _may_see(command, record):
            return BrowsedQueue(name=own)
        return record.shown(own, history=command.history, shown_ahead_ms=self._clock.shown_ms(0))

    def _is_due(self, name: str) -> bool:
        record = self._records.get(name)
        return record is None or self._clock.now_ms() - record.counted_at_ms >= _FRESH_MS

    async def _count(self, names: Sequence[str]) -> None:
        for first in range(0, len(names), COUNT_BATCH):
            batch = names[first : first + COUNT_BATCH]
            views = {view.queue: view for view in await execute(self._engine, CountQueues(names=batch))}
            for name in batch:
                self._record(name, views.get(name))

    def _record(self, name: str, result: QueueView | None) -> None:
        record = self._records.pop(name, None)
        if result is None:
            return
        now_ms, created_at_ms = self._clock.now_ms(), result.created_at_ms - self._clock.shown_ms(0)
        if record is None or record.created_at_ms != created_at_ms:
            record = QueueRecord(result, now_ms, created_at_ms=created_at_ms)
        else:
            record.add_count(result, now_ms)
        self._records[name] = record

    def _start_round(self) -> None:
        self._timer = None
        if self._round is None:
            self._round = asyncio.ensure_future(self._count_round())

    async def _count_round(self) -> None:
        """Count all new queues, then some of the least recently counted ones; schedule the next round."""
        try:
            new = sorted(self._new.difference(self._records))
            await self._count(new)
            self._new.difference_update(new, self._records)
            await self._count([*filter(self._is_due, islice(self._records, ROUND_QUEUES))])
        except VeilmqError:
            pass  # the store reports it; the next request of a page gets the error
        except Exception:
            log.exception("counting queues failed")
        finally:
            self._round = None
        now_ms = self._clock.now_ms()
        if now_ms - self._requested_at_ms < IDLE_MS_MAX:
            self._timer = self._clock.call_at(now_ms + SECOND_MS, self._start_round)

    def close(self) -> None:
        """Stop counting."""
        self._requested_at_ms = -IDLE_MS_MAX
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._round is not None:
            self._round.cancel()
            self._round = None  # a task that never started does not reach its finally


def _may_see(command: BrowseQueues, record: QueueRecord) -> bool:
    return command.may_see is None or command.may_see(record.view)
