"""Fair queues on PostgreSQL: what a receive reads, what queues without groups pay, what nodes know of each other."""

import asyncio
import json
import tracemalloc
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from tests.internals.store.postgres.two_nodes import TwoNodes, two_nodes
from tests.store.host import QUEUE, Host, message
from tests.store.postgres_host import RESTLESS, PostgresHost, connected, hosting_postgres, open_engine
from veilmq.core import commands
from veilmq.core.commands import VisibilityChange
from veilmq.core.errors import ReceiptState
from veilmq.store.port import execute
from veilmq.store.postgres.engine import PostgresEngine
from veilmq.store.postgres.node import FairShares, Flight, keys_of

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


BUSY = 7
HOUR_MS = 3_600_000


def flights(first: int, end: int, *, since_ms: int = 0) -> dict[int, Flight]:
    return {
        position: Flight(visible_at_ms=HOUR_MS, group=BUSY, since_ms=since_ms, kept_until_ms=2 * HOUR_MS)
        for position in range(first, end)
    }


def shares(number: int) -> FairShares:
    made = FairShares()
    for position, flight in flights(0, number).items():
        made.take_off(position, flight, 0)
    return made


def test_what_is_not_in_flight_any_more_has_ended() -> None:
    seen = shares(40)
    assert seen.noisy(0) == [BUSY]
    seen.fairness.drained(BUSY)
    seen.correct(flights(0, 29), 0, whole=True)
    assert seen.noisy(0) == []


def test_a_look_that_did_not_see_all_ends_nothing() -> None:
    seen = shares(40)
    seen.correct(flights(0, 29), 0, whole=False)
    assert seen.noisy(0) == [BUSY]


def test_what_was_heard_during_a_look_is_the_later_news() -> None:
    """Eleven were deleted after the look had seen them: they do not come back."""
    seen = shares(40)
    seen.fairness.drained(BUSY)
    seen.begin_refresh()
    for position in range(11):
        seen.land(position, 0)
    seen.correct(flights(0, 40), 0, whole=True)
    assert seen.noisy(0) == []


def test_what_was_given_during_a_look_stays_in_flight() -> None:
    seen = shares(20)
    seen.begin_refresh()
    for position, flight in flights(20, 40).items():
        seen.take_off(position, flight, 0)
    seen.correct(flights(0, 20), 0, whole=True)
    assert seen.noisy(0) == [BUSY]


def test_a_message_that_another_node_received_again_is_in_flight_anew() -> None:
    """Its first stretch has ended, and is work of the group."""
    seen = shares(1)
    seen.correct(flights(0, 1, since_ms=5_000), 5_000, whole=True)
    assert seen.noisy(5_000) == [BUSY]


def test_a_message_lands_when_its_retention_ends() -> None:
    seen = FairShares()
    for position in range(30):
        seen.take_off(position, Flight(HOUR_MS, BUSY, 0, 0), 0)
    seen.pass_time(1)
    assert seen.noisy(1) == []


def test_groups_are_in_the_order_of_what_they_have_in_flight() -> None:
    seen = shares(40)
    for position in range(100, 131):
        seen.take_off(position, Flight(HOUR_MS, BUSY + 1, 0, 2 * HOUR_MS), 0)
    assert seen.noisy(0, judge=False) == [BUSY + 1, BUSY]
    assert seen.noisy(0) == [BUSY + 1, BUSY]


def test_what_has_landed_is_not_remembered_until_it_would_have() -> None:
    """A queue may give and delete a thousand messages a second, each hidden for an hour."""
    seen = shares(10)
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    for position in range(10, 50_000):
        seen.take_off(position, Flight(HOUR_MS, BUSY, 0, HOUR_MS), 0)
        seen.land(position, 0)
    grown_bytes = sum(each.size_diff for each in tracemalloc.take_snapshot().compare_to(before, "filename"))
    tracemalloc.stop()
    assert grown_bytes < 1_000_000
    seen.pass_time(HOUR_MS)
    assert seen.noisy(HOUR_MS) == []


def test_a_group_that_took_much_is_noisy_again_when_it_ends_its_silence() -> None:
    """Its processing time still counts: half of it after each minute."""
    seen = shares(1)
    seen.land(0, 100_000)
    assert seen.noisy(300_000) == []
    seen.sent(BUSY, 300_001)
    assert seen.noisy(300_001) == [BUSY]


MESSAGES = 600
GROUPS = 12
LEASE_S = 60


class Crowd:
    """Producers and consumers that each ask any of the nodes."""

    def __init__(self, nodes: list[PostgresEngine]) -> None:
        self._nodes = nodes
        self._random = Random(7)
        self._left = list(range(MESSAGES))
        self.deleted: set[str] = set()

    async def produce(self) -> None:
        while self._left:
            batch, self._left = self._left[:7], self._left[7:]
            new = tuple(message(str(number), group=self._group()) for number in batch)
            await execute(self._any(), commands.Send(queue=QUEUE, messages=new))

    async def consume(self) -> None:
        """Receive, and delete or release each message, until all are deleted. No lease ends meanwhile."""
        while len(self.deleted) < MESSAGES:
            asked = commands.Receive(queue=QUEUE, count=self._random.choice((1, 3, 10)), timeout_s=LEASE_S)
            received: commands.Received = await execute(self._any(), asked)
            for each in received.messages:
                await self._settle(each)

    async def _settle(self, received: commands.ReceivedMessage) -> None:
        if self._random.random() < 0.3:
            change = VisibilityChange(receipt=received.receipt, timeout_s=0)
            (changed,) = await execute(self._any(), commands.ChangeVisibility(queue=QUEUE, changes=(change,)))
            assert changed.state is ReceiptState.LIVE
            return
        (state,) = await execute(self._any(), commands.Delete(queue=QUEUE, receipts=(received.receipt,)))
        assert state is ReceiptState.LIVE
        assert received.body not in self.deleted
        self.deleted.add(received.body)

    def _any(self) -> PostgresEngine:
        return self._random.choice(self._nodes)

    def _group(self) -> str | None:
        number = self._random.randrange(GROUPS + 1)
        return str(number % 3 if number % 2 else number) if number else None


def test_nothing_is_lost_or_given_twice(host: PostgresHost) -> None:
    """Each message is deleted once, and every receipt lives until its message is settled."""

    async def crowd() -> set[str]:
        nodes = [await open_engine(host.url, clock=host.clock, options=RESTLESS) for _ in range(3)]
        people = Crowd(nodes)
        try:
            await asyncio.gather(*(people.produce() for _ in range(3)), *(people.consume() for _ in range(5)))
        finally:
            for node in nodes:
                await node.close()
        return people.deleted

    assert host.run(crowd()) == {str(number) for number in range(MESSAGES)}
    assert host.counts() == (0, 0, 0)
    host.check()
