"""A consumer and a real server on one clock: a day passes for both in as long as their threads need.

The consumer's clock is moved from one instant at which its renewer wants to wake to the next, and takes the server's
along. What they do at an instant is real: threads, sockets, requests. Event loops are not on that clock: a handler ends
when the test lets it.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.consumer.workbench import Workbench
from veilmq.client import HttpQueueClient, QueueClient, SigningKey
from veilmq.consumer import Consumer, Running
from veilmq.core.limits import SECOND_MS
from veilmq.core.settings import SettingValue
from veilmq.testing import RunningQueue, RunningServer, SeenMessage, SteppedClock


class OneClock(SteppedClock):
    """The consumer's clock, which moves that of a server."""

    def __init__(self, server: RunningServer) -> None:
        """Stand at 0."""
        super().__init__()
        self._server = server
        self._begun_ms = server.clock.now_ms()
        self._moving = threading.Lock()

    def advance(self, duration_s: float) -> None:
        """Move by ``duration_s``, after whoever moves it already."""
        with self._moving:
            super().advance(duration_s)

    def set(self, at_s: float) -> None:
        """Bring the server to ``at_s``, then whoever sleeps here."""
        self._server.advance(max(0, self._begun_ms + round(at_s * SECOND_MS) - self._server.clock.now_ms()))
        super().set(at_s)


class TimedBench(Workbench):
    """A workbench on one clock."""

    def __init__(self, server: RunningServer, client: QueueClient) -> None:
        """Made by ``timed_bench``."""
        super().__init__(server, client)
        self.clock = OneClock(server)

    def consumer(self, queue: str, *, grace: str = "1s", **settings: SettingValue) -> Consumer:
        """Return a consumer of ``queue``, which is made with these settings or is there."""
        self.queue(queue, **settings)
        return Consumer(queue, endpoint=self.server.endpoint, grace=grace, clock=self.clock)

    def queue(self, name: str, **settings: SettingValue) -> RunningQueue:
        """Return the queue, made with these settings if there is none."""
        return self.server.queue(name, **settings)

    async def elapse(self, seconds: float) -> None:
        """Let the time pass, while the event loop goes on."""
        await asyncio.to_thread(self.clock.advance, seconds)

    async def eventually(self, condition: Callable[[], object]) -> None:
        """Let the time pass, a second at a time, until ``condition`` holds.

        For what comes when a poll next asks: polls are answered beside the clock, and the one that would have met the
        instant may have asked just before it.
        """
        while not condition():
            await self.elapse(1)

    async def guard(self, queue: str, seconds: float, *, every: float = 5) -> None:
        """Let the time pass, with a competitor who looks for messages at each step and must find none."""
        for _ in range(round(seconds / every)):
            await self.elapse(every)
            assert self.rivals(queue) == [], "a message that somebody works on was given to another"

    def rivals(self, queue: str) -> list[str]:
        """Return the bodies of what another consumer gets now."""
        return [message.body for message in self.client.receive(queue, count=10, wait_s=0)]

    def left_s(self, messages: list[SeenMessage]) -> list[float]:
        """Return for how many seconds each of ``messages`` is still hidden."""
        now_ms = self.server.clock.now_ms()
        return [((message.visible_at_ms or now_ms) - now_ms) / SECOND_MS for message in messages]

    async def stop(self, running: Running) -> None:
        """Stop ``running``; its parked polls are answered by letting the time pass for which they wait."""
        stopping = asyncio.create_task(running.stop())
        while not stopping.done():
            if self.server.parked:
                await self.elapse(1)
            await asyncio.sleep(0)
        await stopping


@contextmanager
def timed_bench(key: SigningKey | None = None, **settings: Any) -> Iterator[TimedBench]:
    """Give a workbench with a server of its own, which has these settings; its client signs with ``key``."""
    with RunningServer(**settings) as server, HttpQueueClient(server.endpoint, key=key) as client:
        yield TimedBench(server, client)
