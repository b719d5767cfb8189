"""Stops of a consumer, FIFO groups, killed workers, and rejected messages."""

import asyncio
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.clients import boto
from tests.clients.program import Program
from tests.consumer import acting
from tests.consumer.workbench import PATIENCE_S, WAIT, WAIT_MS, Job, Workbench, event, until
from tests.tidy.tree import SRC
from veilmq.client import ClientError, HttpQueueClient, NewMessage, QueueClient, ReceivedMessage, SigningKey
from veilmq.client.boto import BotoQueueClient
from veilmq.consumer import Backoff, Batch, Consumer, Context, Ending, Reject, Running
from veilmq.core.limits import MESSAGE_BYTES
from veilmq.core.messages import Attribute
from veilmq.testing import RunningServer


def received(client: QueueClient, queue: str) -> list[tuple[str, int]]:
    """Return body and receive count of the visible messages of ``queue``."""
    return sorted((message.body, message.receive_count) for message in client.receive(queue, count=10, wait_s=0))


async def test_a_stop_releases_waiting_messages_and_finishes_running_handlers(bench: Workbench) -> None:
    job = Job()
    async with bench.handling(job.work, "first", concurrency=1, prefetch=5) as running:
        await until(lambda: job.bodies)
        stopping = asyncio.create_task(bench.stop(running))
        await asyncio.sleep(0)
        bench.client.send("orders", "second")
        job.go_on.set()
        await stopping
        assert running.exit_code == 0
    assert [body for body, _ in received(bench.client, "orders")] == ["second"]


def test_no_message_is_stuck_when_a_stop_cancels_polls(bench: Workbench) -> None:
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
        bench.server.advance(seconds=60)  # the pause after a purge
    assert sorted(handled, key=int) == [str(number) for number in range(20)]


