"""The exported metrics for Prometheus; only ``metrics`` imports this, where prometheus-client is installed.

They are read when somebody looks, so counting costs a running handler next to nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from itertools import accumulate
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from veilmq.consumer.counts import EDGES_S, Spread
from veilmq.consumer.metrics import EXPORTED, Exported, Kind, Labels, Metric


class Collector:
    """What ``prometheus_client`` asks at each look."""

    def __init__(self, metrics: Exported) -> None:
        """Tell of ``metrics``."""
        self._metrics = metrics

    def describe(self) -> list[Any]:
        """Return no names: what is told of changes."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield every metric."""
        for name, metric in self._metrics.names().items():
            family = _FAMILIES[metric.kind](name, metric.text, labels=metric.labels)
            for labels, value in self._metrics.values(name).items():
                _ADD[metric.kind](family, labels, value)
            yield family


@cache
def _register() -> None:
    REGISTRY.register(Collector(EXPORTED))


def exporting(metrics: Sequence[Metric]) -> AbstractContextManager[None]:
    """Have the default registry ask for what is exported; it stays, and has nothing to tell when nothing is."""
    _register()
    return nullcontext()


def buckets(spread: Spread) -> list[tuple[str, float]]:
    """Return the cumulative buckets of ``spread``, as Prometheus has them."""
    edges = [*map(str, EDGES_S), "+Inf"]
    return list(zip(edges, map(float, accumulate(spread.counts)), strict=True))


def _add_number(family: Any, labels: Labels, value: float) -> None:
    family.add_metric(labels, value)


def _add_spread(family: Any, labels: Labels, value: Spread) -> None:
    family.add_metric(labels, buckets(value), value.sum_s)


_FAMILIES: Mapping[Kind, Callable[..., Any]] = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}
_ADD: Mapping[Kind, Callable[[Any, Labels, Any], None]] = {
    Kind.COUNTER: _add_number,
    Kind.GAUGE: _add_number,
    Kind.HISTOGRAM: _add_spread,
}
