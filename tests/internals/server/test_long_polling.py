"""Long polls on a store in memory and the virtual clock: order, timing, withdrawal.

Claims that poll: bound in slices, and waiting together with the receives of their queue.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from tests.internals.server.scripted_engine import ScriptedEngine
from tests.internals.wire.sqs.requests import message, received
from tests.store.host import RESTLESS
from veilmq.core.claims import Bound, Claim
from veilmq.core.commands import (
    Command,
    CreateQueue,
    Delete,
    Done,
    ListQueues,
    Receive,
    Received,
    Send,
    SetQueue,
    ShowQueue,
)
from veilmq.core.errors import EpochFenced, InternalError, QueueNotFound, ReceivesThrottled
from veilmq.core.limits import HTTP_BYTES
from veilmq.core.messages import NewMessage
from veilmq.server.long_polling import LongPolls, Permit, Poll
from veilmq.store.port import execute
from veilmq.store.sqlite import SqliteStore
from veilmq.testing import VirtualClock

QUEUE = "000000000000/q"


class FaultyStore(SqliteStore):
    """A store that fails the next ``faults`` receives."""

    faults = 0

    def submit(self, command: Command, done: Done) -> None:
        if self.faults and isinstance(command, Receive):
            self.faults -= 1
            asyncio.get_running_loop().call_soon(done, InternalError())
        else:
            super().submit(command, done)


class Bench:
    """A store in memory with one queue, its long polls, and their results by name and time."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.start_ms = self.clock.now_ms()
        self.engine = FaultyStore(None, clock=self.clock, options=RESTLESS)
        self.polls = LongPolls(engine=self.engine, clock=self.clock)
        self.results: list[tuple[str, int, Any]] = []

    def poll(self, name: str, *, wait_s: int | None = 20, count: int = 1, timeout_s: int | None = None) -> Poll:
        def complete(result: Any) -> None:
            value = [message.body for message in result.messages] if isinstance(result, Received) else type(result)
            self.results.append((name, self.clock.now_ms() - self.start_ms, value))

        poll = self.polls.submit(Receive(queue=QUEUE, count=count, timeout_s=timeout_s), wait_s, complete)
        assert isinstance(poll, Poll)
        return poll

    async def parked(self, *names: str) -> list[Poll]:
        polls = [self.poll(name) for name in names]
        await self.settle()
        assert self.polls.parked == len(names)
        return polls

    async def do(self, command: Any) -> Any:
        """Return the result of ``command``, after all its effects."""
        result = await execute(self.engine, command)
        await self.settle()
        return result

    async def send(self, *bodies: str, delay_s: int | None = None) -> None:
        messages = tuple(NewMessage(body=body, size_bytes=len(body), delay_s=delay_s) for body in bodies)
        await self.do(Send(queue=QUEUE, messages=messages))

    async def advance(self, ms: int) -> None:
        """Advance the clock from one timer to the next, with their effects."""
        until_ms = self.clock.now_ms() + ms
        while (at_ms := self.clock.next_timer_ms()) is not None and at_ms <= until_ms:
            self.clock.set(max(at_ms, self.clock.now_ms()))
            await self.settle()
        self.clock.set(until_ms)
        await self.settle()

    async def settle(self) -> None:
        """Run until no poll is submitted."""
        await execute(self.engine, ListQueues(account=""))
        while self.polls.submitted:
            await execute(self.engine, ListQueues(account=""))

    async def counts(self) -> tuple[int, int, int]:
        """Return the numbers of visible, in-flight and delayed messages."""
        counts = (await self.do(ShowQueue(queue=QUEUE, counts=True))).counts
        return counts.visible, counts.in_flight, counts.delayed


@pytest.fixture
@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    try:
        await made.do(CreateQueue(queue=QUEUE))
        yield made
    finally:
        await made.engine.close()


async def test_a_batch_wakes_one_poll_per_message(bench: Bench) -> None:
    await bench.parked("one", "two", "three")
    await bench.send("a", "b")
    assert bench.results == [("one", 0, ["a"]), ("two", 0, ["b"])]
    assert bench.polls.parked == 1


