"""Running streams: some queries side by side, until all are done, one fails, or somebody asks them to stop."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql.streaming.query import StreamingQuery

from veilmq.pipeline.failures import PipelineFailed
from veilmq.pipeline.reasons import reason_of

LOOK_S = 0.5

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
        return {name: counted[name].take(query) for name, query in queries.items()}
    finally:
        for query in queries.values():
            query.stop()


def _runs(name: str, query: StreamingQuery) -> bool:
    """Tell whether ``query`` still runs; raises ``PipelineFailed`` when it has failed."""
    if query.isActive:
        return True
    error = query.exception()
    if error is not None:
        raise PipelineFailed(f"{name}: {reason_of(error)}") from error
    return False
