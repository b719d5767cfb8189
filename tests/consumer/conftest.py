"""A consumer at work: what most of these tests begin with."""

from collections.abc import Iterator

import pytest

from tests.consumer.workbench import Workbench, workbench


@pytest.fixture
def bench() -> Iterator[Workbench]:
    """Give a server with a queue for dead letters, ``dead``, and a client of it."""
    with workbench() as made:
        made.client.create_queue("dead")
        yield made
