"""The files that a run reads, and the counts of the cell store, with kills, merges and earlier versions."""

import shutil
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.closed import NOON, ExportedLog, row
from veilmq.core.receipts import Outcome
from veilmq.pipeline.event_log import CellStore, EventLog, RunRecord, next_run
from veilmq.pipeline.options import Cluster, TuneOptions
from veilmq.pipeline.session import PipelineFailed, open_session
from veilmq.pipeline.tune import current_counts

DAY_MS = 86_400_000


def log_at(place: str) -> EventLog:
    """Return the log in a folder, which pyarrow can list without Spark."""
    return EventLog(None, place)  # type: ignore[arg-type]


class Reader:
    """A reader with the state of a cell store, whose runs are on ``day``."""

    def __init__(self, place: str) -> None:
        self.last = RunRecord()
        self.day = 20_000
        self.names: list[str] = []
        self.listings = 0
        self.place = place

    def new(self) -> int:
        """Run, and return the number of new files; assert that none was found before."""
        new, record = next_run(self.last, log_at(self.place), at_ms=self.day * DAY_MS, counted=self._counted)
        assert not {*self.names} & {*new}
        self.names += new
        self.last = record
        return len(new)

    def _counted(self) -> list[str]:
        self.listings += 1
        return self.names


@pytest.fixture
def log(tmp_path: Path) -> ExportedLog:
    exported = ExportedLog(tmp_path / "a log")
    Path(exported.events).mkdir(parents=True)
    return exported


@pytest.fixture
def reader(log: ExportedLog) -> Reader:
    return Reader(log.events)


def test_new_files_of_any_hour_and_node_are_found(log: ExportedLog, reader: Reader) -> None:
    """The first run of a day also finds files without an entry."""
    assert (reader.new(), reader.last) == (0, RunRecord())
    log.export()
    log.export(hours=(13, 14))
    assert (reader.new(), reader.new()) == (3, 0)
    log.export(hours=(2, 15))
    log.export(node="b0000002", hours=(1,))
    assert (reader.new(), reader.new()) == (3, 0)
    (known,) = log.export(hours=(15,))
    root = Path(log.events)
    shutil.copy(root / known, (root / known).with_name("by-hand.parquet"))
    listings = reader.listings
    assert (reader.new(), reader.listings) == (1, listings)
    reader.day += 1
    assert (reader.new(), reader.listings) == (1, listings + 1)
    assert (reader.new(), reader.last.run) == (0, 4)


def test_a_file_listed_before_its_entry_counts_once(log: ExportedLog, reader: Reader) -> None:
    """A killed exporter writes the same range again."""
    log.export()
    log.export(hours=(3, 4), entry_too=False)
    log.export(node="b0000002", entry_too=False)
    assert reader.new() == 4
    log.export(hours=(3, 4))
    log.export(node="b0000002")
    log.export(node="b0000002")
    assert (reader.new(), reader.new(), reader.last.ahead) == (1, 0, ())


