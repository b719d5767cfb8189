"""Work that one node at a time does, and that another takes over after a failure: janitor, moves, counts."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest
from asyncpg import DeadlockDetectedError

from tests.internals.store.postgres.nodes import TwoNodes, running_proxy, two_nodes
from tests.store.host import QUEUE
from tests.store.postgres_host import (
    END_WAITING,
    RESTLESS,
    PostgresHost,
    connected,
    open_engine,
    set_clock,
    until_a_session_waits_for_a_lock,
    wait_until_no_advisory_lock,
)
from tests.store.test_dead_letters import DEAD, PAUSE_MS, dead_letter, finish, latest, pair, run, start
from veilmq.core import commands
from veilmq.core.commands import MoveStatus
from veilmq.core.errors import InternalError, StoreUnavailable
from veilmq.store.moves import MoveStep
from veilmq.store.postgres.database import POLL_MS, SETTINGS, Worker
from veilmq.store.postgres.engine import PostgresEngine
from veilmq.store.postgres.transaction import JANITOR_MS

OPTIONS = replace(RESTLESS, sweep_rows=2)
HASTY = replace(OPTIONS, statement_s=1, silence_s=1, listens=False)
TABLES = ("msg", "fifo_msg", "fifo_group", "accepted", "attempt", "pause", "in_flight", "throttle")
_RETIRED = "SELECT count(*) FROM mq.part WHERE retired"


def rows(host: PostgresHost, *tables: str) -> dict[str, int]:
    return {table: count for table in tables or TABLES if (count := host.rows(table))}


# Deletions by the janitor.


def test_janitor_deletes_messages_with_their_groups(host: PostgresHost) -> None:
    """Deletes an empty group, recomputes another one, and deletes expired deduplication entries."""
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


def test_retention_of_dead_letters_starts_at_their_first_send(host: PostgresHost) -> None:
    pair(host, receives_max=1, retention_s=70)
    host.send(*"abc")
    host.receive(3, timeout_s=0)
    host.advance(JANITOR_MS)
    assert host.receive(10) == []
    assert host.rows("msg") == 3
    host.advance(JANITOR_MS)
    assert host.rows("msg") == 0


def test_janitor_deletes_what_a_shorter_retention_ended(host: PostgresHost) -> None:
    """Also under a longer one; after that, the sweep looks for no such messages."""
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
def test_janitor_deletes_rows_of_purged_and_deleted_queues(host: PostgresHost, way: str, *, fifo: bool) -> None:
    """The partition too, once no statement can use it; deduplication entries when they expire."""
    host.create(receives_per_s_max=100, fifo=fifo)
    host.send_to_groups("a1", "a2", "b1", "c1", "d1")
    host.do(commands.Receive(queue=QUEUE, attempt_id="x" if fifo else None))
    getattr(host, way)()
    host.advance(JANITOR_MS)
    assert rows(host, "msg", "fifo_msg", "fifo_group") == {}
    assert host.values(_RETIRED) == [1]
    host.advance(300_000)
    is_left = way == "purge"  # the first partition has the deduplication entries
    assert host.values(_RETIRED) == [is_left]
    assert set(rows(host)) <= {"throttle", "in_flight"} if is_left else rows(host) == {}


def test_failed_sweep_releases_the_janitor_lock(host: PostgresHost) -> None:
    """The error is logged, and any node may sweep next."""
    host.create(retention_s=60)
    host.send("a")
    host.values("UPDATE mq.queue SET settings = '{'")
    host.advance(JANITOR_MS)
    assert host.rows("msg") == 1
    assert not cast(PostgresEngine, host.engine).janitor_lock.is_held
    host.values("UPDATE mq.queue SET settings = convert_to('{\"retention_s\": 60}', 'UTF8')")
    host.advance(JANITOR_MS)
    assert host.rows("msg") == 0


# The janitor's lock.


def sweeping(nodes: TwoNodes) -> list[Any]:
    return [node for node in (nodes.first, nodes.other) if node.janitor_lock.is_held]


def test_lost_connection_passes_the_janitor_lock_on(nodes: TwoNodes) -> None:
    """No two nodes sweep at a time."""
    nodes.host.create(retention_s=60)
    nodes.advance(JANITOR_MS)
    (first,) = sweeping(nodes)
    nodes.host.send(*"abc")
    nodes.host.in_loop(first.stop_background)
    nodes.host.run(wait_until_no_advisory_lock(nodes.host.url))
    nodes.advance(JANITOR_MS)
    (second,) = sweeping(nodes)
    assert second is not first
    assert nodes.host.rows("msg") == 0


def test_sweep_on_a_silent_server_times_out(host: PostgresHost) -> None:
    """When the server replies again, the janitor continues."""

    async def swept(node: PostgresEngine) -> bool:
        async with asyncio.timeout(60):
            host.clock.advance(JANITOR_MS)
            await node.drain()
        return node.janitor_lock.is_held

    async def play() -> None:
        cast(PostgresEngine, host.engine).stop_background()
        async with running_proxy(host.url) as proxy:
            node = await open_engine(proxy.url, clock=host.clock, options=HASTY)
            assert await swept(node)
            proxy.drops_all = True
            assert not await swept(node)
            proxy.drops_all = False
            await wait_until_no_advisory_lock(host.url)
            assert await swept(node)
            await node.close()

    host.run(play())


def test_node_closed_while_connecting_releases_the_lock(host: PostgresHost) -> None:
    async def end_at_once() -> None:
        host.clock.advance(JANITOR_MS)
        await asyncio.sleep(0)
        await host.engine.close()
        await wait_until_no_advisory_lock(host.url)

    host._runner.run(end_at_once())


def terminate_in_work(nodes: TwoNodes, *, time_ms: int, command: commands.Command | None = None) -> None:
    """Let time pass and submit a command; terminate the connections that then work on messages."""

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


def test_terminated_janitor_is_replaced(nodes: TwoNodes) -> None:
    """In the middle of a sweep; the next node that tries has the lock, and sweeps."""
    nodes.host.create(retention_s=60)
    nodes.advance(JANITOR_MS)
    nodes.host.send(*"abc")
    assert len(sweeping(nodes)) == 1
    terminate_in_work(nodes, time_ms=JANITOR_MS)
    nodes.until(lambda: len(sweeping(nodes)) <= 1)
    nodes.advance(JANITOR_MS)
    assert len(sweeping(nodes)) == 1
    assert nodes.host.counts() == (0, 0, 0)
    assert nodes.host.rows("msg") == 0


def test_terminated_count_is_repeated_by_another_node(postgres_url: str) -> None:
    """Another node waits at most a second for the count of the first one."""
    with two_nodes(postgres_url, options=replace(RESTLESS, in_flight_max=2, in_flight_counted_max=0)) as nodes:
        nodes.host.create()
        nodes.host.send(*"abcd")
        assert len(nodes.host.receive(1, timeout_s=100)) == 1
        terminate_in_work(nodes, time_ms=1_000, command=commands.Receive(queue=QUEUE))
        nodes.advance(1_000)
        assert len(nodes.do_at_other(commands.Receive(queue=QUEUE, count=10, timeout_s=100)).messages) == 1
        assert nodes.do_at_other(commands.Receive(queue=QUEUE, count=10)).messages == []


def test_server_drops_connections_of_a_vanished_node() -> None:
    """Within a minute, by keepalives; then their locks are free."""
    idle_s, interval_s, count = (int(SETTINGS[f"tcp_keepalives_{name}"]) for name in ("idle", "interval", "count"))
    assert idle_s + interval_s * count <= 60


# Move tasks: any node continues them, one at a time.


def start_move(nodes: TwoNodes, messages: int, *, rate: int) -> None:
    """Start to move so many dead letters."""
    pair(nodes.host, receives_max=1)
    dead_letter(nodes.host, *(str(number) for number in range(messages)))
    nodes.advance(POLL_MS)
    start(nodes.host, rate=rate)


def test_terminated_move_task_continues(nodes: TwoNodes) -> None:
    """The slice is rolled back; no message is lost, moved twice or miscounted."""
    start_move(nodes, 60, rate=50)
    for _ in range(3):
        terminate_in_work(nodes, time_ms=1_000)
    assert latest(nodes.host).status is MoveStatus.RUNNING
    assert finish(nodes.host).messages_moved == 60
    found = [each.body for each in nodes.host.receive(100)]
    assert sorted(found, key=int) == [str(number) for number in range(60)]
    assert nodes.host.counts(DEAD) == (0, 0, 0)


def test_move_task_continues_on_another_node(nodes: TwoNodes) -> None:
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
def test_failed_step_is_repeated(host: PostgresHost, error: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    """After any error; otherwise the node would leave all background work to others. The log has unknown ones whole.

    A database that is down is logged by the connections, not each second by each worker.
    """
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
    has_traceback = [bool(record.exc_info) for record in caplog.records if "tried again" in record.message]
    assert has_traceback == {InternalError: [True], OSError: [False]}.get(error, [])


def test_two_nodes_share_a_move_task_and_its_rate(nodes: TwoNodes) -> None:
    start_move(nodes, 20, rate=10)
    nodes.host.in_loop(nodes.other.workers[MoveStep].schedule)  # otherwise it polls within ten seconds
    for _ in range(100):
        nodes.advance(PAUSE_MS)
    assert 9 <= latest(nodes.host).messages_moved <= 11
    assert finish(nodes.host).messages_moved == 20
    assert (sum(nodes.host.counts(QUEUE)), sum(nodes.host.counts(DEAD))) == (20, 0)
