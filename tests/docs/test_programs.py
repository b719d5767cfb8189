"""The programs, versions and pictures of the README and of the pages on clients and `veilmq top`."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.clients.program import JAVASCRIPT, node
from tests.clients.test_other_programs import CLIENTS
from tests.proofs.forking import run
from tests.tidy.tree import ROOT
from veilmq.cli.top import QueueRow, Snapshot, view
from veilmq.client import HttpQueueClient
from veilmq.consumer.status import HandlerStatus, LeaseStatus, WorkerStatus
from veilmq.testing import RunningServer, SystemClock

README = (ROOT / "README.md").read_text(encoding="utf-8")
(CLIENT,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^\$ veilmq (?!serve)(.*)", README, re.MULTILINE)
LINES_MAX = 120
ADDRESS = "http://127.0.0.1:9324"


@pytest.fixture
def veilmq_settings(tmp_path: Path) -> dict[str, Any]:
    """The settings of `make run`."""
    return {"data": tmp_path / "veilmq-data", "clock": SystemClock()}


def _run(words: list[str], folder: Path, **environment: str) -> str:
    variables = {**os.environ, **environment}
    done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_program_of_the_readme_works(veilmq_url: str, tmp_path: Path) -> None:
    program = CLIENT.replace(ADDRESS, veilmq_url)
    assert _run([sys.executable, "-c", program], tmp_path) == "hello\n"


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= LINES_MAX


def test_the_commands_of_the_readme_work(veilmq_url: str, tmp_path: Path) -> None:
    printed = []
    variables, pipe = {**os.environ, "VEILMQ_ENDPOINT": veilmq_url}, subprocess.PIPE
    for command in COMMANDS:
        words = [sys.executable, "-m", "veilmq", *shlex.split(command)]
        done = run(words, cwd=tmp_path, env=variables, stdout=pipe, stderr=pipe, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert [command.split()[0] for command in COMMANDS] == ["queue", "send", "receive", "queue"]
    assert "Hello, world" in printed[2]


# docs/clients.md has the programs that the tests run, the pinned versions, and the settings of clients.


PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^`(tests/clients/[\w./]+)`:\n\n```\w+\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
(COMMAND,) = re.findall(r"^\$ aws (.*)", PAGE, re.MULTILINE)
EXPORTS = re.findall(r"(AWS_\w+)=(\S+)", PAGE)


def _pinned(file: str, package: str) -> str:
    found = re.search(rf"\b{package}[=>]=([\d.]+)", (ROOT / file).read_text(encoding="utf-8"))
    assert found, f"{package} is not in {file}"
    return found[1]


def _versions() -> dict[str, str]:
    npm = json.loads((JAVASCRIPT / "package.json").read_text(encoding="utf-8"))["dependencies"]
    celery = "tests/clients/python/celery_sqs.txt"
    return {
        "boto3": _pinned("pyproject.toml", "boto3") + " or newer",
        "boto3, an older one": _pinned("tests/clients/python/boto3_query.txt", "boto3"),
        "AWS CLI": _pinned("pyproject.toml", "awscli") + " or newer",
        "AWS SDK for JavaScript v3": npm["@aws-sdk/client-sqs"],
        "sqs-consumer": npm["sqs-consumer"],
        "aliyun-mns-sdk (SMQ)": _pinned("pyproject.toml", "aliyun-mns-sdk"),
        "@alicloud/mns (SMQ)": npm["@alicloud/mns"],
        "amazon-sqs-extended-client (bodies in S3)": _pinned(
            "tests/clients/python/sqs_extended.txt", "amazon-sqs-extended-client"
        ),
        "Celery, with kombu": f"{_pinned(celery, 'celery')}, {_pinned(celery, 'kombu')}",
    }


def test_the_page_has_the_tested_versions_of_clients() -> None:
    rows = re.findall(r"^\| (?!client |---)([^|]+) \| ([^|]+) \|", PAGE, re.MULTILINE)
    assert dict(rows) == _versions() | {client.title: client.version for client in CLIENTS.values()}


def test_the_page_has_the_tested_programs() -> None:
    assert len(PROGRAMS) == 5
    for path, text in PROGRAMS:
        assert text == (ROOT / path).read_text(encoding="utf-8"), path


_BOTO3 = 'import boto3; boto3.client("sqs").create_queue(QueueName="made")'
_JAVASCRIPT = """
import { CreateQueueCommand, SQSClient } from "@aws-sdk/client-sqs";
await new SQSClient({}).send(new CreateQueueCommand({ QueueName: "made" }));
"""


def _boto3() -> list[str]:
    return [sys.executable, "-c", _BOTO3]


def _cli() -> list[str]:
    return [sys.executable, "-m", "awscli", *COMMAND.split()]


def _javascript() -> list[str]:
    return node("--input-type=module", "--eval", _JAVASCRIPT)


@pytest.mark.parametrize("client", [_boto3, _cli, _javascript], ids=["boto3", "cli", "javascript"])
def test_clients_work_with_the_settings_of_the_page(client: Callable[[], list[str]]) -> None:
    with RunningServer() as server:
        words = [word.replace(ADDRESS, server.endpoint) for word in client()]
        _run(words, JAVASCRIPT, **{name: value.replace(ADDRESS, server.endpoint) for name, value in EXPORTS})
        with HttpQueueClient(server.endpoint) as queues:
            assert queues.show("made").visible == 0


# docs/top.md


TEXT = (ROOT / "docs" / "top.md").read_text(encoding="utf-8")


def worker(pid: int, handler: HandlerStatus, lease: LeaseStatus) -> WorkerStatus:
    return WorkerStatus(
        worker=f"studio:{pid}", host="studio", pid=pid, stopping=False, handlers=[handler], leases=[lease]
    )


def handling(queue: str, name: str, events: dict[str, int]) -> HandlerStatus:
    return HandlerStatus(queue=queue, handler=name, leased=1, running=1, buffered=0, events=events)


def holding(queue: str, message_id: str, held_s: float, left_s: float) -> LeaseStatus:
    lease: dict[str, Any] = {"queue": queue, "message_id": message_id, "held_s": held_s, "left_s": left_s}
    return LeaseStatus(handler="", attempt=1, state="held", running=True, renewals=0, **lease)


SNAPSHOT = Snapshot(
    endpoint="http://127.0.0.1:9324",
    at_ms=1_769_850_000_000,
    queues=[
        QueueRow(queue="films", visible=812, in_flight=3, delayed=0, oldest_s=760.0, redeliveries=7),
        QueueRow(queue="orders", visible=0, in_flight=1, delayed=0, oldest_s=0.4, redeliveries=0),
    ],
    queues_in_all=2,
    workers=[
        worker(
            4711,
            handling("films", "render", {"acked": 190}),
            holding("films", "0b1d7c8e-1f6f-4c0b-bb1e-0f9c1f1f7d52", 245.0, 71.3),
        ),
        worker(
            4712,
            handling("orders", "ship", {"acked": 88_210}),
            holding("orders", "5f0c5f5e-9ad0-4b9e-8e6c-1c8a1f0f2a11", 0.2, 29.8),
        ),
    ],
    silent=[],
)


def test_the_page_shows_the_output_of_veilmq_top() -> None:
    file = io.StringIO()
    Console(file=file, width=80, color_system=None, legacy_windows=False).print(view(SNAPSHOT, width=80))
    drawn = "\n".join(line.rstrip() for line in file.getvalue().splitlines())
    assert f"```console\n$ veilmq top\n{drawn}\n```" in TEXT, drawn


def test_the_page_has_every_field_of_a_snapshot() -> None:
    table = TEXT.partition("## For machines")[2]
    for fields in (Snapshot, QueueRow, WorkerStatus, HandlerStatus, LeaseStatus):
        for name in fields.__struct_fields__:
            assert re.search(rf"`{name}`", table), name
