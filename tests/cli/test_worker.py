"""`veilmq worker`: finds a consumer, runs it, and says by its exit code how it ended."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, Veilmq, environment
from tests.proofs.forking import Forked
from tests.tidy.tree import ROOT
from veilmq.client import HttpQueueClient
from veilmq.testing import RunningServer

WORKER = "tests.consumer.stuck_worker:app"


SHOP = """
from veilmq.consumer import Consumer

app = Consumer("orders")


@app.handler
async def ship(body: str) -> None:
    raise KeyError("no such article")
"""
STOP_S_MAX = 10.0
"""An idle worker stops within a second; tests run on busy machines, and a poll that is awaited takes 20 s."""


def start(server: RunningServer, place: str = WORKER, *options: str, folder: Path = ROOT) -> Forked:
    """Start a worker against `server`."""
    return Forked(
        [*COMMAND, "worker", place, *options],
        cwd=folder,
        env=environment(VEILMQ_ENDPOINT=server.endpoint),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def signalled(
    worker: "Forked | subprocess.Popen[str]", server: RunningServer, *numbers: signal.Signals
) -> tuple[int, str]:
    """Send these signals when the worker has begun a message; return exit code and log."""
    with worker:
        assert worker.stdout is not None
        assert worker.stderr is not None
        assert '"begun"' in worker.stdout.readline()
        for number in numbers:
            worker.send_signal(number)
        while worker.poll() is None:
            if server.parked:
                server.advance(1_000)
        return worker.returncode, worker.stderr.read()


def test_a_worker_handles_messages_until_it_is_told_to_stop() -> None:
    """What it had begun is ended and deleted, and nothing is abandoned."""
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("work")
        client.send("work", "m2")
        code, log = signalled(start(server), server, signal.SIGTERM)
        assert code == 0, log
        status = client.show("work")
        assert (status.visible, status.in_flight) == (0, 0)


def test_a_handler_may_run_in_processes() -> None:
    """They find its module as the worker did."""
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("work")
        client.send("work", "m2")
        worker = subprocess.Popen(  # not a fork: its processes start as it did
            [*COMMAND, "worker", "tests.consumer.process_worker:app"],
            cwd=ROOT,
            env=environment(VEILMQ_ENDPOINT=server.endpoint),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        code, log = signalled(worker, server, signal.SIGTERM)
        assert code == 0, log
        status = client.show("work")
        assert (status.visible, status.in_flight) == (0, 0)


def test_a_second_signal_does_not_wait_for_handlers() -> None:
    """The one that never ends is cancelled, and its message released."""
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("work")
        client.send("work", "m1")
        code, log = signalled(start(server), server, signal.SIGTERM, signal.SIGINT)
        assert code == 0, log
        status = client.show("work")
        assert (status.visible, status.in_flight) == (1, 0)


def started_shop(server: RunningServer, folder: Path) -> Forked:
    """Start a worker that makes its queue; return it when its poll is parked."""
    (folder / "shop.py").write_text(SHOP, encoding="utf-8")
    worker = start(server, "shop:app", "--create", folder=folder)
    server.wait_until(lambda: server.parked)
    return worker


def test_a_traceback_stands_in_the_text_of_the_log(tmp_path: Path) -> None:
    """And not only in a field that JSON shows."""
    with (
        RunningServer() as server,
        HttpQueueClient(server.endpoint) as client,
        started_shop(server, tmp_path) as worker,
    ):
        client.send("orders", "a")
        assert worker.stderr is not None
        while "comes back" not in worker.stderr.readline():
            assert worker.poll() is None
        worker.send_signal(signal.SIGTERM)
        log = worker.stderr.read()
    assert "Traceback (most recent call last):" in log
    assert 'raise KeyError("no such article")' in log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_idle_worker_ends_at_once(tmp_path: Path, number: signal.Signals) -> None:
    """Though its poll would wait for 20 s: in this server's time, which stands still, for ever."""
    with RunningServer() as server, started_shop(server, tmp_path) as worker:
        began_s = time.monotonic()
        worker.send_signal(number)
        assert worker.wait(timeout=60) == 0
        assert time.monotonic() - began_s < STOP_S_MAX
        assert server.parked == 0


def test_a_queue_that_is_not_there_ends_the_worker() -> None:
    """With the server's own words."""
    with RunningServer() as server, start(server) as worker:
        _, log = worker.communicate(timeout=60)
    assert worker.returncode == 1
    assert "does not exist" in log


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("orders", "write module:name"),
        (":app", "write module:name"),
        ("no.such.module:app", "There is no module"),
        ("tests.consumer.stuck_worker:json", "is no veilmq.consumer.Consumer"),
        ("tests.cli.test_worker:EMPTY", "is no veilmq"),
    ],
    ids=["no-name", "no-module", "missing", "another", "absent"],
)
def test_a_place_without_a_consumer_is_refused(
    veilmq: Veilmq, place: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VEILMQ_ENDPOINT", "http://127.0.0.1:1")
    answer = veilmq("worker", place)
    assert (answer.code, sentence in re.sub(r"[│\s]+", " ", answer.err)) == (2, True)


def test_a_consumer_without_a_handler_is_refused(
    veilmq: Veilmq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty_shop.py").write_text(
        "from veilmq.consumer import Consumer\napp = Consumer('orders')\n", encoding="utf-8"
    )
    monkeypatch.setenv("VEILMQ_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    answer = veilmq("worker", "empty_shop:app")
    assert (answer.code, "declare one with @app.handler" in re.sub(r"[│\s]+", " ", answer.err)) == (2, True)
