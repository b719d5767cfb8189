"""A consumer and a real server on one clock: a day passes for both in as long as their threads need.

The consumer's clock is moved from one instant at which its renewer wants to wake to the next, and takes the server's
along. What they do at an instant is real: threads, sockets, requests. Event loops are not on that clock: a handler ends
when the test lets it.
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


class OneClock(SteppedClock):
    """The consumer's clock, which moves that of a server."""

    def __init__(self, server: RunningServer) -> None:
        super().__init__()
        self._server = server
        self._begun_ms = server.clock.now_ms()
        self._moving = threading.Lock()

    def advance(self, duration_s: float) -> None:
        """Move by ``duration_s``, after whoever moves it already."""
        with self._moving:
            super().advance(duration_s)

    def set(self, at_s: float) -> None:
        """Bring the server to ``at_s``, then whoever sleeps here."""
        self._server.advance(max(0, self._begun_ms + round(at_s * SECOND_MS) - self._server.clock.now_ms()))
        super().set(at_s)


class TimedBench(Workbench):
    """A workbench on one clock."""

    def __init__(self, server: RunningServer, client: QueueClient) -> None:
        """Made by ``timed_bench``."""
        super().__init__(server, client)
        self.clock = OneClock(server)

    def consumer(self, queue: str, *, grace: str = "1s", **settings: SettingValue) -> Consumer:
        """Return a consumer of ``queue``, which is made with these settings or is there."""
        self.queue(queue, **settings)
        return Consumer(queue, endpoint=self.server.endpoint, grace=grace, clock=self.clock)

    def queue(self, name: str, **settings: SettingValue) -> RunningQueue:
        return self.server.queue(name, **settings)

    async def elapse(self, seconds: float) -> None:
        """Let the time pass, while the event loop goes on."""
        await asyncio.to_thread(self.clock.advance, seconds)

    async def eventually(self, condition: Callable[[], object]) -> None:
        """Let the time pass, a second at a time, until ``condition`` holds.

        For what comes when a poll next asks: polls are answered beside the clock, and the one that would have met the
        instant may have asked just before it.
        """
        while not condition():
            await self.elapse(1)

    async def guard(self, queue: str, seconds: float, *, every: float = 5) -> None:
        """Let the time pass, with a competitor who looks for messages at each step and must find none."""
        for _ in range(round(seconds / every)):
            await self.elapse(every)
            assert self.rivals(queue) == [], "a message that somebody works on was given to another"

    def rivals(self, queue: str) -> list[str]:
        """Return the bodies of what another consumer gets now."""
        return [message.body for message in self.client.receive(queue, count=10, wait_s=0)]

    def left_s(self, messages: list[SeenMessage]) -> list[float]:
        """Return for how many seconds each of ``messages`` is still hidden."""
        now_ms = self.server.clock.now_ms()
        return [((message.visible_at_ms or now_ms) - now_ms) / SECOND_MS for message in messages]

    async def stop(self, running: Running) -> None:
        """Stop ``running``; its parked polls are answered by letting the time pass for which they wait."""
        stopping = asyncio.create_task(running.stop())
        while not stopping.done():
            if self.server.parked:
                await self.elapse(1)
            await asyncio.sleep(0)
        await stopping


@contextmanager
def timed_bench(key: SigningKey | None = None, **settings: Any) -> Iterator[TimedBench]:
    """Give a workbench with a server of its own, which has these settings; its client signs with ``key``."""
    with RunningServer(**settings) as server, HttpQueueClient(server.endpoint, key=key) as client:
        yield TimedBench(server, client)


# Leases in virtual time, against a queue that plays a script: no thread, no socket, every instant chosen.
#
# ``Play`` stands for the process: it moves the clock to what is due next, as the renewer's thread would, as late as
# it is told. ``ScriptedQueue`` is the other side: it notes what it was asked, takes its time and answers what the
# script says.


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
    """What one call gets: ``error`` for the whole of it, or for its entries by receipt, after ``takes_s`` seconds."""

    error: ClientError | Unreachable | None = None
    entries: Mapping[str, ClientError | Hidden] = field(default_factory=dict)
    takes_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Call:
    """What one call asked for: (receipt, seconds) of each entry."""

    at_s: float
    entries: tuple[tuple[str, int], ...]


