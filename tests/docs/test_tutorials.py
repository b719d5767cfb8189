"""Run each tutorial as a reader does: write its files, run its commands, compare their output.

A file is a block of Python after a line with its name in backticks. In a console block, a line with ``$`` is a command
and the lines below it are its output; without such lines the output is not compared. ``pip install`` is skipped, as the
test's environment has the packages. Commands that do not end (``veilmq serve``, a worker) run until the end of the
tutorial, with free ports.
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

import pytest

from tests.bucket import S3Server
from tests.clients.program import packages
from tests.conftest import TEST_ALL, need, need_java
from tests.pipeline.made_report import content
from tests.proofs.forking import run
from tests.proofs.served import Served
from tests.tidy.tree import ROOT

FOLDER = ROOT / "docs" / "tutorials"
ENDPOINT = "http://127.0.0.1:9324"
PATIENCE_S = 600

_FILE = re.compile(r"`(?P<name>[\w.]+)`:\n\n```python\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
_CONSOLE = re.compile(r"^```console\n(?P<lines>.*?)^```", re.MULTILINE | re.DOTALL)
_PROGRAMS = {"python": [], "veilmq": ["-m", "veilmq"]}


class Step(NamedTuple):
    words: list[str]
    printed: str


class Tutorial:
    def __init__(self, name: str) -> None:
        page = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
        self.files = {found["name"]: found["text"] for found in _FILE.finditer(page)}
        self.steps = [step for block in _CONSOLE.finditer(page) for step in _steps(block["lines"])]

    @property
    def server(self) -> list[str]:
        (words,) = [step.words[2:] for step in self.steps if step.words[:2] == ["veilmq", "serve"]]
        return words

    @property
    def foreground(self) -> list[Step]:
        """The commands that end, in order."""
        going_on = (["pip", "install"], ["veilmq", "serve"], ["celery", "--quiet"])
        return [step for step in self.steps if step.words[:2] not in going_on]


class Stage:
    """A folder with a tutorial's files, and the tutorial's server."""

    def __init__(
        self, folder: Path, served: Served | None, *, replaced: Mapping[str, str] | None = None, **environment: str
    ) -> None:
        """`environment` extends the test's; `replaced` maps texts of the page to those of the test."""
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


def play(stage: Stage, steps: list[Step]) -> None:
    for step in steps:
        printed = stage.play(step)
        assert not step.printed or printed == step.printed, step.words


def test_every_tutorial_is_tested() -> None:
    played = {"boto3", "celery", "smq", "pytest", "spark"}
    assert {path.stem for path in FOLDER.glob("*.md")} == played
    for name in played:
        tutorial = Tutorial(name)
        text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
        assert text.count("```python") == len(tutorial.files), "each program has a name"
        assert text.count("\n$ ") == len(tutorial.steps)


@pytest.mark.parametrize("name", ["boto3", "smq"])
def test_the_tutorial_of_a_client_works(name: str, tmp_path: Path) -> None:
    tutorial = Tutorial(name)
    with on_stage(tutorial, tmp_path) as stage:
        play(stage, tutorial.foreground)


def test_the_tutorial_of_pytest_works(tmp_path: Path) -> None:
    tutorial = Tutorial("pytest")
    stage = Stage(tmp_path, None)
    stage.write(tutorial)
    (step,) = tutorial.foreground
    assert "1 passed" in stage.play(step)


@pytest.mark.slow
def test_the_tutorial_of_celery_works(tmp_path: Path) -> None:
    tutorial = Tutorial("celery")
    (worker,) = [step.words for step in tutorial.steps if step.words[0] == "celery"]
    found = packages("celery_sqs")["PYTHONPATH"]
    with on_stage(tutorial, tmp_path) as stage:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([found, str(ROOT / "src")])}
        command = [sys.executable, "-m", *worker]
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as working:
            try:
                assert working.stderr is not None
                Stage(tmp_path, None, PYTHONPATH=environment["PYTHONPATH"]).play(tutorial.foreground[0])
                done = (line.partition("shipped ")[2] for line in working.stderr if "shipped " in line)
                assert {next(done), next(done)} == {"two chairs\n", "a table\n"}
                play(stage, tutorial.foreground[1:])
            finally:
                working.kill()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_tutorial_of_spark_works(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    need_java()
    need((TEST_ALL / "bin" / "python").exists(), "DuckDB (make setup-test-all)")
    tutorial = Tutorial("spark")
    packages, jars = "spark.jars.packages=org.apache.hadoop:hadoop-aws:3.5.0", s3.settings["spark.jars"]
    ours = {"s3://company": bucket, packages: f"spark.jars={jars}"}
    printed = {}
    with on_stage(tutorial, tmp_path, ours) as stage:
        for step in tutorial.foreground:
            python = str(TEST_ALL / "bin" / "python") if "question.py" in step.words else sys.executable
            printed[" ".join(step.words[:3])] = output = stage.play(step, python=python)
            assert not step.printed or output == step.printed, step.words
    assert "visibility timeout  7 s" in printed["veilmq queue show"]
    assert "jobs-class-1\n" in printed["veilmq queue list"]
    assert "jobs" in str(content((tmp_path / "report.html").read_text(encoding="utf-8")))
