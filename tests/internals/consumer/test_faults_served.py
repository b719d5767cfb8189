"""Faults between a consumer and a real server, in virtual time: what is survived, what is noticed, what is lost."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.consumer.simulation import TimedBench, timed_bench
from tests.consumer.workbench import WAIT, until
from tests.internals.consumer.slow_client import SlowClient
from tests.server.keys import REGION, SECRETS, written
from veilmq.client import HttpQueueClient, NewMessage, SigningKey
from veilmq.consumer import Consumer, Context, Fixed, LeaseLost, LeaseState, Running
from veilmq.store.clock import wall_s
from veilmq.testing import faults
from veilmq.testing.faults import Fault
from veilmq.wire.sqs import signatures

pytestmark = pytest.mark.slow

QUEUE = "work"
RENEW = "ChangeMessageVisibilityBatch"
BEAT = Fixed(30, every=20)
KEY = SigningKey(id="AKIDOWNER", secret=SECRETS["AKIDOWNER"], region=REGION)


@pytest.fixture
def bench() -> Iterator[TimedBench]:
    """Give a server and a consumer's clock, which move together."""
    with timed_bench() as made:
        yield made


class Work:
    """A handler that ends when it is let, and what happened to it."""

    def __init__(self, bench: TimedBench, *bodies: str, client: Any = None, lease: object = BEAT) -> None:
        """Make the queue, with a message for each of ``bodies``, and the consumer, which holds no more than these."""
        self.bench = bench
        self.queue = bench.queue(QUEUE, visibility_timeout_s=30)
        self.handled: Counter[str] = Counter()
        self.cancelled: list[str] = []
        self.end = asyncio.Event()
        self.app = Consumer(QUEUE, endpoint=bench.server.endpoint, client=client, grace="1s", clock=bench.clock)
        self.app.handler(wait=WAIT, concurrency=len(bodies), prefetch=0, lease=lease)(self.work)
        self.contexts: list[Context] = []
        bench.client.send_batch(QUEUE, [NewMessage(body=body) for body in bodies])

    async def work(self, body: str, ctx: Context) -> None:
        """Wait."""
        self.handled[body] += 1
        self.contexts.append(ctx)
        try:
            await self.end.wait()
        except asyncio.CancelledError:
            self.cancelled.append(body)
            raise

    def play(self, scenario: Callable[[Running, Counter[str]], Any]) -> Running:
        """Run ``scenario`` while all messages are in work."""

        async def played() -> Running:
            async with self.bench.working(self.app) as running:
                (runner,) = running.runners
                await until(lambda: runner.working == runner.handler.options.concurrency)
                await scenario(running, runner.counts.events)
            return running

        return asyncio.run(played())

    def is_done(self) -> bool:
        """Tell whether each message was handled once, and is gone."""
        return set(self.handled.values()) == {1} and self.bench.counts(QUEUE) == (0, 0) and not self.cancelled


@pytest.mark.parametrize(
    "fault",
    [
        faults.UNAVAILABLE,
        faults.FAILED,
        faults.THROTTLED,
        faults.THROTTLED_403,
        faults.REQUEST_DROPPED,
        faults.ANSWER_DROPPED,
        faults.failed_entries(0),
    ],
    ids=repr,
)
def test_one_failed_renewal_is_tried_again_at_once(bench: TimedBench, fault: Fault) -> None:
    """And no message is in doubt; what is throttled is no loss."""
    work = Work(bench, "x")
    bench.server.faults.script(RENEW, fault)

    async def scenario(running: Running, events: Counter[str]) -> None:
        await bench.guard(QUEUE, 100)
        assert running.renewals.results["again"] == 1
        assert (events["suspect"], events["lost"]) == (0, 0)
        work.end.set()
        await bench.settled(running)

    work.play(scenario)
    assert work.is_done()


def test_of_a_batch_of_renewals_the_ones_that_failed_are_tried_again(bench: TimedBench) -> None:
    """The others are left alone; so it is with the batch of their deletes."""
    work = Work(bench, *"abcde")
    bench.server.faults.script(RENEW, faults.failed_entries(1, 3))

    async def scenario(running: Running, events: Counter[str]) -> None:
        await bench.elapse(21)
        assert (running.renewals.calls, running.renewals.entries) == (2, 7), "five, then the two"
        bench.server.faults.script("DeleteMessageBatch", faults.failed_entries(0, 2))
        await bench.guard(QUEUE, 60)
        work.end.set()
        await bench.settled(running)
        assert events["acked"] == 5

    work.play(scenario)
    assert work.is_done()
    assert bench.server.faults.left == []


