"""Move tasks on PostgreSQL: any node goes on with them, and one at a time."""

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest
from asyncpg import DeadlockDetectedError

from tests.store.dead_letters import DEAD, PAUSE_MS, finish, kill, latest, pair, run, start
from tests.store.host import QUEUE, message
from tests.store.postgres_host import RESTLESS, PostgresHost, hosting_postgres, open_engine
from veilmq.core import commands
from veilmq.core.commands import MoveStatus
from veilmq.core.errors import InternalError, StoreUnavailable
from veilmq.store.postgres.database import POLL_MS, Mover
from veilmq.store.postgres.engine import PostgresEngine


@pytest.fixture
def host(postgres_url: str) -> Iterator[PostgresHost]:
    with hosting_postgres(postgres_url) as opened:
        pair(opened, receives_max=1)
        yield opened


async def open_node(host: PostgresHost) -> PostgresEngine:
    return await open_engine(host.url, clock=host.clock, options=RESTLESS)


def test_a_task_goes_on_when_its_node_is_gone(host: PostgresHost) -> None:
    other = host.run(open_node(host))
    kill(host, *"abcd")
    start(host, rate=2)
    run(host, 100)
    assert latest(host).messages_moved == 1
    host.run(host.engine.close())
    host.engine = cast(Any, other)
    host.advance(POLL_MS)
    run(host, 2_000)
    ended = latest(host)
    assert (ended.status, ended.messages_moved) == (MoveStatus.COMPLETED, 4)
    assert (host.counts(), host.counts(DEAD)) == ((4, 0, 0), (0, 0, 0))


@pytest.mark.parametrize("error", [InternalError, StoreUnavailable, OSError, DeadlockDetectedError])
def test_a_step_that_fails_is_done_again(host: PostgresHost, error: type[Exception]) -> None:
    """Whatever failed it; a node that looked no more would leave everything to the others."""
    steps: list[int] = []
    works: list[asyncio.Future[None]] = []

    async def step() -> None:
        steps.append(len(steps))
        if len(steps) == 1:
            raise error

    async def work() -> None:
        mover = Mover(step=step, clock=host.clock, start=lambda step: works.append(asyncio.ensure_future(step)))
        mover.schedule()
        for at in range(2):
            host.clock.advance(1_000)
            await works[at]
        mover.stop()

    host.run(work())
    assert steps == [0, 1]


def test_nothing_is_lost_doubled_or_miscounted_by_crashes(host: PostgresHost) -> None:
    """Whatever a node was at when its connections ended."""
    kill(host, *(str(number) for number in range(500)))
    start(host)
    for _ in range(5):
        host.run(_end_in_a_slice(host))
        host.reopen()
        host.check()
    assert finish(host).messages_moved == 500
    found = [each.body for _ in range(5) for each in host.receive(100)]
    assert sorted(found, key=int) == [str(number) for number in range(500)]


async def _end_in_a_slice(host: PostgresHost) -> None:
    host.clock.advance(PAUSE_MS)
    await host.end_connections()


def test_several_nodes_move_no_message_twice(host: PostgresHost) -> None:
    """However many there are at the task, and its rate holds."""
    others = [host.run(open_node(host)) for _ in range(2)]
    kill(host, *(str(number) for number in range(20)))
    host.advance(POLL_MS)
    start(host, rate=10)
    for _ in range(100):
        host.advance(PAUSE_MS)
        for node in others:
            host.run(node.answered())
    assert 9 <= latest(host).messages_moved <= 11
    assert finish(host).messages_moved == 20
    assert (sum(host.counts(QUEUE)), sum(host.counts(DEAD))) == (20, 0)
    for node in others:
        host.run(node.close())


def test_messages_of_groups_go_on_in_order(postgres_url: str) -> None:
    """As new ones, told apart by the ids that they had as dead letters."""
    with hosting_postgres(postgres_url) as host:
        pair(host, receives_max=1, fifo=True)
        _die_in_turn(host, "a1", "a2", "b1", "a3")
        letters = host.receive(10, queue=DEAD, timeout_s=0)
        start(host)
        assert finish(host).messages_moved == 4
        back = host.receive(10)
        assert [each.body for each in back if each.body[0] == "a"] == ["a1", "a2", "a3"]
        assert {(each.source, each.receive_count) for each in back} == {(None, 1)}
        assert not {each.id for each in back} & {each.id for each in letters}
        assert {each.properties for each in back} == {each.properties for each in letters}
        assert host.counts(DEAD) == (0, 0, 0)


def _die_in_turn(host: PostgresHost, *bodies: str) -> None:
    for body in bodies:
        host.do(commands.Send(queue=QUEUE, messages=(message(body, group=body[0], dedup_id=body),)))
    while host.receive(10, timeout_s=0):
        pass