async def test_a_woken_poll_is_not_overtaken(bench: Bench) -> None:
    await bench.parked("waiter")
    bench.engine.submit(Send(queue=QUEUE, messages=(NewMessage(body="a", size_bytes=1),)), lambda _: None)
    bench.poll("late", wait_s=0)
    await bench.settle()
    assert sorted(bench.results) == [("late", 0, []), ("waiter", 0, ["a"])]


async def test_a_poll_submitted_when_retention_ends_is_not_overtaken(bench: Bench) -> None:
    await bench.do(SetQueue(queue=QUEUE, settings={"retention_s": 60, "in_flight_max": 1}))
    await bench.send("a")
    bench.poll("holder", timeout_s=600)
    await bench.advance(45_000)
    await bench.send("b")
    await bench.parked("first", "second")
    await bench.advance(15_000)
    assert bench.results[1:] == [("first", 60_000, ["b"])]


async def test_a_message_sent_after_the_first_attempt_is_not_missed(bench: Bench) -> None:
    """Poll and send are in one batch: the poll's first result is empty, but it gets the message."""
    bench.poll("one")
    bench.poll("two")
    bench.engine.submit(
        Send(queue=QUEUE, messages=tuple(NewMessage(body=b, size_bytes=1) for b in "ab")), lambda _: None
    )
    await bench.settle()
    assert bench.results == [("one", 0, ["a"]), ("two", 0, ["b"])]


async def test_a_waiter_precedes_a_poll_that_arrives_when_a_lease_ends(bench: Bench) -> None:
    """The timer of the lease has not run yet."""
    await bench.send("a")
    await bench.do(Receive(queue=QUEUE, timeout_s=10))
    await bench.parked("waiter")
    bench.clock._move_to(bench.start_ms + 10_000)  # no timer has run
    bench.poll("newcomer", wait_s=0)
    await bench.settle()
    assert sorted(bench.results) == [("newcomer", 10_000, []), ("waiter", 10_000, ["a"])]


async def test_a_poll_woken_in_vain_keeps_its_position_and_deadline(bench: Bench) -> None:
    """The message was deleted before it became visible again."""
    await bench.send("a")
    received = await bench.do(Receive(queue=QUEUE, timeout_s=10))
    await bench.parked("one", "two")
    await bench.do(Delete(queue=QUEUE, receipts=(received.messages[0].receipt,)))
    await bench.advance(15_000)
    assert bench.results == []
    await bench.send("b")
    assert bench.results == [("one", 15_000, ["b"])]
    await bench.advance(5_000)
    assert bench.results[1:] == [("two", 20_000, [])]


async def test_withdrawing_the_last_poll_leaves_messages_in_the_queue(bench: Bench) -> None:
    (gone,) = await bench.parked("gone")
    gone.withdraw()
    await bench.send("a")
    assert await bench.counts() == (1, 0, 0)
    assert bench.results == []


async def test_a_poll_withdrawn_before_it_is_applied_takes_no_message(bench: Bench) -> None:
    """The command is dropped while it waits for its batch."""
    await bench.send("a")
    bench.poll("gone").withdraw()
    assert await bench.counts() == (1, 0, 0)
    assert bench.results == []


async def test_withdrawing_a_submitted_poll_submits_the_next(bench: Bench) -> None:
    await bench.send("a")
    await bench.do(Receive(queue=QUEUE, timeout_s=10))
    gone, _ = await bench.parked("gone", "here")
    bench.clock.set(bench.start_ms + 10_000)  # the first waiter is submitted, not yet applied
    gone.withdraw()
    await bench.settle()
    assert bench.results == [("here", 10_000, ["a"])]


