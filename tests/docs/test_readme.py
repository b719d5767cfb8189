"""The README's programs and commands, run as they stand there (but for the address of the server)."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.proofs.forking import run
from veilmq.testing import RunningServer, SystemClock

pytest_plugins = ["pytester"]

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
CLIENT, WORKER, SUITE = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^\$ \.venv/bin/veilmq ([^#\n]*)", README, re.MULTILINE)


@pytest.fixture
def veilmq_settings(tmp_path: Path) -> dict[str, Any]:
    """Those of a server such as `make run` starts."""
    return {"data": tmp_path / "veilmq-data", "clock": SystemClock()}


def _run(words: list[str], folder: Path) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_client(veilmq_url: str, tmp_path: Path) -> None:
    program = CLIENT.replace("http://127.0.0.1:9324", veilmq_url)
    assert _run([sys.executable, "-c", program], tmp_path) == "hello\n"


def test_the_worker(veilmq_server: RunningServer, veilmq_boto3: Any, tmp_path: Path) -> None:
    queue = veilmq_server.queue("orders")
    veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody="hello")
    program = WORKER.replace("http://127.0.0.1:9324", veilmq_server.endpoint)
    with subprocess.Popen([sys.executable, "-u", "-c", program], cwd=tmp_path, stdout=subprocess.PIPE) as worker:
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"hello\n"
            veilmq_server.wait_until(lambda: not (queue.visible or queue.in_flight))
        finally:
            worker.kill()


def test_the_suite(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    pytester.runpytest("-Werror").assert_outcomes(passed=1)


def test_commands(veilmq_url: str, tmp_path: Path) -> None:
    printed = []
    for command in COMMANDS:
        words = [sys.executable, "-m", "veilmq", *shlex.split(command)]
        found = {**os.environ, "VEILMQ_ENDPOINT": veilmq_url}
        done = run(
            words, cwd=tmp_path, env=found, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert [command.split()[0] for command in COMMANDS] == ["queue", "send", "receive", "queue", "doctor", "backup"]
    assert "Hello, world" in printed[2]
