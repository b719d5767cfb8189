"""The DAGs of the example, run by Airflow in the environment of `make test-all`."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import EVERYTHING, TEST_ALL, need, need_java
from tests.pipeline.closed import row
from tests.pipeline.made_report import content
from tests.tidy.tree import ROOT, SRC
from veilmq.client import HttpQueueClient, NewMessage
from veilmq.core.messages import Attribute
from veilmq.core.receipts import Outcome
from veilmq.events.parquet import SCHEMA
from veilmq.testing import RunningServer

pytestmark = [EVERYTHING, pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(1800)]

MESSAGES = 20


def test_the_jobs_run_as_tasks_of_airflow(tmp_path: Path) -> None:
    """Every task of both DAGs succeeds: a queue is archived, another one tuned and routed, and the archive replayed."""
    need((TEST_ALL / "bin" / "airflow").exists(), "Airflow (make setup-test-all)")
    need_java()
    log(tmp_path / "events" / "receipt_closed")
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        kind = {"Type": Attribute(type="String", text="a")}
        for queue in ("orders", "jobs", "orders-again"):
            client.create_queue(queue)
        for start in range(0, MESSAGES, 10):
            for queue in ("orders", "jobs"):
                client.send_batch(queue, [NewMessage(body=str(start + each), attributes=kind) for each in range(10)])
        airflow = Airflow(tmp_path, server.endpoint)
        airflow.run("db", "migrate")
        assert "state=success" in airflow.run("dags", "test", "veilmq_hourly")
        assert client.show("orders").visible + client.show("jobs").visible == 0
        assert client.show("jobs-class-1").visible == MESSAGES
        assert "jobs" in str(content((tmp_path / "lake" / "report.html").read_text(encoding="utf-8")))
        assert "state=success" in airflow.run("dags", "test", "veilmq_replay")
        assert client.show("orders-again").visible == MESSAGES


class Airflow:
    """The command `airflow`, with a home and a database below `folder`, and the example as its only DAGs."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        """The tasks run the tests' own `veilmq`."""
        self._folder = folder
        self._environment = os.environ | {
            "AIRFLOW_HOME": str(folder / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "examples"),
            "VEILMQ": f"{sys.executable} -m veilmq",
            "VEILMQ_ENDPOINT": endpoint,
            "VEILMQ_LAKE": str(folder / "lake"),
            "VEILMQ_EVENTS": str(folder / "events"),
            "PYTHONPATH": str(SRC),
        }

    def run(self, *words: str) -> str:
        """Run one command of it; return its output."""
        done = subprocess.run(
            [TEST_ALL / "bin" / "airflow", *words],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )
        output = done.stdout + done.stderr
        assert done.returncode == 0, output[-6000:]
        return output


def log(folder: Path) -> None:
    """Write an event log in which 400 messages of the queue `jobs` took a second each."""
    folder.mkdir(parents=True)
    rows = [dict(zip(SCHEMA.names, row(Outcome.DELETED, 1_000, receipt=each), strict=True)) for each in range(400)]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), folder / "one.parquet")
