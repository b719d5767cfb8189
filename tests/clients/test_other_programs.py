"""Further SDKs and task libraries, each with a program that `make test-all` installs or builds, and runs.

A program reports each completed step; a failed step ends it. It calls the test to move the server's clock and to wait
for a parked long poll. The SDKs check digests and types of errors.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.clients.program import INSTALLED, ROOT, Program, answers, packages, python
from tests.conftest import EVERYTHING, need
from veilmq.testing import RunningServer

HERE = Path(__file__).parent
JAVA = ("java", "-cp", "{0}/classes:{0}/lib/*")
KEYS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
REGION = {"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}


class Client(NamedTuple):
    """A client: ``pin`` is the file with its version and the text before it; ``steps`` are those of its program."""

    title: str
    pin: tuple[str, str]
    command: Callable[[], list[str]]
    steps: str

    @property
    def version(self) -> str:
        file, before = self.pin
        number = re.escape(before) + r"\D{0,40}?v?([0-9][0-9.]*[0-9])"
        found = re.search(number, (HERE / file).read_text(encoding="utf-8"))
        assert found is not None, f"{file} pins no {before}"
        return found[1]

    @property
    def row(self) -> str:
        """The row of docs/clients.md."""
        return f"| {self.title} | {self.version} | {', '.join(self.steps.split()).replace('_', ' ')} |"


def built(client: str, *words: str) -> Callable[[], list[str]]:
    """Return a function for the command of ``client``; ``{0}`` in ``words`` is the folder where it is installed."""

    def command() -> list[str]:
        need((INSTALLED / f"{client}.stamp").exists(), f"the client {client} (scripts/install-clients.sh all)")
        return [word.format(INSTALLED / client) for word in words]

    return command


def isolated(module: str, client: str) -> Callable[[], list[str]]:
    """Return a function for the command of a module of tests/clients/python with only the packages of ``client``."""

    def command() -> list[str]:
        path = packages(client)["PYTHONPATH"]
        return ["env", f"PYTHONPATH={path}", *python(f"tests.clients.python.{module}")]

    return command


LIFE = "queues message batches visibility long_poll errors dead_letters fifo"
CLIENTS = {
    "go_sdk": Client("AWS SDK for Go v2", ("go/go.mod", "service/sqs"), built("go_sdk", "{0}/sdk"), LIFE),
    "java_sdk": Client(
        "AWS SDK for Java 2", ("java/pom.xml", "<artifactId>sqs</artifactId>"), built("java", *JAVA, "Sdk"), LIFE
    ),
    "java_spring": Client(
        "Spring Cloud AWS",
        ("java/pom.xml", "spring-cloud-aws-sqs"),
        built("java", *JAVA, "Spring"),
        "template listener",
    ),
    "java_smq": Client(
        "aliyun-sdk-mns for Java (SMQ)",
        ("java/pom.xml", "aliyun-sdk-mns"),
        built("java", *JAVA, "Smq"),
        "queues message batches visibility long_poll errors",
    ),
    "php_sdk": Client(
        "AsyncAws for PHP, of Debian 12",
        ("php/sdk.php", "AsyncAws"),
        built("php", "php", str(HERE / "php" / "sdk.php")),
        LIFE,
    ),
    "rust_sdk": Client(
        "AWS SDK for Rust", ("rust/Cargo.lock", 'name = "aws-sdk-sqs"'), built("rust_sdk", "{0}/debug/sdk"), LIFE
    ),
    "python_aioboto3": Client(
        "aioboto3",
        ("python/aioboto3_sqs.txt", "aioboto3=="),
        isolated("aio", "aioboto3_sqs"),
        "messages visibility long_poll errors",
    ),
    "python_kombu": Client(
        "kombu alone", ("python/celery_sqs.txt", "kombu=="), isolated("kombu_sqs", "celery_sqs"), "taken acknowledged"
    ),
    "python_dramatiq": Client(
        "dramatiq-sqs",
        ("python/dramatiq_sqs.txt", "dramatiq-sqs=="),
        isolated("dramatiq_tasks", "dramatiq_sqs"),
        "task retry",
    ),
    "python_taskiq": Client(
        "taskiq-aio-sqs",
        ("python/taskiq_sqs.txt", "taskiq-aio-sqs=="),
        isolated("taskiq_tasks", "taskiq_sqs"),
        "task",
    ),
}


@EVERYTHING
@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.usefixtures("veilmq_settings")
def test_the_program_of_a_client_completes_its_steps(verifying_server: RunningServer, name: str) -> None:
    client = CLIENTS[name]
    with Program(client.command(), endpoint=verifying_server.endpoint, **KEYS, **REGION) as program:
        assert program.reports(answers(verifying_server)) == [{"step": step} for step in client.steps.split()]


@pytest.mark.parametrize("name", CLIENTS)
def test_the_page_has_every_client(name: str) -> None:
    page = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    assert CLIENTS[name].row in page.splitlines()
