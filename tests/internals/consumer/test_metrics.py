"""The metrics of a consumer, exported through each installed library, and a worker's status."""

import asyncio
import importlib.util
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from tests.consumer import acting
from tests.consumer.workbench import WAIT, Workbench, until, workbench
from veilmq.consumer import Adaptive, Consumer, Fixed, NServiceBusPolicy
from veilmq.consumer.app import statuses
from veilmq.consumer.metrics import (
    EDGES_S,
    EVENTS,
    EXPORTED,
    Exported,
    Histogram,
    Metric,
    buckets,
    export_otel,
    exported,
    is_installed,
)
from veilmq.consumer.renewal_policies import Measured, RenewalPolicy
from veilmq.consumer.status import WorkerStatus, announced, consumer_metrics, guard_of, replies, status_folder

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
    with workbench() as bench:
        yield bench


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"veilmq_consumer_{name}", labels)


async def test_all_metrics_are_exported_while_a_consumer_runs(bench: Workbench) -> None:
    app = bench.consumer("every-name", visibility_timeout_s=90)
    app.declare(acting.act_async, wait=WAIT)
    bench.client.send("every-name", "x")
    labels = {"queue": "every-name", "handler": "act_async"}

    async with bench.working(app) as running:
        await bench.settled(running)
        names = {metric.name: metric.kind for metric in consumer_metrics(running.runners, running.renewals)}
        assert names == {
            "veilmq_consumer_events": "counter",
            **{f"veilmq_consumer_{name}": "counter" for name in COUNTERS},
            **{f"veilmq_consumer_{name}_seconds": "histogram" for name in HISTOGRAMS},
            **{f"veilmq_consumer_{name}": "gauge" for name in GAUGES},
        }
        counts = {event: value("events_total", event=event, **labels) for event in EVENTS}
        assert {event: count for event, count in counts.items() if count} == {"received": 1, "started": 1, "acked": 1}
        assert set(COUNTED) <= set(counts)
        assert None not in counts.values()
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


async def test_two_consumers_of_a_process_share_metrics(bench: Workbench) -> None:
    first, second = bench.consumer("first-of-two"), bench.consumer("second-of-two")
    for app in (first, second):
        app.declare(acting.act_async, wait=WAIT)

    async with bench.working(first), bench.working(second):
        text = generate_latest(REGISTRY).decode()
    assert text.count("# TYPE veilmq_consumer_leased gauge") == 1
    for queue in ("first-of-two", "second-of-two"):
        assert f'veilmq_consumer_leased{{handler="act_async",queue="{queue}"}} 0.0' in text


def one_of_each_kind() -> tuple[list[Metric], Histogram]:
    """Return a metric of each kind, and the histogram."""
    histogram = Histogram()
    return [
        Metric(name="a_count", kind="counter", text="A", labels=("queue",), read=lambda: [(("q",), 3)]),
        Metric(name="a_level", kind="gauge", text="B", read=lambda: [((), 2.5)]),
        Metric(
            name="a_wait_seconds",
            kind="histogram",
            text="C",
            labels=("queue",),
            read=lambda: [(("q",), histogram)],
        ),
    ], histogram


def test_opentelemetry_gets_the_same_names_and_each_observation() -> None:
    metrics, histogram = one_of_each_kind()
    reader = InMemoryMetricReader()
    with exported(metrics), export_otel(metrics, MeterProvider([reader])):
        histogram.add(0.3)
        histogram.add(7.0)
        data = reader.get_metrics_data()
    histogram.add(1.0)
    assert data is not None
    by_name = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    (count,), (level,), (wait,) = (by_name[name].data.data_points for name in ("a_count", "a_level", "a_wait_seconds"))
    assert isinstance(count, NumberDataPoint)
    assert isinstance(level, NumberDataPoint)
    assert isinstance(wait, HistogramDataPoint)
    assert (count.value, dict(count.attributes or {})) == (3, {"queue": "q"})
    assert level.value == 2.5
    assert (wait.count, wait.sum, tuple(wait.explicit_bounds)) == (2, 7.3, EDGES_S)
    assert (by_name["a_wait_seconds"].unit, by_name["a_level"].description) == ("s", "B")
    assert sum(histogram.counts) == 3
    assert EXPORTED.metrics == []


