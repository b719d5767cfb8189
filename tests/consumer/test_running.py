"""How a consumer stops: nothing unstarted is kept, nothing started is cut off without need, nothing done is undone."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.consumer import acting
from tests.consumer.workbench import PATIENCE_S, WAIT, WAIT_MS, Workbench, until, workbench
from veilmq.client import ClientError, HttpQueueClient, QueueClient
from veilmq.consumer import Consumer, Context, Running


@pytest.fixture
def bench() -> Iterator[Workbench]:
    """Give a server."""
    with workbench() as made:
        yield made


def received(client: QueueClient, queue: str) -> list[tuple[str, int]]:
    """Return body and receive count of what is visible in ``queue``."""
    return sorted((message.body, message.receive_count) for message in client.receive(queue, count=10, wait_s=0))


def test_what_waits_for_a_slot_is_given_back_and_what_runs_goes_on(bench: Workbench) -> None:
    """The handler ends within the grace, and its delete is confirmed before the consumer is gone."""
    app = bench.consumer("busy")
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.handler(concurrency=1, prefetch=5, wait=WAIT)
    async def work(body: str) -> None:
        begun.set()
        await go_on.wait()

    async def scenario() -> None:
        async with bench.working(app) as running:
            bench.client.send("busy", "first")
            await begun.wait()
            stopping = asyncio.create_task(bench.stop(running))
            await asyncio.sleep(0)
            bench.client.send("busy", "second")
            go_on.set()
            await stopping
            assert running.exit_code == 0

    asyncio.run(scenario())
    assert [body for body, _ in received(bench.client, "busy")] == ["second"]


def test_a_message_that_comes_while_the_polls_are_hung_up_on_is_not_stuck(bench: Workbench) -> None:
    """It was handed out or it was not: after the stop it is visible, or was handled; the time stands still."""
    app = bench.consumer("race")
    handled = []

    @app.handler(wait="20s")
    async def work(body: str) -> None:
        handled.append(body)

    async def scenario(number: int) -> None:
        async with app.running() as running:
            await asyncio.to_thread(bench.server.wait_until, lambda: bench.server.parked)
            sending = asyncio.to_thread(bench.client.send, "race", str(number))
            await asyncio.gather(sending, running.stop())
            assert running.exit_code == 0

    for number in range(20):
        asyncio.run(scenario(number))
        assert bench.client.show("race").in_flight == 0
        handled += [body for body, _ in received(bench.client, "race")]
        bench.client.purge("race")
        bench.server.advance(seconds=60)  # a queue may be purged once a minute
    assert sorted(handled, key=int) == [str(number) for number in range(20)]


def test_after_the_grace_a_handler_is_cancelled_and_its_message_released(bench: Workbench) -> None:
    """Visible again at once."""
    app = bench.consumer("slow", grace="10ms")
    causes = []

    @app.handler(wait=WAIT)
    async def work(body: str, ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            causes.append(ctx.cancelled.is_set())

    async def scenario() -> None:
        bench.client.send("slow", "x")
        async with bench.working(app) as running:
            await until(lambda: running.runners[0].working)
        assert running.exit_code == 0

    asyncio.run(scenario())
    assert causes == [True]
    assert received(bench.client, "slow") == [("x", 2)]


def test_whoever_is_in_a_hurry_does_not_wait_for_the_grace(bench: Workbench) -> None:
    """The second request to stop cancels the handlers at once."""
    app = bench.consumer("hurried", grace="1h")

    @app.handler(wait=WAIT)
    async def work(body: str) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        bench.client.send("hurried", "x")
        async with bench.working(app) as running:
            await until(lambda: running.runners[0].working)
            running.request_stop()
            running.request_stop()
            await running.wait()

    asyncio.run(scenario())
    assert received(bench.client, "hurried") == [("x", 2)]


def test_a_thread_that_looks_at_its_context_stops(bench: Workbench) -> None:
    """``check`` raises, and the message is released."""
    app = bench.consumer("looking", grace="10ms")
    app.declare(acting.stop_when_told, wait=WAIT, concurrency=1)

    async def scenario() -> Running:
        bench.client.send("looking", "x")
        async with bench.working(app) as running:
            await until(lambda: running.runners[0].working)
        return running

    assert asyncio.run(scenario()).exit_code == 0
    assert received(bench.client, "looking") == [("x", 2)]


@pytest.mark.slow
def test_a_thread_that_does_not_stop_is_abandoned(bench: Workbench) -> None:
    """Its message is released, the exit code says so, and its end changes nothing any more."""
    app = bench.consumer("deaf", grace="10ms")
    go_on = threading.Event()

    @app.handler(wait=WAIT, concurrency=1)
    def work(body: str) -> None:
        go_on.wait()

    async def scenario() -> Running:
        bench.client.send("deaf", "x")
        async with bench.working(app) as running:
            await until(lambda: running.runners[0].working)
        go_on.set()
        return running

    assert asyncio.run(scenario()).exit_code == 3
    assert received(bench.client, "deaf") == [("x", 2)]


def test_drained_is_when_nothing_is_visible_and_nothing_in_our_hands(bench: Workbench) -> None:
    """It returns after all have been handled; while somebody works it does not."""
    app = bench.consumer("drained")
    go_on = asyncio.Event()

    @app.handler(wait=WAIT)
    async def work(body: str) -> None:
        await go_on.wait()

    async def scenario() -> None:
        for number in range(25):
            bench.client.send("drained", str(number))
        async with bench.working(app) as running:
            with pytest.raises(TimeoutError):
                await running.drained("100ms")
            go_on.set()
            await running.drained("20s")
            assert bench.counts("drained") == (0, 0)

    asyncio.run(scenario())


def test_drained_waits_for_what_a_poll_is_bringing(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has given a message, and its answer has not arrived: nothing is visible, and nothing in our hands."""
    app = bench.consumer("bringing")
    handled: list[str] = []
    given, counted, arrived = threading.Event(), threading.Event(), threading.Event()
    receive, show = HttpQueueClient.receive, HttpQueueClient.show

    def received_late(client: HttpQueueClient, *words: Any, **options: Any) -> Any:
        messages = receive(client, *words, **options)
        given.set()
        assert arrived.wait(PATIENCE_S)
        return messages

    def counting(client: HttpQueueClient, queue: str) -> Any:
        status = show(client, queue)
        if given.is_set():
            counted.set()
        return status

    @app.handler(wait=WAIT)
    async def work(body: str) -> None:
        handled.append(body)

    async def scenario() -> None:
        bench.client.send("bringing", "x")
        monkeypatch.setattr(HttpQueueClient, "receive", received_late)
        monkeypatch.setattr(HttpQueueClient, "show", counting)
        async with bench.working(app) as running:
            await until(given.is_set)
            drained = asyncio.create_task(running.drained("20s"))
            await until(counted.is_set)
            await asyncio.to_thread(bench.counts, "bringing")  # longer than the first count takes to be heard of
            before = drained.done()
            arrived.set()
            await drained
            assert (before, handled) == (False, ["x"])

    asyncio.run(scenario())


