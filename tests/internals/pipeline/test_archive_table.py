"""The archive table: commits, readers, compactions, and kills."""

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyarrow import fs

from tests.conftest import EVERYTHING
from tests.tidy.tree import ROOT
from veilmq.pipeline.archive_table import (
    CONTENT,
    PARTITION,
    SCHEMA,
    WRITER,
    ArchiveFile,
    ArchiveTable,
    FileWriter,
    compact,
)
from veilmq.pipeline.session import PipelineFailed

DAY = date(2026, 1, 2)
AT = datetime(2026, 1, 2, 3, 0, 0, 1_500, UTC)


def rows(ids: Sequence[str], *, day: date = DAY) -> list[dict[str, object]]:
    """Return messages with these ids, sent one second apart."""
    start = AT + (day - DAY)
    return [
        {
            "id": id_,
            "body": f"body of {id_}",
            "attributes": [("Type", "a")],
            "attribute_types": None,
            "group": None,
            "sent_at": start + timedelta(seconds=number),
            "received_at": start + timedelta(seconds=number),
            "receive_count": 1,
            "sequence_number": None,
        }
        for number, id_ in enumerate(ids)
    ]


def written(
    table: ArchiveTable, ids: Sequence[str], *, queue: str = "orders", day: date = DAY, content: pa.Schema = CONTENT
) -> ArchiveFile:
    """Write a file of messages with these ids, without a commit."""
    file = FileWriter(table.place, queue=queue, day=day, content=content)
    file.add(pa.Table.from_pylist(rows(ids, day=day), schema=CONTENT))
    return file.finish()


def fill(table: ArchiveTable, count: int) -> list[str]:
    """Commit batches of one message each, and return the ids."""
    added = [f"m{number:02}" for number in range(count)]
    for number, id_ in enumerate(added):
        assert table.commit(writer="w", batch=number, files=[written(table, [id_])])
    return added


def ids(table: ArchiveTable) -> list[str]:
    """Return the sorted ids that a Delta reader finds."""
    return sorted(DeltaTable(table.location).to_pyarrow_table(columns=["id"])["id"].to_pylist())


PLACES = ["folder", pytest.param("bucket", marks=EVERYTHING)]


@pytest.fixture(params=PLACES)
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    root: str = request.getfixturevalue("bucket") if request.param == "bucket" else str(tmp_path)
    return f"{root}/archive"


@pytest.fixture
def table(location: str) -> ArchiveTable:
    table = ArchiveTable(location)
    table.create()
    return table


def data_files(table: ArchiveTable) -> set[str]:
    """Return the paths of all data files, committed or not."""
    found = table.place.files.get_file_info(fs.FileSelector("", recursive=True, allow_not_found=True))
    return {file.path for file in found if file.extension == "parquet" and not file.path.startswith("_")}


def test_a_file_is_visible_once_it_is_committed(table: ArchiveTable) -> None:
    file = written(table, ["a", "b"])
    assert ids(table) == []
    assert table.commit(writer="w", batch=0, files=[file])
    assert ids(table) == ["a", "b"]


def test_a_batch_is_committed_once(table: ArchiveTable) -> None:
    """The files of a repeated batch are not added; those of another writer are."""
    assert table.commit(writer="w", batch=3, files=[written(table, ["a"])])
    assert not table.commit(writer="w", batch=3, files=[written(table, ["a"])])
    assert not table.commit(writer="w", batch=2, files=[written(table, ["z"])])
    assert table.commit(writer="v", batch=0, files=[written(table, ["b"])])
    assert ids(table) == ["a", "b"]


