"""The statistics of queues for listings: what a page shows is counted for it, the rest a few at a time.

Counting a queue costs the store some microseconds, on PostgreSQL a statement; ten thousand cannot be counted for each
page. So the queues of a page are counted when it is requested, and the last counts of the others decide, where a page
is not sorted by name, which queues are on it. While pages are requested, all queues are counted in rounds: those never
counted first and without a break, then ``ROUND_QUEUES`` a second, the longest uncounted first. A queue that takes long
to count (many messages on PostgreSQL) is counted the less often, so that it costs a small share of the time.
``BRISK_QUEUES`` bounds what watching pages, which ask every second, have counted in one.

Nothing is counted after ``LOOKED_AT_MS`` without a request. Ten thousand records are kept, so the history of each is in
two arrays, 16 bytes a point.
"""

import asyncio
import logging
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple

from veilmq.core.commands import (
    BrowsedQueue,
    BrowsedQueues,
    BrowseQueues,
    Clock,
    Done,
    Engine,
    ListQueues,
    QueueCounts,
    QueueOrder,
    QueuePage,
    QueueView,
    ShowQueue,
    Timer,
)
from veilmq.core.errors import QueueNotFound, VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.server.background import BackgroundRequest
from veilmq.store.port import execute

HISTORY_MAX = 60
RATE_MS_MIN = SECOND_MS // 2
"""Over less than that there is no rate: a few messages would make a large one."""

_RATE_MS = 5 * SECOND_MS


class Totals(NamedTuple):
    """What had happened to a queue until an instant."""

    at_ms: int
    sent: int
    received: int
    deleted: int


class Rates(NamedTuple):
    """What happened a second."""

    sent: float
    received: float
    deleted: float


class QueueRecord:
    """One queue, from its first count on. ``cost_s`` is how long counting takes: the shorter of the last two times."""

    __slots__ = (
        "_cost_s",
        "_earlier",
        "_later",
        "_visible",
        "_when",
        "cost_s",
        "counted_at_ms",
        "counts",
        "created_at_ms",
        "rates",
        "view",
    )

    def __init__(self, view: QueueView, now_ms: int, *, created_at_ms: int = 0) -> None:
        """Begin with a first count; all instants are of the store's time, but those of ``view`` and ``counts``."""
        self.created_at_ms = created_at_ms
        self._when = array("q")
        self._visible = array("q")
        self._earlier = self._later = _totals(_counts_of(view), now_ms)
        self._cost_s = 0.0
        self.take(view, now_ms)

    def take(self, view: QueueView, now_ms: int, *, cost_s: float = 0.0) -> None:
        """Take another count, which was made at ``now_ms``."""
        self.view = view
        self.counts = _counts_of(view)
        self.counted_at_ms = now_ms
        self.cost_s, self._cost_s = min(self._cost_s, cost_s), cost_s
        self._note_totals(_totals(self.counts, now_ms))
        self._note_visible(now_ms)

    def shown(self, name: str, *, history: bool = True, ahead_ms: int = 0) -> BrowsedQueue:
        """Return this as a listing shows it, where users see the store's time ``ahead_ms`` later."""
        counts, rates, settings = self.counts, self.rates, self.view.settings
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
            sent_per_s=None if rates is None else rates.sent,
            received_per_s=None if rates is None else rates.received,
            deleted_per_s=None if rates is None else rates.deleted,
            counted_at_ms=self.counted_at_ms + ahead_ms,
            history=[(at_ms + ahead_ms, visible) for at_ms, visible in zip(self._when, self._visible, strict=True)]
            if history
            else [],
        )

    def _note_totals(self, totals: Totals) -> None:
        """Rates are over at least some seconds where there are that many: from ``_earlier``, which ``_later`` becomes.

        Totals that fell are those of a store that was opened anew, or of another queue of this name.
        """
        if any(now < before for now, before in zip(totals, self._later, strict=True)):
            self._earlier = self._later = totals
        if totals.at_ms - self._later.at_ms >= _RATE_MS:
            self._earlier, self._later = self._later, totals
        self.rates = _rates(self._earlier, totals)

    def _note_visible(self, now_ms: int) -> None:
        if self._when and now_ms - self._when[-1] < SECOND_MS:
            self._visible[-1] = self.counts.visible
            return
        if len(self._when) == HISTORY_MAX:
            del self._when[0], self._visible[0]
        self._when.append(now_ms)
        self._visible.append(self.counts.visible)


def _age(record: QueueRecord) -> float | None:
    oldest_ms = record.counts.oldest_sent_at_ms
    return None if oldest_ms is None else -oldest_ms


