"""Fair queues with several nodes at once: whoever sends, receives and releases, no group's turn comes too late."""

import asyncio
from collections.abc import Iterator
from random import Random

import pytest

from tests.store.host import QUEUE, message
from tests.store.postgres_host import RESTLESS, PostgresHost, hosting_postgres, open_engine
from veilmq.core import commands
from veilmq.core.commands import VisibilityChange
from veilmq.core.errors import ReceiptState
from veilmq.store.port import execute
from veilmq.store.postgres.engine import PostgresEngine

MESSAGES = 600
GROUPS = 12
LEASE_S = 60


@pytest.fixture
def host(postgres_url: str) -> Iterator[PostgresHost]:
    with hosting_postgres(postgres_url) as each:
        each.create()
        yield each


class Crowd:
    """Producers and consumers that each ask any of the nodes."""

    def __init__(self, nodes: list[PostgresEngine]) -> None:
        """Begin with nothing sent."""
        self._nodes = nodes
        self._random = Random(7)
        self._left = list(range(MESSAGES))
        self.deleted: set[str] = set()

    async def produce(self) -> None:
        """Send what is left, a few at a time, some of it without a group."""
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
