"""The SQLite store: its folder and database, commits and where they run, disk space, closing."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
from contextlib import closing, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import apsw
import pytest

from tests.internals.store.power import Disk, Log, RecordingVFS
from tests.small_disk import MIB, small_file_system
from tests.store.host import QUEUE, Host, hosting
from veilmq.core.commands import Command, CreateQueue, Receive, Send
from veilmq.core.errors import OutcomeUnknown, StoreFull
from veilmq.core.messages import NewMessage
from veilmq.core.topics import ListTopics
from veilmq.store.clock import SystemClock
from veilmq.store.port import execute
from veilmq.store.sqlite import SqliteStore
from veilmq.store.sqlite import database as database_module
from veilmq.store.sqlite import store as sqlite_store
from veilmq.store.sqlite.batch import Batch
from veilmq.store.sqlite.database import (
    DATABASE_NAME,
    Database,
    EngineOptions,
    FolderError,
    locked,
    open_connection,
)
from veilmq.store.sqlite.store import Committer
from veilmq.testing import VirtualClock


def test_opening_a_database_again_changes_nothing(tmp_path: Path) -> None:
    open_connection(tmp_path, EngineOptions()).close()
    before = (tmp_path / DATABASE_NAME).read_bytes()
    open_connection(tmp_path, EngineOptions()).close()
    assert (tmp_path / DATABASE_NAME).read_bytes() == before


def test_tables_are_created_in_one_transaction(tmp_path: Path) -> None:
    """After a power loss at any moment, the next start finds all of them or creates them."""
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


@pytest.mark.parametrize("kind", ["newer", "older", "theirs", "no database", "only a log"])
def test_a_newer_older_or_foreign_database_is_refused_unchanged(tmp_path: Path, kind: str) -> None:
    path = tmp_path / DATABASE_NAME
    expected = "is not a veilmq database: choose another folder"
    version, remedy = {"newer": (99, "install a newer one"), "older": (1, "use the version that created it")}.get(
        kind, (0, "")
    )
    if version:
        open_connection(tmp_path, EngineOptions()).close()
        expected = f"has format {version}.*{remedy}"
    if kind == "only a log":  # SQLite would remove it, and with it the messages
        path.write_bytes(b"")
        (tmp_path / f"{DATABASE_NAME}-wal").write_bytes(b"log")
        expected = r"store\.db is empty, but its log store\.db-wal is not: restore both from a copy"
    elif kind == "no database":
        path.write_bytes(b"not a database at all, but long enough to be looked at" * 100)
    else:
        connection = apsw.Connection(str(path))
        connection.execute(f"PRAGMA user_version = {version}" if version else "CREATE TABLE theirs (x)")
        connection.close()
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(FolderError, match=expected):
        open_connection(tmp_path, EngineOptions())
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_folder_belongs_to_one_process_until_it_dies(tmp_path: Path) -> None:
    script = (
        f"import sys; from pathlib import Path; from {database_module.__name__} import locked\n"
        "with locked(Path(sys.argv[1])): print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        expected = rf"in use by process {other.pid}: stop it, or choose another folder"
        with pytest.raises(FolderError, match=expected), locked(tmp_path):
            pass
        other.kill()
        other.wait(timeout=60)
    with locked(tmp_path):
        pass


def test_a_folder_is_unlocked_even_if_its_pid_file_cannot_be_removed(tmp_path: Path) -> None:
    """On a disk that became read-only, the server must report the store's own failure."""
    (tmp_path / "veilmq.pid").mkdir()
    for _ in range(2):
        with pytest.raises(OSError, match="the disk"), locked(tmp_path):
            raise OSError("the disk")


def test_the_error_names_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FolderError, match="cannot be made"), locked(tmp_path / "file" / "data"):
        pass


def test_every_pragma_applies(tmp_path: Path) -> None:
    """Regardless of SQLite's defaults, a commit waits for one sync (2 is FULL, and MEMORY for temporary tables)."""
    options = EngineOptions(database_pages_max=5_000)
    connection = open_connection(tmp_path, options)
    Database(connection, tmp_path, options=options)
    expected = {
        "journal_mode": "wal",
        "synchronous": 2,
        "journal_size_limit": 67_108_864,
        "cache_size": -61_440,
        "temp_store": 2,
        "auto_vacuum": 2,
        "max_page_count": 5_000,
    }
    assert {name: connection.pragma(name) for name in expected} == expected
    connection.close()


