"""Each page for users of another library, its veilmq side executed: the worker, what is sent to it, and its test."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, SRC
from veilmq.client import HttpQueueClient
from veilmq.testing import RunningServer, SystemClock

FOLDER = ROOT / "docs" / "coming-from"
PAGES = ("boto3", "celery", "dramatiq", "nservicebus")
_FILE = re.compile(r"`(?P<name>[\w.]+)`:\n\n```python\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)


def test_each_page_is_tried() -> None:
    assert tuple(sorted(path.stem for path in FOLDER.glob("*.md"))) == PAGES


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_the_same_program(name: str, tmp_path: Path) -> None:
    """The commands of the page are those that run; the worker prints what the page shows, and nothing is left."""
    page = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    files = {found["name"]: found["text"] for found in _FILE.finditer(page)}
    assert [*files] == ["shop.py", "order.py", "test_shop.py"]
    for file, text in files.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    work, order = re.findall(r"^\$ (.*)$", page, re.MULTILINE)
    (printed,) = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    python = {"veilmq": [sys.executable, "-m", "veilmq"], "python": [sys.executable]}

    with RunningServer(clock=SystemClock()) as server, HttpQueueClient(server.endpoint) as client:
        environment = os.environ | {
            "PYTHONPATH": str(SRC),
            "VEILMQ_ENDPOINT": server.endpoint,
            "AWS_ENDPOINT_URL_SQS": server.endpoint,
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

        def command(line: str) -> list[str]:
            program, *words = line.split()
            return [*python[program], *words]

        with subprocess.Popen(
            command(work), cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as worker:
            try:
                server.wait_until(lambda: "orders" in client.list_queues())
                subprocess.run(command(order), cwd=tmp_path, env=environment, check=True, timeout=60)
                assert worker.stdout is not None
                assert "".join(worker.stdout.readline() for _ in printed.splitlines()) == printed
                server.wait_until(lambda: not any(_held(client, queue) for queue in client.list_queues()))
            finally:
                worker.terminate()
                _, log = worker.communicate(timeout=60)
        assert worker.returncode == 0, log
    words = [sys.executable, "-m", "pytest", "-q", "-Werror", "-p", "no:cacheprovider", "test_shop.py"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), done.stdout + done.stderr


def _held(client: HttpQueueClient, queue: str) -> int:
    status = client.show(queue)
    return status.visible + status.in_flight
