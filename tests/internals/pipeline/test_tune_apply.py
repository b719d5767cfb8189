"""Recommendations set on real queues, over HTTP."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.internals.pipeline.made_counts import key_with, lognormal
from veilmq.client import HttpQueueClient
from veilmq.pipeline.cells import ReceiptCounts
from veilmq.pipeline.cost import TuneOptions
from veilmq.pipeline.tune import Change, Confidence, QueueFacts, Recommendation, apply, facts_of, recommendations, undo
from veilmq.testing import RunningServer

QUEUE = "jobs"
AT_MS = 1_767_225_600_000
SLOW = lognormal(8.0, 50_000, crash_rate=0.003)


@pytest.fixture
def client() -> Iterator[HttpQueueClient]:
    """Give a client of a server that has the queue, with a timeout of 30 s."""
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue(QUEUE)
        yield client


def recommendation(client: HttpQueueClient, first: ReceiptCounts) -> Recommendation:
    """Return what is recommended for the queue as the event log names it."""
    facts = facts_of(client, [QUEUE])
    found = key_with(first, queue=facts[QUEUE].full_name)
    return next(recommendations([found], options=TuneOptions(), facts=facts))


def timeout_s(client: HttpQueueClient) -> int:
    """Return the timeout that the queue has now."""
    return client.show(QUEUE).settings.visibility_timeout_s


def test_a_recommended_timeout_is_set_and_recorded(client: HttpQueueClient, tmp_path: Path) -> None:
    """The record has a line for each change: before, after, and why."""
    found = recommendation(client, SLOW)
    record = tmp_path / "state" / "changes.jsonl"
    (change,) = apply(client, [found], record=record, at_ms=AT_MS)
    assert (found.recommended_s or 0) > 90
    assert timeout_s(client) == change.after_s == 90  # a step is a factor of three
    assert (change.before_s, change.at_ms, change.reason) == (30, AT_MS, found.reason)
    assert [msgspec.json.decode(line, type=Change) for line in record.read_bytes().splitlines()] == [change]


def test_applied_once_more_it_changes_nothing(client: HttpQueueClient, tmp_path: Path) -> None:
    """Two steps lead to what the queue should have: no gain is left."""
    for _ in range(2):
        apply(client, [recommendation(client, SLOW)], record=tmp_path / "changes", at_ms=AT_MS)
    again = recommendation(client, SLOW)
    assert again.keeps
    assert again.gain == 0
    assert apply(client, [again], record=tmp_path / "changes", at_ms=AT_MS) == []


def test_a_queue_that_was_changed_meanwhile_is_left_alone(client: HttpQueueClient, tmp_path: Path) -> None:
    """The recommendation was for another timeout in force."""
    found = recommendation(client, SLOW)
    client.set(QUEUE, {"visibility_timeout_s": 45})
    assert apply(client, [found], record=tmp_path / "changes", at_ms=AT_MS) == []
    assert timeout_s(client) == 45


def test_queues_of_others_queues_that_are_gone_and_keys_are_passed_over(
    client: HttpQueueClient, tmp_path: Path
) -> None:
    """Nothing is set for them."""
    found = recommendation(client, SLOW)
    others = [
        dataclasses.replace(found, queue="222222222222/jobs"),
        dataclasses.replace(found, queue=found.queue + "-gone"),
        dataclasses.replace(found, key="a"),
    ]
    assert apply(client, others, record=tmp_path / "changes", at_ms=AT_MS) == []
    assert timeout_s(client) == 30


def test_longer_timeouts_are_tried_on_request(client: HttpQueueClient, tmp_path: Path) -> None:
    """Where consumers give up at the deadline, only a longer one shows more."""
    found = recommendation(client, lognormal(20.0, 5000, finishing=False))
    assert apply(client, [found], record=tmp_path / "changes", at_ms=AT_MS) == []
    (change,) = apply(client, [found], record=tmp_path / "changes", at_ms=AT_MS, explore=True)
    assert (found.explore_s or 0) > 90
    assert timeout_s(client) == change.after_s == 90


def test_a_dry_run_changes_nothing_and_what_was_changed_is_undone(client: HttpQueueClient, tmp_path: Path) -> None:
    """The last run is set back, once; then there is nothing to undo, until the next run."""
    record = tmp_path / "changes"
    (would,) = apply(client, [recommendation(client, SLOW)], record=record, at_ms=AT_MS, dry_run=True)
    assert (would.after_s, timeout_s(client), record.exists()) == (90, 30, False)
    for at_ms in (AT_MS, AT_MS + 1000):
        assert undo(client, record=record, at_ms=at_ms) == []
        apply(client, [recommendation(client, SLOW)], record=record, at_ms=at_ms)
        assert timeout_s(client) == 90
        (undone,) = undo(client, record=record, at_ms=at_ms + 1)
        assert (undone.before_s, undone.after_s, undone.undoes_ms) == (90, 30, at_ms)
        assert timeout_s(client) == 30
    assert len(record.read_bytes().splitlines()) == 4


def test_a_change_that_was_changed_again_is_not_undone(client: HttpQueueClient, tmp_path: Path) -> None:
    """Somebody has set the queue since."""
    apply(client, [recommendation(client, SLOW)], record=tmp_path / "changes", at_ms=AT_MS)
    client.set(QUEUE, {"visibility_timeout_s": 45})
    assert undo(client, record=tmp_path / "changes", at_ms=AT_MS + 1) == []
    assert timeout_s(client) == 45


def test_an_advice_of_low_confidence_is_not_applied(client: HttpQueueClient, tmp_path: Path) -> None:
    """Whatever it would save."""
    found = dataclasses.replace(recommendation(client, SLOW), confidence=Confidence.LOW)
    assert apply(client, [found], record=tmp_path / "changes", at_ms=AT_MS) == []


def test_the_queue_says_how_often_a_message_is_received(client: HttpQueueClient) -> None:
    """Where it has a dead-letter queue."""
    client.create_queue("dead")
    client.set(QUEUE, {"dead_letter_queue": "dead", "receives_max": 3})
    facts = facts_of(client, [QUEUE])[QUEUE]
    assert facts == QueueFacts(visibility_timeout_s=30, receives_max=3, full_name=facts.full_name)
    assert facts.full_name.endswith("/jobs")
