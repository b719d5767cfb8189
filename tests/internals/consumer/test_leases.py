"""Leases on a random network, on the real server, and with its faults."""

import asyncio
import math
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.consumer.simulation import BUSY, GONE, Play, TimedBench, TimedConsumer, message, timed_bench
from tests.consumer.workbench import WAIT, until
from tests.server.keys import REGION, SECRETS, written
from veilmq.client import HttpQueueClient, NewMessage, SigningKey
from veilmq.client.messages import ClientError, Hidden, Unreachable
from veilmq.consumer import Context, LeaseLost, Running
from veilmq.consumer.leases import Lease, LeaseState, LeaseTable, Renewer, Subscription
from veilmq.consumer.renewal_policies import Adaptive, Fixed, NServiceBusPolicy, RenewalPolicy
from veilmq.core.commands import VisibilityChange
from veilmq.store.clock import wall_s
from veilmq.testing import RunningServer, SteppedClock, faults
from veilmq.testing.faults import Fault
from veilmq.wire.sqs import signatures

# Real seconds; the timeout of calls is in virtual seconds.
LOST_REPLY_S = 0.05
REPLY_S_MAX = 60


@dataclass
class SlowClient:
    """The real client of a bench; calls with a timeout move its clock by their duration or timeout.

    ``late_s`` is the delay of a scripted ``late_answer``; with ``plain`` replies contain no more than Amazon SQS's.
    """

    bench: TimedBench
    client: HttpQueueClient
    late_s: float = 0.0
    plain: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def change_visibility_batch(
        self, queue: str, changes: Sequence[VisibilityChange], *, call_timeout_s: float | None = None
    ) -> Sequence[ClientError | Hidden | None]:
        if call_timeout_s is None:
            return self.client.change_visibility_batch(queue, changes)
        replies = self._late(queue, changes) if self.late_s else self._maybe_lost(queue, changes, call_timeout_s)
        return [None if self.plain and isinstance(reply, Hidden) else reply for reply in replies]

    def _maybe_lost(
        self, queue: str, changes: Sequence[VisibilityChange], call_timeout_s: float
    ) -> Sequence[ClientError | Hidden | None]:
        real_timeout_s = LOST_REPLY_S if self.bench.server.faults.left else REPLY_S_MAX
        try:
            return self.client.change_visibility_batch(queue, changes, call_timeout_s=real_timeout_s)
        except Unreachable:
            self._pass(call_timeout_s)
            raise

    def _late(self, queue: str, changes: Sequence[VisibilityChange]) -> Sequence[ClientError | Hidden | None]:
        server = self.bench.server
        before = len(server.faults.happened)
        with ThreadPoolExecutor(1) as calls:
            reply = calls.submit(self.client.change_visibility_batch, queue, changes)
            server.wait_until(lambda: len(server.faults.happened) > before)
            self._pass(self.late_s)
            self.late_s = 0.0
            return reply.result()

    def _pass(self, seconds: float) -> None:
        self.bench.clock.set(self.bench.clock.now_s() + seconds)


POLICIES: list[RenewalPolicy] = [
    NServiceBusPolicy(max_auto_message_visibility_renewal_duration=43_200),
    Fixed(30, 20),
    Fixed(43_200, 20),
    Adaptive(),
]
PAUSES_S = st.sampled_from([0.0, 0.1, 1.0, 9.9, 10.0, 19.9, 20.0, 29.9, 30.0, 31.0, 300.0])
LATENCIES_S = st.sampled_from([0.0, 0.01, 0.5, 3.0, 30.0])


@dataclass(frozen=True, slots=True)
class Trip:
    """The network's effect on a call: latencies of request and reply, either of which may be lost."""

    request_s: float = 0.0
    reply_s: float = 0.0
    request_lost: bool = False
    reply_lost: bool = False
    refused: bool = False


TRIPS = st.builds(
    Trip,
    request_s=LATENCIES_S,
    reply_s=LATENCIES_S,
    request_lost=st.booleans(),
    reply_lost=st.booleans(),
    refused=st.booleans(),
)


