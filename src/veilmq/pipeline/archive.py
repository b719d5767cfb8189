"""The jobs ``archive`` (queues → the archive table) and ``replay`` (a slice of the archive → a queue).

**Archive.** Each queue has its own stream and checkpoint, so queues can be added and removed, and a failed one
restarted alone. A stream claims messages, adds them to the table, and acknowledges them once they are durable there.
``read_archive`` reads only the live files of the requested queues and days.

**Replay.** A run has a name and a recorded plan: the version of the table, the slice, and the bounds of its batches by
time of sending. So a restarted run has the same batches, and the queue accepts each batch of a run once. Batches are
sent in order, so groups keep their order.
"""

import itertools
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's usual name

from veilmq.core import Value
from veilmq.core.limits import ARCHIVE_COMPACT_MINUTES
from veilmq.pipeline.archive_table import SCHEMA, WRITER, ArchiveTable, compact, now_ms
from veilmq.pipeline.folders import Place, read_parquet
from veilmq.pipeline.options import ArchiveOptions, ReplayOptions, Slice
from veilmq.pipeline.session import PipelineFailed, Report, in_tasks, reason_of, run_streams, start_stream
from veilmq.spark.datasource import SCHEMA as MESSAGE
from veilmq.wire.sqs.names import is_fifo

SPARK_SCHEMA = f"{MESSAGE}, date date"
CHECKPOINTS = "_checkpoints"
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Archived:
    """The result of a run: messages by queue, and how many files were ``joined``, ``expired`` and ``deleted``."""

    messages: dict[str, int]
    files: Counter[str]


def archived(messages: DataFrame) -> DataFrame:
    """Return messages with the columns of the archive: ``date`` is the day (UTC) on which they were sent."""
    day = F.expr("date_from_unix_date(cast(floor(unix_micros(sent_at) / 86400000000) as int))")
    return messages.withColumn("date", day).select(*SCHEMA.names)


def archive(
    spark: SparkSession,
    endpoint: str,
    queues: Sequence[str],
    options: ArchiveOptions,
    *,
    report: Report = lambda name, rows: None,
    stop: threading.Event | None = None,
) -> Archived:
    """Archive ``queues``. A restarted job continues where it stopped. Raises ``PipelineFailed`` if a stream fails.

    Small files are also compacted at the end. Messages leave the table by their day (UTC).
    """
    table, files, has_work = ArchiveTable(options.table), Counter[str](), options.compact_minutes or options.expire_days
    checkpoints = Place.at(options.checkpoint) if options.checkpoint else table.place / CHECKPOINTS
    period_s = MINUTE_S * (options.compact_minutes or ARCHIVE_COMPACT_MINUTES.default) if has_work else math.inf
    due_s = time.monotonic() + period_s

    def add(batch: DataFrame, query: str, number: int) -> None:
        table.add(archived(batch), query, number)

    def maintain() -> None:
        nonlocal due_s
        if options.expire_days:
            day = datetime.fromtimestamp(now_ms() / 1000, UTC).date() - timedelta(days=options.expire_days)
            files["expired"] += table.expire(writer=WRITER, before=day)
        if options.compact_minutes:
            files["joined"] += compact(table, spark)
        if has_work:
            files["deleted"] += table.vacuum(keep_h=options.keep_h)
        due_s = time.monotonic() + period_s

    table.create()
    counts = run_streams(
        queues,
        lambda queue: start_stream(
            spark, endpoint, queue, options, add, name=f"archive of {queue}", checkpoint=checkpoints / queue
        ),
        report=report,
        stop=stop or threading.Event(),
        every=lambda: maintain() if time.monotonic() >= due_s else None,
    )
    maintain()
    return Archived(counts, files)


ALL = Slice()


def read_archive(
    spark: SparkSession, table: ArchiveTable, part: Slice = ALL, *, version: int | None = None
) -> DataFrame:
    """Return the messages of ``part``, from the current or an earlier ``version`` of the table.

    Raises ``PipelineFailed`` if there is no table.
    """
    first, last = (at and at.astimezone(UTC).date() for at in (part.since, part.until))
    paths = [
        f"{table.location}/{file.path}"
        for file in table.snapshot(version=version).files
        if (not part.queues or file.queue in part.queues)
        and (first is None or file.day >= first)
        and (last is None or file.day <= last)
    ]
    if not paths:
        return spark.createDataFrame([], SPARK_SCHEMA)
    rows = read_parquet(spark.read.schema(SPARK_SCHEMA).option("basePath", table.location), *paths)
    if part.since is not None:
        rows = rows.where(F.col("sent_at") >= F.lit(part.since))
    if part.until is not None:
        rows = rows.where(F.col("sent_at") < F.lit(part.until))
    if part.where:
        rows = rows.where(F.expr(part.where))
    return rows.where(F.col("id").isin(list(part.ids))) if part.ids else rows


RECORDS = "_replays"
_RUN = re.compile(r"[A-Za-z0-9_-]{1,40}")
_MICROS = "unix_micros(sent_at)"


