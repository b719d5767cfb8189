"""What is counted of renewals: how timely they are, and why they fail; in virtual time."""

import pytest

from tests.consumer.lease_play import BUSY, GONE, THROTTLED, Answer, Play
from veilmq.client.messages import Unreachable
from veilmq.consumer.counts import Spread
from veilmq.consumer.policies import Fixed
from veilmq.consumer.renewals import Renewals, class_of
from veilmq.consumer.renewer import Renewer


@pytest.fixture
def counted() -> Renewals:
    """Give what counts."""
    return Renewals()


@pytest.fixture
def play(counted: Renewals) -> Play:
    """Give leases of 30 s that are renewed every 20 s, and counted."""
    made = Play(Fixed(30, 20), jitter=0.5)
    made.renewer = Renewer(made.table, made.queue, meter=counted, calls_max=1)
    return made


def observed(spread: Spread) -> tuple[int, float]:
    """Return how many observations there were, and their sum."""
    return sum(spread.counts), round(spread.sum_s, 6)


def test_the_margin_is_what_was_left_and_the_lateness_what_was_missed(play: Play, counted: Renewals) -> None:
    """One renewal at 20 s, and one 1.5 s late."""
    play.take(timeout_s=30)
    play.until(25)
    assert observed(counted.margin) == (1, 10.0)
    assert observed(counted.lateness) == (1, 0.0)
    play.until(42, late_s=1.5)
    assert observed(counted.margin) == (2, 18.5)
    assert observed(counted.lateness) == (2, 1.5)
    assert (counted.calls, counted.entries) == (2, 2)


def test_a_retry_has_a_margin_and_is_not_late(play: Play, counted: Renewals) -> None:
    """It is late by what failed before it."""
    play.take(timeout_s=30)
    play.queue.script = [Answer(error=BUSY)]
    play.until(25)
    assert observed(counted.margin) == (2, 19.9)
    assert observed(counted.lateness) == (1, 0.0)
    assert +counted.verdicts == {"again": 1, "renewed": 1}


def test_why_renewals_fail_is_counted_by_entry(play: Play, counted: Renewals) -> None:
    """Of a whole call, and of entries."""
    play.take("a", "b", timeout_s=30)
    play.queue.script = [Answer(error=BUSY), Answer(entries={"a": GONE, "b": THROTTLED})]
    play.until(25)
    assert counted.errors == {"ServiceUnavailable": 2, "InvalidParameterValue": 1, "Throttling": 1}


def test_what_is_no_answer_of_a_server_is_named_by_its_kind() -> None:
    assert class_of(Unreachable("http://queue", "cut off")) == "Unreachable"
