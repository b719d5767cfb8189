"""The timeline as markup of SVG: the same for the page, and for the script that puts what changed into it.

Places along the line are in per cent, so that the text keeps its size whatever the width. A frame of time stays as it
is as long as the bars fit into it, so that what did not change need not be drawn again.
"""

from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from markupsafe import Markup, escape

from veilmq.console.rendering import duration
from veilmq.console.timeline import WORDS, Bar, Timeline, key_of
from veilmq.core.limits import SECOND_MS

LINE_PX = 28
AXIS_PX = 24

_MINUTE_MS = 60 * SECOND_MS
_HOUR_MS = 60 * _MINUTE_MS
_SPANS_MS = (
    *(minutes * _MINUTE_MS for minutes in (1, 2, 5, 10, 20, 40)),
    *(hours * _HOUR_MS for hours in (1, 2, 4, 8, 16, 32)),
)
_ROOM = 1.05  # a frame is chosen so much wider than what is in it
_LOOSE = 4  # and a narrower one when so much of it is empty
_MARKS = (0, 25, 50, 75)
_TURN_PERCENT = 70  # from here on a bar's words end where it begins


class Frame(NamedTuple):
    """What is in sight: from ``left_ms`` on for ``span_ms``."""

    left_ms: int
    span_ms: int

    def x(self, at_ms: int) -> float:
        """Return where an instant is, in per cent, at one of the edges for what is beyond it."""
        return min(max((at_ms - self.left_ms) * 100 / self.span_ms, 0.0), 100.0)

    def holds(self, at_ms: int) -> bool:
        """Tell whether an instant is in sight."""
        return self.left_ms <= at_ms <= self.left_ms + self.span_ms


Drawn = dict[tuple[object, ...], Markup]
"""Bars as they were drawn, by all that shows."""


class Drawing(NamedTuple):
    """``bars`` is markup by key, ``axis`` that of the marks of time; ``now_percent`` is where now is."""

    bars: dict[str, Markup]
    axis: Markup
    now_percent: float
    height_px: int


def frame_for(timeline: Timeline, before: Frame | None = None) -> Frame:
    """Return a frame in which all bars are, ``before`` if that will do."""
    now_ms = timeline.now_ms
    begin_ms = min((bar.lease.received_at_ms for bar in timeline), default=now_ms)
    end_ms = max(now_ms, max((bar.end_ms for bar in timeline), default=now_ms))
    needed_ms = end_ms - begin_ms
    if before is not None and before.holds(begin_ms) and before.holds(end_ms) and not _is_loose(before, needed_ms):
        return before
    span_ms = next((span for span in _SPANS_MS if span >= needed_ms * _ROOM), _SPANS_MS[-1])
    left_ms = begin_ms - int((span_ms - needed_ms) * (1 - 1 / _ROOM))
    return Frame(left_ms, span_ms)


def _look_of(bar: Bar) -> tuple[object, ...]:
    return bar.lease, bar.place, bar.renewed_at_ms, bar.ending, bar.ended_at_ms


def _is_loose(frame: Frame, needed_ms: int) -> bool:
    return frame.span_ms > max(needed_ms * _LOOSE, _SPANS_MS[0])


def draw(timeline: Timeline, frame: Frame, *, href: str, drawn: Drawn | None = None) -> Drawing:
    """Return the markup; ``href`` is where bars lead. ``drawn`` keeps what was drawn, for the next time."""
    before = {} if drawn is None else dict(drawn)
    now = {(frame, *_look_of(bar)): bar for bar in timeline}
    made = {look: before.get(look) or _bar(bar, frame, href) for look, bar in now.items()}
    if drawn is not None:
        drawn.clear()
        drawn.update(made)
    bars = {key_of(bar.lease): made[look] for look, bar in now.items()}
    lines = max((bar.place for bar in timeline), default=0) + 1
    return Drawing(bars, _axis(frame), round(frame.x(timeline.now_ms), 2), AXIS_PX + lines * LINE_PX)


def words(bar: Bar) -> str:
    """Return what is known of a bar in one sentence."""
    lease = bar.lease
    told = [f"message {lease.message_id}", f"receive {lease.receive_count}"]
    if lease.group is not None:
        told.append(f"group {lease.group}")
    told.append(f"held since {_clock(lease.received_at_ms)}")
    if bar.ending is None:
        told.append(f"until {_clock(lease.visible_at_ms)} ({_held(bar)} in all)")
    else:
        told.append(f"{WORDS[bar.ending]}, at {_clock(bar.end_ms)} after {_held(bar)}")
    renewals = max(len(bar.renewed_at_ms), lease.extensions or 0)
    if renewals:
        told.append(f"extended {renewals} {'time' if renewals == 1 else 'times'}")
    return ", ".join(told)


@lru_cache(maxsize=256)
def _axis(frame: Frame) -> Markup:
    marks = []
    for percent in _MARKS:
        told = _clock(frame.left_ms + frame.span_ms * percent // 100)
        marks.append(
            f'<line class="mark" x1="{percent}%" x2="{percent}%" y1="0" y2="100%"/>'
            f'<text x="{percent}%" dx="3" y="12">{told}</text>'
        )
    return Markup("".join(marks))


def _bar(bar: Bar, frame: Frame, href: str) -> Markup:
    """Return a bar; what comes from messages is escaped here, as ``Markup.format`` would at ten times the price."""
    x, end_x = frame.x(bar.lease.received_at_ms), frame.x(bar.end_ms)
    top = AXIS_PX + bar.place * LINE_PX
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
    if frame.holds(bar.wall_ms):
        ticks.append(("wall", bar.wall_ms, top + 8, top + 26))
    return "".join(
        f'<line class="{kind}" x1="{frame.x(at_ms):.2f}%" x2="{frame.x(at_ms):.2f}%" y1="{begin}" y2="{end}"/>'
        for kind, at_ms, begin, end in ticks
    )


def _label(bar: Bar, kind: str) -> str:
    """Return the words beside a bar: the beginning of the message's id, its receives, its group, how it ended."""
    lease = bar.lease
    told = f"{lease.message_id[:8]} ×{lease.receive_count}"
    if lease.group is not None:
        told += f" {lease.group[:24]}"
    return told if bar.ending is None else f"{told}, {kind}"


def _held(bar: Bar) -> str:
    return duration((bar.end_ms - bar.lease.received_at_ms) / SECOND_MS)


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / SECOND_MS, UTC).strftime("%H:%M:%S")
