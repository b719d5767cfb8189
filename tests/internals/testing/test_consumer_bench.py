"""The consumer bench: its event loop, its transport, the state that a test observes, and cleanup."""

import asyncio
import gc
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from tests.consumer.workbench import until
from veilmq.client.messages import ClientError, Unreachable
from veilmq.client.sqs import QueueClient
from veilmq.consumer import ByMessageId, Consumer, Context, Fixed, InMemory, NServiceBusPolicy, RetryLater
from veilmq.consumer.handlers import body_of
from veilmq.core.commands import VisibilityChange
from veilmq.testing import ConsumerBench, Renewal, RunningServer, SteppedClock, VirtualClock, faults
from veilmq.testing.clocks import VirtualLoop
from veilmq.testing.consumer_bench import Call, DirectTransport

CHANGE = [VisibilityChange(receipt="none", timeout_s=1)]


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with RunningServer() as running:
        running.queue("orders")
        yield running


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def client(server: RunningServer, clock: SteppedClock) -> QueueClient:
    return QueueClient(DirectTransport(server, clock))


def passing_time(server: RunningServer, clock: SteppedClock) -> threading.Event:
    """Move ``clock`` from one wake-up to the next, once the server is idle, until the returned event is set."""
    stop = threading.Event()

    def pass_time() -> None:
        while not stop.wait(0.001):
            sleeps, next_s = clock.sleeps, clock.next_s()
            server.settle()
            if next_s is not None and clock.sleepers and clock.sleeps == sleeps:
                clock.set(max(next_s, clock.now_s()))

    threading.Thread(target=pass_time).start()
    return stop


def test_a_failed_request_is_tried_three_times_in_virtual_time(
    server: RunningServer, clock: SteppedClock, client: QueueClient
) -> None:
    client.show("orders")
    stop = passing_time(server, clock)
    server.faults.script("SendMessage", faults.UNAVAILABLE, times=2)
    client.send("orders", "tea")
    server.faults.script("SendMessage", faults.UNAVAILABLE, times=3)
    with pytest.raises(ClientError, match="not available"):
        client.send("orders", "tea")
    server.faults.script("SendMessage", faults.REQUEST_DROPPED, times=3)
    with pytest.raises(Unreachable, match="reset by peer"):
        client.send("orders", "tea")
    stop.set()
    assert server.faults.left == []
    assert clock.now_s() > 0


def test_a_call_with_a_timeout_times_out_in_virtual_time_without_a_retry(
    server: RunningServer, clock: SteppedClock, client: QueueClient
) -> None:
    client.show("orders")
    stop = passing_time(server, clock)
    server.faults.script("ChangeMessageVisibilityBatch", faults.REQUEST_LOST)
    with pytest.raises(Unreachable, match="no answer in time"):
        client.change_visibility_batch("orders", CHANGE, call_timeout_s=7)
    stop.set()
    assert clock.now_s() == 7
    assert isinstance(client.change_visibility_batch("orders", CHANGE, call_timeout_s=7)[0], ClientError)


def test_a_call_is_its_own_connection(clock: SteppedClock) -> None:
    """It starts at once, and has no address."""
    call = Call("GET", "/", {}, b"", clock.alarm())
    started = []
    call.request.run_in_turn(lambda: started.append(call))
    assert started == [call]
    assert call.request.source_ip() is None


def test_a_withdrawal_after_the_reply_has_no_effect(server: RunningServer, clock: SteppedClock) -> None:
    call = Call("POST", "/", {}, b"", clock.alarm())
    server.handle(call.request)
    server.withdraw(call.request)
    server.settle()
    assert call.reply is not None
    assert call.reply.status == 404


def test_a_poll_that_timed_out_is_no_longer_parked(
    server: RunningServer, clock: SteppedClock, client: QueueClient
) -> None:
    client.show("orders")
    stop = passing_time(server, clock)
    with pytest.raises(Unreachable):
        client.receive("orders", wait_s=20)
    stop.set()
    server.wait_until(lambda: server.parked == 0)


HALF = "30s"


@dataclass
class Order:
    number: int


def working(span_s: float, **options: Any) -> Consumer:
    app = Consumer("orders")

    @app.handler(**options)
    async def ship(order: Order) -> None:
        await asyncio.sleep(span_s)

    return app


