"""`veilmq top`: what it shows of a look, and that it finds server and workers by itself."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
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
from veilmq.cli.top import QueueRow, Snapshot, pause_s, read_queues, span, view
from veilmq.client import HttpQueueClient
from veilmq.consumer.status import HandlerStatus, LeaseStatus, WorkerStatus
from veilmq.testing import RunningServer, faults

WITH_A_TERMINAL = """
import os, signal, sys
os.close(os.open(os.ttyname(0), os.O_RDWR))
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Makes the terminal that of the session, so that Ctrl-C is a signal, also where the tests ignore it."""
WORKER = "tests.consumer.workers:stuck"


def lease(number: int, left_s: float, **changed: Any) -> LeaseStatus:
    usual: dict[str, Any] = {"queue": "films", "handler": "render", "message_id": f"message-{number}", "attempt": 1}
    usual |= {"state": "held", "left_s": left_s, "held_s": 75.0, "running": True, "renewals": 0}
    return LeaseStatus(**(usual | changed))


def look(*, queues: int = 1, leases: int = 1, **changed: Any) -> Snapshot:
    """Return a server with queues, and a worker with leases."""
    works = {"leased": leases, "running": leases, "buffered": 0}
    handler = HandlerStatus(queue="films", handler="render", events={"acked": 9}, **works)
    held = [lease(number, 30.0 + number) for number in range(leases)]
    worker = WorkerStatus(worker="host:7", host="host", pid=7, stopping=False, handlers=[handler], leases=held)
    usual: dict[str, Any] = {"endpoint": "http://127.0.0.1:9324", "at_ms": 1_700_000_000_000, "queues_in_all": queues}
    usual["queues"] = [
        QueueRow(queue=f"q{number:02}", visible=number, in_flight=2, delayed=3) for number in range(queues)
    ]
    return Snapshot(**(usual | {"workers": [worker], "silent": []} | changed))


def shown(look: Snapshot, *, width: int = 120, height: int | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(view(look, width=width, height=height))
    file = console.file
    assert isinstance(file, io.StringIO)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_wide_terminal_shows_everything() -> None:
    head, queues, queue, workers, worker, leases, held = shown(look())
    assert head == "http://127.0.0.1:9324  2023-11-14 22:13:20 UTC"
    assert queues.split() == ["queue", "visible", "in", "flight", "delayed", "oldest", "redelivered"]
    assert queue.split() == ["q00", "0", "2", "3", "–", "–"]
    assert workers.split() == ["worker", "queue", "handler", "running", "buffered", "done", "redelivered"]
    assert worker.split() == ["host:7", "films", "render", "1", "0", "9", "0"]
    assert leases.split() == ["message", "worker", "queue", "handler", "attempt", "held", "lease", "left"]
    assert held.split() == ["message-0", "host:7", "films", "render", "1", "75.0", "s", "held", "30.0", "s"]


@pytest.mark.parametrize("width", [20, 40, 50, 60, 72, 84, 100, 120])
def test_a_narrow_terminal_shows_less_and_the_most_important(width: int) -> None:
    lines = shown(look(), width=width)
    assert len(lines) == 7
    assert all(len(line) <= width for line in lines)
    assert lines[-1].endswith("30.0 s")
    assert "visible" in lines[1]


def test_a_low_terminal_shows_the_fullest_queues_and_the_most_urgent_leases() -> None:
    lines = shown(look(queues=20, leases=20), height=24)
    assert len(lines) <= 24
    assert [line.split()[0] for line in lines if line.startswith("q1")] == [f"q{number}" for number in range(13, 20)]
    assert "… and 13 more queues" in "\n".join(lines)
    assert [line.split()[0] for line in lines if line.startswith("message-")] == [f"message-{n}" for n in range(8)]
    assert lines[-1] == "… and 12 more leases"


def test_leases_of_all_workers_come_in_the_order_of_their_ends() -> None:
    leases = [lease(1, -2.0, state="suspect"), lease(2, 400.0, attempt=3), lease(3, 3.0, running=False)]
    worker = WorkerStatus(worker="a:1", host="a", pid=1, stopping=True, handlers=[], leases=leases)
    lines = shown(look(workers=[worker], silent=["http://far:9326"]))
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
def test_a_span_has_six_characters_at_most_while_it_matters(seconds: float | None, text: str) -> None:
    assert span(seconds) == text


def test_looking_costs_a_tenth_of_the_time_at_most() -> None:
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
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_it_finds_the_server_and_the_lease_of_a_worker(veilmq: Veilmq, server: RunningServer, runtime: Path) -> None:
    with working(server, runtime) as worker:
        done = veilmq("top", "--once", "--json", "--admin", server.admin_endpoint)
        told = veilmq("top", "--once", "--admin", server.admin_endpoint)
    assert done.code == 0, done.err
    seen = json.loads(done.out)
    (queue,) = seen["queues"]
    assert (queue["queue"], queue["visible"], queue["in_flight"]) == ("work", 0, 1)
    assert (queue["oldest_s"], queue["redeliveries"]) == (0.0, 0)
    (found,) = seen["workers"]
    assert found["pid"] == worker.pid
    (held,) = found["leases"]
    assert (held["queue"], held["attempt"], held["state"], held["running"]) == ("work", 1, "held", True)
    assert held["left_s"] > 0
    assert held["message_id"] in told.out
    gone = json.loads(veilmq("top", "--once", "--json").out)
    assert (gone["workers"], gone["silent"]) == ([], [])
    assert list((runtime / "veilmq").iterdir()) == []


def test_redeliveries_are_the_servers_count(veilmq: Veilmq, server: RunningServer, client: HttpQueueClient) -> None:
    client.create_queue("again")
    client.send("again", "x")
    for _ in range(3):
        (message,) = client.receive("again", wait_s=0)
        client.change_visibility("again", message.receipt, 0)
    done = veilmq("top", "--once", "--json", "--admin", server.admin_endpoint)
    assert json.loads(done.out)["queues"][0]["redeliveries"] == 2


def test_without_metrics_only_what_sqs_tells_is_shown(veilmq: Veilmq, server: RunningServer, runtime: Path) -> None:
    for name in ("alpha", "beta"):
        server.queue(name)
    done = veilmq("top", "--once", "--json", "--prefix", "be", "--admin", "http://127.0.0.1:1")
    (queue,) = json.loads(done.out)["queues"]
    assert (queue["queue"], queue["oldest_s"], queue["redeliveries"]) == ("beta", None, None)
    with working(server, runtime, "--hidden"):
        assert json.loads(veilmq("top", "--once", "--json").out)["workers"] == []


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--once"], 1, "RequestThrottled"),
        (["--once", "--endpoint", "http://127.0.0.1:1"], 1, "Start a server"),
        ([], 2, "veilmq: The output is not a terminal; use --once, or --json.\n"),
    ],
    ids=["refused", "no server", "no terminal"],
)
def test_what_cannot_be_shown_is_said(
    veilmq: Veilmq, server: RunningServer, options: list[str], code: int, said: str
) -> None:
    server.queue("alpha")
    server.faults.script("GetQueueAttributes", faults.THROTTLED)
    done = veilmq("top", *options)
    assert (done.code, said in done.err) == (code, True)


def test_a_folder_that_others_may_enter_is_said(veilmq: Veilmq, server: RunningServer, runtime: Path) -> None:
    (runtime / "veilmq").mkdir(mode=0o755)
    veilmq("top", "--once").fails(1, "must be a folder of this user alone (mode 0700)")


def test_a_worker_elsewhere_is_seen_at_its_port(veilmq: Veilmq, server: RunningServer, runtime: Path) -> None:
    other = runtime / "of-the-worker"
    other.mkdir()
    with working(server, other, "--metrics-port", "0", "--log", "info") as worker:
        assert worker.stderr is not None
        port = next(line["message"].split()[-1] for line in map(json.loads, worker.stderr) if "port" in line["message"])
        url = f"http://127.0.0.1:{port}"
        done = veilmq("top", "--once", "--json", "--workers", url, "--workers", "http://127.0.0.1:1")
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            metrics = answer.read().decode()
    seen = json.loads(done.out)
    assert [found["pid"] for found in seen["workers"]] == [worker.pid]
    assert seen["silent"] == ["http://127.0.0.1:1"]
    assert 'veilmq_consumer_running{handler="work",queue="work"} 1.0' in metrics


def test_a_queue_that_is_deleted_meanwhile_is_left_out(server: RunningServer) -> None:
    class Late(HttpQueueClient):
        def list_queues(self, prefix: str = "") -> list[str]:
            return ["alpha", "gone"]

    server.queue("alpha")
    with Late(server.endpoint) as client:
        rows, in_all = read_queues(client, prefix="", admin=None)
    assert ([row.queue for row in rows], in_all) == (["alpha"], 2)


def test_looks_are_lines_for_as_long_as_somebody_reads(server: RunningServer, runtime: Path) -> None:
    server.queue("alpha")
    with Forked(
        [*COMMAND, "top", "--json"],
        env=environment(VEILMQ_ENDPOINT=server.endpoint, XDG_RUNTIME_DIR=str(runtime)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as looking:
        assert looking.stdout is not None
        looks = [json.loads(looking.stdout.readline()) for _ in range(2)]
        looking.send_signal(signal.SIGTERM)
        assert looking.wait(60) == 0
    assert [look["queues"][0]["queue"] for look in looks] == ["alpha", "alpha"]
    assert looks[0]["at_ms"] < looks[1]["at_ms"]


@contextmanager
def terminal_of(endpoint: str, runtime: Path) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """Run the live view on a terminal of its own, and give it with the other end of that."""
    number, terminal = pty.openpty()
    shown = subprocess.Popen(
        [sys.executable, "-c", WITH_A_TERMINAL, *COMMAND, "top"],
        env=environment(VEILMQ_ENDPOINT=endpoint, XDG_RUNTIME_DIR=str(runtime), TERM="xterm"),
        stdin=terminal,
        stdout=terminal,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    os.close(terminal)
    with shown:
        try:
            yield shown, number
        finally:
            shown.kill()
            os.close(number)


def read_until(number: int, text: bytes) -> bytes:
    """Read what is written to a terminal until `text` is in it."""
    written = b""
    while text not in written:
        written += os.read(number, 4_096)
    return written


@pytest.mark.parametrize("leave", ["q", "\x03", signal.SIGTERM], ids=["q", "ctrl-c", "sigterm"])
def test_a_live_view_leaves_the_terminal_as_it_was(
    server: RunningServer, runtime: Path, leave: str | signal.Signals
) -> None:
    with terminal_of(server.endpoint, runtime) as (shown, number):
        assert b"\x1b[?1049h" in read_until(number, b"in flight")  # another screen ...
        if isinstance(leave, str):
            os.write(number, leave.encode())
        else:
            shown.send_signal(leave)
        read_until(number, b"\x1b[?1049l")  # ... and back
        assert shown.wait(60) == 0
        assert shown.stderr is not None
        assert shown.stderr.read() == b""


def test_without_a_server_the_live_view_shows_the_workers(server: RunningServer, runtime: Path) -> None:
    with working(server, runtime), terminal_of("http://127.0.0.1:1", runtime) as (_, number):
        assert b"refused" in read_until(number, b"held")
        os.write(number, b"q")
        read_until(number, b"\x1b[?1049l")
