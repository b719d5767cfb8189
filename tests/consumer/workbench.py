"""A consumer and a server whose clock the test moves; its polls wait for one second of that clock."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from veilmq.client import HttpQueueClient, QueueClient
from veilmq.consumer import Consumer, Running
from veilmq.core.settings import SettingValue
from veilmq.testing import RunningServer

WAIT = "1s"
WAIT_MS = 1_000
PATIENCE_S = 100  # real seconds; only reached on failure


class Workbench:
    """A server, its client, and consumers of its queues; made by ``workbench``."""

    def __init__(self, server: RunningServer, client: QueueClient) -> None:
        self.server = server
        self.client = client
        self.sent: list[str] = []

    def consumer(self, queue: str, *, grace: str = "10s", **settings: SettingValue) -> Consumer:
        self.client.create_queue(queue, settings)
        return Consumer(queue, endpoint=self.server.endpoint, grace=grace)

    def counts(self, queue: str) -> tuple[int, int]:
        """Return how many messages of ``queue`` are visible, and how many in flight or delayed."""
        status = self.client.show(queue)
        return status.visible, status.in_flight

    @asynccontextmanager
    async def handling(
        self, handler: Callable[..., Any], *bodies: str, grace: str = "10s", **options: Any
    ) -> AsyncIterator[Running]:
        """Run ``handler`` on ``orders`` after sending ``bodies``; ``sent`` has their ids."""
        app = self.consumer("orders", grace=grace)
        app.declare(handler, wait=WAIT, **options)
        self.sent = [self.client.send("orders", body).id for body in bodies]
        async with self.working(app) as running:
            yield running

    @asynccontextmanager
    async def working(self, app: Consumer) -> AsyncIterator[Running]:
        async with asyncio.timeout(PATIENCE_S), app.running() as running:
            try:
                yield running
            finally:
                await self.stop(running)

    async def stop(self, running: Running) -> None:
        """Stop ``running``; advance the clock until its polls return."""
        stopping = asyncio.create_task(running.stop())
        while not stopping.done():
            if self.server.parked:
                self.server.advance(WAIT_MS)
            await asyncio.sleep(0)
        await stopping

    async def settled(self, running: Running) -> None:
        """Return when the consumer holds no message, and each of its polls is parked at the server."""
        await until(lambda: self._is_quiet(running))

    def _is_quiet(self, running: Running) -> bool:
        polling = sum(runner.polling for runner in running.runners)
        return polling > 0 and self.server.parked == polling and not any(runner.held for runner in running.runners)


class Job:
    """A handler, ``work``, that records its bodies and waits for ``go_on``; ``cancelled`` has cancelled bodies."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.cancelled: list[str] = []
        self.go_on = asyncio.Event()

    async def work(self, body: str) -> None:
        self.bodies.append(body)
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.append(body)
            raise


def event(running: Running, name: str) -> int:
    """Return how often ``name`` has happened to messages of the first handler."""
    return running.runners[0].counts.events[name]


async def until(condition: Callable[[], object]) -> None:
    """Run the event loop until ``condition`` holds."""
    while not condition():  # noqa: ASYNC110 - it depends on threads and the server
        await asyncio.sleep(0)


@contextmanager
def workbench() -> Iterator[Workbench]:
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        yield Workbench(server, client)