VALUES: Mapping[QueueOrder, Callable[[QueueRecord], float | None]] = {
    QueueOrder.VISIBLE: lambda record: record.counts.visible,
    QueueOrder.IN_FLIGHT: lambda record: record.counts.in_flight,
    QueueOrder.DELAYED: lambda record: record.counts.delayed,
    QueueOrder.OLDEST: _age,
    QueueOrder.SENT: lambda record: record.rates and record.rates.sent,
    QueueOrder.RECEIVED: lambda record: record.rates and record.rates.received,
    QueueOrder.DELETED: lambda record: record.rates and record.rates.deleted,
}
"""What an order sorts by, ``None`` for what is not known."""


def _counts_of(view: QueueView) -> QueueCounts:
    assert view.counts is not None, "requested with counts"
    return view.counts


def _totals(counts: QueueCounts, now_ms: int) -> Totals:
    return Totals(now_ms, counts.sent, counts.received, counts.deleted)


def _rates(before: Totals, now: Totals) -> Rates | None:
    if now.at_ms - before.at_ms < RATE_MS_MIN:
        return None
    span_s = (now.at_ms - before.at_ms) / SECOND_MS
    return Rates(
        (now.sent - before.sent) / span_s,
        (now.received - before.received) / span_s,
        (now.deleted - before.deleted) / span_s,
    )


COUNTED_TOGETHER = 16
"""How many counts go to the engine at once: a fraction of a millisecond."""

COUNTED_AT_FIRST = 320
"""How many queues not counted yet a page sorted by counts waits for."""

ROUND_QUEUES = 96
BRISK_QUEUES = 128
LOOKED_AT_MS = 60 * SECOND_MS

_NAMES_TOGETHER = 5_000
_FRESH_MS = SECOND_MS // 2
_DEAR_S = 0.25
_DEAR_SHARE = 50  # what takes long to count is counted after so many times that time

log = logging.getLogger(__name__)