class ScriptedQueue:
    """Plays ``script`` answer by answer, then says yes after ``usual_s``."""

    def __init__(self, clock: SteppedClock, *, usual_s: float = 0.0) -> None:
        self.calls: list[Call] = []
        self.script: list[Answer] = []
        self._clock = clock
        self._usual_s = usual_s

    def change_visibility_batch(
        self, queue: str, changes: Sequence[VisibilityChange], *, patience_s: float | None = None
    ) -> list[ClientError | Hidden | None]:
        """Answer as the script says; a call that takes longer than ``patience_s`` is given up then."""
        self.calls.append(Call(self._clock.now_s(), tuple((change.receipt, change.timeout_s) for change in changes)))
        answer = self.script.pop(0) if self.script else Answer(takes_s=self._usual_s)
        assert patience_s is not None
        self._clock.set(self._clock.now_s() + min(answer.takes_s, patience_s))
        if answer.takes_s > patience_s:
            raise Unreachable("http://queue", "no answer in time")
        if answer.error is not None:
            raise answer.error
        return [answer.entries.get(change.receipt) for change in changes]

    @property
    def renewals(self) -> list[tuple[float, int]]:
        """Return (instant, seconds) of every entry of every call, in order."""
        return [(round(call.at_s, 7), for_s) for call in self.calls for _, for_s in call.entries]


class Play(Watcher):
    """A lease table, its renewer and what the watcher was told: ``news`` holds (instant, receipt, state)."""

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
        """``jitter`` is what every draw gives; answers take ``usual_s``."""
        self.clock = SteppedClock()
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
        """Go to ``at_s``, renewing what is due on the way; each time the thread wakes ``late_s`` too late."""
        clock = self.clock
        while (due_s := self.table.next_due_s()) is not None and max(due_s, clock.now_s()) + late_s <= at_s:
            clock.set(max(due_s, clock.now_s()) + late_s)
            self.renewer.run_due()
        clock.set(max(at_s, clock.now_s()))

    def jump(self, at_s: float) -> None:
        """Go to ``at_s`` at one stroke, as after a stop of the whole process, and renew what is due then."""
        self.clock.set(at_s)
        self.renewer.run_due()


def message(receipt: str = "r", **fields: Any) -> ReceivedMessage:
    """Return a message that was received with ``receipt``, with other ``fields`` than it has by default."""
    usual = {"body": "", "attributes": {}, "sent_at_ms": 0, "first_received_at_ms": 0, "receive_count": 1}
    return ReceivedMessage(**{"id": f"id of {receipt}", "receipt": receipt, **usual, **fields})


def received(
    body: str = "x", *, name: str = "1", group: str | None = None, receive_count: int = 1, **attributes: Any
) -> ReceivedMessage:
    """Return a message of this body, whose attributes have the types of their values."""
    kinds = {str: "String", int: "Number", float: "Number.float", bytes: "Binary"}
    given = {
        key: Attribute(kinds[type(value)], data=value)
        if isinstance(value, bytes)
        else Attribute(kinds[type(value)], str(value))
        for key, value in attributes.items()
    }
    named = {"id": f"id-{name}", "body": body, "attributes": given, "receive_count": receive_count, "group": group}
    return message(f"receipt-{name}", **named)


# A consumer of many long-running handlers for hours on end, in virtual time: what a policy costs and what it loses.
#
# The table, the renewer and the policy are the real ones. Around them: handlers that take 1 s to 3 h (log-uniform),
# as many in work as were asked for, all the time; a queue that knows until when each message is hidden, and has
# another consumer waiting for it, so that a message which becomes visible is a duplicate at once; a network whose
# calls take time, and faults by plan. ``tests/proofs/test_leases.py`` runs it.


