"""Claims in the line of long polls: bound slice by slice, and in turn with the receives of their queue."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.internals.server.scripted_engine import ScriptedEngine
from veilmq.core.claims import Bound, Claim
from veilmq.core.commands import Receive
from veilmq.core.errors import EpochFenced, QueueNotFound
from veilmq.core.results import Received, ReceivedMessage
from veilmq.server.long_polling import LongPolls, Poll
from veilmq.testing import VirtualClock

QUEUE = "000000000000/q"
CLAIM = Claim(queue=QUEUE, source="s", epoch=1, number=7, messages_max=100)
NOTHING = Bound(number=7, messages=0, shards=0)
WHOLE = Bound(number=7, messages=60, shards=1)
PART = Bound(number=7, messages=20, shards=1, more=True)
FREEING = Bound(number=7, messages=0, shards=0, more=True)
EMPTY = Received(messages=[], next_due_ms=None, receive_wait_s=0)
FULL = Received(messages=[], next_due_ms=None, receive_wait_s=0, over_limit=True)
MESSAGE = ReceivedMessage(
    id=bytes(16),
    receipt="r",
    body="b",
    properties=b"",
    sent_at_ms=0,
    first_received_at_ms=0,
    receive_count=1,
    visible_at_ms=0,
    priority=8,
)
GOT = Received(messages=[MESSAGE], next_due_ms=None, receive_wait_s=0)


class Bench:
    """Long polls on a scripted engine, and a record of who was answered what."""

    def __init__(self) -> None:
        """Nobody polls."""
        self.engine = ScriptedEngine()
        self.clock = VirtualClock()
        self.polls = LongPolls(engine=self.engine, clock=self.clock)
        self.heard: list[tuple[str, Any]] = []

    def claim(self, name: str = "claim", *, wait_s: int = 20) -> Poll:
        """Claim on behalf of `name`."""
        poll = self.polls.ask(CLAIM, wait_s, lambda result: self.heard.append((name, result)))
        assert isinstance(poll, Poll)
        return poll

    def receive(self, name: str = "receive", *, wait_s: int = 20) -> Poll:
        """Receive on behalf of `name`."""
        poll = self.polls.ask(Receive(queue=QUEUE), wait_s, lambda result: self.heard.append((name, result)))
        assert isinstance(poll, Poll)
        return poll

    def park(self, poll: Poll, empty: Any) -> Poll:
        """Have the engine answer the questions of a new poll with `empty` until it waits."""
        parked = self.polls.parked
        while self.polls.parked == parked:
            self.engine.answer(empty)
        return poll

    def wake(self, in_ms: int = 0) -> None:
        """Have the engine tell that there is a message."""
        self.engine.watches[QUEUE](self.clock.now_ms() + in_ms)

    def advance(self, ms: int) -> None:
        """Move the clock on."""
        self.clock.advance(ms)


def test_a_claim_in_slices_is_asked_until_it_is_whole() -> None:
    """Its client hears of the whole alone."""
    bench = Bench()
    bench.claim(wait_s=0)
    assert [bench.engine.answer(result) for result in (PART, PART, WHOLE)] == [CLAIM] * 3
    assert bench.heard == [("claim", WHOLE)]
    assert bench.engine.asked == []


@pytest.mark.parametrize("before", [False, True])
def test_a_claim_in_slices_was_bound_before_if_it_was_when_it_was_asked_for(*, before: bool) -> None:
    """Not by its own first slice: who counts what he has bound would leave it out."""
    bench = Bench()
    bench.claim(wait_s=0)
    for result in (replace(PART, again=before), replace(PART, again=True), replace(WHOLE, again=True)):
        bench.engine.answer(result)
    assert bench.heard == [("claim", replace(WHOLE, again=before))]


def test_a_claim_is_asked_for_while_groups_are_being_freed() -> None:
    """Nothing was bound so far, and that is not the answer."""
    bench = Bench()
    bench.claim(wait_s=0)
    for result in (FREEING, FREEING, WHOLE):
        bench.engine.answer(result)
    assert bench.heard == [("claim", WHOLE)]


def test_a_claim_whose_client_goes_is_not_bound_further() -> None:
    """What was bound stays; the reader claims the same number again."""
    bench = Bench()
    poll = bench.claim()
    bench.engine.answer(PART)
    poll.withdraw()
    assert bench.engine.asked == []
    poll = bench.claim()
    (_, done) = bench.engine.asked[0]
    poll.withdraw()
    done(PART)  # it had been begun
    assert bench.engine.asked == []
    assert bench.heard == []


def test_a_claim_that_does_not_wait_is_answered_empty() -> None:
    bench = Bench()
    bench.claim(wait_s=0)
    bench.engine.answer(NOTHING)
    assert bench.heard == [("claim", NOTHING)]
    assert bench.polls.parked == 0


def test_a_claim_waits_for_a_message() -> None:
    """And binds what there is then, in slices too."""
    bench = Bench()
    bench.park(bench.claim(), NOTHING)
    bench.wake()
    for result in (PART, WHOLE):
        assert bench.engine.answer(result) == CLAIM
    assert bench.heard == [("claim", WHOLE)]
    assert bench.engine.watches == {}


def test_a_claim_is_asked_at_the_instant_that_its_answer_named() -> None:
    bench = Bench()
    due = Bound(number=7, messages=0, shards=0, next_due_ms=bench.clock.now_ms() + 5_000)
    bench.park(bench.claim(), due)
    bench.advance(4_999)
    assert bench.engine.asked == []
    bench.advance(1)
    bench.engine.answer(WHOLE)
    assert bench.heard == [("claim", WHOLE)]


def test_a_claim_that_waited_in_vain_hears_nothing() -> None:
    """After its wait, when its connection is about to end, and when it is being asked at that moment."""
    bench = Bench()
    bench.park(bench.claim(wait_s=3), NOTHING)
    bench.advance(3_000)
    bench.park(bench.claim(), NOTHING).hurry()
    late = bench.park(bench.claim(), NOTHING)
    bench.wake()
    late.hurry()
    bench.engine.answer(NOTHING)
    assert bench.heard == [("claim", NOTHING)] * 3
    assert bench.engine.watches == {}


def test_nobody_begins_to_wait_while_the_server_closes() -> None:
    bench = Bench()
    bench.polls.close()
    bench.claim()
    bench.engine.answer(NOTHING)
    assert bench.heard == [("claim", NOTHING)]


def test_claims_and_receives_stand_in_one_line() -> None:
    """Who came first is asked first; who got something has the next one asked."""
    bench = Bench()
    bench.park(bench.receive("first"), EMPTY)
    bench.park(bench.claim("second"), NOTHING)
    bench.park(bench.receive("third"), EMPTY)
    bench.wake()
    assert bench.engine.answer(Received(messages=[MESSAGE], next_due_ms=0, receive_wait_s=0)) != CLAIM
    assert bench.engine.answer(WHOLE) == CLAIM
    bench.engine.answer(GOT)
    assert bench.heard == [
        ("first", Received(messages=[MESSAGE], next_due_ms=0, receive_wait_s=0)),
        ("second", WHOLE),
        ("third", GOT),
    ]


def test_a_receive_without_a_place_does_not_hold_claims_up() -> None:
    """It waits for a delete; claims have no such quota. In both orders of their coming."""
    bench = Bench()
    bench.park(bench.receive(), FULL)
    bench.park(bench.claim(), NOTHING)
    bench.wake()
    bench.engine.answer(FULL)
    assert bench.engine.answer(WHOLE) == CLAIM
    assert bench.heard == [("claim", WHOLE)]
    bench.engine.answer(FULL)  # the claim may have left something
    assert bench.polls.parked == 1
    assert bench.engine.asked == []


def test_a_receive_that_found_nothing_asks_no_claim() -> None:
    """There is nothing for it either: it would be asked in vain after each."""
    bench = Bench()
    bench.park(bench.receive(), EMPTY)
    bench.park(bench.claim(), NOTHING)
    bench.wake()
    bench.engine.answer(EMPTY)
    assert bench.engine.asked == []
    assert bench.polls.parked == 2


def test_who_goes_while_it_is_bound_lets_the_next_one_ask() -> None:
    bench = Bench()
    poll = bench.park(bench.claim(), NOTHING)
    bench.park(bench.receive(), EMPTY)
    bench.wake()
    bench.engine.answer(PART)
    poll.withdraw()
    bench.engine.answer(GOT)
    assert bench.heard == [("receive", GOT)]


def test_an_answer_to_one_that_has_gone_is_dropped() -> None:
    """A slice that was begun when its client went is not followed by another."""
    bench = Bench()
    poll = bench.park(bench.claim(), NOTHING)
    bench.wake()
    (_, done) = bench.engine.asked[0]
    poll.withdraw()
    done(PART)
    assert bench.engine.asked == []
    assert bench.heard == []


def test_a_claim_that_fails_lets_the_next_one_ask() -> None:
    bench = Bench()
    bench.park(bench.claim(), NOTHING)
    bench.park(bench.receive(), EMPTY)
    bench.wake()
    fenced = EpochFenced(1, 2)
    bench.engine.answer(fenced)
    bench.engine.answer(GOT)
    assert bench.heard == [("claim", fenced), ("receive", GOT)]


def test_a_queue_that_is_deleted_ends_all() -> None:
    bench = Bench()
    bench.park(bench.receive(), EMPTY)
    bench.park(bench.claim(), NOTHING)
    bench.wake()
    bench.engine.answer(QueueNotFound(QUEUE))
    assert [(name, type(result)) for name, result in bench.heard] == [
        ("receive", QueueNotFound),
        ("claim", QueueNotFound),
    ]


def test_a_claim_without_a_place_does_not_hold_receives_up() -> None:
    """It stands before the receive in the line; each is asked once, whatever both lack."""
    bench = Bench()
    bench.park(bench.claim(), NOTHING)
    bench.park(bench.receive(), EMPTY)
    bench.wake()
    assert bench.engine.answer(NOTHING) == CLAIM
    assert isinstance(bench.engine.answer(FULL), Receive)
    assert bench.engine.asked == []
    assert bench.polls.parked == 2
    bench.wake()
    assert bench.engine.answer(NOTHING) == CLAIM
    assert isinstance(bench.engine.answer(GOT), Receive)
    assert bench.heard == [("receive", GOT)]
    assert (bench.engine.asked, bench.polls.parked) == ([], 1)
