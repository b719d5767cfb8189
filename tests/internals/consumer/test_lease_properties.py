"""Whatever the network does: what must hold of every lease at every instant.

The queue of these tests is honest and hard: it hides a message from the instant at which a request arrives, loses
requests and answers, delays both, and knows when somebody else could have the message.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.consumer.simulation import BUSY, GONE, Play, message
from veilmq.client.messages import ClientError, Unreachable
from veilmq.consumer.leases import Lease, LeaseState, LeaseTable, Subscription
from veilmq.consumer.renewal_policies import Adaptive, Fixed, NServiceBusPolicy, RenewalPolicy
from veilmq.consumer.renewer import Renewer
from veilmq.core.commands import VisibilityChange
from veilmq.testing import SteppedClock

pytestmark = pytest.mark.slow

POLICIES: list[RenewalPolicy] = [
    NServiceBusPolicy(max_auto_message_visibility_renewal_duration=43_200),
    Fixed(30, 20),
    Fixed(43_200, 20),
    Adaptive(),
]
STEPS = ["take", "take old", "settle", "withdraw", "confirm", "stall", "wait"]
PAUSES_S = st.sampled_from([0.0, 0.1, 1.0, 9.9, 10.0, 19.9, 20.0, 29.9, 30.0, 31.0, 300.0])
LATENCIES_S = st.sampled_from([0.0, 0.01, 0.5, 3.0, 30.0])


@dataclass(frozen=True, slots=True)
class Trip:
    """What becomes of a call: the request takes ``there_s``, the answer ``back_s``; either may be lost."""

    there_s: float = 0.0
    back_s: float = 0.0
    request_lost: bool = False
    answer_lost: bool = False
    refused: bool = False


TRIPS = st.builds(
    Trip,
    there_s=LATENCIES_S,
    back_s=LATENCIES_S,
    request_lost=st.booleans(),
    answer_lost=st.booleans(),
    refused=st.booleans(),
)


class HonestQueue:
    """``VisibilityChanger`` that knows until when each receipt is hidden, and checks what it is asked."""

    def __init__(self, clock: SteppedClock, trips: list[Trip]) -> None:
        """Each call takes the next of ``trips``, then they are all perfect."""
        self.hidden_until_s: dict[str, float] = {}
        self.received_at_s: dict[str, float] = {}
        self.settled: set[str] = set()
        self._clock = clock
        self._trips = trips

    def change_visibility_batch(
        self, queue: str, changes: Sequence[VisibilityChange], *, patience_s: float | None = None
    ) -> list[ClientError | None]:
        """Let the time of the trip pass and do what arrives."""
        assert patience_s is not None
        assert 1 <= len(changes) <= 10
        sent_at_s = self._clock.now_s()
        for change in changes:
            assert change.receipt not in self.settled
            assert 1 <= change.timeout_s <= 43_200
            assert sent_at_s - self.received_at_s[change.receipt] + change.timeout_s <= 43_200
        trip = self._trips.pop(0) if self._trips else Trip()
        arrives_s = sent_at_s + trip.there_s
        if trip.refused:
            raise BUSY
        errors = [None if trip.request_lost else self._hide(change, arrives_s) for change in changes]
        took_s = trip.there_s + trip.back_s
        if trip.request_lost or trip.answer_lost or took_s > patience_s:
            self._clock.set(sent_at_s + patience_s)
            raise Unreachable("http://queue", "no answer in time")
        self._clock.set(sent_at_s + took_s)
        return errors

    def _hide(self, change: VisibilityChange, at_s: float) -> ClientError | None:
        if at_s >= self.hidden_until_s[change.receipt]:
            return GONE
        self.hidden_until_s[change.receipt] = max(
            self._clock.now_s(), min(at_s + change.timeout_s, self.received_at_s[change.receipt] + 43_200)
        )
        return None


def check(lease: Lease, table: LeaseTable, queue: HonestQueue, now_s: float) -> None:
    """Never two who are sure: if anybody could have it, we are not sure, and release nothing."""
    if now_s >= queue.hidden_until_s[lease.message.receipt]:
        assert lease.state_at(now_s) is not LeaseState.HELD
        assert not table.may_release(lease)


@settings(max_examples=300, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    fifo=st.booleans(),
    jitter=st.sampled_from([0.0, 0.5, 0.999]),
    trips=st.lists(TRIPS, max_size=12),
    steps=st.lists(
        st.tuples(st.sampled_from(["take", "settle", "withdraw", "confirm", "stall", "wait"]), PAUSES_S), max_size=20
    ),
)
def test_nobody_is_sure_of_what_another_could_have(
    policy: RenewalPolicy, fifo: bool, jitter: float, trips: list[Trip], steps: list[tuple[str, float]]
) -> None:
    """Takes, settles, releases, fences and stalls in any order, over any network."""
    clock = SteppedClock()
    queue = HonestQueue(clock, trips)
    table = LeaseTable(clock, draw=lambda: jitter)
    renewer = Renewer(table, queue, calls_max=1)
    subscription = table.subscribe("orders", policy, fifo=fifo)
    leases: list[Lease] = []
    for step, pause_s in steps:
        now_s = clock.now_s()
        if step.startswith("take"):
            asked_at_s = now_s - 42_900 * (step == "take old")
            leases.append(_take(table, queue, str(len(leases)), asked_at_s, subscription))
        elif leases and step == "settle":
            table.settle(leases[-1])
            queue.settled.add(leases[-1].message.receipt)
        elif leases and step == "withdraw":
            assert table.withdraw(leases[0]).done()
            queue.settled.add(leases[0].message.receipt)
        elif leases and step == "confirm":
            table.confirm(leases[0])
        elif step == "stall":
            clock.set(now_s + pause_s)
        _go_on(clock, table, renewer, clock.now_s() + pause_s, leases, queue)


def _take(table: LeaseTable, queue: HonestQueue, receipt: str, asked_at_s: float, subscription: Subscription) -> Lease:
    now_s = table.clock.now_s()
    queue.hidden_until_s[receipt] = now_s + 30
    queue.received_at_s[receipt] = asked_at_s
    (lease,) = table.take(
        subscription, [message(receipt)], requested_at_s=asked_at_s, answered_at_s=now_s, timeout_s=30
    )
    table.start(lease)
    return lease


def _go_on(
    clock: SteppedClock, table: LeaseTable, renewer: Renewer, until_s: float, leases: list[Lease], queue: HonestQueue
) -> None:
    """Pass to ``until_s`` as the renewer's thread would, and look at every lease on the way."""
    while (due_s := table.next_due_s()) is not None and due_s <= until_s:
        clock.set(max(due_s, clock.now_s()))
        for lease in leases:
            check(lease, table, queue, clock.now_s())
        renewer.run_due()
        for lease in leases:
            check(lease, table, queue, clock.now_s())
    clock.set(max(until_s, clock.now_s()))
    for lease in leases:
        check(lease, table, queue, clock.now_s())


