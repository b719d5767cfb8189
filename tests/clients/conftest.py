"""A real server with a clock that the test moves, and a stock boto3 client for it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from tests.conftest import EVERYTHING, stores_of
from veilmq.testing import RunningServer


@pytest.fixture(params=["memory", "postgres"])
def veilmq_settings(request: pytest.FixtureRequest, place: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """What the server keeps its messages in: whoever has a client sees no difference."""
    return place(request.param)


@pytest.fixture
def server(veilmq_server: RunningServer) -> RunningServer:
    """A server whose clock the test moves."""
    return veilmq_server


PROGRAMS = {"test_aws_cli", "test_boto3_program", "test_celery", "test_extended", "test_javascript"}
"""Tests of client programs, whose processes take their time, and to which all stores are one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the programs on PostgreSQL to `make test-all`."""
    for item in items:
        if item.path.stem in PROGRAMS and "postgres" in stores_of(item):
            item.add_marker(EVERYTHING)


CREDENTIALS = """
[[accounts]]
id = "000000000000"
name = "tests"
keys = [{ id = "any", secret = "any" }]
"""


@pytest.fixture
def verifying_server(tmp_path: Path, veilmq_settings: dict[str, Any]) -> Iterator[RunningServer]:
    """A server that knows the clients' key, and nobody else."""
    credentials = tmp_path / "credentials.toml"
    credentials.touch(mode=0o600)
    credentials.write_text(CREDENTIALS, encoding="utf-8")
    with RunningServer(credentials=credentials, **veilmq_settings) as running:
        yield running


@pytest.fixture
def sqs(veilmq_boto3: Any) -> Any:
    """The client that everybody has, told only where the server is."""
    return veilmq_boto3


def client(server: RunningServer) -> Any:
    """Return a stock client of this server."""
    return boto3.client(
        "sqs",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",
        config=Config(retries={"total_max_attempts": 1}, read_timeout=60),
    )


@pytest.fixture
def url(sqs: Any) -> str:
    """The URL of a queue."""
    return str(sqs.create_queue(QueueName="jobs")["QueueUrl"])
