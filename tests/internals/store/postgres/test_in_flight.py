"""Large quotas of messages in flight: counted now and then, by one node for all."""

from collections.abc import Iterator

import pytest

from tests.store.host import QUEUE, message
from tests.store.postgres_host import PostgresHost, hosting_postgres, open_engine
from veilmq.core import commands
from veilmq.store.port import execute
from veilmq.store.postgres import PostgresOptions
from veilmq.store.postgres.engine import PostgresEngine

QUOTA = 5
ESTIMATED = PostgresOptions(
    purge_pause_s=0, queue_name_pause_s=0, in_flight_max=QUOTA, fifo_in_flight_max=QUOTA, in_flight_counted_max=0
)


@pytest.fixture(params=[{}, {"fifo": True}], ids=["standard", "fifo"])
def host(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[PostgresHost]:
    with hosting_postgres(postgres_url, options=ESTIMATED) as opened:
        opened.create(**request.param)
        new = tuple(message(f"m{number}", group=f"g{number}", dedup_id=f"m{number}") for number in range(20))
        opened.do(commands.Send(queue=QUEUE, messages=new))
        yield opened


def received(host: PostgresHost) -> commands.Received:
    answer: commands.Received = host.do(commands.Receive(queue=QUEUE, count=10))
    return answer


def test_what_a_node_gives_counts_at_once(host: PostgresHost) -> None:
    """And what it deletes or releases; who finds no place is told when to look again."""
    host.advance(1)
    taken = host.receive(3) + host.receive(10)
    assert len(taken) == QUOTA
    none = received(host)
    assert (none.messages, none.next_due_ms) == ([], host.clock.now_ms() + 1_000)
    host.delete(taken[0].receipt)
    host.change(taken[1].receipt, 0)
    assert len(host.receive(10)) == 2
    assert received(host).messages == []


def test_leases_that_end_count_from_the_next_count_on(host: PostgresHost) -> None:
    assert len(host.receive(10, timeout_s=1)) == QUOTA
    host.advance(999)
    assert received(host).messages == []
    host.advance(1)
    assert len(host.receive(10)) == QUOTA


def test_what_is_not_hidden_takes_no_place(host: PostgresHost) -> None:
    for _ in range(4):
        assert len(host.receive(3, timeout_s=0)) == 3


def test_a_repeated_attempt_takes_no_more_places(host: PostgresHost) -> None:
    attempt = commands.Receive(queue=QUEUE, count=3, attempt_id="x")
    given = [each.id for each in host.do(attempt).messages]
    if host.do(commands.ShowQueue(queue=QUEUE)).settings.fifo:
        assert [each.id for each in host.do(attempt).messages] == given
    assert len(host.receive(10)) == QUOTA - 3


def test_a_watch_hears_of_a_place(host: PostgresHost) -> None:
    (first, *_) = host.receive(10)
    assert received(host).messages == []
    woken_ms: list[int] = []
    host.engine.watch(QUEUE, woken_ms.append)
    host.delete(first.receipt)
    assert host.clock.now_ms() in woken_ms


async def open_node(host: PostgresHost) -> PostgresEngine:
    return await open_engine(host.url, clock=host.clock, options=ESTIMATED)


async def receive(node: PostgresEngine, count: int) -> int:
    answer: commands.Received = await execute(node, commands.Receive(queue=QUEUE, count=count))
    return len(answer.messages)


def test_nodes_know_of_each_other_from_the_next_count_on(host: PostgresHost) -> None:
    """One counts and the other reads, so each may give up to the quota until then, and no more."""
    other = host.run(open_node(host))
    assert len(host.receive(3)) == 3
    assert host.run(receive(other, 1)) == 1
    host.advance(1_000)
    assert len(host.receive(10)) == 1
    host.advance(10_000)
    assert host.run(receive(other, 10)) == 0
    host.run(other.close())


def test_far_from_a_quota_nodes_ask_less_often(host: PostgresHost) -> None:
    other = host.run(open_node(host))
    assert len(host.receive(1, timeout_s=100)) == 1
    assert host.run(receive(other, 4)) == 4
    host.advance(1_000)
    assert len(host.receive(1, timeout_s=100)) == 1  # it has not heard of the other four
    host.advance(9_000)
    assert host.receive(10) == []
    host.run(other.close())