class ModelQueue:
    """A model of a queue: it records until when each receipt is hidden, and checks all requests."""

    def __init__(self, clock: SteppedClock, trips: list[Trip]) -> None:
        self.hidden_until_s: dict[str, float] = {}
        self.received_at_s: dict[str, float] = {}
        self.settled: set[str] = set()
        self._clock = clock
        self._trips = trips

    def change_visibility_batch(
        self, queue: str, changes: Sequence[VisibilityChange], *, call_timeout_s: float | None = None
    ) -> list[ClientError | None]:
        assert call_timeout_s is not None
        assert 1 <= len(changes) <= 10
        sent_at_s = self._clock.now_s()
        for change in changes:
            assert change.receipt not in self.settled
            assert 1 <= change.timeout_s <= 43_200
            assert sent_at_s - self.received_at_s[change.receipt] + change.timeout_s <= 43_200
        trip = self._trips.pop(0) if self._trips else Trip()
        arrives_s = sent_at_s + trip.request_s
        if trip.refused:
            raise BUSY
        errors = [None if trip.request_lost else self._hide(change, arrives_s) for change in changes]
        took_s = trip.request_s + trip.reply_s
        if trip.request_lost or trip.reply_lost or took_s > call_timeout_s:
            self._clock.set(sent_at_s + call_timeout_s)
            raise Unreachable("http://queue", "no answer in time")
        self._clock.set(sent_at_s + took_s)
        return errors

    def _hide(self, change: VisibilityChange, at_s: float) -> ClientError | None:
        if at_s >= self.hidden_until_s[change.receipt]:
            return GONE
        self.hidden_until_s[change.receipt] = max(
            self._clock.now_s(), min(at_s + change.timeout_s, self.received_at_s[change.receipt] + 43_200)
        )
        return None


def check(lease: Lease, table: LeaseTable, queue: ModelQueue, now_s: float) -> None:
    """Assert that a message which another consumer could have is not held, and cannot be released."""
    if now_s >= queue.hidden_until_s[lease.message.receipt]:
        assert lease.state_at(now_s) is not LeaseState.HELD
        assert not lease.may_release


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    fifo=st.booleans(),
    jitter=st.sampled_from([0.0, 0.5, 0.999]),
    trips=st.lists(TRIPS, max_size=12),
    steps=st.lists(
        st.tuples(st.sampled_from(["take", "settle", "withdraw", "confirm", "stall", "wait"]), PAUSES_S), max_size=20
    ),
)
def test_a_message_that_another_consumer_could_have_is_never_held(
    policy: RenewalPolicy, fifo: bool, jitter: float, trips: list[Trip], steps: list[tuple[str, float]]
) -> None:
    clock = SteppedClock()
    queue = ModelQueue(clock, trips)
    table = LeaseTable(clock, draw=lambda: jitter)
    renewer = Renewer(table, queue.change_visibility_batch, calls_max=1)
    subscription = Subscription(table, "orders", policy, fifo=fifo)
    leases: list[Lease] = []
    for step, pause_s in steps:
        now_s = clock.now_s()
        if step.startswith("take"):
            requested_at_s = now_s - 42_900 * (step == "take old")
            leases.append(_take(table, queue, str(len(leases)), requested_at_s, subscription))
        elif leases and step == "settle":
            table.settle(leases[-1])
            queue.settled.add(leases[-1].message.receipt)
        elif leases and step == "withdraw":
            assert table.withdraw(leases[0]).done()
            queue.settled.add(leases[0].message.receipt)
        elif leases and step == "confirm":
            table.confirm(leases[0])
        elif step == "stall":
            clock.set(now_s + pause_s)
        _advance(clock, table, renewer, clock.now_s() + pause_s, leases, queue)


def _take(
    table: LeaseTable, queue: ModelQueue, receipt: str, requested_at_s: float, subscription: Subscription
) -> Lease:
    now_s = table.clock.now_s()
    queue.hidden_until_s[receipt] = now_s + 30
    queue.received_at_s[receipt] = requested_at_s
    (lease,) = table.take(
        subscription, [message(receipt)], requested_at_s=requested_at_s, answered_at_s=now_s, timeout_s=30
    )
    table.start(lease)
    return lease


