"""Spark on a queue: rows per second and the cost of a micro-batch, next to sources without a queue.

Every query runs alone in a session with two threads and writes nowhere. Figures are of its micro-batches without the
first ones, which start Python.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import rates
from benchmarks.bench import Bench, Opened
from benchmarks.row import Row, Section, alone, failed
from benchmarks.servers import CHECKOUT, VEILMQ
from benchmarks.sqs import Sqs
from veilmq.client.api import Publications

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LARGE, SMALL, PAGES = 50_000, 1_000, 2_000
SHARDS = 2
BATCHES_LARGE, BATCHES_SMALL, BATCHES_PAGES = 8, 20, 4
WARM_UP = 2


CONFIGURATION = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.sql.streaming.numRecentProgressUpdates": "200",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_UNIX = "spark.python.unix.domain.socket.enabled"
UNIX_SOCKETS = {_UNIX: "true"}
"""The setting that docs/spark.md recommends."""
TCP = {_UNIX: "false"}
"""Spark's default, which delays each Python task by 40 ms. Set explicitly, because the JVM keeps its first value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A streaming source with micro-batches of `rows` rows, and how many of them are measured."""

    format: str
    rows: int
    batches: int
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch: its rows, and the seconds of the whole batch and of its query."""

    rows: int
    whole_s: float
    query_s: float


def measure(bench: Bench) -> Section:
    """Return all rows of the section, or the reason if there is no Spark or Java."""
    bench.log("spark …")
    try:
        rows = tuple(_rows(bench))
    except (*rates.FAILURES, ImportError, RuntimeError) as failure:
        bench.log(f"  {failure}")
        rows = (alone("spark", "", failed(failure)),)
    return Section(name="spark", rows=rows)


def _rows(bench: Bench) -> Iterator[Row]:
    with _stage(bench, UNIX_SOCKETS) as stage:
        yield from _large(stage)
        yield from _small(stage)
        pages = stage.run(stage.queue("pages", PAGES, BATCHES_PAGES, mode="sqs"))
        yield alone("SQS pages of 10, whole", "rows/s", _whole_per_s(pages))
    with _stage(bench, TCP) as stage:
        yield from _small(stage, ", over TCP")


@contextmanager
def _stage(bench: Bench, settings: Mapping[str, str]) -> Iterator["_Stage"]:
    from benchmarks.ready_made import ReadyMade  # noqa: PLC0415 (needs the extra)

    with bench.folder() as folder, _session(folder, settings) as spark, bench.opened(VEILMQ) as opened:
        spark.dataSource.register(ReadyMade)
        yield _Stage(bench=bench, spark=spark, folder=folder, opened=opened)


def _large(stage: "_Stage") -> Iterator[Row]:
    rate = stage.run(_rate(LARGE, BATCHES_LARGE))
    ready = stage.run(_ready_made(LARGE, SHARDS, BATCHES_LARGE))
    claims = stage.run(stage.queue("large", LARGE, BATCHES_LARGE))
    yield alone(f"rate source, {LARGE:,} rows", "rows/s", _read_per_s(rate))
    yield alone(f"ready-made Arrow, {LARGE:,} rows", "rows/s", _read_per_s(ready))
    read, whole = _read_per_s(claims), _whole_per_s(claims)
    yield alone(f"bulk read, {LARGE:,} rows of 100 bytes", "rows/s", read)
    yield alone("bulk read ÷ ready-made Arrow", "times", read / _read_per_s(ready))
    yield alone("claim, read, acknowledge: whole", "rows/s", whole)
    yield alone("whole ÷ bulk read", "times", whole / read)


def _small(stage: "_Stage", how: str = "") -> Iterator[Row]:
    rate = _best_s(stage.run(_rate(SMALL, BATCHES_SMALL)))
    ready = _best_s(stage.run(_ready_made(SMALL, 1, BATCHES_SMALL)))
    claims = _best_s(stage.run(stage.queue("small", SMALL, BATCHES_SMALL)))
    yield alone(f"micro-batch of {SMALL:,} rows, best{how}", "ms", claims * 1e3)
    yield alone(f"micro-batch ÷ rate source's, best{how}", "times", claims / rate)
    yield alone(f"micro-batch ÷ ready-made Arrow's, best{how}", "times", claims / ready)


def _rate(rows: int, batches: int) -> Source:
    options = {"rowsPerBatch": str(rows), "numPartitions": str(SHARDS)}
    return Source(format="rate-micro-batch", rows=rows, batches=batches, options=options)


def _ready_made(rows: int, shards: int, batches: int) -> Source:
    """Return a Python source with ready-made rows: the cost of Spark's Python."""
    options = {"rows": str(rows), "shards": str(shards)}
    return Source(format="ready_made", rows=rows, batches=batches, options=options)


