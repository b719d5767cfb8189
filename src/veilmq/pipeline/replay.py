"""The job ``replay``: a slice of the archive → a queue, each message once for each run.

A run has a name, and a record beside the archive: which version of the table it reads, what of it, and where the slice
is cut into batches, by the time of sending. So each batch is the same however often the run is started, and the queue
takes each batch of a run once. Batches follow each other, so that groups keep their order.
"""

import itertools
import math
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from veilmq.core.limits import REPLAY_BATCH_MESSAGES
from veilmq.pipeline.archive import read_archive
from veilmq.pipeline.archive_table import ArchiveTable
from veilmq.pipeline.failures import PipelineFailed, reason_of
from veilmq.pipeline.folders import Place
from veilmq.pipeline.streams import Report

RECORDS = "_replays"
FIFO_SUFFIX = ".fifo"
_RUN = re.compile(r"[A-Za-z0-9_-]{1,40}")
_MICROS = "unix_micros(sent_at)"


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """What of the archive is replayed, and to where: every condition that is given must hold.

    ``since`` and ``until`` bound the time of sending, from and before; ``where`` is a condition in SQL over the columns
    of the archive; ``ids`` are those of messages.
    """

    to: str
    queues: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    where: str = ""
    ids: tuple[str, ...] = ()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How a run is cut: batches end at ``ends_us`` (time of sending, inclusive), but for the last, which has no end.

    ``messages`` are those of each batch.
    """

    version: int
    slice: Slice
    ends_us: tuple[int, ...]
    messages: tuple[int, ...]
    published: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """``run`` names the run: 1 to 40 letters, digits, ``-`` and ``_``. Records are kept in ``<table>/_replays``."""

    table: str
    run: str
    slice: Slice
    endpoint: str
    batch_messages: int = REPLAY_BATCH_MESSAGES.default
    bad_rows: str = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a run did: ``messages`` in all, of which ``before`` had been sent when it was started this time."""

    messages: int
    before: int


def chosen(rows: DataFrame, part: Slice) -> DataFrame:
    """Return those rows of the archive that ``part`` names; its queues and times are the reader's business."""
    if part.where:
        rows = rows.where(F.expr(part.where))
    if part.ids:
        rows = rows.where(F.col("id").isin(list(part.ids)))
    return rows


def replayed(rows: DataFrame, *, run: str, fifo: bool) -> DataFrame:
    """Return archived messages as the sink sends them: attributes keep their types, groups their order.

    In a FIFO queue a message that had no group gets one of its own, and its deduplication id is of the run: what is
    replayed is no duplicate of what was sent first.
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


def replay(
    spark: SparkSession,
    options: ReplayOptions,
    *,
    report: Report = lambda name, rows: None,
    stop: threading.Event | None = None,
) -> Replayed:
    """Send the slice to its queue; started again with the same ``run`` it goes on where it was.

    Raises ``PipelineFailed``, also when that name belongs to a run of another slice.
    """
    if not _RUN.fullmatch(options.run):
        raise PipelineFailed(f"The run {options.run!r} must be named by 1 to 40 letters, digits, - and _.")
    record = _Record(options)
    try:
        plan = record.read() or record.write(_plan(spark, options))
        before = plan.published
        for number in range(before, len(plan.messages)):
            if stop is not None and stop.is_set():
                break
            _send(spark, options, plan, number)
            plan = record.write(msgspec.structs.replace(plan, published=number + 1))
            report(options.slice.to, sum(plan.messages[: plan.published]))
    except PySparkException as error:
        raise PipelineFailed(f"{options.slice.to}: {reason_of(error)}") from error
    return Replayed(messages=sum(plan.messages[: plan.published]), before=sum(plan.messages[:before]))


def _plan(spark: SparkSession, options: ReplayOptions) -> Plan:
    """Look through the slice once: how many messages it has, and where batches of about equal size end."""
    table = ArchiveTable(options.table)
    version = table.snapshot().version
    micros = _rows(spark, options, version).select(F.expr(_MICROS).alias("us"))
    total = micros.count()
    parts = max(1, math.ceil(total / options.batch_messages))
    cuts = [place / parts for place in range(1, parts)]
    ends: Sequence[int] = ()
    if cuts and total:
        ends = sorted(set(micros.agg(F.percentile_approx("us", cuts, 10_000)).collect()[0][0]))
    number = F.lit(0)
    for end in ends:
        number = number + (F.col("us") > end).cast("int")
    counted = {row["part"]: row["count"] for row in micros.groupBy(number.alias("part")).count().collect()}
    counts = tuple(counted.get(part, 0) for part in range(len(ends) + 1))
    return Plan(version=version, slice=options.slice, ends_us=tuple(ends), messages=counts)


def _rows(spark: SparkSession, options: ReplayOptions, version: int) -> DataFrame:
    part = options.slice
    table = ArchiveTable(options.table)
    rows = read_archive(spark, table, queues=part.queues, since=part.since, until=part.until, version=version)
    return chosen(rows, part)


def _send(spark: SparkSession, options: ReplayOptions, plan: Plan, number: int) -> None:
    bounds = [None, *plan.ends_us, None]
    after, end = list(itertools.pairwise(bounds))[number]
    rows = _rows(spark, options, plan.version)
    if after is not None:
        rows = rows.where(F.expr(_MICROS) > after)
    if end is not None:
        rows = rows.where(F.expr(_MICROS) <= end)
    writer = replayed(rows, run=options.run, fifo=options.slice.to.endswith(FIFO_SUFFIX)).write.format("veilmq")
    writer = writer.option("endpoint", options.endpoint).option("queue", options.slice.to)
    writer = writer.option("badRows", options.bad_rows)
    writer.option("writer", f"replay-{options.run}-{number}").mode("append").save()


class _Record:
    """The file in which a run keeps its plan and how far it is."""

    def __init__(self, options: ReplayOptions) -> None:
        self._place = Place.at(options.table) / RECORDS
        self._name = f"{options.run}.json"
        self._slice = options.slice
        self._run = options.run

    def read(self) -> Plan | None:
        """Return the plan, ``None`` of a new run; raises ``PipelineFailed`` when it is one of another slice."""
        content = self._place.read(self._name)
        if content is None:
            return None
        plan = msgspec.json.decode(content, type=Plan)
        if plan.slice != self._slice:
            raise PipelineFailed(
                f"The run {self._run} was begun with another slice or queue ({self._place.location}/{self._name}); "
                "repeat it as it was, or give this one another name with --run."
            )
        return plan

    def write(self, plan: Plan) -> Plan:
        """Keep ``plan``, whole or not at all."""
        self._place.write(self._name, msgspec.json.encode(plan))
        return plan
