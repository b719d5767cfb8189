"""What is told of a queue that was counted again and again: its rates, and what was visible lately."""

import pytest

from veilmq.core.limits import SECOND_MS
from veilmq.core.results import QueueCounts, QueueView
from veilmq.core.settings import QueueSettings
from veilmq.server.queue_statistics import HISTORY_MAX, QueueRecord


def view(*, visible: int = 0, sent: int = 0, received: int = 0, deleted: int = 0) -> QueueView:
    """Return a queue with these counts."""
    counts = QueueCounts(
        visible=visible, in_flight=0, delayed=0, oldest_sent_at_ms=None, sent=sent, received=received, deleted=deleted
    )
    return QueueView(queue="a/q", settings=QueueSettings(), created_at_ms=0, modified_at_ms=0, counts=counts)


def rates(record: QueueRecord) -> tuple[float, ...] | None:
    """Return what happened a second."""
    return record.rates


def test_rates_are_over_some_seconds() -> None:
    """Not over one, where ten messages at once would look like a flood, and not over all that ever was."""
    record = QueueRecord(view(), 0)
    assert rates(record) is None, "one count tells of no movement"
    record.take(view(sent=30, received=20, deleted=10), 1 * SECOND_MS)
    assert rates(record) == (30.0, 20.0, 10.0)
    for second in range(2, 60):
        record.take(view(sent=30, received=20 * second, deleted=10), second * SECOND_MS)
    assert rates(record) == (0.0, 20.0, 0.0), "what was sent in the first second is long ago"


def test_no_rate_is_told_over_next_to_no_time() -> None:
    """Two looks in a row would make a large one of a single message."""
    record = QueueRecord(view(), 0)
    record.take(view(sent=1), 1)
    assert rates(record) is None


def test_totals_that_fall_begin_anew() -> None:
    """They are those of a store that was opened anew."""
    record = QueueRecord(view(sent=100), 0)
    record.take(view(sent=110), SECOND_MS)
    record.take(view(sent=3), 2 * SECOND_MS)
    assert rates(record) is None
    record.take(view(sent=5), 3 * SECOND_MS)
    assert rates(record) == (2.0, 0.0, 0.0)


def test_the_history_has_a_point_a_second_and_an_end() -> None:
    """The last of each second, and the last sixty."""
    record = QueueRecord(view(visible=7), 0)
    record.take(view(visible=8), SECOND_MS - 1)
    assert record.shown("q").history == [(0, 8)]
    for second in range(1, HISTORY_MAX + 10):
        record.take(view(visible=second), second * SECOND_MS)
    history = record.shown("q").history
    assert history == [(second * SECOND_MS, second) for second in range(10, HISTORY_MAX + 10)]


def test_a_single_slow_count_is_no_price() -> None:
    """The machine may have been busy with something else; two in a row are the queue's own."""
    record = QueueRecord(view(), 0)
    record.take(view(), SECOND_MS, cost_s=3.0)
    assert record.cost_s == 0.0
    record.take(view(), 2 * SECOND_MS, cost_s=2.0)
    assert record.cost_s == pytest.approx(2.0)
