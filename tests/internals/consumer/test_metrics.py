"""What a consumer tells of itself: its metrics, exported by each library that is installed, and a worker's status."""

import asyncio
import importlib.util
import os
import socket
import stat
import subprocess
import sys
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
            "veilmq_consumer_events": "counter",
            **{f"veilmq_consumer_{name}": "counter" for name in COUNTERS},
            **{f"veilmq_consumer_{name}_seconds": "histogram" for name in HISTOGRAMS},
            **{f"veilmq_consumer_{name}": "gauge" for name in GAUGES},
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
        Metric(name="a_count", kind="counter", text="A", labels=("queue",), read=lambda: [(("q",), 3)]),
        Metric(name="a_level", kind="gauge", text="B", read=lambda: [((), 2.5)]),
        Metric(
            name="a_wait_seconds",
            kind="histogram",
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
    assert EXPORTED.metrics == []


def test_without_a_provider_nobody_is_told_of_observations() -> None:
    """The API alone would take them and throw them away."""
    metrics, spread = numbers()
    with exported(metrics):
        assert spread.observe is None


def test_of_two_values_with_the_same_labels_the_first_is_told() -> None:
    """Two consumers of one queue, in one process, with one handler's name."""
    both = [Metric(name="a_level", kind="gauge", text="B", read={(): number}.items) for number in (1, 2)]
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


# What a worker says of itself: its handlers, its leases, at a socket that only its user reaches.


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def read(data: bytes | None) -> WorkerStatus:
    assert data is not None
    (status,) = msgspec.json.decode(data, type=list[WorkerStatus])
    return status


async def test_a_worker_tells_of_each_lease(bench: Workbench) -> None:
    """Of the one in work, and of the one that waits behind it in its group."""
    app = bench.consumer("seen.fifo", fifo=True)
    free = asyncio.Event()

    @app.handler(wait=WAIT, lease=Fixed(60))
    async def work(body: str) -> None:
        await free.wait()

    first, second = (bench.client.send("seen.fifo", text, group="g", dedup_id=text) for text in "12")

    async with bench.working(app) as running:
        await until(lambda: running.runners[0].held == 2 and any(each.running for each in running.status().leases))
        status = running.status()
        ((_, data),) = await asyncio.to_thread(lambda: list(replies()))
        assert sorted(lease.message_id for lease in read(data).leases) == sorted([first.id, second.id])
        assert [each.worker for each in statuses()] == [status.worker]
        assert {lease.message_id: lease.running for lease in status.leases} == {first.id: True, second.id: False}
        free.set()
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


async def test_a_consumer_may_stay_unseen(bench: Workbench) -> None:
    bench.client.create_queue("unseen")
    app = Consumer("unseen", endpoint=bench.server.endpoint, seen=False)
    app.declare(acting.act_async, wait=WAIT)

    async with bench.working(app):
        assert statuses() == []
        assert not status_folder().exists()


def test_only_the_user_may_enter() -> None:
    with announced(lambda: b"[]"):
        assert stat.S_IMODE(status_folder().stat().st_mode) == 0o700
        (place,) = status_folder().iterdir()
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        assert [data for _, data in replies()] == [b"[]"]


def test_a_folder_that_others_may_enter_is_not_used(runtime: Path) -> None:
    """The worker runs unseen, and whoever looks is told."""
    (runtime / "veilmq").mkdir(mode=0o755)
    with announced(lambda: b"[]"):
        assert list(status_folder().iterdir()) == []
    with pytest.raises(OSError, match="this user alone"):
        list(replies())


def test_a_path_that_is_too_long_leaves_the_worker_unseen(monkeypatch: pytest.MonkeyPatch, runtime: Path) -> None:
    """A socket's path may have about a hundred bytes."""
    long = runtime / ("x" * 120)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    with announced(lambda: b"[]"):
        assert list(replies()) == []


def leave_behind() -> Path:
    left = status_folder() / "1-dead.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left))
    return left


def test_what_a_killed_worker_left_is_removed_by_whoever_looks() -> None:
    with announced(lambda: b"[]"):
        left = leave_behind()
        assert len(list(replies())) == 1
        assert not left.exists()


def test_what_a_killed_worker_left_is_removed_by_the_next_one() -> None:
    with announced(lambda: b"[]"):
        left = leave_behind()
        with announced(lambda: b"[1]"):
            assert not left.exists()
            assert sorted(data or b"" for _, data in replies()) == [b"[1]", b"[]"]


def test_a_worker_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilmq.consumer.status.PATIENCE_S", 0.05)
    asked, free = threading.Event(), threading.Event()

    def tell() -> bytes:
        asked.set()
        free.wait()
        return b"[]"

    with announced(tell):
        ((place, data),) = replies()
        assert data is None
        assert place.exists()
        assert asked.is_set()
        free.set()


def test_a_socket_that_somebody_removed_leaves_no_thread_behind(runtime: Path) -> None:
    """As what cleans folders for temporary files does after days."""
    before = threading.enumerate()  # that of another test may be ending
    with announced(lambda: b"[]"):
        threads = set(threading.enumerate()) - {*before}
        (thread,) = (thread for thread in threads if thread.name == "veilmq-status")
        (path,) = status_folder().glob("*.sock")
        path.unlink()
    thread.join(60)
    assert not thread.is_alive()


def test_without_a_runtime_folder_the_one_for_temporary_files_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
