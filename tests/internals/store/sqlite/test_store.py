"""The store's own duties on SQLite: commits and where they are made, room on the disk, the clock, closing."""

import asyncio
import logging
import os
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import apsw
import pytest

from tests.store.host import Host, hosting
from veilmq.core.commands import Command, CreateQueue, Receive, Send
from veilmq.core.errors import OutcomeUnknown, StoreFull
from veilmq.core.messages import NewMessage
from veilmq.store.clock import SystemClock
from veilmq.store.port import execute
from veilmq.store.sqlite import SqliteStore
from veilmq.store.sqlite.batch import Batch
from veilmq.store.sqlite.database import Database
from veilmq.store.sqlite.store import Committer

QUEUE = "000000000000/jobs"
SEND = Send(queue=QUEUE, messages=(NewMessage(body="a", size_bytes=1),))


async def opened(folder: Path, fatal: list[BaseException] | None = None) -> SqliteStore:
    store = SqliteStore(folder, clock=SystemClock(), on_fatal=None if fatal is None else fatal.append)
    await execute(store, CreateQueue(queue=QUEUE))
    return store


async def together(store: SqliteStore, *commands: Command) -> list[Any]:
    """Submit the commands for one batch; return their results and errors."""
    return list(await asyncio.gather(*(execute(store, each) for each in commands), return_exceptions=True))


async def test_a_failed_sync_is_answered_unknown_and_ends_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL + 1):
        fatal: list[BaseException] = []
        store = await opened(tmp_path, fatal)

        def fail(database: Database) -> None:
            raise apsw.IOError("the sync failed")

        monkeypatch.setattr(Database, "commit", fail)
        answers = await together(store, SEND, SEND)
        assert [type(each) for each in answers] == [OutcomeUnknown] * 2
        assert [str(error) for error in fatal] == ["the sync failed"]
        assert store.has_failed
        with pytest.raises(OutcomeUnknown):
            await execute(store, Receive(queue=QUEUE))
        await store.close()


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


class Disk:
    """A database and a stopwatch: each commit takes as long as it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sync_s = 0.0002
        self.moves_log = False
        self.threads: list[threading.Thread] = []

    def commit(self) -> None:
        self.now_s += self.sync_s
        self.threads.append(threading.current_thread())

    def check_room(self) -> None:
        """Find room enough."""


async def in_place(disk: Disk, committer: Committer, done: asyncio.Queue[object], commits: int) -> int:
    """Make so many commits; return how many were made in the event loop's thread."""
    disk.threads.clear()
    for _ in range(commits):
        committer.commit()
        assert await done.get() is None
    return sum(thread is threading.current_thread() for thread in disk.threads)


async def test_the_usual_length_of_a_sync_decides() -> None:
    disk, done = Disk(), asyncio.Queue[object]()
    committer = Committer(cast(Database, disk), done.put_nowait, in_thread=True, stopwatch=lambda: disk.now_s)
    assert await in_place(disk, committer, done, 100) == 100
    disk.sync_s = 0.02
    assert await in_place(disk, committer, done, 300) <= 2, "a slow disk keeps the loop for one sync in many"
    disk.sync_s = 0.0002
    await in_place(disk, committer, done, 3_000)
    assert await in_place(disk, committer, done, 100) == 100, "a disk that is quick again is noticed"
    disk.moves_log = True
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
            host.engine._database.check_room()
            assert refuses(host)
            host.advance(1_000)
            assert refuses(host)
        assert refuses(host), "it looks once a second"
        host.advance(1_000)
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
