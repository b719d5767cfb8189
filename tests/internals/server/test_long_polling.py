"""Long polls on a store in memory and the virtual clock: who gets what, when exactly, and what is left to whom.

Then: claims in the line of long polls: bound slice by slice, and in turn with the receives of their queue.
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


class Faulty(SqliteStore):
    """An engine that answers as many receives as it is told with an error."""

    faults = 0

    def submit(self, command: Command, done: Done) -> None:
        if self.faults and isinstance(command, Receive):
            self.faults -= 1
            asyncio.get_running_loop().call_soon(done, InternalError())
        else:
            super().submit(command, done)


class Bench:
    """An engine in memory with one queue, its long polls, and a record of who was answered what, and when."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.start_ms = self.clock.now_ms()
        self.engine = Faulty(None, clock=self.clock, options=RESTLESS)
        self.polls = LongPolls(engine=self.engine, clock=self.clock)
        self.heard: list[tuple[str, int, Any]] = []

    def poll(self, name: str, *, wait_s: int | None = 20, count: int = 1, timeout_s: int | None = None) -> Poll:
        def answer(result: Any) -> None:
            told = [message.body for message in result.messages] if isinstance(result, Received) else type(result)
            self.heard.append((name, self.clock.now_ms() - self.start_ms, told))

        poll = self.polls.submit(Receive(queue=QUEUE, count=count, timeout_s=timeout_s), wait_s, answer)
        assert isinstance(poll, Poll)
        return poll

    async def parked(self, *names: str) -> list[Poll]:
        polls = [self.poll(name) for name in names]
        await self.settle()
        assert self.polls.parked == len(names)
        return polls

    async def do(self, command: Any) -> Any:
        """Return the result of ``command``, once everything that it set off is answered."""
        result = await execute(self.engine, command)
        await self.settle()
        return result

    async def send(self, *bodies: str, delay_s: int | None = None) -> None:
        messages = tuple(NewMessage(body=body, size_bytes=len(body), delay_s=delay_s) for body in bodies)
        await self.do(Send(queue=QUEUE, messages=messages))

    async def advance(self, ms: int) -> None:
        """Move the clock from one timer to the next, letting each have its effect."""
        until_ms = self.clock.now_ms() + ms
        while (at_ms := self.clock.next_timer_ms()) is not None and at_ms <= until_ms:
            self.clock.set(max(at_ms, self.clock.now_ms()))
            await self.settle()
        self.clock.set(until_ms)
        await self.settle()

    async def settle(self) -> None:
        """Pass through the engine until no poll is being asked."""
        await execute(self.engine, ListQueues(account=""))
        while self.polls.submitted:
            await execute(self.engine, ListQueues(account=""))

    async def counts(self) -> tuple[int, int, int]:
        """Return how many messages are visible, in flight and delayed."""
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


async def test_a_batch_wakes_as_many_as_it_has_messages_for(bench: Bench) -> None:
    await bench.parked("one", "two", "three")
    await bench.send("a", "b")
    assert bench.heard == [("one", 0, ["a"]), ("two", 0, ["b"])]
    assert bench.polls.parked == 1


async def test_a_woken_poll_is_not_overtaken(bench: Bench) -> None:
    await bench.parked("waiter")
    bench.engine.submit(Send(queue=QUEUE, messages=(NewMessage(body="a", size_bytes=1),)), lambda _: None)
    bench.poll("late", wait_s=0)
    await bench.settle()
    assert sorted(bench.heard) == [("late", 0, []), ("waiter", 0, ["a"])]


async def test_a_message_sent_right_behind_the_first_asking_is_not_missed(bench: Bench) -> None:
    """A poll and a send in one batch, in that order: the poll was empty, and gets the message nevertheless."""
    bench.poll("one")
    bench.poll("two")
    bench.engine.submit(
        Send(queue=QUEUE, messages=tuple(NewMessage(body=b, size_bytes=1) for b in "ab")), lambda _: None
    )
    await bench.settle()
    assert bench.heard == [("one", 0, ["a"]), ("two", 0, ["b"])]


async def test_who_waits_goes_before_who_comes_at_the_very_instant(bench: Bench) -> None:
    """A lease has ended and its timer has not run yet: a newcomer does not take what belongs to the first in line."""
    await bench.send("a")
    await bench.do(Receive(queue=QUEUE, timeout_s=10))
    await bench.parked("waiter")
    bench.clock.catch_up(bench.start_ms + 10_000)  # the instant has come, and no timer has run
    bench.poll("newcomer", wait_s=0)
    await bench.settle()
    assert sorted(bench.heard) == [("newcomer", 10_000, []), ("waiter", 10_000, ["a"])]


