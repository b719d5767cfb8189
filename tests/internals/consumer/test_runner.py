"""The runner of a handler: lost leases, retries, hooks, batches, counts, and outcomes in each pool."""

import asyncio
import gc
import json
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.consumer import acting
from tests.consumer.simulation import message
from tests.consumer.workbench import WAIT, Job, Workbench, event, until
from veilmq.client import HttpQueueClient, NewMessage
from veilmq.consumer import Backoff, Batch, Context, Drop, Fixed, Item, LeaseLost, RetryLater
from veilmq.consumer.app import ABANDONED
from veilmq.consumer.clock import Threads
from veilmq.consumer.context import DONE, Cause, Ending, EndingKind
from veilmq.consumer.handlers import CallNext, make_handler
from veilmq.consumer.intake import Prefetch
from veilmq.consumer.leases import Lease, LeaseState
from veilmq.consumer.pools import CALL, STOP, Child, Pool, Worker
from veilmq.core.limits import MESSAGE_BYTES

BRISK = Fixed(10, every=0.02)
"""Renews so often that a lost lease is detected at once."""


async def test_a_lost_lease_cancels_the_handler_and_leaves_the_message_alone(bench: Workbench) -> None:
    """The queue is purged while the handler runs."""
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


async def test_messages_behind_a_lost_one_that_waits_are_released(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another consumer deletes the first message of a group while the only slot is busy."""
    monkeypatch.setattr(Prefetch, "target", lambda *_, **__: 10)
    app, job, receipts = bench.consumer("groups.fifo", fifo=True), Job(), dict[str, str]()
    app.on("receive", lambda ctx: receipts.setdefault(ctx.message.body, ctx.message.receipt))
    app.declare(job.work, wait=WAIT, lease=BRISK, concurrency=1)
    for body in ("a", "b1", "b2"):
        bench.client.send("groups.fifo", body, group=body[0], dedup_id=body)
    async with bench.working(app) as running:
        await until(lambda: job.bodies == ["a"] and running.runners[0].waiting == 2)
        bench.client.delete("groups.fifo", receipts["b1"])
        await until(lambda: event(running, "released"))
        job.go_on.set()
        await until(lambda: job.bodies == ["a", "b2"])
        await bench.settled(running)
        assert running.table.open_leases() == []
    assert bench.counts("groups.fifo") == (0, 0)


async def test_a_message_whose_lease_may_be_lost_is_not_handled(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lease, "state", LeaseState.SUSPECT)
    async with bench.handling(acting.act_async, "done", retry=Backoff("1h", jitter="none")) as running:
        await bench.settled(running)
        assert [event(running, name) for name in ("received", "started", "left")] == [1, 0, 1]
    assert bench.counts("orders") == (0, 1)


async def test_kill_on_lost_kills_the_process_of_a_lost_message(bench: Workbench) -> None:
    options: Any = {"pool": "process", "kill_on_lost": True, "concurrency": 1, "lease": BRISK}
    async with bench.handling(acting.spin, "x", **options) as running:
        await until(lambda: running.renewals.calls)
        bench.client.purge("orders")
        await until(lambda: event(running, "left"))
        assert running.runners[0].working == 0


async def test_a_fence_in_a_process_renews_through_the_parent(bench: Workbench) -> None:
    async with bench.handling(acting.fenced, "x", pool="process", concurrency=1, lease="1h") as running:
        await bench.settled(running)
        assert +running.renewals.results == {"proven": 1}
        assert event(running, "acked") == 1


async def test_messages_of_a_batch_have_their_own_outcomes(bench: Workbench) -> None:
    """One is done, one dropped, one retried, one cannot be decoded. More arrive while the batch lingers."""
    app = bench.consumer("rows")
    sizes: list[int] = []

    @app.batch(max_size=4, linger="1h", wait=WAIT, dead_letter="dead")
    async def load(batch: Batch[int]) -> None:
        sizes.append(len(batch))
        with pytest.raises(TypeError, match="'late' is no outcome"):
            batch[0].fail("late")  # type: ignore[arg-type]
        batch[1].fail(Drop)
        batch[2].fail(RetryLater("1m"))

    bench.client.send("rows", "1")
    async with bench.working(app) as running:
        await until(lambda: running.runners[0].waiting)
        bench.client.send_batch("rows", [NewMessage(body=text) for text in ("2", "three", "3")])
        await bench.settled(running)
        events = running.runners[0].counts.events
        assert [events[name] for name in ("acked", "dropped", "retried", "rejected")] == [1, 1, 1, 1]
    assert sizes == [3], "one message of the full batch could not be decoded"
    assert bench.counts("rows") == (0, 1)


async def test_a_message_whose_batch_key_fails_is_retried(bench: Workbench) -> None:
    """The other messages are handled."""
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


async def test_an_error_outside_the_handler_retries_the_message(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it were not settled, the runner would hold it and renew its lease for hours."""

    async def fail(self: Pool, deliveries: Sequence[Context]) -> list[Ending]:
        raise LookupError("unexpected")

    monkeypatch.setattr(Pool, "run", fail)
    async with bench.handling(acting.act_async, "x", retry=Backoff("1h", jitter="none")) as running:
        await until(lambda: event(running, "retried"))
        await bench.settled(running)
    assert bench.counts("orders") == (0, 1)


async def test_a_handler_that_cancels_its_own_task_retries_its_message(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer continues, and another message uses the slot. A cancellation after the return has no effect."""
    monkeypatch.setattr("veilmq.consumer.runner.CLOSING_S", 0.01)

    async def work(body: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        if body == "late":
            asyncio.get_running_loop().call_soon(task.cancel)
            return
        task.cancel()
        await asyncio.Event().wait()

    async with bench.handling(
        work, "x", "late", "y", concurrency=1, prefetch=0, retry=Backoff("1h", jitter="none")
    ) as running:
        await until(lambda: (event(running, "retried"), event(running, "acked")) == (2, 1))
        await bench.settled(running)
    assert (running.exit_code, bench.counts("orders")) == (0, (0, 2))


async def test_the_lease_of_a_message_that_cannot_be_settled_runs_out(bench: Workbench) -> None:
    retry = Backoff("1h", draw=lambda: 1 / 0)
    async with bench.handling(acting.fail_async, "x", retry=retry) as running:
        await until(lambda: running.runners[0].counts.hold_time.sum_s)
        await bench.settled(running)
        assert running.table.open_leases() == []
    assert (running.exit_code, bench.counts("orders")) == (0, (0, 1))


def test_a_handler_that_ignores_its_cancellation_is_abandoned(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its message is released, with one line in the log: asyncio adds none about its task, but one about the other."""
    app = bench.consumer("orders")
    others: list[asyncio.Future[None]] = []

    async def stay() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    @app.handler(wait=WAIT)
    async def work(body: str) -> None:
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
        others.append(asyncio.ensure_future(stay()))
        await stay()

    monkeypatch.setattr("veilmq.consumer.runner.CANCEL_S", 0.1)
    monkeypatch.setattr("veilmq.consumer.app.CANCEL_S", 0.1)
    bench.client.send("orders", "x")
    assert app.run() == ABANDONED
    others.clear()
    gc.collect()
    names = [record.name for record in caplog.records if record.levelno >= logging.WARNING]
    assert [name for name in names if name in ("asyncio", "veilmq.consumer")] == ["veilmq.consumer", "asyncio"]
    assert bench.counts("orders") == (1, 0)


async def test_a_stop_waits_for_a_dead_server_at_most_as_long_as_a_poll_may_take(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client would retry for minutes."""
    started, replied = threading.Event(), threading.Event()

    def receive(*_: Any, **__: Any) -> list[Any]:
        started.set()
        replied.wait(60)
        return []

    monkeypatch.setattr(HttpQueueClient, "receive", receive)
    monkeypatch.setattr("veilmq.consumer.runner.CANCEL_S", 0.01)
    app = bench.consumer("orders")
    app.declare(acting.act_async, wait=WAIT)
    async with app.running() as running:
        await until(started.is_set)
        (runner,) = running.runners
        runner.handler = replace(runner.handler, options=replace(runner.handler.options, wait_s=0))
        await running.stop()
        assert (runner.polling, replied.is_set()) == (1, False)
        await asyncio.sleep(0)
        assert not [task for task in asyncio.all_tasks() if "Intake.stop" in repr(task)]
    replied.set()


async def test_an_error_of_a_hook_does_not_affect_the_message(bench: Workbench) -> None:
    app = bench.consumer("hooked")
    app.declare(acting.act_async, wait=WAIT)
    app.on("start", lambda ctx: 1 / 0)
    bench.client.send("hooked", "x")
    async with bench.working(app) as running:
        await bench.settled(running)
    assert event(running, "acked") == 1


async def test_a_lost_message_cancels_only_its_own_item_of_a_batch(bench: Workbench) -> None:
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


async def test_all_messages_of_a_batch_that_times_out_are_retried(bench: Workbench) -> None:
    app = bench.consumer("timely")

    @app.batch(max_size=2, linger="1s", wait=WAIT, timeout="20ms")
    async def load(batch: Batch[str]) -> None:
        await asyncio.Event().wait()

    bench.client.send_batch("timely", [NewMessage(body=text) for text in "ab"])
    async with bench.working(app) as running:
        await until(lambda: event(running, "retried") == 2)


@pytest.mark.slow
async def test_a_process_that_does_not_stop_is_killed(bench: Workbench) -> None:
    options: Any = {"grace": "10ms", "pool": "process", "concurrency": 1, "lease": BRISK}
    async with bench.handling(acting.spin, "x", **options) as running:
        await until(lambda: running.renewals.calls)
    assert running.exit_code == ABANDONED
    assert bench.counts("orders") == (1, 0)
    assert not [child for child in multiprocessing.active_children() if child.name == "veilmq-spin"]


POOLS = {"async": acting.act_async, "thread": acting.act, "process": acting.act}


@pytest.mark.parametrize("pool", POOLS)
async def test_each_outcome_in_each_pool(bench: Workbench, pool: str) -> None:
    """Done and dropped messages are deleted, retried ones hidden for the backoff, rejected ones moved with reasons."""
    options: Any = {"pool": pool, "concurrency": 2, "dead_letter": "dead", "retry": Backoff("3s", jitter="none")}
    async with bench.handling(POOLS[pool], "done", "drop", "reject", "retry", "crash", **options) as running:
        await bench.settled(running)
        events = running.runners[0].counts.events
        assert (events["acked"], events["dropped"], events["rejected"], events["retried"]) == (1, 1, 1, 2)
        assert bench.counts("orders") == (0, 2)
        bench.server.advance(2_999)
        assert bench.counts("orders") == (0, 2), "three seconds of backoff are not over"
        bench.server.advance(1)
        await bench.settled(running)
        assert (events["acked"], bench.counts("orders")) == (2, (0, 1))
        bench.server.advance(1_000 * acting.RETRY_S - 3_001)
        assert bench.counts("orders") == (0, 1)
        bench.server.advance(1)
        await bench.settled(running)
        assert (events["acked"], bench.counts("orders")) == (3, (0, 0))
    (letter,) = bench.client.receive("dead", count=10, wait_s=0)
    reasons = {name: value.text for name, value in letter.attributes.items()}
    assert letter.body == "reject"
    assert reasons["veilmq-reason"] == "bad schema"
    assert reasons["veilmq-error"] == "Reject"
    assert reasons["veilmq-message-id"] == bench.sent[2]
    assert (reasons["veilmq-queue"], reasons["veilmq-attempt"]) == ("orders", "1")


@pytest.mark.parametrize("pool", ["thread", "process"])
async def test_an_undecodable_message_is_rejected(bench: Workbench, pool: str) -> None:
    options: Any = {"pool": pool, "concurrency": 1, "dead_letter": "dead"}
    async with bench.handling(acting.takes_number, "one", "1", **options) as running:
        await bench.settled(running)
        assert (event(running, "acked"), event(running, "rejected")) == (1, 1)
    (letter,) = bench.client.receive("dead", count=10, wait_s=0)
    assert (letter.body, letter.attributes["veilmq-error"].text) == ("one", "Undecodable")


async def test_the_message_of_a_dead_process_is_retried_in_another_one(bench: Workbench) -> None:
    options: Any = {"pool": "process", "concurrency": 1, "retry": Backoff("2s", jitter="none")}
    async with bench.handling(acting.die, "x", **options) as running:
        await bench.settled(running)
        assert (event(running, "retried"), bench.counts("orders")) == (1, (0, 1))
        bench.server.advance(2_000)
        await bench.settled(running)
        assert (event(running, "acked"), bench.counts("orders")) == (1, (0, 0))


def test_a_stop_behind_its_call_reaches_a_process_that_has_not_begun_it() -> None:
    def work(body: str, ctx: Context) -> None:
        assert ctx.cancelled.is_set()

    arriving: Any = iter([(STOP, Cause.LOST), (CALL, message()), (STOP, Cause.TIMEOUT)])
    pipe: Any = SimpleNamespace(recv=arriving.__next__, send=print)
    child = Child(pipe, handler := make_handler(work, queue="q", pool="process"))
    with pytest.raises(StopIteration):
        child._read()
    assert child._handle(child._calls.get()) is DONE
    worker = Worker(handler)
    worker._pipe = pipe
    with worker._sending:  # by a thread, to a process that does not read yet
        worker.stop(Cause.TIMEOUT)


@pytest.mark.parametrize("pool", ["async", "thread", "process"])
async def test_a_process_that_a_handler_forks_ends_no_message(bench: Workbench, pool: Any) -> None:
    handler = acting.forks_async if pool == "async" else acting.forks
    async with bench.handling(handler, "forks", "fails", pool=pool, concurrency=1) as running:
        await until(lambda: event(running, "acked") and event(running, "retried"))
    assert bench.server.queue("orders").bodies == ["fails"]


async def test_a_process_is_used_again_after_a_timeout_of_a_middleware(bench: Workbench, tmp_path: Path) -> None:
    app, pipe = bench.consumer("orders"), tmp_path / "pipe"
    os.mkfifo(pipe)
    app.declare(acting.reads_a_pipe, wait=WAIT, pool="process", concurrency=1, retry=Backoff(0))

    @app.middleware
    async def limit(context: Context, call_next: CallNext) -> None:
        calling = asyncio.ensure_future(call_next())
        if context.attempt < 4:
            with await asyncio.to_thread(pipe.open, "wb"):  # returns when the handler reads
                calling.cancel()
        await calling

    bench.client.send("orders", str(pipe))
    async with bench.working(app) as running:
        await until(lambda: event(running, "acked") == 1)
        assert len(multiprocessing.active_children()) <= 2  # the next attempt may begin before the handler returns


async def test_the_death_of_an_idle_process_fails_no_message(bench: Workbench) -> None:
    async with bench.handling(acting.act, "done", pool="process", concurrency=1) as running:
        await bench.settled(running)
        (child,) = multiprocessing.active_children()
        child.kill()
        await asyncio.to_thread(child.join)
        bench.client.send("orders", "done")
        await until(lambda: event(running, "acked") + event(running, "retried") == 2)
    assert event(running, "retried") == 0


async def test_a_rejected_message_stays_until_the_dead_letter_queue_exists(bench: Workbench) -> None:
    options: Any = {"dead_letter": "nowhere", "retry": Backoff("5s", jitter="none")}
    async with bench.handling(acting.act_async, "reject", **options) as running:
        await bench.settled(running)
        assert bench.counts("orders") == (0, 1)
        bench.client.create_queue("nowhere")
        bench.server.advance(5_000)
        await bench.settled(running)
        assert (bench.counts("orders"), bench.counts("nowhere")) == ((0, 0), (1, 0))


async def test_a_message_of_the_maximum_size_is_moved_without_reasons(bench: Workbench) -> None:
    async with bench.handling(acting.takes_number, "x" * MESSAGE_BYTES.maximum, dead_letter="dead") as running:
        await bench.settled(running)
        assert event(running, "rejected") == 1
    (letter,) = bench.client.receive("dead", count=10, wait_s=0)
    assert (len(letter.body), letter.attributes) == (MESSAGE_BYTES.maximum, {})


def test_a_call_whose_thread_cannot_be_started_does_not_count_as_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads("veilmq-failing", 1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda thread: _raise(RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError, match="new thread"):
            threads.submit(lambda: 1)
        assert threads.at_work == 0
    assert threads.submit(lambda: 2).result(60) == 2
    threads.close()


def _raise(error: Exception) -> None:
    raise error


def test_consecutive_calls_share_a_thread() -> None:
    """So start-up functions run in one thread."""
    threads, following, begin = Threads("veilmq-follows", 2), Future[Future[threading.Thread]](), threading.Event()
    first = threads.submit(lambda: begin.wait(60) and threading.current_thread())
    first.add_done_callback(lambda _: following.set_result(threads.submit(threading.current_thread)))
    begin.set()
    assert following.result(60).result(60) is first.result()
    assert [each.name for each in threading.enumerate() if each.name.startswith("veilmq-follows")] == [
        "veilmq-follows-1"
    ]
    threads.close()