def _advance(
    clock: SteppedClock, table: LeaseTable, renewer: Renewer, until_s: float, leases: list[Lease], queue: ModelQueue
) -> None:
    """Run the renewer until ``until_s``, and check all leases before and after each run."""
    while (due_s := table.next_due_s()) is not None and due_s <= until_s:
        clock.set(max(due_s, clock.now_s()))
        for lease in leases:
            check(lease, table, queue, clock.now_s())
        renewer.run_due()
        for lease in leases:
            check(lease, table, queue, clock.now_s())
    clock.set(max(until_s, clock.now_s()))
    for lease in leases:
        check(lease, table, queue, clock.now_s())


@pytest.mark.slow
@settings(deadline=None)
@given(
    lease_s=st.integers(min_value=20, max_value=600),
    share=st.sampled_from([0.1, 0.5, 2 / 3, 0.9]),
    hold_s=st.floats(min_value=0, max_value=2_000),
)
def test_a_lease_is_renewed_no_more_often_than_needed(lease_s: int, share: float, hold_s: float) -> None:
    """With ``Fixed`` once in each interval, with ``Adaptive`` once in each lease less its widest guard."""
    play = Play(Fixed(lease_s, lease_s * share))
    play.take(timeout_s=lease_s)
    play.until(hold_s)
    assert len(play.queue.calls) <= math.ceil(hold_s / (lease_s * share)) + 1
    play = Play(Adaptive(), jitter=0.999)
    play.take(timeout_s=30)
    play.until(hold_s)
    assert len(play.queue.calls) <= math.ceil(hold_s / (30 * (1 - 1.25 / 3))) + 1


@pytest.mark.slow
@given(lateness_ms=st.integers(min_value=0, max_value=9_000), origin_s=st.floats(min_value=0, max_value=1e7))
def test_renewals_do_not_depend_on_the_origin_of_the_clock(lateness_ms: int, origin_s: float) -> None:
    """The end is between two milliseconds, so that rounding errors do not decide about the last renewal."""
    timelines = []
    for begin_s in (0.0, origin_s):
        play = Play(NServiceBusPolicy())
        play.clock.set(begin_s)
        play.take(timeout_s=30)
        play.until(begin_s + 200.0005, late_s=lateness_ms / 1_000)
        timelines.append(play.queue.renewals)
    assert [for_s for _, for_s in timelines[0]] == [for_s for _, for_s in timelines[1]]
    elapsed = [at_s - origin_s for at_s, _ in timelines[1]]
    assert elapsed == pytest.approx([at_s for at_s, _ in timelines[0]], abs=1e-4)


@pytest.fixture(params=["memory", "postgres"])
def server(request: pytest.FixtureRequest, store_settings: Callable[[str], dict[str, Any]]) -> Iterator[RunningServer]:
    with RunningServer(**store_settings(request.param)) as running, HttpQueueClient(running.endpoint) as client:
        client.create_queue("orders", {"visibility_timeout_s": 30})
        client.create_queue("orders.fifo", {"visibility_timeout_s": 30, "fifo": True, "content_deduplication": True})
        yield running


class Served(Play):
    """A play with a real server; ``receive`` sends a message and leases it."""

    def __init__(
        self, policy: RenewalPolicy, server: RunningServer, client: HttpQueueClient, *, queue: str = "orders"
    ) -> None:
        super().__init__(policy, fifo=queue.endswith(".fifo"))
        self.renewer = Renewer(self.table, client.change_visibility_batch, calls_max=1)
        self._server, self._client, self._name = server, client, queue
        self.subscription = Subscription(self.table, queue, policy, fifo=queue.endswith(".fifo"), watcher=self)

    def receive(self, body: str = "hello") -> Lease:
        self._client.send(self._name, body, group="a" if self._name.endswith(".fifo") else None)
        now_s = self.clock.now_s()
        messages = self._client.receive(self._name, timeout_s=30)
        (lease,) = self.table.take(self.subscription, messages, requested_at_s=now_s, answered_at_s=now_s, timeout_s=30)
        self.table.start(lease)
        return lease

    def stall(self, until_s: float) -> None:
        """Advance to ``until_s`` without renewals."""
        self._server.advance(round((until_s - self.clock.now_s()) * 1_000))
        self.clock.set(until_s)


