"""What users of other consumers complain about, once each: a section of docs/known-failures-of-others.md each.

All of it against a real server, in virtual time. A rival looks for messages meanwhile; handlers end when they are let.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.consumer import acting
from tests.consumer.simulation import TimedBench, timed_bench
from tests.consumer.workbench import WAIT, event, until
from veilmq.client import NewMessage, ReceivedMessage
from veilmq.consumer import Adaptive, Backoff, Context, Fixed, LeaseState, RetryLater
from veilmq.consumer.renewal_policies import Measured
from veilmq.testing import faults

pytestmark = pytest.mark.slow

QUEUE = "work"
HOUR_S = 3_600


@pytest.fixture
def bench() -> Iterator[TimedBench]:
    """Give a server and a consumer's clock, which move together."""
    with timed_bench() as made:
        yield made


def send(bench: TimedBench, *bodies: str, queue: str = QUEUE) -> None:
    for first in range(0, len(bodies), 10):
        bench.client.send_batch(queue, [NewMessage(body=body) for body in bodies[first : first + 10]])


async def test_long_work_and_long_delays_are_not_handled_again_and_again(bench: TimedBench) -> None:
    """1: the work takes twenty times the timeout, a retry is asked for in two hours: nobody gets either meanwhile."""
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
        await until(lambda: handled.total() == 2 and running.runners[0].held == 1)  # the other waits there
        await bench.guard(QUEUE, 600)
        end.set()
        await bench.settled(running)
        assert bench.left_s(queue.messages()) == [2 * HOUR_S - 600]
    assert handled == {"long": 1, "later": 1}


async def test_what_waits_in_the_buffer_neither_expires_nor_breaks_the_consumer(bench: TimedBench) -> None:
    """2: minutes behind a slow one, past its timeout; and a delete that is refused ends nothing."""
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


async def test_what_the_last_poll_brings_is_not_hidden_for_its_timeout(bench: TimedBench) -> None:
    """3: an hour of timeout, a poll on its way at the stop: its message is free when the consumer has stopped."""
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
    assert bench.rivals(QUEUE) == ["too late"]


async def test_renewals_go_on_while_handlers_finish_after_a_stop(bench: TimedBench) -> None:
    """4: ten timeouts pass between the stop and the end of the handler; nobody gets its message."""
    app = bench.consumer(QUEUE, grace="1h", visibility_timeout_s=30)
    handled: list[str] = []
    begun, end = asyncio.Event(), asyncio.Event()

    @app.handler(wait=WAIT)
    async def work(body: str) -> None:
        handled.append(body)
        begun.set()
        await end.wait()

    send(bench, "x")
    async with bench.working(app) as running:
        await begun.wait()
        stopping = asyncio.create_task(bench.stop(running))
        await bench.guard(QUEUE, 300)
        end.set()
        await stopping
        assert running.exit_code == 0
    assert handled == ["x"]
    assert bench.counts(QUEUE) == (0, 0)


def test_stops_dead_letter_nothing(bench: TimedBench) -> None:
    """5: five deployments, each in the middle of a handler, and a queue that allows one receive of each message."""
    bench.queue("dead")
    handled: list[str] = []

    async def deployment() -> None:
        app = bench.consumer(QUEUE, grace="1h")
        begun, end = asyncio.Event(), asyncio.Event()

        @app.handler(wait=WAIT, concurrency=1)
        async def work(body: str) -> None:
            begun.set()
            await end.wait()
            handled.append(body)

        async with bench.working(app) as running:
            await begun.wait()
            stopping = asyncio.create_task(bench.stop(running))
            await until(lambda: running.stopping)  # else it may receive the rest, and the stop release it
            await bench.elapse(60)
            end.set()
            await stopping

    bench.queue(QUEUE, visibility_timeout_s=30, dead_letter_queue="dead", receives_max=1)
    send(bench, *"abcde")
    for _ in range(5):
        asyncio.run(deployment())
    assert sorted(handled) == [*"abcde"]
    assert bench.counts(QUEUE) == bench.counts("dead") == (0, 0)


