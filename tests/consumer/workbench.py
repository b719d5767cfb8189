"""A consumer at work against a real server whose clock the test moves; its polls wait for one second of that."""

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
PATIENCE_S = 100
"""In real seconds: for a busy machine, no test waits that long."""


class Workbench:
    """A server, a client of it, and consumers of its queues."""

    def __init__(self, server: RunningServer, client: QueueClient) -> None:
        """Made by ``workbench``."""
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
        """Run ``handler`` with these options on ``orders``, to which ``bodies`` were sent; ``sent`` has their ids."""
        app = self.consumer("orders", grace=grace)
        app.declare(handler, wait=WAIT, **options)
        self.sent = [self.client.send("orders", body).id for body in bodies]
        async with self.working(app) as running:
            yield running

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


class Job:
    """A handler, ``work``, that notes the bodies that it is called with and waits until it may ``go_on``.

    ``cancelled`` has the bodies of calls that were cancelled meanwhile.
    """

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
    """Let the event loop turn until ``condition`` holds."""
    while not condition():  # noqa: ASYNC110 - what is waited for happens in threads and at the server
        await asyncio.sleep(0)


@contextmanager
def workbench() -> Iterator[Workbench]:
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        yield Workbench(server, client)
