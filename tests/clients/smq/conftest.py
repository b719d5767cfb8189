"""The official Python SDK of SMQ, connected to a server whose clock the test moves."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mns.account import Account
from mns.queue import Queue, QueueMeta

from veilmq.testing import RunningServer

HERE = Path(__file__).parent
SDK_WARNINGS = pytest.mark.filterwarnings(r"ignore:Call to deprecated .*(active|inactive|delay)_messages")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore the SDK's warnings about its own reads of queue attributes."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(SDK_WARNINGS)


@pytest.fixture
def account(server: RunningServer) -> Iterator[Account]:
    with account_at(server) as opened:
        yield opened


@pytest.fixture
def queue(account: Account) -> Queue:
    """A new queue with default attributes."""
    made = account.get_queue("jobs")
    made.create(QueueMeta())
    return made


@contextmanager
def account_at(server: RunningServer, key: str = "any", secret: str = "any", *, token: str = "") -> Iterator[Account]:
    account = Account(server.endpoint, key, secret, security_token=token)
    try:
        yield account
    finally:
        account.mns_client.close_connection()
