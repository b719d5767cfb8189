"""What one node at a time does, which another takes over when that one is cut off: the janitor, moves, counts."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest
from asyncpg import DeadlockDetectedError

from tests.internals.store.postgres.nodes import TwoNodes, passing, two_nodes
from tests.store.host import QUEUE
from tests.store.postgres_host import (
    COUNT_ADVISORY_LOCKS,
    END_WAITING,
    RESTLESS,
    PostgresHost,
    connected,
    open_engine,
    set_clock,
    until_a_session_waits_for_a_lock,
)
from tests.store.test_dead_letters import DEAD, PAUSE_MS, dead_letter, finish, latest, pair, run, start
from veilmq.core import commands
from veilmq.core.commands import MoveStatus
from veilmq.core.errors import InternalError, StoreUnavailable
from veilmq.store.moves import MoveStep
from veilmq.store.postgres.background import JANITOR_MS
from veilmq.store.postgres.database import POLL_MS, SETTINGS, Worker
from veilmq.store.postgres.engine import PostgresEngine

OPTIONS = replace(RESTLESS, sweep_rows=2)
HASTY = replace(OPTIONS, statement_s=1, silence_s=1, listens=False)
TABLES = ("msg", "fifo_msg", "fifo_group", "accepted", "attempt", "pause", "in_flight", "throttle")
_RETIRED = "SELECT count(*) FROM mq.part WHERE retired"


def rows(host: PostgresHost, *tables: str) -> dict[str, int]:
    return {table: count for table in tables or TABLES if (count := host.rows(table))}


# What the janitor deletes.


def test_messages_of_groups_are_deleted_with_their_groups(host: PostgresHost) -> None:
    """A group that is left empty goes, another one gives what it has next; duplicates are forgotten in time."""
    host.create(fifo=True, retention_s=60)
    host.send_to_groups("a1", "a2", "b1", "b2", "c1")
    host.receive(2, timeout_s=3_600)
    host.advance(30_000)
    host.send_to_groups("a3")
    host.advance(JANITOR_MS - 30_000)
    assert rows(host, "fifo_msg", "fifo_group", "accepted") == {"fifo_msg": 1, "fifo_group": 1, "accepted": 6}
    assert host.receive_one().body == "a3"
    host.advance(300_000)
    assert rows(host, "fifo_msg", "fifo_group", "accepted") == {}


def test_dead_letters_end_by_their_first_sending(host: PostgresHost) -> None:
    pair(host, receives_max=1, retention_s=70)
    host.send(*"abc")
    host.receive(3, timeout_s=0)
    host.advance(JANITOR_MS)
    assert host.receive(10) == []
    assert host.rows("msg") == 3
    host.advance(JANITOR_MS)
    assert host.rows("msg") == 0


def test_what_a_shorter_retention_had_ended_is_deleted(host: PostgresHost) -> None:
    """Also when a longer one is in force; after that nothing is looked for any more."""
    host.create(retention_s=60)
    host.send(*"abc")
    host.advance(JANITOR_MS - 1)
    host.send("young")
    host.advance(1)
    host.send("d")
    host.set_queue(retention_s=1_000)
    host.advance(JANITOR_MS)
    assert (host.rows("msg"), host.counts()) == (2, (2, 0, 0))
    assert host.values("SELECT max(ended_before) FROM mq.part") == [0]


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
@pytest.mark.parametrize("way", ["purge", "drop"])
def test_what_was_purged_or_deleted_is_cleared_away(host: PostgresHost, way: str, *, fifo: bool) -> None:
    """Down to the partition, when no statement that is under way can know of it; duplicates as long as they count."""
    host.create(receives_per_s_max=100, fifo=fifo)
    host.send_to_groups("a1", "a2", "b1", "c1", "d1")
    host.do(commands.Receive(queue=QUEUE, attempt_id="x" if fifo else None))
    getattr(host, way)()
    host.advance(JANITOR_MS)
    assert rows(host, "msg", "fifo_msg", "fifo_group") == {}
    assert host.values(_RETIRED) == [1]
    host.advance(300_000)
    is_left = way == "purge"  # the first partition, under which the queue remembers
    assert host.values(_RETIRED) == [is_left]
    assert set(rows(host)) <= {"throttle", "in_flight"} if is_left else rows(host) == {}


def test_what_the_janitor_cannot_read_does_not_keep_the_turn(host: PostgresHost) -> None:
    """It looks again, as any other node may; what it could not read is in the log."""
    host.create(retention_s=60)
    host.send("a")
    host.values("UPDATE mq.queue SET settings = '{'")
    host.advance(JANITOR_MS)
    assert host.rows("msg") == 1
    assert not cast(PostgresEngine, host.engine).janitor_lock.is_held
    host.values("UPDATE mq.queue SET settings = convert_to('{\"retention_s\": 60}', 'UTF8')")
    host.advance(JANITOR_MS)
    assert host.rows("msg") == 0


# Whose turn it is.


async def _gone(host: PostgresHost) -> None:
    """Return when nobody holds the lock; the server takes a moment to notice."""
    async with connected(host.url) as connection, asyncio.timeout(60):
        while await connection.fetchval(COUNT_ADVISORY_LOCKS):
            pass


def sweeping(nodes: TwoNodes) -> list[Any]:
    return [node for node in (nodes.first, nodes.other) if node.janitor_lock.is_held]


def test_one_node_has_the_turn_and_another_takes_it_over(nodes: TwoNodes) -> None:
    """When its connection ends; so no two nodes sweep at a time, and one always does."""
    nodes.host.create(retention_s=60)
    nodes.advance(JANITOR_MS)
    (first,) = sweeping(nodes)
    nodes.host.send(*"abc")
    nodes.host.in_loop(first.stop_background)
    nodes.host.run(_gone(nodes.host))
    nodes.advance(JANITOR_MS)
    (second,) = sweeping(nodes)
    assert second is not first
    assert nodes.host.rows("msg") == 0


def test_a_server_that_falls_silent_is_given_up(host: PostgresHost) -> None:
    """After as long as a command waits; when it speaks again the janitor goes on."""

    async def swept(node: PostgresEngine) -> bool:
        async with asyncio.timeout(60):
            host.clock.advance(JANITOR_MS)
            await node.drain()
        return node.janitor_lock.is_held

    async def play() -> None:
        cast(PostgresEngine, host.engine).stop_background()
        async with passing(host.url) as proxy:
            node = await open_engine(proxy.url, clock=host.clock, options=HASTY)
            assert await swept(node)
            proxy.swallows = True
            assert not await swept(node)
            proxy.swallows = False
            await _gone(host)
            assert await swept(node)
            await node.close()

    host.run(play())


def test_a_node_that_ends_while_it_connects_leaves_its_turn(host: PostgresHost) -> None:
    async def end_at_once() -> Any:
        host.clock.advance(JANITOR_MS)
        await asyncio.sleep(0)
        await host.engine.close()
        async with connected(host.url) as connection:
            return await connection.fetchval(COUNT_ADVISORY_LOCKS)

    assert host._runner.run(end_at_once()) == 0


def end_in_its_work(nodes: TwoNodes, *, time_ms: int, command: commands.Command | None = None) -> None:
    """Let time pass, and ask for something; end the connections that then come to the messages."""

    async def end() -> None:
        async with connected(nodes.host.url) as connection:
            await set_clock(nodes.host.url, nodes.host.clock.now_ms() + time_ms)
            async with connection.transaction():
                await connection.execute("LOCK TABLE mq.msg")
                nodes.host.clock.advance(time_ms)
                if command is not None:
                    nodes.first.submit(command, lambda answer: answer)
                await until_a_session_waits_for_a_lock(connection)
                assert await connection.fetch(END_WAITING)

    nodes.host.run(end())
    nodes.advance(0)


def test_a_janitor_that_is_cut_off_leaves_its_turn(nodes: TwoNodes) -> None:
    """In the middle of a sweep, which one node does; whoever looks first has it then, and sweeps."""
    nodes.host.create(retention_s=60)
    nodes.advance(JANITOR_MS)
    nodes.host.send(*"abc")
    assert len(sweeping(nodes)) == 1
    end_in_its_work(nodes, time_ms=JANITOR_MS)
    nodes.until(lambda: len(sweeping(nodes)) <= 1)
    nodes.advance(JANITOR_MS)
    assert len(sweeping(nodes)) == 1
    assert nodes.host.counts() == (0, 0, 0)
    assert nodes.host.rows("msg") == 0


def test_a_count_that_is_cut_off_is_taken_over(postgres_url: str) -> None:
    """A node that has taken it upon itself, and told nothing within a second, is waited for no longer."""
    with two_nodes(postgres_url, options=replace(RESTLESS, in_flight_max=2, in_flight_counted_max=0)) as nodes:
        nodes.host.create()
        nodes.host.send(*"abcd")
        assert len(nodes.host.receive(1, timeout_s=100)) == 1
        end_in_its_work(nodes, time_ms=1_000, command=commands.Receive(queue=QUEUE))
        nodes.advance(1_000)
        assert len(nodes.do_there(commands.Receive(queue=QUEUE, count=10, timeout_s=100)).messages) == 1
        assert nodes.do_there(commands.Receive(queue=QUEUE, count=10)).messages == []


def test_a_node_that_vanishes_is_noticed_by_the_server() -> None:
    """Within a minute, without a word from it: what its connections hold is then free."""
    idle_s, interval_s, count = (int(SETTINGS[f"tcp_keepalives_{name}"]) for name in ("idle", "interval", "count"))
    assert idle_s + interval_s * count <= 60


# Move tasks: any node goes on with them, and one at a time.


def move(nodes: TwoNodes, messages: int, *, rate: int) -> None:
    """Begin to move so many dead letters."""
    pair(nodes.host, receives_max=1)
    dead_letter(nodes.host, *(str(number) for number in range(messages)))
    nodes.advance(POLL_MS)
    start(nodes.host, rate=rate)


def test_a_move_task_that_is_cut_off_goes_on(nodes: TwoNodes) -> None:
    """The slice is rolled back with its node's connection; nothing is lost, doubled or miscounted."""
    move(nodes, 60, rate=50)
    for _ in range(3):
        end_in_its_work(nodes, time_ms=1_000)
    assert latest(nodes.host).status is MoveStatus.RUNNING
    assert finish(nodes.host).messages_moved == 60
    found = [each.body for each in nodes.host.receive(100)]
    assert sorted(found, key=int) == [str(number) for number in range(60)]
    assert nodes.host.counts(DEAD) == (0, 0, 0)


