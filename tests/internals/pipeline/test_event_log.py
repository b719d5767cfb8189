"""Which files a run reads, and what the store of cells has counted, through kills, merges and versions."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.closed import NOON, ExportedLog, row
from veilmq.core.receipts import Outcome
from veilmq.pipeline.event_log import CellStore, EventLog, RunRecord, next_run
from veilmq.pipeline.options import TuneOptions
from veilmq.pipeline.tune import known

DAY_MS = 86_400_000


def log_at(place: str) -> EventLog:
    """Return the log in a folder, which pyarrow lists, so that there is no Spark."""
    return EventLog(None, place)  # type: ignore[arg-type]


class Reader:
    """A reader that keeps what a store of cells keeps, and that runs on one day or the next."""

    def __init__(self, place: str) -> None:
        self.last = RunRecord()
        self.day = 20_000
        self.names: list[str] = []
        self.listings = 0
        self._place = place

    def new(self) -> int:
        """Return how many files a run has found, none of them for the second time."""
        new, record = next_run(self.last, log_at(self._place), at_ms=self.day * DAY_MS, counted=self._counted)
        assert not {*self.names} & {*new}
        self.names += new
        self.last = record
        return len(new)

    def _counted(self) -> list[str]:
        self.listings += 1
        return self.names


@pytest.fixture
def made(tmp_path: Path) -> ExportedLog:
    log = ExportedLog(tmp_path / "a log")
    Path(log.events).mkdir(parents=True)
    return log


@pytest.fixture
def reader(made: ExportedLog) -> Reader:
    return Reader(made.events)


def test_new_files_are_found_in_whatever_hour_they_lie(made: ExportedLog, reader: Reader) -> None:
    """Also those of a new node; the first run of the next day finds what has no entry."""
    assert (reader.new(), reader.last) == (0, RunRecord())
    made.export()
    made.export(hours=(13, 14))
    assert (reader.new(), reader.new()) == (3, 0)
    made.export(hours=(2, 15))
    made.export(node="b0000002", hours=(1,))
    assert (reader.new(), reader.new()) == (3, 0)
    (known,) = made.export(hours=(15,))
    root = Path(made.events)
    shutil.copy(root / known, (root / known).with_name("by-hand.parquet"))
    listings = reader.listings
    assert (reader.new(), reader.listings) == (1, listings)
    reader.day += 1
    assert (reader.new(), reader.listings) == (1, listings + 1)
    assert (reader.new(), reader.last.run) == (0, 4)


def test_a_file_that_is_listed_before_its_entry_comes_counts_once(made: ExportedLog, reader: Reader) -> None:
    """An exporter that is at work, or was killed there, writes the same range again."""
    made.export()
    made.export(hours=(3, 4), entry_too=False)
    made.export(node="b0000002", entry_too=False)
    assert reader.new() == 4
    made.export(hours=(3, 4))
    made.export(node="b0000002")
    made.export(node="b0000002")
    assert (reader.new(), reader.new(), reader.last.ahead) == (1, 0, ())


def test_what_was_removed_or_cut_off_stops_nobody(made: ExportedLog, reader: Reader) -> None:
    """Of an entry whose files are gone the others are read; a log that begins with a later event is read from there."""
    made.export()
    assert reader.new() == 1
    lost, kept = made.export(hours=(3, 4))
    (Path(made.events) / lost).unlink()
    assert reader.new() == 1
    assert reader.names[-1] == kept
    shutil.rmtree(Path(made.events) / "_ranges")
    made.export(hours=(5,))
    reader.day += 1
    assert reader.new() == 1
    assert reader.last.positions == {"a0000001": 5}


def test_a_run_that_finds_nothing_is_kept_if_it_is_the_first_of_a_day(made: ExportedLog, reader: Reader) -> None:
    made.export()
    assert (reader.new(), reader.last.run) == (1, 1)
    reader.day += 1
    assert (reader.new(), reader.new()) == (0, 0)
    assert (reader.last.run, reader.listings) == (2, 2)


def test_another_log_is_listed(made: ExportedLog, reader: Reader, tmp_path: Path) -> None:
    made.export()
    assert reader.new() == 1
    other = ExportedLog(tmp_path / "another")
    other.export(hours=(7,))
    at_ms, log = reader.day * DAY_MS, log_at(other.events)
    new, record = next_run(reader.last, log, at_ms=at_ms, counted=lambda: reader.names)
    assert (len(new), record.listed) == (1, f"2024-10-04 {log.root}")


def test_names_of_an_earlier_version_are_known(made: ExportedLog, reader: Reader) -> None:
    """They are the URLs of the files, and there is no record, only the number of the last run."""
    reader.names = [f"file://{made.events}/{name}" for name in made.export(hours=(1, 2))]
    reader.last = RunRecord(run=3)
    assert (reader.new(), reader.last.run) == (0, 4)
    made.export()
    assert (reader.new(), reader.last.run) == (1, 5)


TODAY_MS, TOMORROW_MS = 20_000 * DAY_MS, 20_001 * DAY_MS
RUNS_MERGED = 2


def receipts(store: CellStore) -> int:
    counted = store.cells().where("axis = 'held'").agg({"n": "sum"}).first()
    assert counted is not None
    return counted[0] or 0


def test_runs_count_each_file_once_and_become_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was killed before its end is repeated; a sum that was cut off does not count, and is made again."""
    monkeypatch.setattr("veilmq.pipeline.event_log.RUNS_MAX", RUNS_MERGED)
    made, state = ExportedLog(tmp_path / "a log"), tmp_path / "state"
    store = CellStore(spark, str(state))
    assert store.count(made.events, at_ms=TODAY_MS) == 0
    made.export()
    assert store.count(made.events, at_ms=TODAY_MS) == 1
    made.export(hours=(13, 14))
    assert store.count(made.events, at_ms=TODAY_MS) == 2
    shutil.rmtree(state / "runs" / "run=2")  # what a kill before the last step leaves
    assert receipts(store) == 1
    assert store.count(made.events, at_ms=TODAY_MS) == 2
    assert receipts(store) == 3
    made.export()
    assert store.count(made.events, at_ms=TODAY_MS) == 1
    runs = {int(path.name.removeprefix("run=")) for path in (state / "cells").iterdir()}
    assert (max(runs), receipts(store)) == (4, 4)
    shutil.rmtree(state / "runs" / "run=4")
    assert receipts(store) == 4
    assert store.count(made.events, at_ms=TOMORROW_MS) == 0
    assert store._last().run == 5, "the day's listing is a run, and the sum is made again"
    assert receipts(store) == 4
    store.merge()
    assert receipts(store) == 4
    assert len(list((state / "cells").iterdir())) <= 3


def test_receipts_of_a_clock_that_was_years_fast_wait_until_their_day_comes(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Weights count from the latest day: one such receipt would leave all others none, for years."""
    made, store = ExportedLog(tmp_path / "a log"), CellStore(spark, str(tmp_path / "state"))
    made.export()
    later = [row(Outcome.DELETED, 1_000, received_at=NOON.replace(year=9_999), node="fast")]
    made.export_rows(later, node="fast")
    assert store.count(made.events, at_ms=TODAY_MS) == 2
    assert receipts(store) == store.waits().count() == 1
    assert [each.first.receipts for each in known(store.cells(), TuneOptions())] == [1.0]
