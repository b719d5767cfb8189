"""Renewal policies, backoff, and the public API of handlers in virtual time."""

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
from veilmq.consumer import (
    Adaptive,
    Backoff,
    Batch,
    ByMessageId,
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
from veilmq.testing import ConsumerBench, VirtualClock, faults

QUICK = Measured(hold_s=1.2, renewal_s=0.05, renewals=100, lateness_s=0.02)


def measured(hold_s: float, renewal_s: float = 0.05, lateness_s: float = 0.02) -> Measured:
    return Measured(hold_s=hold_s, renewal_s=renewal_s, renewals=100, lateness_s=lateness_s)


class TestFixed:
    def test_a_fixed_lease_is_renewed_at_its_interval(self) -> None:
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

    def test_the_first_deadline_equals_that_of_an_adaptive_lease(self) -> None:
        """The reply may have taken as long as a fast call was measured to take."""
        for given in (QUICK, measured(1.2, renewal_s=3.0), measured(1.2, renewal_s=100.0), Measured()):
            first_s = Fixed(60).first_expiry_s(answered_at_s=1_000.0, timeout_s=60, measured=given)
            assert first_s == Adaptive().first_expiry_s(answered_at_s=1_000.0, timeout_s=60, measured=given)
        assert Fixed(60).first_expiry_s(answered_at_s=1_000.0, timeout_s=60, measured=measured(1, renewal_s=3)) == 1_057

    def test_every_receive_sends_the_length_of_the_lease(self) -> None:
        assert Fixed(120).receive_timeout_s(QUICK) == 120
        assert Fixed(120).every_s == 60

    @pytest.mark.parametrize(
        ("lease", "every"),
        [(0, None), (43_201, None), (1.5, None), (30, 30), (30, 0), (30, -1)],
        ids=["zero", "too-long", "fraction", "no-gap", "no-interval", "negative"],
    )
    def test_invalid_lengths_and_intervals_are_refused(self, lease: float, every: float | None) -> None:
        with pytest.raises(ValueError, match=r"lease is whole seconds|cannot be kept|is negative"):
            Fixed(lease, every)


class TestAdaptive:
    @pytest.mark.parametrize(
        ("given", "guard_s", "length_s"),
        [
            pytest.param(measured(1.2), 2, 30, id="short"),
            pytest.param(measured(1.2, renewal_s=60), 100, 300, id="slow-network"),
            pytest.param(measured(45), 2, 59, id="some-work"),
            pytest.param(measured(200), 2, 252, id="long"),
            pytest.param(measured(1_000), 2, 300, id="longer-than-the-longest"),
            pytest.param(measured(1.2, lateness_s=5), 21.2, 128, id="stalls"),
        ],
    )
    def test_guard_and_length_follow_the_measurements(self, given: Measured, guard_s: float, length_s: int) -> None:
        policy = Adaptive()
        assert policy.guard_s(given) == pytest.approx(guard_s)
        assert policy.length_s(given) == length_s

    def test_a_renewal_is_assumed_to_take_a_second_until_a_hundred_were_measured(self) -> None:
        """A few samples do not prove speed, but slowness."""
        assert Adaptive().guard_s(Measured()) == 5
        assert Adaptive().guard_s(Measured(renewal_s=0.01, renewals=99)) == 5
        assert Adaptive().guard_s(Measured(renewal_s=3.0, renewals=1)) == 13

    def test_the_timeout_of_the_queue_applies_until_a_message_was_held(self) -> None:
        assert Adaptive().receive_timeout_s(Measured()) is None
        assert Adaptive().receive_timeout_s(measured(45)) == 59

    def test_the_lease_of_long_work_grows_with_its_age(self) -> None:
        assert [Adaptive().length_s(QUICK, age_s=age_s) for age_s in (0, 20, 100, 5_000)] == [30, 30, 100, 300]

    def test_the_guard_is_a_third_of_the_lease_plus_jitter(self) -> None:
        """The jitter, up to a quarter of the guard, separates leases taken together."""
        for jitter, first_s in [(0.0, 20.0), (1.0, 17.5)]:
            play = Play(Adaptive(), jitter=jitter)
            play.take(timeout_s=30)
            assert play.table.next_due_s() == pytest.approx(first_s)

    @pytest.mark.parametrize("timeout_s", [1, 2, 5])
    def test_a_short_timeout_is_renewed_after_its_half(self, timeout_s: int) -> None:
        play = Play(Adaptive())
        play.take(timeout_s=timeout_s)
        play.until(100)
        ((at_s, for_s),) = play.queue.renewals[:1]
        assert timeout_s / 2 - 0.01 <= at_s <= timeout_s * 2 / 3
        assert for_s == 30
        assert play.news == []

    def test_leases_survive_a_slow_network(self) -> None:
        play = Play(Adaptive(), usual_s=4.0)
        (lease,) = play.take(timeout_s=30)
        play.until(1_000)
        assert play.news == []
        assert lease.state is LeaseState.HELD
        assert lease.measured.renewal_s == pytest.approx(4, rel=0.06)

    def test_a_stalling_renewer_increases_the_guard(self) -> None:
        play = Play(Adaptive())
        (lease,) = play.take(timeout_s=30)
        play.until(500, late_s=3.0)
        assert lease.measured.lateness_s == pytest.approx(3, rel=0.06)
        assert Adaptive().guard_s(lease.measured) > 13

    def test_running_work_lengthens_new_leases(self) -> None:
        play = Play(Adaptive())
        play.take(timeout_s=30)
        play.until(150)
        assert play.table.receive_timeout_s(play.subscription) == pytest.approx(150 * 1.25 + 5, rel=0.06)

    def test_the_last_measurement_is_kept_over_idle_hours(self) -> None:
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
    def test_conflicting_bounds_are_refused(self, options: dict[str, float]) -> None:
        with pytest.raises(ValueError, match="adaptive lease needs"):
            Adaptive(**options)  # type: ignore[arg-type]

    def test_the_shortest_lease_survives_an_outage_of_seconds(self) -> None:
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
def test_a_renewal_never_exceeds_twelve_hours(wanted_s: int, elapsed_s: float, allowed: int) -> None:
    """A margin of two seconds stays free; below one second no renewal is sent."""
    assert allowed_s(wanted_s, elapsed_s=elapsed_s) == allowed


def test_a_backoff_without_jitter_doubles_up_to_its_cap() -> None:
    backoff = Backoff("1s", cap="10s", jitter="none")
    assert [backoff.after_s(attempt) for attempt in (1, 2, 3, 4, 5, 1_000_000)] == [1, 2, 4, 8, 10, 10]


def test_a_backoff_with_full_jitter_draws_from_zero_to_the_ceiling() -> None:
    draws = iter([0.0, 0.5, 0.99])
    backoff = Backoff("10s", draw=lambda: next(draws))
    assert [backoff.after_s(1) for _ in range(3)] == [0, 5, 10]


def test_a_backoff_never_exceeds_twelve_hours() -> None:
    assert Backoff("12h", cap="30d", jitter="none").after_s(9) == 43_200


@pytest.mark.parametrize("options", [{"jitter": "some"}, {"attempts": 0}, {"cap": "soon"}], ids=str)
def test_invalid_backoffs_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"jitter|attempts is 0; it must be at least 1|'soon' is not a duration"):
        Backoff(**options)  # type: ignore[arg-type]


