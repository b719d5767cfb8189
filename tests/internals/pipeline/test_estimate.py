"""Estimates from receipts, their uncertainty, and the curves behind them."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.internals.pipeline.made_counts import key_with, lognormal, receipt_counts, renewed, scaled
from veilmq.pipeline.cells import BUCKETS, EDGES_S, RATIO, Array, KeyCounts, ReceiptCounts, bucket_of
from veilmq.pipeline.estimate import Estimate, estimate, estimates
from veilmq.pipeline.options import TuneOptions
from veilmq.pipeline.survival import (
    FAMILIES,
    crossings_s,
    drawn_on,
    product_limit,
    remaining,
    renewal_of,
    share,
    tail_of,
)

OPTIONS = TuneOptions()
CRASHES = 0.003
P99 = math.exp(0.8 * 2.3263)


def alone(first: ReceiptCounts) -> Estimate:
    """Return the estimate from these first receipts."""
    return estimate(key_with(first), options=OPTIONS)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0 %"), (4.5e-42, "less than 0.001 %"), (2e-5, "0.002 %"), (0.123, "12 %")]
)
def test_a_share_is_a_percentage_in_digits(value: float, text: str) -> None:
    assert share(value) == text


def test_a_quantile_below_the_longest_timeout_is_identifiable() -> None:
    quantile = alone(lognormal(2.0, 10_000)).quantile
    assert quantile.point_s == pytest.approx(2.0 * P99, rel=0.01)
    assert (quantile.lower_s or 0.0) < 2.0 * P99 < (quantile.upper_s or 0.0)
    assert quantile.why_not == ""


def test_an_identifiable_quantile_requires_fifty_receipts_at_risk() -> None:
    """A p99 of six thousand receipts is identifiable; of two thousand only its bounds are known."""
    few = alone(lognormal(2.0, 2000)).quantile
    assert few.point_s is None
    assert (few.lower_s or 0.0) < 2.0 * P99 < (few.upper_s or 0.0)
    assert "50 are needed" in few.why_not
    assert alone(lognormal(2.0, 6000)).quantile.point_s is not None
    assert estimate(key_with(lognormal(2.0, 2000)), options=TuneOptions(quantile=0.95)).quantile.point_s is not None


def test_a_quantile_with_bounds_more_than_a_factor_of_two_apart_is_not_identifiable() -> None:
    found = alone(lognormal(2.0, 400, sigma=2.0, timeout_s=40_000.0))
    assert not found.is_known
    assert "p99 is between 147 s and 456 s" in found.quantile.why_not


def test_follow_up_decides_beside_fewer_than_fifty_late_deletes() -> None:
    """Their bounds would be narrower."""
    assert alone(lognormal(1.0, 5_000) + receipt_counts(late=[(40.0, 12.0)])).is_plateau


def test_a_p99_requires_three_hundred_receipts() -> None:
    """Three of them lie beyond it."""
    assert alone(lognormal(2.0, 299)).quantile.why_not == "not identifiable: 299 first receipts, p99 needs 300"


def test_follow_up_distinguishes_crashes_from_work() -> None:
    """Receipts that exceed a timeout which is long enough are crashes, and do not affect the quantile."""
    found = alone(lognormal(1.0, 10_000, crash_rate=0.05, finishing=False))
    assert found.rates.crash == pytest.approx(0.05, rel=0.03)
    assert found.quantile.point_s == pytest.approx(P99, rel=0.03)


def test_without_enough_follow_up_the_quantile_is_not_identifiable() -> None:
    """A third of the work exceeds the timeout: crashes and long work cannot be distinguished."""
    found = alone(lognormal(20.0, 10_000, crash_rate=CRASHES, finishing=False))
    assert not found.is_known
    assert found.quantile.point_s is None
    assert found.quantile.upper_s is None
    assert (found.quantile.lower_s or math.inf) < 20.0 * P99
    assert found.quantile.why_not.startswith("not identifiable: 31 % of the receipts expired and were never deleted")


def test_late_deletes_under_two_timeouts_determine_the_share_that_finishes_late() -> None:
    """Half of the late work is finished, so each late delete counts twice."""
    parts = []
    for timeout_s in (10.0, 40.0):
        whole = lognormal(10.0, 20_000, timeout_s=timeout_s, crash_rate=0.05)
        gone = lognormal(10.0, 20_000, timeout_s=timeout_s, crash_rate=0.05, finishing=False)
        parts += [scaled(whole, 0.5), scaled(gone, 0.5)]
    found = alone(parts[0] + parts[1] + parts[2] + parts[3])
    assert found.rates.crash == pytest.approx(0.05, rel=0.1)
    assert found.quantile.late_s == pytest.approx(10.0 * P99, rel=0.05)
    assert "late deletes indicate" in found.quantile.why_not


def test_timeouts_that_depend_on_the_work_are_detected() -> None:
    """Slow work has the longer timeout, and consumers give up."""
    fast = lognormal(2.0, 10_000, timeout_s=10.0, crash_rate=0.05, finishing=False)
    slow = lognormal(8.0, 10_000, timeout_s=40.0, crash_rate=0.05, finishing=False)
    assert "longer under one timeout than under another" in alone(fast + slow).quantile.why_not


def test_later_receipts_refute_crashes() -> None:
    """Messages that expire at each receive are slow work of unknown length."""
    first = receipt_counts(timeout_s=10.0, deleted=[(each / 100.0, 19.0) for each in range(50, 150)], crashed=100.0)
    again = receipt_counts(timeout_s=10.0, crashed=400.0)
    found = estimate(KeyCounts(queue="jobs", key="", first=first, later=again), options=OPTIONS)
    assert not found.is_known
    assert "receipts show that at most" in found.quantile.why_not
    assert alone(first).is_known


def test_late_deletes_refute_crashes_under_one_timeout() -> None:
    """Half of the expired receipts were deleted late, so at most the other half are crashes."""
    fast = lognormal(1.0, 2_700, sigma=0.2)
    slow = receipt_counts(late=[(40.0, 150.0)], crashed=150.0)
    found = alone(fast + slow)
    assert found.rates.crash <= 0.05
    assert found.tail.beyond(np.array([30.0]))[0, 0] >= 0.05


def test_observed_rare_slow_work_is_kept_in_the_tail() -> None:
    """One message in four hundred takes forty seconds, which a family with one peak does not fit."""
    found = alone(
        lognormal(1.0, 399, sigma=0.2, timeout_s=600.0) + receipt_counts(timeout_s=600.0, deleted=[(40.0, 1.0)])
    )
    beyond = found.tail.beyond(np.array([10.0, 30.0]))
    assert beyond[0] == pytest.approx(1 / 400, rel=0.01)
    assert np.median(beyond[:, 1]) == pytest.approx(1 / 400, rel=0.5)


def test_a_key_with_few_receipts_borrows_the_spread_of_others_around_its_own_median() -> None:
    """Its tail is that of work with its median, not that of another key's slow work."""
    keys = [
        key_with(lognormal(0.5, 5000, crash_rate=0.01), key="fast"),
        key_with(lognormal(200.0, 5000, timeout_s=3000.0, crash_rate=0.01), key="slow"),
        key_with(lognormal(2.0, 100), key="thin"),
        key_with(ReceiptCounts(), key="new"),
    ]
    _, found = estimates(keys, options=OPTIONS)
    assert found["thin"].lent == pytest.approx(OPTIONS.prior * 2 / 3)
    load = found["thin"].load(5)
    assert load.tail.beyond(np.array([4.0 * 2.0 * P99]))[0] < 0.01 < load.tail.beyond(np.array([2.0]))[0]
    assert load.crash_rate == pytest.approx(0.01, abs=0.006)
    assert found["new"].lent == pytest.approx(OPTIONS.prior)
    assert found["fast"].lent == 0.0


