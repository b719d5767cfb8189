"""What a worker says of itself: its handlers, its leases, at a socket that only its user reaches."""

import asyncio
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.consumer import acting
from tests.consumer.workbench import WAIT, Workbench, until, workbench
from veilmq.consumer import Adaptive, Consumer, Fixed, NServiceBusPolicy
from veilmq.consumer.renewal_policies import Measured, RenewalPolicy
from veilmq.consumer.running import statuses
from veilmq.consumer.status import WorkerStatus, announced, guard_of, replies, status_folder


@pytest.fixture(scope="module")
def bench() -> Iterator[Workbench]:
    with workbench() as made:
        yield made


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