def test_a_queue_that_is_not_there_is_said_loudly(bench: Workbench) -> None:
    """The consumer stops by itself and raises what the server said."""
    app = Consumer("nowhere", endpoint=bench.server.endpoint)
    app.declare(acting.act_async, wait=WAIT)

    async def scenario() -> None:
        async with app.running() as running:
            await running.wait()

    with pytest.raises(ClientError, match="does not exist"):
        asyncio.run(scenario())


def test_nobody_waits_for_a_queue_that_is_not_there_to_be_drained(bench: Workbench) -> None:
    app = Consumer("nowhere", endpoint=bench.server.endpoint)
    app.declare(acting.act_async, wait=WAIT)

    async def scenario() -> None:
        async with app.running() as running:
            await running.wait()
            await running.drained("1h")

    with pytest.raises(ClientError, match="does not exist"):
        asyncio.run(scenario())


def test_a_queue_that_hides_nothing_is_refused(bench: Workbench) -> None:
    """A timeout of zero can be kept by no renewal."""
    app = bench.consumer("naked", visibility_timeout_s=0)
    app.declare(acting.act_async, wait=WAIT)

    async def scenario() -> None:
        async with app.running() as running:
            await running.wait()

    with pytest.raises(ValueError, match="0 s cannot be kept"):
        asyncio.run(scenario())


@pytest.mark.parametrize("option", [{"timeout": "20ms"}, {"stall": "20ms"}], ids=["timeout", "stall"])
def test_a_handler_whose_time_is_over_is_cancelled_and_tried_again(bench: Workbench, option: dict[str, Any]) -> None:
    """Too long in all, or too long without a word: backoff, not a second run beside the first."""
    app = bench.consumer("timely")
    app.declare(acting.stop_when_told, wait=WAIT, concurrency=1, **option)
    bench.client.send("timely", "x")

    async def scenario() -> None:
        async with bench.working(app) as running:
            await bench.settled(running)
            assert running.runners[0].counts.events["retried"] == 1

    asyncio.run(scenario())


def test_a_handler_that_reports_progress_is_not_stalled(bench: Workbench) -> None:
    """``stall`` counts from its last report: it works for longer than that, and ends by itself."""
    app = bench.consumer("diligent")

    @app.handler(wait=WAIT, stall="100ms")
    async def work(body: str, ctx: Context) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + 0.25
        while loop.time() < end_s:
            ctx.progress(0.5)
            await asyncio.sleep(0)

    bench.client.send("diligent", "x")

    async def scenario() -> None:
        async with bench.working(app) as running:
            await until(lambda: running.runners[0].counts.events["acked"])

    asyncio.run(scenario())


def test_polls_wait_as_long_as_they_were_told(bench: Workbench) -> None:
    """One poll while the queue is quiet, answered when its wait is over and asked again."""
    app = bench.consumer("quiet")
    app.declare(acting.act_async, wait=WAIT)

    async def scenario() -> None:
        async with bench.working(app) as running:
            await bench.settled(running)
            assert running.runners[0].polling == 1
            bench.server.advance(WAIT_MS)
            await bench.settled(running)
            assert running.runners[0].polling == 1

    asyncio.run(scenario())
