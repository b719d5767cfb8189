"""What the server counts: requests and their durations, as plain integers on the hot path.

A request costs one look into a table, one search among the bounds and two additions; everything that Prometheus wants
(names, labels, cumulative buckets) is made when somebody asks.
"""

from bisect import bisect_left
from collections.abc import Iterable

LATENCY_BOUNDS_S = (0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0)
"""Upper bounds of the buckets, in seconds; long polls are why there are long ones."""


class Series:
    """The requests of one action with one outcome: ``buckets`` by duration, the last one without a bound."""

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        """Begin with none."""
        self.buckets = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.seconds = 0.0

    @property
    def count(self) -> int:
        """Return how many there were."""
        return sum(self.buckets)


class Metrics:
    """The counters of one server, by action and code: ``OK`` or the name of the error."""

    __slots__ = ("_series",)

    def __init__(self) -> None:
        """Begin with no series."""
        self._series: dict[tuple[str, str], Series] = {}

    def count(self, action: str, code: str, seconds: float) -> None:
        """Count one answered request; ``action`` and ``code`` are of closed sets."""
        series = self._series.get((action, code))
        if series is None:
            series = self._series[action, code] = Series()
        series.buckets[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        series.seconds += seconds

    def copy(self) -> "Metrics":
        """Return the counters as they are now."""
        copied = Metrics()
        for name, series in self._series.items():
            kept = copied._series[name] = Series()
            kept.buckets, kept.seconds = series.buckets.copy(), series.seconds
        return copied

    def series(self) -> Iterable[tuple[str, str, Series]]:
        """Yield action, code and what was counted, in order."""
        for action, code in sorted(self._series):
            yield action, code, self._series[action, code]
