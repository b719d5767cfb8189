"""What is counted of a Spark query's micro-batches."""

from benchmarks.ready_made import batch
from benchmarks.streams import Batch, _full
from veilmq.spark.datasource import COLUMNS


def _progress(rows: int, whole_ms: int, query_ms: int) -> dict[str, object]:
    return {"numInputRows": rows, "durationMs": {"triggerExecution": whole_ms, "addBatch": query_ms}}


def test_batches_that_are_not_full_do_not_count() -> None:
    progress = [_progress(10, 900, 500), _progress(3, 100, 50), _progress(0, 20, 1), _progress(10, 800, 400)]
    assert _full(progress, 10) == [Batch(rows=10, whole_s=0.9, query_s=0.5), Batch(rows=10, whole_s=0.8, query_s=0.4)]


def test_ready_made_rows_have_the_columns_of_the_source() -> None:
    made = batch(7)
    assert made.num_rows == 7
    assert made.schema.names == COLUMNS
