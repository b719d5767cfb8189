"""The examples: a cluster with a balancer, and consumers."""

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
    children: list[psutil.Process] = []
    try:
        assert process.stdout is not None
        printed = {}
        for line in process.stdout:
            if line.startswith("Ctrl-C"):
                break
            name, value = line.rsplit(maxsplit=1)
            printed[name] = value
        children = psutil.Process(process.pid).children(recursive=True)
        yield printed
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=END_S_MAX)
            left = [each for each in children if each.is_running()]
        finally:
            process.kill()
            for each in children:
                if each.is_running():
                    each.kill()
    assert (process.returncode, left) == (0, [])
    assert len(children) > 5  # balancer, nodes, and two databases with several processes each


@pytest.mark.slow
def test_the_balancer_serves_requests_after_a_node_was_killed() -> None:
    need(shutil.which("haproxy", path=PLACES), "HAProxy (scripts/install-haproxy.sh)")
    with temporary_folder() as folder, cluster(folder / "cluster") as printed:
        assert {"database", "node 1", "node 2", "endpoint"} <= set(printed)
        with HttpQueueClient(printed["endpoint"]) as client:
            client.create_queue("orders")
            for number in range(4):
                client.send("orders", str(number))
        with HttpQueueClient(printed["node 2"]) as client:
            assert client.show("orders").visible == 4
        (node,) = (
            each
            for each in psutil.process_iter(["cmdline"])
            if printed["node 1"].rsplit(":", 1)[1] in (each.info["cmdline"] or [])
        )
        node.kill()
        with HttpQueueClient(printed["endpoint"]) as client:
            bodies = [each.body for each in client.receive("orders", count=10, timeout_s=600)]
            assert sorted(bodies) == ["0", "1", "2", "3"]


def test_the_error_without_a_balancer_says_how_to_install_it() -> None:
    program = f"import sys; sys.argv = ['cluster']; sys.path.insert(0, {str(CLUSTER.parent)!r}); import cluster"
    program += "; cluster.PROGRAMS = ''; sys.exit(cluster.main())"
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "scripts/install-haproxy.sh" in done.stderr


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
def test_each_consumer_example_prints_its_documented_output_whenever_it_runs(name: str) -> None:
    with RunningServer(clock=SystemClock()) as server:
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, ROOT / "examples" / f"{name}.py"],
                env={**os.environ, "VEILMQ_ENDPOINT": server.endpoint, "PYTHONPATH": str(SRC)},
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            assert sorted(done.stdout.splitlines()) == sorted(PRINTED[name].splitlines())
