"""Fair queues on PostgreSQL: what a receive reads, what queues without groups pay, what nodes know of each other."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.internals.store.postgres.two_nodes import TwoNodes, two_nodes
from tests.store.host import QUEUE, Host, message
from tests.store.postgres_host import PostgresHost, connected, hosting_postgres
from veilmq.core import commands
from veilmq.store.postgres.node import keys_of

NOISY, QUIET = "noisy", "quiet"
BATCH = 100
EXPLAIN = """
EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
SELECT mq.fair_choose(qp, 1, array_fill(0::bigint, ARRAY[32]), 1 << 30, $1, '{}', true) FROM mq.queue
"""


@pytest.fixture
def host(postgres_url: str) -> Iterator[PostgresHost]:
    with hosting_postgres(postgres_url) as each:
        each.create()
        yield each


@pytest.fixture
def nodes(postgres_url: str) -> Iterator[TwoNodes]:
    with two_nodes(postgres_url) as two:
        two.host.create()
        yield two


def send(host: Host, group: str | None, *bodies: str) -> None:
    for start in range(0, len(bodies), BATCH):
        messages = tuple(message(body, group=group) for body in bodies[start : start + BATCH])
        host.do(commands.Send(queue=QUEUE, messages=messages))


def crowd(host: Host, numbers: range) -> None:
    """Send a message of a group each."""
    messages = tuple(message(f"m{number}", group=f"g{number}") for number in numbers)
    host.do(commands.Send(queue=QUEUE, messages=messages))


def receive_there(nodes: TwoNodes, count: int = 1) -> list[commands.ReceivedMessage]:
    received: commands.Received = nodes.do_there(commands.Receive(queue=QUEUE, count=count, timeout_s=3_600))
    return received.messages


def pages_looked_at(host: PostgresHost) -> int:
    """Return at how many pages the database looks to choose one message, but for those of the noisy group."""

    async def explain() -> Any:
        async with connected(host.url) as connection:
            await connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off")
            noisy = keys_of([message("n", group=NOISY)])
            await connection.fetch(EXPLAIN, noisy)  # the first one of a connection reads the catalog too
            return json.loads(await connection.fetchval(EXPLAIN, noisy))

    plan = host.run(explain())[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_a_quiet_groups_message_is_found_at_once_behind_a_backlog(host: PostgresHost) -> None:
    """And among ten times as many groups: a choice reads no more pages."""
    send(host, NOISY, *(f"n{number}" for number in range(300)))
    crowd(host, range(30))
    few = pages_looked_at(host)
    send(host, NOISY, *(f"n{number}" for number in range(3_000)))
    crowd(host, range(30, 330))
    assert pages_looked_at(host) <= few + 20


def test_a_queue_without_groups_pays_nothing(host: PostgresHost) -> None:
    """Its statements are those that there were before anybody thought of groups."""
    host.send("a", "b")
    first, second = host.receive(10)
    host.change(first.receipt, 0)
    host.delete(second.receipt)
    assert host.receive(10)

    async def prepared() -> list[str]:
        async with host.engine.database.connection() as connection:  # type: ignore[attr-defined]
            rows = await connection.fetch("SELECT statement FROM pg_prepared_statements")
            return [text for (text,) in rows]

    texts = host.run(prepared())
    assert any("mq.msg" in text for text in texts)
    assert not any("fair" in text for text in texts)


def test_a_node_sees_who_is_noisy_at_another_one(nodes: TwoNodes) -> None:
    send(nodes.host, NOISY, *(f"n{number}" for number in range(60)))
    assert len([each for _ in range(4) for each in nodes.host.receive(10, timeout_s=3_600)]) == 40
    send(nodes.host, QUIET, "q")
    assert [each.body for each in receive_there(nodes, 2)] == ["q", "n40"]


def test_a_node_learns_within_a_second_what_ended_at_another_one(nodes: TwoNodes) -> None:
    """What is deleted there is no longer in flight here."""
    send(nodes.host, NOISY, *(f"n{number}" for number in range(29)))
    held = nodes.host.receive(29, timeout_s=3_600)
    nodes.do_there(commands.Delete(queue=QUEUE, receipts=tuple(each.receipt for each in held)))
    nodes.advance(1_000)
    send(nodes.host, NOISY, *(f"m{number}" for number in range(3)))
    send(nodes.host, "other", *(f"o{number}" for number in range(40)))
    assert [each.body for each in nodes.host.receive(2, timeout_s=3_600)] == ["o0", "o1"], "a second of work is noisy"
    nodes.advance(1_200_000)
    assert nodes.host.receive(1, timeout_s=3_600)[0].body == "m0", "a second that was long ago is not"


def test_messages_that_another_node_sends_to_a_group_are_received_at_once(nodes: TwoNodes) -> None:
    """Here nobody knows yet that the queue has groups."""
    nodes.do_there(commands.Send(queue=QUEUE, messages=(message("a"),)))
    assert [each.body for each in receive_there(nodes)] == ["a"]
    send(nodes.host, QUIET, "b")
    (received,) = receive_there(nodes)
    assert (received.body, received.priority) == ("b", 8)


def test_turns_are_put_right_and_swept(host: PostgresHost) -> None:
    """A group without messages has no turn when its time has come, nor when retention has ended its last one."""

    async def turns() -> int:
        async with connected(host.url) as connection:
            count: int = await connection.fetchval("SELECT count(*) FROM mq.fair_turn WHERE qp > 0")
            return count

    for number in range(20):
        send(host, f"g{number}", f"m{number}")
    host.delete(*(each.receipt for each in host.receive(10, timeout_s=60)))
    assert host.run(turns()) == 20
    host.advance(60_000)
    assert len(host.receive(10)) == 10
    assert host.run(turns()) == 10
    host.do(commands.SetQueue(queue=QUEUE, settings={"retention_s": 60}))
    host.advance(120_000)
    assert host.run(turns()) == 0
    host.do(commands.DeleteQueue(queue=QUEUE))
    host.check()
