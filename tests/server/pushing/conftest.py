"""A receiver, and a server that may push to it."""

from collections.abc import Iterator

import pytest

from tests.server.pushing.receiver import Receiver, receiving
from tests.store.postgres_host import emptied
from veilmq.testing import RunningServer


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that accepts everything."""
    with receiving() as listening:
        yield listening


@pytest.fixture(params=["embedded", "postgres"])
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """A server that may push to this machine, on each store."""
    store = emptied(request.getfixturevalue("postgres_url")) if request.param == "postgres" else {}
    with RunningServer(**store, push_allow="127.0.0.1") as running:
        yield running
