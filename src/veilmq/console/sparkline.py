"""A number over time as a line of some pixels, drawn here: one look says whether it grows."""

from collections.abc import Sequence
from typing import NamedTuple

WIDTH = 96
HEIGHT = 24
_EDGE = 2  # so that the line's own width stays within


class Sparkline(NamedTuple):
    """``points`` are those of an SVG polyline; ``least`` and ``most`` are the numbers at its lowest and highest."""

    points: str
    least: int
    most: int
    span_ms: int


def sparkline(history: Sequence[Sequence[int]]) -> Sparkline | None:
    """Return the line through ``history``, pairs of an instant (ms) and a number; ``None`` for less than two."""
    if len(history) < 2:
        return None
    begin_ms, end_ms = history[0][0], history[-1][0]
    values = [value for _, value in history]
    least, most = min(values), max(values)
    span_ms, rise = max(end_ms - begin_ms, 1), max(most, 1)
    points = [
        f"{(at_ms - begin_ms) * WIDTH / span_ms:.1f},{HEIGHT - _EDGE - value * (HEIGHT - 2 * _EDGE) / rise:.1f}"
        for at_ms, value in history
    ]
    return Sparkline(" ".join(points), least, most, end_ms - begin_ms)