def test_an_empty_queue_has_no_estimate() -> None:
    whole, found = estimates([key_with(ReceiptCounts(), key="new")], options=OPTIONS)
    assert not whole.is_known
    assert not found["new"].is_known
    assert whole.rates.recovery == 0.0


def test_renewals_are_detected_and_remove_long_work_from_the_cost() -> None:
    """For consumers that renew every 20 s, a timeout with time for three renewals costs little."""
    found = alone(renewed(20))
    assert found.renewal_s == pytest.approx(20, rel=0.06)
    each = found.costs(np.array([20.0, 70.0]), OPTIONS)
    assert each[0, 0] > 100.0 * each[0, 1]


def test_long_work_of_consumers_that_do_not_renew_stays_in_the_cost() -> None:
    """Half of the consumers do not renew; the work that they gave up does not count as crashes."""
    gave_up = receipt_counts(deleted=[(each, 1.0) for each in range(1, 31)], crashed=270.0)
    found, every = alone(scaled(renewed(20) + gave_up, 10.0)), alone(renewed(20))
    assert found.rates.crash < 0.02
    assert found.survival[0, bucket_of(150)] == pytest.approx(0.5, rel=0.1)
    each, whole = (known.costs(np.array([70.0]), OPTIONS) for known in (found, every))
    assert each.mean() > 100.0
    assert whole.mean() < 10.0


def test_expiries_beyond_a_light_tail_are_crashes() -> None:
    """Work takes 3 to 5 s under a timeout of 8 s, so 8 s clearly costs more than 6 s."""
    found = alone(
        receipt_counts(timeout_s=8.0, deleted=[(3.0 + each / 100.0, 50.0) for each in range(200)], crashed=300.0)
    )
    assert found.rates.crash == pytest.approx(300 / 10_300, rel=0.03)
    each = found.costs(np.array([6.0, 8.0]), OPTIONS)
    assert (each[:, 1] > 1.25 * each[:, 0]).all()


