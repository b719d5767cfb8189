"""Numbers for whoever watches: a table of metrics, told by each library that is installed, while they are exported.

A metric says its name, what it is, and how to read it; the libraries differ in how they ask. Prometheus asks when
somebody looks. OpenTelemetry asks for counters and gauges, and is told each observation of a histogram, if a provider
is configured. What nobody asks for costs nothing.
"""

import importlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from veilmq.consumer.installed import is_installed

Labels = tuple[str, ...]


class Kind(Enum):
    """What a metric is."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Metric:
    """One name; ``read`` gives the values of its ``labels`` with what they stand for: a number, or a ``Spread``.

    The name of a counter has no ``_total``: Prometheus adds that.
    """

    name: str
    kind: Kind
    text: str
    labels: Labels = ()
    read: Callable[[], Iterable[tuple[Labels, Any]]]


class Exported:
    """The metrics that are told of now; threads may share it."""

    def __init__(self) -> None:
        """Tell of nothing."""
        self._lock = threading.Lock()
        self._metrics: tuple[Metric, ...] = ()

    def add(self, metrics: Sequence[Metric]) -> None:
        """Begin to tell of ``metrics``."""
        with self._lock:
            self._metrics += tuple(metrics)

    def remove(self, metrics: Sequence[Metric]) -> None:
        """Tell of ``metrics`` no more."""
        with self._lock:
            self._metrics = tuple(metric for metric in self._metrics if metric not in metrics)

    def names(self) -> dict[str, Metric]:
        """Return one metric of each name, in order."""
        return {metric.name: metric for metric in reversed(self._metrics)}

    def values(self, name: str) -> dict[Labels, Any]:
        """Return all values of ``name`` by their labels; of two with the same ones, the first is told."""
        found: dict[Labels, Any] = {}
        for metric in self._metrics:
            if metric.name == name:
                for labels, value in metric.read():
                    found.setdefault(labels, value)
        return found


EXPORTED = Exported()
"""Of this process: libraries that export metrics have one registry in each."""

_LIBRARIES = (
    ("prometheus_client", "veilmq.consumer.prometheus"),
    ("opentelemetry.metrics", "veilmq.consumer.otel_metrics"),
)
"""What must be installed, and the module that then has ``exporting``."""


@contextmanager
def exported(metrics: Sequence[Metric]) -> Iterator[None]:
    """Have ``metrics`` told by every library that is installed."""
    EXPORTED.add(metrics)
    with ExitStack() as stack:
        stack.callback(EXPORTED.remove, metrics)
        for library, module in _LIBRARIES:
            if is_installed(library):
                exporting: Callable[[Sequence[Metric]], AbstractContextManager[object]]
                exporting = importlib.import_module(module).exporting
                stack.enter_context(exporting(metrics))
        yield
