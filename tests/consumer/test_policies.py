"""The heartbeat, the adaptive policy, and what all policies may ask for."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest

from tests.consumer import acting
from tests.consumer.simulation import Answer, Play
from veilmq.client import HttpQueueClient
from veilmq.consumer import (
    Adaptive,
    Backoff,
    Batch,
    ByMessageId,
    Cancelled,
    Consumer,
    Context,
    Drop,
    Fixed,
    InMemory,
    LeaseLost,
    LeaseState,
    NServiceBusPolicy,
    Reject,
    RetryLater,
)
from veilmq.consumer.renewal_policies import Measured, allowed_s
from veilmq.testing import ConsumerBench, RunningServer, SystemClock, VirtualClock, faults

QUICK = Measured(hold_s=1.2, renewal_s=0.05, renewals=100, lateness_s=0.02)


def measured(hold_s: float, renewal_s: float = 0.05, lateness_s: float = 0.02) -> Measured:
    return Measured(hold_s=hold_s, renewal_s=renewal_s, renewals=100, lateness_s=lateness_s)


class TestFixed:
    """Leases of one length, renewed at one interval."""

    def test_two_minutes_every_minute(self) -> None:
        """Changes at 60, 120 and 180 s, ends at 180, 240 and 300 s; a crash at 130 s leaves it hidden until 240 s."""
        play = Play(Fixed(timedelta(minutes=2), every=timedelta(minutes=1)))
        (lease,) = play.take(timeout_s=120)
        ends = []
        for at_s in (60, 120, 180):
            play.until(at_s)
            ends.append(lease.expires_at_s)
        assert play.queue.renewals == [(60, 120), (120, 120), (180, 120)]
        assert ends == [180, 240, 300]
        play = Play(Fixed(120, 60))
        (lease,) = play.take(timeout_s=120)
        play.until(130)
        assert lease.expires_at_s == 240

    def test_its_first_deadline_is_that_of_an_adaptive_lease(self) -> None:
        """The answer may have been on its way for as long as a short call takes, which was measured."""
        for seen in (QUICK, measured(1.2, renewal_s=3.0), measured(1.2, renewal_s=100.0), Measured()):
            first_s = Fixed(60).first_expiry_s(answered_at_s=1_000.0, timeout_s=60, measured=seen)
            assert first_s == Adaptive().first_expiry_s(answered_at_s=1_000.0, timeout_s=60, measured=seen)
        assert Fixed(60).first_expiry_s(answered_at_s=1_000.0, timeout_s=60, measured=measured(1, renewal_s=3)) == 1_057

    def test_its_length_is_sent_with_every_receive(self) -> None:
        """Half of it is the interval unless one is given."""
        assert Fixed(120).receive_timeout_s(QUICK) == 120
        assert Fixed(120).every_s == 60

    @pytest.mark.parametrize(
        ("lease", "every"),
        [(0, None), (43_201, None), (1.5, None), (30, 30), (30, 0), (30, -1)],
        ids=["zero", "too-long", "fraction", "no-gap", "no-interval", "negative"],
    )
    def test_what_keeps_no_lease_is_refused(self, lease: float, every: float | None) -> None:
        with pytest.raises(ValueError, match=r"lease is whole seconds|cannot be kept|is negative"):
            Fixed(lease, every)


class TestAdaptive:
    """The length follows the work, the guard follows the network."""

    @pytest.mark.parametrize(
        ("seen", "guard_s", "length_s"),
        [
            pytest.param(measured(1.2), 2, 30, id="short"),
            pytest.param(measured(1.2, renewal_s=60), 100, 300, id="slow-network"),
            pytest.param(measured(45), 2, 59, id="some-work"),
            pytest.param(measured(200), 2, 252, id="long"),
            pytest.param(measured(1_000), 2, 300, id="longer-than-the-longest"),
            pytest.param(measured(1.2, lateness_s=5), 21.2, 128, id="stalls"),
        ],
    )
    def test_guard_and_length(self, seen: Measured, guard_s: float, length_s: int) -> None:
        policy = Adaptive()
        assert policy.guard_s(seen) == pytest.approx(guard_s)
        assert policy.length_s(seen) == length_s

    def test_a_second_is_supposed_until_a_hundred_renewals_were_seen(self) -> None:
        """Few samples prove no speed, but they prove slowness."""
        assert Adaptive().guard_s(Measured()) == 5
        assert Adaptive().guard_s(Measured(renewal_s=0.01, renewals=99)) == 5
        assert Adaptive().guard_s(Measured(renewal_s=3.0, renewals=1)) == 13

    def test_the_queues_own_timeout_applies_until_something_was_held(self) -> None:
        """Then the length that fits is sent with each receive."""
        assert Adaptive().receive_timeout_s(Measured()) is None
        assert Adaptive().receive_timeout_s(measured(45)) == 59

    def test_work_that_has_lasted_long_is_held_for_as_long_again(self) -> None:
        """Up to the longest lease, whatever most messages need."""
        assert [Adaptive().length_s(QUICK, age_s=age_s) for age_s in (0, 20, 100, 5_000)] == [30, 30, 100, 300]

    def test_a_third_of_the_lease_is_guard(self) -> None:
        """And up to a quarter of that more, so that leases which were taken together come apart."""
        for jitter, first_s in [(0.0, 20.0), (1.0, 17.5)]:
            play = Play(Adaptive(), jitter=jitter)
            play.take(timeout_s=30)
            assert play.table.next_due_s() == pytest.approx(first_s)

    @pytest.mark.parametrize("timeout_s", [1, 2, 5])
    def test_a_short_timeout_is_renewed_at_its_half_at_the_latest(self, timeout_s: int) -> None:
        """The guard never swallows the whole lease; the second lease is a proper one."""
        play = Play(Adaptive())
        play.take(timeout_s=timeout_s)
        play.until(100)
        ((at_s, for_s),) = play.queue.renewals[:1]
        assert timeout_s / 2 - 0.01 <= at_s <= timeout_s * 2 / 3
        assert for_s == 30
        assert play.news == []

    def test_a_slow_network_widens_the_guard_and_calls_are_given_time(self) -> None:
        """Leases live on although each renewal takes 4 s, the first one too."""
        play = Play(Adaptive(), usual_s=4.0)
        (lease,) = play.take(timeout_s=30)
        play.until(1_000)
        assert play.news == []
        assert lease.state is LeaseState.HELD
        assert lease.measured.renewal_s == pytest.approx(4, rel=0.06)

    def test_a_renewer_that_stalls_is_seen_in_the_guard(self) -> None:
        play = Play(Adaptive())
        (lease,) = play.take(timeout_s=30)
        play.until(500, late_s=3.0)
        assert lease.measured.lateness_s == pytest.approx(3, rel=0.06)
        assert Adaptive().guard_s(lease.measured) > 13

    def test_the_length_of_running_work_is_seen(self) -> None:
        """Nothing has ended yet, and messages that come now are held for longer than those that came first."""
        play = Play(Adaptive())
        play.take(timeout_s=30)
        play.until(150)
        assert play.table.receive_timeout_s(play.subscription) == pytest.approx(150 * 1.25 + 5, rel=0.06)

    def test_what_was_held_is_remembered_over_idle_hours(self) -> None:
        """The windows are empty then, and the latest value stands."""
        play = Play(Adaptive())
        (lease,) = play.take(timeout_s=300)
        play.until(100)
        play.table.receive_timeout_s(play.subscription)
        play.table.settle(lease)
        play.until(110)
        known = play.table.receive_timeout_s(play.subscription)
        play.until(20_000)
        assert play.table.receive_timeout_s(play.subscription) == known

    @pytest.mark.parametrize(
        "options",
        [{"shortest_s": 0}, {"shortest_s": 60, "longest_s": 30}, {"guard_share": 0.6}, {"guard_s_min": 0}],
        ids=["no-lease", "crossed", "all-guard", "no-guard"],
    )
    def test_bounds_that_contradict_each_other_are_refused(self, options: dict[str, float]) -> None:
        with pytest.raises(ValueError, match="adaptive lease needs"):
            Adaptive(**options)  # type: ignore[arg-type]

    def test_an_outage_of_seconds_is_survived_by_the_shortest_lease(self) -> None:
        """Eight seconds of silence from just before the first renewal on."""
        play = Play(Adaptive(), jitter=0.5)
        play.take(timeout_s=30)
        play.queue.script = [Answer(takes_s=100)] * 2
        play.until(60)
        assert play.news == []


@pytest.mark.parametrize(
    ("wanted_s", "elapsed_s", "allowed"),
    [(30, 0, 30), (300, 43_000, 198), (30, 43_197.5, 0), (30, 50_000, -6_802), (43_200, 0, 43_198)],
    ids=["plain", "clamped", "nothing", "past", "whole"],
)
def test_nothing_beyond_the_twelve_hours_is_asked_for(wanted_s: int, elapsed_s: float, allowed: int) -> None:
    """Two seconds stay free; below one there is nothing to ask for."""
    assert allowed_s(wanted_s, elapsed_s=elapsed_s) == allowed


# How long a message that failed stays hidden.


def test_without_jitter_it_doubles_up_to_the_cap() -> None:
    backoff = Backoff("1s", cap="10s", jitter="none")
    assert [backoff.after_s(attempt) for attempt in (1, 2, 3, 4, 5, 1_000_000)] == [1, 2, 4, 8, 10, 10]


def test_full_jitter_draws_from_nothing_to_the_ceiling() -> None:
    """In whole seconds, rounded up, as the queue takes them."""
    draws = iter([0.0, 0.5, 0.99])
    backoff = Backoff("10s", draw=lambda: next(draws))
    assert [backoff.after_s(1) for _ in range(3)] == [0, 5, 10]


def test_it_never_asks_for_more_than_a_queue_allows() -> None:
    assert Backoff("12h", cap="30d", jitter="none").after_s(9) == 43_200


def test_attempts_are_counted_from_one() -> None:
    backoff = Backoff(attempts=3)
    assert [backoff.exhausted(attempt) for attempt in (1, 2, 3, 4)] == [False, False, True, True]
    assert not Backoff().exhausted(1_000)


@pytest.mark.parametrize("options", [{"jitter": "some"}, {"attempts": 0}, {"cap": "soon"}], ids=str)
def test_what_makes_no_sense_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"jitter|attempts is 0; it must be at least 1|'soon' is not a duration"):
        Backoff(**options)  # type: ignore[arg-type]


# The shape of the API that people reach for: each of its names at work, in virtual time where time matters.
#
# One row is one handler as people write it: what it is declared with, what it is sent, and what becomes of that.


MINUTE_S = 60
LONG_S = 25 * MINUTE_S


@dataclass
class Order:
    """A payload."""

    number: int


class Job(msgspec.Struct):
    """Another."""

    number: int


class Image(pydantic.BaseModel):
    """And a third."""

    number: int


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def ship(order: Order) -> None:
    assert order == Order(1)


async def run(job: Job) -> None:
    assert job.number == 1


async def show(image: Image) -> None:
    assert image.number == 1


async def keep(data: bytes) -> None:
    assert data == b'{"number":1}'


def resize(order: Order, ctx: Context) -> None:
    """Work in a thread, and look now and then whether to go on."""
    ctx.check()
    assert not ctx.cancelled.is_set()


async def look(order: Order, ctx: Context) -> None:
    """Read all that there is to read."""
    assert len(ctx.message_id) == 36
    assert (ctx.attempt, ctx.group, ctx.sent_at) == (1, None, 1_700_000_000)
    assert (ctx.lease.state, ctx.lease.remaining) == (LeaseState.HELD, 30)


async def retry(order: Order, ctx: Context) -> None:
    """Come back in thirty seconds, once."""
    if ctx.attempt == 1:
        raise RetryLater("30s")
    assert now_s() == 30


async def fail(order: Order, ctx: Context) -> None:
    """Come back by the handler's backoff."""
    if ctx.attempt == 1:
        raise LookupError("not yet")
    assert now_s() == 1


