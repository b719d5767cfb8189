"""``veilmq top``: its page, how it finds the server and the workers, and its terminal."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.cli.conftest import COMMAND, Veilmq, environment
from tests.proofs.forking import Forked
from tests.tidy.tree import ROOT
from veilmq.cli.top import QueueRow, Snapshot, pause_s, read_queues, read_workers, span, view
from veilmq.client import HttpQueueClient
from veilmq.consumer.status import HandlerStatus, LeaseStatus, WorkerStatus
from veilmq.testing import RunningServer, faults

WITH_A_TERMINAL = """
import os, signal, sys
os.close(os.open(os.ttyname(0), os.O_RDWR))
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Make the terminal the controlling one, so that Ctrl-C is a signal even if the tests ignore it."""
WORKER = "tests.consumer.workers:stuck"


def lease(number: int, left_s: float, **changed: Any) -> LeaseStatus:
    usual: dict[str, Any] = {"queue": "films", "handler": "render", "message_id": f"message-{number}", "attempt": 1}
    usual |= {"state": "held", "left_s": left_s, "held_s": 75.0, "running": True, "renewals": 0}
    return LeaseStatus(**(usual | changed))


def snapshot(*, queues: int = 1, leases: int = 1, **changed: Any) -> Snapshot:
    """Return a snapshot with queues, and a worker with leases."""
    counts = {"leased": leases, "running": leases, "buffered": 0}
    handler = HandlerStatus(queue="films", handler="render", events={"acked": 9}, **counts)
    held = [lease(number, 30.0 + number) for number in range(leases)]
    worker = WorkerStatus(worker="host:7", host="host", pid=7, stopping=False, handlers=[handler], leases=held)
    usual: dict[str, Any] = {"endpoint": "http://127.0.0.1:9324", "at_ms": 1_700_000_000_000, "queues_in_all": queues}
    usual["queues"] = [
        QueueRow(queue=f"q{number:02}", visible=number, in_flight=2, delayed=3) for number in range(queues)
    ]
    return Snapshot(**(usual | {"workers": [worker], "silent": []} | changed))


def shown(snapshot: Snapshot, *, width: int = 120, height: int | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(view(snapshot, width=width, height=height))
    file = console.file
    assert isinstance(file, io.StringIO)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_wide_terminal_shows_all_columns() -> None:
    head, queues, queue, workers, worker, leases, held = shown(snapshot())
    assert head == "http://127.0.0.1:9324  2023-11-14 22:13:20 UTC"
    assert queues.split() == ["queue", "visible", "in", "flight", "delayed", "oldest", "redelivered"]
    assert queue.split() == ["q00", "0", "2", "3", "–", "–"]
    assert workers.split() == ["worker", "queue", "handler", "running", "buffered", "done", "redelivered"]
    assert worker.split() == ["host:7", "films", "render", "1", "0", "9", "0"]
    assert leases.split() == ["message", "worker", "queue", "handler", "attempt", "held", "lease", "left"]
    assert held.split() == ["message-0", "host:7", "films", "render", "1", "75.0", "s", "held", "30.0", "s"]


@pytest.mark.parametrize("width", [20, 40, 50, 60, 72, 84, 100, 120])
def test_a_narrow_terminal_shows_the_most_important_columns(width: int) -> None:
    lines = shown(snapshot(), width=width)
    assert len(lines) == 7
    assert all(len(line) <= width for line in lines)
    assert lines[-1].endswith("30.0 s")
    assert "visible" in lines[1]


def test_a_low_terminal_shows_the_fullest_queues_and_the_most_urgent_leases() -> None:
    lines = shown(snapshot(queues=20, leases=20), height=24)
    assert len(lines) <= 24
    assert [line.split()[0] for line in lines if line.startswith("q1")] == [f"q{number}" for number in range(13, 20)]
    assert "… and 13 more queues" in "\n".join(lines)
    assert [line.split()[0] for line in lines if line.startswith("message-")] == [f"message-{n}" for n in range(8)]
    assert lines[-1] == "… and 12 more leases"


def test_names_are_not_markup() -> None:
    held = lease(1, 1.0, handler="[red]render[/x]")
    worker = WorkerStatus(worker="a:1", host="a", pid=1, stopping=False, handlers=[], leases=[held])
    assert any("[red]render[/x]" in line for line in shown(snapshot(workers=[worker])))


def test_leases_of_all_workers_are_ordered_by_their_ends() -> None:
    leases = [lease(1, -2.0, state="suspect"), lease(2, 400.0, attempt=3), lease(3, 3.0, running=False)]
    worker = WorkerStatus(worker="a:1", host="a", pid=1, stopping=True, handlers=[], leases=leases)
    lines = shown(snapshot(workers=[worker], silent=["http://far:9326"]))
    held = [line for line in lines if line.startswith("message-")]
    assert [line.split()[0] for line in held] == ["message-1", "message-3", "message-2"]
    assert held[0].endswith("-2.0 s")
    assert "suspect" in held[0]
    assert "held, waits" in held[1]
    assert held[2].endswith("6:40")
    assert "no answer from http://far:9326" in lines


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((None, "–"), (0.0, "0.0 s"), (-3.25, "-3.2 s"), (99.9, "99.9 s"), (100, "1:40"), (-120, "-2:00")),
        *((3_600, "1 h 00"), (43_200, "12 h 00"), (400_000, "4 d")),
    ],
)
def test_a_duration_is_formatted_in_a_few_characters(seconds: float | None, text: str) -> None:
    assert span(seconds) == text


def test_reading_takes_at_most_a_tenth_of_the_time() -> None:
    assert pause_s(0.01, 1) == pytest.approx(0.99)
    assert pause_s(0.5, 1) == pytest.approx(4.5)


@contextmanager
def working(server: RunningServer, runtime: Path, *options: str) -> Iterator[Forked]:
    with HttpQueueClient(server.endpoint) as client:
        client.create_queue("work")
        client.send("work", "m1")
    worker = Forked(
        [*COMMAND, "worker", WORKER, "--log-format", "json", *options],
        cwd=ROOT,
        env=environment(VEILMQ_ENDPOINT=server.endpoint, XDG_RUNTIME_DIR=str(runtime)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with worker:
        assert worker.stdout is not None
        assert '"begun"' in worker.stdout.readline()
        try:
            yield worker
        finally:
            worker.kill()


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:  # the path of a socket has at most 107 bytes, and tmp_path a hundred
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.setattr("veilmq.consumer.status.PATIENCE_S", 60.0)  # a busy machine may delay a worker's reply
        yield Path(folder)


def test_it_finds_the_server_and_the_lease_of_a_worker(veilmq: Veilmq, server: RunningServer, runtime: Path) -> None:
    with working(server, runtime) as worker:
        done = veilmq("top", "--once", "--json", "--admin", server.admin_endpoint)
        page = veilmq("top", "--once", "--admin", server.admin_endpoint)
    assert done.code == 0, done.err
    document = json.loads(done.out)
    (queue,) = document["queues"]
    assert (queue["queue"], queue["visible"], queue["in_flight"]) == ("work", 0, 1)
    assert (queue["oldest_s"], queue["redeliveries"]) == (0.0, 0)
    (found,) = document["workers"]
    assert found["pid"] == worker.pid
    (held,) = found["leases"]
    assert (held["queue"], held["attempt"], held["state"], held["running"]) == ("work", 1, "held", True)
    assert held["left_s"] > 0
    assert held["message_id"] in page.out
    afterwards = json.loads(veilmq("top", "--once", "--json").out)
    assert (afterwards["workers"], afterwards["silent"]) == ([], [])
    assert list((runtime / "veilmq").iterdir()) == []


def test_redeliveries_are_read_from_the_servers_metrics(
    veilmq: Veilmq, server: RunningServer, client: HttpQueueClient
) -> None:
    client.create_queue("again")
    client.send("again", "x")
    for _ in range(3):
        (message,) = client.receive("again", wait_s=0)
        client.change_visibility("again", message.receipt, 0)
    done = veilmq("top", "--once", "--json", "--admin", server.admin_endpoint)
    assert json.loads(done.out)["queues"][0]["redeliveries"] == 2


def test_without_metrics_only_sqs_attributes_are_shown(veilmq: Veilmq, server: RunningServer, runtime: Path) -> None:
    for name in ("alpha", "beta"):
        server.queue(name)
    done = veilmq("top", "--once", "--json", "--prefix", "be", "--admin", "http://127.0.0.1:1")
    (queue,) = json.loads(done.out)["queues"]
    assert (queue["queue"], queue["oldest_s"], queue["redeliveries"]) == ("beta", None, None)
    with working(server, runtime, "--hidden"):
        assert json.loads(veilmq("top", "--once", "--json").out)["workers"] == []


@pytest.mark.parametrize(
    ("options", "code", "error"),
    [
        (["--once"], 1, "RequestThrottled"),
        (["--once", "--endpoint", "http://127.0.0.1:1"], 1, "Start a server"),
        ([], 2, "veilmq: The output is not a terminal, or one that cannot be redrawn; use --once, or --json.\n"),
    ],
    ids=["refused", "no server", "no terminal"],
)
def test_errors_are_reported(veilmq: Veilmq, server: RunningServer, options: list[str], code: int, error: str) -> None:
    server.queue("alpha")
    server.faults.script("GetQueueAttributes", faults.THROTTLED)
    done = veilmq("top", *options)
    assert (done.code, error in done.err) == (code, True)


def test_a_folder_that_others_may_enter_is_an_error(veilmq: Veilmq, server: RunningServer, runtime: Path) -> None:
    (runtime / "veilmq").mkdir(mode=0o755)
    veilmq("top", "--once").fails(1, "must be a folder of this user alone (mode 0700)")


def test_a_remote_worker_is_read_at_its_port(veilmq: Veilmq, server: RunningServer, runtime: Path) -> None:
    other = runtime / "of-the-worker"
    other.mkdir()
    with working(server, other, "--metrics-port", "0", "--log", "info") as worker:
        assert worker.stderr is not None
        port = next(line["message"].split()[-1] for line in map(json.loads, worker.stderr) if "port" in line["message"])
        url = f"http://127.0.0.1:{port}"
        done = veilmq("top", "--once", "--json", "--workers", url, "--workers", "http://127.0.0.1:1")
        with urllib.request.urlopen(f"{url}/metrics") as reply:
            metrics = reply.read().decode()
    document = json.loads(done.out)
    assert [found["pid"] for found in document["workers"]] == [worker.pid]
    assert document["silent"] == ["http://127.0.0.1:1"]
    assert 'veilmq_consumer_running{handler="work",queue="work"} 1.0' in metrics


@pytest.mark.parametrize("page", [b"[{", b'[{"worker": "\xff"}]', b"null", None])
def test_a_page_that_is_no_status_is_no_answer(
    page: bytes | None, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veilmq.cli.top._page", lambda url: page)
    assert read_workers(["http://other:1"]) == ([], ["http://other:1"])


def test_a_queue_deleted_meanwhile_is_left_out(server: RunningServer) -> None:
    class Late(HttpQueueClient):
        def list_queues(self, prefix: str = "") -> list[str]:
            return ["alpha", "gone"]

    server.queue("alpha")
    with Late(server.endpoint) as client:
        rows, in_all = read_queues(client, prefix="", admin=None)
    assert ([row.queue for row in rows], in_all) == (["alpha"], 2)


def test_json_updates_are_lines_until_sigterm(server: RunningServer, runtime: Path) -> None:
    server.queue("alpha")
    with Forked(
        [*COMMAND, "top", "--json"],
        env=environment(VEILMQ_ENDPOINT=server.endpoint, XDG_RUNTIME_DIR=str(runtime)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        updates = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert [update["queues"][0]["queue"] for update in updates] == ["alpha", "alpha"]
    assert updates[0]["at_ms"] < updates[1]["at_ms"]


@contextmanager
def terminal_of(endpoint: str, runtime: Path, term: str = "xterm") -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """Run the live view on its own terminal; yield the process and the other end of the terminal."""
    number, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", WITH_A_TERMINAL, *COMMAND, "top"],
        env=environment(VEILMQ_ENDPOINT=endpoint, XDG_RUNTIME_DIR=str(runtime), TERM=term),
        stdin=terminal,
        stdout=terminal,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    os.close(terminal)
    with process:
        try:
            yield process, number
        finally:
            process.kill()
            os.close(number)


def read_until(number: int, text: bytes) -> bytes:
    """Read from a terminal until its output contains ``text``."""
    written = b""
    while text not in written:
        written += os.read(number, 4_096)
    return written


@pytest.mark.parametrize("quit_by", ["q", "\x03", signal.SIGTERM], ids=["q", "ctrl-c", "sigterm"])
def test_the_live_view_restores_the_terminal(
    server: RunningServer, runtime: Path, quit_by: str | signal.Signals
) -> None:
    with terminal_of(server.endpoint, runtime) as (process, number):
        assert b"\x1b[?1049h" in read_until(number, b"in flight")  # the alternate screen ...
        if isinstance(quit_by, str):
            os.write(number, quit_by.encode())
        else:
            process.send_signal(quit_by)
        read_until(number, b"\x1b[?1049l")  # ... and back
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_a_terminal_that_cannot_be_redrawn_is_an_error(server: RunningServer, runtime: Path) -> None:
    with terminal_of(server.endpoint, runtime, term="dumb") as (process, _):
        assert process.stderr is not None
        assert b"cannot be redrawn; use --once" in process.stderr.readline()
        assert process.wait(60) == 2


def test_without_a_server_the_live_view_shows_the_workers(server: RunningServer, runtime: Path) -> None:
    with working(server, runtime), terminal_of("http://127.0.0.1:1", runtime) as (_, number):
        assert b"refused" in read_until(number, b"held")
        os.write(number, b"q")
        read_until(number, b"\x1b[?1049l")
