"""From the queue to the handler: receives, polls, prefetch and memory limits, and the order of calls."""

import asyncio
import json
from typing import Any

import pytest

from tests.consumer.simulation import message
from tests.consumer.workbench import WAIT, until, workbench
from veilmq.client import HttpQueueClient, NewMessage
from veilmq.client.messages import ClientError, Unreachable
from veilmq.consumer.clock import SystemClock
from veilmq.consumer.context import Context
from veilmq.consumer.handlers import Batching, Handler, Options, make_handler
from veilmq.consumer.intake import Intake, Prefetch, Schedule, affordable, is_final
from veilmq.consumer.leases import LeaseTable, Subscription
from veilmq.consumer.renewal_policies import Adaptive, NServiceBusPolicy, RenewalPolicy
from veilmq.core.settings import SettingValue
from veilmq.testing import RunningServer

QUEUE = "orders"
RULES = json.dumps({"version": 1, "classes": [{"name": "short", "visibility_timeout_s": 5}], "keys": {}, "default": 0})


class RecordingClient:
    """The real client; records the timeouts sent and the number of reads of the queue's settings."""

    def __init__(self, client: HttpQueueClient) -> None:
        self._client = client
        self.sent: list[int | None] = []
        self.reads = 0

    def show(self, queue: str) -> Any:
        self.reads += 1
        return self._client.show(queue)

    def receive(self, queue: str, **options: Any) -> Any:
        self.sent.append(options["timeout_s"])
        return self._client.receive(queue, **{**options, "wait_s": 0})


def subscribed(options: Options) -> Subscription:
    return Subscription(LeaseTable(SystemClock()), options.queue, options.policy)


def intake_of(client: Any, options: Options, subscription: Subscription) -> Intake:
    """Return an intake whose ``receive`` the test calls."""
    return Intake(client, options, subscription, asyncio.to_thread, capacity=int, received=list, failed=str)


def received_by(
    client: HttpQueueClient, policy: RenewalPolicy, **settings: SettingValue
) -> tuple[RecordingClient, list[int]]:
    """Receive three times from a queue with one message; return the client, and the timeouts of the leases."""
    client.create_queue(QUEUE, {"visibility_timeout_s": 45, **settings})
    client.send(QUEUE, "x")
    recording: Any = RecordingClient(client)
    options = Options(queue=QUEUE, policy=policy)
    intake = intake_of(recording, options, subscribed(options))
    leases = [lease for _ in range(3) for lease in intake.receive(10)]
    return recording, [lease.timeout_s for lease in leases]


@pytest.mark.parametrize("policy", [NServiceBusPolicy(), Adaptive()], ids=["nservicebus", "adaptive"])
def test_with_visibility_rules_each_receive_sends_a_timeout(
    server: RunningServer, client: HttpQueueClient, policy: RenewalPolicy
) -> None:
    """Otherwise messages would have different timeouts, which the reply does not contain."""
    recording, timeouts = received_by(client, policy, visibility_rules=RULES)
    (held,) = server.queue(QUEUE).in_flight
    assert (recording.sent, recording.reads, timeouts) == ([45] * 3, 1, [45])
    assert held.visible_at_ms == server.clock.now_ms() + 45_000


def test_with_visibility_rules_adaptive_sends_its_own_timeout(server: RunningServer, client: HttpQueueClient) -> None:
    client.create_queue(QUEUE, {"visibility_rules": RULES})
    client.send(QUEUE, "x")
    options = Options(queue=QUEUE, policy=Adaptive(), wait_s=0)
    subscription = subscribed(options)
    intake = intake_of(client, options, subscription)
    subscription.hold.add(100.0, now_s=subscription.table.clock.now_s())
    (lease,) = intake.receive(10)
    (held,) = server.queue(QUEUE).in_flight
    assert (lease.timeout_s > 120, lease.requested_at_s < lease.received_at_s) == (True, True)
    assert held.visible_at_ms == server.clock.now_ms() + lease.timeout_s * 1_000


UNREACHABLE = Unreachable("http://nowhere", "made up")
MISSING = ClientError("AWS.SimpleQueueService.NonExistentQueue", "There is none.", 400)