async def reject(order: Order) -> None:
    """Be of no use to anybody."""
    raise Reject("bad schema")


async def drop(order: Order) -> None:
    """Be of no use any more."""
    raise Drop


async def charge(order: Order, ctx: Context) -> None:
    """Do what must not be done twice."""
    async with ctx.fence():
        assert ctx.lease.remaining == 30


async def take_long(order: Order, ctx: Context) -> None:
    """Work for 25 minutes, the first time."""
    if ctx.attempt == 1:
        await asyncio.sleep(LONG_S)


async def report(order: Order, ctx: Context) -> None:
    """Work for as long, and say so every four minutes."""
    for share in range(6):
        ctx.progress(share / 6)
        await asyncio.sleep(4 * MINUTE_S)


class Row(NamedTuple):
    """A handler, its options, and what has happened after so long: four leases, an hour where the work is long."""

    handler: Callable[..., Any]
    options: dict[str, Any]
    events: dict[str, int]
    span: str = "2m"


DONE = {"acked": 1}
AGAIN = {"retried": 1, "acked": 1}

TABLE = {
    "dataclass": Row(ship, {}, DONE),
    "struct": Row(run, {}, DONE),
    "pydantic": Row(show, {}, DONE),
    "bytes": Row(keep, {}, DONE),
    "concurrency": Row(ship, {"concurrency": 64}, DONE),
    "lease-auto": Row(look, {"lease": "auto"}, DONE),
    "lease-number": Row(look, {"lease": 30}, DONE),
    "lease-text": Row(look, {"lease": "30s"}, DONE),
    "lease-timedelta": Row(look, {"lease": timedelta(seconds=30)}, DONE),
    "lease-nservicebus": Row(look, {"lease": NServiceBusPolicy()}, DONE),
    "lease-fixed": Row(look, {"lease": Fixed(30, 25)}, DONE),
    "thread": Row(resize, {"pool": "thread", "concurrency": 16}, DONE),
    "process": Row(acting.takes_whole, {"pool": "process", "concurrency": 1, "kill_on_lost": True}, DONE),
    "retry-later": Row(retry, {"retry": Backoff("1s", cap="15m", jitter="full", attempts=5)}, AGAIN),
    "exception": Row(fail, {"retry": Backoff("1s", jitter="none")}, AGAIN),
    "reject": Row(reject, {"dead_letter": "orders-dead"}, {"rejected": 1}),
    "attempts": Row(fail, {"dead_letter": "orders-dead", "retry": Backoff(attempts=1)}, {"rejected": 1}),
    "drop": Row(drop, {}, {"dropped": 1}),
    "idempotency": Row(ship, {"idempotency": ByMessageId(InMemory(), ttl="1d")}, DONE),
    "fence": Row(charge, {"lease": 30}, DONE),
    "long": Row(take_long, {}, DONE, "1h"),
    "timeout": Row(take_long, {"timeout": "20m"}, AGAIN, "1h"),
    "stall": Row(take_long, {"stall": "5m"}, AGAIN, "1h"),
    "progress": Row(report, {"stall": "5m"}, DONE, "1h"),
}


