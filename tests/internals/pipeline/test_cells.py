"""Counting closed receipts into cells on Spark."""

import math
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.pipeline.closed import LATE, row, table
from veilmq.core.receipts import Outcome
from veilmq.pipeline.cells import EXTENDED, RATIO, KeyCounts, cells, counts_by_key, days, decayed, merged, waits
from veilmq.pipeline.options import TuneOptions
from veilmq.pipeline.tune import current_counts


def bucket(ms: float) -> int:
    return math.floor(math.log(ms) / math.log(RATIO))


def one(found: DataFrame) -> KeyCounts:
    """Return the counts of the only key in the cells."""
    (only,) = counts_by_key(found.toPandas())
    return only


def test_each_receipt_is_counted_by_its_time_and_by_its_timeout(spark: SparkSession) -> None:
    """There are two deletes of 2 s, one nack and an expiry; a dead letter is not a receipt."""
    found = cells(
        table(
            spark,
            row(Outcome.DELETED, 2_000),
            row(Outcome.DELETED, 2_000, receive_count=2),
            row(Outcome.NACKED, 500),
            row(Outcome.EXPIRED, 30_000),
            row(Outcome.DEAD_LETTERED, 30_000),
        )
    )
    counts = one(found)
    assert counts.first.receipts == 3
    assert counts.all.receipts == 4
    assert counts.all.deleted[bucket(2_000)] == 2
    assert counts.first.nacked[bucket(500)] == 1
    assert counts.first.expired[bucket(30_000)] == 1
    assert (counts.first.nacked.sum(), counts.first.expired_only.sum()) == (1, 1)


def test_a_late_delete_corrects_its_expiry_on_the_same_day(spark: SparkSession) -> None:
    """The deadline is after midnight, the late delete even later; together they are one receipt, not censored."""
    found = cells(
        table(
            spark,
            row(Outcome.EXPIRED, 30_000, received_at=LATE),
            row(Outcome.LATE_DELETED, 90_000_000, received_at=LATE),
        )
    )
    assert {each.day for each in found.collect()} == {date(2026, 1, 2)}
    first = one(found).first
    assert first.receipts == 1
    assert first.expired_only.sum() == 0
    assert first.late[bucket(90_000_000)] == 1


def test_the_merged_cells_of_two_parts_are_the_cells_of_the_whole(spark: SparkSession) -> None:
    rows = [row(Outcome.DELETED, 100 * number) for number in range(1, 20)]
    apart = merged(cells(table(spark, *rows[:7])).unionByName(cells(table(spark, *rows[7:]))))
    whole = cells(table(spark, *rows)).select(*apart.columns)
    assert sorted(apart.collect()) == sorted(whole.collect())


def test_older_days_weigh_less(spark: SparkSession) -> None:
    """With a half-life of one day, a receipt of the day before counts half; a key unused for weeks has no counts."""
    found = cells(
        table(
            spark,
            row(Outcome.DELETED, 2_000),
            row(Outcome.DELETED, 2_000, received_at=LATE.replace(day=2)),
            row(Outcome.DELETED, 2_000, received_at=LATE - timedelta(days=30), key="unused"),
        )
    )
    assert one(decayed(found, half_life_days=1)).first.receipts == pytest.approx(1.5)


def test_days_before_a_shift_do_not_count(spark: SparkSession) -> None:
    """Since the third day work takes four times as long. The timeout of another key changes, but not its work."""
    rows = [
        row(Outcome.DELETED, 1_000 + each, received_at=LATE.replace(day=day)) for day in (1, 2) for each in range(300)
    ]
    rows += [row(Outcome.DELETED, 4_000 + each, received_at=LATE.replace(day=3)) for each in range(300)]
    for day, timeout_ms in ((1, 2_500), (2, 2_500), (3, 6_000)):
        for held_ms in range(500, 4_500, 10):
            outcome = Outcome.DELETED if held_ms <= timeout_ms else Outcome.EXPIRED
            at, observed_ms = LATE.replace(day=day), min(held_ms, timeout_ms)
            rows.append(row(outcome, observed_ms, received_at=at, key="longer", visibility_ms=timeout_ms))
    found = current_counts(cells(table(spark, *rows)), TuneOptions(half_life_days=1e6))
    assert [(each.since, round(each.first.receipts)) for each in found] == [("2026-01-03", 300), ("", 1_200)]


def test_a_day_in_progress_is_no_shift(spark: SparkSession) -> None:
    """Work is shorter at night, and today has only the night: the days of work before it would not count."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=30)
    days = [today - timedelta(days=age) for age in (2, 1, 0)]
    rows = [row(Outcome.DELETED, 1_000 + each, received_at=day) for day in days for each in range(300)]
    rows += [row(Outcome.DELETED, 4_000 + each, received_at=day) for day in days[:2] for each in range(300)]
    found = current_counts(cells(table(spark, *rows)), TuneOptions(half_life_days=1e6))
    assert [(each.since, round(each.first.receipts)) for each in found] == [("", 1_500)]


def test_extensions_of_receipts_deleted_in_time_are_counted(spark: SparkSession) -> None:
    found = cells(table(spark, row(Outcome.DELETED, 50_000, extensions=2), row(Outcome.EXPIRED, 60_000, extensions=3)))
    first = one(found).first
    assert first.extensions == 2
    assert first.by_arm(Outcome.DELETED)[EXTENDED].sum() == 1


def test_waits_and_days(spark: SparkSession) -> None:
    """The wait of a message counts once, in the hour of its first receive; days have all receipts."""
    receipts = table(
        spark,
        row(Outcome.EXPIRED, 30_000),
        row(Outcome.LATE_DELETED, 40_000),
        row(Outcome.DELETED, 2_000, receive_count=2, received_at=LATE),
    )
    assert [tuple(each) for each in waits(receipts).collect()] == [("1/jobs", 490_896 + 12, bucket(1_000), 1)]
    counted: list[Any] = [(each.outcome, each.n) for each in days(cells(receipts)).collect()]
    assert counted == [("deleted", 1), ("expired", 1), ("late_deleted", 1)]
