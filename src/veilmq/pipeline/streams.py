"""Running streams: some queries side by side, until all are done, one fails, or somebody asks them to stop.

``showing`` has progress on a terminal: one line for each stream, on standard error; nothing where that is no terminal.
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

LOOK_S = 0.5
BATCH_S = 60.0
"""How long a stream that is stopped may go on with its batch."""

Report = Callable[[str, int], None]
"""Called with the name of a stream and how many rows it has finished in this run."""


@dataclass(slots=True)
class _Rows:
    """Counts the rows of a stream by its own reports; each batch once, as Spark reports idle ones again."""

    batch: int = -1
    rows: int = 0

    def take(self, query: StreamingQuery) -> int:
        for report in query.recentProgress:
            rows = report.numInputRows  # Connect has it by source only, which this property knows
            if report.batchId > self.batch and rows > 0:
                self.batch = report.batchId
                self.rows += rows
        return self.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How a job reads queues. With ``continuous`` it goes on until it is stopped, else it takes what is there and ends.

    ``consumer``, ``takeover``, ``hold_s`` and ``on_lost_claim`` are those of the source: a second job of a consumer is
    refused unless it takes over; after more than ``hold_s`` (seconds) of rest it ends (``fail``) or goes on (``skip``).
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
    given: dict[str, str | bool | int | None] = {
        "endpoint": options.endpoint,
        "queue": queue,
        "consumer": options.consumer,
        "takeover": options.takeover,
        "maxMessagesPerBatch": options.batch_messages,
        "hold": options.hold_s,
        "onLostClaim": options.on_lost_claim,
    }
    said = {name: value for name, value in given.items() if value is not None}
    return spark.readStream.format("veilmq").options(**said).load()


def cleaned(checkpoint: Place) -> str:
    """Return where a checkpoint is, without the file that a kill leaves while the first offset is written.

    Spark would refuse such a checkpoint, as its folder ``offsets`` is not empty and has no offset.
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
    """Return how many rows each stream finished, when all have ended or ``stop`` is set.

    ``every`` is called about twice a second. Raises ``PipelineFailed`` when one fails; the others are stopped then.
    """
    counted = {name: _Rows() for name in queries}
    try:
        while any([_runs(name, query) for name, query in queries.items()]) and not stop.wait(LOOK_S):  # noqa: C419
            for name, query in queries.items():
                report(name, counted[name].take(query))
            every()
        until_s = time.monotonic() + BATCH_S
        while any(_is_at_work(query) for query in queries.values()) and time.monotonic() < until_s:
            time.sleep(LOOK_S / 5)
        return {name: counted[name].take(query) for name, query in queries.items()}
    finally:
        for query in queries.values():
            query.stop()


def _is_at_work(query: StreamingQuery) -> bool:
    """Tell whether ``query`` is in a batch, which it would begin again if it was stopped."""
    return query.isActive and bool(query.status["isDataAvailable"])


def _runs(name: str, query: StreamingQuery) -> bool:
    """Tell whether ``query`` still runs; raises ``PipelineFailed`` when it has failed."""
    if query.isActive:
        return True
    error = query.exception()
    if error is not None:
        raise PipelineFailed(f"{name}: {reason_of(error)}") from error
    return False


@contextmanager
def showing(totals: Mapping[str, int | None], *, what: str) -> Iterator[Report]:
    """Give what to report progress to; ``totals`` says how much each line is to have, ``None`` where nobody knows."""
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