async def test_a_message_that_is_deleted_before_it_is_due_wakes_nobody_for_good(bench: Bench) -> None:
    """Who was woken in vain goes back to the front of the line and keeps its deadline."""
    await bench.send("a")
    received = await bench.do(Receive(queue=QUEUE, timeout_s=10))
    await bench.parked("one", "two")
    await bench.do(Delete(queue=QUEUE, receipts=(received.messages[0].receipt,)))
    await bench.advance(15_000)
    assert bench.heard == []
    await bench.send("b")
    assert bench.heard == [("one", 15_000, ["b"])]
    await bench.advance(5_000)
    assert bench.heard[1:] == [("two", 20_000, [])]


async def test_the_last_poll_withdrawn_leaves_the_message_in_the_queue(bench: Bench) -> None:
    (gone,) = await bench.parked("gone")
    gone.withdraw()
    await bench.send("a")
    assert await bench.counts() == (1, 0, 0)
    assert bench.heard == []


async def test_a_poll_withdrawn_before_it_is_asked_takes_no_message(bench: Bench) -> None:
    """The command is dropped while it waits for its batch."""
    await bench.send("a")
    bench.poll("gone").withdraw()
    assert await bench.counts() == (1, 0, 0)
    assert bench.heard == []


async def test_a_poll_withdrawn_while_it_is_asked_passes_the_question_on(bench: Bench) -> None:
    await bench.send("a")
    await bench.do(Receive(queue=QUEUE, timeout_s=10))
    gone, _ = await bench.parked("gone", "here")
    bench.clock.set(bench.start_ms + 10_000)  # the first of the line is submitted, not yet applied
    gone.withdraw()
    await bench.settle()
    assert bench.heard == [("here", 10_000, ["a"])]


async def test_a_hurried_poll_is_answered_at_once_and_only_once(bench: Bench) -> None:
    """Parked or being asked; a second hurry or a late withdrawal does nothing."""
    parked, other = await bench.parked("parked", "other")
    parked.hurry()
    parked.hurry()
    parked.withdraw()
    assert bench.heard == [("parked", 0, [])]
    asked = bench.poll("asked")
    asked.hurry()
    await bench.settle()
    assert bench.heard[1:] == [("asked", 0, [])]
    other.withdraw()
    assert bench.polls.parked == 0


async def test_a_poll_that_waited_for_room_waits_for_nothing_else_when_the_server_closes(bench: Bench) -> None:
    """Its request came whole while the others were being finished, so that nothing hurries it."""
    bench.polls.close()
    bench.polls.budget.count_replies(HTTP_BYTES.default)
    bench.poll("late")
    assert bench.polls.parked == 1
    bench.polls.budget.count_replies(-HTTP_BYTES.default)
    await bench.settle()
    assert bench.heard == [("late", 0, [])]


async def test_parked_polls_set_off_nothing(bench: Bench) -> None:
    """While a hundred wait on an empty queue there is no timer before their deadline, and nothing is asked."""
    await bench.parked(*(str(number) for number in range(100)))
    assert bench.clock.next_timer_ms() == bench.start_ms + 20_000
    await bench.advance(19_999)
    assert bench.heard == []
    await bench.send("a")
    assert bench.heard == [("0", 19_999, ["a"])]
    assert bench.polls.parked == 99


async def test_a_poll_answered_with_an_error_passes_the_question_on(bench: Bench) -> None:
    await bench.parked("one", "two", "three")
    bench.engine.faults = 1
    await bench.send("a")
    assert bench.heard == [("one", 0, InternalError), ("two", 0, ["a"])]
    assert bench.polls.parked == 1


async def test_a_poll_counts_as_one_receive_however_often_it_is_asked_again(bench: Bench) -> None:
    """A queue that allows two a second refuses the third poll; those that wait are asked again when messages come."""
    await bench.do(SetQueue(queue=QUEUE, settings={"receives_per_s_max": 2}))
    await bench.parked("one", "two")
    bench.poll("three")
    await bench.settle()
    assert bench.heard == [("three", 0, ReceivesThrottled)]
    await bench.send(*"abcdefghij")
    assert bench.heard[1:] == [("one", 0, ["a"]), ("two", 0, ["b"])]


