"""What receipts say, and when they do not."""

import dataclasses

import pytest

from tests.pipeline.made_tally import counts, lognormal
from veilmq.pipeline.finding import finding_of, renewal_of
from veilmq.pipeline.prior import prior_of
from veilmq.pipeline.tallies import Tally
from veilmq.pipeline.tune_options import TuneOptions

OPTIONS = TuneOptions()


def test_a_quantile_below_the_longest_timeout_is_identifiable() -> None:
    """With bounds around it, and no reason why not."""
    quantile = finding_of(lognormal(2.0, 5000), options=OPTIONS).quantile
    assert quantile.point_s == pytest.approx(12.86, rel=0.01)
    assert quantile.lower_s is not None
    assert quantile.upper_s is not None
    assert quantile.lower_s < 12.86 < quantile.upper_s
    assert quantile.why_not == ""


def test_too_few_receipts_are_said() -> None:
    """Three receipts must lie beyond a p99, so it takes three hundred."""
    assert finding_of(lognormal(2.0, 299), options=OPTIONS).quantile.why_not == (
        "not identifiable: 299 first receipts, p99 needs 300"
    )
    assert finding_of(lognormal(2.0, 300), options=OPTIONS).quantile.point_s is not None
    assert finding_of(lognormal(2.0, 60), options=TuneOptions(quantile=0.95)).quantile.point_s is not None


def test_work_that_nobody_saw_end_is_said() -> None:
    """Consumers gave up at 30 s."""
    quantile = finding_of(lognormal(20.0, 5000, finishing=False), options=OPTIONS).quantile
    assert quantile.best_s is None
    assert quantile.why_not.startswith(
        "not identifiable: 31 % of the work was not done when last seen, after at most 30"
    )


def test_beyond_all_timeouts_late_deletes_point_to_it() -> None:
    """It is not a measured figure, and said apart."""
    quantile = finding_of(lognormal(20.0, 5000), options=OPTIONS).quantile
    assert quantile.point_s is None
    assert quantile.late_s == pytest.approx(128.6, rel=0.02)
    assert "late deletes point to 12" in quantile.why_not


def test_a_key_with_few_receipts_is_lent_some_of_its_queue() -> None:
    """All of the prior without receipts of its own, none from three hundred on."""
    queue = prior_of([lognormal(20.0, 5000)])
    assert finding_of(Tally(), options=OPTIONS, prior=queue).lent == OPTIONS.prior
    assert finding_of(lognormal(2.0, 150), options=OPTIONS, prior=queue).lent == pytest.approx(OPTIONS.prior / 2)
    assert finding_of(lognormal(2.0, 300), options=OPTIONS, prior=queue).lent == 0.0
    assert finding_of(lognormal(2.0, 150), options=OPTIONS, prior=queue).rates.duplicate == 0.0  # its own
    assert finding_of(Tally(), options=OPTIONS, prior=queue).curve.quantile_s(0.5) == pytest.approx(20.0, rel=0.01)


def renewed(every_s: float) -> Tally:
    """Return receipts held 1 … 300 s by consumers that renew."""
    held = range(1, 301)
    longer = [each for each in held if each > every_s]
    return Tally(
        deleted=counts(*((each, 1.0) for each in held)),
        in_force=counts((30.0, 300.0)),
        extended=float(len(longer)),
        extensions=float(sum(each // every_s for each in longer)),
        extended_held_s=float(sum(longer)),
    )


def test_renewals_are_seen_and_take_the_work_out_of_the_cost() -> None:
    """Consumers that renew every 20 s lose nothing to a timeout."""
    finding = finding_of(renewed(20), options=OPTIONS)
    assert finding.renewal_s == pytest.approx(20, rel=0.03)
    assert finding.load(receives_max=5).tail.survival.sum() == 0.0


def test_consumers_that_renew_now_and_then_do_not_count_as_renewing() -> None:
    """A tenth of what outlived a renewal was renewed."""
    seldom = dataclasses.replace(renewed(20), extended=28.0, extensions=200.0, extended_held_s=4480.0)
    assert renewal_of(seldom) is None
    assert renewal_of(lognormal(2.0, 300)) is None
