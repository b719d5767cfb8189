"""Topics where several nodes are at work, and some of them end: all or nothing, and pushes that others take over."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.internals.store.postgres.two_nodes import two_nodes
from tests.store.host import QUEUE, message
from tests.store.postgres_host import RESTLESS, PostgresHost, connected, hosting_postgres, open_engine
from veilmq.core import commands
from veilmq.core.commands import ReceivedMessage
from veilmq.core.errors import VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.core.messages import NewMessage
from veilmq.core.topics import (
    PUSHES,
    CreateTopic,
    DeleteTopic,
    ListPushes,
    Notification,
    PublishedMessage,
    PublishToTopic,
    Subscribe,
    Subscription,
    Unsubscribe,
    push_queue,
)
from veilmq.server.metrics import TopicCounts
from veilmq.server.pushes import LEASE_S, Pusher
from veilmq.store.port import execute
from veilmq.store.postgres.engine import PostgresEngine

TOPIC = "000000000000/news"
FIFO = "000000000000/jobs.fifo"
URL = "https://hook.example/in"
PUSHED = push_queue(TOPIC, "pushed")
ROUNDS = 12
MESSAGES = 5
ALL = (QUEUE, FIFO, PUSHED)


@pytest.fixture
def host(postgres_url: str) -> Iterator[PostgresHost]:
    with hosting_postgres(postgres_url) as opened:
        opened.create(QUEUE)
        opened.create(FIFO, fifo=True)
        opened.do(CreateTopic(topic=TOPIC))
        for name, queue in (("a", QUEUE), ("b", FIFO)):
            opened.do(Subscribe(subscription=Subscription(topic=TOPIC, name=name, endpoint=name, queue=queue)))
        opened.do(Subscribe(subscription=pushed()))
        yield opened


def pushed(name: str = "pushed") -> Subscription:
    return Subscription(topic=TOPIC, name=name, endpoint=URL, push_url=URL)


def publishing(body: str) -> PublishToTopic:
    def make(notification: Notification) -> NewMessage:
        return message(body, group="g")

    return PublishToTopic(topic=TOPIC, size_bytes=len(body), make=make)


async def another(host: PostgresHost) -> PostgresEngine:
    return await open_engine(host.url, clock=host.clock, options=RESTLESS)


def visible(host: PostgresHost) -> list[int]:
    return [host.counts(queue)[0] for queue in ALL]


def test_a_publication_is_whole_or_not_there_when_connections_end(host: PostgresHost) -> None:
    """Whatever they were at; and what was acknowledged is there."""
    acknowledged = 0

    async def publish(number: int) -> None:
        nonlocal acknowledged
        try:
            answer: PublishedMessage = await execute(host.engine, publishing(str(number)))
        except VeilmqError:
            return
        assert answer.deliveries == len(ALL)
        acknowledged += 1

    async def one_round(number: int) -> None:
        together = [asyncio.ensure_future(publish(MESSAGES * number + each)) for each in range(MESSAGES)]
        for _ in range(number):
            await asyncio.sleep(0)
        await host.end_connections()
        await asyncio.gather(*together)
        host.clock.advance(10 * SECOND_MS)  # a node that has found no connection rests for a while

    for number in range(ROUNDS):
        host.run(one_round(number))
    host.run(publish(-1))
    counts = visible(host)
    assert counts[0] == counts[1] == counts[2]
    assert 1 <= acknowledged <= counts[0]


def test_nodes_publish_at_one_time_and_find_what_another_has_changed(host: PostgresHost) -> None:
    """Each to all queues, in whatever order the nodes come to them; a queue that was made anew is found."""

    async def work() -> None:
        nodes = [await another(host) for _ in range(2)]
        for node in nodes:
            assert (await execute(node, publishing("first"))).deliveries == len(ALL)
        await execute(host.engine, commands.PurgeQueue(queue=QUEUE))
        await execute(host.engine, Unsubscribe(topic=TOPIC, name="pushed"))
        await execute(host.engine, Subscribe(subscription=pushed()))
        publications = [execute(nodes[number % 2], publishing(str(number))) for number in range(20)]
        assert [answer.deliveries for answer in await asyncio.gather(*publications)] == [len(ALL)] * 20
        for node in nodes:
            await node.close()

    host.run(work())
    assert visible(host) == [20, 22, 20]
    host.check()


def test_what_is_published_does_not_fail_by_a_purge_right_behind_it(host: PostgresHost) -> None:
    """It is committed when it is told of: an error would have it published twice, and end what goes on by itself."""
    host.do(publishing("a"))
    node: Any = host.engine
    queue = node.catalog.seen(FIFO)
    woken_ms: list[int] = []
    host.in_loop(lambda: host.engine.watch(FIFO, woken_ms.append))
    host.do(commands.PurgeQueue(queue=FIFO))
    woken_ms.clear()

    async def tell() -> None:
        async with connected(host.url) as connection:
            await node.watches.wake_groups(connection, queue)

    host.run(tell())
    assert woken_ms == []
    host.do(publishing("b"))
    assert woken_ms != []


def test_two_nodes_change_one_topic(host: PostgresHost) -> None:
    """Nothing of it is lost, and no queue is left behind."""

    async def work() -> None:
        node = await another(host)
        names = [f"s{number}" for number in range(10)]
        made = await asyncio.gather(
            *(execute(each, Subscribe(subscription=pushed(name))) for name in names for each in (node, host.engine))
        )
        assert sum(view.is_new for view in made) == len(names)
        assert len(await execute(node, ListPushes())) == len(names) + 1
        await execute(node, DeleteTopic(topic=TOPIC))
        assert await execute(host.engine, ListPushes()) == []
        await node.close()

    host.run(work())
    assert host.do(commands.ListQueues(account="000000000000~push")).names == []


def test_a_node_hears_of_subscriptions_and_publications_at_another(postgres_url: str) -> None:
    """By notices: no time passes that would make it look by itself."""
    with two_nodes(postgres_url) as nodes:
        nodes.host.do(CreateTopic(topic=TOPIC))
        nodes.watch(PUSHES)
        nodes.host.do(Subscribe(subscription=pushed()))
        nodes.until(lambda: nodes.woken_ms)
        assert nodes.do_there(ListPushes()) == [pushed()]
        nodes.watch(PUSHED)
        nodes.host.do(publishing("a"))
        nodes.until(lambda: nodes.woken_ms)
        assert nodes.do_there(commands.Receive(queue=PUSHED)).messages[0].body == "a"


class Receiver:
    """Whoever is pushed to; a `stuck` one never answers."""

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
    return Pusher(
        engine=node,
        clock=host.clock,
        attempt=receiver.attempt,
        counts=TopicCounts(),
        parallel_max=4,
    )


def test_pushes_are_shared_by_nodes_and_taken_over_from_one_that_ends(host: PostgresHost) -> None:
    """A message is with one node at a time; one that dies with it loses it to another when its lease is over."""
    for number in range(MESSAGES):
        host.do(publishing(str(number)))
    dies, lives = Receiver(stuck=True), Receiver(stuck=False)

    async def end(pushes: Pusher) -> None:
        closing = asyncio.ensure_future(pushes.close())
        await asyncio.sleep(0)
        pushes.cut()
        await closing

    async def begin() -> Pusher:
        node = await another(host)
        first = pusher(host, node, dies)
        first.start()
        await dies.until(1)
        await end(first)  # what it had is not settled, as when its node is killed
        await node.close()
        second = pusher(host, host.engine, lives)  # type: ignore[arg-type]
        second.start()
        await lives.until(MESSAGES - 1)
        return second

    async def rest(second: Pusher) -> None:
        await lives.until(MESSAGES)
        await end(second)

    second = host.run(begin())
    assert dies.got[0] not in lives.got
    host.advance(LEASE_S * SECOND_MS)
    host.run(rest(second))
    assert sorted(lives.got) == [str(number) for number in range(MESSAGES)]
    assert len(dies.got) == 1