async def test_a_poll_that_waits_for_room_needs_its_permission_when_there_is_some(bench: Bench) -> None:
    """It was allowed when it came; one that is refused by then takes no message."""
    await bench.send("a")
    bench.polls.budget.count_replies(HTTP_BYTES.default)
    answers: list[Any] = []
    permits: list[Permit] = [lambda go_on: go_on("no"), lambda go_on: go_on(None)]
    for permit in permits:
        bench.polls.submit(Receive(queue=QUEUE), 0, answers.append, permit=permit)
    bench.polls.budget.count_replies(-HTTP_BYTES.default)
    await bench.settle()
    refused, allowed = answers
    assert (refused, [message.body for message in allowed.messages]) == ("no", ["a"])


async def test_a_poll_that_waits_for_room_counts_as_a_receive(bench: Bench) -> None:
    """The quota a second holds for it as for others; one that gets nothing waits on."""
    await bench.do(SetQueue(queue=QUEUE, settings={"receives_per_s_max": 1}))
    bench.polls.budget.count_replies(HTTP_BYTES.default)
    bench.poll("one")
    bench.poll("two")
    bench.polls.budget.count_replies(-HTTP_BYTES.default)
    await bench.settle()
    await bench.send("a", "b")
    assert bench.heard == [("one", 0, ["a"]), ("two", 0, ReceivesThrottled)]


CLAIMED = "000000000000/q"
CLAIM = Claim(queue=CLAIMED, source="s", epoch=1, number=7, messages_max=100)
NOTHING = Bound(number=7, messages=0, shards=0)
WHOLE = Bound(number=7, messages=60, shards=1)
PART = Bound(number=7, messages=20, shards=1, more=True)
EMPTY = received()
FULL = received(over_limit=True)
GOT = received(message())