async def test_a_hurried_poll_is_answered_at_once_and_only_once(bench: Bench) -> None:
    """Parked or submitted; a second hurry or a late withdrawal does nothing."""
    parked, other = await bench.parked("parked", "other")
    parked.hurry()
    parked.hurry()
    parked.withdraw()
    assert bench.results == [("parked", 0, [])]
    submitted = bench.poll("submitted")
    submitted.hurry()
    await bench.settle()
    assert bench.results[1:] == [("submitted", 0, [])]
    other.withdraw()
    assert bench.polls.parked == 0


async def test_a_poll_parked_for_the_budget_does_not_wait_again_at_shutdown(bench: Bench) -> None:
    """Its request was complete while the others were being finished, so nothing hurries it."""
    bench.polls.closing = True
    bench.polls.budget.count_replies(HTTP_BYTES.default)
    bench.poll("late")
    assert bench.polls.parked == 1
    bench.polls.budget.count_replies(-HTTP_BYTES.default)
    await bench.settle()
    assert bench.results == [("late", 0, [])]


async def test_parked_polls_need_no_timers_before_their_deadline(bench: Bench) -> None:
    """They submit no command either."""
    await bench.parked(*(str(number) for number in range(100)))
    assert bench.clock.next_timer_ms() == bench.start_ms + 20_000
    await bench.advance(19_999)
    assert bench.results == []
    await bench.send("a")
    assert bench.results == [("0", 19_999, ["a"])]
    assert bench.polls.parked == 99


async def test_a_poll_that_fails_submits_the_next(bench: Bench) -> None:
    await bench.parked("one", "two", "three")
    bench.engine.faults = 1
    await bench.send("a")
    assert bench.results == [("one", 0, InternalError), ("two", 0, ["a"])]
    assert bench.polls.parked == 1


async def test_all_attempts_of_a_poll_count_as_one_receive(bench: Bench) -> None:
    """With a limit of two receives per second the third poll is refused; parked ones are submitted again."""
    await bench.do(SetQueue(queue=QUEUE, settings={"receives_per_s_max": 2}))
    await bench.parked("one", "two")
    bench.poll("three")
    await bench.settle()
    assert bench.results == [("three", 0, ReceivesThrottled)]
    await bench.send(*"abcdefghij")
    assert bench.results[1:] == [("one", 0, ["a"]), ("two", 0, ["b"])]


async def test_a_poll_parked_for_the_budget_is_checked_before_its_first_attempt(bench: Bench) -> None:
    """It was permitted when it arrived; a poll that is refused later takes no message."""
    await bench.send("a")
    bench.polls.budget.count_replies(HTTP_BYTES.default)
    answers: list[Any] = []
    permits: list[Permit] = [lambda proceed: proceed("no"), lambda proceed: proceed(None)]
    for permit in permits:
        bench.polls.submit(Receive(queue=QUEUE), 0, answers.append, permit=permit)
    bench.polls.budget.count_replies(-HTTP_BYTES.default)
    await bench.settle()
    refused, allowed = answers
    assert (refused, [message.body for message in allowed.messages]) == ("no", ["a"])


async def test_receives_that_have_not_begun_park_when_replies_fill_the_budget(bench: Bench) -> None:
    """The store has them already; when there is room, they get messages in their order."""
    await bench.send(*"abc")
    for name, wait_s in (("one", 20), ("two", 20), ("three", 0)):
        bench.poll(name, wait_s=wait_s)
    bench.polls.budget.count_replies(HTTP_BYTES.default)
    await bench.advance(1_000)
    assert bench.results == [("three", 1_000, [])]
    bench.polls.budget.count_replies(-HTTP_BYTES.default)
    await bench.settle()
    assert bench.results[1:] == [("one", 1_000, ["a"]), ("two", 1_000, ["b"])]


async def test_a_poll_parked_for_the_budget_counts_as_a_receive(bench: Bench) -> None:
    """The limit of receives per second applies to it; one that gets nothing continues to wait."""
    await bench.do(SetQueue(queue=QUEUE, settings={"receives_per_s_max": 1}))
    bench.polls.budget.count_replies(HTTP_BYTES.default)
    bench.poll("one")
    bench.poll("two")
    bench.polls.budget.count_replies(-HTTP_BYTES.default)
    await bench.settle()
    await bench.send("a", "b")
    assert bench.results == [("one", 0, ["a"]), ("two", 0, ReceivesThrottled)]


