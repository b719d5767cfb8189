"""The low-water mark: receives begin behind what is consumed, and nothing visible is missed for long."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.engines.host import QUEUE, Host
from tests.engines.postgres_host import PostgresHost, connected, hosting_postgres
from veilmq.engines.postgres.database import SETTINGS
from veilmq.engines.postgres.low_water import LowWater
from veilmq.engines.postgres.on_queue import STANDARD
from veilmq.testing import VirtualClock

COUNTERS = count(1)


@pytest.fixture
def host(postgres_url: str) -> Iterator[PostgresHost]:
    """Return a node with a queue."""
    with hosting_postgres(postgres_url) as opened:
        opened.create()
        yield opened


def committed_late(host: PostgresHost, body: str, visible_at_ms: int) -> None:
    """Store a message as a node does whose commit took until now."""

    async def store() -> None:
        async with connected(host.url) as connection:
            partition = await connection.fetchval("SELECT qp FROM mq.queue WHERE name = $1", QUEUE)
            (row,) = await connection.fetch(
                STANDARD["send"], partition, [next(COUNTERS)], [8], [0], [bytes(16)], [None], [body]
            )
            await connection.execute(
                "UPDATE mq.msg SET visible_at = $3 WHERE qp = $1 AND seq = $2", partition, row["seq"], visible_at_ms
            )

    host.run(store())


def received(host: Host, messages: int = 1) -> list[str]:
    """Return the bodies of what a receive gives."""
    return [each.body for each in host.receive(messages)]


def test_what_is_committed_late_is_found_within_a_second(host: PostgresHost) -> None:
    """While there is other work; and at once while there is none, or where it is not late by much."""
    host.advance(10_000)
    first_ms = host.clock.now_ms()
    host.send(*"abcdefgh")
    assert received(host) == ["a"]
    committed_late(host, "late", first_ms - 1_000)
    committed_late(host, "nearly", first_ms - 50)
    assert received(host, 2) == ["nearly", "b"]
    host.advance(999)
    assert received(host) == ["c"]
    host.advance(1)
    assert received(host) == ["late"]
    assert received(host, 10) == ["d", "e", "f", "g", "h"]
    committed_late(host, "latest", first_ms - 2_000)
    assert received(host) == ["latest"]


def test_priorities_have_their_own_marks(host: PostgresHost) -> None:
    """Messages that became visible before those of a higher priority are not passed over."""
    host.send("old", priority=9)
    host.advance(10_000)
    host.send("new", "newer", priority=1)
    assert received(host) == ["new"]
    assert received(host, 2) == ["newer", "old"]


def test_a_receive_reads_the_index_from_its_mark_on(host: PostgresHost) -> None:
    """As the plan says: no entry before it is looked at, and nothing is sorted."""

    async def plan() -> str:
        async with connected(host.url) as connection:
            for name, value in SETTINGS.items():
                await connection.execute("SELECT set_config($1, $2, false)", name, value)
            types = "bigint, int, bigint, bigint, bigint[], bigint, bigint, bigint, bigint[]"
            await connection.execute(f"PREPARE receive({types}) AS {STANDARD['receive']}")
            rows = await connection.fetch("EXPLAIN EXECUTE receive(1, 1, 1, 1, '{}', 1, NULL, NULL, NULL)")
            return "\n".join(row[0] for row in rows)

    told = host.run(plan())
    (condition,) = [line for line in told.splitlines() if "Index Cond" in line and "visible_at" in line]
    assert "visible_at >= ($5)[of_part.priority]" in condition
    assert "visible_at <= clock" in condition
    assert "Sort" not in told


def test_marks_are_of_a_node_and_of_a_second() -> None:
    """Without any, and when they are old or dropped, a look begins at the beginning."""
    clock = VirtualClock()
    low_water = LowWater(clock=clock)
    low_water.found(1, [{"priority": 8, "was_visible_at": 100}])
    assert not any(low_water.of(1))
    low_water.found(1, [{"priority": 8, "was_visible_at": at_ms} for at_ms in (300, 200)])
    assert (low_water.of(1)[7], sum(low_water.of(1)), any(low_water.of(2))) == (150, 150, False)
    clock.advance(1_000)
    assert not low_water.drop(2)
    assert not any(low_water.of(1))
    low_water.found(1, [{"priority": 1, "was_visible_at": 500}])
    assert low_water.drop(1)
    assert not any(low_water.of(1))
    low_water.found(1, [{"priority": 1, "was_visible_at": 500}])
    low_water.clear()
    assert not any(low_water.of(1))