@pytest.mark.parametrize("fault", [faults.THROTTLED, faults.THROTTLED_403], ids=repr)
def test_throttling_is_survived_wherever_it_comes(bench: TimedBench, fault: Fault) -> None:
    """Of the receive, of the renewal, of the delete and of its repetition."""
    work = Work(bench, "x")
    for action in ("ReceiveMessage", RENEW, "DeleteMessageBatch", "DeleteMessage"):
        bench.server.faults.script(action, fault)

    async def scenario(running: Running, events: Counter[str]) -> None:
        await bench.guard(QUEUE, 60)
        work.end.set()
        await bench.settled(running)
        assert (events["acked"], events["suspect"], events["lost"]) == (1, 0, 0)

    work.play(scenario)
    assert work.is_done()
    assert bench.server.faults.left == []


def test_renewals_that_fail_until_the_end_leave_a_doubt_that_the_server_ends(bench: TimedBench) -> None:
    """Nobody took the message meanwhile: it is ours again, the handler was never told to stop."""
    work = Work(bench, "x")
    bench.server.faults.script(RENEW, faults.UNAVAILABLE, times=None)

    async def scenario(running: Running, events: Counter[str]) -> None:
        await bench.elapse(29.9)
        assert events["suspect"] == 0
        await bench.elapse(0.1)
        await until(lambda: events["suspect"] == 1)
        (ctx,) = work.contexts
        states = [ctx.lease.state]
        with pytest.raises(LeaseLost):
            async with ctx.fence():
                pytest.fail("nobody may pass")
        bench.server.faults.clear()
        await bench.elapse(25)  # the longest pause between tries for what is in doubt is 22.5 s
        assert [*states, ctx.lease.state] == [LeaseState.SUSPECT, LeaseState.HELD]
        await bench.guard(QUEUE, 60)
        work.end.set()
        await bench.settled(running)

    work.play(scenario)
    assert work.is_done()


def test_a_message_that_another_took_meanwhile_is_lost_and_left_to_him(bench: TimedBench) -> None:
    """The handler is cancelled with the first answer; nothing is released, deleted or hidden that is his."""
    work = Work(bench, "x")
    bench.server.faults.script(RENEW, faults.UNAVAILABLE, times=None)

    async def scenario(running: Running, events: Counter[str]) -> None:
        await bench.elapse(31)
        assert len(bench.client.receive(QUEUE, timeout_s=600)) == 1
        bench.server.faults.clear()
        for action in ("ChangeMessageVisibility", "DeleteMessage", "DeleteMessageBatch"):
            bench.server.faults.script(action, faults.FAILED)
        await bench.elapse(25)  # the longest pause between tries for what is in doubt is 22.5 s
        await until(lambda: events["left"] == 1)
        calls = running.renewals.calls
        await bench.elapse(60)
        assert (events["suspect"], events["lost"], running.renewals.calls) == (1, 1, calls)
        assert len(bench.server.faults.left) == 3, "nothing of it is asked for"
        assert bench.left_s(work.queue.in_flight) == [600 - 25 - 60]

    work.play(scenario)
    assert (work.handled, work.cancelled) == ({"x": 1}, ["x"])


@pytest.mark.parametrize("plain", [False, True], ids=["veilmq", "amazon"])
def test_an_answer_after_the_end_proves_nothing_but_by_the_word_of_the_server(bench: TimedBench, plain: bool) -> None:
    """200 to a receipt may mean nothing at Amazon; veilmq's says that the message was nobody else's."""
    with HttpQueueClient(bench.server.endpoint) as client:
        slow = SlowClient(bench, client, answers_after_s=0.4, plain=plain)
        work = Work(bench, "x", client=slow, lease=Fixed(30, every=29.8))
        bench.server.faults.script(RENEW, faults.late_answer(seconds=0.4))

        async def scenario(running: Running, events: Counter[str]) -> None:
            await bench.elapse(30.5)
            assert bench.server.faults.left == []
            (ctx,) = work.contexts
            await until(lambda: events["suspect"] == plain)
            assert ctx.lease.state is (LeaseState.SUSPECT if plain else LeaseState.HELD)
            work.end.set()
            await bench.settled(running)

        work.play(scenario)
    assert work.is_done()


@pytest.mark.parametrize("fault", [faults.REQUEST_LOST, faults.ANSWER_LOST], ids=repr)
@pytest.mark.parametrize(("lasts_s", "doubts"), [(15, 0), (60, 1)], ids=["half the timeout", "twice the timeout"])
def test_black_holes_cost_tries_and_not_what_is_left(
    bench: TimedBench, fault: Fault, lasts_s: float, doubts: int
) -> None:
    """Half the timeout is survived without a doubt; twice is noticed at its end, and ends well where nobody came."""
    with HttpQueueClient(bench.server.endpoint) as client:
        work = Work(bench, "x", client=SlowClient(bench, client))

        async def scenario(running: Running, events: Counter[str]) -> None:
            await bench.elapse(10)
            bench.server.faults.script(RENEW, fault, times=None)
            until_s = bench.clock.now_s() + lasts_s
            while bench.clock.now_s() < until_s:
                await bench.elapse(0.5)
            bench.server.faults.clear()
            await bench.elapse(30)
            assert running.renewals.results["again"] > 0
            assert (events["suspect"], events["lost"]) == (doubts, 0)
            assert work.contexts[0].lease.state is LeaseState.HELD
            await bench.guard(QUEUE, 60)
            work.end.set()
            await bench.settled(running)

        work.play(scenario)
    assert work.is_done()