async def test_a_handler_is_cancelled_and_its_message_released_after_the_grace(bench: Workbench) -> None:
    causes = []

    async def work(body: str, ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            causes.append(ctx.cancelled.is_set())

    async with bench.handling(work, "x", grace="10ms") as running:
        await until(lambda: running.runners[0].working)
    assert running.exit_code == 0
    assert causes == [True]
    assert received(bench.client, "orders") == [("x", 2)]


async def test_a_second_stop_waits_for_the_first(bench: Workbench) -> None:
    job = Job()
    async with bench.handling(job.work, "x") as running:
        await until(lambda: running.runners[0].working)
        stopping = [asyncio.create_task(running.stop()) for _ in range(2)]
        await asyncio.sleep(0)
        job.go_on.set()
        await asyncio.wait(stopping, return_when=asyncio.FIRST_COMPLETED)
        assert (running.exit_code, bench.counts("orders")) == (0, (0, 0))
        await asyncio.gather(*stopping)


async def test_a_stop_completes_after_one_was_cancelled(bench: Workbench) -> None:
    app, job, calls = bench.consumer("orders"), Job(), list[str]()
    app.declare(job.work, wait=WAIT)
    app.on_shutdown(lambda: calls.append("close"))
    bench.client.send("orders", "x")
    async with bench.working(app) as running:
        await until(lambda: running.runners[0].working)
        stopping = asyncio.create_task(running.stop())
        await until(lambda: running.stopping)
        stopping.cancel()
        await asyncio.wait([stopping])
        job.go_on.set()
    assert (calls, running.exit_code, bench.counts("orders")) == (["close"], 0, (0, 0))


async def test_a_thread_can_request_a_stop(bench: Workbench) -> None:
    """The event loop, which waits for nothing else, is woken."""
    app = bench.consumer("orders")
    app.declare(acting.act_async, wait="20s")
    async with asyncio.timeout(30), app.running() as running:
        await asyncio.to_thread(bench.server.wait_until, lambda: bench.server.parked)
        waiting = threading.Event()

        def requesting() -> None:
            waiting.wait()
            running.request_stop()

        threading.Thread(target=requesting).start()
        asyncio.get_running_loop().call_soon(waiting.set)
        await running.wait()


async def test_a_stop_request_at_the_end_of_the_block_keeps_the_grace(bench: Workbench) -> None:
    app = bench.consumer("orders")
    ended: list[str] = []

    @app.handler(wait=WAIT)
    async def work(body: str) -> None:
        await until(lambda: running.stopping and not running.runners[0].polling)
        ended.append(body)

    bench.client.send("orders", "x")
    async with asyncio.timeout(PATIENCE_S), app.running() as running:
        await until(lambda: running.runners[0].working and running.runners[0].polling)
        running.request_stop()
    assert (ended, bench.counts("orders")) == (["x"], (0, 0))


def test_a_stop_request_after_the_event_loop_ended_has_no_effect(bench: Workbench) -> None:
    app = bench.consumer("orders")
    app.declare(acting.act_async, wait=WAIT)

    async def program() -> Running:
        async with app.running() as running:
            return running

    running = asyncio.run(program())
    running.request_stop()
    assert running.stopping


async def test_a_second_stop_request_cancels_handlers_at_once(bench: Workbench) -> None:
    async with bench.handling(Job().work, "x", grace="1h") as running:
        await until(lambda: running.runners[0].working)
        running.request_stop()
        running.request_stop()
        await running.wait()
    assert received(bench.client, "orders") == [("x", 2)]


async def test_a_thread_that_checks_its_context_stops(bench: Workbench) -> None:
    async with bench.handling(acting.check_forever, "x", grace="10ms", concurrency=1) as running:
        await until(lambda: running.runners[0].working)
    assert running.exit_code == 0
    assert received(bench.client, "orders") == [("x", 2)]


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [False, True])
async def test_a_thread_that_does_not_stop_is_abandoned_with_exit_code_3(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """Also if its release gets no reply."""
    go_on, replies = threading.Event(), list[str]()

    def work(body: str) -> None:
        go_on.wait()

    def change(*_: object, **__: object) -> list[None]:
        go_on.wait(PATIENCE_S)
        replies.append("late")
        return [None]

    if hangs:
        monkeypatch.setattr("veilmq.consumer.runner.SETTLE_S_MAX", 0.1)
        monkeypatch.setattr(HttpQueueClient, "change_visibility_batch", change)
    async with bench.handling(work, "x", grace="10ms", concurrency=1) as running:
        await until(lambda: running.runners[0].working)
    assert replies == []
    go_on.set()
    assert running.exit_code == 3
    if not hangs:
        assert received(bench.client, "orders") == [("x", 2)]


async def test_the_result_of_an_abandoned_handler_is_ignored(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread ends while the stop still waits for a poll, and another consumer may have the message."""
    go_on, replied = threading.Event(), threading.Event()
    receive = HttpQueueClient.receive

    def receive_or_wait(self: HttpQueueClient, queue: str, **options: Any) -> list[ReceivedMessage]:
        messages = receive(self, queue, **options | {"wait_s": 0})
        if not messages:
            replied.wait(PATIENCE_S)
        return messages

    def work(body: str) -> None:
        go_on.wait(PATIENCE_S)

    class Recorded(Backoff):
        def decide(self, ending: Ending, attempt: int) -> Ending:
            decided.append(ending)
            return super().decide(ending, attempt)

    decided: list[Ending] = []
    monkeypatch.setattr("veilmq.consumer.runner.CANCEL_S", 0.01)
    app = bench.consumer("orders", grace="10ms")
    app.declare(work, wait="20s", concurrency=2, retry=Recorded())
    bench.client.send("orders", "x")
    with monkeypatch.context() as patch:
        patch.setattr(HttpQueueClient, "receive", receive_or_wait)
        async with app.running() as running:
            (runner,) = running.runners
            await until(lambda: runner.working and runner.polling)
            stopping = asyncio.create_task(running.stop())
            await until(lambda: runner.abandoned)
            go_on.set()
            await until(lambda: not runner.working)
            replied.set()
            await stopping
    assert (decided, received(bench.client, "orders")) == ([], [("x", 2)])


async def test_a_stop_without_grace_releases_the_messages_of_the_last_poll(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply arrives only after the stop has begun to end the polls."""
    app = bench.consumer("orders")
    app.declare(acting.act, wait=WAIT)
    bench.client.send("orders", "x")
    replied, hung_up = threading.Event(), list[int]()
    receive = HttpQueueClient.receive

    def receive_late(self: HttpQueueClient, queue: str, **options: Any) -> list[ReceivedMessage]:
        messages = receive(self, queue, **options)
        replied.wait(PATIENCE_S)
        return messages

    def hang_up(self: HttpQueueClient) -> None:
        hung_up.append(1)
        if len(hung_up) > 1:
            replied.set()

    with monkeypatch.context() as patch:
        patch.setattr(HttpQueueClient, "receive", receive_late)
        patch.setattr(HttpQueueClient, "hang_up", hang_up)
        async with app.running() as running:
            await until(lambda: bench.counts("orders") == (0, 1))
            for _ in range(2):
                running.request_stop()
            await running.stop()
    replied.set()
    assert (event(running, "released"), received(bench.client, "orders")) == (1, [("x", 2)])


async def test_drained_returns_when_all_messages_are_handled(bench: Workbench) -> None:
    job = Job()
    async with bench.handling(job.work, *map(str, range(25))) as running:
        with pytest.raises(TimeoutError):
            await running.drained("100ms")
        job.go_on.set()
        await running.drained("20s")
        assert bench.counts("orders") == (0, 0)


async def test_drained_waits_until_the_queues_are_created(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    app, go_on = Consumer("new", endpoint=bench.server.endpoint, create=True), threading.Event()
    app.declare(acting.act_async, wait=WAIT)
    create = HttpQueueClient.create_queue
    monkeypatch.setattr(HttpQueueClient, "create_queue", lambda *a: go_on.wait(PATIENCE_S) and create(*a))
    async with bench.working(app) as running:
        with pytest.raises(TimeoutError):
            await running.drained("100ms")
        go_on.set()
        await running.drained("20s")


async def test_drained_does_not_wait_for_polls(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    app = bench.consumer("others")
    app.declare(acting.act_async, wait=WAIT)
    bench.client.send("others", "x")
    (message,) = bench.client.receive("others")
    show, shown = HttpQueueClient.show, list[str]()

    def count(client: HttpQueueClient, queue: str) -> Any:
        shown.append(queue)
        return show(client, queue)

    monkeypatch.setattr(HttpQueueClient, "show", count)
    async with bench.working(app) as running:
        await asyncio.to_thread(bench.server.wait_until, lambda: bench.server.parked)
        drained = asyncio.create_task(running.drained("20s"))
        await until(lambda: len(shown) > 1)
        assert not drained.done()
        bench.client.delete("others", message.receipt)
        await drained


async def test_drained_waits_for_the_reply_of_a_poll(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has delivered a message, and its reply has not arrived."""
    app = bench.consumer("bringing")
    handled: list[str] = []
    given, shown, arrived = threading.Event(), threading.Event(), threading.Event()
    receive, show = HttpQueueClient.receive, HttpQueueClient.show

    def received_late(client: HttpQueueClient, *words: Any, **options: Any) -> Any:
        messages = receive(client, *words, **options)
        given.set()
        assert arrived.wait(PATIENCE_S)
        return messages

    def counting(client: HttpQueueClient, queue: str) -> Any:
        status = show(client, queue)
        if given.is_set():
            shown.set()
        return status

    @app.handler(wait=WAIT)
    async def work(body: str) -> None:
        handled.append(body)

    bench.client.send("bringing", "x")
    monkeypatch.setattr(HttpQueueClient, "receive", received_late)
    monkeypatch.setattr(HttpQueueClient, "show", counting)
    async with bench.working(app) as running:
        await until(given.is_set)
        drained = asyncio.create_task(running.drained("20s"))
        await until(shown.is_set)
        await asyncio.to_thread(bench.counts, "bringing")  # longer than the first count takes
        before = drained.done()
        arrived.set()
        await drained
        assert (before, handled) == (False, ["x"])


@pytest.mark.parametrize("drains", [False, True], ids=["", "drains"])
@pytest.mark.parametrize(
    ("queue", "error", "sentence"),
    [("nowhere", ClientError, "does not exist"), ("naked", ValueError, "0 s cannot be kept")],
)
async def test_a_consumer_of_an_unusable_queue_stops_with_an_error(
    bench: Workbench, queue: str, error: type[Exception], sentence: str, drains: bool
) -> None:
    bench.client.create_queue("naked", {"visibility_timeout_s": 0})
    app = Consumer(queue, endpoint=bench.server.endpoint)
    app.declare(acting.act_async, wait=WAIT)

    async def scenario() -> None:
        async with app.running() as running:
            await running.wait()
            if drains:
                await running.drained("1h")

    with pytest.raises(error, match=sentence):
        await scenario()


@pytest.mark.parametrize(
    ("option", "logged"), [({"timeout": "20ms"}, "timed out"), ({"stall": "20ms"}, "made no progress")]
)
async def test_a_handler_past_its_timeout_is_cancelled_and_retried(
    bench: Workbench, option: dict[str, Any], logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench.handling(acting.check_forever, "x", concurrency=1, **option) as running:
        await bench.settled(running)
        assert event(running, "retried") == 1
    assert f"the handler {logged}" in caplog.text


async def report_progress(context: Context) -> None:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + 0.25
    while loop.time() < end_s:
        context.progress(0.5)
        await asyncio.sleep(0)


async def test_a_handler_that_reports_progress_is_not_stalled(bench: Workbench) -> None:
    async def work(body: str, ctx: Context) -> None:
        await report_progress(ctx)

    async with bench.handling(work, "x", stall="100ms") as running:
        await until(lambda: event(running, "acked"))


async def test_a_batch_is_not_stalled_while_one_of_its_messages_makes_progress(bench: Workbench) -> None:
    app = bench.consumer("slow-batch")

    @app.batch(max_size=2, linger="1s", wait=WAIT, stall="100ms")
    async def work(batch: Batch[str]) -> None:
        await report_progress(batch[0].context)

    bench.client.send_batch("slow-batch", [NewMessage(body=text) for text in "ab"])
    async with bench.working(app) as running:
        await until(lambda: event(running, "acked") == 2)


async def test_a_quiet_queue_is_polled_one_wait_after_the_other(bench: Workbench) -> None:
    async with bench.handling(acting.act_async) as running:
        await bench.settled(running)
        assert running.runners[0].polling == 1
        bench.server.advance(WAIT_MS)
        await bench.settled(running)
        assert running.runners[0].polling == 1


QUEUE = "steps.fifo"
GROUPS = ("a", "b", "c")


def send(bench: Workbench, *texts: str) -> None:
    batch = [NewMessage(body=text, group=text[0], dedup_id=text) for text in texts]
    bench.client.send_batch(QUEUE, batch)


async def test_groups_are_handled_in_order_and_concurrently(bench: Workbench) -> None:
    app = bench.consumer(QUEUE, fifo=True)
    handled: list[str] = []
    active: set[str] = set()
    together = asyncio.Event()

    @app.handler(concurrency=8, wait=WAIT)
    async def step(body: str) -> None:
        assert body[0] not in active
        active.add(body[0])
        if len(active) == len(GROUPS):
            together.set()
        await together.wait()
        handled.append(body)
        active.remove(body[0])

    for number in range(4):
        send(bench, *(f"{group}{number}" for group in GROUPS))

    async with bench.working(app) as running:
        await bench.settled(running)
    for group in GROUPS:
        assert [text for text in handled if text[0] == group] == [f"{group}{number}" for number in range(4)]
    assert (event(running, "released"), bench.counts(QUEUE)) == (0, (0, 0))


@pytest.mark.parametrize("error", [Reject("bad"), LookupError("bad")], ids=["rejected", "failed"])
async def test_a_rejected_message_does_not_block_its_group(bench: Workbench, error: Exception) -> None:
    """Nor does one that fails as often as the queue allows: the queue would dead-letter both."""
    bench.client.create_queue("dead.fifo", {"fifo": True})
    app = bench.consumer(QUEUE, fifo=True, dead_letter_queue="dead.fifo", receives_max=1)
    handled: list[str] = []

    @app.handler(wait=WAIT)
    async def step(body: str) -> None:
        if body == "a0":
            raise error
        handled.append(body)

    send(bench, "a0", "a1")

    async with bench.working(app) as running:
        await bench.settled(running)
    assert handled == ["a1"]
    (letter,) = bench.client.receive("dead.fifo", count=10, wait_s=0)
    assert (letter.body, letter.group) == ("a0", "a")
    assert letter.attributes["veilmq-error"].text == type(error).__name__
    assert ("veilmq-trace" in letter.attributes) is isinstance(error, LookupError)


async def test_a_message_that_cannot_be_rejected_blocks_its_group(bench: Workbench) -> None:
    app, seen = bench.consumer(QUEUE, fifo=True), list[str]()

    @app.handler(wait=WAIT, retry=Backoff(draw=lambda: 0.0))
    async def step(body: str) -> None:
        seen.append(body)
        if seen == ["a0"]:
            raise Reject("there is no dead-letter queue")

    send(bench, "a0", "a1")
    async with bench.working(app) as running:
        await bench.settled(running)
    assert seen == ["a0", "a0", "a1"]


async def test_a_stop_releases_the_messages_behind_a_running_one(bench: Workbench) -> None:
    app, job = bench.consumer(QUEUE, fifo=True), Job()
    app.declare(job.work, wait=WAIT)
    send(bench, "a0", "a1", "a2")

    async with bench.working(app) as running:
        await until(lambda: job.bodies)
        stopping = asyncio.create_task(bench.stop(running))
        await until(lambda: event(running, "released") == 2)
        job.go_on.set()
        await stopping
    assert [message.body for message in bench.client.receive(QUEUE, count=10, wait_s=0)] == ["a1", "a2"]


WORK = "work"
MESSAGES = 24
CONCURRENCY = 8


def test_messages_of_a_killed_worker_are_handled_by_another(bench: Workbench) -> None:
    """Deleted ones are not delivered again, the others once their lease has ended."""
    app, queue = bench.consumer(WORK), bench.server.queue(WORK)
    sent = {f"m{number}" for number in range(MESSAGES)}
    bodies = sorted(sent)
    for first in range(0, MESSAGES, 8):
        bench.client.send_batch(WORK, [NewMessage(body=body) for body in bodies[first : first + 8]])
    program = Program(
        [sys.executable, "-m", "tests.consumer.workers"], endpoint=bench.server.endpoint, PYTHONPATH=str(SRC)
    )
    with program:
        begun = {program.expect("event", "begun")["body"] for _ in range(CONCURRENCY + 4)}
    bench.server.settle()
    leased = {message.body for message in queue.in_flight}
    deleted = sent - set(queue.bodies)
    assert {body for body in begun if not completes(body)} <= leased
    assert all(map(completes, deleted))
    handled: list[tuple[str, int]] = []

    @app.handler(wait=WAIT)
    async def work(message: ReceivedMessage) -> None:
        handled.append((message.body, message.receive_count))

    async def scenario() -> None:
        async with bench.working(app) as running:
            await bench.settled(running)
            assert not leased.intersection(body for body, _ in handled)
            bench.server.advance(30_000)
            await bench.settled(running)

    asyncio.run(scenario())
    assert sorted(body for body, _ in handled) == sorted(sent - deleted)
    assert {body for body, count in handled if count > 1} == leased
    assert bench.counts(WORK) == (0, 0)


def completes(body: str) -> bool:
    """Return whether the worker completes a message with this body, or gets stuck."""
    return int(body[1:]) % 2 == 0


OWN = {"kind": Attribute("String", "x"), "raw": Attribute("Binary", data=b"\x00")}
REASON = "no such article: 🧦"
TEN = {f"a{number}": Attribute("String", "x") for number in range(10)}


@pytest.fixture(params=["folder", "postgres"])
def server(request: pytest.FixtureRequest, store_settings: Callable[[str], dict[str, Any]]) -> Iterator[RunningServer]:
    with RunningServer(**store_settings(request.param)) as running, HttpQueueClient(running.endpoint) as client:
        for suffix, settings in (("", {}), (".fifo", {"fifo": True})):
            client.create_queue(f"dead{suffix}", settings)
            client.create_queue(f"work{suffix}", {**settings, "dead_letter_queue": f"dead{suffix}", "receives_max": 9})
        yield running


def run(
    server: RunningServer,
    queue: str,
    *,
    until: Callable[[], object],
    reject: bool,
    own: QueueClient | None = None,
    dead_letter: str | None = None,
) -> list[str]:
    """Consume ``queue`` until a condition holds, rejecting each message or none; return the handled bodies."""
    app = Consumer(queue, endpoint=server.endpoint, client=own)
    bodies: list[str] = []

    @app.handler(wait="1s", dead_letter=dead_letter)
    async def work(body: str) -> None:
        bodies.append(body)
        if reject:
            raise Reject(f"{REASON}\x08")

    async def consume() -> None:
        async with app.running() as running:
            await asyncio.to_thread(server.wait_until, until)
            stopping = asyncio.create_task(running.stop())
            while not stopping.done():  # a poll by boto3 cannot be cancelled
                if server.parked:
                    server.advance(1_000)
                await asyncio.sleep(0)

    asyncio.run(consume())
    return bodies


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_a_redrive_returns_a_rejected_message(server: RunningServer, client: HttpQueueClient, suffix: str) -> None:
    work, dead = f"work{suffix}", f"dead{suffix}"
    group, dedup_id = ("g", "d") if suffix else (None, None)
    sent = client.send(work, "a", attributes=OWN, group=group, dedup_id=dedup_id)
    run(server, work, reject=True, until=lambda: client.show(dead).visible)
    assert (client.show(work).visible, client.show(work).in_flight) == (0, 0)

    (letter,) = client.receive(dead, timeout_s=0)
    assert (letter.id, letter.body, letter.receive_count, letter.group) == (sent.id, "a", 2, group)
    assert {name: letter.attributes[name] for name in OWN} == OWN
    assert letter.attributes["veilmq-reason"].text == REASON
    assert letter.attributes["veilmq-queue"].text == work

    client.start_move(dead)
    handled = run(server, work, reject=False, until=lambda: _moved(server, client, dead, work))
    assert handled == ["a"]
    assert client.show(dead).visible == 0


def _moved(server: RunningServer, client: HttpQueueClient, dead: str, work: str) -> bool:
    server.advance(1_000)
    (move,) = client.moves(dead)
    status = client.show(work)
    return (move.status, move.messages_moved) == ("completed", 1) and not (status.visible or status.in_flight)


def test_the_reason_is_added_to_ten_attributes(server: RunningServer, client: HttpQueueClient) -> None:
    """A message cannot be sent with more than ten."""
    client.send("work", "a", attributes=TEN)
    run(server, "work", reject=True, until=lambda: client.show("dead").visible)
    (letter,) = client.receive("dead")
    assert letter.attributes == TEN | {"veilmq-reason": Attribute("String", REASON)}


def test_a_rejected_message_ignores_delays_of_queues(server: RunningServer, client: HttpQueueClient) -> None:
    client.set("dead", {"delay_s": 600})
    client.send("work", "a")
    run(server, "work", reject=True, until=lambda: client.show("dead").visible)


def test_a_rejected_fifo_message_is_never_a_duplicate(server: RunningServer, client: HttpQueueClient) -> None:
    for number in range(2):
        client.send("work.fifo", str(number), group="g", dedup_id=f"d{number}")
    run(server, "work.fifo", reject=True, until=lambda: client.show("dead.fifo").visible == 2)
    assert [letter.body for letter in client.receive("dead.fifo", count=10)] == ["0", "1"]


@pytest.mark.parametrize("body", ["a", "a" * MESSAGE_BYTES.maximum], ids=["small", "full"])
def test_a_message_rejected_through_boto3_is_copied(server: RunningServer, client: HttpQueueClient, body: str) -> None:
    """As on servers other than veilmq: the copy names the original, if there is room."""
    sqs = boto.client(server.endpoint)
    sent = client.send("work", body)
    run(server, "work", reject=True, until=lambda: client.show("dead").visible, own=BotoQueueClient(sqs))
    (letter,) = client.receive("dead")
    assert (letter.id != sent.id, letter.body) == (True, body)
    assert letter.attributes.get("veilmq-message-id") == (Attribute("String", sent.id) if body == "a" else None)


def test_messages_rejected_to_a_queue_of_another_type_are_copied(
    server: RunningServer, client: HttpQueueClient
) -> None:
    """The server refuses to move the first one; the consumer does not try again."""
    sent = [client.send("work.fifo", body, group="g", dedup_id=body).id for body in ("a", "b", "c")]
    run(server, "work.fifo", reject=True, until=lambda: client.show("dead").visible == 3, dead_letter="dead")
    letters = client.receive("dead", count=10)
    assert sorted(letter.attributes["veilmq-message-id"].text or "" for letter in letters) == sorted(sent)
    with urllib.request.urlopen(f"{server.admin_endpoint}/metrics") as reply:
        assert b'veilmq_requests_total{action="queues.forward",code="OK"} 1.0\n' in reply.read()


def exists(client: HttpQueueClient) -> bool:
    status = client.show("work")
    return bool(status.visible or status.in_flight or status.delayed)


def test_a_rejected_message_stays_in_its_region() -> None:
    key = SigningKey(id="123456789012", secret="any", region="eu-west-1")
    with RunningServer(regions="by-request") as server, HttpQueueClient(server.endpoint, key=key) as client:
        client.create_queue("dead", {})
        url = client.create_queue("work", {"dead_letter_queue": "dead", "receives_max": 9})
        for queue in ("work", url):
            client.send("work", queue)
            own = HttpQueueClient(server.endpoint, key=key)
            run(server, queue, reject=True, until=lambda: not exists(client), own=own)
        assert sorted(letter.body for letter in client.receive("dead", count=10)) == sorted(["work", url])
