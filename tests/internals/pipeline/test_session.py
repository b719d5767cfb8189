"""Java, where a session runs, and one sentence out of what Spark says when it fails."""

import os
import shutil
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
from tests.spark.stream import ROOT
from tests.tidy.tree import SRC
from veilmq.client import HttpQueueClient, NewMessage
from veilmq.pipeline import session
from veilmq.pipeline.options import Cluster
from veilmq.pipeline.session import MISSING, PipelineFailed, has_java, open_session, reason_of
from veilmq.testing import RunningServer

OURS = """[PYTHON_DATA_SOURCE_ERROR] Failed to initialize Python data source writer: Traceback (most recent call last):
  File "sink.py", line 48, in streamWriter
    raise OptionWrong("x")
veilmq.spark.options.OptionWrong: option colour: there is none of that name
 SQLSTATE: 38000
=== Streaming Query ===
Identifier: a query [id = 1]
Current State: ACTIVE
"""
THEIRS = OURS.replace("veilmq.spark.options.OptionWrong: option colour: there is none", "ValueError: no integer")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        pytest.param(OURS, "option colour: there is none of that name", id="ours"),
        pytest.param(THEIRS, "ValueError: no integer of that name", id="theirs"),
        pytest.param(
            "\n[TABLE_NOT_FOUND] There is no table x.\n\nPlan", "[TABLE_NOT_FOUND] There is no table x.", id="spark"
        ),
        pytest.param("", "RuntimeError", id="nothing"),
    ],
)
def test_the_reason_is_what_was_raised_last(said: str, reason: str) -> None:
    """Without the tracebacks around it, and without the description of the query behind it."""
    assert reason_of(RuntimeError(said)) == reason


def java_home(folder: Path, says: str, *, code: int = 0) -> str:
    """Make a Java that prints `says` as its version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n", encoding="utf-8")
    program.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    ("says", "code", "found"),
    [
        pytest.param('openjdk version "17.0.15" 2025-04-15', 0, True, id="17"),
        pytest.param('openjdk version "16.0.2" 2021-07-20', 0, False, id="16"),
        pytest.param('openjdk version "21" 2023-09-19', 0, True, id="21"),
        pytest.param('java version "1.8.0_402"', 0, False, id="8"),
        pytest.param("The operation couldn't be completed. Unable to locate a Java Runtime.", 1, False, id="stub"),
    ],
)
def test_the_java_of_java_home_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, code: int, found: bool
) -> None:
    monkeypatch.setenv("JAVA_HOME", java_home(tmp_path, says.replace("'", ""), code=code))
    assert has_java() == found


def test_without_one_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert not has_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not has_java()
    assert "install" in MISSING


@pytest.mark.parametrize(
    ("says", "complains"),
    [pytest.param('openjdk version "17.0.1"', False, id="new"), pytest.param('java version "11.0.2"', True, id="old")],
)
def test_the_script_says_what_to_install_and_never_fails(tmp_path: Path, says: str, complains: bool) -> None:
    """On a machine without a package manager it only reports this."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("sh", "sed", "head", "id"):
        found = shutil.which(tool)
        assert found, tool
        (tools / tool).symlink_to(found)
    environment = {**os.environ, "PATH": str(tools), "JAVA_HOME": java_home(tmp_path / "java", says)}
    done = subprocess.run(
        [ROOT / "scripts" / "install-java.sh"], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert ("need Java 17 or newer" in done.stderr) == complains


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
    monkeypatch.setattr(session, "CONNECT_S", 0.2)
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
