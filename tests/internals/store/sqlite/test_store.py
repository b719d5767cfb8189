"""The store on SQLite: its folder, its database, commits and where they are made, room on the disk, closing."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
from contextlib import suppress
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
from veilmq.store.clock import SystemClock
from veilmq.store.port import execute
from veilmq.store.sqlite import SqliteStore
from veilmq.store.sqlite import database as folders
from veilmq.store.sqlite import store as sqlite_store
from veilmq.store.sqlite.batch import Batch
from veilmq.store.sqlite.database import (
    DATABASE_NAME,
    Database,
    EngineOptions,
    FolderError,
    FolderLock,
    open_connection,
)
from veilmq.store.sqlite.store import Committer
from veilmq.testing import VirtualClock


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
    with FolderLock(tmp_path):
        pass


def test_a_folder_is_let_go_of_whether_or_not_the_hint_for_people_can_be_removed(tmp_path: Path) -> None:
    """On a disk that is read-only since an error, the store's own failure is what the server must end with."""
    (tmp_path / "veilmq.pid").mkdir()
    for _ in range(2):
        with pytest.raises(OSError, match="the disk"), FolderLock(tmp_path):
            raise OSError("the disk")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FolderError, match="cannot be made"):
        FolderLock(tmp_path / "file" / "data")


def test_every_pragma_is_in_force(tmp_path: Path) -> None:
    """Whatever SQLite's defaults are: a commit is one sync, and waits for it (2: FULL; of temporary tables: MEMORY)."""
    options = EngineOptions(database_pages_max=5_000)
    connection = open_connection(tmp_path, options)
    Database(connection, tmp_path, options=options)
    wanted = {
        "journal_mode": "wal",
        "synchronous": 2,
        "journal_size_limit": 67_108_864,
        "cache_size": -61_440,
        "temp_store": 2,
        "auto_vacuum": 2,
        "max_page_count": 5_000,
    }
    assert {name: connection.pragma(name) for name in wanted} == wanted
    connection.close()


def test_the_log_is_moved_once_when_it_is_long_and_when_pages_were_given_back(tmp_path: Path) -> None:
    options = EngineOptions(free_space_reserve_bytes=0)  # the shortest log
    connection = open_connection(tmp_path, options)
    database = Database(connection, tmp_path, options=options)
    moving = []
    for number in range(200):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO setting VALUES (?, ?)", (f"{number}", bytes(20_000)))
        moving.append(database.checkpoint_due)
        database.commit()
    assert True in moving
    assert (True, True) not in pairwise(moving), "not again at the next commit"
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM setting")
    database.commit()
    moving = [database.checkpoint_due]
    connection.execute("BEGIN IMMEDIATE")
    assert database.free_pages(1, kept=0)
    moving.append(database.checkpoint_due)
    database.commit()
    moving.append(database.checkpoint_due)
    assert moving[1:] == [True, False]
    connection.close()


# Commits that fail, the mark of the clock, closing.


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
    """Say where commits are made but for the first one, which is made in place."""
    monkeypatch.setattr(sqlite_store, "_QUICK_S", 3_600 if request.param else 1e-9)
    return bool(request.param)


async def test_a_failed_sync_is_answered_unknown_and_ends_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, commits_in_place: bool
) -> None:
    with caplog.at_level(logging.CRITICAL + 1):
        fatal: list[BaseException] = []
        store = await opened(tmp_path, fatal)

        def fail(database: Database) -> None:
            assert (threading.current_thread() is threading.main_thread()) == commits_in_place
            raise apsw.IOError("the sync failed")

        monkeypatch.setattr(Database, "commit", fail)
        answers = await together(store, SEND, SEND)
        assert [type(each) for each in answers] == [OutcomeUnknown] * 2
        assert [str(error) for error in fatal] == ["the sync failed"]
        assert store.has_failed
        with pytest.raises(OutcomeUnknown):
            await execute(store, Receive(queue=QUEUE))
        await store.close()


@pytest.mark.usefixtures("commits_in_place")
async def test_a_commit_that_finds_the_disk_full_is_a_clean_refusal(
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
async def test_a_way_back_that_fails_ends_the_store_and_leaves_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL + 1):
        fatal: list[BaseException] = []
        store = await opened(tmp_path, fatal)

        def full(database: Database) -> None:
            raise apsw.FullError("no room")

        def broken(*_: object, **__: object) -> None:
            raise apsw.IOError("and no way back")

        monkeypatch.setattr(Database, "commit", full)
        monkeypatch.setattr(Batch, "roll_back", broken)
        with pytest.raises(OutcomeUnknown):
            await execute(store, SEND)
        assert store.has_failed
        assert [str(error) for error in fatal] == ["and no way back"]
        monkeypatch.undo()
        await store.close()


@pytest.mark.parametrize("name", ["veilmq.lock", "store.db", "store.db-wal"])
async def test_a_file_that_is_removed_or_replaced_ends_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """What it acknowledged afterwards would be lost, or another process would have the folder too.

    What stays where it is does so wherever the process goes.
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
async def test_no_batch_is_acknowledged_whose_folder_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL + 1):
        fatal: list[BaseException] = []
        store = await opened(tmp_path / "data", fatal)
        (tmp_path / "data").rename(tmp_path / "moved")
        with pytest.raises(OutcomeUnknown):
            await execute(store, SEND)
        assert "was removed or replaced" in str(fatal)
        await store.close()


@pytest.mark.parametrize(("exists", "left_bytes"), [(False, 0), (False, 72 * 4_096), (True, 0)])
async def test_a_start_on_a_full_disk_says_what_to_do(tmp_path: Path, exists: bool, left_bytes: int) -> None:
    """Where there is no room for a first table, for the index of the log, and for the first key."""
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


async def test_time_goes_on_from_the_mark_that_the_last_batch_and_the_end_left(tmp_path: Path) -> None:
    seen = []
    for now_ms, wall_ms in ((1_000, 1_000_000), (3_000, 900_000_000), (4_000, 5)):
        wall_ns, boot_ns = partial(int, wall_ms * 1_000_000), partial(int, now_ms * 1_000_000)
        store = SqliteStore(tmp_path, clock=SystemClock(wall_ns=wall_ns, boot_ns=boot_ns, boot_id="one"))
        await execute(store, CreateQueue(queue=QUEUE))
        seen.append(store.clock.now_ms())
        await store.close()
    assert seen == [1_000_000, 1_002_000, 1_003_000]


async def test_closing_twice_takes_nothing_from_the_next_owner(tmp_path: Path) -> None:
    first = await opened(tmp_path)
    await first.close()
    second = await opened(tmp_path)
    await first.close()
    assert (tmp_path / "veilmq.pid").exists()
    await second.close()


async def test_the_store_is_private_and_its_key_lives_as_long_as_the_data(tmp_path: Path) -> None:
    keys = []
    for name in ("one", "one", "other"):
        store = await opened(tmp_path / name)
        keys.append(store.token_key)
        modes = {path.stat().st_mode & 0o777 for path in (tmp_path / name).glob("store.db*")}
        assert modes == {0o600}
        await store.close()
    assert keys[0] == keys[1] != keys[2]
    assert {len(key) for key in keys} == {32}


# Where commits are made.


class TimedDisk:
    """A database and a stopwatch: each commit takes as long as it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sync_s = 0.0002
        self.checkpoint_due = False
        self.threads: list[threading.Thread] = []

    def commit(self) -> None:
        self.now_s += self.sync_s
        self.threads.append(threading.current_thread())

    def check_space(self) -> None:
        """Find room enough."""


async def in_place(disk: TimedDisk, committer: Committer, done: asyncio.Queue[object], commits: int) -> int:
    """Make so many commits; return how many were made in the event loop's thread."""
    disk.threads.clear()
    for _ in range(commits):
        committer.commit()
        assert await done.get() is None
    return sum(thread is threading.current_thread() for thread in disk.threads)


async def test_the_usual_length_of_a_sync_decides() -> None:
    disk, done = TimedDisk(), asyncio.Queue[object]()
    committer = Committer(cast(Database, disk), done.put_nowait, in_thread=True, stopwatch=lambda: disk.now_s)
    assert await in_place(disk, committer, done, 100) == 100
    disk.sync_s = 0.02
    assert await in_place(disk, committer, done, 300) <= 2, "a slow disk keeps the loop for one sync in many"
    disk.sync_s = 0.0002
    await in_place(disk, committer, done, 3_000)
    assert await in_place(disk, committer, done, 100) == 100, "a disk that is quick again is noticed"
    disk.checkpoint_due = True
    assert await in_place(disk, committer, done, 3) == 0, "moving the log takes long, whatever the disk"
    committer.close()


# Room on the disk: refused while it is short, taken again when there is some.


def no_room(folder: object) -> SimpleNamespace:
    """Stand in for a file system that is full."""
    return SimpleNamespace(f_bavail=0, f_frsize=4_096)


def refuses(host: Host) -> bool:
    try:
        host.send("a")
    except StoreFull:
        return True
    return False


def test_a_freed_disk_takes_sends_again_though_nothing_else_commits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with hosting(tmp_path / "store") as host:
        host.create()
        with monkeypatch.context() as full:
            full.setattr(os, "statvfs", no_room)
            host.engine._database.check_space()
            assert refuses(host)
            assert refuses(host)
        assert not refuses(host)


def test_a_look_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(folder: object) -> None:
        raise OSError("gone")

    with hosting(tmp_path / "store") as host, monkeypatch.context() as broken:
        host.create()
        broken.setattr(os, "statvfs", fail)
        assert not refuses(host)


def test_a_store_in_memory_is_never_short_of_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    with hosting(None) as host, monkeypatch.context() as full:
        host.create()
        full.setattr(os, "statvfs", no_room)
        assert not refuses(host)
