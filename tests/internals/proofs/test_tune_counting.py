"""The cost of counting the event log: constant time for each row, and a shuffle whose size depends on the cells only.

Each file has so few rows that Spark would read it in a separate task; only the job's own bound limits the number of
tasks. `PROVE=whole` counts up to ten million receipts.
"""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from tests.conftest import EVERYTHING
from veilmq.core.receipts import EventRange, Outcome, ReceiptClosed
from veilmq.events.parquet import encode_parquet, range_files, to_table
from veilmq.pipeline.cells import RATIO
from veilmq.pipeline.event_log import CellStore

pytestmark = EVERYTHING

WHOLE = os.environ.get("PROVE") == "whole"
ROWS = (100_000, 1_000_000, 10_000_000) if WHOLE else (50_000, 500_000)
PARTITIONS = 8
ROWS_OF_A_FILE = ROWS[0] // PARTITIONS
SEED = 20260102
MAP_TASKS = 4
SHUFFLE_GROWTH_MAX = 1.1  # larger numbers in the same cells compress a little less
LINEAR = 1.5
EVENTS = 250_000 if WHOLE else 50_000
EVENT_BYTES_MAX = 40
WAITS_MAX = 400  # more than the buckets of all waits of a run

BUCKETS_HELD = range(350, 450)
"""From one second to seven."""
OUTCOMES = (Outcome.DELETED, Outcome.NACKED, Outcome.LATE_DELETED)
KEYS = ("invoice", "thumbnail", "video")
RECEIVE_COUNTS = (1, 2)
VISIBILITIES_MS = (30_000, 120_000)
CELLS = len(KEYS) * len(RECEIVE_COUNTS) * len(OUTCOMES) * (len(BUCKETS_HELD) + 1) * len(VISIBILITIES_MS)
"""The number of cells on both axes and for each timeout; there are no others."""

RECEIVED_MS = 1_767_268_800_000  # 2026-01-01T12:00:00Z
WAIT_MS = 1_000


@dataclass(frozen=True, slots=True)
class Counting:
    rows: int
    files: int
    seconds: float
    cells: int
    shuffled_bytes: int
    shuffled_records: int
    read_bytes: int
    tasks: int
    core_seconds: float

    def __str__(self) -> str:
        return (
            f"{self.rows:>12,} closed receipts in {self.files:,} files: {self.seconds:.1f} s, "
            f"{1e6 * self.seconds / self.rows:.1f} µs each; {self.cells:,} cells from {MAP_TASKS} tasks, "
            f"shuffled {self.shuffled_records:,} records, {self.shuffled_bytes:,} bytes, {self.record_bytes:.1f} each; "
            f"read {self.read_bytes:,} bytes; {self.tasks} tasks in all, {self.core_seconds:.1f} s of processor time"
        )

    @property
    def record_bytes(self) -> float:
        return self.shuffled_bytes / self.shuffled_records


def test_the_shuffle_is_independent_of_the_number_of_rows(spark: SparkSession, tmp_path: Path) -> None:
    found = all_counted(spark, lambda rows: even_receipts(spark, rows), tmp_path)
    for each in found:
        assert each.cells == CELLS
    for less, more in pairwise(found):
        assert more.files * less.rows == less.files * more.rows
        assert more.shuffled_bytes <= SHUFFLE_GROWTH_MAX * less.shuffled_bytes
        assert more.seconds < LINEAR * less.seconds * more.rows / less.rows


def test_the_shuffle_of_unbounded_work_grows_only_with_its_cells(spark: SparkSession, tmp_path: Path) -> None:
    found = all_counted(spark, lambda rows: lognormal_receipts(spark, rows), tmp_path)
    for less, more in pairwise(found):
        assert less.cells < more.cells
        assert more.record_bytes <= SHUFFLE_GROWTH_MAX * less.record_bytes
        assert more.seconds < LINEAR * less.seconds * more.rows / less.rows


def test_an_exported_event_takes_few_bytes() -> None:
    chance, now_ms = random.Random(1), 1_767_268_800_000
    batches, first = [], 1
    while first <= EVENTS:
        its = [event(chance, now_ms + first) for _ in range(chance.randint(1, 10))]
        batches.append((first, msgspec.msgpack.encode(its)))
        first += len(its)
    planned = EventRange(node="a0000001", first=1, last=first - 1)
    begin_s = time.process_time()
    tables = [to_table(batches[at : at + 1_000], planned.node) for at in range(0, len(batches), 1_000)]
    found = [encode_parquet(table) for _, _, table in range_files(tables, planned)]
    took_s, size_bytes = time.process_time() - begin_s, sum(each.size for each in found)
    sys.stdout.write(
        f"\n{planned.last:>12,} events to {len(found)} files: {1e6 * took_s / planned.last:.1f} µs of processor time, "
        f"{size_bytes / planned.last:.1f} bytes each"
    )
    assert size_bytes <= EVENT_BYTES_MAX * planned.last