@settings(deadline=None)
@given(
    lease_s=st.integers(min_value=20, max_value=600),
    share=st.sampled_from([0.1, 0.5, 2 / 3, 0.9]),
    hold_s=st.floats(min_value=0, max_value=2_000),
)
def test_a_lease_is_renewed_no_more_often_than_needed(lease_s: int, share: float, hold_s: float) -> None:
    """Once in each interval of a heartbeat, and with ``Adaptive`` once in each lease less its widest guard."""
    play = Play(Fixed(lease_s, lease_s * share))
    play.take(timeout_s=lease_s)
    play.until(hold_s)
    assert len(play.queue.calls) <= math.ceil(hold_s / (lease_s * share)) + 1
    play = Play(Adaptive(), jitter=0.999)
    play.take(timeout_s=30)
    play.until(hold_s)
    assert len(play.queue.calls) <= math.ceil(hold_s / (30 * (1 - 1.25 / 3))) + 1


@given(lateness_ms=st.integers(min_value=0, max_value=9_000), origin_s=st.floats(min_value=0, max_value=1e7))
def test_only_durations_count(lateness_ms: int, origin_s: float) -> None:
    """The same happens from any origin of the clock: there is no instant of the day in it.

    It ends between two milliseconds, so that no renewal falls on the end by the last digit of a sum alone.
    """
    timelines = []
    for begin_s in (0.0, origin_s):
        play = Play(NServiceBusPolicy())
        play.clock.set(begin_s)
        play.take(timeout_s=30)
        play.until(begin_s + 200.0005, late_s=lateness_ms / 1_000)
        timelines.append(play.queue.asked)
    assert [for_s for _, for_s in timelines[0]] == [for_s for _, for_s in timelines[1]]
    elapsed = [at_s - origin_s for at_s, _ in timelines[1]]
    assert elapsed == pytest.approx([at_s for at_s, _ in timelines[0]], abs=1e-4)
