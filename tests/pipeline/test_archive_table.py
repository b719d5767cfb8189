"""The table of the archive: what is committed counts once, and compaction changes nothing for a reader."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.pipeline.archived_file import written
from veilmq.pipeline.archive_compaction import WRITER, Compaction, compact
from veilmq.pipeline.archive_table import ArchiveTable
from veilmq.pipeline.failures import PipelineFailed


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
    before, rows = table.snapshot().files, ids(table)
    done = compact(table)
    assert (done.removed, done.added) == (6, 1)
    assert sorted((file.queue, file.rows) for file in table.snapshot().files) == [("orders", 6), ("parcels", 1)]
    assert ids(table) == rows
    assert all((table.folder / file.path).exists() for file in before)


def test_two_compactions_do_not_take_the_same_files(table: ArchiveTable) -> None:
    """The second one to commit has its turn refused, also when others committed since."""
    for number in range(4):
        table.commit(writer="w", batch=number, files=[written(table, f"f{number}", [f"m{number}"])])
    behind = table.snapshot(writers=[WRITER])
    joined = written(table, "joined", [f"m{number}" for number in range(4)])
    compact(table)
    table.commit(writer="w", batch=4, files=[written(table, "f4", ["m4"])])
    assert not table.replace(writer=WRITER, old=behind.files, new=[joined], since=behind)
    assert ids(table) == [f"m{number}" for number in range(5)]


def test_large_files_are_left_alone(table: ArchiveTable) -> None:
    """What is at least half as long as a file should be is not written again and again."""
    files = [written(table, f"f{number}", [f"m{number}"]) for number in range(5)]
    table.commit(writer="w", batch=0, files=files)
    size = files[0].size_bytes
    assert compact(table, file_bytes=size * 2) == Compaction(removed=0, added=0)
    assert compact(table, file_bytes=size * 2 + 1) == Compaction(removed=5, added=2)  # three and two
    assert len(ids(table)) == 5


def test_a_reader_beside_commits_and_compactions_sees_each_message_once(table: ArchiveTable) -> None:
    """All that is committed before it looks, and nothing twice, at whatever moment it looks."""
    committed: list[str] = []
    done = threading.Event()

    def write() -> None:
        for number in range(40):
            table.commit(writer="w", batch=number, files=[written(table, f"f{number}", [f"m{number:02}"])])
            committed.append(f"m{number:02}")
        done.set()

    def join() -> None:
        while not done.is_set():
            compact(table)

    workers = [threading.Thread(target=work) for work in (write, join, join)]
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
    version, files = table.snapshot().version, set(table.folder.rglob("*.parquet"))
    program = (
        "import sys; from veilmq.pipeline.archive_compaction import compact; "
        "from veilmq.pipeline.archive_table import ArchiveTable; compact(ArchiveTable(sys.argv[1]))"
    )
    compaction = subprocess.Popen([sys.executable, "-c", program, str(table.folder)])
    while compaction.poll() is None and set(table.folder.rglob("*.parquet")) == files:
        pass
    compaction.kill()
    compaction.wait()
    assert table.snapshot().version in (version, version + 1)
    assert ids(table) == [f"m{number:02}" for number in range(30)]
    compact(table)
    assert ids(table) == [f"m{number:02}" for number in range(30)]
    assert len(table.snapshot().files) == 1


def test_vacuum_takes_what_does_not_count(table: ArchiveTable) -> None:
    """Replaced files and left-over ones, and no others: not the checkpoints that lie beside them."""
    for number in range(3):
        table.commit(writer="w", batch=number, files=[written(table, f"f{number}", [f"m{number}"])])
    written(table, "left-over", ["m0"])
    checkpoint = table.folder / "_checkpoints" / "orders" / "offsets" / "0"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_text("kept")
    compact(table)
    assert table.vacuum(keep_h=1) == 0
    assert table.vacuum(keep_h=0) == 4
    assert checkpoint.read_text() == "kept"
    assert ids(table) == ["m0", "m1", "m2"]
    assert len(list(table.folder.rglob("*.parquet"))) == 1


def test_an_earlier_version_can_be_read(table: ArchiveTable) -> None:
    """A replay reads the same files however often it is started again."""
    table.commit(writer="w", batch=0, files=[written(table, "f0", ["m0"])])
    version = table.snapshot().version
    table.commit(writer="w", batch=1, files=[written(table, "f1", ["m1"])])
    assert [Path(file.path).stem for file in table.snapshot(version=version).files] == ["f0"]


def test_a_folder_without_a_table_is_told(tmp_path: Path) -> None:
    """Reading it says what makes one."""
    with pytest.raises(PipelineFailed, match="veilmq pipeline archive"):
        ArchiveTable(tmp_path).snapshot()
