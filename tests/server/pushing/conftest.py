"""A receiver, and a server that may push to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import EVERYTHING, stores_of
from tests.server.pushing.receiver import Receiver, receiving
from tests.store.postgres_host import emptied
from veilmq.testing import RunningServer


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that accepts everything."""
    with receiving() as listening:
        yield listening


@pytest.fixture(scope="session")
def push_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key with its certificate, as a server makes them: that takes half a second."""
    folder = tmp_path_factory.mktemp("pushing")
    with RunningServer(data=folder, push_allow="127.0.0.1"):
        return folder / "push.pem"


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, push_key: Path) -> Iterator[RunningServer]:
    """A server that may push to this machine, on each store."""
    store = emptied(request.getfixturevalue("postgres_url")) if request.param == "postgres" else {}
    with RunningServer(**store, push_allow="127.0.0.1", push_key=push_key, push_certificate=push_key) as running:
        yield running


ON_POSTGRES = {
    "test_exponential_decay_is_exact",
    "test_a_changed_strategy_counts_for_what_waits",
    "test_each_subscription_gets_what_it_wants",
    "test_a_subscription_that_ended_gets_nothing_more",
    "test_a_deleted_topic_pushes_nothing_more",
}
"""What `make test` runs on PostgreSQL too: what a store has a part in, beside the message."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the other pushes on PostgreSQL to `make test-all`."""
    for item in items:
        if item.path.stem == "test_pushing" and "postgres" in stores_of(item):
            name = getattr(item, "originalname", item.name)
            if name not in ON_POSTGRES:
                item.add_marker(EVERYTHING)