def test_of_two_concurrent_attempts_at_a_batch_one_commits(
    table: ArchiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second has read the table before the first commit."""
    before = DeltaTable(table.location)
    assert table.commit(writer="w", batch=0, files=[written(table, ["a"])])
    opened = iter([before, DeltaTable(table.location)])
    with monkeypatch.context() as patched:
        patched.setattr(ArchiveTable, "_open", lambda self, version=None: next(opened))
        assert not table.commit(writer="w", batch=0, files=[written(table, ["a"])])
    assert ids(table) == ["a"]


def test_compaction_joins_the_files_of_each_queue_without_changing_rows(table: ArchiveTable) -> None:
    """Readers can still read the old files."""
    fill(table, 6)
    table.commit(writer="w", batch=6, files=[written(table, ["p"], queue="parcels")])
    before, all_ids = table.snapshot().files, ids(table)
    assert compact(table) == 6
    assert sorted((file.queue, file.rows) for file in table.snapshot().files) == [("orders", 6), ("parcels", 1)]
    assert ids(table) == all_ids
    assert data_files(table) > {file.path for file in before}


def test_of_two_concurrent_compactions_one_commits(table: ArchiveTable) -> None:
    """The second is refused even if other writers have committed since."""
    added = fill(table, 4)
    old = table.snapshot()
    joined = written(table, added)
    compact(table)
    table.commit(writer="w", batch=4, files=[written(table, ["m4"])])
    assert not table.replace(writer=WRITER, old=old.files, new=[joined])
    assert ids(table) == [*added, "m4"]


def test_compactions_keep_what_other_programs_change(table: ArchiveTable) -> None:
    """The files that deltalake writes have other Arrow types."""
    added = fill(table, 4)
    old = table.snapshot()
    joined = written(table, added)
    DeltaTable(table.location).optimize.compact()
    assert not table.replace(writer=WRITER, old=old.files, new=[joined])
    DeltaTable(table.location).delete("id = 'm01'")
    table.commit(writer="w", batch=4, files=[written(table, ["m04"])])
    assert compact(table) == 2
    assert ids(table) == ["m00", "m02", "m03", "m04"]


def test_files_of_at_least_half_the_target_size_are_not_compacted(table: ArchiveTable) -> None:
    files = [written(table, [f"m{number}"]) for number in range(5)]
    table.commit(writer="w", batch=0, files=files)
    size = files[0].size_bytes
    assert compact(table, file_bytes=size * 2) == 0
    assert compact(table, file_bytes=size * 2 + 1) == 5
    assert sorted(file.rows for file in table.snapshot().files) == [2, 3]
    assert len(ids(table)) == 5


def test_a_reader_during_commits_and_compactions_sees_each_committed_message_once(table: ArchiveTable) -> None:
    committed: list[str] = []
    done = threading.Event()

    def write() -> None:
        for number in range(20):
            table.commit(writer="w", batch=number, files=[written(table, [f"m{number:02}"])])
            committed.append(f"m{number:02}")
        done.set()

    def join() -> None:
        while not done.is_set():
            compact(table)

    workers = [threading.Thread(target=work) for work in (write, join, join)]
    for worker in workers:
        worker.start()
    reads = 0
    while not done.is_set():
        count_before = len(committed)
        found = ids(table)
        assert found == [f"m{number:02}" for number in range(len(found))]
        assert len(found) >= count_before
        reads += 1
    for worker in workers:
        worker.join()
    assert reads > 1
    assert ids(table) == [f"m{number:02}" for number in range(20)]


def test_a_killed_compaction_changes_no_rows(table: ArchiveTable) -> None:
    added = fill(table, 15)
    version, files = table.snapshot().version, data_files(table)
    program = (
        "import sys; from veilmq.pipeline.archive_table import ArchiveTable, compact; "
        "compact(ArchiveTable(sys.argv[1]))"
    )
    compaction = subprocess.Popen([sys.executable, "-c", program, table.location])
    while compaction.poll() is None and data_files(table) == files:
        pass
    compaction.kill()
    compaction.wait()
    assert table.snapshot().version in (version, version + 1)
    assert ids(table) == added
    compact(table)
    assert ids(table) == added
    assert len(table.snapshot().files) == 1


def test_vacuum_deletes_replaced_and_uncommitted_files_and_keeps_all_others(table: ArchiveTable) -> None:
    added = fill(table, 3)
    written(table, ["m0"])
    checkpoint = table.place / "_checkpoints" / "orders" / "offsets"
    checkpoint.write("0", b"kept")
    (table.place / "reports").write("queue.txt", b"not the archive's")
    compact(table)
    assert table.vacuum(keep_h=1) == 0
    assert table.vacuum(keep_h=0) == 4
    assert checkpoint.read("0") == b"kept"
    assert table.place.read("reports/queue.txt") is not None
    assert ids(table) == added
    assert len(data_files(table)) == 1


def test_an_earlier_version_can_be_read(table: ArchiveTable) -> None:
    """So a restarted replay reads the same files."""
    first = written(table, ["m0"])
    table.commit(writer="w", batch=0, files=[first])
    version = table.snapshot().version
    table.commit(writer="w", batch=1, files=[written(table, ["m1"])])
    assert [file.path for file in table.snapshot(version=version).files] == [first.path]


def test_a_folder_without_a_table_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PipelineFailed, match="veilmq pipeline archive"):
        ArchiveTable(tmp_path).snapshot()


def test_a_folder_that_deltalake_would_decode_is_refused(tmp_path: Path) -> None:
    """The files would be in one folder, and the log in another."""
    with pytest.raises(PipelineFailed, match="without %"):
        ArchiveTable(tmp_path / "a%20b").create()
    assert list(tmp_path.iterdir()) == []


def test_another_delta_table_is_refused_and_not_changed(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"a": [1]}))
    for use in (ArchiveTable(tmp_path).create, ArchiveTable(tmp_path).snapshot):
        with pytest.raises(PipelineFailed, match="is a Delta table that is no archive"):
            use()
    assert DeltaTable(tmp_path).to_pyarrow_table().column_names == ["a"]


def test_readers_skip_files_by_the_statistics_of_the_log(table: ArchiveTable) -> None:
    """The log has minima and maxima of compared columns, with instants rounded outwards to ms; none of bodies."""
    for number, ids_ in enumerate((["a", "b"], ["c", "d"], ["e"])):
        table.commit(writer="w", batch=number, files=[written(table, ids_)])
    found = DeltaTable(table.location).to_pyarrow_dataset()
    assert [len(list(found.get_fragments(filter=ds.field("id") == value))) for value in "ade"] == [1, 1, 1]
    late = ds.field("sent_at") > pa.scalar(AT + timedelta(milliseconds=500))
    assert len(list(found.get_fragments(filter=late))) == 2
    assert sorted(found.to_table(filter=late)["id"].to_pylist()) == ["b", "d"]
    known = pa.table(DeltaTable(table.location).get_add_actions(flatten=True)).to_pylist()
    two = next(row for row in known if row["num_records"] == 2)
    assert two["min.sent_at"] == AT.replace(microsecond=1_000)
    assert two["max.sent_at"] == AT.replace(microsecond=2_000) + timedelta(seconds=1)
    assert (two["null_count.group"], two["null_count.id"], two["min.receive_count"]) == (2, 0, 1)
    assert not any("body" in name for row in known for name, value in row.items() if value is not None)


def test_joined_files_have_the_statistics_of_their_parts(table: ArchiveTable) -> None:
    """They cover all row groups."""
    table.commit(writer="w", batch=0, files=[written(table, ids_) for ids_ in (["b"], ["a"], ["c"])])
    compact(table)
    (joined,) = pa.table(DeltaTable(table.location).get_add_actions(flatten=True)).to_pylist()
    assert (joined["num_records"], joined["min.id"], joined["max.id"]) == (3, "a", "c")


def earlier(location: str) -> ArchiveTable:
    """Return a table of a version without sequence numbers, with a file of that version."""
    table = ArchiveTable(location)
    number = SCHEMA.get_field_index("sequence_number")
    DeltaTable.create(table.location, SCHEMA.remove(number), partition_by=list(PARTITION))
    file = written(table, ["old"], content=CONTENT.remove(CONTENT.get_field_index("sequence_number")))
    assert table.commit(writer="w", batch=0, files=[file])
    return table


def test_an_added_column_is_null_in_older_files(location: str) -> None:
    """Before and after a compaction joins old and new files."""
    table = earlier(location)
    table.create()
    assert table.commit(writer="w", batch=1, files=[written(table, ["new"])])
    for expected_files in (2, 1):
        read = DeltaTable(table.location)
        assert len(read.file_uris()) == expected_files
        assert read.to_pyarrow_table(columns=["sequence_number"])["sequence_number"].to_pylist() == [None, None]
        assert ids(table) == ["new", "old"]
        compact(table)
    before = table.snapshot().version
    table.create()
    assert table.snapshot().version == before, "no column is missing"


def test_a_column_of_a_later_version_is_kept(table: ArchiveTable) -> None:
    """This version writes null, and a compaction keeps the values."""
    later = CONTENT.append(pa.field("colour", pa.string()))
    DeltaTable(table.location).alter.add_columns(Field("colour", PrimitiveType("string")))
    file = FileWriter(table.place, queue="orders", day=DAY, content=later)
    file.add(pa.Table.from_pylist([row | {"colour": "red"} for row in rows(["theirs"])], schema=later))
    table.commit(writer="later", batch=0, files=[file.finish()])
    table.commit(writer="w", batch=0, files=[written(table, ["ours"])])
    assert compact(table) == 2
    found = DeltaTable(table.location).to_pyarrow_table(columns=["id", "colour"]).sort_by("id").to_pylist()
    assert found == [{"id": "ours", "colour": None}, {"id": "theirs", "colour": "red"}]


def test_whole_days_expire(table: ArchiveTable) -> None:
    """Their files leave the table, and ``vacuum`` deletes them."""
    days = [DAY + timedelta(days=number) for number in range(3)]
    files = [written(table, [day.isoformat()], day=day) for day in days]
    table.commit(writer="w", batch=0, files=files)
    assert table.expire(writer=WRITER, before=days[0]) == 0
    assert table.expire(writer=WRITER, before=days[2]) == 2
    assert table.expire(writer=WRITER, before=days[2]) == 0
    assert ids(table) == [days[2].isoformat()]
    assert table.vacuum(keep_h=0) == 2
    assert len(data_files(table)) == 1


def test_streams_of_the_table_skip_compactions(table: ArchiveTable) -> None:
    """Their entries of the log change no data; those of batches and expiries do."""
    fill(table, 2)
    compact(table)
    table.expire(writer=WRITER, before=DAY + timedelta(days=1))
    changes = []
    for version in range(1, 5):
        content = table.place.read(f"_delta_log/{version:020}.json")
        assert content is not None
        actions = [json.loads(line) for line in content.splitlines()]
        changes.append({each["dataChange"] for action in actions for each in action.values() if "dataChange" in each})
    assert changes == [{True}, {True}, {False}, {True}]


def test_a_compaction_does_not_restore_messages_that_expire_meanwhile(table: ArchiveTable) -> None:
    table.commit(writer="w", batch=0, files=[written(table, ["a"]), written(table, ["b"])])
    old = table.snapshot()
    joined = written(table, ["a", "b"])
    assert table.expire(writer=WRITER, before=DAY + timedelta(days=1)) == 2
    assert not table.replace(writer=WRITER, old=old.files, new=[joined])
    assert ids(table) == []


def test_each_commit_of_a_compaction_starts_from_the_present_files(
    table: ArchiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that expire after the first commit are not restored."""
    monkeypatch.setattr("veilmq.pipeline.archive_table.GROUPS_MAX", 1)
    days, replace = [DAY + timedelta(days=number) for number in range(3)], ArchiveTable.replace
    for batch, id_ in enumerate("abc"):
        table.commit(writer="w", batch=batch, files=[written(table, [f"{id_}{day}"], day=day) for day in days])
        assert compact(table) == (0 if batch == 0 else 6)
    table.commit(writer="w", batch=3, files=[written(table, [f"d{day}"], day=day) for day in days])
    with monkeypatch.context() as patched:

        def replace_and_expire(table: ArchiveTable, **named: Any) -> bool:
            patched.undo()
            return replace(table, **named) and table.expire(writer=WRITER, before=days[2] + timedelta(days=1)) > 0

        patched.setattr(ArchiveTable, "replace", replace_and_expire)
        assert compact(table) == 2
    assert ids(table) == []


def test_files_folders_and_entries_of_the_log_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the messages are deleted from the queue; the folder of the table may be new, too."""
    synced: list[Path] = []
    monkeypatch.setattr("veilmq.events.exporter.sync", lambda path: synced.append(path.resolve()))
    table, log = ArchiveTable(tmp_path / "archive"), tmp_path / "archive" / "_delta_log"
    table.create()
    assert synced == [log / f"{0:020}.json", log, tmp_path]
    synced.clear()
    file = written(table, ["a"])
    path = tmp_path / "archive" / file.path
    assert synced == [path, *path.parents[:3]]
    synced.clear()
    table.commit(writer="w", batch=0, files=[file])
    assert synced == [log / f"{1:020}.json", log]


def test_an_error_names_the_location(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(PipelineFailed, match=r"file/archive cannot be used: .+"):
        ArchiveTable(tmp_path / "file" / "archive").create()


def test_concurrent_commits_of_processes_are_all_applied_once(table: ArchiveTable) -> None:
    program = (
        "import sys; from tests.internals.pipeline.test_archive_table import written; "
        "from veilmq.pipeline.archive_table import ArchiveTable; table = ArchiveTable(sys.argv[1]); "
        "[table.commit(writer=sys.argv[2], batch=n, files=[written(table, [f'{sys.argv[2]}-{n}'])]) for n in range(5)]"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", program, table.location, name], cwd=ROOT) for name in ("a", "a", "b")
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert ids(table) == sorted(f"{name}-{number}" for name in "ab" for number in range(5))
    assert table.snapshot().version == 10