CLAIM = Claim(queue=QUEUE, source="s", epoch=1, number=7, messages_max=100)
NOTHING = Bound(number=7, messages=0, shards=0)
WHOLE = Bound(number=7, messages=60, shards=1)
PART = Bound(number=7, messages=20, shards=1, more=True)
EMPTY = received()
FULL = received(over_limit=True)
GOT = received(message())


class ClaimBench:
    """Long polls on a scripted engine, and their results by name."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine()
        self.clock = VirtualClock()
        self.polls = LongPolls(engine=self.engine, clock=self.clock)
        self.results: list[tuple[str, Any]] = []

    def submit(self, name: str, command: Receive | Claim, wait_s: int = 20) -> Poll:
        poll = self.polls.submit(command, wait_s, lambda result: self.results.append((name, result)))
        assert isinstance(poll, Poll)
        return poll

    def claim(self, name: str = "claim", *, wait_s: int = 20) -> Poll:
        return self.submit(name, CLAIM, wait_s)

    def receive(self, name: str = "receive") -> Poll:
        return self.submit(name, Receive(queue=QUEUE))

    def park(self, poll: Poll, empty: Any) -> Poll:
        """Reply `empty` to the attempts of a new poll until it is parked."""
        parked = self.polls.parked
        while self.polls.parked == parked:
            self.engine.complete(empty)
        return poll

    def wake(self, in_ms: int = 0) -> None:
        self.engine.watches[QUEUE](self.clock.now_ms() + in_ms)

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)


@pytest.fixture
def claims() -> ClaimBench:
    return ClaimBench()


def test_a_claim_is_submitted_until_it_is_complete(claims: ClaimBench) -> None:
    claims.claim(wait_s=0)
    assert [claims.engine.complete(result) for result in (PART, PART, WHOLE)] == [CLAIM] * 3
    assert claims.results == [("claim", WHOLE)]
    assert claims.engine.pending == []


@pytest.mark.parametrize("before", [False, True])
def test_again_of_a_claim_is_that_of_its_first_slice(claims: ClaimBench, *, before: bool) -> None:
    """Later slices find the claim bound by the first: a reader that counts its claims would omit it."""
    claims.claim(wait_s=0)
    for result in (replace(PART, again=before), replace(PART, again=True), replace(WHOLE, again=True)):
        claims.engine.complete(result)
    assert claims.results == [("claim", replace(WHOLE, again=before))]


async def test_a_claim_parked_for_the_budget_is_answered_if_its_messages_were_evicted(claims: ClaimBench) -> None:
    """It was bound before, so it does not wait for other messages."""
    claims.polls.budget.count_replies(HTTP_BYTES.default)
    claims.claim()
    assert claims.engine.pending == []
    claims.polls.budget.count_replies(-HTTP_BYTES.default)
    await asyncio.sleep(0)
    bound = Bound(number=7, messages=0, shards=1, again=True)
    assert claims.engine.complete(bound) == CLAIM
    assert (claims.results, claims.polls.parked) == ([("claim", bound)], 0)


def test_a_withdrawn_claim_is_not_bound_further(claims: ClaimBench) -> None:
    """Bound messages stay in it; the reader claims the same number again."""
    poll = claims.claim()
    claims.engine.complete(PART)
    poll.withdraw()
    assert claims.engine.pending == []
    poll = claims.claim()
    (_, done) = claims.engine.pending[0]
    poll.withdraw()
    done(PART)  # it had begun
    assert claims.engine.pending == []
    assert claims.results == []


def test_a_claim_is_submitted_again_at_the_due_time_of_its_result(claims: ClaimBench) -> None:
    due = Bound(number=7, messages=0, shards=0, next_due_ms=claims.clock.now_ms() + 5_000)
    claims.park(claims.claim(), due)
    claims.advance(4_999)
    assert claims.engine.pending == []
    claims.advance(1)
    claims.engine.complete(WHOLE)
    assert claims.results == [("claim", WHOLE)]


def test_a_claim_that_waits_in_vain_gets_an_empty_result(claims: ClaimBench) -> None:
    """After its deadline, if hurried while parked, and if hurried while submitted."""
    claims.park(claims.claim(wait_s=3), NOTHING)
    claims.advance(3_000)
    claims.park(claims.claim(), NOTHING).hurry()
    late = claims.park(claims.claim(), NOTHING)
    claims.wake()
    late.hurry()
    claims.engine.complete(NOTHING)
    assert claims.results == [("claim", NOTHING)] * 3
    assert claims.engine.watches == {}


def test_claims_and_receives_wait_in_one_order(claims: ClaimBench) -> None:
    """After a poll that got something, the next is submitted."""
    claims.park(claims.receive("first"), EMPTY)
    claims.park(claims.claim("second"), NOTHING)
    claims.park(claims.receive("third"), EMPTY)
    claims.wake()
    due = received(message(), next_due_ms=0)
    assert claims.engine.complete(due) != CLAIM
    assert claims.engine.complete(WHOLE) == CLAIM
    claims.engine.complete(GOT)
    assert claims.results == [("first", due), ("second", WHOLE), ("third", GOT)]


def test_an_empty_receive_submits_no_claim(claims: ClaimBench) -> None:
    """The queue has nothing for claims either."""
    claims.park(claims.receive(), EMPTY)
    claims.park(claims.claim(), NOTHING)
    claims.wake()
    claims.engine.complete(EMPTY)
    assert claims.engine.pending == []
    assert claims.polls.parked == 2


def test_withdrawing_a_claim_while_it_is_bound_submits_the_next_poll(claims: ClaimBench) -> None:
    poll = claims.park(claims.claim(), NOTHING)
    claims.park(claims.receive(), EMPTY)
    claims.wake()
    claims.engine.complete(PART)
    poll.withdraw()
    claims.engine.complete(GOT)
    assert claims.results == [("receive", GOT)]


def test_a_result_after_withdrawal_is_dropped(claims: ClaimBench) -> None:
    """A claim's slice that was running is not followed by another."""
    poll = claims.park(claims.claim(), NOTHING)
    claims.wake()
    (_, done) = claims.engine.pending[0]
    poll.withdraw()
    done(PART)
    assert claims.engine.pending == []
    assert claims.results == []


