"""The places where jobs run, beside this process and a cluster: Spark Connect, and what spark-submit chooses."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable

from tests.cli.conftest import COMMAND
from tests.conftest import need
from tests.tidy.tree import ROOT
from veilmq.client import HttpQueueClient, NewMessage
from veilmq.spark.java import has_java
from veilmq.testing import RunningServer

HOME = Path(pyspark.__file__).parent
MESSAGES = 30

PLACES = {
    "connect": ([*COMMAND, "pipeline"], ["--remote", "local[2]"]),
    "spark-submit": (
        [
            str(HOME / "bin" / "spark-submit"),
            *("--master", "local[2]", "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"),
            str(ROOT / "examples" / "pipeline_job.py"),
        ],
        [],
    ),
}


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", PLACES)
def test_a_job_runs_there(place: str, tmp_path: Path) -> None:
    """With its streams and its formats; in a process of its own, as a process is either of Connect or not."""
    need(has_java(), "Java 17 or newer (scripts/install-java.sh)")
    program, where = PLACES[place]
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("orders")
        for start in range(0, MESSAGES, 10):
            client.send_batch("orders", [NewMessage(body=str(start + number)) for number in range(10)])
        table = tmp_path / "archive"
        done = subprocess.run(
            [*program, "archive", "orders", "--table", str(table), "--endpoint", server.endpoint, *where],
            cwd=tmp_path,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(HOME)},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert f"orders: {MESSAGES} messages archived\n" in done.stdout  # spark-submit adds standard error
        assert client.show("orders").visible + client.show("orders").in_flight == 0
    bodies = DeltaTable(table).to_pyarrow_table(columns=["body"])["body"].to_pylist()
    assert sorted(bodies, key=int) == [str(number) for number in range(MESSAGES)]