def test_a_task_goes_on_when_its_node_is_gone(nodes: TwoNodes) -> None:
    pair(nodes.host, receives_max=1)
    dead_letter(nodes.host, *"abcd")
    start(nodes.host, rate=2)
    run(nodes.host, 100)
    assert latest(nodes.host).messages_moved == 1
    nodes.host.run(nodes.first.close())
    nodes.host.engine = cast(Any, nodes.other)
    nodes.advance(POLL_MS)
    run(nodes.host, 2_000)
    assert (latest(nodes.host).status, latest(nodes.host).messages_moved) == (MoveStatus.COMPLETED, 4)
    assert (nodes.host.counts(), nodes.host.counts(DEAD)) == ((4, 0, 0), (0, 0, 0))


@pytest.mark.parametrize("error", [InternalError, StoreUnavailable, OSError, DeadlockDetectedError])
def test_a_step_that_fails_is_done_again(host: PostgresHost, error: type[Exception]) -> None:
    """Whatever failed it; a node that looked no more would leave everything to the others."""
    steps: list[int] = []
    tasks: list[asyncio.Future[None]] = []

    async def step() -> None:
        steps.append(len(steps))
        if len(steps) == 1:
            raise error

    async def work() -> None:
        worker = Worker(step=step, clock=host.clock, start=lambda step: tasks.append(asyncio.ensure_future(step)))
        worker.schedule()
        for at in range(2):
            host.clock.advance(1_000)
            await tasks[at]
        worker.stop()

    host.run(work())
    assert steps == [0, 1]


def test_two_nodes_at_a_task_move_no_message_twice_and_keep_its_rate(nodes: TwoNodes) -> None:
    move(nodes, 20, rate=10)
    nodes.host.in_loop(nodes.other.workers[MoveStep].schedule)  # else it looks within ten seconds
    for _ in range(100):
        nodes.advance(PAUSE_MS)
    assert 9 <= latest(nodes.host).messages_moved <= 11
    assert finish(nodes.host).messages_moved == 20
    assert (sum(nodes.host.counts(QUEUE)), sum(nodes.host.counts(DEAD))) == (20, 0)
