"""The data folder: one owner, one format, clear words for what cannot be used; its database, set up as it should be."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import apsw
import pytest

from tests.internals.store.power import Disk, Log, RecordingVFS
from veilmq.store.sqlite import database as folders
from veilmq.store.sqlite.database import (
    DATABASE_NAME,
    Database,
    EngineOptions,
    FolderError,
    FolderLock,
    open_connection,
)


def test_a_second_opening_changes_nothing(tmp_path: Path) -> None:
    open_connection(tmp_path, EngineOptions()).close()
    before = (tmp_path / DATABASE_NAME).read_bytes()
    open_connection(tmp_path, EngineOptions()).close()
    assert (tmp_path / DATABASE_NAME).read_bytes() == before


def test_tables_are_made_in_one_transaction(tmp_path: Path) -> None:
    """Wherever the power goes meanwhile, the next start has all of them or makes them."""
    log = Log()
    vfs = RecordingVFS("making", log)
    (tmp_path / "made").mkdir()
    open_connection(tmp_path / "made", EngineOptions(vfs="making")).close()
    vfs.unregister()
    disk = Disk()
    changes = set(log.changes())
    for number, entry in enumerate(log.entries):
        disk.play(entry)
        if number in changes:
            left = tmp_path / str(number)
            disk.lose_power(left, torn=None)
            connection = open_connection(left, EngineOptions())
            assert connection.execute("SELECT count(*) FROM progress").get == 1
            connection.close()


@pytest.mark.parametrize("kind", ["newer", "older", "theirs", "no database"])
def test_what_is_newer_older_or_not_ours_is_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / DATABASE_NAME
    wanted = "is not a veilmq database: choose another folder"
    version, remedy = {"newer": (99, "install a newer one"), "older": (1, "use the version that created it")}.get(
        kind, (0, "")
    )
    if version:
        open_connection(tmp_path, EngineOptions()).close()
        wanted = f"has format {version}.*{remedy}"
    if kind == "no database":
        path.write_bytes(b"not a database at all, but long enough to be looked at" * 100)
    else:
        connection = apsw.Connection(str(path))
        connection.execute(f"PRAGMA user_version = {version}" if version else "CREATE TABLE theirs (x)")
        connection.close()
    before = path.read_bytes()
    with pytest.raises(FolderError, match=wanted):
        open_connection(tmp_path, EngineOptions())
    assert path.read_bytes() == before


def test_one_process_a_folder_and_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    script = (
        f"import sys; from pathlib import Path; from {folders.__name__} import FolderLock\n"
        "lock = FolderLock(Path(sys.argv[1])); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(FolderError, match=rf"in use by process {other.pid}: stop it, or choose another folder"):
            FolderLock(tmp_path)
        other.kill()
        other.wait(timeout=10)
    FolderLock(tmp_path).release()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FolderError, match="cannot be made"):
        FolderLock(tmp_path / "file" / "data")


def test_every_pragma_is_in_force(tmp_path: Path) -> None:
    """Whatever SQLite's defaults are: a commit is one sync, and waits for it (2: FULL; of temporary tables: MEMORY)."""
    options = EngineOptions(database_pages_max=5_000)
    connection = open_connection(tmp_path, options)
    database = Database(connection, tmp_path, options=options)
    wanted = {
        "journal_mode": "wal",
        "synchronous": 2,
        "journal_size_limit": 67_108_864,
        "cache_size": -65_536,
        "temp_store": 2,
        "auto_vacuum": 2,
        "max_page_count": 5_000,
    }
    assert {name: connection.pragma(name) for name in wanted} == wanted
    database.close()


def test_the_log_is_moved_once_when_it_is_long_and_when_pages_were_given_back(tmp_path: Path) -> None:
    options = EngineOptions(free_space_reserve_bytes=0)  # the shortest log
    connection = open_connection(tmp_path, options)
    database = Database(connection, tmp_path, options=options)
    moving = []
    for number in range(200):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO setting VALUES (?, ?)", (f"{number}", bytes(20_000)))
        moving.append(database.moves_log)
        database.commit()
    assert True in moving
    assert (True, True) not in pairwise(moving), "not again at the next commit"
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM setting")
    database.commit()
    moving = [database.moves_log]
    connection.execute("BEGIN IMMEDIATE")
    assert database.give_back(1, kept=0)
    moving.append(database.moves_log)
    database.commit()
    moving.append(database.moves_log)
    assert moving[1:] == [True, False]
    database.close()
