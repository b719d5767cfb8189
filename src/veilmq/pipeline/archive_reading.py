"""Reading the archive with Spark: only the files that count, only of the queues and days that are asked for."""

from collections.abc import Sequence
from datetime import UTC, date, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from veilmq.pipeline.archive_files import ArchiveFile
from veilmq.pipeline.archive_table import ArchiveTable
from veilmq.spark.schema import SCHEMA as MESSAGE

SCHEMA = f"{MESSAGE}, date date"


def read_archive(
    spark: SparkSession,
    table: ArchiveTable,
    *,
    queues: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    version: int | None = None,
) -> DataFrame:
    """Return the messages of some ``queues`` (of all, without any) that were sent from ``since`` to before ``until``.

    ``version`` reads the table as it was then. Raises ``PipelineFailed`` where there is no table.
    """
    files = [
        file
        for file in table.snapshot(version=version).files
        if (not queues or file.queue in queues) and _may_have(file, since, until)
    ]
    if not files:
        return spark.createDataFrame([], SCHEMA)
    paths = [str(table.folder / file.path) for file in files]
    rows = spark.read.schema(SCHEMA).option("basePath", str(table.folder)).parquet(*paths)
    if since is not None:
        rows = rows.where(F.col("sent_at") >= F.lit(since))
    if until is not None:
        rows = rows.where(F.col("sent_at") < F.lit(until))
    return rows


def _may_have(file: ArchiveFile, since: datetime | None, until: datetime | None) -> bool:
    return (since is None or file.day >= _day(since)) and (until is None or file.day <= _day(until))


def _day(at: datetime) -> date:
    return at.astimezone(UTC).date()
