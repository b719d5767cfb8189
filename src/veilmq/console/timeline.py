"""The leases of a queue as bars, from repeated queries: when each began, and ends or ended, and how.

A query returns what is in flight, and the messages of leases seen before. If the message still exists, its lease has
expired if the timeout has passed, else it was released; if not, the message was deleted (or the queue purged). A lease
that begins and ends between two queries is not seen, and renewals are drawn at the time of the query.

The drawing is SVG markup, the same for the page and for the script that updates it. Horizontal positions are in per
cent, so that text keeps its size at any width. The time frame stays the same while the bars fit into it, so that
unchanged bars need not be drawn again.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import msgspec
from markupsafe import Markup, escape

from veilmq.console.rendering import counted, duration
from veilmq.core.limits import LEASE_S_MAX, SECOND_MS
from veilmq.wire.v1.queues import Lease

BARS_MAX = 60
"""How many leases are drawn, those that end first; the others are only counted."""

ENDED_MS = 10 * SECOND_MS
"""How long a bar stays after its end."""

ENDED_MAX = 30
"""How many ended bars stay, the latest: no reader can follow thousands a second."""

RENEWALS_MAX = 40


class Ending(Enum):
    """How a lease ended, as far as queries show."""

    DELETED = "deleted"
    RETURNED = "returned"
    EXPIRED = "expired"


WORDS: Mapping[Ending, str] = {
    Ending.DELETED: "deleted",
    Ending.RETURNED: "returned: it was released, and is visible again",
    Ending.EXPIRED: "expired: its timeout ended, and it is visible again",
}


class Bar(msgspec.Struct, kw_only=True):
    """A lease with its history: ``renewed_at_ms`` are the times of queries that saw a new deadline.

    ``row`` is its position from the top, which stays the same. ``end_ms`` is its deadline or its end.
    """

    lease: Lease
    row: int
    renewed_at_ms: tuple[int, ...] = ()
    ending: Ending | None = None
    ended_at_ms: int | None = None

    @property
    def end_ms(self) -> int:
        """The deadline, or the actual end."""
        return self.lease.visible_at_ms if self.ended_at_ms is None else self.ended_at_ms

    @property
    def max_deadline_ms(self) -> int:
        """The latest possible deadline of the lease."""
        return self.lease.received_at_ms + LEASE_S_MAX * SECOND_MS


class Timeline:
    """The bars of one queue."""

    def __init__(self) -> None:
        self._bars: dict[str, Bar] = {}
        self.now_ms = 0

    def __iter__(self) -> Iterator[Bar]:
        return iter(sorted(self._bars.values(), key=lambda bar: bar.row))

    @property
    def positions(self) -> list[str]:
        """The positions of messages with unfinished bars, for the next query."""
        return [bar.lease.position for bar in self._bars.values() if bar.ending is None]

    def update(self, leases: Sequence[Lease], now_ms: int) -> None:
        """Add the result of a query at ``now_ms``: leases, first to end first, then the messages at ``positions``."""
        self.now_ms = now_ms
        seen = {key_of(lease): lease for lease in unfinished(leases, now_ms)[:BARS_MAX]}
        self._end(seen, {lease.message_id: lease for lease in leases}, now_ms)
        self._drop_ended(now_ms)
        for key, lease in seen.items():
            bar = self._bars.get(key)
            if bar is None or bar.ending is not None:
                self._bars[key] = Bar(lease=lease, row=self._free_row())
            elif bar.lease.visible_at_ms != lease.visible_at_ms:
                bar.renewed_at_ms = (*bar.renewed_at_ms, now_ms)[-RENEWALS_MAX:]
                bar.lease = lease

    def _end(self, seen: Mapping[str, Lease], messages: Mapping[str, Lease], now_ms: int) -> None:
        """End the bars not ``seen``; drop those that continue but are not drawn. ``messages`` are by id."""
        for key in [key for key, bar in self._bars.items() if bar.ending is None and key not in seen]:
            bar = self._bars[key]
            last = messages.get(bar.lease.message_id)
            is_same = last is not None and key_of(last) == key
            if last is not None and is_same and last.visible_at_ms > now_ms:
                del self._bars[key]
                continue
            end_ms = last.visible_at_ms if last is not None and is_same else now_ms
            bar.ended_at_ms = min(end_ms, bar.lease.visible_at_ms)
            if last is None:
                bar.ending = Ending.DELETED
            elif bar.ended_at_ms == bar.lease.visible_at_ms:
                bar.ending = Ending.EXPIRED
            else:
                bar.ending = Ending.RETURNED

    def _drop_ended(self, now_ms: int) -> None:
        ended = [(bar.ended_at_ms, key) for key, bar in self._bars.items() if bar.ended_at_ms is not None]
        shown = [key for at_ms, key in sorted(ended, reverse=True)[:ENDED_MAX] if at_ms + ENDED_MS > now_ms]
        for key in {key for _, key in ended}.difference(shown):
            del self._bars[key]

    def _free_row(self) -> int:
        used = {bar.row for bar in self._bars.values()}
        return next(row for row in range(len(used) + 1) if row not in used)


def key_of(lease: Lease) -> str:
    """Return the key of a lease; each receive of a message has its own."""
    return f"{lease.message_id}.{lease.generation}"


def unfinished(leases: Sequence[Lease], now_ms: int) -> list[Lease]:
    return [lease for lease in leases if lease.visible_at_ms > now_ms]


LINE_PX = 28
AXIS_PX = 24

_MINUTE_MS = 60 * SECOND_MS
_HOUR_MS = 60 * _MINUTE_MS
_SPANS_MS = (
    *(minutes * _MINUTE_MS for minutes in (1, 2, 5, 10, 20, 40)),
    *(hours * _HOUR_MS for hours in (1, 2, 4, 8, 16, 32)),
)
_ROOM = 1.05  # a new frame is this much wider than needed
_LOOSE = 4  # a frame this many times as wide as needed is replaced by a narrower one
_MARKS = (0, 25, 50, 75)
_TURN_PERCENT = 70  # right of this, labels are right-aligned


class Frame(NamedTuple):
    """The visible time range: ``span_ms`` from ``left_ms``."""

    left_ms: int
    span_ms: int

    def x(self, at_ms: int) -> float:
        """Return the position of an instant in per cent, clamped to the edges."""
        return min(max((at_ms - self.left_ms) * 100 / self.span_ms, 0.0), 100.0)

    def holds(self, at_ms: int) -> bool:
        return self.left_ms <= at_ms <= self.left_ms + self.span_ms


Drawn = dict[tuple[object, ...], Markup]
"""Cache of drawn bars, by everything that they show."""


class Drawing(NamedTuple):
    """``bars`` is markup by key, ``axis`` the markup of time marks; ``now_percent`` is the position of now."""

    bars: dict[str, Markup]
    axis: Markup
    now_percent: float
    height_px: int


def frame_for(timeline: Timeline, before: Frame | None = None) -> Frame:
    """Return a frame that contains all bars; ``before`` if it still fits."""
    now_ms = timeline.now_ms
    begin_ms = min((bar.lease.received_at_ms for bar in timeline), default=now_ms)
    end_ms = max(now_ms, max((bar.end_ms for bar in timeline), default=now_ms))
    needed_ms = end_ms - begin_ms
    most_ms = max(needed_ms * _LOOSE, _SPANS_MS[0])
    if before is not None and before.span_ms <= most_ms and before.holds(begin_ms) and before.holds(end_ms):
        return before
    span_ms = next((span for span in _SPANS_MS if span >= needed_ms * _ROOM), _SPANS_MS[-1])
    left_ms = begin_ms - int((span_ms - needed_ms) * (1 - 1 / _ROOM))
    return Frame(left_ms, span_ms)


def draw(timeline: Timeline, frame: Frame, *, href: str, drawn: Drawn | None = None) -> Drawing:
    """Return the markup; ``href`` is the link of bars. ``drawn`` caches bars from one call to the next."""
    before = {} if drawn is None else dict(drawn)
    now: dict[tuple[object, ...], Bar] = {
        (frame, bar.lease, bar.row, bar.renewed_at_ms, bar.ending, bar.ended_at_ms): bar for bar in timeline
    }
    made = {key: before.get(key) or _bar(bar, frame, href) for key, bar in now.items()}
    if drawn is not None:
        drawn.clear()
        drawn.update(made)
    bars = {key_of(bar.lease): made[key] for key, bar in now.items()}
    lines = max((bar.row for bar in timeline), default=0) + 1
    return Drawing(bars, _axis(frame), round(frame.x(timeline.now_ms), 2), AXIS_PX + lines * LINE_PX)


def words(bar: Bar) -> str:
    """Return the description of a bar in one sentence."""
    lease = bar.lease
    parts = [f"message {lease.message_id}", f"receive {lease.receive_count}"]
    if lease.group is not None:
        parts.append(f"group {lease.group}")
    parts.append(f"held since {_clock(lease.received_at_ms)}")
    if bar.ending is None:
        parts.append(f"until {_clock(lease.visible_at_ms)} ({_held(bar)} in all)")
    else:
        parts.append(f"{WORDS[bar.ending]}, at {_clock(bar.end_ms)} after {_held(bar)}")
    renewals = max(len(bar.renewed_at_ms), lease.extensions or 0)
    if renewals:
        parts.append(f"extended {counted(renewals, 'times')}")
    return ", ".join(parts)


@lru_cache(maxsize=256)
def _axis(frame: Frame) -> Markup:
    marks = []
    for percent in _MARKS:
        time = _clock(frame.left_ms + frame.span_ms * percent // 100)
        marks.append(
            f'<line class="mark" x1="{percent}%" x2="{percent}%" y1="0" y2="100%"/>'
            f'<text x="{percent}%" dx="3" y="12">{time}</text>'
        )
    return Markup("".join(marks))


def _bar(bar: Bar, frame: Frame, href: str) -> Markup:
    """Return a bar; values from messages are escaped here, at a tenth of the cost of ``Markup.format``."""
    x, end_x = frame.x(bar.lease.received_at_ms), frame.x(bar.end_ms)
    top = AXIS_PX + bar.row * LINE_PX
    kind = "held" if bar.ending is None else bar.ending.value
    anchor = "end" if x > _TURN_PERCENT else "start"
    return Markup(
        f'<g class="bar {kind}" data-key="{escape(key_of(bar.lease))}"><title>{escape(words(bar))}</title>'
        f'<a href="{escape(href)}"><text x="{x:.2f}%" y="{top + 10}" text-anchor="{anchor}">{escape(_label(bar, kind))}'
        f'</text><rect x="{x:.2f}%" y="{top + 14}" width="{max(end_x - x, 0.2):.2f}%" height="8" rx="2"/>'
        f"{_ticks(bar, frame, top)}</a></g>"
    )


def _ticks(bar: Bar, frame: Frame, top: int) -> str:
    ticks = [("renewal", at_ms, top + 12, top + 24) for at_ms in bar.renewed_at_ms if frame.holds(at_ms)]
    if frame.holds(bar.max_deadline_ms):
        ticks.append(("wall", bar.max_deadline_ms, top + 8, top + 26))
    return "".join(
        f'<line class="{kind}" x1="{frame.x(at_ms):.2f}%" x2="{frame.x(at_ms):.2f}%" y1="{begin}" y2="{end}"/>'
        for kind, at_ms, begin, end in ticks
    )


def _label(bar: Bar, kind: str) -> str:
    lease = bar.lease
    text = f"{lease.message_id[:8]} ×{lease.receive_count}"
    if lease.group is not None:
        text += f" {lease.group[:24]}"
    return text if bar.ending is None else f"{text}, {kind}"


def _held(bar: Bar) -> str:
    return duration((bar.end_ms - bar.lease.received_at_ms) / SECOND_MS)


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / SECOND_MS, UTC).strftime("%H:%M:%SZ")
