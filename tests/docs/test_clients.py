"""The page of the clients says what the tests run: the same programs, the pinned versions, settings that suffice."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.clients.program import JAVASCRIPT, ROOT, node
from veilmq.client import HttpQueueClient
from veilmq.testing import RunningServer

ADDRESS = "http://127.0.0.1:9324"
PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^`(tests/clients/[\w./]+)`:\n\n```\w+\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
(COMMAND,) = re.findall(r"^\$ aws (.*)", PAGE, re.MULTILINE)
EXPORTS = re.findall(r"(AWS_\w+)=(\S+)", PAGE)


def _pinned(file: str, package: str) -> str:
    """Return the version after `package==` or `package>=` in the file."""
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


def test_versions() -> None:
    rows = re.findall(r"^\| (?!client |---)([^|]+) \| ([^|]+) \|", PAGE, re.MULTILINE)
    assert dict(rows) == _versions()


def test_programs() -> None:
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


def _run(words: list[str], **environment: str) -> str:
    done = subprocess.run(
        words,
        cwd=JAVASCRIPT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("client", [_boto3, _cli, _javascript], ids=["boto3", "cli", "javascript"])
def test_these_settings_suffice(client: Callable[[], list[str]]) -> None:
    with RunningServer() as server:
        words = [word.replace(ADDRESS, server.endpoint) for word in client()]
        _run(words, **{name: value.replace(ADDRESS, server.endpoint) for name, value in EXPORTS})
        with HttpQueueClient(server.endpoint) as queues:
            assert queues.show("made").visible == 0
