"""FIFO queues: order within groups, groups beside each other, and a failure that keeps both."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.consumer.workbench import WAIT, Workbench, until, workbench
from veilmq.client import NewMessage, ReceivedMessage
from veilmq.consumer import Reject, RetryLater

QUEUE = "steps.fifo"
GROUPS = ("a", "b", "c")


@pytest.fixture
def bench() -> Iterator[Workbench]:
    """Give a server."""
    with workbench() as made:
        yield made


def send(bench: Workbench, *texts: str) -> None:
    """Send messages whose group is the first letter of their text."""
    batch = [NewMessage(body=text, group=text[0], dedup_id=text) for text in texts]
    bench.client.send_batch(QUEUE, batch)


def test_groups_are_in_order_and_beside_each_other(bench: Workbench) -> None:
    """One message of a group at a time, several groups at once, all of it in the order of sending."""
    app = bench.consumer(QUEUE, fifo=True)
    handled: list[str] = []
    inside: set[str] = set()
    together = asyncio.Event()

    @app.handler(concurrency=8, wait=WAIT)
    async def step(body: str) -> None:
        assert body[0] not in inside
        inside.add(body[0])
        if len(inside) == len(GROUPS):
            together.set()
        await together.wait()
        handled.append(body)
        inside.remove(body[0])

    for number in range(4):
        send(bench, *(f"{group}{number}" for group in GROUPS))

    async def scenario() -> None:
        async with bench.working(app) as running:
            await bench.settled(running)

    asyncio.run(scenario())
    for group in GROUPS:
        assert [text for text in handled if text[0] == group] == [f"{group}{number}" for number in range(4)]
    assert bench.counts(QUEUE) == (0, 0)


def test_a_rejected_head_lets_the_next_follow(bench: Workbench) -> None:
    """It is gone from the group, and in the dead-letter queue under its own group."""
    bench.client.create_queue("dead.fifo", {"fifo": True})
    app = bench.consumer(QUEUE, fifo=True)
    handled: list[str] = []

    @app.handler(wait=WAIT, dead_letter="dead.fifo")
    async def step(body: str) -> None:
        if body == "a0":
            raise Reject("bad")
        handled.append(body)

    send(bench, "a0", "a1")

    async def scenario() -> None:
        async with bench.working(app) as running:
            await bench.settled(running)

    asyncio.run(scenario())
    assert handled == ["a1"]
    (letter,) = bench.client.receive("dead.fifo", count=10, wait_s=0)
    assert (letter.body, letter.group) == ("a0", "a")


def test_a_stop_gives_back_what_waits_behind_a_running_head(bench: Workbench) -> None:
    """The head ends in its grace; the rest was never begun."""
    app = bench.consumer(QUEUE, fifo=True)
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.handler(wait=WAIT)
    async def step(body: str) -> None:
        begun.set()
        await go_on.wait()

    send(bench, "a0", "a1", "a2")

    async def scenario() -> None:
        async with bench.working(app) as running:
            await begun.wait()
            stopping = asyncio.create_task(bench.stop(running))
            await until(lambda: running.runners[0].counts.events["released"] == 2)
            go_on.set()
            await stopping

    asyncio.run(scenario())
    assert [message.body for message in bench.client.receive(QUEUE, count=10, wait_s=0)] == ["a1", "a2"]


def test_asking_for_later_holds_the_group(bench: Workbench) -> None:
    """``RetryLater`` is a failure like any other."""
    app = bench.consumer(QUEUE, fifo=True)
    handled: list[str] = []

    @app.handler(wait=WAIT)
    async def step(message: ReceivedMessage) -> None:
        if message.receive_count == 1 and message.body == "a0":
            raise RetryLater("3s")
        handled.append(message.body)

    send(bench, "a0", "a1")

    async def scenario() -> None:
        async with bench.working(app) as running:
            await bench.settled(running)
            assert handled == []
            bench.server.advance(3_000)
            await bench.settled(running)
            assert handled == ["a0", "a1"]

    asyncio.run(scenario())
