"""Simulations in virtual time: a consumer and a server on one clock, leases against a scripted queue, and policies.

On the one clock, time advances from one wake-up of the renewer to the next; threads, sockets and requests are real.
Event loops do not use that clock: a handler ends when the test lets it.
"""

import asyncio
import heapq
import math
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.consumer.workbench import Workbench
from tests.testing.advancing import AdvancingClock
from veilmq.client import HttpQueueClient, QueueClient, SigningKey
from veilmq.client.messages import ClientError, Hidden, ReceivedMessage, Unreachable
from veilmq.consumer import Consumer, Running
from veilmq.consumer.leases import Lease, LeaseState, LeaseTable, Renewer, Subscription, Watcher
from veilmq.consumer.renewal_policies import RenewalPolicy
from veilmq.core.commands import VisibilityChange
from veilmq.core.limits import SECOND_MS
from veilmq.core.messages import Attribute
from veilmq.core.settings import SettingValue
from veilmq.testing import RunningQueue, RunningServer, SeenMessage, SteppedClock


class OneClock(AdvancingClock):
    """The consumer's clock, which also moves that of a server."""

    def __init__(self, server: RunningServer) -> None:
        super().__init__()
        self._server = server
        self._begun_ms = server.clock.now_ms()
        self._moving = threading.Lock()

    def advance(self, duration_s: float) -> None:
        with self._moving:
            super().advance(duration_s)

    def set(self, at_s: float) -> None:
        """Advance the server to ``at_s``, then wake the threads that sleep on this clock."""
        self._server.advance(max(0, self._begun_ms + round(at_s * SECOND_MS) - self._server.clock.now_ms()))
        super().set(at_s)


class TimedConsumer(Consumer):
    """A consumer whose renewer sleeps only when it has replies, so that the clock waits for them."""

    def make(self, **options: Any) -> Running:
        return super().make(renewals_at_once=1, **options)


class TimedBench(Workbench):
    """A workbench whose consumer and server share a clock, made by ``timed_bench``."""

    def __init__(self, server: RunningServer, client: QueueClient) -> None:
        super().__init__(server, client)
        self.clock = OneClock(server)

    def consumer(self, queue: str, *, grace: str = "1s", **settings: SettingValue) -> Consumer:
        """Return a consumer of ``queue``, which is created with these settings if it is missing."""
        self.queue(queue, **settings)
        return TimedConsumer(queue, endpoint=self.server.endpoint, grace=grace, clock=self.clock)

    def queue(self, name: str, **settings: SettingValue) -> RunningQueue:
        return self.server.queue(name, **settings)

    async def elapse(self, seconds: float) -> None:
        await asyncio.to_thread(self.clock.advance, seconds)

    async def eventually(self, condition: Callable[[], object]) -> None:
        """Advance the clock by seconds until ``condition`` holds.

        A poll that should meet an instant may have been sent just before it; the next one is then needed.
        """
        while not condition():
            await self.elapse(1)

    async def guard(self, queue: str, seconds: float, *, every: float = 5) -> None:
        """Advance the clock; assert at each step that a competing consumer receives nothing."""
        for _ in range(round(seconds / every)):
            await self.elapse(every)
            assert self.receive_bodies(queue) == [], "a message in work was delivered to another consumer"

    def receive_bodies(self, queue: str) -> list[str]:
        return [message.body for message in self.client.receive(queue, count=10, wait_s=0)]

    def left_s(self, messages: list[SeenMessage]) -> list[float]:
        """Return how long, in seconds, each of ``messages`` stays hidden."""
        now_ms = self.server.clock.now_ms()
        return [((message.visible_at_ms or now_ms) - now_ms) / SECOND_MS for message in messages]

    async def stop(self, running: Running) -> None:
        """Stop ``running``; advance the clock until its polls return."""
        stopping = asyncio.create_task(running.stop())
        while not stopping.done():
            if self.server.parked:
                await self.elapse(1)
            await asyncio.sleep(0)
        await stopping


@contextmanager
def timed_bench(key: SigningKey | None = None, **settings: Any) -> Iterator[TimedBench]:
    """Yield a workbench with its own server; its client signs with ``key``."""
    with RunningServer(**settings) as server, HttpQueueClient(server.endpoint, key=key) as client:
        yield TimedBench(server, client)


