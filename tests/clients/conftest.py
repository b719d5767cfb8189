"""A real server whose clock the test moves, and a stock boto3 client for it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import EVERYTHING, stores_of
from veilmq.testing import RunningServer


@pytest.fixture(params=["memory", "postgres"])
def veilmq_settings(request: pytest.FixtureRequest, store_settings: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Return the settings of the server for each store; clients see no difference."""
    return store_settings(request.param)


@pytest.fixture
def server(veilmq_server: RunningServer) -> RunningServer:
    return veilmq_server


HERE = Path(__file__).parent
ON_POSTGRES = {"test_boto3", "test_messages"}
"""The modules that `make test` runs on PostgreSQL too; clients see no difference between the stores."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the other modules on PostgreSQL in `make test-all` only."""
    for item in items:
        on_postgres = item.path.is_relative_to(HERE) and "postgres" in stores_of(item)
        if on_postgres and item.path.stem not in ON_POSTGRES:
            item.add_marker(EVERYTHING)


CREDENTIALS = """
[[accounts]]
id = "000000000000"
name = "tests"
keys = [{ id = "any", secret = "any" }]
"""


@pytest.fixture
def verifying_server(tmp_path: Path, veilmq_settings: dict[str, Any]) -> Iterator[RunningServer]:
    credentials = tmp_path / "credentials.toml"
    credentials.touch(mode=0o600)
    credentials.write_text(CREDENTIALS, encoding="utf-8")
    with RunningServer(credentials=credentials, **veilmq_settings) as running:
        yield running


@pytest.fixture
def sqs(veilmq_boto3: Any) -> Any:
    return veilmq_boto3


@pytest.fixture
def url(sqs: Any) -> str:
    return str(sqs.create_queue(QueueName="jobs")["QueueUrl"])