def test_a_delete_that_did_not_happen_is_made_good_without_handling_the_message_again(bench: TimedBench) -> None:
    """It was answered 200; the message returns with its timeout, is recognised by its id, and deleted."""
    work = Work(bench, "x")
    bench.server.faults.script("DeleteMessageBatch", faults.IGNORED)

    async def scenario(running: Running, events: Counter[str]) -> None:
        work.end.set()
        await bench.settled(running)
        assert bench.counts(QUEUE) == (0, 1)
        await bench.elapse(30)
        await bench.settled(running)
        assert events["recognised"] == 1

    work.play(scenario)
    assert work.is_done()


class Signed:
    """A server that checks signatures, and a client whose clock is ``off_s`` wrong."""

    def __init__(self, bench: TimedBench) -> None:
        """Be right at first."""
        self.off_s = 0.0
        self.bench = bench
        self.client = HttpQueueClient(bench.server.endpoint, key=KEY, wall_s=lambda: wall_s() + self.off_s)


@pytest.fixture
def signed(tmp_path: Path) -> Iterator[Signed]:
    """Give a bench whose requests are signed."""
    with timed_bench(KEY, credentials=written(tmp_path / "keys.toml"), region=REGION, account="111111111111") as made:
        yield Signed(made)


def test_a_wall_clock_that_steps_changes_nothing(signed: Signed) -> None:
    """An hour forth and two back, with signatures on: the same calls at the same instants as if it had not."""
    work = Work(signed.bench, "x", client=signed.client)

    async def scenario(running: Running, events: Counter[str]) -> None:
        for off_s in (0.0, 3_600.0, -3_600.0, 0.0):
            signed.off_s = off_s
            await signed.bench.guard(QUEUE, 60)
        assert running.renewals.results == {**running.renewals.results, "again": 0, "gone": 0}
        assert running.renewals.calls == 240 / 20
        assert (events["suspect"], events["lost"]) == (0, 0)
        work.end.set()
        await signed.bench.settled(running)

    work.play(scenario)
    assert work.is_done()


@pytest.mark.parametrize("off_s", [-600.0, 600.0], ids=["behind", "ahead"])
@pytest.mark.parametrize("tolerance_s", [300, 900], ids=["as Amazon", "as veilmq"])
def test_a_clock_that_is_ten_minutes_off_hinders_no_signed_consumer(
    signed: Signed, monkeypatch: pytest.MonkeyPatch, off_s: float, tolerance_s: int
) -> None:
    """Whether the server allows for that much or not."""
    monkeypatch.setattr(signatures, "SIGNATURE_SKEW_S", tolerance_s)
    signed.off_s = off_s
    work = Work(signed.bench, "x", client=signed.client)

    async def scenario(running: Running, events: Counter[str]) -> None:
        await signed.bench.guard(QUEUE, 60)
        assert running.renewals.results["again"] == 0
        work.end.set()
        await signed.bench.settled(running)

    work.play(scenario)
    assert work.is_done()


def test_an_event_loop_that_is_blocked_costs_no_lease(bench: TimedBench) -> None:
    """For five seconds, with a lease of three: the renewer has a thread of its own."""
    app = bench.consumer(QUEUE, visibility_timeout_s=3)
    blocked, go_on = threading.Event(), threading.Event()
    handled: list[str] = []

    @app.handler(wait=WAIT, lease=Fixed(3, every=1), concurrency=1, prefetch=0)
    async def work(body: str) -> None:
        handled.append(body)
        blocked.set()
        assert go_on.wait(60)

    def outside(running: Running) -> None:
        assert blocked.wait(60)
        for _ in range(10):
            bench.clock.advance(0.5)
            assert bench.rivals(QUEUE) == []
        assert running.renewals.calls == 5
        go_on.set()

    async def scenario() -> None:
        bench.client.send(QUEUE, "x")
        async with bench.working(app) as running:
            await asyncio.to_thread(outside, running)
            await bench.settled(running)
            events = running.runners[0].counts.events
            assert (events["acked"], events["suspect"], events["lost"]) == (1, 0, 0)

    asyncio.run(scenario())
    assert handled == ["x"]
