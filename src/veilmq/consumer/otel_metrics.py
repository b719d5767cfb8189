"""The exported metrics through OpenTelemetry's API; only ``metrics`` imports this, where that is installed.

Counters and gauges are observed when the provider's reader asks. A histogram cannot be: each of its observations is
recorded, in the thread that makes it. Without a configured provider nothing is made at all.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter_provider

from veilmq import __version__
from veilmq.consumer.counts import EDGES_S, Spread
from veilmq.consumer.metrics import EXPORTED, Kind, Metric

SCOPE = "veilmq"
_API = "opentelemetry.metrics"
_SECONDS = "_seconds"

_made: WeakKeyDictionary[Meter, dict[str, Any]] = WeakKeyDictionary()
"""By name, since an instrument can be made once, and stays."""


@contextmanager
def exporting(metrics: Sequence[Metric], provider: MeterProvider | None = None) -> Iterator[None]:
    """Tell ``provider``, else the one that is configured now, of ``metrics``."""
    chosen = get_meter_provider() if provider is None else provider
    if type(chosen).__module__.startswith(_API):  # what the API itself brings does nothing
        yield
        return
    meter = chosen.get_meter(SCOPE, __version__)
    with ExitStack() as stack:
        for metric in metrics:
            instrument = _instrument(meter, metric)
            if metric.kind is Kind.HISTOGRAM:
                for labels, spread in metric.read():
                    _record(spread, partial(instrument.record, attributes=_named(metric, labels)))
                    stack.callback(_record, spread, None)
        yield


def _instrument(meter: Meter, metric: Metric) -> Any:
    instruments = _made.setdefault(meter, {})
    if metric.name not in instruments:
        instruments[metric.name] = _MAKE[metric.kind](meter, metric)
    return instruments[metric.name]


def _observe(metric: Metric, options: CallbackOptions) -> Iterable[Observation]:
    return [Observation(value, _named(metric, labels)) for labels, value in EXPORTED.values(metric.name).items()]


def _named(metric: Metric, labels: Sequence[str]) -> dict[str, str]:
    return dict(zip(metric.labels, labels, strict=True))


def _record(spread: Spread, tell: Callable[[float], object] | None) -> None:
    spread.tell = tell


def _unit(metric: Metric) -> str:
    return "s" if metric.name.endswith(_SECONDS) else ""


def _counter(meter: Meter, metric: Metric) -> Any:
    return meter.create_observable_counter(metric.name, [partial(_observe, metric)], _unit(metric), metric.text)


def _gauge(meter: Meter, metric: Metric) -> Any:
    return meter.create_observable_gauge(metric.name, [partial(_observe, metric)], _unit(metric), metric.text)


def _histogram(meter: Meter, metric: Metric) -> Any:
    return meter.create_histogram(
        metric.name, _unit(metric), metric.text, explicit_bucket_boundaries_advisory=list(EDGES_S)
    )


_MAKE: Mapping[Kind, Callable[[Meter, Metric], Any]] = {
    Kind.COUNTER: _counter,
    Kind.GAUGE: _gauge,
    Kind.HISTOGRAM: _histogram,
}