MINUTE_S = 60
LONG_S = 25 * MINUTE_S


@dataclass
class Order:
    number: int


class Job(msgspec.Struct):
    number: int


class Image(pydantic.BaseModel):
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
    ctx.check()
    assert not ctx.cancelled.is_set()


async def inspect(order: Order, ctx: Context) -> None:
    assert len(ctx.message_id) == 36
    assert (ctx.attempt, ctx.group, ctx.sent_at) == (1, None, 1_700_000_000)
    assert (ctx.lease.state, ctx.lease.remaining) == (LeaseState.HELD, 30)


async def retry(order: Order, ctx: Context) -> None:
    if ctx.attempt == 1:
        raise RetryLater("30s")
    assert now_s() == 30


async def fail(order: Order, ctx: Context) -> None:
    if ctx.attempt == 1:
        raise LookupError("not yet")
    assert now_s() == 1


async def reject(order: Order) -> None:
    raise Reject("bad schema")


async def drop(order: Order) -> None:
    raise Drop


async def charge(order: Order, ctx: Context) -> None:
    async with ctx.fence():
        assert ctx.lease.remaining == 30


async def take_long(order: Order, ctx: Context) -> None:
    if ctx.attempt == 1:
        await asyncio.sleep(LONG_S)


async def report(order: Order, ctx: Context) -> None:
    for share in range(6):
        ctx.progress(share / 6)
        await asyncio.sleep(4 * MINUTE_S)


