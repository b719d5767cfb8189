"""Numbers for Prometheus, where it is installed."""

import importlib.util
from typing import Any

import pytest

from veilmq.consumer.counts import EDGES_S, Spread
from veilmq.consumer.metrics import exported
from veilmq.consumer.prometheus import buckets


def test_without_prometheus_nothing_is_exported_and_nothing_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain install is enough to run a consumer."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    nobody: Any = None
    with exported(nobody):
        pass


def test_buckets_are_cumulative() -> None:
    spread = Spread()
    for duration_s in (0.0, 0.001, 0.3, 100_000.0, -1.0):
        spread.add(duration_s)
    counts = dict(buckets(spread))
    assert (counts["0.001"], counts["0.5"], counts["43200.0"], counts["+Inf"]) == (3, 4, 4, 5)
    assert len(counts) == len(EDGES_S) + 1
    assert spread.sum_s == pytest.approx(100_000.301)