def test_a_renewal_two_seconds_late_succeeds_without_a_competitor(
    server: RunningServer, client: HttpQueueClient
) -> None:
    """The message is hidden again for 32 s."""
    play = Served(NServiceBusPolicy(), server, client)
    lease = play.receive()
    play.stall(32)
    play.renewer.run_due()
    assert play.news == [(32, lease.message.receipt, LeaseState.SUSPECT)]
    assert lease.state is LeaseState.HELD, "the server reports that there was no other receive"
    play.stall(32 + 31.9)
    assert client.receive("orders") == []
    client.delete("orders", lease.message.receipt)
    play.table.settle(lease)
    play.stall(100)
    assert client.receive("orders") == []


def test_a_renewal_two_seconds_late_with_a_competitor_loses_the_lease(
    server: RunningServer, client: HttpQueueClient
) -> None:
    """The competitor's lease is not affected."""
    play = Served(NServiceBusPolicy(), server, client)
    lease = play.receive()
    play.stall(31)
    (competitor,) = client.receive("orders", timeout_s=5)
    play.stall(32)
    play.renewer.run_due()
    assert play.news[-1:] == [(32, lease.message.receipt, LeaseState.LOST)]
    play.stall(36)
    assert client.receive("orders")[0].id == competitor.id


def test_an_expired_fifo_lease_is_lost_and_its_group_continues(server: RunningServer, client: HttpQueueClient) -> None:
    for policy in (Fixed(30, 20), NServiceBusPolicy()):
        play = Served(policy, server, client, queue="orders.fifo")
        lease = play.receive(type(policy).__name__)
        play.stall(31)
        play.renewer.run_due()
        assert lease.state is LeaseState.LOST
        (again,) = client.receive("orders.fifo")
        client.delete("orders.fifo", again.receipt)


QUEUE = "work"
RENEW = "ChangeMessageVisibilityBatch"
BEAT = Fixed(30, every=20)
KEY = SigningKey(id="AKIDOWNER", secret=SECRETS["AKIDOWNER"], region=REGION)


@pytest.fixture
def bench() -> Iterator[TimedBench]:
    with timed_bench() as bench:
        yield bench


class Work:
    """A handler that waits for ``end``, with records of its calls."""

    def __init__(self, bench: TimedBench, *bodies: str, client: Any = None, lease: Any = BEAT) -> None:
        self.bench = bench
        self.queue = bench.queue(QUEUE, visibility_timeout_s=30)
        self.handled: Counter[str] = Counter()
        self.cancelled: list[str] = []
        self.end = asyncio.Event()
        self.app = TimedConsumer(QUEUE, endpoint=bench.server.endpoint, client=client, grace="1s", clock=bench.clock)
        self.app.handler(wait=WAIT, concurrency=len(bodies), prefetch=0, lease=lease)(self.work)
        self.contexts: list[Context] = []
        bench.client.send_batch(QUEUE, [NewMessage(body=body) for body in bodies])

    async def work(self, body: str, ctx: Context) -> None:
        self.handled[body] += 1
        self.contexts.append(ctx)
        try:
            await self.end.wait()
        except asyncio.CancelledError:
            self.cancelled.append(body)
            raise

    @asynccontextmanager
    async def playing(self) -> AsyncIterator[tuple[Running, Counter[str]]]:
        async with self.bench.working(self.app) as running:
            (runner,) = running.runners
            await until(lambda: runner.working == runner.handler.options.concurrency)
            yield running, runner.counts.events

    @asynccontextmanager
    async def finishing(self) -> AsyncIterator[tuple[Running, Counter[str]]]:
        """Run the handler, then let it end; assert that each message was handled once and deleted."""
        async with self.playing() as (running, events):
            yield running, events
            self.end.set()
            await self.bench.settled(running)
        assert set(self.handled.values()) == {1}
        assert self.bench.counts(QUEUE) == (0, 0)
        assert not self.cancelled


@pytest.mark.slow
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
async def test_a_failed_renewal_is_retried_before_the_lease_is_suspect(bench: TimedBench, fault: Fault) -> None:
    work = Work(bench, "x")
    bench.server.faults.script(RENEW, fault)
    async with work.finishing() as (running, events):
        await bench.guard(QUEUE, 100)
        assert running.renewals.results["again"] == 1
        assert (events["suspect"], events["lost"]) == (0, 0)


