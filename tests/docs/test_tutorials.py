"""Each tutorial, played as it is written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bucket import S3Server
from tests.clients.program import ROOT, packages
from tests.conftest import TEST_ALL, need, need_java
from tests.docs.tutorial import FOLDER, Stage, Step, Tutorial, on_stage
from tests.pipeline.made_report import content


def play(stage: Stage, steps: list[Step]) -> None:
    for step in steps:
        printed = stage.play(step)
        assert not step.printed or printed == step.printed, step.words


def test_all_are_played() -> None:
    played = {"boto3", "celery", "smq", "pytest", "spark"}
    assert {path.stem for path in FOLDER.glob("*.md")} == played
    for name in played:
        tutorial = Tutorial(name)
        told = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
        assert told.count("```python") == len(tutorial.files), "each program has a name"
        assert told.count("\n$ ") == len(tutorial.steps)


@pytest.mark.parametrize("name", ["boto3", "smq"])
def test_ten_minutes(name: str, tmp_path: Path) -> None:
    tutorial = Tutorial(name)
    with on_stage(tutorial, tmp_path) as stage:
        play(stage, tutorial.to_play)


def test_a_test_suite(tmp_path: Path) -> None:
    tutorial = Tutorial("pytest")
    stage = Stage(tmp_path, None)
    stage.write(tutorial)
    (step,) = tutorial.to_play
    assert "1 passed" in stage.play(step)


@pytest.mark.slow
def test_celery(tmp_path: Path) -> None:
    tutorial = Tutorial("celery")
    (worker,) = [step.words for step in tutorial.steps if step.words[0] == "celery"]
    found = packages("celery_sqs")["PYTHONPATH"]
    with on_stage(tutorial, tmp_path) as stage:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([found, str(ROOT / "src")])}
        command = [sys.executable, "-m", *worker]
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as working:
            try:
                assert working.stderr is not None
                order = Stage(tmp_path, None, PYTHONPATH=environment["PYTHONPATH"])
                order.play(tutorial.to_play[0])
                done = (line.partition("shipped ")[2] for line in working.stderr if "shipped " in line)
                assert {next(done), next(done)} == {"two chairs\n", "a table\n"}
                play(stage, tutorial.to_play[1:])
            finally:
                working.kill()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_from_a_queue_to_a_bucket_and_back(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    need_java()
    need((TEST_ALL / "bin" / "python").exists(), "DuckDB (make setup-test-all)")
    tutorial = Tutorial("spark")
    packages, jars = "spark.jars.packages=org.apache.hadoop:hadoop-aws:3.5.0", s3.settings["spark.jars"]
    ours = {"s3://company": bucket, packages: f"spark.jars={jars}"}
    printed = {}
    with on_stage(tutorial, tmp_path, ours) as stage:
        for step in tutorial.to_play:
            python = str(TEST_ALL / "bin" / "python") if "question.py" in step.words else sys.executable
            printed[" ".join(step.words[:3])] = said = stage.play(step, python=python)
            assert not step.printed or said == step.printed, step.words
    assert "visibility timeout  7 s" in printed["veilmq queue show"]
    assert "jobs-class-1\n" in printed["veilmq queue list"]
    assert "jobs" in str(content((tmp_path / "report.html").read_text(encoding="utf-8")))
