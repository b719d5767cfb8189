"""The janitor: what it deletes; and what one node at a time does, which another takes over when that one is cut off."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import asyncpg
import pytest

from tests.internals.store.postgres.proxy import passing
from tests.internals.store.postgres.two_nodes import TwoNodes, two_nodes
from tests.store.dead_letters import DEAD, finish, kill, latest, pair, start
from tests.store.host import QUEUE, message
from tests.store.postgres_host import (
    OF_QUEUES,
    RESTLESS,
    PostgresHost,
    connected,
    hosting_postgres,
    open_engine,
    set_clock,
)
from veilmq.core import commands
from veilmq.core.commands import MoveStatus
from veilmq.store.postgres import PostgresOptions
from veilmq.store.postgres.background import JANITOR_MS
from veilmq.store.postgres.database import POLL_MS, SETTINGS
from veilmq.store.postgres.engine import PostgresEngine

SMALL = PostgresOptions(purge_pause_s=0, queue_name_pause_s=0, sweep_rows=2)
HASTY = replace(SMALL, statement_s=1, silence_s=1, listens=False)
TABLES = ("msg", "fifo_msg", "fifo_group", "accepted", "attempt", "pause", "in_flight", "throttle")


@pytest.fixture
def host(postgres_url: str) -> Iterator[PostgresHost]:
    with hosting_postgres(postgres_url, options=SMALL) as opened:
        yield opened


def ask(host: PostgresHost, query: str) -> Any:
    async def asked() -> Any:
        connection = await asyncpg.connect(host.url)
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()

    return host.run(asked())


def rows(host: PostgresHost, *tables: str) -> dict[str, int]:
    query = f"SELECT count(*) FROM mq.%s AS each WHERE {OF_QUEUES}"
    counts = {table: ask(host, query % table) for table in tables or TABLES}
    return {table: count for table, count in counts.items() if count}


def send_in_turn(host: PostgresHost, *bodies: str) -> None:
    """Send to a FIFO queue; groups are first letters."""
    new = tuple(message(body, group=body[0], dedup_id=body) for body in bodies)
    host.do(commands.Send(queue=QUEUE, messages=new))


def test_messages_past_their_retention_are_deleted(host: PostgresHost) -> None:
    host.create(retention_s=100)
    host.send(*"abcde")
    host.advance(50_000)
    host.send("young")
    host.advance(JANITOR_MS)
    assert rows(host, "msg") == {"msg": 1}
    host.advance(JANITOR_MS)
    assert rows(host, "msg") == {}


def test_messages_of_groups_are_deleted_with_their_groups(host: PostgresHost) -> None:
    """A group that is left empty goes, another one gives what it has next; duplicates are forgotten in time."""
    host.create(fifo=True, retention_s=60)
    send_in_turn(host, "a1", "a2", "b1", "b2", "c1")
    host.receive(2, timeout_s=3_600)
    host.advance(30_000)
    send_in_turn(host, "a3")
    host.advance(JANITOR_MS - 30_000)
    assert rows(host, "fifo_msg", "fifo_group", "accepted") == {"fifo_msg": 1, "fifo_group": 1, "accepted": 6}
    assert host.receive_one().body == "a3"
    host.advance(300_000)
    assert rows(host, "fifo_msg", "fifo_group", "accepted") == {}


def test_dead_letters_end_by_their_first_sending(host: PostgresHost) -> None:
    dead = "000000000000/dead"
    host.create(dead, retention_s=70)
    host.create(dead_letter_queue=dead, receives_max=1)
    host.send(*"abc")
    host.receive(3, timeout_s=0)
    host.advance(JANITOR_MS)
    assert host.receive(10) == []
    assert rows(host, "msg") == {"msg": 3}
    host.advance(JANITOR_MS)
    assert rows(host, "msg") == {}


def test_what_a_shorter_retention_had_ended_is_deleted(host: PostgresHost) -> None:
    """Also when a longer one is in force; after that nothing is looked for any more."""
    host.create(retention_s=60)
    host.send(*"abc")
    host.advance(JANITOR_MS - 1)
    host.send("young")
    host.advance(1)
    host.send("d")
    host.do(commands.SetQueue(queue=QUEUE, settings={"retention_s": 1_000}))
    host.advance(JANITOR_MS)
    assert (rows(host, "msg"), host.counts()) == ({"msg": 2}, (2, 0, 0))
    assert ask(host, "SELECT max(ended_before) FROM mq.part") == 0


@pytest.mark.parametrize("settings", [{}, {"fifo": True}], ids=["standard", "fifo"])
@pytest.mark.parametrize("way", [commands.PurgeQueue, commands.DeleteQueue])
def test_what_was_purged_or_deleted_is_cleared_away(host: PostgresHost, settings: dict[str, Any], way: Any) -> None:
    """Down to the partition, when no statement that is under way can know of it; duplicates as long as they count."""
    host.create(receives_per_s_max=100, **settings)
    send_in_turn(host, "a1", "a2", "b1", "c1", "d1")
    host.do(commands.Receive(queue=QUEUE, attempt_id="x" if settings else None))
    host.do(way(queue=QUEUE))
    host.advance(JANITOR_MS)
    assert rows(host, "msg", "fifo_msg", "fifo_group") == {}
    assert ask(host, "SELECT count(*) FROM mq.part WHERE retired") == 1
    host.advance(300_000)
    is_left = int(way is commands.PurgeQueue)  # the first partition, under which the queue remembers
    assert ask(host, "SELECT count(*) FROM mq.part WHERE retired") == is_left
    assert set(rows(host)) <= {"throttle", "in_flight"} if is_left else rows(host) == {}


def test_pauses_that_are_over_are_forgotten(postgres_url: str) -> None:
    with hosting_postgres(postgres_url, options=PostgresOptions(purge_pause_s=90, queue_name_pause_s=30)) as host:
        host.create()
        host.create("a/gone")
        host.do(commands.PurgeQueue(queue=QUEUE))
        host.do(commands.DeleteQueue(queue="a/gone"))
        host.advance(JANITOR_MS)
        assert rows(host, "pause") == {"pause": 1}
        host.advance(JANITOR_MS)
        assert rows(host, "pause") == {}


def test_one_node_has_the_turn_and_another_takes_it_over(host: PostgresHost) -> None:
    """When its connection ends; so no two nodes sweep at a time, and one always does."""

    async def other_node() -> PostgresEngine:
        return await open_engine(host.url, clock=host.clock, options=RESTLESS)

    host.create(retention_s=60)
    host.advance(JANITOR_MS)
    first = cast(PostgresEngine, host.engine)
    second = host.run(other_node())
    host.advance(JANITOR_MS)
    host.run(second.answered())
    assert (first.janitor.turn.is_held, second.janitor.turn.is_held) == (True, False)
    host.send(*"abc")
    host.in_loop(first.janitor.stop)
    host.run(_gone(host))
    host.advance(JANITOR_MS)
    host.run(second.answered())
    assert (first.janitor.turn.is_held, second.janitor.turn.is_held) == (False, True)
    assert rows(host, "msg") == {}
    host.run(second.close())


def test_a_server_that_falls_silent_is_given_up(host: PostgresHost) -> None:
    """After as long as a command waits; when it speaks again the janitor goes on."""

    async def swept(node: PostgresEngine) -> bool:
        async with asyncio.timeout(60):
            host.clock.advance(JANITOR_MS)
            await node.answered()
        return node.janitor.turn.is_held

    async def play() -> None:
        cast(PostgresEngine, host.engine).janitor.stop()
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


async def _gone(host: PostgresHost) -> None:
    """Return when nobody holds the lock; the server takes a moment to notice."""
    connection = await asyncpg.connect(host.url)
    async with asyncio.timeout(60):
        while await connection.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"):
            await connection.execute("SELECT pg_stat_clear_snapshot()")
    await connection.close()


def test_what_the_janitor_cannot_read_does_not_keep_the_turn(host: PostgresHost) -> None:
    """It looks again, as any other node may; what it could not read is in the log."""
    host.create(retention_s=60)
    host.send("a")
    ask(host, "UPDATE mq.queue SET settings = '{' RETURNING 1")
    settings = "SELECT convert_to('{\"retention_s\": 60}', 'UTF8')"
    host.advance(JANITOR_MS)
    assert rows(host, "msg") == {"msg": 1}
    assert not cast(PostgresEngine, host.engine).janitor.turn.is_held
    ask(host, f"UPDATE mq.queue SET settings = ({settings}) RETURNING 1")
    host.advance(JANITOR_MS)
    assert rows(host, "msg") == {}


def test_a_node_that_ends_while_it_connects_leaves_its_turn(host: PostgresHost) -> None:
    async def end_at_once() -> int:
        host.clock.advance(JANITOR_MS)
        await asyncio.sleep(0)
        await host.engine.close()
        async with connected(host.url) as connection:
            turns: int = await connection.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
            return turns

    assert host._runner.run(end_at_once()) == 0


ESTIMATED = replace(RESTLESS, in_flight_max=2, in_flight_counted_max=0)
_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"
_END_WAITING = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE NOT granted"


@pytest.fixture
def nodes(postgres_url: str) -> Iterator[TwoNodes]:
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
    assert rows(nodes.host, "msg") == {}


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
