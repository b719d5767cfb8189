"""The page for operators of databases: its queries run, and what it names is there."""

import asyncio
import re
from typing import Any

import pytest

from tests.store.postgres_host import connected
from tests.tidy.tree import ROOT

PAGE = (ROOT / "docs" / "operating-postgres.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
METRICS = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("query", QUERIES, ids=range(len(QUERIES)))
def test_queries_run(query: str, postgres_url: str) -> None:
    """On a database with the schema."""

    async def ask() -> list[Any]:
        async with connected(postgres_url) as connection:
            rows: list[Any] = await connection.fetch(query)
            return rows

    asyncio.run(ask())


def test_there_are_queries() -> None:
    """Else the test above would say nothing."""
    assert len(QUERIES) > 4


@pytest.mark.parametrize("metric", sorted(set(re.findall(r"veilmq_store_[a-z_]+[a-z]", PAGE))))
def test_metrics_are_those_of_the_server(metric: str) -> None:
    """By their names there."""
    assert metric in METRICS


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`make ([a-z-]+)", PAGE))))
def test_targets_are_there(target: str) -> None:
    """In the Makefile."""
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
