"""Metrics of consumers and forwarders: a table of names and values, exported by each library that is installed.

Prometheus reads values at each scrape. OpenTelemetry reads counters and gauges, and gets each observation of a
histogram, if a provider is configured. What no library reads costs nothing.
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
"""What may happen to a message; each is exported from the start, as 0."""
OTEL_SCOPE = "veilmq"

Labels = tuple[str, ...]


@dataclass(slots=True, eq=False)
class Histogram:
    """Durations in seconds, counted in the buckets ``EDGES_S`` and one above them.

    ``observe`` is called with every observation, where a library needs each and not their counts.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(EDGES_S) + 1))
    sum_s: float = 0.0
    observe: Callable[[float], object] | None = None

    def add(self, duration_s: float) -> None:
        """Count one observation; one below zero counts as zero."""
        duration_s = max(0.0, duration_s)
        self.counts[bisect_left(EDGES_S, duration_s)] += 1
        self.sum_s += duration_s
        if self.observe is not None:
            self.observe(duration_s)


@dataclass(slots=True, eq=False)
class Counters:
    """All numbers of one handler; ``events`` are counters by name, those of ``EVENTS``.

    The event loop's thread writes them, exporters read them; a number that is one behind does no harm.
    """

    events: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(EVENTS, 0)))
    queue_wait: Histogram = field(default_factory=Histogram)
    buffer_wait: Histogram = field(default_factory=Histogram)
    handle_time: Histogram = field(default_factory=Histogram)
    hold_time: Histogram = field(default_factory=Histogram)


@dataclass(slots=True, eq=False)
class RenewalMetrics:
    """Calls that renew leases: their entries, results, errors and times; written in the renewer's threads.

    ``lateness`` is by how much renewals begin after they were due, ``margin`` what was left of the lease then, 0 for
    one that was over; ``took`` is how long the calls took.
    """

    calls: int = 0
    results: Counter[str] = field(default_factory=lambda: Counter({result.value: 0 for result in RenewalResult}))
    errors: Counter[str] = field(default_factory=Counter)
    took: Histogram = field(default_factory=Histogram)
    lateness: Histogram = field(default_factory=Histogram)
    margin: Histogram = field(default_factory=Histogram)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def called(self, results: Sequence[RenewalResult], errors: Sequence[Exception], took_s: float) -> None:
        """Count one call, and why entries were not renewed: the server's code, or the kind of the exception."""
        with self._lock:
            self.calls += 1
            self.took.add(took_s)
            self.results.update(result.value for result in results)
            self.errors.update(map(class_of, errors))


def class_of(error: Exception) -> str:
    """Return in a word what failed."""
    return plain_code(error.code) if isinstance(error, ClientError) else type(error).__name__


MetricKind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Metric:
    """One name; ``read`` gives the values of its ``labels``, each with a number or a ``Histogram``.

    The name of a counter has no ``_total``: Prometheus adds that.
    """

    name: str
    kind: MetricKind
    text: str
    labels: Labels = ()
    read: Callable[[], Iterable[tuple[Labels, Any]]]

    def attributes(self, labels: Labels) -> dict[str, str]:
        """Return the values of its labels by name."""
        return dict(zip(self.labels, labels, strict=True))


class Exported:
    """The metrics that are exported now, as ``prometheus_client`` collects them; threads may share it."""

    def __init__(self, metrics: Sequence[Metric] = ()) -> None:
        self.metrics = [*metrics]

    def values(self, name: str) -> dict[Labels, Any]:
        """Return all values of ``name`` by their labels; of two with the same labels, the first."""
        return {
            labels: value for metric in self.metrics[::-1] if metric.name == name for labels, value in metric.read()
        }

    def describe(self) -> list[Any]:
        """Return no names: they change."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield every metric, at each scrape."""
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
"""Of this process: libraries that export metrics have one registry in each."""


@contextmanager
def exported(metrics: Sequence[Metric]) -> Iterator[None]:
    """Export ``metrics`` through every library that is installed."""
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
    """Return whether ``module`` could be imported; of a module inside a package, the package is imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package
        return False


def is_configured(provider: object) -> bool:
    """Return whether an OpenTelemetry provider does anything: the API's own ones do not."""
    return not type(provider).__module__.startswith(("opentelemetry.metrics", "opentelemetry.trace"))


@cache
def _register_prometheus() -> None:
    """Register once, for good: the collector is empty when nothing is exported."""
    from prometheus_client import REGISTRY  # noqa: PLC0415 (an extra)

    REGISTRY.register(EXPORTED)


def buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return the cumulative buckets of ``histogram``, as Prometheus has them."""
    edges = [*map(str, EDGES_S), "+Inf"]
    return list(zip(edges, map(float, accumulate(histogram.counts)), strict=True))


_instruments: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
"""By meter and name, since an instrument can be made once, and stays."""


@contextmanager
def export_otel(metrics: Sequence[Metric], provider: Any = None) -> Iterator[None]:
    """Export ``metrics`` to the OpenTelemetry ``provider``, by default the one that is configured now, if one is."""
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


# A port for Prometheus and for `veilmq top`.


@contextmanager
def served(port: int | None, status: Callable[[], object]) -> Iterator[None]:
    """Serve ``/metrics`` for Prometheus, and what ``status`` returns at ``/status``, while the context lasts.

    ``None`` is for none, 0 for any. Each process of a supervisor has a port of its own, the next ones. Raises
    ``ModuleNotFoundError`` and ``OSError``.
    """
    if port is None:
        yield
        return
    from wsgiref.simple_server import WSGIRequestHandler, make_server  # noqa: PLC0415 (few have a port)

    from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app  # noqa: PLC0415 (an extra)

    class Quiet(WSGIRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Log nothing: scrapes come every few seconds."""

    metrics = make_wsgi_app()

    def answer(request: dict[str, Any], begin: Any) -> Iterable[bytes]:
        if request.get("PATH_INFO") != "/status":
            found: Iterable[bytes] = metrics(request, begin)
            return found
        begin("200 OK", [("Content-Type", "application/json")])
        return [msgspec.json.encode(status())]

    own_port = port and port + (process_number() or 0)
    try:
        made = make_server("", own_port, answer, server_class=ThreadingWSGIServer, handler_class=Quiet)
    except (OSError, OverflowError) as error:
        raise OSError(f"cannot listen at {own_port}: {getattr(error, 'strerror', 'there is no such port')}") from error
    with made as server:
        _log.info("metrics at port %d", server.server_port)
        threading.Thread(target=server.serve_forever, name="veilmq-metrics", daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
