"""`make cluster`, with one node less: what it starts answers through the balancer, and it leaves nothing behind."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from examples.cluster.postgres_server import temporary_folder
from tests.conftest import need
from tests.tidy.tree import ROOT, SRC
from veilmq.client import HttpQueueClient
from veilmq.testing import RunningServer, SystemClock

CLUSTER = ROOT / "examples" / "cluster" / "cluster.py"
PLACES = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
END_S_MAX = 60


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    command = [sys.executable, "-u", str(CLUSTER), "--nodes", "2", "--port", "0", "--folder", str(folder)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(SRC)}, stdout=subprocess.PIPE, text=True)
    below: list[psutil.Process] = []
    try:
        assert process.stdout is not None
        told = {}
        for line in process.stdout:
            if line.startswith("Ctrl-C"):
                break
            name, value = line.rsplit(maxsplit=1)
            told[name] = value
        below = psutil.Process(process.pid).children(recursive=True)
        yield told
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=END_S_MAX)
            left = [each for each in below if each.is_running()]
        finally:
            process.kill()
            for each in below:
                if each.is_running():
                    each.kill()
    assert (process.returncode, left) == (0, [])
    assert len(below) > 5, "balancer, nodes, two databases with processes of their own"


@pytest.mark.slow
def test_requests_go_through_the_balancer_also_when_a_node_has_gone() -> None:
    need(shutil.which("haproxy", path=PLACES), "HAProxy (scripts/install-haproxy.sh)")
    with temporary_folder() as folder, cluster(folder / "cluster") as told:
        assert {"database", "node 1", "node 2", "endpoint"} <= set(told)
        with HttpQueueClient(told["endpoint"]) as client:
            client.create_queue("orders")
            for number in range(4):
                client.send("orders", str(number))
        with HttpQueueClient(told["node 2"]) as client:
            assert client.show("orders").visible == 4
        (gone,) = (
            each
            for each in psutil.process_iter(["cmdline"])
            if told["node 1"].rsplit(":", 1)[1] in (each.info["cmdline"] or [])
        )
        gone.kill()
        with HttpQueueClient(told["endpoint"]) as client:
            bodies = [each.body for each in client.receive("orders", count=10, timeout_s=600)]
            assert sorted(bodies) == ["0", "1", "2", "3"]


def test_without_a_balancer_it_says_what_to_do() -> None:
    program = f"import sys; sys.argv = ['cluster']; sys.path.insert(0, {str(CLUSTER.parent)!r}); import cluster"
    program += "; cluster.PROGRAMS = ''; sys.exit(cluster.main())"
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "scripts/install-haproxy.sh" in done.stderr


# The examples of consumers print what they promise.


PRINTED = {
    "consume_orders": """\
order 1: anchor, attempt 1
order 3: rope, attempt 1
order 2: ship, attempt 2
dead letter: 'no order at all', Undecodable
""",
    "consume_in_order": """\
ann: open, deposit, close
bob: open, deposit, close
cid: open, deposit, close
""",
    "consume_batches": """\
rows: [0, 1, 2, 3, 4, 5, 6]
loaded 7, dropped 3
""",
    "consume_once": """\
order 1: shipped
the worker was killed: True
order 2: shipped
order 3: shipped
left in the queue: 0
""",
    "consume_long_jobs": """\
The Veil: frames 0 to 3
The Veil: frames 4 to 7
The Veil: frames 8 to 9
rendered: {'The Veil': 10}
""",
}


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_promises(name: str) -> None:
    with RunningServer(clock=SystemClock()) as server:
        done = subprocess.run(
            [sys.executable, ROOT / "examples" / f"{name}.py"],
            env={**os.environ, "VEILMQ_ENDPOINT": server.endpoint, "PYTHONPATH": str(SRC)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    assert sorted(done.stdout.splitlines()) == sorted(PRINTED[name].splitlines())
