"""Metrics of consumers and forwarders, exported through each installed library.

Prometheus reads values at each scrape. OpenTelemetry, if a provider is configured, reads counters and gauges and gets
each observation of a histogram.
"""

import importlib.util
import logging
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import accumulate
from typing import Any, Literal
from weakref import WeakKeyDictionary

import msgspec

from veilmq import __version__
from veilmq.client.messages import ClientError
from veilmq.consumer.processes import process_number
from veilmq.consumer.renewal_policies import RenewalResult, plain_code

_log = logging.getLogger("veilmq.consumer")

EDGES_S = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0, 120.0, 600.0, 3_600.0, 14_400.0, 43_200.0)
EVENTS = (
    "received",
    "redelivered",
    "started",
    "recognised",
    "acked",
    "dropped",
    "retried",
    "rejected",
    "released",
    "left",
    "suspect",
    "lost",
    "ended",
    "delete_failed",
)
"""The events of messages; all are exported from the start, as 0."""
OTEL_SCOPE = "veilmq"

Labels = tuple[str, ...]


@dataclass(slots=True, eq=False)
class Histogram:
    """Durations in seconds, in buckets with upper edges ``EDGES_S`` and infinity.

    ``observe``, if set, is called with each observation.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(EDGES_S) + 1))
    sum_s: float = 0.0
    observe: Callable[[float], object] | None = None

    def add(self, duration_s: float) -> None:
        """Count one observation; a negative one counts as 0."""
        duration_s = max(0.0, duration_s)
        self.counts[bisect_left(EDGES_S, duration_s)] += 1
        self.sum_s += duration_s
        if self.observe is not None:
            self.observe(duration_s)


@dataclass(slots=True, eq=False)
class Counters:
    """The metrics of one handler; ``events`` has the keys ``EVENTS``.

    The event loop's thread writes and exporters read without a lock; slightly old numbers are harmless.
    """

    events: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(EVENTS, 0)))
    queue_wait: Histogram = field(default_factory=Histogram)
    buffer_wait: Histogram = field(default_factory=Histogram)
    handle_time: Histogram = field(default_factory=Histogram)
    hold_time: Histogram = field(default_factory=Histogram)


@dataclass(slots=True, eq=False)
class RenewalMetrics:
    """Metrics of the calls that renew leases, written in the renewer's threads.

    ``took`` is the duration of calls; ``lateness`` is how late a renewal is sent; ``margin`` is the time left of the
    lease then, at least 0.
    """

    calls: int = 0
    results: Counter[str] = field(default_factory=lambda: Counter({result.value: 0 for result in RenewalResult}))
    errors: Counter[str] = field(default_factory=Counter)
    took: Histogram = field(default_factory=Histogram)
    lateness: Histogram = field(default_factory=Histogram)
    margin: Histogram = field(default_factory=Histogram)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, results: Sequence[RenewalResult], errors: Sequence[Exception], took_s: float) -> None:
        """Count one call with its results, and its errors by class."""
        with self._lock:
            self.calls += 1
            self.took.add(took_s)
            self.results.update(result.value for result in results)
            self.errors.update(map(class_of, errors))


def class_of(error: Exception) -> str:
    """Return the server's code for ``error``, else the name of its class."""
    return plain_code(error.code) if isinstance(error, ClientError) else type(error).__name__


MetricKind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Metric:
    """One metric; ``read`` returns pairs of label values and a number or ``Histogram``.

    The name of a counter has no ``_total``, which Prometheus adds.
    """

    name: str
    kind: MetricKind
    text: str
    labels: Labels = ()
    read: Callable[[], Iterable[tuple[Labels, Any]]]

    def attributes(self, labels: Labels) -> dict[str, str]:
        """Return label values by name."""
        return dict(zip(self.labels, labels, strict=True))


class Exported:
    """The currently exported metrics, a collector of ``prometheus_client``. Thread-safe."""

    def __init__(self, metrics: Sequence[Metric] = ()) -> None:
        self.metrics = [*metrics]

    def values(self, name: str) -> dict[Labels, Any]:
        """Return the values of ``name`` by label values; the first one if several metrics have the same labels."""
        return {
            labels: value for metric in self.metrics[::-1] if metric.name == name for labels, value in metric.read()
        }

    def describe(self) -> list[Any]:
        """Return no names, because they change."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield all metrics for a scrape."""
        from prometheus_client import core  # noqa: PLC0415 (an extra)

        for name, metric in {metric.name: metric for metric in self.metrics[::-1]}.items():
            family: Any = getattr(core, f"{metric.kind.capitalize()}MetricFamily")(
                name, metric.text, labels=metric.labels
            )
            for labels, value in self.values(name).items():
                if metric.kind == "histogram":
                    family.add_metric(labels, buckets(value), value.sum_s)
                else:
                    family.add_metric(labels, value)
            yield family