def test_a_long_log_or_freed_pages_cause_one_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "_FREE_PAGES_KEPT", 0)
    options = EngineOptions(free_space_reserve_bytes=0)  # checkpoints the log early
    connection = open_connection(tmp_path, options)
    database = Database(connection, tmp_path, options=options)
    due = []
    for number in range(200):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO setting VALUES (?, ?)", (f"{number}", bytes(20_000)))
        due.append(database.checkpoint_due)
        database.commit()
    assert True in due
    assert (True, True) not in pairwise(due), "not again at the next commit"
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM setting")
    database.commit()
    due = [database.checkpoint_due]
    connection.execute("BEGIN IMMEDIATE")
    assert database.free_pages()
    due.append(database.checkpoint_due)
    database.commit()
    due.append(database.checkpoint_due)
    assert due[1:] == [True, False]
    with closing(apsw.Connection(str(tmp_path / DATABASE_NAME))) as reader:
        reader.execute("BEGIN; SELECT count(*) FROM setting")
        for size_bytes in (6 * MIB, 1):  # the second commit checkpoints the log, up to the reader
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO setting VALUES (?, ?)", (f"{size_bytes}", bytes(size_bytes)))
            database.commit()
        assert database.log_is_long
    connection.close()


@pytest.mark.parametrize(("sync_s", "pages"), [(0.0009, 1_000), (0.001, 4_000)])
def test_slow_syncs_let_the_log_grow_longer(tmp_path: Path, sync_s: float, pages: int) -> None:
    connection = open_connection(tmp_path, EngineOptions())
    database = Database(connection, tmp_path, options=EngineOptions())
    database.usual_sync_s = sync_s
    commits = 0
    while not database.checkpoint_due:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO setting VALUES (?, ?)", (f"{commits}", bytes(400_000)))  # 98 pages
        database.commit()
        commits += 1
    assert commits == pytest.approx(pages / 100, abs=1)
    connection.close()


# Failing commits, the mark of the clock, closing.


SEND = Send(queue=QUEUE, messages=(NewMessage(body="a", size_bytes=1),))


async def opened(folder: Path, fatal: list[BaseException] | None = None) -> SqliteStore:
    store = SqliteStore(folder, clock=SystemClock(), on_fatal=None if fatal is None else fatal.append)
    await execute(store, CreateQueue(queue=QUEUE))
    return store


async def together(store: SqliteStore, *commands: Command) -> list[Any]:
    """Submit the commands for one batch; return their results and errors."""
    return list(await asyncio.gather(*(execute(store, each) for each in commands), return_exceptions=True))


@pytest.fixture(params=[True, False], ids=["in-place", "in-the-thread"])
def commits_in_place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Where all commits but the first one run; the first one runs in place."""
    monkeypatch.setattr(database_module, "QUICK_S", 3_600 if request.param else 1e-9)
    return bool(request.param)


async def test_a_failed_sync_has_an_unknown_outcome_and_stops_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, commits_in_place: bool
) -> None:
    with caplog.at_level(logging.CRITICAL + 1):
        fatal: list[BaseException] = []
        store = await opened(tmp_path, fatal)

        def fail(database: Database) -> None:
            assert (threading.current_thread() is threading.main_thread()) == commits_in_place
            raise apsw.IOError("the sync failed")

        monkeypatch.setattr(Database, "commit", fail)
        errors = await together(store, SEND, SEND)
        assert [type(each) for each in errors] == [OutcomeUnknown] * 2
        assert [str(error) for error in fatal] == ["the sync failed"]
        assert store.has_failed
        with pytest.raises(OutcomeUnknown):
            await execute(store, Receive(queue=QUEUE))
        await store.close()


@pytest.mark.usefixtures("commits_in_place")
async def test_a_commit_to_a_full_disk_is_rolled_back_and_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(tmp_path)
    commit, failures = Database.commit, [apsw.FullError("no room")]

    def fail_once(database: Database) -> None:
        if failures:
            raise failures.pop()
        commit(database)

    monkeypatch.setattr(Database, "commit", fail_once)
    sent, received = await together(store, SEND, Receive(queue=QUEUE))
    assert isinstance(sent, StoreFull)
    assert received.messages == []
    assert len(await execute(store, SEND)) == 1
    await store.close()


@pytest.mark.usefixtures("commits_in_place")
async def test_a_failed_rollback_stops_the_store_and_fails_all_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL + 1):
        fatal: list[BaseException] = []
        store = await opened(tmp_path, fatal)

        def full(database: Database) -> None:
            raise apsw.FullError("no room")

        def broken(*_: object, **__: object) -> None:
            raise apsw.IOError("rollback failed")

        monkeypatch.setattr(Database, "commit", full)
        monkeypatch.setattr(Batch, "roll_back", broken)
        with pytest.raises(OutcomeUnknown):
            await execute(store, SEND)
        assert store.has_failed
        assert [str(error) for error in fatal] == ["rollback failed"]
        monkeypatch.undo()
        await store.close()


async def test_a_damaged_page_stops_the_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Further writes could damage more; other pages are still sound, so the store starts."""
    await (await opened(tmp_path)).close()
    with closing(apsw.Connection(str(tmp_path / DATABASE_NAME))) as connection:
        page_bytes: Any = connection.pragma("page_size")
        pages: Any = connection.execute("SELECT rootpage FROM sqlite_schema WHERE tbl_name = 'topic'").fetchall()
    with (tmp_path / DATABASE_NAME).open("r+b") as file:
        for (page,) in pages:
            file.seek((page - 1) * page_bytes)
            file.write(b"\xff" * page_bytes)
    with caplog.at_level(logging.CRITICAL + 1):
        fatal: list[BaseException] = []
        store = await opened(tmp_path, fatal)
        errors = await together(store, ListTopics(account=""), SEND)
        assert [type(each) for each in errors] == [OutcomeUnknown] * 2
        assert [str(error) for error in fatal] == [
            "The database is damaged: database disk image is malformed. Run `veilmq doctor`, and restore a copy."
        ]
        await store.close()


@pytest.mark.parametrize("name", ["veilmq.lock", "store.db", "store.db-wal"])
async def test_a_removed_or_replaced_file_stops_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Later writes would be lost, or another process could lock the folder.

    Files are still found after the process changes its directory.
    """
    with caplog.at_level(logging.CRITICAL + 1):
        fatal: list[BaseException] = []
        clock = VirtualClock()
        monkeypatch.chdir(tmp_path)
        store = SqliteStore(Path(), clock=clock, on_fatal=fatal.append)
        await execute(store, CreateQueue(queue=QUEUE))
        monkeypatch.chdir("/")
        clock.advance(1_000)
        await execute(store, SEND)
        (tmp_path / name).rename(tmp_path / "moved")
        (tmp_path / name).touch()
        clock.advance(1_000)
        with pytest.raises(OutcomeUnknown):
            await execute(store, SEND)
        assert [str(error) for error in fatal] == [
            f"{tmp_path / name} was removed or replaced while the server used it; start the server again."
        ]
        await store.close()


@pytest.mark.usefixtures("commits_in_place")
@pytest.mark.parametrize("is_full", [False, True])
async def test_no_batch_is_acknowledged_after_its_folder_was_moved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_full: bool
) -> None:
    """If the disk was full, a send in the batch finds that out."""
    with caplog.at_level(logging.CRITICAL + 1):
        fatal: list[BaseException] = []
        store = await opened(tmp_path / "data", fatal)
        store._database.low_disk_space = is_full
        (tmp_path / "data").rename(tmp_path / "moved")
        receive = Receive(queue=QUEUE)
        answers = await asyncio.gather(*(execute(store, each) for each in (SEND, receive)), return_exceptions=True)
        assert [type(each) for each in answers] == [OutcomeUnknown] * 2
        assert "was removed or replaced" in str(fatal)
        await store.close()


@pytest.mark.parametrize(("exists", "left_bytes"), [(False, 0), (False, 72 * 4_096), (True, 0)])
async def test_a_start_on_a_full_disk_reports_a_remedy(tmp_path: Path, exists: bool, left_bytes: int) -> None:
    """There is no space for the first table, the index of the log, or the first key."""
    disk = tmp_path / "disk"
    with small_file_system(disk, size_bytes=4 * MIB):
        if exists:
            await SqliteStore(disk / "data", clock=SystemClock()).close()
        with (disk / "other").open("wb", buffering=0) as other:
            with suppress(OSError):
                while True:
                    other.write(bytes(4_096))
            other.truncate(other.tell() - left_bytes)
        with pytest.raises(FolderError, match="its disk is full: free space, and start again"):
            SqliteStore(disk / "data", clock=SystemClock())


async def test_time_continues_from_the_mark_of_the_last_close(tmp_path: Path) -> None:
    seen = []
    for now_ms, wall_ms in ((1_000, 1_000_000), (3_000, 900_000_000), (4_000, 5)):
        wall_ns, boot_ns = partial(int, wall_ms * 1_000_000), partial(int, now_ms * 1_000_000)
        store = SqliteStore(tmp_path, clock=SystemClock(wall_ns=wall_ns, boot_ns=boot_ns, boot_id="one"))
        await execute(store, CreateQueue(queue=QUEUE))
        seen.append(store.clock.now_ms())
        await store.close()
    assert seen == [1_000_000, 1_002_000, 1_003_000]


async def test_closing_twice_does_not_unlock_the_next_owner(tmp_path: Path) -> None:
    first = await opened(tmp_path)
    await first.close()
    second = await opened(tmp_path)
    await first.close()
    assert (tmp_path / "veilmq.pid").exists()
    await second.close()


async def test_files_are_private_and_the_token_key_is_stored_with_the_data(tmp_path: Path) -> None:
    keys = []
    for name in ("one", "one", "other"):
        store = await opened(tmp_path / name)
        keys.append(store.token_key)
        modes = {path.stat().st_mode & 0o777 for path in (tmp_path / name).glob("store.db*")}
        assert modes == {0o600}
        await store.close()
    assert keys[0] == keys[1] != keys[2]
    assert {len(key) for key in keys} == {32}


# Where commits run.


class TimedDisk:
    """A database and a stopwatch: each commit takes `sync_s`."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sync_s = 0.0002
        self.usual_sync_s = 0.0
        self.checkpoint_due = False
        self.threads: list[threading.Thread] = []

    def commit(self) -> None:
        self.now_s += self.sync_s
        self.threads.append(threading.current_thread())

    def check_space(self) -> None: ...


