"""From findings to recommendations."""

import pytest

from tests.internals.pipeline import work_types
from tests.internals.pipeline.made_counts import key_with, lognormal, renewed
from veilmq.pipeline.cells import KeyCounts, ReceiptCounts
from veilmq.pipeline.cost import TuneOptions
from veilmq.pipeline.tune import Confidence, QueueFacts, Recommendation, recommendations

OPTIONS = TuneOptions()
NUMBER = 20  # median 8.6 s, p99 55 s


def recommendation(first: ReceiptCounts, *, facts: QueueFacts | None = None) -> Recommendation:
    """Return what is recommended for a queue with one key."""
    given = {} if facts is None else {"jobs": facts}
    return next(recommendations([key_with(first)], options=OPTIONS, facts=given))


def test_the_recommended_timeout_costs_little_more_than_the_true_best() -> None:
    """From 20,000 receipts, of which a part came back as their consumers died."""
    found = recommendation(lognormal(work_types.median_s(NUMBER), 20_000, crash_rate=work_types.CRASH_RATE))
    best_s, best = work_types.true_best(NUMBER, prices=OPTIONS.prices)
    assert found.recommended_s == pytest.approx(best_s, rel=0.15)
    assert work_types.true_cost(NUMBER, found.recommended_s or 0, prices=OPTIONS.prices) < 1.05 * best
    assert found.current_s == 30
    assert found.change
    assert found.gain > 0.5
    assert found.confidence is Confidence.MEDIUM  # its p99 lies beyond 30 s
    assert "late deletes indicate" in found.reason


def test_a_timeout_that_may_be_as_cheap_is_kept() -> None:
    """The queue is set a little beside the best: the bounds of both costs overlap, and nothing is recommended."""
    seen = lognormal(2.0, 20_000, crash_rate=work_types.CRASH_RATE)
    best_s = recommendation(seen, facts=QueueFacts(visibility_timeout_s=400)).recommended_s or 0
    near = recommendation(seen, facts=QueueFacts(visibility_timeout_s=best_s + 1))
    assert near.recommended_s is None
    assert near.keeps
    assert near.reason.startswith(f"keep {best_s + 1} s: {best_s} s would not surely cost less")
    assert not near.change
    far = recommendation(seen, facts=QueueFacts(visibility_timeout_s=best_s * 10))
    assert far.change
    assert (far.cost_recommended_upper or 0.0) < (far.cost_current_lower or 0.0)
    assert (far.cost_recommended or 0.0) < (far.cost_current or 0.0)


def test_the_receives_of_the_queue_count() -> None:
    """A message that may be received twice only must not be late."""
    seen = lognormal(8.0, 20_000, crash_rate=0.05)
    often = recommendation(seen, facts=QueueFacts(visibility_timeout_s=30, receives_max=10))
    rarely = recommendation(seen, facts=QueueFacts(visibility_timeout_s=30, receives_max=2))
    assert often.cost_current is not None
    assert rarely.cost_current is not None
    assert often.cost_current > 2 * rarely.cost_current


def test_renewing_consumers_get_three_renewals() -> None:
    """Whatever the work takes."""
    found = recommendation(renewed(20))
    assert found.recommended_s in range(59, 63)
    assert "renew about every" in found.reason
    assert found.confidence is Confidence.HIGH
    nearly = recommendation(renewed(20), facts=QueueFacts(visibility_timeout_s=53))
    assert nearly.recommended_s is None, "the period is not known as well as that"


def test_what_is_not_identifiable_is_not_recommended() -> None:
    """But a longer timeout to try is named, unless receipts are what is missing."""
    gave_up = recommendation(lognormal(20.0, 5000, finishing=False))
    assert gave_up.recommended_s is None
    assert gave_up.explore_s in range(118, 122)
    assert gave_up.confidence is Confidence.NONE
    assert not gave_up.change
    few = recommendation(lognormal(2.0, 50))
    assert (few.recommended_s, few.explore_s) == (None, None)
    assert few.reason == "not identifiable: 50 first receipts, p99 needs 300"


def test_queues_come_before_their_keys_and_rare_keys_borrow() -> None:
    """Two queues; the rare key of one has the timeout of its queue's receipts, with low confidence."""

    def counts(queue: str, key: str, first: ReceiptCounts) -> KeyCounts:
        return key_with(first, queue=queue, key=key)

    found = [
        counts("a", "common", lognormal(2.0, 5000)),
        counts("a", "rare", lognormal(2.0, 20)),
        counts("b", "", lognormal(5.0, 1000)),
    ]
    made = list(recommendations(found, options=OPTIONS, facts={}))
    assert [(each.queue, each.key) for each in made] == [
        ("a", None), ("a", "common"), ("a", "rare"), ("b", None), ("b", ""),
    ]  # fmt: skip
    assert made[2].confidence is Confidence.LOW
    assert "28 receipts are borrowed from the queue" in made[2].reason
