"""The store of cells, on Spark: what its runs have counted, through kills, merges and versions."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.pipeline.closed import ExportedLog
from veilmq.pipeline.event_log import CellStore, Counted

DAY_MS = 86_400_000
TODAY_MS, TOMORROW_MS = 20_000 * DAY_MS, 20_001 * DAY_MS
RUNS_MAX = 2


def receipts(store: CellStore) -> int:
    """Return how many receipts the store has counted."""
    counted = store.cells().where("axis = 'held'").agg({"n": "sum"}).first()
    assert counted is not None
    return counted[0] or 0


def test_runs_count_each_file_once_and_become_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was killed before its end is repeated; a sum that was cut off does not count, and is made again."""
    monkeypatch.setattr("veilmq.pipeline.event_log.RUNS_MAX", RUNS_MAX)
    made, state = ExportedLog(tmp_path / "a log"), tmp_path / "state"
    store = CellStore(spark, str(state))
    assert store.count(made.events, at_ms=TODAY_MS) == Counted(files=0, run=0)
    made.export()
    assert store.count(made.events, at_ms=TODAY_MS) == Counted(files=1, run=1)
    made.export(hours=(13, 14))
    assert store.count(made.events, at_ms=TODAY_MS) == Counted(files=2, run=2)
    shutil.rmtree(state / "runs" / "run=2")  # what a kill before the last step leaves
    assert receipts(store) == 1
    assert store.count(made.events, at_ms=TODAY_MS) == Counted(files=2, run=2)
    assert receipts(store) == 3
    made.export()
    assert store.count(made.events, at_ms=TODAY_MS) == Counted(files=1, run=3)
    runs = {int(path.name.removeprefix("run=")) for path in (state / "cells").iterdir()}
    assert (max(runs), receipts(store)) == (4, 4)
    shutil.rmtree(state / "runs" / "run=4")
    assert receipts(store) == 4
    assert store.count(made.events, at_ms=TOMORROW_MS) == Counted(files=0, run=4)
    assert receipts(store) == 4
    store.merge()
    assert receipts(store) == 4
    assert len(list((state / "cells").iterdir())) <= 3


def test_a_store_of_an_earlier_version_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """It had the URLs of the files and no records."""
    made, state = ExportedLog(tmp_path / "a log"), tmp_path / "state"
    names = [f"file://{made.events}/{name}" for name in made.export(hours=(1, 2))]
    run = state / "files" / "run=3"
    run.mkdir(parents=True)
    pq.write_table(pa.table({"file": names}), run / "part.parquet")
    assert CellStore(spark, str(state)).count(made.events) == Counted(files=0, run=4)