@pytest.mark.parametrize(
    "first",
    [
        receipt_counts(timeout_s=1.0, crashed=5_000.0),
        receipt_counts(late=[(60.0, 400.0)], extended=True),  # no arm has a receipt
        receipt_counts(deleted=[(20 * 86_400.0, 1.0)]),  # beyond the buckets, after a step of the clock
    ],
)
def test_if_no_receipt_was_deleted_in_sight_nothing_is_known(first: ReceiptCounts) -> None:
    found = alone(first)
    assert not found.is_known
    assert found.quantile.why_not.startswith("not identifiable")


def test_extended_timeouts_determine_the_period_of_renewals_if_the_work_does_not() -> None:
    """No work ends soon after a renewal: the time held alone would give 35 s."""
    found = renewal_of(renewed(20, [*range(1, 16), *range(35, 40)]))
    assert found == pytest.approx(20, rel=0.02)


def test_consumers_that_renew_rarely_do_not_count_as_renewing() -> None:
    """A tenth of the receipts that exceeded a period were renewed."""
    plain, other = (
        receipt_counts(deleted=[(25.0, 270.0)]),
        receipt_counts(timeout_s=50.0, deleted=[(25.0, 30.0)], extended=True),
    )
    rarely = replace(plain + other, extensions=30.0)
    assert renewal_of(rarely) is None
    assert renewal_of(lognormal(2.0, 300)) is None


# Curves and their tails, in examples that can be calculated by hand


def counts(*pairs: tuple[float, float]) -> Array:
    """Return the receipts by bucket, from pairs of (seconds, receipts)."""
    found = np.zeros(BUCKETS)
    for time_s, receipts in pairs:
        found[bucket_of(time_s)] += receipts
    return found


def at(values: Array, time_s: float) -> float:
    """Return the value of a curve at the upper edge of the bucket of ``time_s``."""
    return float(values[bucket_of(time_s)])


def test_the_curve_steps_down_where_work_ends_and_not_at_censored_receipts() -> None:
    """Ten receipts: 2 end at 1 s, 3 are released at 5 s, 1 of the 5 left ends at 8 s."""
    ended = counts((1, 2), (8, 1))
    survival = product_limit(ended, remaining(ended + counts((5, 3), (20, 4))))
    assert at(survival, 0.5) == 1.0
    assert at(survival, 1) == pytest.approx(0.8)
    assert at(survival, 5) == pytest.approx(0.8)
    assert at(survival, 100) == pytest.approx(0.8 * 4 / 5)


def test_a_quantile_is_interpolated_within_its_bucket() -> None:
    """It is infinite if the curve does not fall to the level."""
    seen = lognormal(10.0, 5000, timeout_s=1e6)
    rows = np.stack([1.0 - np.cumsum(seen.deleted) / 5000, np.ones(BUCKETS)])
    median, never = crossings_s(rows, 0.5)
    assert median == pytest.approx(10.0, rel=0.003)
    assert never == math.inf


def test_the_tail_has_the_work_beyond_each_time() -> None:
    """Half of the work takes 1 s, half 100 s; the rows are several tails."""
    ended = counts((1, 10), (100, 10))
    one = product_limit(ended, remaining(ended))
    tail = tail_of(np.stack([one, one]))
    assert tail.beyond(np.array([10.0]))[:, 0] == pytest.approx(0.5)
    assert tail.work_beyond(np.array([10.0]))[:, 0] == pytest.approx(50.0, rel=RATIO - 1)
    assert tail.work_beyond(np.array([0.01]))[:, 0] == pytest.approx(50.5, rel=RATIO - 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_curve_is_extrapolated_by_the_family_that_fits(family: str) -> None:
    """With 100,000 receipts, the tail where 2 are left is right within a factor of two."""
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


def test_without_a_deleted_receipt_the_quantile_has_no_lower_bound() -> None:
    """All of 3,000 receipts expired: all may have crashed. The bound was fourteen days."""
    quantile = alone(receipt_counts(timeout_s=30.0, crashed=3_000)).quantile
    assert quantile.lower_s is None
    assert quantile.why_not.startswith("not identifiable: 100 % of the receipts expired")


def test_a_tail_is_not_fitted_across_the_gap_between_two_kinds_of_work() -> None:
    """One message in 25 takes 50 times as long: 217 receipts, so the last 500 are of both kinds."""
    parts = ((0.961, 0.7), (0.039, 35.0))
    true = np.array(
        [
            sum(share * 0.5 * math.erfc(math.log(edge / median) / 0.4 / math.sqrt(2.0)) for share, median in parts)
            for edge in EDGES_S
        ]
    )
    ended = np.random.default_rng(1).multinomial(5_573, np.maximum(-np.diff(true, prepend=1.0), 0.0)).astype(float)
    rows = np.tile(product_limit(ended, remaining(ended)), (41, 1))
    found = drawn_on(rows, ended, remaining(ended), np.random.default_rng(1))
    assert np.median(found[:, bucket_of(500.0)]) < 1e-5, "none of 5,573 took longer than 150 s"
