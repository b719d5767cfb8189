"""Several nodes on one database, at work at one time: each message once, and each group in order."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from typing import Any

import pytest

from tests.store.host import message
from tests.store.postgres_host import RESTLESS, PostgresHost, hosting_postgres, open_engine
from veilmq.core import commands
from veilmq.core.commands import ReceivedMessage, SentMessage
from veilmq.core.errors import ReceiptState
from veilmq.core.topics import Forward, Forwarded, ForwardEntry
from veilmq.store.port import execute
from veilmq.store.postgres.engine import PostgresEngine

NODES = PRODUCERS = CONSUMERS = 3
SENDS = 20
PER_SEND = 5
MESSAGES = PRODUCERS * SENDS * PER_SEND
INTAKE = "000000000000/intake"
TARGET = "000000000000/target"

Handle = Callable[[PostgresEngine, list[ReceivedMessage]], Awaitable[None]]


@pytest.fixture(params=[{}, {"fifo": True}], ids=["standard", "fifo"])
def host(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[PostgresHost]:
    with hosting_postgres(postgres_url) as opened:
        opened.create(INTAKE, **request.param)
        opened.create(TARGET, **request.param)
        yield opened


@asynccontextmanager
async def nodes(host: PostgresHost) -> AsyncIterator[list[PostgresEngine]]:
    opened = [await open_engine(host.url, clock=host.clock, options=RESTLESS) for _ in range(NODES)]
    try:
        yield opened
    finally:
        for node in opened:
            await node.close()


async def produce(opened: Sequence[PostgresEngine], name: str) -> None:
    """Send messages of several groups at once, to one node after another; bodies tell group and number."""
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


def test_each_message_arrives_once_and_in_its_order(host: PostgresHost) -> None:
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
        async with nodes(host) as opened, asyncio.timeout(100), asyncio.TaskGroup() as together:
            for number in range(PRODUCERS):
                together.create_task(produce(opened, f"p{number}-"))
            for number in range(CONSUMERS):
                ours = opened[number:] + opened[:number]
                together.create_task(consume(ours, INTAKE, lambda: len(forwarded) == MESSAGES, forward))
                together.create_task(consume(ours, TARGET, lambda: len(got) == MESSAGES, delete))

    host.run(work())
    assert len({each.body for each in got}) == len(got) == MESSAGES
    assert (host.counts(INTAKE), host.counts(TARGET)) == ((0, 0, 0), (0, 0, 0))
    host.check()
    if got[0].sequence is not None:
        numbers: dict[str, list[int]] = {}
        for each in got:
            group, number = each.body.split(" ")
            numbers.setdefault(group, []).append(int(number))
        assert all(came == list(range(SENDS)) for came in numbers.values())
