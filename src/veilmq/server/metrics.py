"""What the server counts: requests and their durations, as plain integers on the hot path.

A request costs one look into a table, one search among the bounds and two additions; everything that Prometheus wants
(names, labels, cumulative buckets) is made when somebody asks.
"""

from collections.abc import Iterable

from veilmq.store.port import Series


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
        series.add(seconds)

    def copy(self) -> "Metrics":
        """Return the counters as they are now."""
        copied = Metrics()
        for name, series in self._series.items():
            copied._series[name] = series.copy()
        return copied

    def series(self) -> Iterable[tuple[str, str, Series]]:
        """Yield action, code and what was counted, in order."""
        for action, code in sorted(self._series):
            yield action, code, self._series[action, code]
