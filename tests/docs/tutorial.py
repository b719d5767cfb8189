"""A tutorial as a reader follows it: its files are written, its commands run in one folder, and print what it says.

A file is a block of Python behind a line with its name in backticks. In a console block a line with ``$`` is a command,
and what stands below it is all that it prints; below nothing, nobody looks. Two kinds of commands are not run as they
stand: ``pip install`` (the test's environment has it all) and those that go on (``veilmq serve``, a worker), which are
started, for as long as the tutorial lasts, with the ports of the test's server in the place of the usual ones.
"""

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.proofs.forking import run
from tests.proofs.served import Served
from tests.tidy.tree import ROOT

FOLDER = ROOT / "docs" / "tutorials"
ENDPOINT, ADMIN_ENDPOINT = "http://127.0.0.1:9324", "http://127.0.0.1:9325"
PATIENCE_S = 600

_FILE = re.compile(r"`(?P<name>[\w.]+)`:\n\n```python\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
_CONSOLE = re.compile(r"^```console\n(?P<lines>.*?)^```", re.MULTILINE | re.DOTALL)
_PROGRAMS = {"python": [], "veilmq": ["-m", "veilmq"]}


class Step(NamedTuple):
    """A command and what it is to print."""

    words: list[str]
    printed: str


class Tutorial:
    """One page."""

    def __init__(self, name: str) -> None:
        page = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
        self.files = {found["name"]: found["text"] for found in _FILE.finditer(page)}
        self.steps = [step for block in _CONSOLE.finditer(page) for step in _steps(block["lines"])]

    @property
    def server(self) -> list[str]:
        (words,) = [step.words[2:] for step in self.steps if step.words[:2] == ["veilmq", "serve"]]
        return words

    @property
    def to_play(self) -> list[Step]:
        """Return the commands that run and end, in their order."""
        going_on = (["pip", "install"], ["veilmq", "serve"], ["celery", "--quiet"])
        return [step for step in self.steps if step.words[:2] not in going_on]


class Stage:
    """A folder with a tutorial's files, and the server that it has its reader start."""

    def __init__(
        self, folder: Path, served: Served | None, *, replaced: Mapping[str, str] | None = None, **environment: str
    ) -> None:
        """`environment` comes on top of the test's; `replaced` maps what a page writes to what the test has for it."""
        self.folder = folder
        self._served = served
        self._replaced = dict(replaced or {})
        self._environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "COLUMNS": "200", **environment}
        if served is not None:
            self._environment["VEILMQ_ENDPOINT"] = served.endpoint

    def write(self, tutorial: Tutorial) -> None:
        for name, text in tutorial.files.items():
            (self.folder / name).write_text(self._here(text), encoding="utf-8")

    def play(self, step: Step, *, python: str = sys.executable) -> str:
        program, *words = [self._here(word) for word in step.words]
        if words[:2] == ["events", "flush"] and self._served is not None:
            words += ["--admin-endpoint", self._served.admin_endpoint]
        command = [python, *_PROGRAMS[program], *words]
        done = (run if program == "veilmq" else subprocess.run)(
            command,
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, (step.words, (done.stdout + done.stderr)[-4000:])
        return done.stdout

    def _here(self, text: str) -> str:
        for written, ours in self._replaced.items():
            text = text.replace(written, ours)
        if self._served is None:
            return text
        port = str(self._served.port)
        return text.replace(ENDPOINT, self._served.endpoint).replace("127.0.0.1:9324", f"127.0.0.1:{port}")


@contextlib.contextmanager
def on_stage(tutorial: Tutorial, folder: Path, replaced: Mapping[str, str] | None = None) -> Iterator[Stage]:
    with contextlib.chdir(folder):
        served = Served(*tutorial.server, log=folder / "server.log")
        served.start()
    try:
        stage = Stage(folder, served, replaced=replaced)
        stage.write(tutorial)
        yield stage
    finally:
        served.stop()


def _steps(lines: str) -> Iterator[Step]:
    for part in re.split(r"^\$ ", lines, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        yield Step(shlex.split(command), printed)
