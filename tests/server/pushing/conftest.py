"""A receiver, and a server that may push to it."""

from collections.abc import Iterator

import pytest

from tests.server.pushing.receiver import Receiver, receiving
from veilmq.testing import RunningServer


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that accepts everything."""
    with receiving() as listening:
        yield listening


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """A server that may push to this machine."""
    with RunningServer(push_allow="127.0.0.1") as running:
        yield running