def played(app: Consumer, script: Callable[[ConsumerBench], object] | None = None, *, span: str) -> ConsumerBench:
    """Send an order to ``app``, let the time pass, and return the bench."""

    async def scenario() -> ConsumerBench:
        async with ConsumerBench(app, VirtualClock()) as bench:
            bench.send(Order(1))
            if script is not None:
                script(bench)
            await bench.advance(span)
        return bench

    return asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_a_handler_as_people_write_it(name: str) -> None:
    row = TABLE[name]
    app = Consumer("orders")
    app.handler(**row.options)(row.handler) if row.options else app.handler(row.handler)
    events = played(app, span=row.span).events
    assert {event: count for event, count in events.items() if event in {*DONE, *AGAIN, *row.events}} == row.events
    assert events["received"] == 2 if "retried" in row.events else 1


@pytest.mark.slow
def test_a_timeout_is_announced_at_four_fifths(caplog: pytest.LogCaptureFixture) -> None:
    app = Consumer("orders")
    app.handler(timeout="20m")(take_long)
    with caplog.at_level(logging.WARNING, "veilmq.consumer"):
        played(app, span="15m")
        assert "has used" not in caplog.text
        played(app, span="16m")
    assert "the handler has used 960 of its 1200 s" in caplog.text
    assert [record.module for record in caplog.records] == ["runner"]


