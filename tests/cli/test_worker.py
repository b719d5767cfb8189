"""`veilmq worker`: finds a consumer, runs it, and says by its exit code how it ended."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, environment
from tests.tidy.tree import ROOT
from veilmq.cli.failures import UsageError
from veilmq.cli.worker import load
from veilmq.client import HttpQueueClient
from veilmq.testing import RunningServer

WORKER = "tests.consumer.stuck_worker:app"


def start(server: RunningServer, place: str = WORKER) -> "subprocess.Popen[str]":
    """Start a worker against `server`."""
    return subprocess.Popen(
        [*COMMAND, "worker", place],
        cwd=ROOT,
        env=environment(VEILMQ_ENDPOINT=server.endpoint),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def signalled(worker: "subprocess.Popen[str]", server: RunningServer, *numbers: signal.Signals) -> tuple[int, str]:
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
        code, log = signalled(start(server, "tests.consumer.process_worker:app"), server, signal.SIGTERM)
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
def test_a_place_without_a_consumer_is_refused(place: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEILMQ_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(UsageError, match=sentence):
        load(place)


def test_a_consumer_without_a_handler_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty_shop.py").write_text(
        "from veilmq.consumer import Consumer\napp = Consumer('orders')\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(UsageError, match=r"declare one with @app\.handler"):
        load("empty_shop:app")
