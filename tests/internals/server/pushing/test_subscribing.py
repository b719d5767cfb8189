"""Subscribing a URL whose name is being looked up: nobody waits for ever, and who has gone is forgotten."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.internals.server.scripted_engine import ScriptedEngine
from veilmq.core.topic_errors import EndpointRefused
from veilmq.core.topics import Subscribe, Subscription
from veilmq.server.pushes import Guard
from veilmq.server.setting_kinds import AllowList
from veilmq.server.topics import NAME_S_MAX, OneSubscription, Subscribing
from veilmq.testing import VirtualClock

URL = "http://hook.example/"
PUSHED = Subscribe(subscription=Subscription(topic="1/t", name="s", endpoint=URL, push_url=URL))
QUEUED = Subscribe(subscription=Subscription(topic="1/t", name="s", endpoint="q", queue="1/q"))


class Bench:
    """Subscribing on a scripted engine; a name is found when the test says it."""

    def __init__(self) -> None:
        """Nobody subscribes."""
        self.engine = ScriptedEngine()
        self.clock = VirtualClock()
        self.found: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self.heard: list[Any] = []
        guard = Guard(AllowList("hook.example"), resolve=self._resolve)
        self._subscribing = Subscribing(engine=self.engine, clock=self.clock, guard=guard)

    async def _resolve(self, name: str, port: int) -> list[str]:
        return await self.found

    async def ask(self, command: Subscribe = PUSHED) -> OneSubscription:
        """Begin."""
        one = self._subscribing.ask(command, 0, self.heard.append)
        await turn()
        return one


def play(scene: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    """Play a scene in an event loop."""

    async def whole() -> None:
        await scene(Bench())

    asyncio.run(whole())


async def turn() -> None:
    """Let what is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_the_engine_is_asked_when_the_guard_has_nothing_against_it() -> None:
    async def scene(bench: Bench) -> None:
        await bench.ask()
        assert bench.engine.asked == []
        bench.found.set_result(["8.8.8.8"])
        await turn()
        assert bench.engine.answer("subscribed") == PUSHED
        assert bench.heard == ["subscribed"]

    play(scene)


def test_a_queue_is_nothing_to_the_guard() -> None:
    async def scene(bench: Bench) -> None:
        one = await bench.ask(QUEUED)
        one.hurry()
        assert bench.engine.answer("subscribed") == QUEUED
        one.withdraw()
        assert bench.heard == ["subscribed"]

    play(scene)


def test_what_the_guard_says_is_the_answer() -> None:
    async def scene(bench: Bench) -> None:
        await bench.ask()
        bench.found.set_result(["10.0.0.1"])
        await turn()
        (refused,) = bench.heard
        assert isinstance(refused, EndpointRefused)
        assert bench.engine.asked == []

    play(scene)


def test_a_name_has_five_seconds() -> None:
    async def scene(bench: Bench) -> None:
        one = await bench.ask()
        bench.clock.advance(NAME_S_MAX * 1_000 - 1)
        assert bench.heard == []
        bench.clock.advance(1)
        await turn()
        (refused,) = bench.heard
        assert "not found in time" in str(refused)
        one.hurry()
        assert len(bench.heard) == 1

    play(scene)


def test_a_server_that_closes_does_not_wait() -> None:
    async def scene(bench: Bench) -> None:
        one = await bench.ask()
        one.hurry()
        assert "not found in time" in str(bench.heard[0])

    play(scene)


def test_nothing_happens_for_who_has_gone() -> None:
    async def scene(bench: Bench) -> None:
        one = await bench.ask()
        one.withdraw()
        await turn()
        assert (bench.heard, bench.engine.asked) == ([], [])
        bench.clock.advance(NAME_S_MAX * 1_000)
        assert bench.heard == []

    play(scene)


def test_nothing_happens_for_who_goes_before_the_engine_has_begun() -> None:
    async def scene(bench: Bench) -> None:
        one = await bench.ask()
        bench.found.set_result(["8.8.8.8"])
        await turn()
        one.withdraw()
        assert (bench.heard, bench.engine.asked) == ([], [])

    play(scene)
