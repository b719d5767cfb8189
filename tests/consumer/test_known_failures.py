"""Known failures of other consumers; each test belongs to a section of docs/known-failures-of-others.md.

They run against a server in virtual time, while a competing consumer polls for messages.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.consumer import acting
from tests.consumer.simulation import TimedBench, timed_bench
from tests.consumer.workbench import WAIT, Job, event, until
from veilmq.client import NewMessage, ReceivedMessage
from veilmq.consumer import Adaptive, Backoff, Context, Fixed, LeaseState, RetryLater
from veilmq.consumer.renewal_policies import Measured
from veilmq.testing import faults

pytestmark = pytest.mark.slow

QUEUE = "work"
HOUR_S = 3_600


@pytest.fixture
def bench() -> Iterator[TimedBench]:
    with timed_bench() as made:
        yield made


def send(bench: TimedBench, *bodies: str, queue: str = QUEUE) -> None:
    for first in range(0, len(bodies), 10):
        bench.client.send_batch(queue, [NewMessage(body=body) for body in bodies[first : first + 10]])


async def test_long_work_and_long_delays_are_handled_once(bench: TimedBench) -> None:
    """1: work of twenty timeouts, and a retry after two hours, are not delivered to another consumer."""
    app, queue = bench.consumer(QUEUE, visibility_timeout_s=30), bench.queue(QUEUE)
    handled: Counter[str] = Counter()
    end = asyncio.Event()

    @app.handler(wait=WAIT)
    async def work(body: str) -> None:
        handled[body] += 1
        if body == "later":
            raise RetryLater("2h")
        await end.wait()

    send(bench, "long", "later")
    async with bench.working(app) as running:
        await until(lambda: handled.total() == 2 and running.runners[0].held == 1)  # the other is delayed
        await bench.guard(QUEUE, 600)
        end.set()
        await bench.settled(running)
        assert bench.left_s(queue.messages()) == [2 * HOUR_S - 600]
    assert handled == {"long": 1, "later": 1}


async def test_prefetched_messages_do_not_expire_while_they_wait(bench: TimedBench) -> None:
    """2: minutes behind a slow one; and a refused delete does not end the consumer."""
    app = bench.consumer(QUEUE, visibility_timeout_s=30)
    handled: list[tuple[str, int]] = []
    end = asyncio.Event()

    @app.handler(wait=WAIT, concurrency=1, prefetch=5)
    async def work(message: ReceivedMessage) -> None:
        handled.append((message.body, message.receive_count))
        if message.body == "slow":
            await end.wait()

    send(bench, "quick", "slow", "waits")
    bench.server.faults.script("DeleteMessageBatch", faults.THROTTLED)
    async with bench.working(app) as running:
        await until(lambda: running.runners[0].waiting == 1)
        await bench.guard(QUEUE, 200)
        assert handled == [("quick", 1), ("slow", 1)]
        bench.server.faults.script("DeleteMessageBatch", faults.failed_entries(0))
        end.set()
        await bench.settled(running)
    assert handled == [("quick", 1), ("slow", 1), ("waits", 1)]
    assert bench.server.faults.left == []
    assert bench.counts(QUEUE) == (0, 0)


async def test_messages_of_the_last_poll_are_released_at_a_stop(bench: TimedBench) -> None:
    """3: the queue has a timeout of an hour, and a poll is in progress at the stop."""
    app = bench.consumer(QUEUE, visibility_timeout_s=HOUR_S)
    app.declare(acting.act_async, wait=WAIT)

    async with bench.working(app) as running:
        await bench.settled(running)
        stopping = asyncio.create_task(running.stop())
        await asyncio.sleep(0)
        send(bench, "too late")
        await stopping
        assert event(running, "received") == 1
        assert event(running, "started") == 0
    assert bench.receive_bodies(QUEUE) == ["too late"]


async def test_leases_are_renewed_while_handlers_finish_after_a_stop(bench: TimedBench) -> None:
    """4: ten timeouts pass between the stop and the end of the handler."""
    app, job = bench.consumer(QUEUE, grace="1h", visibility_timeout_s=30), Job()
    app.declare(job.work, wait=WAIT)
    send(bench, "x")
    async with bench.working(app) as running:
        await until(lambda: job.bodies)
        stopping = asyncio.create_task(bench.stop(running))
        await bench.guard(QUEUE, 300)
        job.go_on.set()
        await stopping
        assert running.exit_code == 0
    assert job.bodies == ["x"]
    assert bench.counts(QUEUE) == (0, 0)


def test_stops_dead_letter_no_message(bench: TimedBench) -> None:
    """5: five deployments, each during a handler, on a queue that allows one receive of each message."""
    bench.queue("dead")
    handled: list[str] = []

    async def deployment() -> None:
        app, job = bench.consumer(QUEUE, grace="1h"), Job()
        app.declare(job.work, wait=WAIT, concurrency=1)
        async with bench.working(app) as running:
            await until(lambda: job.bodies)
            stopping = asyncio.create_task(bench.stop(running))
            await until(lambda: running.stopping)  # else it may receive more, and release it
            await bench.elapse(60)
            job.go_on.set()
            await stopping
        assert not job.cancelled
        handled.extend(job.bodies)

    bench.queue(QUEUE, visibility_timeout_s=30, dead_letter_queue="dead", receives_max=1)
    send(bench, *"abcde")
    for _ in range(5):
        asyncio.run(deployment())
    assert sorted(handled) == [*"abcde"]
    assert bench.counts(QUEUE) == bench.counts("dead") == (0, 0)


async def test_leases_are_renewed_until_deletes_are_confirmed_at_a_stop(bench: TimedBench) -> None:
    """6: deletes are pending at the stop, and arrive a minute late, after the timeout."""
    app = bench.consumer(QUEUE, visibility_timeout_s=30)
    app.declare(acting.act_async, wait=WAIT)
    bench.server.faults.script("DeleteMessageBatch", faults.late_request(seconds=60))

    send(bench, *"abc")
    async with bench.working(app) as running:
        await until(lambda: event(running, "started") == 3)
        stopping = asyncio.create_task(running.stop())
        await until(lambda: bench.server.faults.happened)
        await bench.guard(QUEUE, 55)
        assert bench.counts(QUEUE) == (0, 3)
        await bench.elapse(5)
        await stopping
        assert running.exit_code == 0
    assert bench.counts(QUEUE) == (0, 0)


async def test_a_renewal_after_the_delete_is_no_error(bench: TimedBench) -> None:
    """7: the message is deleted when its renewal arrives; the next message is renewed as usual."""
    app = bench.consumer(QUEUE, visibility_timeout_s=30)
    lost: list[str] = []
    ends = {"first": asyncio.Event(), "second": asyncio.Event()}
    app.on("lost", lambda ctx: lost.append(ctx.message_id))

    @app.handler(wait=WAIT, lease=Fixed(30, every=20))
    async def work(body: str) -> None:
        await ends[body].wait()

    bench.server.faults.script("ChangeMessageVisibilityBatch", faults.late_request(seconds=5))
    send(bench, "first")
    async with bench.working(app) as running:
        await until(lambda: running.runners[0].working)
        bench.clock.set(20)
        await until(lambda: bench.server.faults.happened)
        ends["first"].set()
        await until(lambda: bench.counts(QUEUE) == (0, 0))
        bench.clock.set(25)
        await until(lambda: running.renewals.results["gone"])
        send(bench, "second")
        await until(lambda: running.runners[0].working)
        await bench.guard(QUEUE, 100)
        ends["second"].set()
        await bench.settled(running)
        assert event(running, "acked") == 2
    assert running.exit_code == 0
    assert lost == []


async def test_leases_are_renewed_while_handlers_use_the_processor(bench: TimedBench) -> None:
    """8: a handler in a process computes without a pause."""
    app = bench.consumer(QUEUE, visibility_timeout_s=30)
    app.declare(acting.spin, wait=WAIT, pool="process", concurrency=1, prefetch=0)

    send(bench, "x")
    async with bench.working(app) as running:
        await until(lambda: running.runners[0].working)
        await bench.guard(QUEUE, 300)
        assert running.renewals.results.total() == running.renewals.calls > 1
        running.request_stop()
        running.request_stop()
    assert bench.receive_bodies(QUEUE) == ["x"]


async def test_the_renewer_keeps_hundreds_of_leases(bench: TimedBench) -> None:
    """9: 300 messages for ten timeouts, with as few calls as batches of ten allow."""
    app = bench.consumer(QUEUE, visibility_timeout_s=30)
    handled: Counter[str] = Counter()
    end = asyncio.Event()

    @app.handler(wait=WAIT, concurrency=300, lease=Fixed(30, every=20))
    async def work(body: str) -> None:
        handled[body] += 1
        await end.wait()

    send(bench, *map(str, range(300)))
    async with bench.working(app) as running:
        await until(lambda: running.runners[0].working == 300)
        await bench.guard(QUEUE, 300, every=10)
        assert running.renewals.calls <= 30 * 300 / 20
        end.set()
        await bench.settled(running)
    assert len(handled) == handled.total() == 300


async def test_a_handler_is_notified_of_a_lost_lease_and_the_margin_follows_the_network(bench: TimedBench) -> None:
    """10: by an event, the state and a cancellation; the margin is not fixed."""
    app = bench.consumer(QUEUE, visibility_timeout_s=30)
    states: list[LeaseState] = []
    began = asyncio.Event()
    app.on("lost", lambda ctx: states.append(ctx.lease.state))

    @app.handler(wait=WAIT)
    async def work(body: str, ctx: Context) -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            states.append(ctx.lease.state)

    send(bench, "x")
    async with bench.working(app) as running:
        await until(began.is_set)  # a call that was not begun would end without the handler
        bench.client.purge(QUEUE)
        await bench.elapse(30)
        await until(lambda: event(running, "left") and len(states) == 2)
    assert states == [LeaseState.LOST] * 2
    slow = Measured(hold_s=1.0, renewal_s=12.0, renewals=1_000, lateness_s=0.0)
    assert Adaptive().guard_s(slow) > 4 * 12


async def test_a_crash_hides_a_message_for_at_most_one_lease(bench: TimedBench) -> None:
    """11: after an hour of work as after a minute."""
    app, queue = bench.consumer(QUEUE, visibility_timeout_s=60), bench.queue(QUEUE)
    end = asyncio.Event()

    @app.handler(wait=WAIT, lease=Fixed(60), timeout="2h")
    async def work(body: str) -> None:
        await end.wait()

    send(bench, "x")
    async with bench.working(app) as running:
        await until(lambda: running.runners[0].working)
        left_s: set[float] = set()
        for _ in range(HOUR_S // 25):
            await bench.elapse(25)
            left_s.update(bench.left_s(queue.in_flight))
        assert 30 <= min(left_s) <= max(left_s) <= 60
        end.set()
        await bench.settled(running)


async def test_renewals_end_with_the_message_or_the_timeout_of_the_handler(bench: TimedBench) -> None:
    """12: a handler that never ends does not keep its message forever."""
    app = bench.consumer(QUEUE, visibility_timeout_s=30)
    handled: list[str] = []

    @app.handler(wait=WAIT, timeout="10m", lease=Fixed(60), on_lost="continue")
    async def work(body: str) -> None:
        handled.append(body)
        if handled == ["done", "stuck"]:
            await asyncio.Event().wait()

    send(bench, "done")
    async with bench.working(app) as running:
        await bench.settled(running)
        assert len(running.table.open_leases()) == 0
        await bench.elapse(HOUR_S)
        assert running.renewals.calls == 0
        await bench.settled(running)
        send(bench, "stuck")
        await until(lambda: running.runners[0].working)
        await bench.guard(QUEUE, 600)
        calls = running.renewals.calls
        await bench.elapse(60)
        await bench.eventually(lambda: handled == ["done", "stuck", "stuck"])
        assert calls <= running.renewals.calls <= calls + 2  # one in progress, and one of the next receive
        running.request_stop()
        running.request_stop()


@pytest.mark.parametrize("timeout_s", [1, 2, 5])
async def test_short_timeouts_are_renewed_in_time(bench: TimedBench, timeout_s: int) -> None:
    """13: timeouts of one, two and five seconds, and a handler of a minute."""
    app = bench.consumer(QUEUE, visibility_timeout_s=timeout_s)
    handled: list[str] = []
    end = asyncio.Event()

    @app.handler(wait=WAIT)
    async def work(body: str) -> None:
        handled.append(body)
        await end.wait()

    send(bench, "x")
    async with bench.working(app) as running:
        await until(lambda: running.runners[0].working)
        await bench.guard(QUEUE, 60, every=0.5)
        end.set()
        await bench.settled(running)
    assert handled == ["x"]
    assert bench.counts(QUEUE) == (0, 0)


async def test_a_failure_in_a_group_blocks_it_only_for_the_backoff(bench: TimedBench) -> None:
    """14: the timeout is a quarter of an hour; then the group is handled in order."""
    name = f"{QUEUE}.fifo"
    app, queue = bench.consumer(name, visibility_timeout_s=900), bench.queue(name)
    handled: list[str] = []

    @app.handler(wait=WAIT, concurrency=8, retry=Backoff("5s", jitter="none"))
    async def step(message: ReceivedMessage) -> None:
        if message.receive_count == 1 and message.body == "a":
            raise LookupError("not yet")
        handled.append(message.body)

    group = [NewMessage(body=body, group="g", dedup_id=body) for body in "abcd"]
    bench.client.send_batch(name, [*group, NewMessage(body="of another", group="h", dedup_id="h")])
    async with bench.working(app) as running:
        await bench.settled(running)
        assert handled == ["of another"]
        assert [message.body for message in queue.in_flight] == ["a"]
        await bench.elapse(5)
        await bench.settled(running)
    assert handled == ["of another", *"abcd"]


async def test_a_slow_message_delays_no_other_and_needs_few_renewals(bench: TimedBench) -> None:
    """15: forty quick messages overtake it; in three hours it needs less than a call in two minutes."""
    app = bench.consumer(QUEUE, visibility_timeout_s=30)
    quick: list[str] = []
    end = asyncio.Event()

    @app.handler(wait=WAIT, concurrency=2, timeout="4h")
    async def work(body: str) -> None:
        if body == "slow":
            await end.wait()
        else:
            quick.append(body)

    send(bench, "slow", *map(str, range(40)))
    async with bench.working(app) as running:
        await until(lambda: len(quick) == 40)
        await bench.guard(QUEUE, 3 * HOUR_S, every=60)
        assert running.renewals.calls < 3 * 60 / 2
        end.set()
        await bench.settled(running)
    assert len(set(quick)) == 40
