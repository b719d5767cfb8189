"""A consumer at work against a real server whose clock the test moves; its polls wait for one second of that."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from veilmq.client import HttpQueueClient, QueueClient
from veilmq.consumer import Consumer, Running
from veilmq.core.settings import SettingValue
from veilmq.testing import RunningServer

WAIT = "1s"
WAIT_MS = 1_000
PATIENCE_S = 100
"""In real seconds: for a busy machine, no test waits that long."""


class Workbench:
    """A server, a client of it, and consumers of its queues."""

    def __init__(self, server: RunningServer, client: QueueClient) -> None:
        """Made by ``workbench``."""
        self.server = server
        self.client = client

    def consumer(self, queue: str, *, grace: str = "10s", **settings: SettingValue) -> Consumer:
        self.client.create_queue(queue, settings)
        return Consumer(queue, endpoint=self.server.endpoint, grace=grace)

    def counts(self, queue: str) -> tuple[int, int]:
        """Return how many messages of ``queue`` are visible, and how many in flight or delayed."""
        status = self.client.show(queue)
        return status.visible, status.in_flight

    @asynccontextmanager
    async def working(self, app: Consumer) -> AsyncIterator[Running]:
        """Run ``app``, and stop it in order at the end."""
        async with asyncio.timeout(PATIENCE_S), app.running() as running:
            try:
                yield running
            finally:
                await self.stop(running)

    async def stop(self, running: Running) -> None:
        """Stop ``running``; its parked polls are answered by moving the clock as far as they wait."""
        stopping = asyncio.create_task(running.stop())
        while not stopping.done():
            if self.server.parked:
                self.server.advance(WAIT_MS)
            await asyncio.sleep(0)
        await stopping

    async def settled(self, running: Running) -> None:
        """Return when nothing is in the consumer's hands, and every poll of it waits at the server."""
        await until(lambda: self._is_quiet(running))

    def _is_quiet(self, running: Running) -> bool:
        polling = sum(runner.polling for runner in running.runners)
        return polling > 0 and self.server.parked == polling and not any(runner.held for runner in running.runners)


async def until(condition: Callable[[], object]) -> None:
    """Let the event loop turn until ``condition`` holds."""
    while not condition():  # noqa: ASYNC110 - what is waited for happens in threads and at the server
        await asyncio.sleep(0)


@contextmanager
def workbench() -> Iterator[Workbench]:
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        yield Workbench(server, client)
