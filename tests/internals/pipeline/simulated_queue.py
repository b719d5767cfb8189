"""What a queue makes of the ``work_types``: each receive with its truth, and the closed receipts that the server
writes.

Everything is drawn by Spark from fixed seeds; the number of partitions is fixed, so that the draws are.
"""

from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from tests.internals.pipeline.work_types import (
    CRASH_RATE,
    EXPLORED,
    GIVING_UP,
    LONGER_MS,
    LONGEST_MS,
    QUEUE,
    RARE,
    RARE_MESSAGES,
    RECEIVES_MAX,
    SIGMA,
    TIMEOUT_MS,
    TURNS,
)
from veilmq.core.receipts import Outcome

DAYS = 3
DAY_MS = 86_400_000
HOUR_MS = 3_600_000
START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
SEED = 20260101
PARTITIONS = 8


def attempts(spark: SparkSession, messages: int) -> DataFrame:
    """Return one row for each receive of ``messages`` messages: what it was, and what became of it.

    ``work_ms`` is the truth; ``crashed``, ``stopped`` (gave up at the deadline) and ``in_time`` say how it ended.
    """
    drawn = _messages(spark, messages)
    receives = fn.array(*(_receive(number) for number in range(1, RECEIVES_MAX + 1)))
    return (
        drawn.select("id", "type", "work_ms", "sent_ms", fn.explode(receives).alias("its"))
        .where("its.exists")
        .select("id", "type", "work_ms", "sent_ms", "its.*")
    )


def closed(receives: DataFrame) -> DataFrame:
    """Return the event log of ``attempts``: ``receipt_closed`` with the columns of its partitions."""
    last = (fn.col("number") == RECEIVES_MAX) & ~fn.col("in_time")
    late = ~fn.col("in_time") & ~fn.col("crashed") & ~fn.col("stopped")
    endings = fn.array(
        _ending(~fn.col("in_time"), Outcome.EXPIRED, fn.col("visibility_ms")),
        _ending(late, Outcome.LATE_DELETED, fn.col("work_ms")),
        _ending(fn.col("in_time"), Outcome.DELETED, fn.col("work_ms")),
        _ending(last, Outcome.DEAD_LETTERED, fn.col("visibility_ms")),
    )
    rows = receives.select("*", fn.posexplode(endings).alias("nth", "end")).where("end.happened")
    closed_ms = fn.col("received_ms") + fn.col("end.held_ms")
    written = rows.select(
        fn.lit(QUEUE).alias("queue"),
        fn.concat(fn.lit("type-"), fn.lpad(fn.col("type").cast("string"), 2, "0")).alias("key"),
        fn.lit(None).cast("bigint").alias("group_hash"),
        fn.lit(8).alias("size_bucket"),
        fn.lpad(fn.lower(fn.hex("id")), 32, "0").alias("message_id"),
        (fn.col("id") * RECEIVES_MAX + fn.col("number")).alias("receipt"),
        fn.timestamp_millis("sent_ms").alias("sent_at"),
        fn.timestamp_millis("received_ms").alias("received_at"),
        fn.timestamp_millis(closed_ms).alias("closed_at"),
        fn.col("end.held_ms").alias("held_ms"),
        fn.col("end.outcome").alias("outcome"),
        "visibility_ms",
        fn.lit(0).alias("extensions"),
        fn.col("number").alias("receive_count"),
        fn.lit(1).alias("batch_size"),
        fn.lit(0).alias("batch_position"),
        ((fn.col("id") * RECEIVES_MAX + fn.col("number")) * 4 + fn.col("nth")).alias("event"),
        fn.lit("one").alias("node"),
    )
    return written.withColumns(
        {
            "date": fn.date_from_unix_date(fn.floor(fn.unix_millis("closed_at") / DAY_MS).cast("int")),
            "hour": fn.lpad((fn.floor(fn.unix_millis("closed_at") / HOUR_MS) % 24).cast("string"), 2, "0"),
        }
    )


def _messages(spark: SparkSession, messages: int) -> DataFrame:
    """Return the messages: their type, how long their work takes, and when they were sent (one hour of each day)."""
    common = fn.element_at(fn.array(*map(fn.lit, TURNS)), (fn.pmod("id", fn.lit(len(TURNS))) + 1).cast("int"))
    rare = fn.element_at(fn.array(*map(fn.lit, RARE)), (fn.floor(fn.col("id") / RARE_MESSAGES) + 1).cast("int"))
    kind = fn.when(fn.col("id") < len(RARE) * RARE_MESSAGES, rare).otherwise(common)
    median_ms = fn.exp(fn.col("type") * 0.188) * 200.0
    day = fn.pmod("id", fn.lit(DAYS)) * DAY_MS
    return (
        spark.range(0, messages, 1, PARTITIONS)
        .withColumn("type", kind)
        .withColumn("work_ms", fn.ceil(median_ms * fn.exp(fn.randn(SEED) * SIGMA)))
        .withColumn("sent_ms", (fn.lit(START_MS) + day + fn.rand(SEED + 1) * HOUR_MS).cast("bigint"))
        .withColumn("wait_ms", fn.ceil(fn.rand(SEED + 2) * 400))
        .withColumns({f"longer_{number}": fn.rand(SEED + 10 + number) for number in _numbers()})
        .withColumns({f"crash_{number}": fn.rand(SEED + 20 + number) < CRASH_RATE for number in _numbers()})
        .withColumns({f"visibility_{number}": _visibility_ms(number) for number in _numbers()})
        .withColumns({f"in_time_{number}": _in_time(number) for number in _numbers()})
    )


def _numbers() -> range:
    return range(1, RECEIVES_MAX + 1)


def _visibility_ms(number: int) -> Column:
    """Return the timeout of a receive: mostly that of the queue, now and then a longer one, by way of exploration."""
    share = fn.when(fn.col("type").isin(*EXPLORED), 0.10).when(fn.col("type").isin(*GIVING_UP), 0.0).otherwise(0.01)
    drawn = fn.col(f"longer_{number}")
    return fn.when(drawn < share, LONGEST_MS).when(drawn < share * 2, LONGER_MS).otherwise(TIMEOUT_MS).cast("bigint")


def _in_time(number: int) -> Column:
    return ~fn.col(f"crash_{number}") & (fn.col("work_ms") <= fn.col(f"visibility_{number}"))


def _receive(number: int) -> Column:
    """Return the receive of that number; it exists if all earlier ones ended without a delete in time."""
    earlier = range(1, number)
    alive = reduce(lambda both, each: both & ~fn.col(f"in_time_{each}"), earlier, fn.lit(True))
    begun_ms = reduce(
        lambda total, each: total + fn.col(f"visibility_{each}"), earlier, fn.col("sent_ms") + fn.col("wait_ms")
    )
    return fn.struct(
        alive.alias("exists"),
        fn.lit(number).alias("number"),
        begun_ms.alias("received_ms"),
        fn.col(f"visibility_{number}").alias("visibility_ms"),
        fn.col(f"crash_{number}").alias("crashed"),
        fn.col("type").isin(*GIVING_UP, *EXPLORED).alias("stopped"),
        fn.col(f"in_time_{number}").alias("in_time"),
    )


def _ending(happened: Column, outcome: Outcome, held_ms: Column) -> Column:
    return fn.struct(happened.alias("happened"), fn.lit(outcome.value).alias("outcome"), held_ms.alias("held_ms"))
