"""The cost of a timeout, and classes of routing keys."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from tests.internals.proofs.work_shapes import cost, cost_of_classes, type_of_work
from veilmq.pipeline.cells import BUCKETS, bucket_of
from veilmq.pipeline.cost import Load, best_s, candidates_s, classes_of, costs, mixed
from veilmq.pipeline.options import Prices
from veilmq.pipeline.survival import tail_of

SQS = Prices(fenced=False)
OURS = Prices()


def load(*work: tuple[float, float], crash_rate: float = 0.0, receives_max: int = 5) -> Load:
    mass = np.zeros(BUCKETS)
    for time_s, share in work:
        mass[bucket_of(time_s)] += share
    return Load(tail=tail_of(1.0 - np.cumsum(mass) / mass.sum()), crash_rate=crash_rate, receives_max=receives_max)


def test_work_within_the_timeout_costs_only_the_wait_after_crashes() -> None:
    assert cost(load((10, 1), crash_rate=0.01), 100, prices=Prices(wait=3)) == pytest.approx(3 * 0.01 * 100)


def test_without_fencing_each_expired_timeout_wastes_the_work_once() -> None:
    """100 s of work with a timeout of 30 s: it is received again at 30, 60 and 90 s, and then deleted."""
    assert cost(load((100, 1)), 30, prices=SQS) == pytest.approx(300, rel=0.02)


def test_with_fencing_late_work_is_wasted_at_each_receive() -> None:
    """It is done five times, four of them in vain, and ends as a dead letter."""
    assert cost(load((100, 1)), 30, prices=OURS) == pytest.approx(400 + 60, rel=0.02)


def test_without_fencing_a_dead_letter_costs_if_all_timeouts_together_are_too_short() -> None:
    assert cost(load((100, 1), receives_max=2), 30, prices=SQS) == pytest.approx(100 + 60, rel=0.02)
    assert cost(load((100, 1), receives_max=4), 30, prices=SQS) == pytest.approx(300, rel=0.02)


def test_each_move_to_a_longer_class_wastes_the_work_once() -> None:
    assert cost(load((100, 1)), 30, prices=OURS, then_s=[200]) == pytest.approx(100, rel=0.02)
    assert cost(load((100, 1)), 30, prices=OURS, then_s=[60, 200]) == pytest.approx(200, rel=0.02)


def test_the_best_timeout_is_the_cheapest_candidate() -> None:
    """The first-order condition of the formula holds for one redelivery."""
    truth = replace(type_of_work(20).load, receives_max=2)
    prices = Prices(dead_letter=0.0)
    best, lowest = best_s(truth, prices=prices)
    assert lowest == costs(truth, candidates_s(), prices=prices).min()
    around = np.array([best * 0.95, best * 1.05])
    density = -np.diff(truth.tail.beyond(around))[0] / np.diff(around)[0]
    assert best * density == pytest.approx(truth.crash_rate, rel=0.1)  # w V f(V) = d q


def test_a_mixed_load_costs_the_sum_of_its_parts() -> None:
    parts = [replace(type_of_work(number).load, weight=weight) for number, weight in ((5, 0.7), (30, 0.3))]
    apart = sum(costs(part, candidates_s(), prices=OURS) for part in parts)
    assert np.allclose(costs(mixed(parts), candidates_s(), prices=OURS), apart)


PRICES = Prices()


def cheapest(loads: Sequence[Load], grid: Sequence[int]) -> float:
    """Return the least cost of all partitions into three classes with ascending timeouts out of ``grid``."""
    found = math.inf
    for number, middle_s in enumerate(grid):
        for longest_s in grid[number + 1 :] if number else ():
            shorter, then_s = np.array(grid[:number], dtype=float), (middle_s, longest_s)
            first = np.stack([costs(load, shorter, prices=PRICES, then_s=then_s) for load in loads])
            second = [cost(load, middle_s, prices=PRICES, then_s=(longest_s,)) for load in loads]
            third = [cost(load, longest_s, prices=PRICES) for load in loads]
            for one, two in combinations(range(1, len(loads)), 2):
                dearer = sum(second[one:two]) + sum(third[two:])
                found = min(found, float(first[:one].sum(axis=0).min()) + dearer)
    return found


def test_the_classes_cost_no_more_than_those_of_an_exhaustive_search() -> None:
    """Five types in up to three classes, with all partitions and all timeouts out of a grid."""
    loads = [replace(type_of_work(number).load, weight=0.2) for number in (8, 16, 20, 24, 32)]
    grid = [20, 25, 30, 50, 70, 80, 90, 110, 130, 160, 190, 230, 280, 330, 400, 480, 700, 1000, 1250, 1480, 1780]
    found = classes_of(loads, 3, prices=PRICES)
    assert found.cost <= cheapest(loads, grid) * 1.001
    assert found.cost == pytest.approx(cost_of_classes(loads, found.members, found.timeouts_s, prices=PRICES))


def test_more_classes_never_cost_more_and_four_save_most() -> None:
    """Of forty types: four classes cost at most a third more than one timeout for each type, one class over twice."""
    loads = [replace(type_of_work(number).load, weight=1 / 40) for number in range(40)]
    found = [classes_of(loads, count, prices=PRICES).cost for count in (1, 2, 3, 4)]
    assert found == sorted(found, reverse=True)
    each_its_own = sum(best_s(load, prices=PRICES)[1] for load in loads)
    assert found[3] < 1.33 * each_its_own
    assert found[0] > 2 * each_its_own
    assert sum(cost(load, 30, prices=PRICES) for load in loads) > 20 * each_its_own


def test_classes_are_ranges_of_neighbours_with_ascending_timeouts() -> None:
    numbers = [30, 2, 21, 11, 39, 5]
    found = classes_of([replace(type_of_work(number).load, weight=1 / 6) for number in numbers], 3, prices=PRICES)
    assert list(found.timeouts_s) == sorted(set(found.timeouts_s))
    by_length = [member for _, member in sorted(zip(numbers, found.members, strict=True))]
    assert by_length == sorted(by_length)


def test_many_keys_are_grouped_first_and_cost_hardly_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilmq.pipeline.cost.GROUPS_MAX", 50)  # 40 keys have a group each
    loads = [replace(type_of_work(number % 40).load, weight=1 / 160) for number in range(160)]
    many = classes_of(loads, 2, prices=PRICES)
    few = classes_of([replace(type_of_work(number).load, weight=1 / 40) for number in range(40)], 2, prices=PRICES)
    assert many.cost == pytest.approx(few.cost, rel=0.02)


def test_there_are_no_more_classes_than_whole_seconds() -> None:
    """Work without a duration gets the shortest timeout, below which there is no second class."""
    loads = [Load(tail=tail_of(np.zeros(BUCKETS)), crash_rate=0.1, receives_max=5, weight=0.5)] * 2
    assert classes_of(loads, 3, prices=PRICES).timeouts_s == (1,)