def _read_per_s(batches: list[Batch]) -> float:
    return median(batch.rows / batch.query_s for batch in batches)


def _best_s(batches: list[Batch]) -> float:
    return min(batch.whole_s for batch in batches)


def _whole_per_s(batches: list[Batch]) -> float:
    return median(batch.rows / batch.whole_s for batch in batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """One session, one server, and a folder for checkpoints."""

    bench: Bench
    spark: "SparkSession"
    folder: Path
    opened: Opened

    def queue(self, name: str, rows: int, batches: int, *, mode: str = "claims") -> Source:
        """Make a queue with the needed number of messages."""
        with Sqs(port=self.opened.port) as sqs:
            sqs.create_queue(name)
        self.bench.log(f"  filling {name} …")
        fill(self.opened.url, name, rows * (batches + WARM_UP))
        options = {
            "endpoint": self.opened.url,
            "queue": name,
            "mode": mode,
            "maxMessagesPerBatch": str(rows),
            "wait": "0",
        }  # and default shards: two for a large batch, one for a small one
        return Source(format="veilmq", rows=rows, batches=batches, options=options)

    def run(self, source: Source) -> list[Batch]:
        """Return the micro-batches of a query on `source`, without the first ones."""
        self.bench.log(f"  {source.format}, {source.rows:,} rows a batch …")
        frame = self.spark.readStream.format(source.format).options(**source.options).load()
        checkpoint = self.folder / f"{source.format}-{source.rows}-{source.options.get('queue', '')}"
        query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
        try:
            while len(_full(query.recentProgress, source.rows)) < source.batches + WARM_UP:
                if not query.isActive:
                    raise RuntimeError(f"the query ended: {query.exception()}")
                query.awaitTermination(1)
            return _full(query.recentProgress, source.rows)[WARM_UP : source.batches + WARM_UP]
        finally:
            query.stop()


def _full(progress: list[Any], rows: int) -> list[Batch]:
    return [
        Batch(
            rows=rows,
            whole_s=each["durationMs"]["triggerExecution"] / 1e3,
            query_s=each["durationMs"]["addBatch"] / 1e3,
        )
        for each in progress
        if each["numInputRows"] >= rows
    ]


def fill(endpoint: str, queue: str, messages: int) -> None:
    """Send messages of 100 bytes as one publication."""
    import pyarrow as pa  # noqa: PLC0415 (an extra)

    publications = Publications(endpoint, queue)
    part_rows = 5_000
    part = pa.record_batch([pa.array(["x" * 100] * part_rows)], names=["body"])
    for number, start in enumerate(range(0, messages, part_rows)):
        rows = part.slice(0, min(part_rows, messages - start))
        publications.stage_arrow("bench", batch=1, attempt="1", part=number, messages=rows)
    publications.publish("bench", batch=1, attempts=[("1", messages)])


@contextmanager
def _session(folder: Path, settings: Mapping[str, str]) -> Iterator["SparkSession"]:
    from pyspark.sql import SparkSession  # noqa: PLC0415 (an extra)

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "src")])  # for the workers
    builder = SparkSession.builder.master("local[2]").appName("veilmq benchmark")
    own = {"spark.sql.warehouse.dir": str(folder / "warehouse"), **settings}
    for name, value in (CONFIGURATION | own).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