def test_a_claim_that_fails_submits_the_next_poll(claims: ClaimBench) -> None:
    claims.park(claims.claim(), NOTHING)
    claims.park(claims.receive(), EMPTY)
    claims.wake()
    fenced = EpochFenced(1, 2)
    claims.engine.complete(fenced)
    claims.engine.complete(GOT)
    assert claims.results == [("claim", fenced), ("receive", GOT)]


def test_deleting_the_queue_ends_all_polls(claims: ClaimBench) -> None:
    claims.park(claims.receive(), EMPTY)
    claims.park(claims.claim(), NOTHING)
    claims.wake()
    claims.engine.complete(QueueNotFound(QUEUE))
    assert [(name, type(result)) for name, result in claims.results] == [
        ("receive", QueueNotFound),
        ("claim", QueueNotFound),
    ]


def test_a_claim_over_quota_does_not_delay_receives(claims: ClaimBench) -> None:
    """It waits in front of the receive; each is submitted once, even if both are over their quota."""
    claims.park(claims.claim(), NOTHING)
    claims.park(claims.receive(), EMPTY)
    claims.wake()
    assert claims.engine.complete(NOTHING) == CLAIM
    assert isinstance(claims.engine.complete(FULL), Receive)
    assert claims.engine.pending == []
    assert claims.polls.parked == 2
    claims.wake()
    assert claims.engine.complete(NOTHING) == CLAIM
    assert isinstance(claims.engine.complete(GOT), Receive)
    assert claims.results == [("receive", GOT)]
    assert (claims.engine.pending, claims.polls.parked) == ([], 1)
