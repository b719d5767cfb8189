"""A consumer of many long-running handlers for hours on end, in virtual time: what a policy costs and what it loses.

The table, the renewer and the policy are the real ones. Around them: handlers that take 1 s to 3 h (log-uniform),
as many in work as were asked for, all the time; a queue that knows until when each message is hidden, and has another
consumer waiting for it, so that a message which becomes visible is a duplicate at once; a network whose calls take
time, and faults by plan. ``tests/proofs/test_leases.py`` runs it.
"""

import heapq
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from tests.consumer.lease_play import BUSY, GONE, message
from veilmq.client.messages import ClientError, Unreachable
from veilmq.consumer.leases import Lease, LeaseTable
from veilmq.consumer.renewal_policies import RenewalPolicy
from veilmq.consumer.renewer import Renewer
from veilmq.core.commands import VisibilityChange
from veilmq.testing import SteppedClock

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
        """Calls as a share of those of NServiceBus for the same load."""
        return self.calls / max(1, self.calls_of_nservicebus)


def calls_of_nservicebus(held_s: float) -> int:
    """Return how often NServiceBus renews a message held for ``held_s``, V being 30 s: at 20 s, then every 30 s."""
    return 0 if held_s < 20 else int((held_s - 20) // 30) + 1


class Simulation:
    """One run; ``VisibilityChanger`` for its own renewer."""

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
        self.renewer = Renewer(self.table, self, calls_max=1)
        self.outcome = Outcome()
        self._subscription = self.table.subscribe("orders", policy)
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