class QueueBook:
    """What was last counted of each queue."""

    def __init__(self, *, engine: Engine, clock: Clock) -> None:
        """Ask ``engine``, on its event loop and by its ``clock``; nothing is known yet."""
        self._engine = engine
        self._clock = clock
        self._records: dict[str, QueueRecord] = {}  # by full name, in the order in which they were counted
        self._known: dict[str, list[str]] = {}  # the full names of an account's queues
        self._looked_at_ms = 0
        self._timer: Timer | None = None
        self._round: asyncio.Task[None] | None = None
        self._brisk_until_ms = 0
        self._brisk_left = 0

    async def round_over(self) -> None:
        """Return when no round is under way."""
        if self._round is not None:
            await asyncio.wait({self._round})

    def ask(self, command: BrowseQueues, wait_s: int | None, answer: Done) -> BackgroundRequest:
        """Answer with a page."""
        return BackgroundRequest(self.browse(command), answer, what="browsing queues")

    async def browse(self, command: BrowseQueues) -> BrowsedQueues:
        """Return a page; raises ``VeilmqError``."""
        self._looked_at_ms = self._clock.now_ms()
        if command.names is not None:
            return await self._named(command, command.names)
        names = await self._found(command)
        if command.order is not QueueOrder.NAME:
            await self._count([name for name in names if name not in self._records][:COUNTED_AT_FIRST])
        self._go_round()
        page = self._sorted(command, names)[command.first : command.first + command.count]
        await self._count(page)
        shown = [self._shown(command, name) for name in self._sorted(command, page)]
        counted = sum(1 for name in names if name in self._records)
        return BrowsedQueues(queues=shown, in_all=len(names), counted=counted)

    async def _named(self, command: BrowseQueues, names: Sequence[str]) -> BrowsedQueues:
        """Return the queues of these names that exist; watching pages request this again and again."""
        whole = [f"{command.account}/{name}" for name in names]
        now_ms = self._clock.now_ms()
        if now_ms >= self._brisk_until_ms:
            self._brisk_until_ms, self._brisk_left = now_ms + SECOND_MS, BRISK_QUEUES
        new = [name for name in whole if name not in self._records]  # or it would look as if these were gone
        known = [name for name in whole if name in self._records and self._is_due(name)]
        due = sorted(known, key=self._counted_at_ms)[: self._brisk_left]
        self._brisk_left = max(self._brisk_left - len(new) - len(due), 0)
        await self._count(new + due)
        self._go_round()
        found = [name for name in whole if name in self._records]
        shown = [self._shown(command, name) for name in found]
        return BrowsedQueues(queues=shown, in_all=len(found), counted=len(found))

    async def _found(self, command: BrowseQueues) -> list[str]:
        """Return the full names of what is searched for, in order; forgets the queues that are gone."""
        account, names = command.account, list[str]()
        more = True
        while more:
            after = names[-1] if names else ""
            page: QueuePage = await execute(
                self._engine, ListQueues(account=account, after=after, count=_NAMES_TOGETHER)
            )
            names += page.names
            more = page.more
        whole = [f"{account}/{name}" for name in names]
        known = self._known.get(account)
        if known != whole:
            self._known[account] = whole
            for name in set(known or ()).difference(whole):
                self._records.pop(name, None)
        if not command.search:
            return whole
        wanted, start = command.search.lower(), len(account) + 1
        return [name for name in whole if wanted in name[start:].lower()]

    # In which order, and what of it.

    def _sorted(self, command: BrowseQueues, names: list[str]) -> list[str]:
        """Return ``names``, which are in order, as wanted; what is not known, or may not be, comes last."""
        order = command.order
        if order is QueueOrder.NAME:
            return sorted(names, reverse=command.descending)
        values: dict[str, float] = {}
        value_of = VALUES[order]
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
        return record.shown(own, history=command.history, ahead_ms=self._clock.shown_ms(0))

    # Counting.

    def _counted_at_ms(self, name: str) -> int:
        record = self._records.get(name)
        return 0 if record is None else record.counted_at_ms

    def _is_due(self, name: str) -> bool:
        """Tell whether there is something new to be learnt of a queue, at a bearable price."""
        record = self._records.get(name)
        return record is None or self._clock.now_ms() - record.counted_at_ms >= max(_FRESH_MS, _rest_ms(record))

    async def _count(self, names: Iterable[str]) -> None:
        """Count queues anew, but those that were just counted at a high price."""
        now_ms = self._clock.now_ms()
        due = [
            name
            for name in names
            if (record := self._records.get(name)) is None or now_ms - record.counted_at_ms >= _rest_ms(record)
        ]
        for first in range(0, len(due), COUNTED_TOGETHER):
            await self._count_together(due[first : first + COUNTED_TOGETHER])

    async def _count_together(self, names: Sequence[str]) -> None:
        """Have some counted at once; a task for each would cost more than its count. Raises ``VeilmqError``."""
        over = asyncio.get_running_loop().create_future()
        failures: list[VeilmqError] = []
        started_s, left = perf_counter(), len(names)

        def done(name: str, result: Any) -> None:
            nonlocal left
            if isinstance(result, VeilmqError) and not isinstance(result, QueueNotFound):
                failures.append(result)
            else:
                self._take(name, result, perf_counter() - started_s)
            left -= 1
            if not left and not over.done():
                over.set_result(None)

        for name in names:
            self._engine.submit(ShowQueue(queue=name, counts=True), partial(done, name))
        await over
        if failures:
            raise failures[0]

    def _take(self, name: str, result: Any, cost_s: float) -> None:
        record = self._records.pop(name, None)
        if not isinstance(result, QueueView):
            return
        now_ms, created_at_ms = self._clock.now_ms(), result.created_at_ms - self._clock.shown_ms(0)
        if record is None or record.created_at_ms != created_at_ms:
            record = QueueRecord(result, now_ms, created_at_ms=created_at_ms)
        else:
            record.take(result, now_ms, cost_s=cost_s)
        self._records[name] = record

    # In rounds.

    def _go_round(self) -> None:
        """Count all queues in rounds while pages are requested."""
        if self._timer is None and self._round is None:
            self._round = asyncio.ensure_future(self._turn())

    async def _turn(self) -> None:
        """Count all that were never counted, then some of those counted longest ago; arrange for the next turn."""
        try:
            names = [name for account in self._known.values() for name in account]
            await self._count([name for name in names if name not in self._records])
            await self._count(filter(self._is_due, list(islice(self._records, ROUND_QUEUES))))
        except VeilmqError:
            pass  # the store reports it; pages get the error at their next request
        except Exception:
            log.exception("counting queues failed")
        finally:
            self._round = None
        now_ms = self._clock.now_ms()
        if now_ms - self._looked_at_ms < LOOKED_AT_MS:
            self._timer = self._clock.call_at(now_ms + SECOND_MS, self._next_turn)

    def _next_turn(self) -> None:
        self._timer = None
        self._go_round()

    def close(self) -> None:
        """Count nothing more."""
        self._looked_at_ms = -LOOKED_AT_MS
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._round is not None:
            self._round.cancel()
            self._round = None  # one that had not begun would not say so


def _may_see(command: BrowseQueues, record: QueueRecord) -> bool:
    return command.may_see is None or command.may_see(record.view)


def _rest_ms(record: QueueRecord) -> float:
    """Return how long a queue is not counted after it was: next to nothing but where that took long."""
    return record.cost_s * _DEAR_SHARE * SECOND_MS if record.cost_s >= _DEAR_S else 0.0