class Source:
    """A queue whose polls return when the test sets their replies."""

    def __init__(self, capacity: int = 100) -> None:
        self.capacity = capacity
        self.polls: list[int] = []
        self.replies: list[asyncio.Future[list[str]]] = []
        self.received: list[Any] = []
        self.failures: list[Exception] = []
        self.pauses: list[float] = []
        self.resume = asyncio.Event()

    def hang_up(self) -> None:
        """Do nothing: the test ends the polls."""

    def intake(self) -> Intake:
        client: Any = self  # without `receive`, because `poll` replaces it
        options = Options(queue=QUEUE, polls=3)
        return Intake(
            client,
            options,
            subscribed(options),
            self.poll,
            capacity=lambda: self.capacity,
            received=self.received.extend,
            failed=self.failures.append,
            pause=self.pause,
        )

    async def poll(self, _: object, count: int) -> list[str]:
        self.polls.append(count)
        reply: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self.replies.append(reply)
        return await reply

    async def pause(self, seconds: float) -> None:
        """Record the pause, and wait until the test ends it."""
        self.pauses.append(seconds)
        self.resume.clear()
        await self.resume.wait()


async def run_loop() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def started(**options: int) -> tuple[Source, Intake]:
    source = Source(**options)
    intake = source.intake()
    intake.fill()
    await run_loop()
    return source, intake


async def test_there_is_one_poll_while_the_queue_is_empty_and_several_after_a_message() -> None:
    source, intake = await started()
    assert source.polls == [10]
    source.replies[0].set_result(["a"])
    await run_loop()
    assert (source.received, len(intake.polls)) == (["a"], 3)
    for reply in source.replies[1:]:
        reply.set_result([])
    await run_loop()
    assert len(intake.polls) == 1


async def test_the_requests_of_polls_in_progress_use_capacity() -> None:
    source, _ = await started(capacity=14)
    assert source.polls == [10]
    source.capacity = 14
    source.replies[0].set_result(["a"])
    await run_loop()
    assert source.polls == [10, 10, 4], "the last two request fourteen in total"


async def test_without_capacity_there_is_no_poll() -> None:
    source, intake = await started(capacity=0)
    assert source.polls == []
    source.capacity = 1
    intake.fill()
    await run_loop()
    assert source.polls == [1]


async def test_pauses_after_errors_grow_up_to_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """Polls that one outage ends cause one pause and one line."""
    source, intake = await started()
    source.replies[0].set_result(["first"])
    await run_loop()
    assert len(intake.polls) == 3
    for _ in range(6):
        for reply in filter(lambda reply: not reply.done(), source.replies):
            reply.set_exception(UNREACHABLE)
        await run_loop()
        intake.fill()
        assert len(intake.polls) == 0, "no poll starts during a pause"
        source.resume.set()
        await run_loop()
    assert [round(pause / full, 2) for pause, full in zip(source.pauses, (1, 2, 4, 8, 10, 10), strict=True)] == [
        pytest.approx(0.875, abs=0.13)
    ] * 6
    assert len(caplog.records) == 6
    source.replies[-1].set_result(["a"])
    await run_loop()
    assert source.received == ["first", "a"]
    assert source.failures == []


async def test_a_fatal_error_is_reported_once_and_ends_the_intake() -> None:
    source, intake = await started()
    source.replies[0].set_exception(MISSING)
    await run_loop()
    intake.fill()
    assert (source.failures, source.pauses, len(intake.polls)) == ([MISSING], [], 0)


async def test_a_stop_waits_for_polls_in_progress() -> None:
    source, intake = await started()
    stopping = asyncio.create_task(intake.stop())
    await run_loop()
    assert not stopping.done()
    source.replies[0].set_result(["last"])
    await stopping
    assert (source.received, len(intake.polls)) == (["last"], 0)


@pytest.mark.parametrize(
    ("error", "fatal"),
    [
        (MISSING, True),
        (ClientError("QueueDoesNotExist", "", 400), True),
        (ClientError("AccessDeniedException", "", 403), True),
        (ClientError("InvalidSignatureException", "", 403), True),
        (ClientError("ExpiredTokenException", "", 403), True),
        (ValueError("the timeout is 0"), True),
        (ClientError("ThrottlingException", "", 400), False),
        (ClientError("RequestThrottled", "", 403), False),
        (ClientError("OverLimit", "", 403), False),
        (ClientError("InternalError", "", 500), False),
        (UNREACHABLE, False),
    ],
    ids=[
        "query",
        "json",
        "denied",
        "secret",
        "expired",
        "unusable",
        "throttled",
        "403",
        "quota",
        "internal",
        "unreachable",
    ],
)
def test_only_errors_that_retries_cannot_fix_are_fatal(error: Exception, fatal: bool) -> None:
    assert is_final(error) is fatal


