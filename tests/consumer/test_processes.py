"""`veilmq worker --processes N --reload`: real processes, killed and signalled, against a server over sockets."""

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
    """A supervisor with its processes, whose reports are read one by one."""

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
        """Return the first report of ``event`` that has not been returned; others stay."""
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
        """Return when such a line was logged."""
        assert self.process.stderr is not None
        while line not in self.process.stderr.readline():
            assert self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Return its exit code, when it and its processes have ended; ``seen`` has the reports up to then."""
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
            worker.process.kill()  # its processes follow
            worker.end()


def started(worker: Worker, count: int) -> dict[str, int]:
    """Return the ids of the processes by their numbers, when so many have started."""
    reports = [worker.expect("started") for _ in range(count)]
    return {report["number"]: report["pid"] for report in reports}


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """Return a pipe on which handlers wait, whose path is a message."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_each_process_in_its_order(
    tmp_path: Path, server: RunningServer, client: HttpQueueClient, number: signal.Signals
) -> None:
    """What they have begun is finished and deleted, shutdown functions are called, and the code is 0."""
    pipes = [tmp_path / "first", tmp_path / "second"]  # to open one waits for its handler, which may only be about to
    with working(tmp_path, server, "--processes", "2") as worker:
        pids = started(worker, 2)
        assert set(pids) == {"0", "1"}
        for pipe in pipes:
            os.mkfifo(pipe)
            client.send("work", str(pipe))
        assert {worker.expect("begun")["pid"] for _ in pids} == set(pids.values()), "each has one"
        worker.signal(number)
        server.wait_until(lambda: not server.parked)
        for pipe in pipes:
            pipe.write_bytes(b"")
        assert worker.end() == 0, worker.log
    ends = [report["event"] for report in worker.seen]
    assert sorted(ends) == ["done", "done", "stopped", "stopped"]
    status = client.show("work")
    assert (status.visible, status.in_flight) == (0, 0)


def test_a_second_signal_reaches_handlers_that_do_not_end(
    tmp_path: Path, pipe: Path, server: RunningServer, client: HttpQueueClient
) -> None:
    with working(tmp_path, server, "--processes", "2") as worker:
        started(worker, 2)
        client.send("work", str(pipe))
        worker.expect("begun")
        worker.signal(signal.SIGTERM)
        server.wait_until(lambda: not server.parked)
        worker.signal(signal.SIGTERM)
        assert worker.end() == 3, worker.log
    assert client.show("work").visible == 1


def test_a_process_that_is_killed_is_started_again_and_the_others_work_on(
    tmp_path: Path, server: RunningServer, client: HttpQueueClient
) -> None:
    """Killed from outside, or by its own handler, whose message is handled when its lease has ended."""
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


def test_processes_stop_when_their_supervisor_is_killed(
    tmp_path: Path, pipe: Path, server: RunningServer, client: HttpQueueClient
) -> None:
    """In order: what they have begun is finished."""
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


def test_a_worker_that_cannot_start_ends_with_the_code_of_its_processes(tmp_path: Path, server: RunningServer) -> None:
    """It is not tried for ever: its queue is not there."""
    with working(tmp_path, server, "--processes", "2") as worker:
        assert worker.end() == 1
    assert "could not start, it ended with code 1" in worker.log
    assert "does not exist" in worker.log


def test_each_process_has_a_port_for_its_metrics(
    tmp_path: Path, server: RunningServer, client: HttpQueueClient
) -> None:
    """The one that was given, and the next."""
    (port,) = free_ports(1)  # the next one, too, is below those that the system gives
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


def test_a_change_of_the_code_starts_each_process_again_after_its_work(
    tmp_path: Path, pipe: Path, server: RunningServer, client: HttpQueueClient
) -> None:
    """A second change meanwhile does not hurry them; code that cannot be loaded waits for the next change."""
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
        assert worker.expect("done")["pid"] == before, "it was finished by the code that began it"
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
