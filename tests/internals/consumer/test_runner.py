"""One handler at work: lost leases, messages that come back, hooks, batches and counts."""

import asyncio
import json
import multiprocessing
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.consumer import acting
from tests.consumer.workbench import WAIT, Workbench, event, until, workbench
from veilmq.client import NewMessage
from veilmq.consumer import Backoff, Batch, Context, Fixed, Item, LeaseLost, RetryLater
from veilmq.consumer.context import Delivery, Ending, EndingKind
from veilmq.consumer.pools import Calls
from veilmq.consumer.running import ABANDONED

BRISK = Fixed(10, every=0.02)
"""Renewed so often that a loss is noticed at once."""


@pytest.fixture
def bench() -> Iterator[Workbench]:
    with workbench() as made:
        yield made


async def test_a_lost_lease_cancels_the_handler_and_touches_nothing(bench: Workbench) -> None:
    """The queue is purged under the handler: its message is nobody's any more."""
    app = bench.consumer("taken")
    lost: list[str] = []
    endings: list[Ending] = []
    app.on("lost", lambda ctx: lost.append(ctx.message_id))
    app.on("settle", lambda ctx, ending: endings.append(ending))

    @app.handler(wait=WAIT, lease=BRISK)
    async def work(body: str, ctx: Context) -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()
        with pytest.raises(LeaseLost):
            ctx.check()
        raise asyncio.CancelledError

    sent = bench.client.send("taken", "x").id
    async with bench.working(app) as running:
        await until(lambda: running.runners[0].working)
        bench.client.purge("taken")
        await until(lambda: endings)
        assert lost == [sent]
        assert event(running, "left") == 1
    assert running.exit_code == 0
    assert [ending.kind for ending in endings] == [EndingKind.LEFT]


async def test_a_process_whose_message_is_lost_is_killed_if_so_wanted(bench: Workbench) -> None:
    """Even one that never looks up; another takes the next message."""
    options: Any = {"pool": "process", "kill_on_lost": True, "concurrency": 1, "lease": BRISK}
    async with bench.handling(acting.spin, "x", **options) as running:
        await until(lambda: running.renewals.calls)
        bench.client.purge("orders")
        await until(lambda: event(running, "left"))
        assert running.runners[0].working == 0


async def test_a_function_may_decide_about_a_loss(bench: Workbench) -> None:
    told: list[str] = []
    go_on = asyncio.Event()

    def decide(ctx: Context) -> None:
        told.append(ctx.message_id)
        go_on.set()

    async def work(body: str, ctx: Context) -> None:
        await go_on.wait()
        assert not ctx.cancelled.is_set()

    async with bench.handling(work, "x", lease=BRISK, on_lost=decide) as running:
        await until(lambda: running.runners[0].working)
        bench.client.purge("orders")
        await go_on.wait()
        assert told == bench.sent


async def test_a_fence_in_a_process_is_asked_of_the_parent(bench: Workbench) -> None:
    """A renewal proves the lease before the side effect."""
    async with bench.handling(acting.fenced, "x", pool="process", concurrency=1, lease="1h") as running:
        await bench.settled(running)
        assert +running.renewals.results == {"proven": 1}
        assert event(running, "acked") == 1


async def test_a_batch_fails_in_part(bench: Workbench) -> None:
    """What fails comes back as it says, what cannot be decoded is rejected, the rest is done."""
    app = bench.consumer("rows")
    bench.client.create_queue("dead")
    sizes: list[int] = []

    @app.batch(max_size=4, linger="20ms", wait=WAIT, dead_letter="dead")
    async def load(batch: Batch[int]) -> None:
        sizes.append(len(batch))
        for item in batch:
            if item.body == 3:
                item.fail(RetryLater("1m"))

    bench.client.send_batch("rows", [NewMessage(body=text) for text in ("1", "2", "three", "3")])
    async with bench.working(app) as running:
        await bench.settled(running)
        events = running.runners[0].counts.events
        assert (events["acked"], events["retried"], events["rejected"]) == (2, 1, 1)
    assert sizes == [3], "full at four, and one of them was never shown to the handler"
    assert bench.counts("rows") == (0, 1)


async def test_a_batch_that_raises_fails_whole(bench: Workbench) -> None:
    app = bench.consumer("whole")

    @app.batch(max_size=10, linger="20ms", wait=WAIT)
    def load(batch: Batch[str]) -> None:
        raise LookupError(batch[0].body)

    bench.client.send_batch("whole", [NewMessage(body=text) for text in "ab"])
    async with bench.working(app) as running:
        await until(lambda: event(running, "retried") == 2)