def unreachable(bench: ConsumerBench) -> None:
    """Let no renewal through."""
    bench.faults.script("ChangeMessageVisibilityBatch", faults.UNAVAILABLE, times=None)


@pytest.mark.slow
@pytest.mark.parametrize("on_lost", ["cancel", "continue", "function"])
def test_a_lost_lease_stops_the_handler_unless_told_otherwise(on_lost: Any) -> None:
    """It is lost at thirty seconds, for whoever is strict."""
    app = Consumer("orders")
    told: list[Any] = []
    ended: list[tuple[float, LeaseState]] = []

    @app.handler(lease="30s", strict=True, on_lost=told.append if on_lost == "function" else on_lost)
    async def work(order: Order, ctx: Context) -> None:
        try:
            await asyncio.sleep(50)
        finally:
            ended.append((now_s(), ctx.lease.state))
            with pytest.raises(LeaseLost):
                ctx.check()

    played(app, unreachable, span="55s")
    at_s, state = ended[0]
    assert (at_s, state.value) == (30 if on_lost == "cancel" else 50, "lost")
    assert bool(told) == (on_lost == "function")


@pytest.mark.slow
def test_a_lease_in_doubt_lets_the_handler_go_on_but_not_past_a_fence() -> None:
    app = Consumer("orders")
    seen: list[LeaseState] = []

    @app.handler(lease="30s")
    async def work(order: Order, ctx: Context) -> None:
        await asyncio.sleep(40)
        ctx.check()
        seen.append(ctx.lease.state)
        with pytest.raises(LeaseLost):
            async with ctx.fence():
                raise AssertionError("nobody knows whether it is ours")

    played(app, unreachable, span="45s")
    assert seen[0] is LeaseState.SUSPECT


