"""The places where jobs run, beside this process and a cluster: Spark Connect, and what spark-submit chooses."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pyspark
import pytest
from deltalake import DeltaTable
from pyspark.errors import AnalysisException

from tests.cli.conftest import COMMAND
from tests.conftest import EVERYTHING, need_java
from tests.tidy.tree import SRC
from veilmq.client import HttpQueueClient, NewMessage
from veilmq.pipeline import session
from veilmq.pipeline.session import Cluster, PipelineFailed, open_session
from veilmq.testing import RunningServer

HOME = Path(pyspark.__file__).parent
MESSAGES = 30

PLACES = {
    "connect": ([*COMMAND, "pipeline"], ["--remote", "local[2]"]),
    "spark-submit": (
        [
            str(HOME / "bin" / "spark-submit"),
            *("--master", "local[2]", "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"),
            *(str(SRC / "veilmq" / "__main__.py"), "pipeline"),
        ],
        [],
    ),
}


@EVERYTHING
@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", ["connect", "spark-submit"])
def test_a_job_runs_there(place: str, tmp_path: Path) -> None:
    """With its streams and its formats; in a process of its own, as a process is either of Connect or not."""
    need_java()
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


def test_a_connect_server_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Soon: left to itself, Spark's client retries silently for some minutes."""
    monkeypatch.setattr(session, "ANSWER_S", 0.2)
    with (
        pytest.raises(PipelineFailed, match=r"answers at sc://127\.0\.0\.1:1 within 0\.2 s"),
        open_session("x", Cluster(remote="sc://127.0.0.1:1")),
    ):
        pytest.fail("there is no session")


def test_what_spark_fails_with_becomes_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark Connect puts the stack of the server into its messages."""
    running = MagicMock()
    monkeypatch.setattr(session, "_connect", lambda cluster: running)
    said = "[PATH_NOT_FOUND] Path does not exist: x.\n\nJVM stacktrace:\n\tat org.apache.spark.Analyzer(1)"
    with (
        pytest.raises(PipelineFailed, match=r"^\[PATH_NOT_FOUND\] Path does not exist: x\.$"),
        open_session("x", Cluster(remote="sc://host")),
    ):
        raise AnalysisException(said)
    running.stop.assert_called_once_with()