def test_there_is_no_prefetch_before_the_first_measurement_or_with_slow_handlers() -> None:
    prefetch = Prefetch()
    assert prefetch.target(10, lease_s=30) == 0
    prefetch.handled(2.0)
    prefetch.received(0.01)
    assert prefetch.target(10, lease_s=30) == 0


def test_the_messages_handled_during_two_receives_are_prefetched() -> None:
    """Ten slots of 10 ms handle 1,000 messages a second; a new receive has a weight of one fifth."""
    prefetch = Prefetch()
    prefetch.handled(0.01)
    prefetch.received(0.05)
    assert prefetch.target(10, lease_s=30) == 21
    prefetch.received(0.06)
    assert prefetch.target(10, lease_s=30) == 41


def test_prefetch_is_limited_by_the_option_and_by_half_a_lease() -> None:
    prefetch = Prefetch(5)
    prefetch.handled(0.5)
    prefetch.received(1.0)
    assert prefetch.target(100, lease_s=30) == 5
    assert prefetch.target(2, lease_s=1) == 2


@pytest.mark.parametrize(
    ("bytes_left", "most", "expected"),
    [(35, 10, 3), (35, 3, 3), (35, 0, 0), (35, -2, -2), (5, 10, 1), (0, 10, 0), (-5, 10, 0)],
)
def test_the_capacity_is_estimated_by_the_mean_size(bytes_left: int, most: int, expected: int) -> None:
    """It is at least one below the limit, and zero above it."""
    assert affordable(most, bytes_left=bytes_left, received=4, received_bytes=40) == expected


def test_the_first_receive_is_as_large_as_possible() -> None:
    assert affordable(10, bytes_left=5, received=0, received_bytes=0) == 10


async def test_a_consumer_holds_messages_up_to_its_limit_of_bytes() -> None:
    """25 bytes are two messages and half of a third, which is the last one received; the others stay in the queue."""
    held: list[int] = []
    bodies: list[str] = []
    with workbench() as bench:
        app = bench.consumer("large")

        @app.handler(wait=WAIT, max_outstanding_bytes=25, concurrency=8)
        async def work(body: str) -> None:
            bodies.append(body)

        bench.client.send("large", "0" * 30)
        async with bench.working(app) as running:
            await until(lambda: bodies)
            app.on("receive", lambda ctx: held.append(running.runners[0].held))
            for number in range(1, 31, 10):
                batch = [NewMessage(body=f"{place:010d}") for place in range(number, number + 10)]
                bench.client.send_batch("large", batch)
            await until(lambda: len(bodies) == 31)
            await bench.settled(running)
    assert max(held) <= 3


def deliveries(*texts: str, at_s: float = 0) -> list[Context]:
    """Return deliveries received at ``at_s``; the group is the first letter of the text, a digit means no group."""
    table = LeaseTable(SystemClock())
    messages = [message(text, body=text, group=text[0] if text[0].isalpha() else None) for text in texts]
    leases = table.take(
        Subscription(table, "q", NServiceBusPolicy()), messages, requested_at_s=0, answered_at_s=at_s, timeout_s=30
    )
    return [Context(lease.message, lease) for lease in leases]


HANDLER = make_handler(lambda body: None, queue=QUEUE)


def keyed(linger_s: float) -> Handler:
    """Return a handler of batches of two messages with the same first letter."""
    batching = Batching(size_max=2, linger_s=linger_s, key=lambda item: item.context.message.body[0])
    return make_handler(lambda batch: None, batching=batching, queue=QUEUE)


def filled(given: list[Context], *, ordered: bool = True) -> Schedule:
    schedule = Schedule(HANDLER, ordered=ordered, wake=int)
    for delivery in given:
        schedule.add(delivery)
    return schedule


def bodies_of(given: list[Context]) -> list[str]:
    return [delivery.message.body for delivery in given]


def taken(schedule: Schedule) -> list[str]:
    found = []
    while members := schedule.next():
        found += bodies_of(members)
    return found


def test_one_message_of_each_group_is_ready() -> None:
    schedule = filled(deliveries("a1", "a2", "b1", "1"))
    assert len(schedule) == 4
    assert taken(schedule) == ["a1", "b1", "1"]
    assert len(schedule) == 1


def test_the_next_message_of_a_group_is_ready_when_the_previous_one_is_done() -> None:
    given = deliveries("a1", "a2", "a3")
    schedule = filled(given)
    assert taken(schedule) == ["a1"]
    schedule.done(given[0])
    assert taken(schedule) == ["a2"]
    schedule.done(given[1])
    assert taken(schedule) == ["a3"]
    schedule.done(given[2])
    schedule.add(deliveries("a4")[0])
    assert taken(schedule) == ["a4"], "the group was empty"


