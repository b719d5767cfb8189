"""Several nodes work on one database concurrently, and some fail: each message arrives once, in order."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest

from tests.internals.store.postgres.nodes import TwoNodes
from tests.store.host import QUEUE, message
from tests.store.postgres_host import RESTLESS, PostgresHost, connected, hosting_postgres
from veilmq.core import claims, commands
from veilmq.core.claims import Publish, Published, Stage, Staged
from veilmq.core.commands import ReceivedMessage, SentMessage
from veilmq.core.errors import ClaimLost, EpochFenced, OutcomeUnknown, ReceiptState, StoreUnavailable, VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.core.topics import (
    PUSHES,
    CreateTopic,
    Forward,
    Forwarded,
    ForwardEntry,
    ListPushes,
    PublishedMessage,
    PublishToTopic,
    Subscribe,
    Subscription,
    Unsubscribe,
    push_queue,
)
from veilmq.server.metrics import TopicCounts
from veilmq.server.pushes import LEASE_S, Pusher
from veilmq.store.claims import ClaimStep
from veilmq.store.port import execute
from veilmq.store.postgres import transaction
from veilmq.store.postgres.database import POLL_MS
from veilmq.store.postgres.engine import PostgresEngine
from veilmq.store.publications import CLIENT_MS, PIECE_MESSAGES, PublicationStep

SLICE = 8
OPTIONS = replace(RESTLESS, claim_slice_rows=SLICE)
for_each_kind = pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])

NODES = 3
SENDS = 20
PER_SEND = 5
SENT = NODES * SENDS * PER_SEND
INTAKE = "000000000000/intake"
TARGET = "000000000000/target"

Handle = Callable[[PostgresEngine, list[ReceivedMessage]], Awaitable[None]]


async def produce(opened: Sequence[PostgresEngine], name: str) -> None:
    """Send messages of several groups concurrently, to one node after another; bodies contain group and number."""
    at = cycle(opened)
    for number in range(SENDS):
        groups = [f"{name}{(each + number) % PER_SEND}" for each in range(PER_SEND)]
        new = tuple(message(f"{group} {number}", group=group, dedup_id=f"{group} {number}") for group in groups)
        for sent in await execute(next(at), commands.Send(queue=INTAKE, messages=new)):
            assert isinstance(sent, SentMessage)


async def consume(opened: Sequence[PostgresEngine], queue: str, over: Callable[[], bool], handle: Handle) -> None:
    for node in cycle(opened):
        if over():
            return
        received = await execute(node, commands.Receive(queue=queue, count=10))
        if received.messages:
            await handle(node, received.messages)


@for_each_kind
def test_each_message_arrives_once_in_order(host: PostgresHost, *, fifo: bool) -> None:
    for queue in (INTAKE, TARGET):
        host.create(queue, fifo=fifo)
    forwarded: list[str] = []
    got: list[ReceivedMessage] = []

    async def forward(node: PostgresEngine, messages: list[ReceivedMessage]) -> None:
        entries = tuple(ForwardEntry(receipt=each.receipt, target=TARGET) for each in messages)
        answers: list[Any] = await execute(node, Forward(queue=INTAKE, entries=entries))
        assert all(isinstance(each, Forwarded) for each in answers)
        forwarded.extend(each.body for each in messages)

    async def delete(node: PostgresEngine, messages: list[ReceivedMessage]) -> None:
        got.extend(messages)
        receipts = tuple(each.receipt for each in messages)
        answers: list[Any] = await execute(node, commands.Delete(queue=TARGET, receipts=receipts))
        assert set(answers) == {ReceiptState.LIVE}

    async def work() -> None:
        async with host.others(NODES) as opened, asyncio.timeout(100), asyncio.TaskGroup() as tasks:
            for number in range(NODES):
                tasks.create_task(produce(opened, f"p{number}-"))
                ours = opened[number:] + opened[:number]
                tasks.create_task(consume(ours, INTAKE, lambda: len(forwarded) == SENT, forward))
                tasks.create_task(consume(ours, TARGET, lambda: len(got) == SENT, delete))

    host.run(work())
    assert len({each.body for each in got}) == len(got) == SENT
    assert (host.counts(INTAKE), host.counts(TARGET)) == ((0, 0, 0), (0, 0, 0))
    host.check()
    if fifo:
        numbers: dict[str, list[int]] = {}
        for each in got:
            group, number = each.body.split(" ")
            numbers.setdefault(group, []).append(int(number))
        assert all(received == list(range(SENDS)) for received in numbers.values())


# Topics: atomic publications, and pushes that other nodes take over.


FIFO = "000000000000/jobs.fifo"
TOPIC = "000000000000/news"
PUSHED = push_queue(TOPIC, "pushed")
ALL = (QUEUE, FIFO, PUSHED)
ROUNDS, CONCURRENT = 12, 5


IS_PUSHED = Subscription(topic=TOPIC, name="pushed", endpoint="u", push_url="https://hook.example/in")


@pytest.fixture
def topic(host: PostgresHost) -> PostgresHost:
    host.create(QUEUE)
    host.create(FIFO, fifo=True)
    host.do(CreateTopic(topic=TOPIC))
    for name, queue in (("a", QUEUE), ("b", FIFO)):
        host.do(Subscribe(subscription=Subscription(topic=TOPIC, name=name, endpoint=name, queue=queue)))
    host.do(Subscribe(subscription=IS_PUSHED))
    return host


def publishing(body: str) -> PublishToTopic:
    return PublishToTopic(topic=TOPIC, size_bytes=len(body), make=lambda _: message(body, group="g"))


def test_publication_is_atomic_when_connections_end(topic: PostgresHost) -> None:
    acknowledged = 0

    async def publish(number: int) -> None:
        nonlocal acknowledged
        try:
            answer: PublishedMessage = await execute(topic.engine, publishing(str(number)))
        except VeilmqError:
            return
        assert answer.deliveries == len(ALL)
        acknowledged += 1

    async def one_round(number: int) -> None:
        tasks = [asyncio.ensure_future(publish(CONCURRENT * number + each)) for each in range(CONCURRENT)]
        for _ in range(number):
            await asyncio.sleep(0)
        await topic.end_connections()
        await asyncio.gather(*tasks)
        topic.clock.advance(10 * SECOND_MS)  # a node without a connection pauses

    for number in range(ROUNDS):
        topic.run(one_round(number))
    topic.run(publish(-1))
    counts = [topic.counts(queue)[0] for queue in ALL]
    assert counts[0] == counts[1] == counts[2]
    assert 1 <= acknowledged <= counts[0]


def test_concurrent_publications_see_changed_queues(topic: PostgresHost) -> None:
    """Each node publishes to all queues in another order, without deadlocks; a recreated queue is found."""

    async def work() -> None:
        async with topic.others(2) as nodes:
            for node in nodes:
                assert (await execute(node, publishing("first"))).deliveries == len(ALL)
            await execute(topic.engine, commands.PurgeQueue(queue=QUEUE))
            await execute(topic.engine, Unsubscribe(topic=TOPIC, name="pushed"))
            await execute(topic.engine, Subscribe(subscription=IS_PUSHED))
            publications = [execute(nodes[number % 2], publishing(str(number))) for number in range(20)]
            assert [answer.deliveries for answer in await asyncio.gather(*publications)] == [len(ALL)] * 20

    topic.run(work())
    assert [topic.counts(queue)[0] for queue in ALL] == [20, 22, 20]
    topic.check()


def test_purge_after_a_publication_does_not_fail_it(topic: PostgresHost) -> None:
    """The publication is committed: an error would cause a second one, and end the background work."""
    topic.do(publishing("a"))
    node: Any = topic.engine
    queue = node.catalog.cached(FIFO)
    woken_ms: list[int] = []
    topic.in_loop(lambda: topic.engine.watch(FIFO, woken_ms.append))
    topic.purge(FIFO)
    woken_ms.clear()

    async def publish() -> None:
        async with connected(topic.url) as connection:
            await node.watches.wake_groups(connection, queue)

    topic.run(publish())
    assert woken_ms == []
    topic.do(publishing("b"))
    assert woken_ms != []


def test_node_is_notified_of_subscriptions_and_publications(nodes: TwoNodes) -> None:
    """No time passes, so no poll covers it."""
    nodes.host.do(CreateTopic(topic=TOPIC))
    nodes.watch(PUSHES)
    nodes.host.do(Subscribe(subscription=IS_PUSHED))
    nodes.until(lambda: nodes.woken_ms)
    assert nodes.do_at_other(ListPushes()) == [IS_PUSHED]
    nodes.watch(PUSHED)
    nodes.host.do(publishing("a"))
    nodes.until(lambda: nodes.woken_ms)
    assert nodes.do_at_other(commands.Receive(queue=PUSHED)).messages[0].body == "a"


class Receiver:
    """A push receiver; a `stuck` one never replies."""

    def __init__(self, *, stuck: bool) -> None:
        self.got: list[str] = []
        self._stuck = stuck
        self._came = asyncio.Event()

    async def attempt(self, subscription: Subscription, message: ReceivedMessage) -> str:
        self.got.append(message.body)
        self._came.set()
        if self._stuck:
            await asyncio.get_running_loop().create_future()
        return ""

    async def until(self, messages: int) -> None:
        while len(self.got) < messages:
            self._came.clear()
            await self._came.wait()


def pusher(host: PostgresHost, node: PostgresEngine, receiver: Receiver) -> Pusher:
    return Pusher(engine=node, clock=host.clock, attempt=receiver.attempt, counts=TopicCounts(), parallel_max=4)


def test_pushes_are_shared_by_nodes_and_taken_over(topic: PostgresHost) -> None:
    """One node at a time pushes a message; if the node fails, another one continues after the lease."""
    for number in range(CONCURRENT):
        topic.do(publishing(str(number)))
    dies, lives = Receiver(stuck=True), Receiver(stuck=False)

    async def end(pushes: Pusher) -> None:
        closing = asyncio.ensure_future(pushes.close())
        await asyncio.sleep(0)
        pushes.cut()
        await closing

    async def begin() -> Pusher:
        async with topic.others() as (node,):
            first = pusher(topic, node, dies)
            first.start()
            await dies.until(1)
            await end(first)  # its pushes are not settled, as after a kill
        second = pusher(topic, topic.engine, lives)  # type: ignore[arg-type]
        second.start()
        await lives.until(CONCURRENT - 1)
        return second

    async def rest(second: Pusher) -> None:
        await lives.until(CONCURRENT)
        await end(second)

    second = topic.run(begin())
    assert dies.got[0] not in lives.got
    topic.advance(LEASE_S * SECOND_MS)
    topic.run(rest(second))
    assert sorted(lives.got) == [str(number) for number in range(CONCURRENT)]
    assert len(dies.got) == 1


# Publications: staged on one node, published on another.


MANY = 4 * PIECE_MESSAGES
BODIES = [str(number) for number in range(MANY)]
PUBLISH = Publish(queue=QUEUE, writer="w", batch=0, attempts=(("a", MANY),))


NEW = tuple(message(body, group=f"g{int(body) % 2}", dedup_id=body) for body in BODIES)
STAGE = Stage(queue=QUEUE, writer="w", batch=0, attempt="a", part=0, messages=NEW)


@pytest.fixture
def ordered(nodes: TwoNodes) -> TwoNodes:
    nodes.host.create(fifo=True)
    return nodes


def check_all_arrived(nodes: TwoNodes) -> None:
    """Assert that the queue has each message once, each group in order, and that no other rows are left."""
    rows = nodes.host.values("SELECT body FROM mq.fifo_msg WHERE qp > 0 ORDER BY group_id, seq")
    assert rows == [*BODIES[::2], *BODIES[1::2]]
    assert [nodes.host.rows(table) for table in ("stage", "piece", "publication")] == [0, 0, 0]
    nodes.host.check()


def test_node_publishes_stages_of_another_node(ordered: TwoNodes) -> None:
    assert ordered.host.do(STAGE) == Staged(messages=MANY)
    assert ordered.do_at_other(STAGE) == Staged(messages=MANY, again=True)
    assert ordered.do_at_other(PUBLISH).again is False
    ordered.advance(CLIENT_MS)
    for _ in range(MANY // PIECE_MESSAGES + 20):  # a node pauses while another one works
        ordered.advance(10)
    assert ordered.host.do(PUBLISH) == Published(messages=MANY, again=True)
    check_all_arrived(ordered)


def test_pending_publication_of_a_failed_node_is_completed(ordered: TwoNodes) -> None:
    """Its connections end between two slices, and it stops."""
    ordered.host.do(STAGE)
    assert ordered.host.do(PUBLISH).more
    ordered.first.workers[PublicationStep].stop()
    for _ in range(MANY // PIECE_MESSAGES + 2):
        ordered.advance(POLL_MS)
    check_all_arrived(ordered)


def test_nodes_share_the_rate_of_a_publication(ordered: TwoNodes) -> None:
    """The second node finds that the next slice is not due yet."""
    ordered.host.do(STAGE)
    for node in (ordered.first, ordered.other):
        node.workers[PublicationStep].stop()
    publish = Publish(queue=QUEUE, writer="w", batch=0, attempts=(("a", MANY),), messages_per_s_max=20)

    async def work() -> None:
        await asyncio.gather(*(execute(node, publish) for node in (ordered.first, ordered.other) * 5))

    for slices in range(1, 13):
        ordered.host.run(work())
        assert ordered.host.rows("fifo_msg") == 2 * slices
        ordered.advance(100)


@pytest.mark.parametrize(("damage", "check"), [
    ("DELETE FROM mq.piece", "every stage has a writer, and as many messages as it counts"),
    ("DELETE FROM mq.writer", "every stage has a writer, and as many messages as it counts"),
    ("UPDATE mq.publication SET stages = '{7777}'", "every stage of a publication exists until it is published"),
])  # fmt: skip
def test_doctor_finds_broken_publications(ordered: TwoNodes, damage: str, check: str) -> None:
    ordered.host.do(STAGE)
    ordered.host.do(PUBLISH)
    ordered.host.do(Stage(queue=QUEUE, writer="w", batch=1, attempt="a", part=0, messages=NEW[:1]))
    ordered.host.check()
    ordered.host.values(damage)
    with pytest.raises(AssertionError, match=check):
        ordered.host.check()


# Claims: one source on several nodes.


OPEN = claims.OpenSource(queue=QUEUE, source="s")
ACKNOWLEDGE = claims.AcknowledgeClaims(queue=QUEUE, source="s", epoch=1, number=1)
READ = claims.ReadClaim(queue=QUEUE, source="s", number=1)


def claim(count: int, *, epoch: int = 1) -> claims.Claim:
    return claims.Claim(queue=QUEUE, source="s", epoch=epoch, number=1, messages_max=count)


def fill(host: PostgresHost, count: int, *, fifo: bool) -> None:
    host.create(fifo=fifo)
    host.put(*(message(str(number), group=f"g{number}", dedup_id=str(number)) for number in range(count)))


@for_each_kind
def test_all_nodes_serve_a_source(nodes: TwoNodes, *, fifo: bool) -> None:
    fill(nodes.host, 3, fifo=fifo)
    nodes.host.do(OPEN)
    assert nodes.host.do(claim(3)) == claims.Bound(number=1, messages=3, shards=1)
    assert {each.body for each in nodes.do_at_other(READ).messages} == {"0", "1", "2"}
    assert nodes.do_at_other(claim(3)) == claims.Bound(number=1, messages=3, shards=1, again=True)
    assert nodes.do_at_other(commands.Receive(queue=QUEUE, count=10)).messages == []
    assert nodes.do_at_other(ACKNOWLEDGE).acknowledged == 1
    assert nodes.host.counts() == (0, 0, 0)
    assert nodes.host.rows("claim") == 0


def test_last_open_wins_on_any_node(nodes: TwoNodes) -> None:
    fill(nodes.host, 3, fifo=False)
    nodes.host.do(OPEN)
    assert nodes.do_at_other(OPEN).epoch == 2
    for late in (claim(3), ACKNOWLEDGE, claims.Heartbeat(queue=QUEUE, source="s", epoch=1)):
        with pytest.raises(EpochFenced):
            nodes.host.do(late)
    assert nodes.do_at_other(claim(3, epoch=2)).messages == 3


@for_each_kind
def test_another_node_continues_a_bind(nodes: TwoNodes, *, fifo: bool) -> None:
    fill(nodes.host, 3 * SLICE, fifo=fifo)
    nodes.host.do(OPEN)
    assert nodes.host.do(claim(100)).more
    nodes.host.run(nodes.host.end_connections())
    more = True
    while more:
        more = run_at_other(nodes, claim(100)).more
    assert run_at_other(nodes, claim(100)).messages == 3 * SLICE
    assert len(run_at_other(nodes, READ).messages) == 3 * SLICE


@for_each_kind
@pytest.mark.parametrize("ending", [ACKNOWLEDGE, claims.CloseSource(queue=QUEUE, source="s")], ids=["deleted", "back"])
def test_another_node_completes_the_work_of_a_failed_node(nodes: TwoNodes, ending: Any, *, fifo: bool) -> None:
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


def test_hold_ends_without_the_node_that_served_it(nodes: TwoNodes) -> None:
    fill(nodes.host, 3, fifo=False)
    nodes.host.do(OPEN)
    nodes.host.do(claim(3))
    nodes.first.workers[ClaimStep].stop()
    nodes.advance(3_600_000)
    with pytest.raises(ClaimLost):
        nodes.do_at_other(READ)
    assert nodes.host.counts() == (3, 0, 0)


def run_at_other(nodes: TwoNodes, command: Any) -> Any:
    """Return the result of `command` at the second node; retry once, because its connections may be dead."""
    while True:
        try:
            return nodes.do_at_other(command)
        except (OutcomeUnknown, StoreUnavailable):
            nodes.advance(1_000)


def test_large_quotas_do_not_count_claimed_messages(postgres_url: str) -> None:
    options = replace(RESTLESS, in_flight_max=20, in_flight_counted_max=10)
    with hosting_postgres(postgres_url, options=options) as host:
        fill(host, 40, fifo=False)
        host.do(OPEN)
        assert host.do(claim(30)).messages == 30
        host.advance(60_000)
        assert len(host.receive(10)) == 10
        assert not host.do(commands.Receive(queue=QUEUE, count=1)).over_limit


@for_each_kind
@pytest.mark.parametrize("many", [3, 4])
def test_a_count_of_many_messages_is_reused(
    nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch, many: int, *, fifo: bool
) -> None:
    """Until the queue is purged, and not where a job needs the exact number."""
    monkeypatch.setattr(transaction, "MANY_MESSAGES", many)
    monkeypatch.setattr("veilmq.store.postgres.node._INTERVAL_MS", 60_000)
    fill(nodes.host, 3, fifo=fifo)
    nodes.host.do(OPEN)
    beat, show = claims.Heartbeat(queue=QUEUE, source="s", epoch=1), commands.ShowQueue(queue=QUEUE, counts=True)
    assert [nodes.host.do(beat).ready, nodes.host.do(show).counts.visible] == [3, 3]
    nodes.host.do(claim(2))
    left = 3 if many == 3 else 1
    assert [nodes.host.do(beat).ready, nodes.host.do(show).counts.visible] == [left, left]
    assert nodes.host.do(claims.ListSources(queue=QUEUE))[0].ready == 1
    nodes.host.do(commands.PurgeQueue(queue=QUEUE))
    assert nodes.host.do(show).counts.visible == 0


@for_each_kind
@pytest.mark.parametrize(("damage", "check"), [
    ("DELETE FROM mq.claim", "every claimed message is hidden, and its claim is not finished"),
    ("UPDATE mq.{table} SET visible_at = 0", "every claimed message is hidden, and its claim is not finished"),
    ("UPDATE mq.{table} SET claim = NULL", "every claimed message is hidden, and its claim is not finished"),
    ("UPDATE mq.claim SET messages = messages + 1", "every open claim has a source, and all of its messages"),
    ("DELETE FROM mq.source", "every open claim has a source, and all of its messages"),
])  # fmt: skip
def test_doctor_finds_broken_claims(nodes: TwoNodes, damage: str, check: str, *, fifo: bool) -> None:
    fill(nodes.host, 3, fifo=fifo)
    nodes.host.do(OPEN)
    nodes.host.do(claim(3))
    nodes.host.check()
    nodes.host.values(damage.format(table="fifo_msg" if fifo else "msg"))
    with pytest.raises(AssertionError, match=check):
        nodes.host.check()
