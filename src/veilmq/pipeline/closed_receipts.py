"""The event log as Spark reads it: one row for each receipt that ended (``docs/events.md`` has the columns)."""

from collections.abc import Sequence
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from veilmq.pipeline.folders import existing, located

SCHEMA = StructType(
    [
        StructField("queue", StringType()),
        StructField("key", StringType()),
        StructField("group_hash", LongType()),
        StructField("size_bucket", IntegerType()),
        StructField("message_id", StringType()),
        StructField("receipt", LongType()),
        StructField("sent_at", TimestampType()),
        StructField("received_at", TimestampType()),
        StructField("closed_at", TimestampType()),
        StructField("held_ms", LongType()),
        StructField("outcome", StringType()),
        StructField("visibility_ms", LongType()),
        StructField("extensions", IntegerType()),
        StructField("receive_count", IntegerType()),
        StructField("batch_size", IntegerType()),
        StructField("batch_position", IntegerType()),
        StructField("event", LongType()),
        StructField("node", StringType()),
    ]
)
"""The columns of ``receipt_closed``; its partitions, ``date`` and ``hour``, are not read."""


def read_files(spark: SparkSession, files: Sequence[str], *, tasks_max: int) -> DataFrame:
    """Return the rows of these Parquet ``files``, read by at most ``tasks_max`` tasks; none is opened for its schema.

    Spark's own number of tasks grows with the bytes. Each task hands on all cells that it has met, so what is shuffled
    would grow with it.
    """
    return spark.read.schema(SCHEMA).parquet(*files).coalesce(tasks_max)


def files_of(spark: SparkSession, events: str) -> list[str]:
    """Return the data files under the folder or URL ``events``, in order; none where there is nothing."""
    found = existing(spark.read.schema(SCHEMA), located(events))
    return [] if found is None else sorted(unquote(name) for name in found.inputFiles())
