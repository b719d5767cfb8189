"""Recommendations for forty types of work of known distributions, simulated with Spark.

A table is printed (`make prove-tune` shows it). `PROVE=whole` takes more messages.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from tests.conftest import EVERYTHING
from tests.internals.pipeline import work_types
from veilmq.core.receipts import Outcome
from veilmq.pipeline.cost import Load, classes_of, cost_of_classes
from veilmq.pipeline.estimate import Estimate, estimates
from veilmq.pipeline.event_log import CellStore
from veilmq.pipeline.options import Prices, TuneOptions
from veilmq.pipeline.tune import Confidence, Recommendation, current_counts, tune

WHOLE = os.environ.get("PROVE") == "whole"
MESSAGES = 1_200_000 if WHOLE else 400_000
PRICES = Prices()
KEPT_FOR_LONG = TuneOptions(half_life_days=1e6, receives_max=work_types.RECEIVES_MAX)
IDENTIFIABLE_MIN = 15
DEAR_MAX = 1
DEAR_FACTOR = 1.25


@dataclass(frozen=True, slots=True)
class TypeResult:
    """The true events of a type of work, and its recommendation."""

    number: int
    recommended: Recommendation
    finding: Estimate
    first_receipts: int
    duplicates: int
    recoveries: int
    mean_s: float
    longest_s: float
    p99_of_deleted_s: float

    @property
    def is_identifiable(self) -> bool:
        return work_types.is_identifiable(self.number, self.first_receipts)

    def load(self, *, weight: float) -> Load:
        return self.finding.load(work_types.RECEIVES_MAX, weight=weight)

    @property
    def chosen_s(self) -> int:
        return self.recommended.recommended_s or self.recommended.current_s

    def cost(self, timeout_s: float) -> float:
        return work_types.true_cost(self.number, min(max(timeout_s, 1.0), 43_200.0), prices=PRICES)

    @property
    def best(self) -> tuple[int, float]:
        return work_types.true_best(self.number, prices=PRICES)


pytestmark = EVERYTHING


@pytest.fixture(scope="module")
def results(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[TypeResult]:
    """Simulate the queue, tune it, and combine truth and recommendations."""
    folder = tmp_path_factory.mktemp("tune")
    receives = work_types.attempts(spark, MESSAGES)
    events, state = str(folder / "events"), str(folder / "state")
    work_types.closed(receives).write.partitionBy("date", "hour").parquet(events)
    tuned = tune(spark, events=events, state=state, options=KEPT_FOR_LONG)
    recommended = {each.key: each for each in tuned}
    naive = naive_of(spark.read.parquet(events))
    _, found = estimates(current_counts(CellStore(spark, state).cells(), KEPT_FOR_LONG), options=KEPT_FOR_LONG)
    return [
        TypeResult(row.type, recommended[key], found[key], row.first, row.duplicates, row.recoveries, *naive[row.type])
        for row in truth_of(receives).collect()
        for key in [work_types.name_of(row.type)]
    ]


def truth_of(receives: DataFrame) -> DataFrame:
    missed = ~fn.col("in_time")
    finished = ~fn.col("crashed") & ~fn.col("stopped")
    return (
        receives.where("number = 1")
        .groupBy("type")
        .agg(
            fn.count(fn.lit(1)).alias("first"),
            fn.count_if(missed & finished).alias("duplicates"),
            fn.count_if(missed & ~finished).alias("recoveries"),
        )
        .orderBy("type")
    )


def naive_of(events: DataFrame) -> dict[int, tuple[float, float, float]]:
    """Return mean, maximum and p99, in seconds, of the deletes in time of each type."""
    deleted = events.where(fn.col("outcome") == Outcome.DELETED.value).groupBy("key")
    held_s = fn.col("held_ms") / 1000
    found = deleted.agg(fn.avg(held_s), fn.max(held_s), fn.percentile_approx(held_s, 0.99, 10_000))
    return {int(key.removeprefix("type-")): (mean, longest, p99) for key, mean, longest, p99 in found.collect()}


def test_the_p99_is_estimated_within_ten_percent_where_it_is_identifiable(results: list[TypeResult]) -> None:
    """Elsewhere the estimate says that it is not identifiable."""
    sys.stdout.write(f"\n{table(results)}\n")
    known = [each for each in results if each.is_identifiable]
    assert len(known) >= IDENTIFIABLE_MIN
    for each in known:
        assert each.recommended.quantile.point_s == pytest.approx(work_types.p99_s(each.number), rel=0.10), each.number
    for each in results:
        if not each.is_identifiable:
            assert each.recommended.quantile.point_s is None, each.number
            assert each.recommended.quantile.why_not.startswith("not identifiable: "), each.number
            late_s = each.recommended.quantile.late_s
            assert late_s is None or late_s == pytest.approx(work_types.p99_s(each.number), rel=0.10), each.number


def test_duplicates_are_distinguished_from_recoveries(results: list[TypeResult]) -> None:
    for each in results:
        rates = each.recommended.rates
        assert rates.duplicate * each.first_receipts == pytest.approx(each.duplicates, rel=0.10), each.number
        assert rates.recovery * each.first_receipts == pytest.approx(each.recoveries, rel=0.10), each.number
    crashes = sum(each.recommended.rates.crash * each.first_receipts for each in results)
    assert crashes / sum(each.first_receipts for each in results) == pytest.approx(work_types.CRASH_RATE, rel=0.10)


def test_recommended_timeouts_cost_little_more_than_the_best(results: list[TypeResult]) -> None:
    """The total is within 15 % of the best, and so is each confident one but one; naive ones cost ten times as much."""
    chosen = [
        each
        for each in results
        if (each.recommended.recommended_s is not None or each.recommended.keeps) and each.number not in work_types.RARE
    ]
    assert len(chosen) >= work_types.TYPES - len(work_types.RARE) - len(work_types.GIVING_UP)
    weights = [each.first_receipts for each in chosen]

    def total(costs: Iterator[float]) -> float:
        return sum(weight * cost for weight, cost in zip(weights, costs, strict=True))

    best = total(each.best[1] for each in chosen)
    ours = total(each.cost(each.chosen_s) for each in chosen)
    assert ours <= 1.15 * best
    confident = [each for each in chosen if each.recommended.confidence in {Confidence.MEDIUM, Confidence.HIGH}]
    expensive = [each for each in confident if each.cost(each.chosen_s) > max(1.15 * each.best[1], each.best[1] + 0.05)]
    assert len(expensive) <= DEAR_MAX, [each.number for each in expensive]
    assert all(each.cost(each.chosen_s) <= DEAR_FACTOR * each.best[1] for each in expensive)
    for naive in (
        total(each.cost(each.mean_s) for each in chosen),
        total(each.cost(each.longest_s) for each in chosen),
        total(each.cost(30.0) for each in chosen),
        total(each.cost(each.p99_of_deleted_s) for each in chosen),
    ):
        assert naive > 10 * ours


def test_a_few_classes_cost_little_more_than_the_best_classes(results: list[TypeResult]) -> None:
    chosen = [
        each for each in results if each.recommended.recommended_s is not None and each.number not in work_types.RARE
    ]
    total = sum(each.first_receipts for each in chosen)
    truth = [work_types.true_load(each.number, weight=each.first_receipts / total) for each in chosen]
    estimates = [each.load(weight=each.first_receipts / total) for each in chosen]
    for count in (1, 2, 4, 8):
        best = classes_of(truth, count, prices=PRICES)
        ours = classes_of(estimates, count, prices=PRICES)
        costs = cost_of_classes(truth, ours.members, ours.timeouts_s, prices=PRICES)
        sys.stdout.write(f"\n{count} classes: {ours.timeouts_s} s, truly {costs:.3f} a message (best {best.cost:.3f})")
        assert costs <= 1.15 * best.cost


HEADING = (
    f"type {'p99 s':>9} {'estimated':>12} {'duplicate':>9} {'recov.':>7} {'crash':>6} {'del. p99':>9} "
    f"{'timeout s':>12} {'chosen':>8} {'mean':>9} {'maximum':>9} {'30 s':>9} {'del. p99':>9}"
)


def table(results: list[TypeResult]) -> str:
    lines = [
        "true p99 and its estimate (in brackets: late deletes alone), rates, p99 of what was deleted in time, timeout",
        "chosen/best; then what timeouts truly cost, as multiples of the best: the chosen one, and what is naive",
        HEADING,
    ]
    for each in results:
        recommended, quantile = each.recommended, each.recommended.quantile
        late = "no" if quantile.late_s is None else f"({quantile.late_s:.2f})"
        point = late if quantile.point_s is None else f"{quantile.point_s:.2f}"
        timeout_s, best = each.best
        chosen = "keep" if recommended.keeps else recommended.recommended_s or "-"
        cost = f"{each.cost(each.chosen_s) / best:.2f}"
        ours = cost if recommended.recommended_s or recommended.keeps else "none"
        lines.append(
            f"{each.number:4} {work_types.p99_s(each.number):9.2f} {point:>12} "
            f"{recommended.rates.duplicate:9.4f} {recommended.rates.recovery:7.4f} {recommended.rates.crash:6.4f} "
            f"{each.p99_of_deleted_s:9.2f} {chosen:>6}/{timeout_s:<5} {ours:>8} "
            f"{each.cost(each.mean_s) / best:9.1f} {each.cost(each.longest_s) / best:9.1f} "
            f"{each.cost(30.0) / best:9.1f} {each.cost(each.p99_of_deleted_s) / best:9.1f}"
        )
    return "\n".join(lines)
