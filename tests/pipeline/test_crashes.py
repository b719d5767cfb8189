"""Crashes are taken out of what expired, and work that takes long is not."""

import math

import pytest

from tests.pipeline.made_tally import counts, key_tally, lognormal
from veilmq.pipeline.crashes import is_clear, without_crashes
from veilmq.pipeline.survival import curve_of
from veilmq.pipeline.tallies import Tally

FAST_S = 1.0
SLOW_S = 20.0
STUCK_S = 300.0
CRASHES = 0.003
P99 = math.exp(0.8 * 2.3263)


def crashed(first: Tally) -> float:
    """Return how many receipts were taken out."""
    return float(first.crashed.sum())


def test_what_outlived_a_timeout_that_is_long_enough_is_crashes() -> None:
    """All of it is taken out, and the p99 is that of the work, not of work and crashes."""
    seen = lognormal(FAST_S, 10_000, crash_rate=CRASHES)
    (found,) = without_crashes([key_tally(seen)])
    assert crashed(found.first) == pytest.approx(30)
    assert curve_of(found.first).quantile_s(0.99) == pytest.approx(FAST_S * P99, rel=0.01)
    assert curve_of(seen).quantile_s(0.99) == pytest.approx(FAST_S * P99 * 1.13, rel=0.03)  # if they stayed in


def test_where_consumers_finish_late_the_rest_is_crashes() -> None:
    """Most of what expired came back by a late delete."""
    (found,) = without_crashes([key_tally(lognormal(SLOW_S, 10_000, crash_rate=CRASHES))])
    assert crashed(found.first) == pytest.approx(30)


def test_where_consumers_give_up_the_clear_keys_say_how_many_crashed() -> None:
    """A third of the slow work gave up; it crashes as often as the fast work of the same queue."""
    slow = lognormal(SLOW_S, 10_000, crash_rate=CRASHES, finishing=False)
    keys = without_crashes([key_tally(slow, key="slow"), key_tally(lognormal(FAST_S, 10_000, crash_rate=CRASHES))])
    assert not is_clear(slow)
    assert crashed(keys[0].first) == pytest.approx(30)
    assert keys[0].first.censored.sum() == pytest.approx(slow.expired.sum() - 30)


@pytest.mark.parametrize("median_s", [SLOW_S, STUCK_S], ids=["a-third", "nearly-all"])
def test_alone_a_key_whose_consumers_give_up_keeps_all_that_expired(median_s: float) -> None:
    """Nothing says how many crashed, also where the work has hardly begun when the timeout ends."""
    seen = lognormal(median_s, 10_000, crash_rate=CRASHES, finishing=False)
    (found,) = without_crashes([key_tally(seen)])
    assert crashed(found.first) == 0.0
    assert curve_of(found.first).quantile_s(0.99) is None


def test_longer_timeouts_are_clear_by_themselves() -> None:
    """Of receipts with 30 s many gave up; of those with 500 s the few that expired have crashed."""
    short = lognormal(SLOW_S, 10_000, finishing=False)
    longer = lognormal(SLOW_S, 2_000, timeout_s=500.0, crash_rate=0.01)
    (found,) = without_crashes([key_tally(short + longer)])
    assert crashed(found.first) == pytest.approx(20)
    assert float((found.first.crashed * counts((500.0, 1.0))).sum()) == pytest.approx(20)