class ClaimBench:
    """Long polls on a scripted engine, and a record of who was answered what."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine()
        self.clock = VirtualClock()
        self.polls = LongPolls(engine=self.engine, clock=self.clock)
        self.heard: list[tuple[str, Any]] = []

    def claim(self, name: str = "claim", *, wait_s: int = 20, command: Receive | Claim = CLAIM) -> Poll:
        poll = self.polls.submit(command, wait_s, lambda result: self.heard.append((name, result)))
        assert isinstance(poll, Poll)
        return poll

    def receive(self, name: str = "receive") -> Poll:
        return self.claim(name, command=Receive(queue=CLAIMED))

    def park(self, poll: Poll, empty: Any) -> Poll:
        """Have the engine answer the questions of a new poll with `empty` until it waits."""
        parked = self.polls.parked
        while self.polls.parked == parked:
            self.engine.answer(empty)
        return poll

    def wake(self, in_ms: int = 0) -> None:
        self.engine.watches[CLAIMED](self.clock.now_ms() + in_ms)

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)


@pytest.fixture
def claims() -> ClaimBench:
    return ClaimBench()


def test_a_claim_in_slices_is_asked_until_it_is_whole(claims: ClaimBench) -> None:
    claims.claim(wait_s=0)
    assert [claims.engine.answer(result) for result in (PART, PART, WHOLE)] == [CLAIM] * 3
    assert claims.heard == [("claim", WHOLE)]
    assert claims.engine.pending == []


@pytest.mark.parametrize("before", [False, True])
def test_a_claim_in_slices_was_bound_before_if_it_was_when_it_was_asked_for(
    claims: ClaimBench, *, before: bool
) -> None:
    """Not by its own first slice: who counts what he has bound would leave it out."""
    claims.claim(wait_s=0)
    for result in (replace(PART, again=before), replace(PART, again=True), replace(WHOLE, again=True)):
        claims.engine.answer(result)
    assert claims.heard == [("claim", replace(WHOLE, again=before))]


async def test_a_claim_that_waited_for_room_is_answered_though_its_messages_are_gone(claims: ClaimBench) -> None:
    """It was bound before, and all that it had is evicted: nothing else is waited for."""
    claims.polls.budget.count_replies(HTTP_BYTES.default)
    claims.claim()
    assert claims.engine.pending == []
    claims.polls.budget.count_replies(-HTTP_BYTES.default)
    await asyncio.sleep(0)
    bound = Bound(number=7, messages=0, shards=1, again=True)
    assert claims.engine.answer(bound) == CLAIM
    assert (claims.heard, claims.polls.parked) == ([("claim", bound)], 0)


def test_a_claim_whose_client_goes_is_not_bound_further(claims: ClaimBench) -> None:
    """What was bound stays; the reader claims the same number again."""
    poll = claims.claim()
    claims.engine.answer(PART)
    poll.withdraw()
    assert claims.engine.pending == []
    poll = claims.claim()
    (_, done) = claims.engine.pending[0]
    poll.withdraw()
    done(PART)  # it had been begun
    assert claims.engine.pending == []
    assert claims.heard == []


def test_a_claim_is_asked_at_the_instant_that_its_answer_named(claims: ClaimBench) -> None:
    due = Bound(number=7, messages=0, shards=0, next_due_ms=claims.clock.now_ms() + 5_000)
    claims.park(claims.claim(), due)
    claims.advance(4_999)
    assert claims.engine.pending == []
    claims.advance(1)
    claims.engine.answer(WHOLE)
    assert claims.heard == [("claim", WHOLE)]


def test_a_claim_that_waited_in_vain_hears_nothing(claims: ClaimBench) -> None:
    """After its wait, when its connection is about to end, and when it is being asked at that moment."""
    claims.park(claims.claim(wait_s=3), NOTHING)
    claims.advance(3_000)
    claims.park(claims.claim(), NOTHING).hurry()
    late = claims.park(claims.claim(), NOTHING)
    claims.wake()
    late.hurry()
    claims.engine.answer(NOTHING)
    assert claims.heard == [("claim", NOTHING)] * 3
    assert claims.engine.watches == {}


def test_claims_and_receives_stand_in_one_line(claims: ClaimBench) -> None:
    """Who came first is asked first; who got something has the next one asked."""
    claims.park(claims.receive("first"), EMPTY)
    claims.park(claims.claim("second"), NOTHING)
    claims.park(claims.receive("third"), EMPTY)
    claims.wake()
    due = received(message(), next_due_ms=0)
    assert claims.engine.answer(due) != CLAIM
    assert claims.engine.answer(WHOLE) == CLAIM
    claims.engine.answer(GOT)
    assert claims.heard == [("first", due), ("second", WHOLE), ("third", GOT)]


def test_a_receive_that_found_nothing_asks_no_claim(claims: ClaimBench) -> None:
    """There is nothing for it either: it would be asked in vain after each."""
    claims.park(claims.receive(), EMPTY)
    claims.park(claims.claim(), NOTHING)
    claims.wake()
    claims.engine.answer(EMPTY)
    assert claims.engine.pending == []
    assert claims.polls.parked == 2


def test_who_goes_while_it_is_bound_lets_the_next_one_ask(claims: ClaimBench) -> None:
    poll = claims.park(claims.claim(), NOTHING)
    claims.park(claims.receive(), EMPTY)
    claims.wake()
    claims.engine.answer(PART)
    poll.withdraw()
    claims.engine.answer(GOT)
    assert claims.heard == [("receive", GOT)]


def test_an_answer_to_one_that_has_gone_is_dropped(claims: ClaimBench) -> None:
    """A slice that was begun when its client went is not followed by another."""
    poll = claims.park(claims.claim(), NOTHING)
    claims.wake()
    (_, done) = claims.engine.pending[0]
    poll.withdraw()
    done(PART)
    assert claims.engine.pending == []
    assert claims.heard == []


def test_a_claim_that_fails_lets_the_next_one_ask(claims: ClaimBench) -> None:
    claims.park(claims.claim(), NOTHING)
    claims.park(claims.receive(), EMPTY)
    claims.wake()
    fenced = EpochFenced(1, 2)
    claims.engine.answer(fenced)
    claims.engine.answer(GOT)
    assert claims.heard == [("claim", fenced), ("receive", GOT)]


def test_a_queue_that_is_deleted_ends_all(claims: ClaimBench) -> None:
    claims.park(claims.receive(), EMPTY)
    claims.park(claims.claim(), NOTHING)
    claims.wake()
    claims.engine.answer(QueueNotFound(CLAIMED))
    assert [(name, type(result)) for name, result in claims.heard] == [
        ("receive", QueueNotFound),
        ("claim", QueueNotFound),
    ]


def test_a_claim_without_a_place_does_not_hold_receives_up(claims: ClaimBench) -> None:
    """It stands before the receive in the line; each is asked once, whatever both lack."""
    claims.park(claims.claim(), NOTHING)
    claims.park(claims.receive(), EMPTY)
    claims.wake()
    assert claims.engine.answer(NOTHING) == CLAIM
    assert isinstance(claims.engine.answer(FULL), Receive)
    assert claims.engine.pending == []
    assert claims.polls.parked == 2
    claims.wake()
    assert claims.engine.answer(NOTHING) == CLAIM
    assert isinstance(claims.engine.answer(GOT), Receive)
    assert claims.heard == [("receive", GOT)]
    assert (claims.engine.pending, claims.polls.parked) == ([], 1)
