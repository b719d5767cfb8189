"""The README's programs and commands, run as they stand there (but for the address of the server)."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from veilmq.engines.clock import SystemClock
from veilmq.testing import RunningServer

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^\$ \.venv/bin/veilmq ([^#\n]*)", README, re.MULTILINE)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server such as `make run` starts."""
    with RunningServer(data=tmp_path / "veilmq-data", clock=SystemClock()) as running:
        yield running


def _run(words: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS, ids=["a client", "a test suite"])
def test_programs(program: str, server: RunningServer, tmp_path: Path) -> None:
    printed = _run([sys.executable, "-c", program.replace("http://127.0.0.1:9324", server.endpoint)], tmp_path)
    assert printed == ("hello\n" if "9324" in program else "")


def test_commands(server: RunningServer, tmp_path: Path) -> None:
    printed = [
        _run([sys.executable, "-m", "veilmq", *shlex.split(command)], tmp_path, VEILMQ_ENDPOINT=server.endpoint)
        for command in COMMANDS
    ]
    assert [command.split()[0] for command in COMMANDS] == ["queue", "send", "receive", "queue", "doctor"]
    assert "Hello, world" in printed[2]
