"""`veilmq demo`, in its short form, from beginning to end."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import EVERYTHING, need_java
from tests.pipeline.made_report import content

pytestmark = [EVERYTHING, pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

WORK = 2 * 300


def demo(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "veilmq", "demo", "--quick", "--folder", str(folder), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ)


def numbers(pattern: str, text: str) -> list[int]:
    """Return the numbers that `pattern` finds in `text`."""
    return [int(found.replace(",", "")) for found in re.findall(pattern, text)]


def test_the_demonstration_from_beginning_to_end(tmp_path: Path) -> None:
    """It comes to its end, with a report; nothing is lost, each message is archived once, and classes repeat less."""
    need_java()
    folder = tmp_path / "demo"
    running = demo(folder)
    said, _ = running.communicate(timeout=800)
    assert running.returncode == 0, said
    done, dead = numbers(r"([\d,]+) messages done", said), numbers(r"([\d,]+) moved to", said)
    assert [sum(each) for each in zip(done, dead, strict=True)] == [300, 300]
    single, several = numbers(r"([\d,]+) redeliveries", said)
    assert several < single
    assert "different messages: each exactly once" in said
    assert f"{WORK:,} of {WORK:,} pieces of work" in said
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert content(report)["queues"]
    assert [entry.name for entry in folder.iterdir()] == ["report.html"]


def test_nothing_of_it_outlives_a_kill(tmp_path: Path) -> None:
    """Server and workers end when the one that started them is killed."""
    need_java()
    running = demo(tmp_path / "demo")
    assert running.stdout is not None
    assert "Server: http" in running.stdout.readline()
    children = psutil.Process(running.pid).children(recursive=True)
    assert children
    running.send_signal(signal.SIGKILL)
    running.wait(30)
    running.stdout.close()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []
