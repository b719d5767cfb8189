"""The exposition of one snapshot."""

from typing import Any

from veilmq.core.events import EventCounts
from veilmq.core.results import QueueCounts
from veilmq.server.metrics import Counted, Metrics, Snapshot, exposition


def lines(**parts: Any) -> list[str]:
    """Return the text of a snapshot of a server at rest, but for `parts`."""
    rest: dict[str, Any] = {
        "metrics": Metrics(),
        "queues": [],
        "queues_in_all": 0,
        "now_ms": 0,
        "parked_polls": 0,
        "open_connections": 0,
        "events": EventCounts(recorded=0, exported=0, dropped=0),
        "event_export_failures": 0,
    }
    return exposition(Snapshot(**(rest | parts))).decode().splitlines()


def test_the_sum_of_a_histogram_is_that_of_the_durations() -> None:
    """Per action and code, beside the count."""
    metrics = Metrics()
    metrics.count("SendMessage", "OK", 1.5)
    metrics.count("SendMessage", "OK", 0.25)
    metrics.count("SendMessage", "InternalFailure", 3.0)
    copied = metrics.copy()
    metrics.count("SendMessage", "OK", 9.0)  # not in the copy
    told = lines(metrics=copied)
    name = "veilmq_request_duration_seconds"
    assert f'{name}_sum{{action="SendMessage",code="OK"}} 1.75' in told
    assert f'{name}_count{{action="SendMessage",code="OK"}} 2.0' in told
    assert f'{name}_sum{{action="SendMessage",code="InternalFailure"}} 3.0' in told


def test_the_event_log_is_told_of() -> None:
    """What waits is what was recorded and not exported."""
    told = lines(events=EventCounts(recorded=10, exported=7, dropped=2), event_export_failures=1)
    assert "veilmq_events_recorded_total 10.0" in told
    assert "veilmq_events_exported_total 7.0" in told
    assert "veilmq_events_dropped_total 2.0" in told
    assert "veilmq_events_waiting 3.0" in told
    assert "veilmq_event_export_failures_total 1.0" in told


def test_what_has_passed_through_a_queue_is_told_of() -> None:
    """As counters, by its name."""
    counts = QueueCounts(
        visible=0, in_flight=0, delayed=0, oldest_sent_at_ms=None, redelivered=1, sent=4, received=3, deleted=2
    )
    told = lines(queues=[("000000000000/jobs", Counted(counts, claims=None))])
    label = '{queue="000000000000/jobs"}'
    assert f"veilmq_queue_messages_sent_total{label} 4.0" in told
    assert f"veilmq_queue_messages_received_total{label} 3.0" in told
    assert f"veilmq_queue_messages_deleted_total{label} 2.0" in told
    assert f"veilmq_queue_redeliveries_total{label} 1.0" in told
