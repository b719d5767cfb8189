"""The jobs on Spark Connect: a server of it, which the command talks to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.conftest import need
from veilmq.client import HttpQueueClient, NewMessage
from veilmq.spark.java import has_java
from veilmq.testing import RunningServer

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

MESSAGES = 30


def test_a_job_runs_on_spark_connect(tmp_path: Path) -> None:
    """Streams and formats of ours included; in a process of its own, as a process is either of Connect or not."""
    need(has_java(), "Java 17 or newer (scripts/install-java.sh)")
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("orders")
        for start in range(0, MESSAGES, 10):
            client.send_batch("orders", [NewMessage(body=str(start + number)) for number in range(10)])
        table = tmp_path / "archive"
        words = ["archive", "orders", "--table", str(table), "--endpoint", server.endpoint, "--remote", "local[2]"]
        done = subprocess.run(
            [sys.executable, "-m", "veilmq", "pipeline", *words],
            cwd=tmp_path,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert done.stdout == f"orders: {MESSAGES} messages archived\n"
        assert client.show("orders").visible + client.show("orders").in_flight == 0
    bodies = DeltaTable(table).to_pyarrow_table(columns=["body"])["body"].to_pylist()
    assert sorted(bodies, key=int) == [str(number) for number in range(MESSAGES)]
