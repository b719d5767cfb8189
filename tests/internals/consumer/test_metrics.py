"""The metrics of a consumer: every name that there is to be, exported by each library that is installed."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from tests.consumer import acting
from tests.consumer.workbench import WAIT, Workbench, workbench
from veilmq.consumer.metrics import (
    EDGES_S,
    EVENTS,
    EXPORTED,
    Exported,
    Histogram,
    Metric,
    MetricKind,
    buckets,
    export_otel,
    exported,
    is_installed,
)
from veilmq.consumer.status import consumer_metrics

COUNTED = [
    *("received", "started", "acked", "retried", "rejected", "lost", "suspect", "released", "redelivered"),
    "delete_failed",
]
COUNTERS = ["renew_calls", "renew_entries", "renew_errors"]
HISTOGRAMS = ["queue_wait", "buffer_wait", "handle_time", "hold_time", "renew_rtt", "timer_lateness"]
HISTOGRAMS += ["margin_at_renewal"]
GAUGES = ["leased", "running", "buffered", "lease_length_seconds", "guard_seconds"]


@pytest.fixture(scope="module")
def bench() -> Iterator[Workbench]:
    with workbench() as made:
        yield made


def value(name: str, **labels: str) -> float | None:
    """Return what the registry says of a name of ours."""
    return REGISTRY.get_sample_value(f"veilmq_consumer_{name}", labels)


async def test_every_name_is_told_while_a_consumer_runs(bench: Workbench) -> None:
    """From its start, whether anything has happened or not."""
    app = bench.consumer("every-name", visibility_timeout_s=90)
    app.declare(acting.act_async, wait=WAIT)
    bench.client.send("every-name", "x")
    labels = {"queue": "every-name", "handler": "act_async"}

    async with bench.working(app) as running:
        await bench.settled(running)
        names = {metric.name: metric.kind for metric in consumer_metrics(running.runners, running.renewals)}
        assert names == {
            "veilmq_consumer_events": MetricKind.COUNTER,
            **{f"veilmq_consumer_{name}": MetricKind.COUNTER for name in COUNTERS},
            **{f"veilmq_consumer_{name}_seconds": MetricKind.HISTOGRAM for name in HISTOGRAMS},
            **{f"veilmq_consumer_{name}": MetricKind.GAUGE for name in GAUGES},
        }
        told = {event: value("events_total", event=event, **labels) for event in EVENTS}
        assert {event: count for event, count in told.items() if count} == {"received": 1, "started": 1, "acked": 1}
        assert set(COUNTED) <= set(told)
        assert None not in told.values()
        assert [value(name, **labels) for name in ("leased", "running", "buffered")] == [0, 0, 0]
        assert value("lease_length_seconds", **labels) is not None
        assert value("guard_seconds", **labels) is not None
        assert [value(f"{name}_time_seconds_count", **labels) for name in ("handle", "hold")] == [1, 1]
        hold_s, handle_s = (value(f"{name}_time_seconds_sum", **labels) for name in ("hold", "handle"))
        assert hold_s is not None
        assert handle_s is not None
        assert handle_s <= hold_s < 90
        assert value("renew_calls_total") == 0
        assert value("renew_entries_total", result="renewed") == 0
        assert value("margin_at_renewal_seconds_count") == 0
    assert "veilmq_consumer" not in generate_latest(REGISTRY).decode()


async def test_two_consumers_of_one_process_are_told_together(bench: Workbench) -> None:
    first, second = bench.consumer("first-of-two"), bench.consumer("second-of-two")
    for app in (first, second):
        app.declare(acting.act_async, wait=WAIT)

    async with bench.working(first), bench.working(second):
        text = generate_latest(REGISTRY).decode()
    assert text.count("# TYPE veilmq_consumer_leased gauge") == 1
    for queue in ("first-of-two", "second-of-two"):
        assert f'veilmq_consumer_leased{{handler="act_async",queue="{queue}"}} 0.0' in text


def numbers() -> tuple[list[Metric], Histogram]:
    """Return one metric of each kind, and the spread of the histogram."""
    spread = Histogram()
    return [
        Metric(name="a_count", kind=MetricKind.COUNTER, text="A", labels=("queue",), read=lambda: [(("q",), 3)]),
        Metric(name="a_level", kind=MetricKind.GAUGE, text="B", read=lambda: [((), 2.5)]),
        Metric(
            name="a_wait_seconds",
            kind=MetricKind.HISTOGRAM,
            text="C",
            labels=("queue",),
            read=lambda: [(("q",), spread)],
        ),
    ], spread


def test_opentelemetry_is_told_the_same_by_the_same_names() -> None:
    """And the observations of histograms one by one, until the end."""
    metrics, spread = numbers()
    reader = InMemoryMetricReader()
    with exported(metrics), export_otel(metrics, MeterProvider([reader])):
        spread.add(0.3)
        spread.add(7.0)
        data = reader.get_metrics_data()
    spread.add(1.0)
    assert data is not None
    told = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    (count,), (level,), (wait,) = (told[name].data.data_points for name in ("a_count", "a_level", "a_wait_seconds"))
    assert isinstance(count, NumberDataPoint)
    assert isinstance(level, NumberDataPoint)
    assert isinstance(wait, HistogramDataPoint)
    assert (count.value, dict(count.attributes or {})) == (3, {"queue": "q"})
    assert level.value == 2.5
    assert (wait.count, wait.sum, tuple(wait.explicit_bounds)) == (2, 7.3, EDGES_S)
    assert (told["a_wait_seconds"].unit, told["a_level"].description) == ("s", "B")
    assert sum(spread.counts) == 3
    assert EXPORTED.metrics == ()


def test_without_a_provider_nobody_is_told_of_observations() -> None:
    """The API alone would take them and throw them away."""
    metrics, spread = numbers()
    with exported(metrics):
        assert spread.observe is None


def test_of_two_values_with_the_same_labels_the_first_is_told() -> None:
    """Two consumers of one queue, in one process, with one handler's name."""
    both = [Metric(name="a_level", kind=MetricKind.GAUGE, text="B", read={(): number}.items) for number in (1, 2)]
    registry = CollectorRegistry()
    registry.register(Exported(both))
    assert registry.get_sample_value("a_level") == 1