async def test_batches_hold_one_key_each(bench: Workbench) -> None:
    app = bench.consumer("keyed")
    seen: list[set[str]] = []

    def first_letter(item: Item[str]) -> str:
        return item.body[0]

    @app.batch(max_size=10, linger="20ms", group_by=first_letter, wait=WAIT)
    async def load(batch: Batch[str]) -> None:
        seen.append(set(batch.bodies))

    bench.client.send_batch("keyed", [NewMessage(body=text) for text in ("a1", "b1", "a2", "b2")])
    async with bench.working(app) as running:
        await bench.settled(running)
    assert sorted(map(sorted, seen)) == [["a1", "a2"], ["b1", "b2"]]


async def test_a_message_whose_key_cannot_be_told_comes_back(bench: Workbench) -> None:
    """It has failed, as if the handler had; those around it are handled, and the queue is received from."""
    app = bench.consumer("keyless")
    seen: list[str] = []

    def initial(item: Item[str]) -> str:
        return str(json.loads(item.body)[0])

    @app.batch(max_size=10, linger="20ms", group_by=initial, wait=WAIT, retry=Backoff("1h", jitter="none"))
    async def load(batch: Batch[str]) -> None:
        seen.extend(batch.bodies)

    bench.client.send_batch("keyless", [NewMessage(body=text) for text in ('"a"', '""', '"b"')])
    async with bench.working(app) as running:
        await bench.settled(running)
        bench.client.send("keyless", '"c"')
        await until(lambda: len(seen) == 3)
        await bench.settled(running)
        assert event(running, "retried") == 1
    assert (sorted(seen), bench.counts("keyless")) == (['"a"', '"b"', '"c"'], (0, 1))


async def test_what_fails_around_a_handler_fails_the_message(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes back: a message that nobody settled would be held for hours."""

    async def fail(self: Calls, deliveries: Sequence[Delivery]) -> list[Ending]:
        raise LookupError("nobody expected this")

    monkeypatch.setattr(Calls, "run", fail)
    async with bench.handling(acting.act_async, "x", retry=Backoff("1h", jitter="none")) as running:
        await until(lambda: event(running, "retried"))
        await bench.settled(running)
    assert bench.counts("orders") == (0, 1)


async def test_a_hook_that_fails_harms_nobody(bench: Workbench) -> None:
    app = bench.consumer("hooked")
    app.declare(acting.act_async, wait=WAIT)
    app.on("start", lambda ctx: 1 / 0)
    bench.client.send("hooked", "x")
    async with bench.working(app) as running:
        await bench.settled(running)
    assert event(running, "acked") == 1


async def test_one_lost_message_does_not_end_its_batch(bench: Workbench) -> None:
    """It is told to its own item; the rest of the batch is done."""
    app = bench.consumer("lossy")
    seen: list[bool] = []

    @app.batch(max_size=2, linger="1s", wait=WAIT, lease=BRISK)
    async def load(batch: Batch[str]) -> None:
        receipt = batch[0].context.message.receipt
        bench.client.delete("lossy", receipt)
        await until(batch[0].context.cancelled.is_set)
        seen.append(batch[1].context.cancelled.is_set())

    bench.client.send_batch("lossy", [NewMessage(body=text) for text in "ab"])
    async with bench.working(app) as running:
        await until(lambda: seen and not running.runners[0].held)
        assert event(running, "lost") == 1
    assert seen == [False]
    assert bench.counts("lossy") == (0, 0)


async def test_a_batch_whose_time_is_over_comes_back_whole(bench: Workbench) -> None:
    app = bench.consumer("timely")

    @app.batch(max_size=2, linger="1s", wait=WAIT, timeout="20ms")
    async def load(batch: Batch[str]) -> None:
        await asyncio.Event().wait()

    bench.client.send_batch("timely", [NewMessage(body=text) for text in "ab"])
    async with bench.working(app) as running:
        await until(lambda: event(running, "retried") == 2)


@pytest.mark.slow
async def test_a_process_that_does_not_stop_is_ended(bench: Workbench) -> None:
    options: Any = {"grace": "10ms", "pool": "process", "concurrency": 1, "lease": BRISK}
    async with bench.handling(acting.spin, "x", **options) as running:
        await until(lambda: running.renewals.calls)
    assert running.exit_code == ABANDONED
    assert bench.counts("orders") == (1, 0)
    assert not [child for child in multiprocessing.active_children() if child.name == "veilmq-spin"]