@pytest.mark.slow
async def test_only_the_failed_entries_of_a_batch_are_retried(bench: TimedBench) -> None:
    work = Work(bench, *"abcde")
    bench.server.faults.script(RENEW, faults.failed_entries(1, 3))
    async with work.finishing() as (running, events):
        await bench.elapse(21)
        assert (running.renewals.calls, running.renewals.results.total()) == (2, 7), "five, then the two"
        bench.server.faults.script("DeleteMessageBatch", faults.failed_entries(0, 2))
        await bench.guard(QUEUE, 60)
        work.end.set()
        await bench.settled(running)
        assert events["acked"] == 5
    assert bench.server.faults.left == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", [faults.THROTTLED, faults.THROTTLED_403], ids=repr)
async def test_throttled_requests_of_each_kind_are_retried(bench: TimedBench, fault: Fault) -> None:
    work = Work(bench, "x")
    for action in ("ReceiveMessage", RENEW, "DeleteMessageBatch", "DeleteMessage"):
        bench.server.faults.script(action, fault)
    async with work.finishing() as (running, events):
        await bench.guard(QUEUE, 60)
        work.end.set()
        await bench.settled(running)
        assert (events["acked"], events["suspect"], events["lost"]) == (1, 0, 0)
    assert bench.server.faults.left == []


@pytest.mark.slow
async def test_a_suspect_lease_is_held_again_once_the_server_confirms_it(bench: TimedBench) -> None:
    """The handler is not cancelled."""
    work = Work(bench, "x")
    bench.server.faults.script(RENEW, faults.UNAVAILABLE, times=None)
    async with work.finishing() as (_, events):
        await bench.elapse(29.9)
        assert events["suspect"] == 0
        await bench.elapse(0.1)
        await until(lambda: events["suspect"] == 1)
        (ctx,) = work.contexts
        states = [ctx.lease.state]
        with pytest.raises(LeaseLost):
            async with ctx.fence():
                pytest.fail("the fence must fail")
        bench.server.faults.clear()
        await bench.elapse(25)  # the longest pause between tries for a suspect lease is 22.5 s
        assert [*states, ctx.lease.state] == [LeaseState.SUSPECT, LeaseState.HELD]
        await bench.guard(QUEUE, 60)


@pytest.mark.slow
async def test_a_message_that_another_consumer_received_is_lost_and_left_alone(bench: TimedBench) -> None:
    """The first reply cancels the handler; nothing is released, deleted or renewed."""
    work = Work(bench, "x")
    bench.server.faults.script(RENEW, faults.UNAVAILABLE, times=None)
    async with work.playing() as (running, events):
        await bench.elapse(31)
        assert len(bench.client.receive(QUEUE, timeout_s=600)) == 1
        bench.server.faults.clear()
        for action in ("ChangeMessageVisibility", "DeleteMessage", "DeleteMessageBatch"):
            bench.server.faults.script(action, faults.FAILED)
        await bench.elapse(25)  # the longest pause between tries for a suspect lease is 22.5 s
        await until(lambda: events["left"] == 1)
        calls = running.renewals.calls
        await bench.elapse(60)
        assert (events["suspect"], events["lost"], running.renewals.calls) == (1, 1, calls)
        assert len(bench.server.faults.left) == 3, "there was no such request"
        assert bench.left_s(work.queue.in_flight) == [600 - 25 - 60]
    assert (work.handled, work.cancelled) == ({"x": 1}, ["x"])


@pytest.mark.slow
@pytest.mark.parametrize("plain", [False, True], ids=["veilmq", "amazon"])
async def test_a_late_reply_is_proof_only_from_veilmq(bench: TimedBench, plain: bool) -> None:
    """Amazon may reply 200 to a dead receipt; veilmq's reply confirms that there was no other receive."""
    with HttpQueueClient(bench.server.endpoint) as client:
        slow = SlowClient(bench, client, late_s=0.4, plain=plain)
        work = Work(bench, "x", client=slow, lease=Fixed(30, every=29.8))
        bench.server.faults.script(RENEW, faults.late_answer(seconds=0.4))
        async with work.finishing() as (_, events):
            await bench.elapse(30.5)
            assert bench.server.faults.left == []
            (ctx,) = work.contexts
            await until(lambda: events["suspect"] == plain)
            assert ctx.lease.state is (LeaseState.SUSPECT if plain else LeaseState.HELD)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [faults.REQUEST_LOST, faults.ANSWER_LOST], ids=repr)
