"""What tests of plans and of their cost begin with."""

import asyncio

import pytest

from tests.store.postgres_host import empty


@pytest.fixture
def new_tables(postgres_url: str) -> None:
    """Leave nothing of earlier tests in the tables: no statistics, and no rows that are deleted and still read."""
    asyncio.run(empty(postgres_url, as_new=True))