def play(app: Consumer, *steps: Any) -> ConsumerBench:
    """Send an order, take the steps (spans, and calls with the bench), and return the stopped bench."""

    async def scenario() -> ConsumerBench:
        async with ConsumerBench(app) as bench:
            bench.send(Order(1))
            for step in steps:
                if callable(step):
                    step(bench)
                else:
                    await bench.advance(step)
        return bench

    return asyncio.run(scenario())


async def test_a_bench_needs_no_start_and_no_stop() -> None:
    t = ConsumerBench(working(299, lease=NServiceBusPolicy()), VirtualClock())
    t.send(Order(1))
    await t.advance("10m")
    assert t.renewals == [(20, 40), (50, 40), *((20 + 30 * number, 40) for number in range(2, 10))]
    assert t.deleted == 1


def test_each_step_observes_its_own_instant() -> None:
    """The handler ends at exactly 50 s."""
    at_49, at_50 = [], []
    bench = play(
        working(50, lease=HALF),
        49.999,
        lambda t: at_49.append((t.deleted, t.queue().counts.in_flight, t.now_s)),
        0.001,
        lambda t: at_50.append((t.queue().counts.in_flight, t.now_s)),
        0.01,
    )
    assert at_49 == [(0, 1, 49.999)]
    assert at_50 == [(1, 50)], "the delete lingers for ten milliseconds"
    assert bench.renewals == [Renewal(15, 30), Renewal(30, 30), Renewal(45, 30)]
    assert bench.deleted == 1


def test_a_renewal_whose_reply_arrives_during_a_release_does_not_count() -> None:
    app, renewed = Consumer("orders"), list[float]()
    app.on("renew", lambda context: renewed.append(context.lease.remaining))

    @app.handler(lease=Fixed(30, 10))
    async def retry(order: Order) -> None:
        await asyncio.sleep(12)
        raise RetryLater("1h")

    def script(t: ConsumerBench) -> None:
        t.faults.script("ChangeMessageVisibilityBatch", faults.late_answer(seconds=4))

    bench = play(app, script, "1m")
    assert (bench.renewals, renewed, bench.faults.left) == ([], [], [])


def test_a_renewal_without_a_reply_times_out_and_is_retried() -> None:
    def script(t: ConsumerBench) -> None:
        t.faults.script("ChangeMessageVisibilityBatch", faults.REQUEST_LOST)

    bench = play(working(40, lease=HALF), script, "1m")
    assert [at_s for at_s, _ in bench.renewals] == [20.05, 35.05]
    assert (bench.deleted, bench.faults.left) == (1, [])


@pytest.mark.parametrize("fault", [faults.UNAVAILABLE, faults.ANSWER_DROPPED, faults.REQUEST_DROPPED], ids=repr)
def test_a_failed_receive_is_retried_by_the_transport_and_the_intake(fault: faults.Fault) -> None:
    """A message that was received without a reply is delivered again."""

    def script(t: ConsumerBench) -> None:
        t.faults.script("ReceiveMessage", fault, times=4)

    bench = play(working(1), script, "2m")
    assert (bench.deleted, bench.faults.left) == (1, [])


def test_a_poll_that_arrives_after_its_timeout_receives_nothing() -> None:
    """A later poll receives the message."""

    def script(t: ConsumerBench) -> None:
        t.faults.script("ReceiveMessage", faults.late_request(seconds=35))

    assert play(working(1), script, "3m").deleted == 1


def test_time_stands_still_while_a_handler_runs_in_a_thread() -> None:
    app = Consumer("orders")
    threads = []

    @app.handler
    def ship(order: Order, ctx: Context) -> None:
        with ctx.fence():
            threads.append(threading.current_thread().name)

    bench = play(app, "1s")
    assert (bench.deleted, len(threads)) == (1, 1)


async def test_time_stands_still_during_to_thread() -> None:
    app = Consumer("orders")
    done = threading.Event()

    @app.handler
    async def ship(order: Order) -> None:
        await asyncio.to_thread(done.wait)

    async with ConsumerBench(app) as t:
        t.send(Order(1))
        threading.Timer(0.05, done.set).start()
        await t.advance("1s")
        assert t.deleted == 1