BUSY = ClientError("ServiceUnavailable", "Later.", 503)
THROTTLED = ClientError("ThrottlingException", "Rate exceeded.", 400)
FORBIDDEN_FOR_NOW = ClientError("RequestThrottled", "Request is throttled.", 403)
GONE = ClientError(
    "InvalidParameterValueException", "Message does not exist or is not available for visibility timeout change.", 400
)
INVALID = ClientError("ReceiptHandleIsInvalid", "The input receipt handle is invalid.", 404)
BEYOND = ClientError(
    "InvalidParameterValue", "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]", 400
)
CUT_OFF = Unreachable("http://queue", "connection reset by peer")


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply to a call after ``takes_s``: ``error`` for the whole, or for entries by receipt."""

    error: ClientError | Unreachable | None = None
    entries: Mapping[str, ClientError | Hidden] = field(default_factory=dict)
    takes_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Call:
    """A call and its entries of (receipt, seconds)."""

    at_s: float
    entries: tuple[tuple[str, int], ...]


class ScriptedQueue:
    """Reply as scripted, then with success after ``usual_s``; record all calls."""

    def __init__(self, clock: SteppedClock, *, usual_s: float = 0.0) -> None:
        self.calls: list[Call] = []
        self.script: list[Answer] = []
        self._clock = clock
        self._usual_s = usual_s

    def change_visibility_batch(
        self, queue: str, changes: Sequence[VisibilityChange], *, call_timeout_s: float | None = None
    ) -> list[ClientError | Hidden | None]:
        self.calls.append(Call(self._clock.now_s(), tuple((change.receipt, change.timeout_s) for change in changes)))
        answer = self.script.pop(0) if self.script else Answer(takes_s=self._usual_s)
        assert call_timeout_s is not None
        self._clock.set(self._clock.now_s() + min(answer.takes_s, call_timeout_s))
        if answer.takes_s > call_timeout_s:
            raise Unreachable("http://queue", "no answer in time")
        if answer.error is not None:
            raise answer.error
        return [answer.entries.get(change.receipt) for change in changes]

    @property
    def renewals(self) -> list[tuple[float, int]]:
        return [(round(call.at_s, 7), for_s) for call in self.calls for _, for_s in call.entries]


class Play(Watcher):
    """A lease table and its renewer without threads; ``news`` has (time, receipt, state) of each change."""

    def __init__(
        self,
        policy: RenewalPolicy,
        *,
        fifo: bool = False,
        strict: bool = False,
        cap_s: float | None = None,
        jitter: float = 0.0,
        usual_s: float = 0.0,
    ) -> None:
        """Every random draw returns ``jitter``; replies take ``usual_s``."""
        self.clock = AdvancingClock()
        self.queue = ScriptedQueue(self.clock, usual_s=usual_s)
        self.news: list[tuple[float, str, LeaseState]] = []
        self.warnings: list[tuple[float, str, float]] = []
        self.table = LeaseTable(self.clock, draw=lambda: jitter)
        self.renewer = Renewer(self.table, self.queue.change_visibility_batch, calls_max=1)
        self.subscription = Subscription(
            self.table, "orders", policy, fifo=fifo, strict=strict, cap_s=cap_s, watcher=self
        )

    def changed(self, lease: Lease, state: LeaseState) -> None:
        self.news.append((round(self.clock.now_s(), 7), lease.message.receipt, state))

    def ending(self, lease: Lease, left_s: float) -> None:
        self.warnings.append((round(self.clock.now_s(), 7), lease.message.receipt, left_s))

    def take(self, *receipts: str, timeout_s: int, received_at_s: float | None = None) -> list[Lease]:
        at_s = self.clock.now_s() if received_at_s is None else received_at_s
        leases = self.table.take(
            self.subscription,
            [message(receipt) for receipt in receipts or ("r",)],
            requested_at_s=at_s,
            answered_at_s=at_s,
            timeout_s=timeout_s,
        )
        for lease in leases:
            self.table.start(lease)
        return leases

    def until(self, at_s: float, *, late_s: float = 0.0) -> None:
        """Advance to ``at_s``, running renewals when they are due; the thread wakes ``late_s`` too late."""
        clock = self.clock
        while (due_s := self.table.next_due_s()) is not None and max(due_s, clock.now_s()) + late_s <= at_s:
            clock.set(max(due_s, clock.now_s()) + late_s)
            self.renewer.run_due()
        clock.set(max(at_s, clock.now_s()))

    def jump(self, at_s: float) -> None:
        """Advance to ``at_s`` at once, as after a stop of the process, and run the renewals due then."""
        self.clock.set(at_s)
        self.renewer.run_due()


def message(receipt: str = "r", **fields: Any) -> ReceivedMessage:
    usual = {"body": "", "attributes": {}, "sent_at_ms": 0, "first_received_at_ms": 0, "receive_count": 1}
    return ReceivedMessage(**{"id": f"id of {receipt}", "receipt": receipt, **usual, **fields})


def received(
    body: str = "x", *, name: str = "1", group: str | None = None, receive_count: int = 1, **attributes: Any
) -> ReceivedMessage:
    """Return a message whose attributes have the types of their values."""
    kinds = {str: "String", int: "Number", float: "Number.float", bytes: "Binary"}
    given = {
        key: Attribute(kinds[type(value)], data=value)
        if isinstance(value, bytes)
        else Attribute(kinds[type(value)], str(value))
        for key, value in attributes.items()
    }
    named = {"id": f"id-{name}", "body": body, "attributes": given, "receive_count": receive_count, "group": group}
    return message(f"receipt-{name}", **named)


SHORTEST_S, LONGEST_S = 1.0, 10_800.0
QUEUE_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """Faults of a simulation: on average one in ``every_s``, each lasting up to ``longest_s``."""

    name: str
    call_s: float = 0.02
    spread: float = 0.6  # standard deviation of the logarithm: the slowest percent takes four times the median
    every_s: float = math.inf
    longest_s: float = 0.0
    refused: bool = False  # calls fail at once (503) instead of timing out
    stalls: bool = False  # the process stalls, not the network


QUIET = FaultPlan(name="no faults")
SLOW = FaultPlan(name="calls of 1 s (p99 4 s)", call_s=1.0)
SWALLOWED = FaultPlan(name="calls swallowed for up to 20 s", every_s=900, longest_s=20)
REFUSED = FaultPlan(name="503 for up to 40 s", every_s=900, longest_s=40, refused=True)
STALLED = FaultPlan(name="process stands still for up to 10 s", every_s=900, longest_s=10, stalls=True)
FAULT_PLANS = (QUIET, SLOW, SWALLOWED, REFUSED, STALLED)


@dataclass(slots=True)
class Outcome:
    messages: int = 0
    duplicates: int = 0
    calls: int = 0
    entries: int = 0
    calls_of_nservicebus: int = 0
    hidden_s: list[float] = field(default_factory=list)  # sampled: hidden times of messages after a crash

    @property
    def share(self) -> float:
        return self.calls / max(1, self.calls_of_nservicebus)


def calls_of_nservicebus(held_s: float) -> int:
    """Return how often NServiceBus renews a message held for ``held_s``, with V = 30 s: at 20 s, then every 30 s."""
    return 0 if held_s < 20 else int((held_s - 20) // 30) + 1


class Simulation:
    """Simulate a consumer with many long-running handlers over hours.

    The lease table, the renewer and the policy are real. Handlers take 1 s to 3 h (log-uniform), always ``in_work`` of
    them. Another consumer waits for each message, so that one that becomes visible is a duplicate at once.
    """

    def __init__(
        self,
        policy: RenewalPolicy,
        *,
        in_work: int,
        hours: float,
        faults: FaultPlan = QUIET,
        long_share: float = 1.0,
        seed: int = 5,
    ) -> None:
        """All messages but ``long_share`` of them take 1 to 2 s."""
        self.clock = AdvancingClock()
        self.table = LeaseTable(self.clock, draw=random.Random(seed).random)
        self.renewer = Renewer(self.table, self.change_visibility_batch, calls_max=1)
        self.outcome = Outcome()
        self._subscription = Subscription(self.table, "orders", policy)
        self._in_work, self._end_s = in_work, hours * 3_600
        self._plan = faults
        self._work, self._network = random.Random(seed + 1), random.Random(seed + 2)
        self._faults = list(_faults(faults, self._end_s, random.Random(seed + 3)))
        self._fault = (math.inf, math.inf)
        self._next_fault()
        self._long_share = long_share
        self._numbers = count()
        self._ends: list[tuple[float, int, Lease]] = []
        self._hidden_until_s: dict[str, float] = {}
        self._sample_at_s = 1_800.0

    def run(self) -> Outcome:
        for _ in range(self._in_work):
            self._receive(0.0)
        while self.clock.now_s() < self._end_s:
            due_s, ends_s = self.table.next_due_s(), self._ends[0][0]
            if due_s is None or ends_s < due_s:
                self._pass_to(ends_s)  # a lease that begins then may be due first
            else:
                self._pass_to(self._awake(max(due_s, self.clock.now_s())))
                self.renewer.run_due()
        return self.outcome

    def change_visibility_batch(
        self, queue: str, changes: Sequence[VisibilityChange], *, call_timeout_s: float | None = None
    ) -> list[ClientError | None]:
        self.outcome.calls += 1
        self.outcome.entries += len(changes)
        assert call_timeout_s is not None
        at_s = self.clock.now_s()
        takes_s = self._plan.call_s * math.exp(self._network.gauss(0, self._plan.spread))
        if self._is_faulty(at_s) and self._plan.refused:
            self._pass_to(at_s + takes_s)
            raise BUSY
        if self._is_faulty(at_s) or takes_s > call_timeout_s:
            self._pass_to(at_s + call_timeout_s)
            raise Unreachable("http://queue", "no answer in time")
        errors = [self._hide(change, at_s + takes_s / 2) for change in changes]
        self._pass_to(at_s + takes_s)
        return errors

    def _hide(self, change: VisibilityChange, at_s: float) -> ClientError | None:
        until_s = self._hidden_until_s.get(change.receipt)
        if until_s is None or at_s >= until_s:
            return GONE
        self._hidden_until_s[change.receipt] = at_s + change.timeout_s
        return None

    def _is_faulty(self, at_s: float) -> bool:
        while at_s >= self._fault[1]:
            self._next_fault()
        return not self._plan.stalls and at_s >= self._fault[0]

    def _awake(self, at_s: float) -> float:
        """Return when the renewer's thread wakes for ``at_s``: milliseconds later, or after a stall."""
        while at_s >= self._fault[1]:
            self._next_fault()
        stalled = self._plan.stalls and at_s >= self._fault[0]
        return (self._fault[1] if stalled else at_s) + self._network.expovariate(1 / 0.003)

    def _next_fault(self) -> None:
        self._fault = self._faults.pop(0) if self._faults else (math.inf, math.inf)

    def _pass_to(self, at_s: float) -> None:
        """Advance to ``at_s``: handlers end, and others begin."""
        while self._ends and self._ends[0][0] <= at_s:
            end_s, _, lease = heapq.heappop(self._ends)
            self.clock.set(max(end_s, self.clock.now_s()))
            self._settle(lease, end_s)
            self._receive(end_s)
        if at_s >= self._sample_at_s:
            self._sample_at_s += 600
            self.outcome.hidden_s += [until_s - at_s for until_s in self._hidden_until_s.values()]
        self.clock.set(max(at_s, self.clock.now_s()))

    def _receive(self, at_s: float) -> None:
        number = next(self._numbers)
        timeout_s = self.table.receive_timeout_s(self._subscription) or QUEUE_TIMEOUT_S
        receipt = str(number)
        (lease,) = self.table.take(
            self._subscription, [message(receipt)], requested_at_s=at_s, answered_at_s=at_s, timeout_s=timeout_s
        )
        self.table.start(lease)
        self._hidden_until_s[receipt] = at_s + timeout_s
        longest_s = LONGEST_S if self._work.random() < self._long_share else 2 * SHORTEST_S
        took_s = SHORTEST_S * (longest_s / SHORTEST_S) ** self._work.random()
        heapq.heappush(self._ends, (at_s + took_s, number, lease))

    def _settle(self, lease: Lease, at_s: float) -> None:
        self.table.settle(lease)
        self.outcome.messages += 1
        self.outcome.duplicates += at_s >= self._hidden_until_s.pop(lease.message.receipt)
        self.outcome.calls_of_nservicebus += calls_of_nservicebus(at_s - lease.received_at_s)


def _faults(faults: FaultPlan, end_s: float, draw: random.Random) -> Iterator[tuple[float, float]]:
    at_s = 0.0
    while faults.longest_s and at_s < end_s:
        at_s += draw.expovariate(1 / faults.every_s)
        until_s = at_s + draw.uniform(0, faults.longest_s)
        yield at_s, until_s
        at_s = until_s
