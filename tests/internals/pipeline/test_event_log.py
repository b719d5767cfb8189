"""How files of the event log are found: each once, and without a look at those that are known."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.exported import ExportedLog
from veilmq.pipeline.cell_store import CellStore, Counted
from veilmq.pipeline.closed_receipts import EventLog

DAY_MS = 86_400_000
RUNS_MAX = 2


class Reader:
    """A reader that remembers what the log told it, as a store of cells does, and that runs on one day or the next."""

    def __init__(self, spark: SparkSession, place: str, state: Path) -> None:
        """Nothing is read yet."""
        self.store = CellStore(spark, str(state))
        self._place = place
        self.day = 20_000

    def new(self) -> int:
        """Return how many files a run has found."""
        return self.store.count(self._place, map_tasks=1, at_ms=self.day * DAY_MS).files

    @property
    def receipts(self) -> int:
        """How many receipts were counted in all."""
        counted = self.store.cells().where("axis = 'held'").agg({"n": "sum"}).first()
        assert counted is not None
        return counted[0] or 0


@pytest.fixture
def made(tmp_path: Path) -> ExportedLog:
    """Return a log that nothing was exported to."""
    return ExportedLog(tmp_path / "a log")


@pytest.fixture
def reader(spark: SparkSession, made: ExportedLog, tmp_path: Path) -> Reader:
    """Return a reader of it."""
    return Reader(spark, made.events, tmp_path / "state")


def test_new_files_are_found_in_whatever_hour_they_lie(made: ExportedLog, reader: Reader) -> None:
    """Also those of a node that nobody knew; what has no entry is found by the first run of the next day."""
    assert reader.new() == 0
    made.export()
    made.export(hours=(13, 14))
    assert (reader.new(), reader.new(), reader.receipts) == (3, 0, 3)
    made.export(hours=(2, 15))
    made.export(node="b0000002", hours=(1,))
    assert (reader.new(), reader.new(), reader.receipts) == (3, 0, 6)
    (known,) = made.export(hours=(15,))
    root = Path(made.events)
    shutil.copy(root / known, (root / known).with_name("by-hand.parquet"))
    assert reader.new() == 1
    reader.day += 1
    assert (reader.new(), reader.new(), reader.receipts) == (1, 0, 8)


def test_a_file_that_is_listed_before_its_entry_comes_counts_once(made: ExportedLog, reader: Reader) -> None:
    """An exporter that is at work, or was killed there, writes the same range again."""
    made.export()
    made.export(hours=(3, 4), entry_too=False)
    made.export(node="b0000002", entry_too=False)
    assert reader.new() == 4
    made.export(hours=(3, 4))
    made.export(node="b0000002")
    made.export(node="b0000002")
    assert (reader.new(), reader.new(), reader.receipts) == (1, 0, 5)


def test_what_was_removed_or_cut_off_stops_nobody(made: ExportedLog, reader: Reader) -> None:
    """Of an entry whose files are gone the others are read; a log that begins with a later event is read from there."""
    made.export()
    assert reader.new() == 1
    lost, kept = made.export(hours=(3, 4))
    (Path(made.events) / lost).unlink()
    assert (reader.new(), reader.receipts) == (1, 2)
    shutil.rmtree(Path(made.events) / "_ranges")
    made.export(hours=(5,))
    reader.day += 1
    assert (reader.new(), reader.receipts) == (1, 3)
    assert EventLog(None, made.events).listed().positions == {"a0000001": 5}  # type: ignore[arg-type]
    assert kept


def test_many_runs_become_one(
    made: ExportedLog, reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their sum is put in their place, and the names of all files are kept; a sum that was cut off does not count."""
    monkeypatch.setattr("veilmq.pipeline.cell_store.RUNS_MAX", RUNS_MAX)
    for _ in range(RUNS_MAX + 1):
        made.export()
        assert reader.new() == 1
    runs = {int(path.name.removeprefix("run=")) for path in (tmp_path / "state" / "cells").iterdir()}
    assert (max(runs), reader.receipts) == (RUNS_MAX + 2, RUNS_MAX + 1)
    shutil.rmtree(tmp_path / "state" / "runs" / f"run={RUNS_MAX + 2}")
    assert reader.receipts == RUNS_MAX + 1
    reader.day += 1
    assert (reader.new(), reader.receipts) == (0, RUNS_MAX + 1)
    reader.store.merge()
    assert reader.receipts == RUNS_MAX + 1
    assert len(list((tmp_path / "state" / "cells").iterdir())) <= 3


def test_a_store_of_an_earlier_version_goes_on(spark: SparkSession, made: ExportedLog, tmp_path: Path) -> None:
    """It had the URLs of the files and no records."""
    state = tmp_path / "state"
    names = [(f"file://{made.events}/{name}",) for name in made.export(hours=(1, 2))]
    spark.createDataFrame(names, "file string").write.parquet(f"{state}/files/run=3")
    assert CellStore(spark, str(state)).count(made.events) == Counted(files=0, run=4)
    made.export()
    assert CellStore(spark, str(state)).count(made.events) == Counted(files=1, run=5)