@pytest.mark.parametrize(("lasts_s", "doubts"), [(15, 0), (60, 1)], ids=["half the timeout", "twice the timeout"])
async def test_lost_requests_and_replies_do_not_lose_the_lease(
    bench: TimedBench, fault: Fault, lasts_s: float, doubts: int
) -> None:
    """After half the timeout the lease is still held; after twice the timeout it is suspect, then held again."""
    with HttpQueueClient(bench.server.endpoint) as client:
        work = Work(bench, "x", client=SlowClient(bench, client))
        async with work.finishing() as (running, events):
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


@pytest.mark.slow
async def test_a_handled_message_whose_delete_had_no_effect_is_deleted_without_a_second_call(
    bench: TimedBench,
) -> None:
    work = Work(bench, "x")
    bench.server.faults.script("DeleteMessageBatch", faults.IGNORED)
    async with work.finishing() as (running, events):
        work.end.set()
        await bench.settled(running)
        assert bench.counts(QUEUE) == (0, 1)
        await bench.elapse(30)
        await bench.settled(running)
        assert events["recognised"] == 1


class Signed:
    """A server that checks signatures, and a client whose clock is off by ``off_s``."""

    def __init__(self, bench: TimedBench) -> None:
        self.off_s = 0.0
        self.bench = bench
        self.client = HttpQueueClient(bench.server.endpoint, key=KEY, wall_s=lambda: wall_s() + self.off_s)


@pytest.fixture
def signed(tmp_path: Path) -> Iterator[Signed]:
    with timed_bench(KEY, credentials=written(tmp_path / "keys.toml"), region=REGION, account="111111111111") as bench:
        yield Signed(bench)


@pytest.mark.slow
async def test_steps_of_the_wall_clock_do_not_affect_renewals(signed: Signed) -> None:
    work = Work(signed.bench, "x", client=signed.client)
    async with work.finishing() as (running, events):
        for off_s in (0.0, 3_600.0, -3_600.0, 0.0):
            signed.off_s = off_s
            await signed.bench.guard(QUEUE, 60)
        assert running.renewals.results == {**running.renewals.results, "again": 0, "gone": 0}
        assert running.renewals.calls == 240 / 20
        assert (events["suspect"], events["lost"]) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("off_s", [-600.0, 600.0], ids=["behind", "ahead"])
@pytest.mark.parametrize("tolerance_s", [300, 900], ids=["as Amazon", "as veilmq"])
async def test_a_wall_clock_that_is_off_by_ten_minutes_does_not_affect_signed_renewals(
    signed: Signed, monkeypatch: pytest.MonkeyPatch, off_s: float, tolerance_s: int
) -> None:
    """The client corrects its clock if the server does not tolerate the difference."""
    monkeypatch.setattr(signatures, "SIGNATURE_SKEW_S", tolerance_s)
    signed.off_s = off_s
    work = Work(signed.bench, "x", client=signed.client)
    async with work.finishing() as (running, _):
        await signed.bench.guard(QUEUE, 60)
        assert running.renewals.results["again"] == 0


@pytest.mark.slow
async def test_a_blocked_event_loop_does_not_lose_leases(bench: TimedBench) -> None:
    """It is blocked for five seconds, with a lease of three: the renewer has its own thread."""
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
            assert bench.receive_bodies(QUEUE) == []
        assert running.renewals.calls == 5
        go_on.set()

    bench.client.send(QUEUE, "x")
    async with bench.working(app) as running:
        await asyncio.to_thread(outside, running)
        await bench.settled(running)
        events = running.runners[0].counts.events
        assert (events["acked"], events["suspect"], events["lost"]) == (1, 0, 0)
    assert handled == ["x"]
