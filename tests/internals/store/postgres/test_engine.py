"""What a node can do is what a data folder can."""

from typing import Any

from tests.store.host import HOT
from tests.store.postgres_host import hosting_postgres
from veilmq.store.cold import COLD


def test_it_knows_every_command(postgres_url: str) -> None:
    """And each of them once."""
    with hosting_postgres(postgres_url) as node:
        engine: Any = node.engine
        assert set(engine.alone) & set(engine.together) == set()
        assert {*engine.alone, *engine.together} == {*COLD, *HOT}
