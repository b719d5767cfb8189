"""The shape of the API that people reach for: each of its names at work, in virtual time where time matters.

One row is one handler as people write it: what it is declared with, what it is sent, and what becomes of that.
"""

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
from veilmq.client import HttpQueueClient
from veilmq.consumer import (
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
from veilmq.testing import ConsumerBench, RunningServer, SystemClock, VirtualClock, faults

pytestmark = pytest.mark.slow

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
    """Return the handler's time."""
    return asyncio.get_running_loop().time()


async def ship(order: Order) -> None:
    """Take a dataclass."""
    assert order == Order(1)


async def run(job: Job) -> None:
    """Take a struct."""
    assert job.number == 1


async def show(image: Image) -> None:
    """Take a model."""
    assert image.number == 1


async def keep(data: bytes) -> None:
    """Take bytes."""
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


@pytest.mark.parametrize("name", TABLE)
def test_a_handler_as_people_write_it(name: str) -> None:
    row = TABLE[name]
    app = Consumer("orders")
    app.handler(**row.options)(row.handler) if row.options else app.handler(row.handler)
    events = played(app, span=row.span).events
    assert {event: count for event, count in events.items() if event in {*DONE, *AGAIN, *row.events}} == row.events
    assert events["received"] == 2 if "retried" in row.events else 1


def test_a_timeout_is_announced_at_four_fifths(caplog: pytest.LogCaptureFixture) -> None:
    """At sixteen of twenty minutes, and not before."""
    app = Consumer("orders")
    app.handler(timeout="20m")(take_long)
    with caplog.at_level(logging.WARNING, "veilmq.consumer"):
        played(app, span="15m")
        assert "has used" not in caplog.text
        played(app, span="16m")
    assert "the handler has used 960 of its 1200 s" in caplog.text


def unreachable(bench: ConsumerBench) -> None:
    """Let no renewal through."""
    bench.faults.script("ChangeMessageVisibilityBatch", faults.UNAVAILABLE, times=None)


@pytest.mark.parametrize("on_lost", ["cancel", "continue", "function"])
def test_a_lost_lease_stops_the_handler_unless_told_otherwise(on_lost: str) -> None:
    """It is lost at thirty seconds, for whoever is strict."""
    app = Consumer("orders")
    told: list[str] = []
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


def test_a_lease_in_doubt_lets_the_handler_go_on_but_not_past_a_fence() -> None:
    """Who is not strict is told by the state."""
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