def test_without_a_provider_observations_are_not_reported() -> None:
    """The API alone would discard them."""
    metrics, histogram = one_of_each_kind()
    with exported(metrics):
        assert histogram.observe is None


def test_of_two_values_with_the_same_labels_the_first_is_exported() -> None:
    """Two consumers of a process may have the same queue and handler name."""
    both = [Metric(name="a_level", kind="gauge", text="B", read={(): number}.items) for number in (1, 2)]
    registry = CollectorRegistry()
    registry.register(Exported(both))
    assert registry.get_sample_value("a_level") == 1


def test_without_libraries_nothing_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    metrics, histogram = one_of_each_kind()
    with exported(metrics):
        assert histogram.observe is None


def test_buckets_are_cumulative() -> None:
    histogram = Histogram()
    for duration_s in (0.0, 0.001, 0.3, 100_000.0, -1.0):
        histogram.add(duration_s)
    counts = dict(buckets(histogram))
    assert (counts["0.001"], counts["0.5"], counts["43200.0"], counts["+Inf"]) == (3, 4, 4, 5)
    assert len(counts) == len(EDGES_S) + 1
    assert histogram.sum_s == pytest.approx(100_000.301)


def test_installed_modules_are_found() -> None:
    assert is_installed("veilmq.consumer")
    assert is_installed("prometheus_client")


def test_importing_the_consumer_does_not_import_optional_libraries() -> None:
    unwanted = ("prometheus_client", "opentelemetry", "boto3", "pydantic", "rich", "cyclopts", "pyarrow", "pytest",
                "veilmq.server", "veilmq.store.sqlite", "veilmq.testing", "veilmq.cli")  # fmt: skip
    program = f"import sys, veilmq.consumer; print(*({set(unwanted)} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_missing_packages_and_modules_are_not_installed() -> None:
    for name in ("no_such_library", "veilmq.no_such_module", "no_such_library.part"):
        assert not is_installed(name)


# The status of a worker


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:  # the path of a socket has at most 107 bytes, and tmp_path a hundred
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


def read(data: bytes | None) -> WorkerStatus:
    assert data is not None
    (status,) = msgspec.json.decode(data, type=list[WorkerStatus])
    return status


async def test_the_status_has_running_and_blocked_messages(bench: Workbench) -> None:
    app = bench.consumer("seen.fifo", fifo=True)
    go_on = asyncio.Event()

    @app.handler(wait=WAIT, lease=Fixed(60))
    async def work(body: str) -> None:
        await go_on.wait()

    first, second = (bench.client.send("seen.fifo", text, group="g", dedup_id=text) for text in "12")

    async with bench.working(app) as running:
        await until(lambda: running.runners[0].held == 2 and any(each.running for each in running.status().leases))
        status = running.status()
        ((_, data),) = await asyncio.to_thread(lambda: list(replies()))
        assert sorted(lease.message_id for lease in read(data).leases) == sorted([first.id, second.id])
        assert [each.worker for each in statuses()] == [status.worker]
        assert {lease.message_id: lease.running for lease in status.leases} == {first.id: True, second.id: False}
        go_on.set()
        await bench.settled(running)
    assert running.status().stopping
    assert (status.pid, status.stopping) == (os.getpid(), False)
    (handler,) = status.handlers
    assert (handler.queue, handler.handler, handler.leased, handler.running) == ("seen.fifo", "work", 2, 1)
    assert handler.events["received"] == 2
    for lease in status.leases:
        assert (lease.queue, lease.handler, lease.attempt, lease.state) == ("seen.fifo", "work", 1, "held")
        assert 0 < lease.left_s <= 60
        assert 0 <= lease.held_s < 60
    assert list(replies()) == []
    assert statuses() == []
    assert list(status_folder().iterdir()) == []


