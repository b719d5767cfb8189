"""The table of the archive: what is committed counts once, and compaction changes nothing for a reader."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from veilmq.pipeline.archive_table import CONTENT, ArchiveFile, ArchiveTable
from veilmq.pipeline.failures import PipelineFailed

DAY = date(2026, 1, 2)


def written(table: ArchiveTable, name: str, ids: Sequence[str], *, queue: str = "orders") -> ArchiveFile:
    """Write a file of messages with these `ids` into the folder of `table`."""
    at = datetime(2026, 1, 2, 3, tzinfo=UTC)
    rows = [
        {
            "id": id_,
            "body": f"body of {id_}",
            "attributes": [("Type", "a")],
            "attribute_types": None,
            "group": None,
            "sent_at": at,
            "received_at": at,
            "receive_count": 1,
            "sequence_number": None,
        }
        for id_ in ids
    ]
    path = f"queue={queue}/date={DAY}/{name}.parquet"
    file = table.folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=CONTENT), file)
    return ArchiveFile(path=path, queue=queue, day=DAY, rows=len(ids), size_bytes=file.stat().st_size, written_at_ms=0)


def ids(table: ArchiveTable) -> list[str]:
    """Return the ids in the table as any reader of Delta tables sees them, in order."""
    return sorted(DeltaTable(table.folder).to_pyarrow_table(columns=["id"])["id"].to_pylist())


@pytest.fixture
def table(tmp_path: Path) -> ArchiveTable:
    """Return an empty table."""
    made = ArchiveTable(tmp_path / "archive")
    made.create()
    return made


def test_a_file_counts_when_it_is_committed(table: ArchiveTable) -> None:
    """Before that nobody sees it."""
    file = written(table, "f", ["a", "b"])
    assert ids(table) == []
    assert table.commit(writer="w", batch=0, files=[file])
    assert ids(table) == ["a", "b"]


def test_a_batch_is_committed_once(table: ArchiveTable) -> None:
    """A repeated batch brings other files, which do not count; those of another writer do."""
    assert table.commit(writer="w", batch=3, files=[written(table, "first", ["a"])])
    assert not table.commit(writer="w", batch=3, files=[written(table, "again", ["a"])])
    assert not table.commit(writer="w", batch=2, files=[written(table, "before", ["z"])])
    assert table.commit(writer="v", batch=0, files=[written(table, "other", ["b"])])
    assert ids(table) == ["a", "b"]


def test_two_attempts_at_a_batch_at_the_same_time(table: ArchiveTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that comes second, having looked before the first, finds out when it commits."""
    before = DeltaTable(table.folder)
    assert table.commit(writer="w", batch=0, files=[written(table, "first", ["a"])])
    opened = iter([before, DeltaTable(table.folder)])
    monkeypatch.setattr(ArchiveTable, "_open", lambda self, version=None: next(opened))
    assert not table.commit(writer="w", batch=0, files=[written(table, "second", ["a"])])
    monkeypatch.undo()
    assert ids(table) == ["a"]


def test_compaction_changes_no_row(table: ArchiveTable) -> None:
    """Fewer files, the same rows, each queue for itself; a reader that knows the old files still has them."""
    for number in range(6):
        table.commit(writer="w", batch=number, files=[written(table, f"f{number}", [f"m{number}"])])
    table.commit(writer="w", batch=6, files=[written(table, "p", ["p"], queue="parcels")])
    before, rows = table.files(), ids(table)
    done = table.compact()
    assert (done.removed, done.added) == (6, 1)
    assert len(table.files()) == 2
    assert ids(table) == rows
    assert all(Path(file).exists() for file in before)
    assert table.files(queues=["parcels"]) == [str(table.folder / f"queue=parcels/date={DAY}/p.parquet")]


def test_a_commit_goes_through_beside_a_compaction(table: ArchiveTable) -> None:
    """Both change the log; neither loses the other's rows."""
    for number in range(4):
        table.commit(writer="w", batch=number, files=[written(table, f"f{number}", [f"m{number}"])])
    behind = DeltaTable(table.folder)
    table.commit(writer="w", batch=4, files=[written(table, "f4", ["m4"])])
    behind.optimize.compact()
    assert ids(table) == [f"m{number}" for number in range(5)]


def test_a_reader_beside_commits_and_compactions_sees_each_message_once(table: ArchiveTable) -> None:
    """All that is committed before it looks, and nothing twice, at whatever moment it looks."""
    committed: list[str] = []
    done = threading.Event()

    def write() -> None:
        for number in range(40):
            table.commit(writer="w", batch=number, files=[written(table, f"f{number}", [f"m{number:02}"])])
            committed.append(f"m{number:02}")
        done.set()

    def compact() -> None:
        while not done.is_set():
            table.compact()

    workers = [threading.Thread(target=work) for work in (write, compact, compact)]
    for worker in workers:
        worker.start()
    looks = 0
    while not done.is_set():
        sure = list(committed)
        seen = ids(table)
        assert seen == [f"m{number:02}" for number in range(len(seen))]
        assert len(seen) >= len(sure)
        looks += 1
    for worker in workers:
        worker.join()
    assert looks > 1
    assert ids(table) == [f"m{number:02}" for number in range(40)]


def test_a_killed_compaction_changes_nothing(table: ArchiveTable, tmp_path: Path) -> None:
    """Its files are not named by the log, wherever it stood."""
    for number in range(30):
        table.commit(writer="w", batch=number, files=[written(table, f"f{number}", [f"m{number:02}"])])
    version, files = table.version, set(table.folder.rglob("*.parquet"))
    program = "import sys; from veilmq.pipeline.archive_table import ArchiveTable; ArchiveTable(sys.argv[1]).compact()"
    compaction = subprocess.Popen([sys.executable, "-c", program, str(table.folder)])
    while compaction.poll() is None and set(table.folder.rglob("*.parquet")) == files:
        pass
    compaction.kill()
    compaction.wait()
    assert table.version in (version, version + 1)
    assert ids(table) == [f"m{number:02}" for number in range(30)]
    table.compact()
    assert ids(table) == [f"m{number:02}" for number in range(30)]
    assert len(table.files()) == 1


def test_vacuum_takes_what_does_not_count(table: ArchiveTable) -> None:
    """Replaced files and left-over ones, and no others."""
    for number in range(3):
        table.commit(writer="w", batch=number, files=[written(table, f"f{number}", [f"m{number}"])])
    written(table, "left-over", ["m0"])
    table.compact()
    assert table.vacuum(keep_h=1) == 0
    assert table.vacuum(keep_h=0) == 4
    assert ids(table) == ["m0", "m1", "m2"]
    assert len(list(table.folder.rglob("*.parquet"))) == 1


def test_an_earlier_version_can_be_read(table: ArchiveTable) -> None:
    """A replay reads the same files however often it is started again."""
    table.commit(writer="w", batch=0, files=[written(table, "f0", ["m0"])])
    version = table.version
    table.commit(writer="w", batch=1, files=[written(table, "f1", ["m1"])])
    assert [Path(file).stem for file in table.files(version=version)] == ["f0"]


def test_a_folder_without_a_table_is_told(tmp_path: Path) -> None:
    """Reading it says what makes one."""
    with pytest.raises(PipelineFailed, match="veilmq pipeline archive"):
        ArchiveTable(tmp_path).files()