class Row(NamedTuple):
    """A handler, its options, and the events after ``span`` of virtual time."""

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
    "lease-auto": Row(inspect, {"lease": "auto"}, DONE),
    "lease-number": Row(inspect, {"lease": 30}, DONE),
    "lease-text": Row(inspect, {"lease": "30s"}, DONE),
    "lease-timedelta": Row(inspect, {"lease": timedelta(seconds=30)}, DONE),
    "lease-nservicebus": Row(inspect, {"lease": NServiceBusPolicy()}, DONE),
    "lease-fixed": Row(inspect, {"lease": Fixed(30, 25)}, DONE),
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


def run_bench(app: Consumer, script: Callable[[ConsumerBench], object] | None = None, *, span: str) -> ConsumerBench:
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
def test_each_option_of_a_handler_works(name: str) -> None:
    row = TABLE[name]
    app = Consumer("orders")
    app.handler(**row.options)(row.handler) if row.options else app.handler(row.handler)
    events = run_bench(app, span=row.span).events
    assert {event: count for event, count in events.items() if event in {*DONE, *AGAIN, *row.events}} == row.events
    assert events["received"] == 2 if "retried" in row.events else 1


@pytest.mark.slow
def test_a_handler_is_warned_of_at_four_fifths_of_its_timeout(caplog: pytest.LogCaptureFixture) -> None:
    app = Consumer("orders")
    app.handler(timeout="20m")(take_long)
    with caplog.at_level(logging.WARNING, "veilmq.consumer"):
        run_bench(app, span="15m")
        assert "has used" not in caplog.text
        run_bench(app, span="16m")
    assert "the handler has used 960 of its 1200 s" in caplog.text
    assert [record.module for record in caplog.records] == ["runner"]


def unreachable(bench: ConsumerBench) -> None:
    bench.faults.script("ChangeMessageVisibilityBatch", faults.UNAVAILABLE, times=None)


@pytest.mark.slow
@pytest.mark.parametrize("on_lost", ["cancel", "continue", "function"])
def test_a_lost_lease_cancels_the_handler_unless_configured_otherwise(on_lost: Any) -> None:
    app = Consumer("orders")
    lost: list[Any] = []
    ended: list[tuple[float, LeaseState]] = []

    @app.handler(lease="30s", strict=True, on_lost=lost.append if on_lost == "function" else on_lost)
    async def work(order: Order, ctx: Context) -> None:
        try:
            await asyncio.sleep(50)
        finally:
            ended.append((now_s(), ctx.lease.state))
            with pytest.raises(LeaseLost):
                ctx.check()

    run_bench(app, unreachable, span="55s")
    at_s, state = ended[0]
    assert (at_s, state.value) == (30 if on_lost == "cancel" else 50, "lost")
    assert bool(lost) == (on_lost == "function")


@pytest.mark.slow
def test_a_suspect_lease_stops_the_handler_only_at_a_fence() -> None:
    app = Consumer("orders")
    states: list[LeaseState] = []

    @app.handler(lease="30s")
    async def work(order: Order, ctx: Context) -> None:
        await asyncio.sleep(40)
        ctx.check()
        states.append(ctx.lease.state)
        with pytest.raises(LeaseLost):
            async with ctx.fence():
                raise AssertionError("the lease is in doubt")

    run_bench(app, unreachable, span="45s")
    assert states[0] is LeaseState.SUSPECT


@dataclass
class TenantRow:
    tenant: str
    number: int


@pytest.mark.slow
def test_a_batch_may_fail_in_part() -> None:
    app = Consumer("rows")
    batches: list[tuple[float, list[TenantRow]]] = []

    @app.batch(max_size=100, linger="200ms", group_by=lambda item: item.body.tenant)
    async def load(batch: Batch[TenantRow]) -> None:
        batches.append((now_s(), batch.bodies))
        for place, row in enumerate(batch.bodies):
            if row.number == 1 and batch[place].context.attempt == 1:
                batch[place].fail(RetryLater("1m"))

    async def scenario() -> ConsumerBench:
        async with ConsumerBench(app) as t:
            for number in range(4):
                t.send(TenantRow("ab"[number % 2], number))
            await t.advance("2m")
        return t

    bench = asyncio.run(scenario())
    first, second, again = batches
    assert sorted([first[1], second[1]], key=str) == [
        [TenantRow("a", 0), TenantRow("a", 2)],
        [TenantRow("b", 1), TenantRow("b", 3)],
    ]
    assert first[0] == second[0] == pytest.approx(0.2)
    assert again[1] == [TenantRow("b", 1)]
    assert (bench.deleted, bench.events["retried"]) == (4, 1)
