"""Run several streaming queries until all have ended, one fails, or a stop is requested.

``showing`` prints progress on standard error, one line for each stream, if it is a terminal.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from veilmq.pipeline.failures import PipelineFailed, reason_of
from veilmq.pipeline.folders import Place

POLL_S = 0.5
BATCH_S = 60.0
"""Maximum time for a stopped stream to finish its batch."""

Report = Callable[[str, int], None]
"""Called with the name of a stream and the number of rows that it has finished in this run."""


@dataclass(slots=True)
class _Rows:
    """Counts the rows of a stream from its progress; each batch once, because Spark reports idle batches again."""

    batch: int = -1
    rows: int = 0

    def take(self, query: StreamingQuery) -> int:
        for report in query.recentProgress:
            rows = report.numInputRows  # also correct with Spark Connect, which has rows by source only
            if report.batchId > self.batch and rows > 0:
                self.batch = report.batchId
                self.rows += rows
        return self.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How a job reads queues: with ``continuous`` until stopped, otherwise only the messages visible at its start.

    ``consumer``, ``takeover``, ``hold_s`` and ``on_lost_claim`` are options of the source: a second job of a consumer
    is refused unless it takes over; after a downtime of more than ``hold_s``, the job fails or continues (``skip``).
    """

    endpoint: str
    consumer: str
    continuous: bool = False
    batch_messages: int | None = None
    takeover: bool = False
    hold_s: int | None = None
    on_lost_claim: str = "fail"


def read_queue(spark: SparkSession, queue: str, options: ReadOptions) -> DataFrame:
    """Return ``queue`` as a stream."""
    options_by_name: dict[str, str | bool | int | None] = {
        "endpoint": options.endpoint,
        "queue": queue,
        "consumer": options.consumer,
        "takeover": options.takeover,
        "maxMessagesPerBatch": options.batch_messages,
        "hold": options.hold_s,
        "onLostClaim": options.on_lost_claim,
    }
    present = {name: value for name, value in options_by_name.items() if value is not None}
    return spark.readStream.format("veilmq").options(**present).load()


def cleaned(checkpoint: Place) -> str:
    """Delete the temporary file that a kill leaves while the first offset is written; return the checkpoint's location.

    Spark refuses a checkpoint whose folder ``offsets`` has files but no offset.
    """
    offsets = checkpoint / "offsets"
    names = offsets.names()
    if not any(name[0].isdecimal() for name in names):
        for name in names:
            if name.startswith("."):
                offsets.files.delete_file(name)
    return checkpoint.location


def run_streams(
    queries: Mapping[str, StreamingQuery],
    *,
    report: Report,
    stop: threading.Event,
    every: Callable[[], None] = lambda: None,
) -> dict[str, int]:
    """Wait until all streams have ended or ``stop`` is set; return the number of rows that each has finished.

    ``every`` is called about twice a second. Raises ``PipelineFailed`` if a stream fails; the others are then stopped.
    """
    counted = {name: _Rows() for name in queries}
    try:
        while any([_runs(name, query) for name, query in queries.items()]) and not stop.wait(POLL_S):  # noqa: C419
            for name, query in queries.items():
                report(name, counted[name].take(query))
            every()
        until_s = time.monotonic() + BATCH_S
        while any(_is_at_work(query) for query in queries.values()) and time.monotonic() < until_s:
            time.sleep(POLL_S / 5)
        return {name: counted[name].take(query) for name, query in queries.items()}
    finally:
        for query in queries.values():
            query.stop()


def _is_at_work(query: StreamingQuery) -> bool:
    """Return whether ``query`` is processing a batch, which a stop would interrupt."""
    return query.isActive and bool(query.status["isDataAvailable"])


def _runs(name: str, query: StreamingQuery) -> bool:
    """Return whether ``query`` is running; raises ``PipelineFailed`` if it has failed."""
    if query.isActive:
        return True
    error = query.exception()
    if error is not None:
        raise PipelineFailed(f"{name}: {reason_of(error)}") from error
    return False


@contextmanager
def showing(totals: Mapping[str, int | None], *, what: str) -> Iterator[Report]:
    """Show a progress bar for each name in ``totals``, and yield its callback; a total of ``None`` is unknown."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(what),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        lines = {name: progress.add_task(name, total=total) for name, total in totals.items()}

        def report(name: str, rows: int) -> None:
            progress.update(lines[name], completed=rows)

        yield report