async def test_deletes_are_not_lost_at_the_end_and_leases_last_until_they_are_confirmed(bench: TimedBench) -> None:
    """6: the deletes wait for others when the stop comes, and then arrive a minute late, past the timeout."""
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


async def test_a_renewal_that_arrives_after_the_delete_harms_nothing(bench: TimedBench) -> None:
    """7: the message is gone when it arrives; no loss, no error, and the next message is renewed as ever."""
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


async def test_work_that_keeps_the_interpreter_to_itself_starves_no_renewal(bench: TimedBench) -> None:
    """8: it computes without a pause, in a process; leases of its own and of others are renewed meanwhile."""
    app = bench.consumer(QUEUE, visibility_timeout_s=30)
    app.declare(acting.spin, wait=WAIT, pool="process", concurrency=1, prefetch=0)

    send(bench, "x")
    async with bench.working(app) as running:
        await until(lambda: running.runners[0].working)
        await bench.guard(QUEUE, 300)
        assert running.renewals.results.total() == running.renewals.calls > 1
        running.request_stop()
        running.request_stop()
    assert bench.rivals(QUEUE) == ["x"], "its process was ended, and the message released"


async def test_no_number_of_messages_is_too_much_for_the_renewer(bench: TimedBench) -> None:
    """9: 300 at once for ten timeouts, by as many calls as batches of ten need."""
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


async def test_a_handler_that_lost_its_message_is_told_and_the_margin_follows_the_network(bench: TimedBench) -> None:
    """10: a hook, the state, the cancellation; and no fixed margin that a slow network makes too small."""
    app = bench.consumer(QUEUE, visibility_timeout_s=30)
    told: list[LeaseState] = []
    app.on("lost", lambda ctx: told.append(ctx.lease.state))

    @app.handler(wait=WAIT)
    async def work(body: str, ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            told.append(ctx.lease.state)

    send(bench, "x")
    async with bench.working(app) as running:
        await until(lambda: running.runners[0].working)
        bench.client.purge(QUEUE)
        await bench.elapse(30)
        await until(lambda: event(running, "left"))
    assert told == [LeaseState.LOST] * 2
    slow = Measured(hold_s=1.0, renewal_s=12.0, renewals=1_000, lateness_s=0.0)
    assert Adaptive().guard_s(slow) > 4 * 12, "four renewals as slow as the slowest percent"


async def test_renewals_count_from_now_and_a_crash_hides_nothing_for_longer_than_a_lease(bench: TimedBench) -> None:
    """11: after an hour of work the message is hidden for a minute at most, as after the first minute."""
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


async def test_renewals_end_with_the_message_or_with_the_time_that_a_handler_may_take(bench: TimedBench) -> None:
    """12: nothing is renewed once it is done; a handler that never ends keeps its message no longer than allowed."""
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
        assert len(running.table) == 0
        await bench.elapse(HOUR_S)
        assert running.renewals.calls == 0
        await bench.settled(running)
        send(bench, "stuck")
        await until(lambda: running.runners[0].working)
        await bench.guard(QUEUE, 600)
        calls = running.renewals.calls
        await bench.elapse(60)
        await bench.eventually(lambda: handled == ["done", "stuck", "stuck"])
        assert calls <= running.renewals.calls <= calls + 2  # one under way, and one of the next receive
        running.request_stop()
        running.request_stop()


@pytest.mark.parametrize("timeout_s", [1, 2, 5])
async def test_a_short_timeout_is_kept(bench: TimedBench, timeout_s: int) -> None:
    """13: of one, two, five seconds, by a handler of a minute."""
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


async def test_a_failure_in_a_group_does_not_hide_the_rest_for_its_timeout(bench: TimedBench) -> None:
    """14: a quarter of an hour of timeout; after the head's backoff all of it is handled, in order, one at a time."""
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
        assert [message.body for message in queue.in_flight] == ["a"], "hidden for its backoff; the rest is not"
        await bench.elapse(5)
        await bench.settled(running)
    assert handled == ["of another", *"abcd"]


async def test_a_slow_message_holds_up_nobody_and_costs_little(bench: TimedBench) -> None:
    """15: forty quick ones pass it; and three hours of it cost less than half the calls of a renewal each minute."""
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
