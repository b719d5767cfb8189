"""Cells: closed receipts counted into histograms on a logarithmic scale, which can only be added.

A cell is a queue, a routing key, a day, first or later receipt, an outcome, an arm and a bucket; ``n`` is its number
of receipts. Each receipt is counted twice, once for each ``axis``: by the time ``held``, and by its ``visibility``
timeout. Buckets are 2 % wide, ``floor(ln ms / ln 1.02)``, and arms are ranges of timeouts. So the number of cells has a
bound that does not depend on the number of receipts, and Spark shuffles only cells.

**A late delete corrects its expiry without a join.** Both are counted on the day of the deadline, and in the same
bucket of the axis of timeouts, so one is subtracted from the other: expired minus late is censored.
"""

import math

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from veilmq.core.events import Outcome

RATIO = 1.02
BUCKETS = 1060
"""More than fourteen days, the longest that a message is kept, have buckets."""

ARM_BUCKETS = 8
"""An *arm* is a range of timeouts in force, 17 % wide."""

OCTAVE_BUCKETS = 35
"""About twice as long."""

EXTENDED = -1
"""The arm of receipts whose timeout was extended on the way: how long it became follows the work."""

HELD = "held"
VISIBILITY = "visibility"

DAY_MS = 86_400_000
HOUR_MS = 3_600_000

SUMS = ("n", "extensions")
"""The columns of a cell that are added: receipts, and how often their timeouts were extended."""

DIMENSIONS = ("queue", "key", "day", "first", "outcome", "axis", "arm", "bucket")


def cells(receipts: DataFrame) -> DataFrame:
    """Return the cells of ``receipts`` (``closed_receipts.SCHEMA``): their ``DIMENSIONS`` and ``SUMS``."""
    entries = receipts.select(
        "queue",
        fn.coalesce("key", fn.lit("")).alias("key"),
        _day(_counted_at_ms()).alias("day"),
        (fn.col("receive_count") <= 1).alias("first"),
        "outcome",
        _bucket(fn.col("held_ms")).alias("held_bucket"),
        _bucket(fn.col("visibility_ms")).alias("visibility_bucket"),
        fn.when(fn.col("extensions") > 0, EXTENDED)
        .otherwise(fn.floor(_bucket(fn.col("visibility_ms")) / ARM_BUCKETS))
        .cast("int")
        .alias("arm"),
        fn.coalesce("extensions", fn.lit(0)).alias("its_extensions"),
    )
    shared = ["queue", "key", "day", "first", "outcome", "arm"]
    sides = [[*shared, "held_bucket"], [*shared, "visibility_bucket"]]
    counted = entries.groupingSets(sides, *shared, "held_bucket", "visibility_bucket").agg(
        fn.grouping("held_bucket").alias("by_visibility"),
        fn.count(fn.lit(1)).alias("n"),
        fn.sum("its_extensions").alias("extensions"),
    )
    return counted.select(
        *shared,
        fn.when(fn.col("by_visibility") == 1, VISIBILITY).otherwise(HELD).alias("axis"),
        fn.coalesce("held_bucket", "visibility_bucket").alias("bucket"),
        *SUMS,
    )


def waits(receipts: DataFrame) -> DataFrame:
    """Return the time from the sending to the first receive: ``queue``, ``hour`` (of the epoch), ``bucket``, ``n``.

    The hour is that of the receive. The highest bucket of an hour is the age of its oldest message.
    """
    received_ms = fn.unix_millis("received_at")
    return (
        receipts.where((fn.col("receive_count") <= 1) & (fn.col("outcome") != Outcome.LATE_DELETED.value))
        .select(
            "queue",
            fn.floor(received_ms / HOUR_MS).cast("int").alias("hour"),
            _bucket(received_ms - fn.unix_millis("sent_at")).alias("bucket"),
        )
        .groupBy("queue", "hour", "bucket")
        .agg(fn.count(fn.lit(1)).alias("n"))
    )


def merged(parts: DataFrame) -> DataFrame:
    """Return ``parts``, cells of any files, nodes and days, with equal cells added."""
    return parts.groupBy(*DIMENSIONS).agg(*(fn.sum(name).alias(name) for name in SUMS))


def decayed(parts: DataFrame, *, half_life_days: float, since: DataFrame | None = None) -> DataFrame:
    """Return cells without a ``day``, added with weights that halve every ``half_life_days`` before the latest day.

    ``n2`` is the sum of the squares of the weights. Days before that of a queue and key in ``since`` do not count.
    """
    if since is not None:
        known = parts.join(fn.broadcast(since), ["queue", "key"], "left")
        parts = known.where(fn.col("since").isNull() | (fn.col("day") >= fn.col("since"))).drop("since")
    latest = parts.agg(fn.max("day").alias("latest"))
    age = fn.datediff("latest", "day")
    weighted = parts.crossJoin(fn.broadcast(latest)).withColumn("weight", fn.pow(fn.lit(0.5), age / half_life_days))
    timeless = [name for name in DIMENSIONS if name != "day"]
    squares = fn.sum(fn.col("n") * fn.col("weight") ** 2).alias("n2")
    sums = [fn.sum(fn.col(name) * fn.col("weight")).alias(name) for name in SUMS]
    return weighted.groupBy(*timeless).agg(*sums, squares)


def octaves(parts: DataFrame) -> DataFrame:
    """Return the first receipts of each queue, key and day by outcome and octave of the time held."""
    first = parts.where((fn.col("axis") == HELD) & fn.col("first"))
    octave = fn.floor(fn.col("bucket") / OCTAVE_BUCKETS).cast("int").alias("octave")
    return first.groupBy("queue", "key", "day", "outcome", octave).agg(fn.sum("n").alias("n"))


def days(parts: DataFrame) -> DataFrame:
    """Return the number of receipts by ``queue``, ``day`` and ``outcome``, as ``n``."""
    held = parts.where(fn.col("axis") == HELD)
    return held.groupBy("queue", "day", "outcome").agg(fn.sum("n").alias("n")).orderBy("queue", "day", "outcome")


def _bucket(ms: Column) -> Column:
    bucket = fn.floor(fn.log(fn.greatest(ms, fn.lit(1))) / math.log(RATIO)).cast("int")
    return fn.least(bucket, fn.lit(BUCKETS - 1))


def _counted_at_ms() -> Column:
    late = fn.col("outcome") == Outcome.LATE_DELETED.value
    deadline_ms = fn.unix_millis("received_at") + fn.col("visibility_ms")
    return fn.when(late, deadline_ms).otherwise(fn.unix_millis("closed_at"))


def _day(ms: Column) -> Column:
    """Return the UTC day of ``ms``, regardless of the time zone of the session."""
    return fn.date_from_unix_date(fn.floor(ms / DAY_MS).cast("int"))