def event(chance: random.Random, closed_at_ms: int) -> ReceiptClosed:
    held_ms = min(int(1_000 * chance.lognormvariate(0, 1)), 30_000)
    received_at_ms = closed_at_ms - held_ms
    return ReceiptClosed(
        queue=f"000000000000/queue-{chance.randrange(20)}",
        key=f"type-{chance.randrange(40)}",
        group_hash=None,
        size_bucket=2 ** chance.randrange(6, 14),
        message_id=chance.randbytes(16),
        receipt=chance.getrandbits(32),
        sent_at_ms=received_at_ms - chance.randrange(2_000),
        received_at_ms=received_at_ms,
        closed_at_ms=closed_at_ms,
        held_ms=held_ms,
        outcome=Outcome.EXPIRED if held_ms == 30_000 else Outcome.DELETED,
        visibility_ms=30_000,
        extensions=0,
        receive_count=1,
        batch_size=10,
        batch_position=chance.randrange(10),
    )


def even_receipts(spark: SparkSession, rows: int) -> DataFrame:
    """Return ``rows`` closed receipts with the counted columns."""
    bucket = fn.lit(BUCKETS_HELD.start) + fn.floor(fn.rand(SEED) * len(BUCKETS_HELD))
    return spark.range(0, rows, 1, PARTITIONS).select(
        fn.lit("1/jobs").alias("queue"),
        _one_of(KEYS, 1).alias("key"),
        fn.timestamp_millis(fn.lit(RECEIVED_MS - WAIT_MS)).alias("sent_at"),
        fn.timestamp_millis(fn.lit(RECEIVED_MS)).alias("received_at"),
        fn.timestamp_millis(fn.lit(RECEIVED_MS)).alias("closed_at"),
        fn.round(fn.pow(fn.lit(RATIO), bucket + 0.5)).cast("bigint").alias("held_ms"),
        _one_of([each.value for each in OUTCOMES], 2).alias("outcome"),
        _one_of(VISIBILITIES_MS, 3).cast("bigint").alias("visibility_ms"),
        fn.lit(0).alias("extensions"),
        _one_of(RECEIVE_COUNTS, 4).alias("receive_count"),
    )


def _one_of(values: Sequence[str | int], number: int) -> Column:
    drawn = fn.floor(fn.rand(SEED + number) * len(values)) + 1
    return fn.element_at(fn.array(*map(fn.lit, values)), drawn.cast("int"))


def lognormal_receipts(spark: SparkSession, rows: int) -> DataFrame:
    """Return the same with any processing time."""
    return even_receipts(spark, rows).withColumn("held_ms", fn.ceil(fn.exp(fn.randn(SEED) * 2.0) * 10_000))


def all_counted(spark: SparkSession, log: Callable[[int], DataFrame], folder: Path) -> list[Counting]:
    """Count logs of all sizes, and print the costs; no task emits a cell twice."""
    found = [counted(spark, log(rows), folder / str(rows)) for rows in ROWS]
    for each in found:
        sys.stdout.write(f"\n{each}")
        assert each.shuffled_records <= MAP_TASKS * (each.cells + WAITS_MAX)
    return found


def counted(spark: SparkSession, log: DataFrame, folder: Path) -> Counting:
    events = str(folder / "events")
    log.write.option("maxRecordsPerFile", ROWS_OF_A_FILE).parquet(events)
    store = CellStore(spark, str(folder / "state"))
    group = f"counting {folder}"
    with a_task_for_each_file(spark):
        spark.sparkContext.setJobGroup(group, group)
        begin = time.perf_counter()
        files = store.count(events, map_tasks=MAP_TASKS)
        took = time.perf_counter() - begin
        spark.sparkContext.setJobGroup("", "")
    rows = spark.read.parquet(events).count()
    return Counting(rows, files, took, store.cells().count(), *metrics(spark, group))


@contextmanager
def a_task_for_each_file(spark: SparkSession) -> Iterator[None]:
    """Make opening files seem expensive, so that Spark alone would read each in its own task."""
    name = "spark.sql.files.openCostInBytes"
    before = spark.conf.get(name, None)
    spark.conf.set(name, "1g")
    try:
        yield
    finally:
        spark.conf.unset(name) if before is None else spark.conf.set(name, before)


def metrics(spark: SparkSession, group: str) -> tuple[int, int, int, int, float]:
    """Return Spark's metrics of a job group: shuffled bytes and records, bytes read, tasks, processor seconds."""
    context: Any = spark.sparkContext
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
    stages = {stage for job in tracker.getJobIdsForGroup(group) for stage in tracker.getJobInfo(job).stageIds}
    ran = [store.lastStageAttempt(stage) for stage in sorted(stages) if tracker.getStageInfo(stage) is not None]
    return (
        sum(each.shuffleWriteBytes() for each in ran),
        sum(each.shuffleWriteRecords() for each in ran),
        sum(each.inputBytes() for each in ran),
        sum(each.numTasks() for each in ran),
        sum(each.executorCpuTime() for each in ran) / 1e9,
    )