def test_a_loop_is_not_idle_from_a_call_soon_threadsafe_on() -> None:
    loop, go_on = VirtualLoop(SteppedClock()), threading.Event()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run(until(lambda: loop.is_idle))
    loop.call_soon_threadsafe(go_on.wait)
    is_idle = loop.is_idle
    go_on.set()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    assert not is_idle


async def test_a_handler_in_a_thread_that_never_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test would hang, because virtual time waits for the thread."""
    app = Consumer("orders")
    go_on = threading.Event()

    @app.handler
    def ship(order: Order) -> None:
        go_on.wait()

    async with ConsumerBench(app) as t:
        await t.advance("1s")
        monkeypatch.setattr("veilmq.testing.consumer_bench.PATIENCE_S", 0.2)  # only now: the start may take longer
        t.send(Order(1))
        with pytest.raises(TimeoutError, match="make it async"):
            await t.advance("1s")
        go_on.set()


async def test_fifo_queues_are_created_by_their_names() -> None:
    app = Consumer("steps.fifo")
    done: list[tuple[str, float]] = []

    @app.handler
    async def step(name: str) -> None:
        await asyncio.sleep(10)
        done.append((name, asyncio.get_running_loop().time()))

    async with ConsumerBench(app) as t:
        for name in ("pick", "pack"):
            t.send(name, group="a", dedup_id=name)
        await t.advance("1m")
    assert done == [("pick", 10), ("pack", 20)]


async def test_the_dead_letter_queue_of_a_handler_is_created() -> None:
    app = Consumer("jobs")

    @app.handler(dead_letter="dead")
    async def job(number: int) -> None: ...

    async with ConsumerBench(app) as t:
        t.send("no number")
        await t.advance("1s")
        assert (t.queue().bodies, t.queue("dead").bodies) == ([], ["no number"])


def test_a_message_whose_delete_had_no_effect_is_recognised_by_its_record() -> None:
    def script(t: ConsumerBench) -> None:
        t.faults.script("DeleteMessageBatch", faults.IGNORED)

    bench = play(working(1, lease=30, idempotency=ByMessageId(InMemory())), script, "2m")
    assert (bench.events["started"], bench.deleted) == (1, 2)


async def test_a_queue_that_cannot_be_consumed_is_an_error() -> None:
    async with ConsumerBench(working(1)) as t:
        t.queue(visibility_timeout_s=0)
        with pytest.raises(ValueError, match="cannot be kept"):
            await t.advance("1s")


async def test_a_consumer_without_handlers_is_refused() -> None:
    async with ConsumerBench(Consumer("orders")) as t:
        with pytest.raises(ValueError, match="no handler"):
            await t.advance("1s")


def test_threads_end_with_the_last_reference_to_a_bench() -> None:
    """A bench that was never advanced leaves no thread either."""
    before = threading.active_count()
    bench: ConsumerBench | None = ConsumerBench(working(1))
    assert bench is not None
    assert bench.events == {}
    assert bench.deleted == 0
    bench = ConsumerBench(working(500))
    bench.send(Order(1))
    asyncio.run(bench.advance("1s"))
    bench = None
    gc.collect()
    assert threading.active_count() <= before + 1, "one other thread may end later"


def test_a_bench_that_is_never_stopped_prints_nothing_at_exit() -> None:
    program = (
        "import asyncio; from veilmq.consumer import Consumer; from veilmq.testing import ConsumerBench\n"
        "app = Consumer('orders')\n"
        "async def work(body: str) -> None: await asyncio.sleep(100)\n"
        "app.handler(work); t = ConsumerBench(app); t.send('x')\n"
        "asyncio.run(t.advance('10s')); print(t.events['started'])"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("1\n", "")


class Model(pydantic.BaseModel):
    number: int


@pytest.mark.parametrize(
    ("payload", "body"),
    [("x", "x"), (b"x", "x"), (Order(1), {"number": 1}), (Model(number=2), {"number": 2}), ([1, None], [1, None])],
    ids=["text", "bytes", "dataclass", "pydantic", "list"],
)
def test_a_payload_is_encoded_as_handlers_decode_it(payload: object, body: object) -> None:
    assert body_of(payload) == (body if isinstance(body, str) else msgspec.json.encode(body).decode())
    if not isinstance(body, str):
        assert json.loads(body_of(payload)) == body