def test_a_range_exported_during_the_listing_counts_once(
    log: ExportedLog, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The half-written file of a killed exporter is no file of the log."""
    (known,) = log.export()
    (Path(log.events) / known).with_name("_torn.parquet.0badcafe.tmp").touch()
    list_names = EventLog._names

    def list_and_export(self: EventLog) -> set[str]:
        names = list_names(self)
        log.export()
        return names

    with monkeypatch.context() as patched:
        patched.setattr(EventLog, "_names", list_and_export)
        assert reader.new() == 2
    assert reader.new() == 0


def test_removed_files_and_entries_are_skipped(log: ExportedLog, reader: Reader) -> None:
    """The log may begin with a later event."""
    log.export()
    assert reader.new() == 1
    lost, kept = log.export(hours=(3, 4))
    (Path(log.events) / lost).unlink()
    assert reader.new() == 1
    assert reader.names[-1] == kept
    shutil.rmtree(Path(log.events) / "_ranges")
    log.export(hours=(5,))
    reader.day += 1
    assert reader.new() == 1
    assert reader.last.positions == {"a0000001": 5}


def test_a_run_without_new_files_is_recorded_only_if_it_is_the_first_of_a_day(log: ExportedLog, reader: Reader) -> None:
    log.export()
    assert (reader.new(), reader.last.run) == (1, 1)
    reader.day += 1
    assert (reader.new(), reader.new()) == (0, 0)
    assert (reader.last.run, reader.listings) == (2, 2)


def test_another_log_is_listed(log: ExportedLog, reader: Reader, tmp_path: Path) -> None:
    log.export()
    assert reader.new() == 1
    other = ExportedLog(tmp_path / "another")
    other.export(hours=(7,))
    at_ms, other_log = reader.day * DAY_MS, log_at(other.events)
    new, record = next_run(reader.last, other_log, at_ms=at_ms, counted=lambda: reader.names)
    assert (len(new), record.listed) == (1, f"2024-10-04 {other_log.root}")


def test_files_counted_by_an_earlier_version_are_recognised(log: ExportedLog, reader: Reader) -> None:
    """It stored their URLs, and instead of a record only the number of the last run."""
    reader.names = [f"file://{log.events}/{name}" for name in log.export(hours=(1, 2))]
    reader.last = RunRecord(run=3)
    assert (reader.new(), reader.last.run) == (0, 4)
    log.export()
    assert (reader.new(), reader.last.run) == (1, 5)


def test_the_target_of_the_export_names_the_same_log(log: ExportedLog, reader: Reader) -> None:
    """Earlier versions listed it, and counted its files by paths below it."""
    reader.names = [f"receipt_closed/{name}" for name in log.export(hours=(1, 2))]
    reader.last = RunRecord(run=1, listed=f"1970-01-01 {Path(log.events).parent}")
    reader.place = str(Path(log.events).parent)
    assert reader.new() == 0
    log.export()
    reader.place = log.events
    assert reader.new() == 1


TODAY_MS, TOMORROW_MS = 20_000 * DAY_MS, 20_001 * DAY_MS
RUNS_MERGED = 2


def receipts(store: CellStore) -> int:
    counted = store.cells().where("axis = 'held'").agg({"n": "sum"}).first()
    assert counted is not None
    return counted[0] or 0


def test_runs_count_each_file_once_and_are_merged(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed run, and a killed merge, do not count and are repeated."""
    monkeypatch.setattr("veilmq.pipeline.event_log.RUNS_MAX", RUNS_MERGED)
    log, state = ExportedLog(tmp_path / "a log"), tmp_path / "state"
    store = CellStore(spark, str(state))
    assert store.count(log.events, at_ms=TODAY_MS) == 0
    log.export()
    assert store.count(log.events, at_ms=TODAY_MS) == 1
    log.export(hours=(13, 14))
    assert store.count(log.events, at_ms=TODAY_MS) == 2
    shutil.rmtree(state / "runs" / "run=2")  # like a kill before the last step
    assert receipts(store) == 1
    assert store.count(log.events, at_ms=TODAY_MS) == 2
    assert receipts(store) == 3
    log.export()
    assert store.count(log.events, at_ms=TODAY_MS) == 1
    runs = {int(path.name.removeprefix("run=")) for path in (state / "cells").iterdir()}
    assert (max(runs), receipts(store)) == (4, 4)
    shutil.rmtree(state / "runs" / "run=4")
    assert receipts(store) == 4
    assert store.count(log.events, at_ms=TOMORROW_MS) == 0
    assert store._last().run == 5, "the listing of the day is a run, and the merge is repeated"
    assert receipts(store) == 4
    store.merge()
    assert receipts(store) == 4
    assert len(list((state / "cells").iterdir())) <= 3


def test_a_corrupt_file_is_named(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the run, which counts nothing."""
    monkeypatch.setattr("veilmq.pipeline.session._connect", lambda cluster: MagicMock())
    log, store = ExportedLog(tmp_path / "a log"), CellStore(spark, str(tmp_path / "state"))
    log.export()
    (Path(log.events) / "torn.parquet").write_bytes(b"PAR1")
    with (
        pytest.raises(PipelineFailed, match=r"^RuntimeException: .*torn\.parquet is not a Parquet file"),
        open_session("x", Cluster(remote="sc://host")),
    ):
        store.count(log.events)
    assert receipts(store) == 0


def test_outcomes_of_a_later_version_do_not_count(spark: SparkSession, tmp_path: Path) -> None:
    log, store = ExportedLog(tmp_path / "a log"), CellStore(spark, str(tmp_path / "state"))
    later = row(Outcome.DELETED, 1_000)
    rows = [tuple("handed_over" if each == "deleted" else each for each in later), later]
    log.export_rows(rows, node="a0000001")
    store.count(log.events)
    assert [each.first.receipts for each in current_counts(store.cells(), TuneOptions())] == [1.0]


def test_receipts_with_dates_in_the_future_do_not_count_yet(spark: SparkSession, tmp_path: Path) -> None:
    """Weights count from the latest day: one such receipt would leave the others without weight for years."""
    log, store = ExportedLog(tmp_path / "a log"), CellStore(spark, str(tmp_path / "state"))
    log.export()
    later = [row(Outcome.DELETED, 1_000, received_at=NOON.replace(year=9_999), node="fast")]
    log.export_rows(later, node="fast")
    assert store.count(log.events, at_ms=TODAY_MS) == 2
    assert receipts(store) == store.waits().count() == 1
    assert [each.first.receipts for each in current_counts(store.cells(), TuneOptions())] == [1.0]
