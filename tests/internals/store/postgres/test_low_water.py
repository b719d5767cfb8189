"""The low-water mark: receives begin behind what is consumed, and nothing visible is missed for long."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.internals.store.postgres.entries import entries_read
from tests.store.host import QUEUE, Host
from tests.store.postgres_host import PostgresHost, connected, hosting_postgres
from veilmq.core import commands
from veilmq.store.port import execute
from veilmq.store.postgres import node as node_module
from veilmq.store.postgres.database import SETTINGS
from veilmq.store.postgres.node import LowWater
from veilmq.store.postgres.queues import BEGINNING, STANDARD
from veilmq.testing import VirtualClock

COUNTERS = count(1)


@pytest.fixture
def timeless(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    s = [1_000.0]
    monkeypatch.setattr(node_module, "stopwatch_s", lambda: s[0])
    return s


@pytest.fixture
def host(postgres_url: str) -> Iterator[PostgresHost]:
    with hosting_postgres(postgres_url) as opened:
        opened.create()
        yield opened


def committed_late(host: PostgresHost, body: str, visible_at_ms: int) -> None:
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
    return [each.body for each in host.receive(messages)]


def test_what_is_committed_late_is_found_within_a_second(timeless: list[float], host: PostgresHost) -> None:
    """While there is other work; and at once while there is none, or where it is not late by much."""
    host.advance(10_000)
    first_ms = host.clock.now_ms()
    host.send(*"abcdefgh")
    assert received(host) == ["a"]
    committed_late(host, "late", first_ms - 1_000)
    host.advance(999)
    assert received(host) == ["b"]
    host.advance(1)
    assert received(host) == ["late"]
    assert received(host, 10) == ["c", "d", "e", "f", "g", "h"]
    committed_late(host, "latest", first_ms - 2_000)
    assert received(host) == ["latest"]


def test_what_is_late_by_a_little_is_found_soon(host: PostgresHost) -> None:
    """Now and then a receive begins a little before what was taken last."""
    host.advance(10_000)
    host.send(*map(str, range(40)))
    assert received(host) == ["0"]
    committed_late(host, "nearly", host.clock.now_ms() - 50)
    assert "nearly" in [body for _ in range(16) for body in received(host)]


def test_priorities_have_their_own_marks(host: PostgresHost) -> None:
    """Messages that became visible before those of a higher priority are not passed over."""
    host.send("old", priority=9)
    host.advance(10_000)
    host.send("new", "newer", priority=1)
    assert received(host) == ["new"]
    assert received(host, 2) == ["newer", "old"]


@pytest.mark.usefixtures("tables")
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
    assert "ROW(visible_at, seq) > ROW(" in condition
    assert "visible_at <= clock" in condition
    assert "Sort" not in told


def row(priority: int, visible_at_ms: int, position: int) -> dict[str, int]:
    return {"priority": priority, "was_visible_at": visible_at_ms, "seq": position, "now": 500}


def test_marks_are_of_a_node_and_of_a_second() -> None:
    """A look begins behind the last that was taken; without any, after a second or a failover, at the beginning."""
    clock = VirtualClock()
    low_water = LowWater(clock=clock)
    low_water.found(1, [row(8, 100, 1)])
    assert low_water.of(1) == BEGINNING
    low_water.found(1, [row(8, 300, 7), row(8, 300, 9), row(8, 200, 11), row(1, 50, 3)])
    behind = low_water.of(1)
    assert (behind[7], behind[16 + 7], behind[0], behind[16], behind[1], behind[17]) == (300, 9, 50, 3, 0, -1)
    assert low_water.of(2) == BEGINNING
    low_water.found(1, [row(2, 500, 7)])
    assert (behind[1], behind[17]) == (500, -1), "more may come up at the present instant"
    clock.advance(1_000)
    assert low_water.of(1) == BEGINNING
    low_water.found(1, [])
    assert low_water.of(1) == behind
    low_water.clear()
    assert low_water.of(1) == BEGINNING


def test_a_look_that_finds_nothing_is_followed_by_one_from_the_beginning() -> None:
    low_water = LowWater(clock=VirtualClock())
    assert low_water.instead(1) is None
    low_water.of(1)
    assert low_water.instead(1) is None
    low_water.found(1, [row(8, 100, 1)])
    low_water.of(1)
    assert low_water.instead(1) == BEGINNING


def test_looks_from_the_beginning_are_rare_where_they_are_dear(timeless: list[float]) -> None:
    """A tenth of the time at the most, from the second on; whoever waits is told when the next one may be."""
    clock = VirtualClock()
    low_water = LowWater(clock=clock)
    behind, told_ms = low_water.known(1)
    assert (behind, told_ms) == (BEGINNING, None)
    for again_ms in (None, None, 4_000):
        assert low_water.of(1) == BEGINNING
        timeless[0] += 0.4
        low_water.found(1, [row(8, 100, 1)])
        behind, told_ms = low_water.known(1)
        assert told_ms == (None if again_ms is None else pytest.approx(again_ms, abs=1))
        assert low_water.of(1) == behind != BEGINNING
        timeless[0] += 0.01
        low_water.found(1, [])
        clock.advance(1_000)
    timeless[0] += 3.98
    assert low_water.of(1) == behind
    assert low_water.instead(1) is None
    low_water.found(1, [])
    timeless[0] += 0.02
    assert low_water.known(1) == (behind, None)
    assert low_water.of(1) == BEGINNING


@pytest.mark.usefixtures("new_tables")
@pytest.mark.parametrize("held", [False, True])
def test_what_was_consumed_costs_little_while_a_transaction_is_held_open(host: PostgresHost, held: bool) -> None:
    """Nothing of it can be removed meanwhile: an entry is read when its message is taken, and seldom again."""
    messages, at_once = 1_000, 10
    for number in range(messages // at_once):
        host.send(*[str(number)] * at_once)
        host.advance(1)
    before = entries_read(host)

    async def drain() -> int:
        async with connected(host.url) as connection, connection.transaction(isolation="repeatable_read"):
            if held:
                await connection.execute("SELECT FROM mq.queue")
            taken = 0
            while batch := (await execute(host.engine, commands.Receive(queue=QUEUE, count=at_once))).messages:
                receipts = tuple(each.receipt for each in batch)
                await execute(host.engine, commands.Delete(queue=QUEUE, receipts=receipts))
                taken += len(batch)
            return taken

    assert host.run(drain()) == messages
    assert entries_read(host) - before < 10 * messages