SHORTEST_S, LONGEST_S = 1.0, 10_800.0
QUEUE_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What goes wrong: each kind of fault comes about once in ``every_s`` and lasts for up to ``longest_s``."""

    name: str
    call_s: float = 0.02
    spread: float = 0.6
    """Standard deviation of the logarithm: 0.6 makes the slowest percent four times the median."""
    every_s: float = math.inf
    longest_s: float = 0.0
    refused: bool = False
    """Calls fail at once (503) instead of being swallowed."""
    stalls: bool = False
    """The whole process stands still, instead of the network."""


QUIET = Weather(name="no faults")
SLOW = Weather(name="calls of 1 s (p99 4 s)", call_s=1.0)
SWALLOWED = Weather(name="calls swallowed for up to 20 s", every_s=900, longest_s=20)
REFUSED = Weather(name="503 for up to 40 s", every_s=900, longest_s=40, refused=True)
STALLED = Weather(name="process stands still for up to 10 s", every_s=900, longest_s=10, stalls=True)
WEATHERS = (QUIET, SLOW, SWALLOWED, REFUSED, STALLED)


@dataclass(slots=True)
class Outcome:
    """What a run came to."""

    messages: int = 0
    duplicates: int = 0
    calls: int = 0
    entries: int = 0
    calls_of_nservicebus: int = 0
    hidden_s: list[float] = field(default_factory=list)
    """How long each message would have stayed hidden after a crash, sampled."""

    @property
    def share(self) -> float:
        return self.calls / max(1, self.calls_of_nservicebus)


def calls_of_nservicebus(held_s: float) -> int:
    """Return how often NServiceBus renews a message held for ``held_s``, V being 30 s: at 20 s, then every 30 s."""
    return 0 if held_s < 20 else int((held_s - 20) // 30) + 1


class Simulation:
    """One run, and the queue of its own renewer."""

    def __init__(
        self,
        policy: RenewalPolicy,
        *,
        in_work: int,
        hours: float,
        weather: Weather = QUIET,
        long_share: float = 1.0,
        seed: int = 5,
    ) -> None:
        """Prepare everything; ``run`` does it. All messages but ``long_share`` of them take 1 to 2 s."""
        self.clock = SteppedClock()
        self.table = LeaseTable(self.clock, draw=random.Random(seed).random)
        self.renewer = Renewer(self.table, self.change_visibility_batch, calls_max=1)
        self.outcome = Outcome()
        self._subscription = Subscription(self.table, "orders", policy)
        self._in_work, self._end_s = in_work, hours * 3_600
        self._weather = weather
        self._work, self._network = random.Random(seed + 1), random.Random(seed + 2)
        self._faults = list(_faults(weather, self._end_s, random.Random(seed + 3)))
        self._fault = (math.inf, math.inf)
        self._next_fault()
        self._long_share = long_share
        self._numbers = count()
        self._ends: list[tuple[float, int, Lease]] = []
        self._hidden_until_s: dict[str, float] = {}
        self._sample_at_s = 1_800.0

    def run(self) -> Outcome:
        """Go through all the hours."""
        for _ in range(self._in_work):
            self._receive(0.0)
        while self.clock.now_s() < self._end_s:
            due_s, ends_s = self.table.next_due_s(), self._ends[0][0]
            if due_s is None or ends_s < due_s:
                self._pass_to(ends_s)  # who begins then may be due before everybody else
            else:
                self._pass_to(self._awake(max(due_s, self.clock.now_s())))
                self.renewer.run_due()
        return self.outcome

    def change_visibility_batch(
        self, queue: str, changes: Sequence[VisibilityChange], *, patience_s: float | None = None
    ) -> list[ClientError | None]:
        """Take time, as the network does, in which handlers go on."""
        self.outcome.calls += 1
        self.outcome.entries += len(changes)
        assert patience_s is not None
        at_s = self.clock.now_s()
        takes_s = self._weather.call_s * math.exp(self._network.gauss(0, self._weather.spread))
        if self._is_faulty(at_s) and self._weather.refused:
            self._pass_to(at_s + takes_s)
            raise BUSY
        if self._is_faulty(at_s) or takes_s > patience_s:
            self._pass_to(at_s + patience_s)
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
        return not self._weather.stalls and at_s >= self._fault[0]

    def _awake(self, at_s: float) -> float:
        """Return when the renewer's thread wakes that wants to at ``at_s``: milliseconds later, or after a stall."""
        while at_s >= self._fault[1]:
            self._next_fault()
        stalled = self._weather.stalls and at_s >= self._fault[0]
        return (self._fault[1] if stalled else at_s) + self._network.expovariate(1 / 0.003)

    def _next_fault(self) -> None:
        self._fault = self._faults.pop(0) if self._faults else (math.inf, math.inf)

    def _pass_to(self, at_s: float) -> None:
        """Let handlers end, and others begin in their places, until ``at_s``."""
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


def _faults(weather: Weather, end_s: float, draw: random.Random) -> Iterator[tuple[float, float]]:
    at_s = 0.0
    while weather.longest_s and at_s < end_s:
        at_s += draw.expovariate(1 / weather.every_s)
        until_s = at_s + draw.uniform(0, weather.longest_s)
        yield at_s, until_s
        at_s = until_s
