"""The estimator of Kaplan and Meier, on examples that a pencil can follow."""

import math

import numpy as np
import pytest

from tests.pipeline.made_tally import counts, lognormal
from veilmq.pipeline.histograms import RATIO
from veilmq.pipeline.survival import TAIL_TO, curve_of
from veilmq.pipeline.tallies import EDGES_S, Tally


def at(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], time_s: float) -> float:
    """Return the value of a curve right after the bucket of `time_s`."""
    return float(values[np.searchsorted(EDGES_S, time_s)])


def test_the_curve_steps_where_work_ends_and_not_where_sight_does() -> None:
    """Ten receipts: 2 end at 1 s, 3 are censored at 5 s, 1 of the 5 left ends at 8 s."""
    curve = curve_of(Tally(deleted=counts((1, 2), (8, 1)), nacked=counts((5, 3)), expired=counts((20, 4))))
    assert at(curve.survival, 0.5) == 1.0
    assert at(curve.survival, 1) == pytest.approx(0.8)
    assert at(curve.survival, 5) == pytest.approx(0.8)
    assert at(curve.survival, 8) == pytest.approx(0.8 * 4 / 5)
    assert at(curve.survival, 100) == pytest.approx(0.64)
    assert curve.sight_s == pytest.approx(20, rel=RATIO - 1)


def test_the_bounds_are_greenwoods() -> None:
    """The variance of ln S is the sum of d / (n (n - d)), and the bounds are taken on the scale of ln(-ln S)."""
    curve = curve_of(Tally(deleted=counts((1, 20), (8, 10)), expired=counts((20, 70))))
    survival = 0.7
    error = math.sqrt(20 / (100 * 80) + 10 / (80 * 70)) / -math.log(survival)
    assert at(curve.lower, 8) == pytest.approx(survival ** math.exp(1.96 * error))
    assert at(curve.upper, 8) == pytest.approx(survival ** math.exp(-1.96 * error))


def test_a_quantile_is_interpolated_within_its_bucket() -> None:
    """Median and p99 of log-normal work come out far closer than a bucket is wide."""
    curve = curve_of(lognormal(10.0, 5000))
    assert curve.quantile_s(0.5) == pytest.approx(10.0, rel=0.003)
    assert curve.quantile_s(0.99) == pytest.approx(10.0 * math.exp(0.8 * 2.3263), rel=0.01)


def test_late_deletes_show_what_lies_beyond_the_timeout_and_naive_figures_do_not() -> None:
    """With a timeout of 30 s and a p99 of 64 s the deletes in time alone say 29 s."""
    seen = lognormal(10.0, 5000)
    assert curve_of(seen).quantile_s(0.99) == pytest.approx(64.3, rel=0.01)
    assert curve_of(Tally(deleted=seen.deleted)).quantile_s(0.99) == pytest.approx(28.9, rel=0.03)
    assert curve_of(lognormal(10.0, 5000, finishing=False)).quantile_s(0.99) is None


def test_a_quantile_that_the_curve_does_not_reach_is_none() -> None:
    """And so are the bounds that do not reach it."""
    curve = curve_of(Tally(deleted=counts((1, 97)), expired=counts((20, 3))))
    assert curve.quantile_s(0.99) is None
    assert curve.quantile_s(0.95) is not None
    assert curve.quantile_bounds_s(0.97)[1] is None


def test_the_tail_weighs_work_beyond_each_time() -> None:
    """Of two equal halves of 1 s and 100 s, the second is what lies beyond 10 s."""
    tail = curve_of(Tally(deleted=counts((1, 10), (100, 10)))).tail
    assert tail.beyond(np.array([10.0]))[0] == pytest.approx(0.5)
    assert tail.work_beyond(np.array([10.0]))[0] == pytest.approx(50.0, rel=RATIO - 1)
    assert tail.work_beyond(np.array([0.01]))[0] == pytest.approx(50.5, rel=RATIO - 1)


def test_the_end_of_a_tail_is_drawn_on() -> None:
    """Where fewer receipts are left than mean anything, the line of the last hundreds goes on."""
    curve = curve_of(lognormal(10.0, 20_000, timeout_s=1e6))
    last = int(np.flatnonzero(curve.at_risk >= TAIL_TO)[-1])
    assert np.allclose(curve.tail.survival[:last], curve.survival[:last])
    beyond = curve.tail.beyond(np.array([250.0]))[0]
    assert 2e-5 < beyond < 6e-5  # truly 2.9e-5


def test_nothing_seen_is_no_curve() -> None:
    """No receipts, no quantile, and no work."""
    curve = curve_of(Tally())
    assert curve.quantile_s(0.5) is None
    assert curve.sight_s == 0.0
