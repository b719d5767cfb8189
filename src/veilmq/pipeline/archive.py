"""The job ``archive``: queues → the archive table, each message once.

Each queue has its own stream and its own checkpoint, so queues can be added and removed, and a failed one restarted
alone. A stream claims messages, adds them to the table, and acknowledges them when they are durable there.
``read_archive`` reads only the live files of the requested queues and days.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's usual name
from pyspark.sql.streaming.query import StreamingQuery

from veilmq.pipeline.archive_compaction import WRITER, Compaction, compact
from veilmq.pipeline.archive_sink import FORMAT, ArchiveSink
from veilmq.pipeline.archive_table import SCHEMA, ArchiveFile, ArchiveTable, now_ms
from veilmq.pipeline.folders import Place, located
from veilmq.pipeline.session import activate
from veilmq.pipeline.streams import ReadOptions, Report, cleaned, read_queue, run_streams
from veilmq.spark.schema import SCHEMA as MESSAGE

SPARK_SCHEMA = f"{MESSAGE}, date date"
CONSUMER = "archive"
CHECKPOINTS = "_checkpoints"
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions(ReadOptions):
    """What to archive, and where.

    ``table`` is the folder or URL of the archive, ``checkpoint`` that of the checkpoints (default: below ``table``).
    Small files are compacted every ``compact_minutes`` and at the end; 0: never. Removed files are deleted after
    ``keep_h`` hours. Messages leave the table ``expire_days`` whole days (UTC) after the day they were sent; 0: never.
    """

    queues: tuple[str, ...]
    table: str
    checkpoint: str = ""
    consumer: str = CONSUMER
    compact_minutes: int = 10
    keep_h: int = 168
    expire_days: int = 0

    @property
    def checkpoints(self) -> Place:
        """Return the place of the checkpoints."""
        return Place.at(self.checkpoint) if self.checkpoint else Place.at(self.table) / CHECKPOINTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """The result of a run: messages by queue, and the numbers of compacted, expired and deleted files."""

    messages: dict[str, int]
    compaction: Compaction
    deleted_files: int
    expired_files: int = 0


def archived(messages: DataFrame) -> DataFrame:
    """Return messages with the columns of the archive: ``date`` is the day (UTC) on which they were sent."""
    day = F.expr("date_from_unix_date(cast(floor(unix_micros(sent_at) / 86400000000) as int))")
    return messages.withColumn("date", day).select(*SCHEMA.names)


def archive(
    spark: SparkSession,
    options: ArchiveOptions,
    *,
    report: Report = lambda name, rows: None,
    stop: threading.Event | None = None,
    clock_s: Callable[[], float],
) -> Archived:
    """Archive the queues; raises ``PipelineFailed`` if a stream fails. A restarted job continues where it stopped."""
    table = ArchiveTable(options.table)
    table.create()
    activate(spark)
    spark.dataSource.register(ArchiveSink)
    maintenance = _Maintenance(spark, table, options, clock_s)
    queries = {queue: _start(spark, options, queue) for queue in options.queues}
    counts = run_streams(queries, report=report, stop=stop or threading.Event(), every=maintenance.run_if_due)
    maintenance.run()
    return Archived(
        messages=counts,
        compaction=maintenance.compaction,
        deleted_files=maintenance.deleted,
        expired_files=maintenance.expired,
    )


def _start(spark: SparkSession, options: ArchiveOptions, queue: str) -> StreamingQuery:
    writer = archived(read_queue(spark, queue, options)).writeStream.format(FORMAT).queryName(f"archive of {queue}")
    writer = writer.option("checkpointLocation", cleaned(options.checkpoints / queue))
    writer = writer.trigger(processingTime="0 seconds") if options.continuous else writer.trigger(availableNow=True)
    return writer.start(located(options.table))


class _Maintenance:
    """Removes expired files, compacts small ones and deletes removed ones, every ``compact_minutes``."""

    def __init__(
        self, spark: SparkSession, table: ArchiveTable, options: ArchiveOptions, clock_s: Callable[[], float]
    ) -> None:
        self.compaction = Compaction()
        self.deleted = self.expired = 0
        self._spark, self._table, self._options, self._clock_s = spark, table, options, clock_s
        self._due_s = clock_s() + options.compact_minutes * MINUTE_S

    def run_if_due(self) -> None:
        if self._options.compact_minutes and self._clock_s() >= self._due_s:
            self.run()
            self._due_s = self._clock_s() + self._options.compact_minutes * MINUTE_S

    def run(self) -> None:
        if self._options.expire_days:
            day = datetime.fromtimestamp(now_ms() / 1000, UTC).date() - timedelta(days=self._options.expire_days)
            self.expired += self._table.expire(writer=WRITER, before=day)
        if self._options.compact_minutes:
            done = compact(self._table, self._spark)
            self.compaction = Compaction(
                removed=self.compaction.removed + done.removed, added=self.compaction.added + done.added
            )
        if self._options.compact_minutes or self._options.expire_days:
            self.deleted += self._table.vacuum(keep_h=self._options.keep_h)


def read_archive(
    spark: SparkSession,
    table: ArchiveTable,
    *,
    queues: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    version: int | None = None,
) -> DataFrame:
    """Return the messages of ``queues`` (default: all) that were sent at or after ``since`` and before ``until``.

    ``version`` selects an earlier version of the table. Raises ``PipelineFailed`` if there is no table.
    """
    files = [
        file
        for file in table.snapshot(version=version).files
        if (not queues or file.queue in queues) and _overlaps(file, since, until)
    ]
    if not files:
        return spark.createDataFrame([], SPARK_SCHEMA)
    paths = [f"{table.location}/{file.path}" for file in files]
    rows = spark.read.schema(SPARK_SCHEMA).option("basePath", table.location).parquet(*paths)
    if since is not None:
        rows = rows.where(F.col("sent_at") >= F.lit(since))
    if until is not None:
        rows = rows.where(F.col("sent_at") < F.lit(until))
    return rows


def _overlaps(file: ArchiveFile, since: datetime | None, until: datetime | None) -> bool:
    return (since is None or file.day >= _day(since)) and (until is None or file.day <= _day(until))


def _day(at: datetime) -> date:
    return at.astimezone(UTC).date()
