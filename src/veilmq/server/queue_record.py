"""What is known of one queue by having counted it: what is in it, how it moves, and what was visible lately.

Ten thousand of these are kept, so the history is in two arrays, 16 bytes a point.
"""

from array import array
from collections.abc import Callable, Mapping
from typing import NamedTuple

from veilmq.core.browsing import BrowsedQueue, QueueOrder
from veilmq.core.limits import SECOND_MS
from veilmq.core.results import QueueCounts, QueueView

HISTORY_MAX = 60
RATE_MS_MIN = SECOND_MS // 2
"""Over less than that no rate is told: a few messages would make a large one."""

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
        """Return this as a listing tells it, where users see the store's time ``ahead_ms`` later."""
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
    assert view.counts is not None, "asked with counts"
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
