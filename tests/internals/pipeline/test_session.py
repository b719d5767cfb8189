"""The check for Java, where sessions run, and the short messages for Spark's errors."""

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
    ("text", "reason"),
    [
        pytest.param(OURS, "option colour: there is none of that name", id="ours"),
        pytest.param(THEIRS, "ValueError: no integer of that name", id="theirs"),
        pytest.param(
            "\n[TABLE_NOT_FOUND] There is no table x.\n\nPlan", "[TABLE_NOT_FOUND] There is no table x.", id="spark"
        ),
        pytest.param("", "RuntimeError", id="nothing"),
    ],
)
def test_the_reason_is_the_message_of_the_last_exception(text: str, reason: str) -> None:
    assert reason_of(RuntimeError(text)) == reason


def java_home(folder: Path, version: str, *, code: int = 0) -> str:
    """Create a Java that prints ``version``."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{version}' >&2\nexit {code}\n", encoding="utf-8")
    program.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    ("version", "code", "found"),
    [
        pytest.param('openjdk version "17.0.15" 2025-04-15', 0, True, id="17"),
        pytest.param('openjdk version "16.0.2" 2021-07-20', 0, False, id="16"),
        pytest.param('openjdk version "21" 2023-09-19', 0, True, id="21"),
        pytest.param('java version "1.8.0_402"', 0, False, id="8"),
        pytest.param("The operation couldn't be completed. Unable to locate a Java Runtime.", 1, False, id="stub"),
    ],
)
def test_the_java_in_java_home_must_be_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, code: int, found: bool
) -> None:
    monkeypatch.setenv("JAVA_HOME", java_home(tmp_path, version.replace("'", ""), code=code))
    assert has_java() == found


def test_java_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert not has_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not has_java()
    assert "install" in MISSING


@pytest.mark.parametrize(
    ("version", "complains"),
    [pytest.param('openjdk version "17.0.1"', False, id="new"), pytest.param('java version "11.0.2"', True, id="old")],
)
def test_without_a_package_manager_the_script_only_reports_an_old_java(
    tmp_path: Path, version: str, complains: bool
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("sh", "sed", "head", "id"):
        found = shutil.which(tool)
        assert found, tool
        (tools / tool).symlink_to(found)
    environment = {**os.environ, "PATH": str(tools), "JAVA_HOME": java_home(tmp_path / "java", version)}
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
def test_a_job_runs_with_spark_connect_and_spark_submit(place: str, tmp_path: Path) -> None:
    """In its own process, because a process uses either Spark Connect or not."""
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


def test_an_unreachable_connect_server_is_reported_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's client would retry silently for minutes."""
    monkeypatch.setattr(session, "CONNECT_S", 0.2)
    with (
        pytest.raises(PipelineFailed, match=r"answers at sc://127\.0\.0\.1:1 within 0\.2 s"),
        open_session("x", Cluster(remote="sc://127.0.0.1:1")),
    ):
        pytest.fail("the context must not be entered")


@pytest.mark.slow
def test_a_master_that_cannot_be_used_is_reported_without_a_traceback(tmp_path: Path) -> None:
    """In its own process, because a process has one Spark."""
    need_java()
    options = ["--state", str(tmp_path), "--to", str(tmp_path / "report"), "--master", "spark://nowhere"]
    done = subprocess.run([*COMMAND, "pipeline", "report", *options], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Spark does not start on spark://nowhere: SparkException: Invalid master URL" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_stack_trace_is_removed_from_sparks_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of Spark Connect contain the server's stack trace."""
    running = MagicMock()
    monkeypatch.setattr(session, "_connect", lambda cluster: running)
    text = "[PATH_NOT_FOUND] Path does not exist: x.\n\nJVM stacktrace:\n\tat org.apache.spark.Analyzer(1)"
    with (
        pytest.raises(PipelineFailed, match=r"^\[PATH_NOT_FOUND\] Path does not exist: x\.$"),
        open_session("x", Cluster(remote="sc://host")),
    ):
        raise AnalysisException(text)
    running.stop.assert_called_once_with()