def test_without_libraries_nothing_is_exported_and_nothing_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain install is enough to run a consumer."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    metrics, spread = numbers()
    with exported(metrics):
        assert spread.observe is None


def test_buckets_are_cumulative() -> None:
    spread = Histogram()
    for duration_s in (0.0, 0.001, 0.3, 100_000.0, -1.0):
        spread.add(duration_s)
    counts = dict(buckets(spread))
    assert (counts["0.001"], counts["0.5"], counts["43200.0"], counts["+Inf"]) == (3, 4, 4, 5)
    assert len(counts) == len(EDGES_S) + 1
    assert spread.sum_s == pytest.approx(100_000.301)


def test_a_module_is_found_without_being_imported() -> None:
    assert is_installed("veilmq.consumer")
    assert is_installed("prometheus_client")


def test_what_a_consumer_may_not_need_is_not_imported_with_it() -> None:
    """What tells numbers and spans, what tests need, and the server cost a program nothing until it uses them."""
    unwanted = ("prometheus_client", "opentelemetry", "boto3", "pydantic", "rich", "cyclopts", "pyarrow", "pytest",
                "veilmq.server", "veilmq.store.sqlite", "veilmq.testing", "veilmq.cli")  # fmt: skip
    program = f"import sys, veilmq.consumer; print(*({set(unwanted)} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_what_is_not_there_is_no_error() -> None:
    """Neither a package, nor a module of a package that is there, nor one of a package that is not."""
    for name in ("no_such_library", "veilmq.no_such_module", "no_such_library.part"):
        assert not is_installed(name)
