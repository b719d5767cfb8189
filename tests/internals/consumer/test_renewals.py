"""What is counted of renewals: how timely they are, and why they fail; in virtual time."""

import pytest

from tests.consumer.simulation import BUSY, GONE, THROTTLED, Answer, Play
from veilmq.client.messages import Unreachable
from veilmq.consumer.metrics import Histogram
from veilmq.consumer.renewal_policies import Fixed
from veilmq.consumer.renewer import RenewalMetrics, Renewer, class_of


@pytest.fixture
def counted() -> RenewalMetrics:
    """Give what counts."""
    return RenewalMetrics()


@pytest.fixture
def play(counted: RenewalMetrics) -> Play:
    """Give leases of 30 s that are renewed every 20 s, and counted."""
    made = Play(Fixed(30, 20), jitter=0.5)
    made.renewer = Renewer(made.table, made.queue, metrics=counted, calls_max=1)
    return made


def observed(spread: Histogram) -> tuple[int, float]:
    """Return how many observations there were, and their sum."""
    return sum(spread.counts), round(spread.sum_s, 6)


def test_the_margin_is_what_was_left_and_the_lateness_what_was_missed(play: Play, counted: RenewalMetrics) -> None:
    """One renewal at 20 s, and one 1.5 s late."""
    play.take(timeout_s=30)
    play.until(25)
    assert observed(counted.margin) == (1, 10.0)
    assert observed(counted.lateness) == (1, 0.0)
    play.until(42, late_s=1.5)
    assert observed(counted.margin) == (2, 18.5)
    assert observed(counted.lateness) == (2, 1.5)
    assert (counted.calls, counted.entries) == (2, 2)


def test_a_retry_has_a_margin_and_is_not_late(play: Play, counted: RenewalMetrics) -> None:
    """It is late by what failed before it."""
    play.take(timeout_s=30)
    play.queue.script = [Answer(error=BUSY)]
    play.until(25)
    assert observed(counted.margin) == (2, 19.9)
    assert observed(counted.lateness) == (1, 0.0)
    assert +counted.results == {"again": 1, "renewed": 1}


def test_why_renewals_fail_is_counted_by_entry(play: Play, counted: RenewalMetrics) -> None:
    """Of a whole call, and of entries."""
    play.take("a", "b", timeout_s=30)
    play.queue.script = [Answer(error=BUSY), Answer(entries={"a": GONE, "b": THROTTLED})]
    play.until(25)
    assert counted.errors == {"ServiceUnavailable": 2, "InvalidParameterValue": 1, "Throttling": 1}


def test_what_is_no_answer_of_a_server_is_named_by_its_kind() -> None:
    assert class_of(Unreachable("http://queue", "cut off")) == "Unreachable"
