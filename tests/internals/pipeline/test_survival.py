"""Curves, on examples that a pencil can follow, and their tails."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.internals.pipeline.made_counts import lognormal
from veilmq.pipeline.cells import BUCKETS, EDGES_S, RATIO, Array, bucket_of
from veilmq.pipeline.survival import FAMILIES, crossings_s, drawn_on, product_limit, remaining, tail_of


def counts(*pairs: tuple[float, float]) -> Array:
    """Return how many receipts lie in which bucket, from pairs of (seconds, receipts)."""
    found = np.zeros(BUCKETS)
    for time_s, receipts in pairs:
        found[bucket_of(time_s)] += receipts
    return found


def at(values: Array, time_s: float) -> float:
    """Return the value of a curve right after the bucket of `time_s`."""
    return float(values[bucket_of(time_s)])


def test_the_curve_steps_where_work_ends_and_not_where_sight_does() -> None:
    """Ten receipts: 2 end at 1 s, 3 are released at 5 s, 1 of the 5 left ends at 8 s."""
    ended = counts((1, 2), (8, 1))
    survival = product_limit(ended, remaining(ended + counts((5, 3), (20, 4))))
    assert at(survival, 0.5) == 1.0
    assert at(survival, 1) == pytest.approx(0.8)
    assert at(survival, 5) == pytest.approx(0.8)
    assert at(survival, 100) == pytest.approx(0.8 * 4 / 5)


def test_a_quantile_is_interpolated_within_its_bucket() -> None:
    """And infinite where the curve does not come down to it."""
    seen = lognormal(10.0, 5000, timeout_s=1e6)
    rows = np.stack([1.0 - np.cumsum(seen.deleted) / 5000, np.ones(BUCKETS)])
    median, never = crossings_s(rows, 0.5)
    assert median == pytest.approx(10.0, rel=0.003)
    assert never == math.inf


def test_the_tail_weighs_work_beyond_each_time() -> None:
    """Of two equal halves of 1 s and 100 s, the second is what lies beyond 10 s; rows are several tails."""
    ended = counts((1, 10), (100, 10))
    one = product_limit(ended, remaining(ended))
    tail = tail_of(np.stack([one, one]))
    assert tail.beyond(np.array([10.0]))[:, 0] == pytest.approx(0.5)
    assert tail.work_beyond(np.array([10.0]))[:, 0] == pytest.approx(50.0, rel=RATIO - 1)
    assert tail.work_beyond(np.array([0.01]))[:, 0] == pytest.approx(50.5, rel=RATIO - 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_end_of_a_curve_is_drawn_on_by_the_family_that_the_data_shows(family: str) -> None:
    """From 100,000 receipts of it; ten times as far out as most of them, the tail is right to some factor."""
    levels = (np.arange(100_000) + 0.5) / 100_000
    shapes: dict[str, Callable[[float], float]] = {
        "log-normal": lambda t: 0.5 * math.erfc(math.log(t / 10.0) / 1.5 / math.sqrt(2.0)),
        "Weibull": lambda t: math.exp(-((t / 10.0) ** 2.0)),
        "generalised Pareto": lambda t: (1.0 + t / 10.0) ** -2.0,
    }
    true = np.array([shapes[family](edge) for edge in EDGES_S])
    ended = -np.diff(true, prepend=1.0) * levels.size
    rows = np.tile(product_limit(ended, remaining(ended)), (41, 1))
    found = drawn_on(rows, ended, remaining(ended), np.random.default_rng(1))
    out = int(np.argmax(true < 2e-5))
    assert true[out] / 2 < np.median(found[1:, out]) < 2 * true[out]
    assert np.allclose(found[:, : bucket_of(10.0)], rows[:, : bucket_of(10.0)])
