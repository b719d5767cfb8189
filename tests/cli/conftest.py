"""What the tests of the commands run on: a server, and `veilmq` with its output caught."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pydantic  # noqa: F401 - where it is loaded, the library for commands checks with it what it makes
import pytest

from tests.proofs.forking import run
from tests.tidy.tree import SRC
from veilmq.cli import main
from veilmq.testing import RunningServer

SETTINGS = ("VEILMQ_", "AWS_")
PROFILES = dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull)
"""No profile of this machine takes part."""
COMMAND = (sys.executable, "-m", "veilmq")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    def fails(self, code: int, *words: str) -> None:
        """Assert that it ended with this code, printed nothing, and says these words among others."""
        assert (self.code, self.out) == (code, ""), self.err
        for each in words:
            assert each in self.err


Veilmq = Callable[..., Outcome]


def without_passwords(url: str) -> str:
    return re.sub(r"(?<=://)([^:@/]*):[^@]*@", r"\1:***@", url)


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a command of its own process: this source tree, no settings but `variables`."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    return plain | PROFILES | {"PYTHONPATH": str(SRC), "COLUMNS": "100"} | variables


def command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    words, variables = [*COMMAND, *arguments], environment(**variables)
    return run(words, env=variables, stdin=nothing, stdout=pipe, stderr=pipe, text=True, timeout=60)


@pytest.fixture(autouse=True)
def clean_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder and without settings in the environment."""
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
