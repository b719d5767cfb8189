"""Forty types of work with known distributions, the event log of a queue with them, and uniform receipts."""

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from veilmq.core.receipts import Outcome
from veilmq.pipeline.cells import EDGES_S, RATIO, Array
from veilmq.pipeline.cost import Load, best_s, cost
from veilmq.pipeline.options import Prices
from veilmq.pipeline.survival import Tail

TYPES = 40
SIGMA = 0.8
Z_99 = 2.3263478740408408
CRASH_RATE = 0.003
RECEIVES_MAX = 5
TIMEOUT_MS = 30_000
LONGER_MS = 120_000
LONGEST_MS = 480_000
GIVING_UP = frozenset({9, 27})
EXPLORED = frozenset({17, 20})
RARE = (4, 14, 24)
RARE_MESSAGES = 200
DAYS = 3
START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
SEED = 20260101
QUEUE = "jobs"

COMMON = [each for each in range(TYPES) if each not in RARE]
TURNS = [*COMMON, *(each for each in sorted(EXPLORED) for _ in range(2))]
"""The order of the common types; explored ones occur three times, because few of their receipts are informative."""


def name_of(number: int) -> str:
    return f"type-{number:02}"


def median_s(number: int) -> float:
    """Return the median of the working time of a type."""
    return float(0.2 * math.exp(0.188 * number))


def p99_s(number: int) -> float:
    """Return the true p99 of the working time of a type."""
    return float(median_s(number) * math.exp(SIGMA * Z_99))


def longest_s(number: int) -> float:
    """Return the longest timeout of a type."""
    return (TIMEOUT_MS if number in GIVING_UP else LONGEST_MS) / 1000.0


def is_identifiable(number: int, first_receipts: float) -> bool:
    """Return whether the p99 of a type is identifiable: fifty receipts are truly at risk there."""
    longer = 0.2 if number in EXPLORED else 0.0 if number in GIVING_UP else 0.02
    share = 1.0 if p99_s(number) < TIMEOUT_MS / 1000.0 else longer if p99_s(number) < longest_s(number) else 0.0
    return 0.01 * share * first_receipts >= 50.0


def true_load(number: int, *, weight: float = 1.0) -> Load:
    """Return the load of a type from its distribution."""
    mu = math.log(median_s(number))
    z = (np.log(EDGES_S) - mu) / SIGMA
    work_s = math.exp(mu + SIGMA**2 / 2.0) * _beyond(z - SIGMA)
    return Load(tail=Tail(_beyond(z), work_s), crash_rate=CRASH_RATE, receives_max=RECEIVES_MAX, weight=weight)


def true_cost(number: int, timeout_s: float, *, prices: Prices) -> float:
    """Return the true cost of a timeout for each message of a type."""
    return cost(true_load(number), timeout_s, prices=prices)


def true_best(number: int, *, prices: Prices) -> tuple[int, float]:
    """Return the best timeout of a type, and its cost."""
    return best_s(true_load(number), prices=prices)


def _beyond(z: Array) -> Array:
    return np.array([0.5 * math.erfc(each / math.sqrt(2.0)) for each in z])


DAY_MS = 86_400_000
HOUR_MS = 3_600_000
PARTITIONS = 8


def attempts(spark: SparkSession, messages: int) -> DataFrame:
    """Return one row for each receive of ``messages`` messages.

    ``work_ms`` is the true duration; ``crashed``, ``stopped`` (gave up at the deadline) and ``in_time`` are its end.
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
    """Return messages with their type, the duration of their work, and the time of sending (one hour of each day)."""
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
    """Return the timeout of a receive: mostly the queue's, sometimes a longer one for exploration."""
    share = fn.when(fn.col("type").isin(*EXPLORED), 0.10).when(fn.col("type").isin(*GIVING_UP), 0.0).otherwise(0.01)
    drawn = fn.col(f"longer_{number}")
    return fn.when(drawn < share, LONGEST_MS).when(drawn < share * 2, LONGER_MS).otherwise(TIMEOUT_MS).cast("bigint")


def _in_time(number: int) -> Column:
    return ~fn.col(f"crash_{number}") & (fn.col("work_ms") <= fn.col(f"visibility_{number}"))


def _receive(number: int) -> Column:
    """Return the receive ``number``, which exists if no earlier one ended with a delete in time."""
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
EVEN_SEED = 20260102
EVEN_PARTITIONS = 8


def even_receipts(spark: SparkSession, rows: int) -> DataFrame:
    """Return ``rows`` closed receipts with the counted columns."""
    bucket = fn.lit(BUCKETS_HELD.start) + fn.floor(fn.rand(EVEN_SEED) * len(BUCKETS_HELD))
    return spark.range(0, rows, 1, EVEN_PARTITIONS).select(
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
    drawn = fn.floor(fn.rand(EVEN_SEED + number) * len(values)) + 1
    return fn.element_at(fn.array(*map(fn.lit, values)), drawn.cast("int"))
