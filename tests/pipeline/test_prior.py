"""What rare keys are lent."""

import math

import pytest

from tests.pipeline.made_tally import lognormal
from veilmq.pipeline.prior import prior_of
from veilmq.pipeline.survival import curve_of
from veilmq.pipeline.tallies import Tally
from veilmq.pipeline.tune_options import TuneOptions

OPTIONS = TuneOptions()
QUEUE = prior_of([lognormal(0.5, 5000), lognormal(10.0, 5000), lognormal(200.0, 5000)])
P99 = math.exp(0.8 * 2.3263)


def test_a_key_with_a_median_is_lent_the_scatter_of_the_others() -> None:
    """Moved to where it is: its tail is near that of its own kind of work, not that of the slow work beside it."""
    lent = QUEUE.lent_to(lognormal(2.0, 100), options=OPTIONS)
    assert lent.receipts == pytest.approx(OPTIONS.prior * 2 / 3)
    assert curve_of(lent).quantile_s(0.5) == pytest.approx(2.0, rel=0.05)
    assert curve_of(lent).quantile_s(0.99) == pytest.approx(2.0 * P99, rel=0.1)


def test_a_key_without_one_is_lent_the_receipts_of_the_queue_as_they_are() -> None:
    """It may be any of them."""
    lent = QUEUE.lent_to(lognormal(2.0, 10), options=OPTIONS)
    assert curve_of(lent).quantile_s(0.5) == pytest.approx(10.0, rel=0.05)
    assert (curve_of(lent).quantile_s(0.99) or 0) > 300


def test_an_empty_queue_lends_nothing() -> None:
    """Neither does it divide by nothing."""
    assert prior_of([]).lent_to(Tally(), options=OPTIONS).receipts == 0.0


def test_what_falls_off_the_ends_of_a_shift_stays_there() -> None:
    """No receipt is lost."""
    seen = lognormal(2.0, 100)
    for buckets in (-2000, -7, 0, 7, 2000):
        assert seen.shifted(buckets).deleted.sum() == pytest.approx(100)
