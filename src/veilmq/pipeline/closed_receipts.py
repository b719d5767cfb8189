"""The event log as Spark reads it: one row for each receipt that ended (``docs/events.md`` has the columns)."""

from collections.abc import Sequence
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

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


def read_files(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """Return the rows of these Parquet ``files``; no file is opened for its schema."""
    return spark.read.schema(SCHEMA).parquet(*files)


def files_of(spark: SparkSession, events: str) -> list[str]:
    """Return the data files under the folder or URL ``events``, in order; none where there is nothing."""
    try:
        found = spark.read.schema(SCHEMA).parquet(events).inputFiles()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return []
    return sorted(unquote(name) for name in found)