EXPORTED = Exported()
"""One for the process, like the registries of the libraries."""


@contextmanager
def exported(metrics: Sequence[Metric]) -> Iterator[None]:
    """Export ``metrics`` through each installed library while the context lasts."""
    with ExitStack() as stack:
        for metric in metrics:
            EXPORTED.metrics.append(metric)
            stack.callback(EXPORTED.metrics.remove, metric)
        if is_installed("prometheus_client"):
            _register_prometheus()
        if is_installed("opentelemetry.metrics"):
            stack.enter_context(export_otel(metrics))
        yield


def is_installed(module: str) -> bool:
    """Return whether ``module`` can be imported. Imports its parent package."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package
        return False


def is_configured(provider: object) -> bool:
    """Return whether an OpenTelemetry provider is real, not a no-op of the API."""
    return not type(provider).__module__.startswith(("opentelemetry.metrics", "opentelemetry.trace"))


@cache
def _register_prometheus() -> None:
    """Register the collector once; it is empty while nothing is exported."""
    from prometheus_client import REGISTRY  # noqa: PLC0415 (an extra)

    REGISTRY.register(EXPORTED)


def buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return the cumulative buckets of ``histogram`` for Prometheus."""
    edges = [*map(str, EDGES_S), "+Inf"]
    return list(zip(edges, map(float, accumulate(histogram.counts)), strict=True))


_instruments: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
"""By meter and name, because an instrument can be created only once and stays."""


@contextmanager
def export_otel(metrics: Sequence[Metric], provider: Any = None) -> Iterator[None]:
    """Export ``metrics`` to the OpenTelemetry ``provider``, by default the configured one, if any."""
    from opentelemetry.metrics import Observation, get_meter_provider  # noqa: PLC0415 (an extra)

    chosen = get_meter_provider() if provider is None else provider
    if not is_configured(chosen):
        yield
        return
    meter = chosen.get_meter(OTEL_SCOPE, __version__)
    instruments = _instruments.setdefault(meter, {})

    def read(metric: Metric, _: object) -> list[Any]:
        values = EXPORTED.values(metric.name)
        return [Observation(value, metric.attributes(labels)) for labels, value in values.items()]

    with ExitStack() as stack:
        for metric in metrics:
            unit = "s" if metric.name.endswith("_seconds") else ""
            if metric.kind != "histogram":
                if metric.name not in instruments:
                    create = getattr(meter, f"create_observable_{metric.kind}")
                    instruments[metric.name] = create(metric.name, [partial(read, metric)], unit, metric.text)
                continue
            if metric.name not in instruments:
                edges = {"explicit_bucket_boundaries_advisory": list(EDGES_S)}
                instruments[metric.name] = meter.create_histogram(metric.name, unit, metric.text, **edges)
            for labels, histogram in metric.read():
                histogram.observe = partial(instruments[metric.name].record, attributes=metric.attributes(labels))
                stack.callback(setattr, histogram, "observe", None)
        yield


@contextmanager
def served(port: int | None, status: Callable[[], object]) -> Iterator[None]:
    """While the context lasts, serve ``/metrics`` for Prometheus, and ``status()`` at ``/status`` for ``veilmq top``.

    Without a port nothing is served; 0 selects a free one. Each process of a supervisor uses the next port. Raises
    ``ModuleNotFoundError`` and ``OSError``.
    """
    if port is None:
        yield
        return
    from wsgiref.simple_server import WSGIRequestHandler, make_server  # noqa: PLC0415 (rarely needed)

    from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app  # noqa: PLC0415 (an extra)

    class Quiet(WSGIRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Log nothing: there is a scrape every few seconds."""

    metrics = make_wsgi_app()

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != "/status":
            body: Iterable[bytes] = metrics(environ, start_response)
            return body
        start_response("200 OK", [("Content-Type", "application/json")])
        return [msgspec.json.encode(status())]

    own_port = port and port + (process_number() or 0)
    try:
        wsgi_server = make_server("", own_port, app, server_class=ThreadingWSGIServer, handler_class=Quiet)
    except (OSError, OverflowError) as error:
        raise OSError(f"cannot listen at {own_port}: {getattr(error, 'strerror', 'there is no such port')}") from error
    with wsgi_server as server:
        _log.info("metrics at port %d", server.server_port)
        threading.Thread(target=server.serve_forever, name="veilmq-metrics", daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