async def in_place(disk: TimedDisk, committer: Committer, done: asyncio.Queue[object], commits: int) -> int:
    """Make commits; return how many ran in the event loop's thread."""
    disk.threads.clear()
    for _ in range(commits):
        committer.commit()
        assert await done.get() is None
    return sum(thread is threading.current_thread() for thread in disk.threads)


async def test_the_usual_duration_of_a_sync_decides_where_commits_run(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, done = TimedDisk(), asyncio.Queue[object]()
    monkeypatch.setattr(sqlite_store, "stopwatch_s", lambda: disk.now_s)
    committer = Committer(cast(Database, disk), done.put_nowait)
    assert await in_place(disk, committer, done, 100) == 100
    disk.sync_s = 0.02
    assert await in_place(disk, committer, done, 300) <= 2, "on a slow disk, one sync in many blocks the loop"
    disk.sync_s = 0.0002
    await in_place(disk, committer, done, 3_000)
    assert await in_place(disk, committer, done, 100) == 100, "a disk that is fast again is detected"
    disk.checkpoint_due = True
    assert await in_place(disk, committer, done, 3) == 0, "a checkpoint takes long on any disk"
    committer.close()


# Disk space.


def full_file_system(folder: object) -> SimpleNamespace:
    """Return the `statvfs` of a full file system."""
    return SimpleNamespace(f_bavail=0, f_frsize=4_096)


def refuses(host: Host) -> bool:
    try:
        host.send("a")
    except StoreFull:
        return True
    return False


def test_sends_are_accepted_again_when_space_is_freed_without_commits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with hosting(tmp_path / "store") as host:
        host.create()
        with monkeypatch.context() as full:
            full.setattr(os, "statvfs", full_file_system)
            host.engine._database.check_space()
            assert refuses(host)
            assert refuses(host)
        assert not refuses(host)


def test_a_failed_read_of_the_free_space_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(folder: object) -> None:
        raise OSError("gone")

    with hosting(tmp_path / "store") as host, monkeypatch.context() as broken:
        host.create()
        broken.setattr(os, "statvfs", fail)
        assert not refuses(host)


def test_a_store_in_memory_needs_no_disk_space(monkeypatch: pytest.MonkeyPatch) -> None:
    with hosting(None) as host, monkeypatch.context() as full:
        host.create()
        full.setattr(os, "statvfs", full_file_system)
        assert not refuses(host)
