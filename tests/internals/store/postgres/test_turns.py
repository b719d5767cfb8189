"""What exactly one node at a time does in the background, and that another takes over when its connection is gone."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.internals.store.postgres.two_nodes import TwoNodes, two_nodes
from tests.store.host import QUEUE
from tests.store.postgres_host import OF_QUEUES, RESTLESS, connected, set_clock
from tests.store.test_dead_letters import DEAD, pair
from tests.store.test_moves import finish, kill, latest, start
from veilmq.core import commands
from veilmq.core.results import MoveStatus
from veilmq.store.postgres.background import JANITOR_MS
from veilmq.store.postgres.database import POLL_MS, SETTINGS

ESTIMATED = replace(RESTLESS, in_flight_max=2, in_flight_counted_max=0)
_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"
_END_WAITING = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE NOT granted"


@pytest.fixture
def nodes(postgres_url: str) -> Iterator[TwoNodes]:
    """Return two nodes."""
    with two_nodes(postgres_url) as opened:
        yield opened


def end_in_its_work(nodes: TwoNodes, table: str, *, time_ms: int = 0, command: commands.Command | None = None) -> int:
    """Let time pass, or ask for something, and end the connections that then come to `table`; return how many."""

    async def end() -> int:
        async with connected(nodes.host.url) as connection, asyncio.timeout(60):
            await set_clock(nodes.host.url, nodes.host.clock.now_ms() + time_ms)
            async with connection.transaction():
                await connection.execute(f"LOCK TABLE mq.{table}")
                nodes.host.clock.advance(time_ms)
                if command is not None:
                    nodes.first.submit(command, lambda answer: answer)
                while not (waiting := await connection.fetchval(_WAITING)):  # noqa: ASYNC110 - the server knows it
                    await asyncio.sleep(0)
                await connection.execute(_END_WAITING)
            return int(waiting)

    ended = nodes.host.run(end())
    nodes.advance(0)
    return ended


def sweepers(nodes: TwoNodes) -> int:
    """Return how many nodes have the janitor's turn."""
    return sum(node.janitor.turn.is_held for node in (nodes.first, nodes.other))


def test_a_janitor_that_is_cut_off_leaves_its_turn(nodes: TwoNodes) -> None:
    """In the middle of a sweep, which one node does; whoever looks first has it then, and sweeps."""
    nodes.host.create(retention_s=60)
    nodes.advance(JANITOR_MS)
    nodes.host.send(*"abc")
    assert sweepers(nodes) == 1
    assert end_in_its_work(nodes, "msg", time_ms=JANITOR_MS)
    nodes.until(lambda: sweepers(nodes) <= 1)
    nodes.advance(JANITOR_MS)
    assert sweepers(nodes) == 1
    assert nodes.host.counts() == (0, 0, 0)
    assert _rows(nodes, "msg") == 0


def test_a_move_task_that_is_cut_off_goes_on(nodes: TwoNodes) -> None:
    """The slice is rolled back with its node's connection; nothing is lost, doubled or miscounted."""
    pair(nodes.host, receives_max=1)
    kill(nodes.host, *(str(number) for number in range(60)))
    nodes.advance(POLL_MS)
    start(nodes.host, rate=50)
    for _ in range(3):
        assert end_in_its_work(nodes, "msg", time_ms=1_000)
    assert latest(nodes.host).status is MoveStatus.RUNNING
    assert finish(nodes.host).messages_moved == 60
    found = [each.body for each in nodes.host.receive(100)]
    assert sorted(found, key=int) == [str(number) for number in range(60)]
    assert nodes.host.counts(DEAD) == (0, 0, 0)


def test_a_count_that_is_cut_off_is_taken_over(postgres_url: str) -> None:
    """A node that has taken it upon itself, and told nothing within a second, is waited for no longer."""
    with two_nodes(postgres_url, options=ESTIMATED) as nodes:
        nodes.host.create()
        nodes.host.send(*"abcd")
        assert len(nodes.host.receive(1, timeout_s=100)) == 1
        assert end_in_its_work(nodes, "msg", time_ms=1_000, command=commands.Receive(queue=QUEUE))
        nodes.advance(1_000)
        assert len(nodes.do_there(commands.Receive(queue=QUEUE, count=10, timeout_s=100)).messages) == 1
        assert nodes.do_there(commands.Receive(queue=QUEUE, count=10)).messages == []


def test_a_node_that_vanishes_is_noticed_by_the_server() -> None:
    """Within a minute, without a word from it: what its connections hold is then free."""
    idle_s, interval_s, count = (int(SETTINGS[f"tcp_keepalives_{name}"]) for name in ("idle", "interval", "count"))
    assert idle_s + interval_s * count <= 60


def _rows(nodes: TwoNodes, table: str) -> Any:
    async def asked() -> Any:
        async with connected(nodes.host.url) as connection:
            return await connection.fetchval(f"SELECT count(*) FROM mq.{table} AS each WHERE {OF_QUEUES}")

    return nodes.host.run(asked())