class Plan(Value):
    """The batches of a run to the queue ``to``: all but the last one end at ``ends_us`` (time of sending, inclusive).

    ``messages`` has the size of each batch; ``published`` is the number of published batches.
    """

    version: int
    to: str
    slice: Slice
    ends_us: tuple[int, ...]
    messages: tuple[int, ...]
    published: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The result of a run: ``messages`` in total, of which earlier starts sent ``before``."""

    messages: int
    before: int


def replayed(rows: DataFrame, *, run: str, fifo: bool) -> DataFrame:
    """Return archived messages with the columns of the sink, in the order of their groups.

    For a FIFO queue a message without a group gets its own group, and the deduplication id contains the run, so that a
    replayed message is not a duplicate of the original.
    """
    if not fifo:
        return rows.select("body", "attributes", "attribute_types", "group")
    return (
        rows.withColumn("group", F.coalesce("group", "id"))
        .withColumn("dedup_id", F.concat(F.lit(f"{run}:"), "id"))
        .repartition("group")
        .sortWithinPartitions("sequence_number", "sent_at", "id")
        .select("body", "attributes", "attribute_types", "group", "dedup_id")
    )


def _sizes(ends_us: Sequence[int], _: int, batches: Iterator[pa.RecordBatch]) -> list[int]:
    """Return the size of each batch of a plan, in the rows of one task."""
    places = np.concatenate([[], *(np.searchsorted(ends_us, batch.column(0)) for batch in batches)])
    return list(np.bincount(places.astype(np.int64), minlength=len(ends_us) + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A run of the job ``replay`` to the queue ``to``; its name has 1 to 40 letters, digits, ``-`` and ``_``.

    Its plan and progress are in a file in ``<table>/_replays``. Raises ``PipelineFailed`` for an invalid name.
    """

    endpoint: str
    to: str
    slice: Slice
    options: ReplayOptions

    def __post_init__(self) -> None:
        if not _RUN.fullmatch(run := self.options.run):
            raise PipelineFailed(f"The name of the run is {run!r}, and must be 1 to 40 letters, digits, - and _.")

    def send(
        self, spark: SparkSession, *, report: Report = lambda name, rows: None, stop: threading.Event | None = None
    ) -> Replayed:
        """Send the batches that earlier starts have not sent.

        Raises ``PipelineFailed``, also if a run with another slice has the same name.
        """
        try:
            plan = self._plan(spark)
            before = plan.published
            for number in range(before, len(plan.messages)):
                if stop is not None and stop.is_set():
                    break
                self._send(spark, plan, number)
                plan = self._written(msgspec.structs.replace(plan, published=number + 1))
                report(self.to, sum(plan.messages[: plan.published]))
        except PySparkException as error:
            raise PipelineFailed(f"{self.to}: {reason_of(error)}") from error
        return Replayed(messages=sum(plan.messages[: plan.published]), before=sum(plan.messages[:before]))

    def _plan(self, spark: SparkSession) -> Plan:
        """Return the recorded plan. For a new run, divide the slice into batches of similar size and record the plan.

        Raises ``PipelineFailed`` if the recorded plan has another slice or an earlier format.
        """
        run, records = self.options.run, Place.at(self.options.table) / RECORDS
        content, file = records.read(f"{run}.json"), f"{records.location}/{run}.json"
        if content is not None:
            try:
                plan = msgspec.json.decode(content, type=Plan)
            except msgspec.DecodeError as error:
                text = "choose another name with --run; a run of that name sends all messages of its slice."
                raise PipelineFailed(f"{file} is not the plan of a run ({error}); {text}") from error
            if (plan.to, astuple(plan.slice)) != (self.to, astuple(self.slice)):  # the command line has a subclass
                raise PipelineFailed(
                    f"The run {run} was started with another slice or queue ({file}); start it with the same "
                    "options, or choose another name with --run."
                )
            return plan
        version = ArchiveTable(self.options.table).snapshot().version
        micros = self._rows(spark, version).select(F.expr(_MICROS).alias("us"))
        total = micros.count()
        parts = max(1, math.ceil(total / self.options.batch_messages))
        cuts = [place / parts for place in range(1, parts)]
        ends: Sequence[int] = ()
        if cuts and total:
            ends = sorted(set(micros.agg(F.percentile_approx("us", cuts, 10_000)).collect()[0][0]))
        sizes = tuple(np.sum(in_tasks(micros, partial(_sizes, ends)), axis=0).tolist()) if total else (0,)
        if records.read(f"{run}.json") is not None:  # another start of the run was faster
            return self._plan(spark)
        return self._written(Plan(version=version, to=self.to, slice=self.slice, ends_us=tuple(ends), messages=sizes))

    def _rows(self, spark: SparkSession, version: int) -> DataFrame:
        return read_archive(spark, ArchiveTable(self.options.table), self.slice, version=version)

    def _send(self, spark: SparkSession, plan: Plan, number: int) -> None:
        after, end = [*itertools.pairwise([-1, *plan.ends_us, 2**62])][number]
        rows, run = self._rows(spark, plan.version), self.options.run
        rows = rows.where(F.expr(_MICROS) > after).where(F.expr(_MICROS) <= end)
        writer = replayed(rows, run=run, fifo=is_fifo(self.to)).write.format("veilmq").mode("append")
        options = {"endpoint": self.endpoint, "queue": self.to, "badRows": self.options.bad_rows}
        writer.options(writer=f"replay-{run}-{number}", **options).save()

    def _written(self, plan: Plan) -> Plan:
        (Place.at(self.options.table) / RECORDS).write(f"{self.options.run}.json", msgspec.json.encode(plan))
        return plan