async def test_a_consumer_can_be_hidden(bench: Workbench) -> None:
    bench.client.create_queue("unseen")
    app = Consumer("unseen", endpoint=bench.server.endpoint, seen=False)
    app.declare(acting.act_async, wait=WAIT)

    async with bench.working(app):
        assert statuses() == []
        assert not status_folder().exists()


def test_only_the_user_may_access_the_folder_and_the_socket() -> None:
    with announced(lambda: b"[]"):
        assert stat.S_IMODE(status_folder().stat().st_mode) == 0o700
        (path,) = status_folder().iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [data for _, data in replies()] == [b"[]"]


def test_a_folder_that_others_may_enter_is_not_used(runtime: Path) -> None:
    """The worker runs without a socket, and readers fail."""
    (runtime / "veilmq").mkdir(mode=0o755)
    with announced(lambda: b"[]"):
        assert list(status_folder().iterdir()) == []
    with pytest.raises(OSError, match="this user alone"):
        list(replies())


def test_a_worker_whose_socket_path_is_too_long_has_no_socket(monkeypatch: pytest.MonkeyPatch, runtime: Path) -> None:
    """The path may have about a hundred bytes."""
    long = runtime / ("x" * 120)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    with announced(lambda: b"[]"):
        assert list(replies()) == []


def dead_socket() -> Path:
    path = status_folder() / "1-dead.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    return path


def test_a_reader_removes_the_socket_of_a_killed_worker() -> None:
    with announced(lambda: b"[]"):
        path = dead_socket()
        assert len(list(replies())) == 1
        assert not path.exists()


def test_a_new_worker_removes_the_socket_of_a_killed_one() -> None:
    with announced(lambda: b"[]"):
        path = dead_socket()
        with announced(lambda: b"[1]"):
            assert not path.exists()
            assert sorted(data or b"" for _, data in replies()) == [b"[1]", b"[]"]


def test_a_worker_that_does_not_reply_has_no_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilmq.consumer.status.PATIENCE_S", 0.05)
    called, go_on = threading.Event(), threading.Event()

    def status() -> bytes:
        called.set()
        go_on.wait()
        return b"[]"

    with announced(status):
        ((path, data),) = replies()
        assert data is None
        assert path.exists()
        assert called.wait(60)  # perhaps after the reader has left
        go_on.set()


def test_the_thread_ends_even_if_its_socket_was_removed(runtime: Path) -> None:
    """Cleaners of temporary folders remove it after days."""
    before = threading.enumerate()  # that of another test may be ending
    with announced(lambda: b"[]"):
        threads = set(threading.enumerate()) - {*before}
        (thread,) = (thread for thread in threads if thread.name == "veilmq-status")
        (path,) = status_folder().glob("*.sock")
        path.unlink()
    thread.join(60)
    assert not thread.is_alive()


def test_without_a_runtime_folder_the_temporary_folder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert status_folder() == tmp_path / f"veilmq-{os.getuid()}"
    assert list(replies()) == []


BUSY = Measured(hold_s=60.0, renewal_s=0.5, renewals=1_000, lateness_s=0.25, call_s=0.4)


@pytest.mark.parametrize(
    ("policy", "timeout_s", "measured", "guard_s"),
    [
        pytest.param(Fixed(60, 20), 60, Measured(), 40.0, id="fixed"),
        pytest.param(Adaptive(), 90, Measured(), 30.0, id="adaptive-share"),
        pytest.param(Adaptive(guard_share=0.0), 90, BUSY, 4.0, id="adaptive-measured"),
        pytest.param(NServiceBusPolicy(), 30, Measured(), 10.0, id="nservicebus"),
    ],
)
def test_the_guard_of_a_fresh_lease(policy: RenewalPolicy, timeout_s: int, measured: Measured, guard_s: float) -> None:
    assert guard_of(policy, timeout_s, measured) == pytest.approx(guard_s)
