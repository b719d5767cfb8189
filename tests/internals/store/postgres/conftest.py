"""Nodes on PostgreSQL; and the statistics and rows of tables for tests of plans and costs."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.internals.store.postgres.nodes import TwoNodes, two_nodes
from tests.store.postgres_host import RESTLESS, PostgresHost, empty, execute, hosting_postgres
from veilmq.store.postgres import node

_ROWS = """
INSERT INTO mq.msg (qp, seq, visible_at, sent_at, priority, id, body, group_key)
SELECT {qp}, at, at, at, 8 + 100 * (at % 2), '', '', CASE WHEN at % 2 = 1 THEN at % 10 END -- and turns of groups
FROM generate_series(1, 3000) AS at;
INSERT INTO mq.fifo_msg (qp, seq, visible_at, sent_at, group_id, id, body)
SELECT {qp}, at, at, at, at, '', '' FROM generate_series(1, 3000) AS at;
INSERT INTO mq.fifo_group (qp, group_id, eligible_at, head, last_seq)
SELECT {qp}, at, at, at, at FROM generate_series(1, 3000) AS at;
INSERT INTO mq.accepted (qp, key, expires_at, seq, id)
SELECT {qp}, int4send(at), at, at, '' FROM generate_series(1, 3000) AS at;
"""


@pytest.fixture(autouse=True)
def stopwatch(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the stopwatch of nodes, so that intervals do not depend on the machine; a test may advance it."""
    s = [1_000.0]
    monkeypatch.setattr(node, "stopwatch_s", lambda: s[0])
    return s


@pytest.fixture
def host(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[PostgresHost]:
    with hosting_postgres(postgres_url, options=getattr(request.module, "OPTIONS", None)) as opened:
        yield opened


@pytest.fixture
def nodes(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[TwoNodes]:
    with two_nodes(postgres_url, options=getattr(request.module, "OPTIONS", RESTLESS)) as opened:
        yield opened


@pytest.fixture
def new_tables(postgres_url: str) -> None:
    """Remove all traces of earlier tests from the tables: statistics and dead rows."""
    asyncio.run(_leave_tables(postgres_url, "new"))


@pytest.fixture(params=["new", "emptied", "scattered"])
def tables(request: pytest.FixtureRequest, postgres_url: str) -> None:
    """Prepare tables that never had rows of queues, or had some, or have one row for each of many queues."""
    asyncio.run(_leave_tables(postgres_url, request.param))


async def _leave_tables(url: str, kind: str) -> None:
    await empty(url, as_new=True)
    if kind != "new":
        await execute(url, _ROWS.format(qp="1" if kind == "emptied" else "1000 + at"))
        if kind == "emptied":
            await empty(url)
        await execute(url, "VACUUM (ANALYZE)")
    await execute(url, "SELECT pg_stat_force_next_flush()")  # otherwise the statistics of these reads may appear later