@pytest.mark.slow
def test_a_shutdown_releases_what_it_cancels() -> None:
    """And what the last polls bring, be it the same message."""
    app = Consumer("orders", grace="1s")
    cancelled: list[type[BaseException]] = []

    @app.handler
    async def work(order: Order, ctx: Context) -> None:
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            assert ctx.cancelled.is_set()
            with pytest.raises(Cancelled):
                ctx.check()
            cancelled.append(asyncio.CancelledError)
            raise

    bench = played(app, span="1m")
    assert cancelled == [asyncio.CancelledError]
    assert bench.events["released"] == bench.events["received"]


@dataclass
class Line:
    """A payload with a tenant."""

    tenant: str
    number: int


@pytest.mark.slow
def test_batches_fail_in_part() -> None:
    """By size or after a moment, each with one key; what failed comes back alone."""
    app = Consumer("rows")
    batches: list[tuple[float, list[Line]]] = []

    @app.batch(max_size=100, linger="200ms", group_by=lambda item: item.body.tenant)
    async def load(batch: Batch[Line]) -> None:
        batches.append((now_s(), batch.bodies))
        for place, line in enumerate(batch.bodies):
            if line.number == 1 and batch[place].context.attempt == 1:
                batch[place].fail(RetryLater("1m"))

    async def scenario() -> ConsumerBench:
        async with ConsumerBench(app) as t:
            for number in range(4):
                t.send(Line("ab"[number % 2], number))
            await t.advance("2m")
        return t

    bench = asyncio.run(scenario())
    first, second, again = batches
    assert sorted([first[1], second[1]], key=str) == [[Line("a", 0), Line("a", 2)], [Line("b", 1), Line("b", 3)]]
    assert first[0] == second[0] == pytest.approx(0.2)
    assert again[1] == [Line("b", 1)]
    assert (bench.deleted, bench.events["retried"]) == (4, 1)


@pytest.mark.slow
def test_a_consumer_may_be_embedded() -> None:
    """In a program with an event loop of its own, against any server; a group is told to its handler."""
    with RunningServer(clock=SystemClock()) as server, HttpQueueClient(server.endpoint) as client:
        app = Consumer("steps.fifo", endpoint=server.endpoint)
        groups: list[str | None] = []

        @app.handler(wait="1s")
        async def step(body: str, ctx: Context) -> None:
            groups.append(ctx.group)

        async def scenario() -> None:
            client.create_queue("steps.fifo", {"fifo": True})
            client.send("steps.fifo", "x", group="a", dedup_id="1")
            async with app.running() as r:
                await r.drained(timeout="30s")

        asyncio.run(scenario())
    assert groups == ["a"]
