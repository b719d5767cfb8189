"""`veilmq demo` in its short form."""

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
    return [int(found.replace(",", "")) for found in re.findall(pattern, text)]


def test_the_demo_ends_with_a_report_and_loses_no_message(tmp_path: Path) -> None:
    need_java()
    folder = tmp_path / "demo"
    running = demo(folder)
    output, _ = running.communicate(timeout=800)
    assert running.returncode == 0, output
    done, dead = numbers(r"([\d,]+) messages done", output), numbers(r"([\d,]+) moved to", output)
    assert [sum(each) for each in zip(done, dead, strict=True)] == [300, 300]
    single, several = numbers(r"([\d,]+) redeliveries", output)
    assert several < single
    assert "different messages: each exactly once" in output
    assert f"{WORK:,} of {WORK:,} pieces of work" in output
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert content(report)["queues"]
    assert [entry.name for entry in folder.iterdir()] == ["report.html"]


def test_server_and_workers_of_the_demo_end_if_it_is_killed(tmp_path: Path) -> None:
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
