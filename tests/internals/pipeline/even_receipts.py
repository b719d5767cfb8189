"""Closed receipts that fall evenly into a known set of cells, so that a few of them for each cell reach them all.

Work whose length has no bound, as that of ``work_types``, reaches new cells however much of it was seen. This work has
one: held times are spread evenly over ``BUCKETS_HELD`` of the histogram, and so is everything else.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from veilmq.core.receipts import Outcome
from veilmq.pipeline.cells import RATIO

BUCKETS_HELD = range(350, 450)
"""From one second to seven."""
OUTCOMES = (Outcome.DELETED, Outcome.NACKED, Outcome.LATE_DELETED)
KEYS = ("invoice", "thumbnail", "video")
RECEIVE_COUNTS = (1, 2)
VISIBILITIES_MS = (30_000, 120_000)
CELLS = len(KEYS) * len(RECEIVE_COUNTS) * len(OUTCOMES) * (len(BUCKETS_HELD) + 1) * len(VISIBILITIES_MS)
"""How many cells there are, on both axes, and for each timeout: no receipt falls into any other."""

RECEIVED_MS = 1_767_268_800_000  # 2026-01-01T12:00:00Z
WAIT_MS = 1_000
SEED = 20260102
PARTITIONS = 8


def even_receipts(spark: SparkSession, rows: int) -> DataFrame:
    """Return ``rows`` closed receipts, with the columns that are counted."""
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