def test_a_failure_returns_the_rest_of_the_group_once() -> None:
    given = deliveries("a1", "a2", "a3", "b1")
    schedule = filled(given)
    taken(schedule)
    assert bodies_of(schedule.failed(given[0])) == ["a2", "a3"]
    assert schedule.failed(given[0]) == []
    assert len(schedule) == 0


def test_a_blocked_message_is_removed_with_those_behind_it() -> None:
    given = deliveries("a1", "a2", "a3", "a4")
    schedule = filled(given)
    taken(schedule)
    assert bodies_of(schedule.remove(given[2])) == ["a4"]
    assert len(schedule) == 1
    schedule.done(given[0])
    assert taken(schedule) == ["a2"]


def test_a_ready_message_is_removed_with_its_group() -> None:
    given = deliveries("a1", "a2")
    schedule = filled(given)
    assert bodies_of(schedule.remove(given[0])) == ["a2"]
    assert taken(schedule) == []
    assert schedule.remove(given[0]) == []


def test_an_earlier_delivery_does_not_unblock_a_group_that_was_received_again() -> None:
    """The reply to its release arrived after the next receive."""
    first, *blocked = deliveries("a1", "a2")
    schedule = filled([first, *blocked])
    assert taken(schedule) == ["a1"]
    assert schedule.failed(first) == blocked
    for delivery in deliveries("a1", "a2", "a3"):
        schedule.add(delivery)
    assert taken(schedule) == ["a1"]
    assert schedule.failed(first) == []
    schedule.done(first)
    assert (taken(schedule), schedule.blocked) == ([], 2)


def test_after_a_drain_the_group_of_a_running_message_stays_blocked() -> None:
    given = deliveries("a1", "a2", "b1", "b2")
    schedule = filled(given)
    schedule.next()
    assert bodies_of(schedule.drain()) == ["b1", "a2", "b2"]
    assert len(schedule) == 0
    schedule.add(deliveries("a3")[0])
    assert taken(schedule) == [], "a1 is not done"


@pytest.mark.parametrize("linger_s", [0.0, 3_600.0])
async def test_a_batch_closes_when_it_is_full_or_has_lingered(linger_s: float) -> None:
    handler = make_handler(lambda batch: None, batching=Batching(size_max=2, linger_s=linger_s), queue=QUEUE)
    schedule = Schedule(handler, ordered=False, wake=int)
    first, second, third, fourth = deliveries("1", "2", "3", "4")
    schedule.add(first)
    assert (schedule.next(), schedule.ready) == (([], 1) if linger_s else ([first], 0))
    for delivery in (second, third, fourth):
        schedule.add(delivery)
    full, rest = ([first, second], [third, fourth]) if linger_s else ([second, third], [fourth])
    assert schedule.next() == full
    assert (schedule.remove(fourth), len(schedule)) == ([], len(rest) - 1)
    assert schedule.next() == rest[:-1]
    assert schedule.drain() == []


async def test_a_batch_that_has_lingered_is_next_before_a_later_full_one() -> None:
    """Otherwise a backlog of one key would delay rare keys."""
    schedule = Schedule(keyed(0.0), ordered=False, wake=int)
    (first,), later = deliveries("a1"), deliveries("b1", "b2", at_s=1)
    for delivery in (first, *later):
        schedule.add(delivery)
    assert [schedule.next(), schedule.next(), schedule.next()] == [[first], later, []]


async def test_a_full_batch_is_next_before_a_later_one() -> None:
    schedule = Schedule(keyed(0.0), ordered=False, wake=int)
    first, second, third, fourth = deliveries("a1", "a2", "b1", "b2")
    for delivery in (first, second, third):
        schedule.add(delivery)
    assert (schedule.next(), schedule.ready) == ([first, second], 1)
    schedule.add(fourth)
    assert schedule.next() == [third, fourth], "the open batch was filled"


async def test_a_removed_message_does_not_count_for_the_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    schedule = Schedule(keyed(1.0), ordered=False, wake=int)
    first, second = deliveries("a1", "a2")
    schedule.add(first)
    assert (schedule.remove(first), len(schedule)) == ([], 0)
    now_s = 0.9
    schedule.add(second)
    now_s = 1.1
    assert schedule.next() == []
    now_s = 1.9
    assert schedule.next() == [second]
