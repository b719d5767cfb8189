"""What a timeout costs, by the formula."""

import dataclasses

import numpy as np
import pytest

from tests.internals.pipeline import work_types
from veilmq.pipeline.cells import BUCKETS, bucket_of
from veilmq.pipeline.cost import Load, Prices, best_s, candidates_s, cost, costs, mixed
from veilmq.pipeline.survival import tail_of

SQS = Prices(fenced=False)
OURS = Prices()


def load(*work: tuple[float, float], crash_rate: float = 0.0, receives_max: int = 5) -> Load:
    """Return the load of work of (seconds, share)."""
    mass = np.zeros(BUCKETS)
    for time_s, share in work:
        mass[bucket_of(time_s)] += share
    return Load(tail=tail_of(1.0 - np.cumsum(mass) / mass.sum()), crash_rate=crash_rate, receives_max=receives_max)


def test_work_in_time_costs_only_the_waiting_after_crashes() -> None:
    """d · q · V."""
    assert cost(load((10, 1), crash_rate=0.01), 100, prices=Prices(wait=3)) == pytest.approx(3 * 0.01 * 100)


def test_where_a_late_delete_acts_each_timeout_that_passes_costs_the_work_once_more() -> None:
    """100 s of work and a timeout of 30 s: received again at 30, 60 and 90 s, and then deleted."""
    assert cost(load((100, 1)), 30, prices=SQS) == pytest.approx(300, rel=0.02)


def test_where_receipts_are_fenced_work_that_is_late_is_always_late() -> None:
    """It is done five times, four of them too often, and ends as a dead letter."""
    assert cost(load((100, 1)), 30, prices=OURS) == pytest.approx(400 + 60, rel=0.02)


def test_a_dead_letter_costs_where_all_receives_together_are_too_short() -> None:
    """Twice 30 s do not cover 100 s, four times do."""
    assert cost(load((100, 1), receives_max=2), 30, prices=SQS) == pytest.approx(100 + 60, rel=0.02)
    assert cost(load((100, 1), receives_max=4), 30, prices=SQS) == pytest.approx(300, rel=0.02)


def test_an_expiry_that_moves_up_costs_the_work_once() -> None:
    """The next class has the time."""
    assert cost(load((100, 1)), 30, prices=OURS, then_s=[200]) == pytest.approx(100, rel=0.02)
    assert cost(load((100, 1)), 30, prices=OURS, then_s=[60, 200]) == pytest.approx(200, rel=0.02)


def test_the_best_timeout_is_where_the_slope_of_both_is_equal() -> None:
    """No candidate is cheaper; the first order condition of the formula holds for one redelivery."""
    truth = dataclasses.replace(work_types.true_load(20), receives_max=2)
    prices = Prices(dead_letter=0.0)
    best, lowest = best_s(truth, prices=prices)
    assert lowest == costs(truth, candidates_s(), prices=prices).min()
    around = np.array([best * 0.95, best * 1.05])
    density = -np.diff(truth.tail.beyond(around))[0] / np.diff(around)[0]
    assert best * density == pytest.approx(work_types.CRASH_RATE, rel=0.1)  # w V f(V) = d q


def test_loads_together_cost_what_they_cost_apart() -> None:
    """A mixture is one load."""
    parts = [
        dataclasses.replace(work_types.true_load(number), weight=weight) for number, weight in ((5, 0.7), (30, 0.3))
    ]
    apart = sum(costs(part, candidates_s(), prices=OURS) for part in parts)
    assert np.allclose(costs(mixed(parts), candidates_s(), prices=OURS), apart)
