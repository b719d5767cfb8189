"""One sentence out of what Spark says when it fails.

Which Java Spark would take, and what the set-up says where there is none.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.spark.stream import ROOT
from veilmq.pipeline.session import MISSING, has_java, java_version, reason_of

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
    ("says", "code", "version"),
    [
        pytest.param('openjdk version "17.0.15" 2025-04-15', 0, 17, id="17"),
        pytest.param('openjdk version "21" 2023-09-19', 0, 21, id="21"),
        pytest.param('java version "1.8.0_402"', 0, 1, id="8"),
        pytest.param("The operation couldn't be completed. Unable to locate a Java Runtime.", 1, None, id="stub"),
    ],
)
def test_the_java_of_java_home_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, code: int, version: int | None
) -> None:
    monkeypatch.setenv("JAVA_HOME", java_home(tmp_path, says.replace("'", ""), code=code))
    assert java_version() == version
    assert has_java() == ((version or 0) >= 17)


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
