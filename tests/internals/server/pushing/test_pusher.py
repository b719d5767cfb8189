"""The pusher on a scripted engine: what a real one answers only when something goes wrong."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.internals.server.pushing.test_attempts import MESSAGE
from tests.internals.server.scripted_engine import ScriptedEngine
from veilmq.core import commands
from veilmq.core.errors import InternalError, QueueNotFound, StoreFull
from veilmq.core.results import LeaseChange, ReceiptState, Received
from veilmq.core.topics import PUSHES, ListPushes, Subscription, push_queue
from veilmq.server.metrics import PushOutcome, TopicCounts
from veilmq.server.pushes import LEASE_S, Pusher
from veilmq.testing import VirtualClock

URL = "http://hook.example/"
ONE = Subscription(topic="1/t", name="one", endpoint=URL, push_url=URL)
TWO = Subscription(topic="1/t", name="two", endpoint=URL, push_url="http://other.example/")
QUEUE = push_queue("1/t", "one")
NOTHING = Received(messages=[], next_due_ms=None, receive_wait_s=0)
SOMETHING = Received(messages=[MESSAGE], next_due_ms=None, receive_wait_s=0)


class Bench:
    """A pusher, and what is asked of its engine; `problem` is what attempts say."""

    def __init__(self) -> None:
        """Begin to push."""
        self.engine = ScriptedEngine()
        self.clock = VirtualClock()
        self.counts = TopicCounts()
        self.problem = ""
        self.pusher = Pusher(
            engine=self.engine,
            clock=self.clock,
            attempts=self,  # type: ignore[arg-type]
            counts=self.counts,
            parallel_max=2,
            chance=lambda: 0.0,
        )
        self.pusher.start()

    async def attempt(self, subscription: Subscription, message: object) -> str:
        """Say what the test wants."""
        return self.problem

    def asked(self) -> list[commands.Command]:
        """Return what has no answer yet."""
        return [command for command, _ in self.engine.asked]


def play(scene: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    """Play a scene in an event loop."""

    async def whole() -> None:
        await scene(Bench())

    asyncio.run(whole())


def take(count: int = 1, queue: str = QUEUE) -> commands.Receive:
    """Return what is asked of a queue."""
    return commands.Receive(queue=queue, count=count, timeout_s=LEASE_S)


async def turn() -> None:
    """Let what is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_message_is_taken_pushed_and_deleted() -> None:
    async def scene(bench: Bench) -> None:
        assert bench.asked() == [ListPushes()]
        bench.engine.answer([ONE])
        assert set(bench.engine.watches) == {PUSHES, QUEUE}
        assert bench.engine.answer(SOMETHING) == take()
        await turn()
        assert bench.engine.answer([ReceiptState.LIVE]) == commands.Delete(queue=QUEUE, receipts=("r",))
        await turn()
        assert bench.counts.pushes[PushOutcome.ACCEPTED] == 1
        assert bench.asked() == []

    play(scene)


def test_a_queue_that_could_not_be_asked_is_asked_again_a_second_later() -> None:
    async def scene(bench: Bench) -> None:
        bench.engine.answer([ONE])
        bench.engine.answer(InternalError())
        bench.clock.advance(999)
        assert bench.asked() == []
        bench.clock.advance(1)
        assert bench.engine.answer(NOTHING) == take()
        bench.engine.watches[QUEUE](bench.clock.now_ms())
        assert bench.asked() == [take()]

    play(scene)


def test_subscriptions_that_could_not_be_listed_are_listed_again_a_second_later() -> None:
    async def scene(bench: Bench) -> None:
        bench.engine.answer(StoreFull())
        bench.clock.advance(1_000)
        bench.engine.answer([ONE])
        assert bench.asked() == [take()]

    play(scene)


def test_what_was_pushed_and_could_not_be_deleted_comes_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(bench: Bench) -> None:
        bench.engine.answer([ONE])
        bench.engine.answer(SOMETHING)
        await turn()
        bench.engine.answer(StoreFull())
        await turn()
        assert not any(bench.counts.pushes.values())
        assert bench.counts.pushes_running == 0

    with caplog.at_level(logging.DEBUG):
        play(scene)
    assert "was not settled; it comes again" in caplog.text


def test_a_failure_is_hidden_and_the_last_one_deleted() -> None:
    async def scene(bench: Bench) -> None:
        bench.problem = "no"
        bench.engine.answer([ONE])
        bench.engine.answer(SOMETHING)
        await turn()
        change = commands.VisibilityChange(receipt="r", timeout_s=10)
        assert bench.engine.answer([LeaseChange(state=ReceiptState.LIVE)]) == commands.ChangeVisibility(
            queue=QUEUE, changes=(change,)
        )
        await turn()
        assert bench.counts.pushes[PushOutcome.FAILED] == 1

    play(scene)


def test_a_queue_that_is_gone_is_not_asked_again() -> None:
    async def scene(bench: Bench) -> None:
        bench.engine.answer([ONE, TWO])
        bench.engine.answer(QueueNotFound(QUEUE))
        assert set(bench.engine.watches) == {PUSHES, push_queue("1/t", "two")}
        bench.engine.answer(NOTHING)
        bench.engine.watches[PUSHES](0)
        bench.engine.answer([])
        assert set(bench.engine.watches) == {PUSHES}

    play(scene)


def test_an_answer_for_a_subscription_that_ended_meanwhile() -> None:
    """What was taken is still pushed; nothing more is asked."""

    async def scene(bench: Bench) -> None:
        bench.engine.answer([ONE])
        bench.engine.watches[PUSHES](0)
        (_, taken), (_, listed) = bench.engine.asked
        bench.engine.asked.clear()
        listed([])
        taken(SOMETHING)
        await turn()
        assert isinstance(bench.engine.answer(QueueNotFound(QUEUE)), commands.Delete)
        await turn()
        assert (bench.asked(), bench.counts.pushes_running) == ([], 0)

    play(scene)


def test_the_end_waits_for_what_is_being_taken_and_takes_no_more() -> None:
    async def scene(bench: Bench) -> None:
        bench.engine.answer([ONE])
        watches = dict(bench.engine.watches)
        closing = asyncio.ensure_future(bench.pusher.close())
        await turn()
        assert bench.asked() == [take(), ListPushes()]
        bench.engine.answer(SOMETHING)
        bench.engine.answer([ONE])
        await turn()
        assert not closing.done()
        bench.engine.answer([ReceiptState.LIVE])
        await closing
        for wake in watches.values():
            wake(bench.clock.now_ms())
        assert (bench.asked(), bench.engine.watches) == ([], {})
        assert bench.counts.pushes[PushOutcome.ACCEPTED] == 1

    play(scene)


def test_a_list_that_comes_after_the_end_is_nobodys() -> None:
    async def scene(bench: Bench) -> None:
        closing = asyncio.ensure_future(bench.pusher.close())
        await turn()
        bench.engine.answer([ONE])
        bench.engine.answer(InternalError())
        await closing
        assert bench.asked() == []

    play(scene)
