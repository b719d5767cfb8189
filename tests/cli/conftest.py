"""Fixtures for tests of the commands: a server, and `veilmq` with captured output."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic  # noqa: F401 - cyclopts validates with pydantic where it is loaded
import pytest

from tests.proofs.forking import run
from tests.tidy.tree import SRC
from veilmq.cli import main
from veilmq.testing import RunningServer

SETTINGS = ("VEILMQ_", "AWS_")
PROFILES = dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull)
COMMAND = (sys.executable, "-m", "veilmq")
PIPES: dict[str, Any] = {
    "stdin": subprocess.DEVNULL,
    "stdout": subprocess.PIPE,
    "stderr": subprocess.PIPE,
    "text": True,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    out: str
    err: str

    def fails(self, code: int, *words: str) -> None:
        """Assert the exit code, an empty output, and that the error is one line with these words."""
        assert (self.code, self.out, self.err.count("\n")) == (code, "", 1), self.err
        for each in words:
            assert each in self.err

    def prints(self, out: str) -> None:
        """Assert that the command succeeded and printed exactly this."""
        assert (self.code, self.out, self.err) == (0, out, "")


Veilmq = Callable[..., Outcome]


def without_passwords(url: str) -> str:
    return re.sub(r"(?<=://)([^:@/]*):[^@]*@", r"\1:***@", url)


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a command in a separate process: this source tree, and no settings but `variables`."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    return plain | PROFILES | {"PYTHONPATH": str(SRC), "COLUMNS": "100"} | variables


def command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run([*COMMAND, *arguments], env=environment(**variables), timeout=60, **PIPES)


@pytest.fixture(autouse=True)
def clean_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in an empty folder without settings in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith(SETTINGS):
            monkeypatch.delenv(name)
    for name, value in PROFILES.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def veilmq(capsys: pytest.CaptureFixture[str]) -> Veilmq:
    def run(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = main(arguments)
        printed = capsys.readouterr()
        return Outcome(code=code, out=printed.out, err=printed.err)

    return run


@pytest.fixture
def server(veilmq_server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> RunningServer:
    monkeypatch.setenv("VEILMQ_ENDPOINT", veilmq_server.endpoint)
    return veilmq_server
