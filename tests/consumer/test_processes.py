"""`veilmq worker --processes N --reload`: processes that are killed and signalled."""

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import need
from tests.proofs.served import free_ports
from tests.tidy.tree import ROOT, SRC
from veilmq.client import HttpQueueClient
from veilmq.testing import RunningServer, SystemClock

pytestmark = pytest.mark.slow
COUNTING = ROOT / "tests" / "consumer" / "counting_worker.py"


class Worker:
    """A supervisor and its processes, which report events as lines of JSON."""

    def __init__(self, folder: Path, server: RunningServer, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "veilmq", "worker", "shop:app", *options],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(SRC), "VEILMQ_ENDPOINT": server.endpoint},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.seen: list[dict[str, Any]] = []
        self.log = ""

    def expect(self, event: str, **more: object) -> dict[str, Any]:
        """Return the first unread report of ``event``; keep the others."""
        wanted = {"event": event, **more}
        while True:
            for report in self.seen:
                if wanted.items() <= report.items():
                    self.seen.remove(report)
                    return report
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            assert line, f"ended before {wanted}: {self.process.communicate()}"
            self.seen.append(json.loads(line))

    def wait_for(self, line: str) -> None:
        assert self.process.stderr is not None
        while line not in self.process.stderr.readline():
            assert self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait for the supervisor and its processes; return the exit code."""
        out, self.log = self.process.communicate(timeout=60)
        self.seen += map(json.loads, out.splitlines())
        return self.process.returncode


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with RunningServer(clock=SystemClock()) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[HttpQueueClient]:
    with HttpQueueClient(server.endpoint) as made:
        made.create_queue("work", {"visibility_timeout_s": 30})
        yield made


@contextlib.contextmanager
def working(folder: Path, server: RunningServer, *options: str) -> Iterator[Worker]:
    shutil.copy(COUNTING, folder / "shop.py")
    worker = Worker(folder, server, *options)
    try:
        yield worker
    finally:
        if not worker.log:
            worker.process.kill()  # its processes stop too
            worker.end()


def started(worker: Worker, count: int) -> dict[str, int]:
    reports = [worker.expect("started") for _ in range(count)]
    return {report["number"]: report["pid"] for report in reports}


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """Return a pipe on which handlers block; its path is the message."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_each_process_after_its_work(
    tmp_path: Path, server: RunningServer, client: HttpQueueClient, number: signal.Signals
) -> None:
    pipes = [tmp_path / "first", tmp_path / "second"]  # opening one waits for its handler
    with working(tmp_path, server, "--processes", "2") as worker:
        pids = started(worker, 2)
        assert set(pids) == {"0", "1"}
        for pipe in pipes:
            os.mkfifo(pipe)
            client.send("work", str(pipe))
        assert {worker.expect("begun")["pid"] for _ in pids} == set(pids.values())
        worker.signal(number)
        server.wait_until(lambda: not server.parked)
        for pipe in pipes:
            pipe.write_bytes(b"")
        assert worker.end() == 0, worker.log
    ends = [report["event"] for report in worker.seen]
    assert sorted(ends) == ["done", "done", "stopped", "stopped"]
    status = client.show("work")
    assert (status.visible, status.in_flight) == (0, 0)


def test_a_second_signal_abandons_handlers(
    tmp_path: Path, pipe: Path, server: RunningServer, client: HttpQueueClient
) -> None:
    with working(tmp_path, server, "--processes", "2") as worker:
        started(worker, 2)
        client.send("work", str(pipe))
        worker.expect("begun")
        worker.signal(signal.SIGTERM)
        worker.signal(signal.SIGINT)  # another one, as the system delivers two pending signals of one number once
        assert worker.end() == 3, worker.log
    assert client.show("work").visible == 1


def test_a_killed_process_is_restarted(tmp_path: Path, server: RunningServer, client: HttpQueueClient) -> None:
    with working(tmp_path, server, "--processes", "2") as worker:
        pids = started(worker, 2)
        os.kill(pids["1"], signal.SIGKILL)
        again = worker.expect("started")
        assert (again["number"], again["pid"] != pids["1"]) == ("1", True)
        client.send("work", "die")
        dead = worker.expect("begun", body="die")["pid"]
        assert worker.expect("started")["number"] == {pids["0"]: "0", again["pid"]: "1"}[dead]
        assert worker.expect("done")["pid"] != dead
        worker.signal(signal.SIGTERM)
        assert worker.end() == 0, worker.log
    assert worker.log.count("ended with code -9, starts again in") == 2


def test_processes_finish_and_stop_if_their_supervisor_is_killed(
    tmp_path: Path, pipe: Path, server: RunningServer, client: HttpQueueClient
) -> None:
    with working(tmp_path, server, "--processes", "2") as worker:
        pids = started(worker, 2)
        client.send("work", str(pipe))
        pid = worker.expect("begun")["pid"]
        worker.signal(signal.SIGKILL)
        (idle,) = set(pids.values()) - {pid}
        assert worker.expect("stopped")["pid"] == idle
        pipe.write_bytes(b"")
        worker.expect("done", pid=pid)
        worker.expect("stopped", pid=pid)
        worker.end()
    assert client.show("work").in_flight == 0


def test_a_worker_whose_processes_cannot_start_exits_with_their_code(tmp_path: Path, server: RunningServer) -> None:
    with working(tmp_path, server, "--processes", "2") as worker:
        assert worker.end() == 1
    assert "could not start, it ended with code 1" in worker.log
    assert "the queue work cannot be consumed, stopping: The specified queue does not exist" in worker.log


def test_each_process_has_its_own_metrics_port(tmp_path: Path, server: RunningServer, client: HttpQueueClient) -> None:
    (port,) = free_ports(1)  # the next one is also below the ephemeral range
    with working(tmp_path, server, "--processes", "2", "--metrics-port", str(port)) as worker:
        pids = started(worker, 2)
        found = {}
        for number in range(2):
            url = f"http://127.0.0.1:{port + number}/status"
            (status,) = json.loads(urllib.request.urlopen(url).read())
            found[str(number)] = status["pid"]
        assert found == pids
        worker.signal(signal.SIGTERM)
        assert worker.end() == 0, worker.log


def test_a_change_of_the_code_restarts_each_process_after_its_work(
    tmp_path: Path, pipe: Path, server: RunningServer, client: HttpQueueClient
) -> None:
    """Code that cannot be loaded is retried at the next change."""
    need(importlib.util.find_spec("watchfiles"), "watchfiles (make setup)")
    shop = tmp_path / "shop.py"
    with working(tmp_path, server, "--reload") as worker:
        before = started(worker, 1)["0"]
        client.send("work", str(pipe))
        worker.expect("begun")
        text = shop.read_text(encoding="utf-8")
        shop.write_text("no Python", encoding="utf-8")
        worker.wait_for("changed, starting again")
        shop.write_text(text.replace('report("done"', 'report("done anew"'), encoding="utf-8")
        worker.wait_for("changed, starting again")
        pipe.write_bytes(b"")
        assert worker.expect("done")["pid"] == before  # finished by the old code
        worker.expect("stopped", pid=before)
        after = started(worker, 1)["0"]
        client.send("work", "x")
        assert worker.expect("done anew")["pid"] == after
        shop.write_text("no Python", encoding="utf-8")
        worker.expect("stopped", pid=after)
        worker.wait_for("starts again at the next change")
        shop.write_text(text, encoding="utf-8")
        started(worker, 1)
        worker.signal(signal.SIGTERM)
        assert worker.end() == 0
