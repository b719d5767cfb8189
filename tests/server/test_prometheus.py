"""The exposition of one snapshot."""

from veilmq.server.metrics import Metrics
from veilmq.server.prometheus import Snapshot, exposition


def test_the_sum_of_a_histogram_is_that_of_the_durations() -> None:
    """Per action and code, beside the count."""
    metrics = Metrics()
    metrics.count("SendMessage", "OK", 1.5)
    metrics.count("SendMessage", "OK", 0.25)
    metrics.count("SendMessage", "InternalFailure", 3.0)
    snapshot = Snapshot(
        metrics=metrics.copy(), queues=[], queues_in_all=0, now_ms=0, parked_polls=0, open_connections=0
    )
    metrics.count("SendMessage", "OK", 9.0)  # not in the copy
    lines = exposition(snapshot).decode().splitlines()
    name = "veilmq_request_duration_seconds"
    assert f'{name}_sum{{action="SendMessage",code="OK"}} 1.75' in lines
    assert f'{name}_count{{action="SendMessage",code="OK"}} 2.0' in lines
    assert f'{name}_sum{{action="SendMessage",code="InternalFailure"}} 3.0' in lines
