"""Durations that were observed lately, counted on a logarithmic scale: quantiles without keeping the values.

Two windows are counted, the present one and the one before it, so that a quantile looks back over one to two windows
and what is older is forgotten. A quantile is the upper edge of its bucket: never too short, too long by 5 % at most.
"""

import math
from collections.abc import Iterable

WINDOW_S = 300.0
RATIO = 1.05
SHORTEST_S = 0.001
BUCKETS = 362
"""Twelve hours have a bucket; what is longer is counted there."""

_LOG_RATIO = math.log(RATIO)


class Durations:
    """Counts of durations in seconds; not safe to use from two threads at once."""

    __slots__ = ("_before", "_now", "_rotate_at_s", "_window_s", "count")

    def __init__(self, *, window_s: float = WINDOW_S) -> None:
        """Begin with no observation; the first window begins with the first of them."""
        self._window_s = window_s
        self._now = [0] * BUCKETS
        self._before = [0] * BUCKETS
        self._rotate_at_s: float | None = None
        self.count = 0
        """Observations in both windows, as of the latest ``add`` or ``quantile``."""

    def add(self, duration_s: float, *, now_s: float) -> None:
        """Count an observation made at ``now_s``."""
        self._rotate(now_s)
        self._now[bucket(duration_s)] += 1
        self.count += 1

    def quantile(self, share: float, *, now_s: float, running_s: Iterable[float] = ()) -> float | None:
        """Return the duration that ``share`` of the observations do not exceed, ``None`` when there is none.

        ``running_s`` are durations that are not over yet; they count as if they ended now.
        """
        self._rotate(now_s)
        counts = [early + late for early, late in zip(self._before, self._now, strict=True)]
        for duration_s in running_s:
            counts[bucket(duration_s)] += 1
        return _quantile(counts, share)

    def _rotate(self, now_s: float) -> None:
        if self._rotate_at_s is None:
            self._rotate_at_s = now_s + self._window_s
        while now_s >= self._rotate_at_s:
            late_by = (now_s - self._rotate_at_s) // self._window_s
            self._before = self._now if late_by < 1 else [0] * BUCKETS
            self._now = [0] * BUCKETS
            self.count = sum(self._before)
            self._rotate_at_s += self._window_s * (late_by + 1)


def bucket(duration_s: float) -> int:
    """Return the place of ``duration_s`` on the scale."""
    if duration_s <= SHORTEST_S:
        return 0
    return min(BUCKETS - 1, math.ceil(math.log(duration_s / SHORTEST_S) / _LOG_RATIO - 1e-9))


def edge_s(place: int) -> float:
    """Return the longest duration in bucket ``place``."""
    return float(SHORTEST_S * RATIO**place)


def _quantile(counts: list[int], share: float) -> float | None:
    wanted = math.ceil(share * sum(counts))
    if wanted == 0:
        return None
    seen = 0
    for place, n in enumerate(counts):
        seen += n
        if seen >= wanted:
            return edge_s(place)
    raise AssertionError("the buckets hold fewer than their sum")
