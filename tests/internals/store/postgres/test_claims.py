"""Claims at several nodes of one database: one source, whichever node it comes to, and each message once."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest

from tests.internals.store.postgres.two_nodes import TwoNodes, two_nodes
from tests.store.host import QUEUE, message
from tests.store.postgres_host import RESTLESS, PostgresHost, hosting_postgres, open_engine
from veilmq.core import claims, commands
from veilmq.core.errors import ClaimLost, EpochFenced, OutcomeUnknown, PurgeInProgress, StoreUnavailable
from veilmq.store.claims import ClaimStep
from veilmq.store.port import execute
from veilmq.store.postgres import transaction
from veilmq.store.postgres.database import POLL_MS
from veilmq.store.postgres.engine import PostgresEngine

SLICE = 8
NODES = 3
MESSAGES = 400
KINDS = pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
OPTIONS = replace(RESTLESS, claim_slice_rows=SLICE)

OPEN = claims.OpenSource(queue=QUEUE, source="s")
ACKNOWLEDGE = claims.AcknowledgeClaims(queue=QUEUE, source="s", epoch=1, number=1)
READ = claims.ReadClaim(queue=QUEUE, source="s", number=1)


def claim(count: int, *, source: str = "s", number: int = 1, epoch: int = 1) -> claims.Claim:
    return claims.Claim(queue=QUEUE, source=source, epoch=epoch, number=number, messages_max=count)


@pytest.fixture
def nodes(postgres_url: str) -> Iterator[TwoNodes]:
    with two_nodes(postgres_url, options=OPTIONS) as opened:
        yield opened


def fill(host: PostgresHost, count: int, *, fifo: bool) -> None:
    host.create(fifo=fifo)
    for start in range(0, count, 100):
        names = [str(number) for number in range(start, min(count, start + 100))]
        new = tuple(message(name, group=f"g{name}", dedup_id=name) for name in names)
        host.do(commands.Send(queue=QUEUE, messages=new))


@KINDS
def test_a_source_is_served_by_all_nodes(nodes: TwoNodes, *, fifo: bool) -> None:
    fill(nodes.host, 3, fifo=fifo)
    nodes.host.do(OPEN)
    assert nodes.host.do(claim(3)) == claims.Bound(number=1, messages=3, shards=1)
    assert {each.body for each in nodes.do_there(READ).messages} == {"0", "1", "2"}
    assert nodes.do_there(claim(3)) == claims.Bound(number=1, messages=3, shards=1, again=True)
    assert nodes.do_there(commands.Receive(queue=QUEUE, count=10)).messages == []
    assert nodes.do_there(ACKNOWLEDGE).acknowledged == 1
    assert nodes.host.counts() == (0, 0, 0)
    assert nodes.host.rows("claim") == 0


def test_the_last_to_open_goes_on_wherever_it_is(nodes: TwoNodes) -> None:
    fill(nodes.host, 3, fifo=False)
    nodes.host.do(OPEN)
    assert nodes.do_there(OPEN).epoch == 2
    for late in (claim(3), ACKNOWLEDGE, claims.Heartbeat(queue=QUEUE, source="s", epoch=1)):
        with pytest.raises(EpochFenced):
            nodes.host.do(late)
    assert nodes.do_there(claim(3, epoch=2)).messages == 3


@KINDS
def test_a_claim_is_bound_on_by_another_node(nodes: TwoNodes, *, fifo: bool) -> None:
    """From where the first one was, when it or its connections ended."""
    fill(nodes.host, 3 * SLICE, fifo=fifo)
    nodes.host.do(OPEN)
    assert nodes.host.do(claim(100)).more
    nodes.host.run(nodes.host.end_connections())
    more = True
    while more:
        more = there(nodes, claim(100)).more
    assert there(nodes, claim(100)).messages == 3 * SLICE
    assert len(there(nodes, READ).messages) == 3 * SLICE


@KINDS
@pytest.mark.parametrize("ending", [ACKNOWLEDGE, claims.CloseSource(queue=QUEUE, source="s")], ids=["deleted", "back"])
def test_what_a_dead_node_left_to_be_done_is_done(nodes: TwoNodes, ending: Any, *, fifo: bool) -> None:
    """A slice was the command's own; the others are another node's."""
    fill(nodes.host, 4 * SLICE, fifo=fifo)
    nodes.host.do(OPEN)
    while nodes.host.do(claim(100)).more:
        pass
    nodes.first.workers[ClaimStep].stop()
    nodes.host.do(ending)
    table = "fifo_msg" if fifo else "msg"
    claimed = f"SELECT count(*) FROM mq.{table} WHERE claim IS NOT NULL"
    assert nodes.host.values(claimed) == [3 * SLICE]
    for _ in range(5):
        nodes.advance(POLL_MS)
    assert nodes.host.values(claimed) == [0]
    assert nodes.host.counts() == ((0, 0, 0) if ending is ACKNOWLEDGE else (4 * SLICE, 0, 0))
    assert nodes.host.rows("claim") == 0


def test_a_hold_ends_though_the_node_is_gone_that_served_it(nodes: TwoNodes) -> None:
    fill(nodes.host, 3, fifo=False)
    nodes.host.do(OPEN)
    nodes.host.do(claim(3))
    nodes.first.workers[ClaimStep].stop()
    nodes.advance(3_600_000)
    with pytest.raises(ClaimLost):
        nodes.do_there(READ)
    assert nodes.host.counts() == (3, 0, 0)


def there(nodes: TwoNodes, command: Any) -> Any:
    """Return the result of `command` at the second node, whose connections may be dead: a client asks again."""
    while True:
        try:
            return nodes.do_there(command)
        except (OutcomeUnknown, StoreUnavailable):
            nodes.advance(1_000)


def test_large_quotas_do_not_count_claimed_messages(postgres_url: str) -> None:
    """They are counted now and then, by one node for all."""
    options = replace(RESTLESS, in_flight_max=20, in_flight_counted_max=10)
    with hosting_postgres(postgres_url, options=options) as host:
        fill(host, 40, fifo=False)
        host.do(OPEN)
        assert host.do(claim(30)).messages == 30
        host.advance(60_000)
        assert len(host.receive(10)) == 10
        assert not host.do(commands.Receive(queue=QUEUE, count=1)).over_limit


@KINDS
@pytest.mark.parametrize("long_s", [-1.0, 1_000.0])
def test_what_takes_long_to_count_is_told_again(
    nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch, long_s: float, *, fifo: bool
) -> None:
    """By heartbeats, for some time; a list tells what is true."""
    monkeypatch.setattr(transaction, "LONG_S", long_s)
    monkeypatch.setattr(transaction, "_COSTS_KEPT", 1_000_000)
    fill(nodes.host, 3, fifo=fifo)
    nodes.host.do(OPEN)
    beat = claims.Heartbeat(queue=QUEUE, source="s", epoch=1)
    assert nodes.host.do(beat).ready == 3
    nodes.host.do(claim(2))
    assert nodes.host.do(beat).ready == (3 if long_s < 0 else 1)
    assert nodes.host.do(claims.ListSources(queue=QUEUE))[0].ready == 1


@KINDS
def test_each_message_is_somebodys_once(postgres_url: str, *, fifo: bool) -> None:
    """Sources claim and acknowledge, others give up, and receivers delete, each at one node after another."""
    with hosting_postgres(postgres_url, options=OPTIONS) as host:
        fill(host, MESSAGES, fifo=fifo)
        got: list[str] = []

        async def work() -> None:
            opened = [await open_engine(host.url, clock=host.clock, options=OPTIONS) for _ in range(NODES)]
            try:
                async with asyncio.timeout(120), asyncio.TaskGroup() as together:
                    for number in range(NODES):
                        ours = opened[number:] + opened[:number]
                        together.create_task(read_all(ours, f"s{number}", got, gives_up=number == 0))
                        together.create_task(receive_all(ours, got))
            finally:
                for node in opened:
                    await node.close()

        host.run(work())
        assert len(got) == len(set(got)) == MESSAGES
        for _ in range(60):  # what a node leaves that ends, another one finds when it looks again
            host.advance(POLL_MS // 50)
        assert host.counts() == (0, 0, 0)
        # But for what a source passed over last, which an answer lost may have to be repeated with.
        assert host.values("SELECT count(*) FROM mq.claim WHERE is_ending OR source IS NULL") == [0]
        host.check()


async def read_all(nodes: list[PostgresEngine], source: str, got: list[str], *, gives_up: bool) -> None:
    """Claim, read and acknowledge until all is got; whoever `gives_up` has each third claim released."""
    at = cycle(nodes)
    await execute(next(at), claims.OpenSource(queue=QUEUE, source=source))
    number = 1
    while len(got) < MESSAGES:
        bound = await execute(next(at), claim(20, source=source, number=number))
        if not bound.shards:
            await asyncio.sleep(0)
            continue
        read = claims.ReadClaim(queue=QUEUE, source=source, number=number)
        page = await execute(next(at), read)
        if gives_up and number % 3 == 0:
            await execute(next(at), claims.ReleaseClaim(queue=QUEUE, source=source, number=number))
        else:
            assert [each.id for each in (await execute(next(at), read)).messages] == [each.id for each in page.messages]
            got += [each.body for each in page.messages]
        acknowledge = claims.AcknowledgeClaims(queue=QUEUE, source=source, epoch=1, number=number)
        await execute(next(at), acknowledge)
        number += 1


async def receive_all(nodes: list[PostgresEngine], got: list[str]) -> None:
    for node in cycle(nodes):
        if len(got) >= MESSAGES:
            return
        received = await execute(node, commands.Receive(queue=QUEUE, count=3))
        if received.messages:
            receipts = tuple(each.receipt for each in received.messages)
            await execute(node, commands.Delete(queue=QUEUE, receipts=receipts))
            got += [each.body for each in received.messages]


@KINDS
def test_a_purge_while_claims_are_bound_loses_all_of_them(nodes: TwoNodes, *, fifo: bool) -> None:
    """Or they were bound after it: no open claim has messages that are gone."""
    fill(nodes.host, 100, fifo=fifo)
    nodes.host.do(OPEN)
    sources = [f"t{number}" for number in range(6)]
    for source in sources:
        nodes.host.do(claims.OpenSource(queue=QUEUE, source=source))

    async def work() -> None:
        async with asyncio.TaskGroup() as together:
            for number, source in enumerate(sources):
                node = (nodes.first, nodes.other)[number % 2]
                together.create_task(execute(node, claim(SLICE, source=source)))
            together.create_task(purge(nodes.other))

    nodes.host.run(work())
    for view in nodes.host.do(claims.ListSources(queue=QUEUE)):
        for bound in view.claims:
            assert bound.state is claims.ClaimState.LOST
    assert nodes.host.counts() == (0, 0, 0)
    nodes.host.check()


async def purge(node: PostgresEngine) -> None:
    try:
        await execute(node, commands.PurgeQueue(queue=QUEUE))
    except PurgeInProgress:
        pytest.fail("queues need not rest here")


@KINDS
@pytest.mark.parametrize(
    ("damage", "check"),
    [
        ("DELETE FROM mq.claim", "every claimed message is hidden, and of a claim that is not over"),
        ("UPDATE mq.{table} SET visible_at = 0", "every claimed message is hidden, and of a claim that is not over"),
        ("UPDATE mq.{table} SET claim = NULL", "every claimed message is hidden, and of a claim that is not over"),
        ("UPDATE mq.claim SET messages = messages + 1", "every open claim has a source, and all of its messages"),
        ("DELETE FROM mq.source", "every open claim has a source, and all of its messages"),
    ],
)
def test_the_doctor_finds_what_is_wrong_with_claims(nodes: TwoNodes, damage: str, check: str, *, fifo: bool) -> None:
    fill(nodes.host, 3, fifo=fifo)
    nodes.host.do(OPEN)
    nodes.host.do(claim(3))
    nodes.host.check()
    nodes.host.values(damage.format(table="fifo_msg" if fifo else "msg"))
    with pytest.raises(AssertionError, match=check):
        nodes.host.check()
