"""The store's own duties on SQLite: what a commit that fails leads to, the clock of an earlier run, closing."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import apsw
import pytest

from veilmq.core.commands import Command, CreateQueue, Receive, Send
from veilmq.core.errors import OutcomeUnknown, ShuttingDown, StoreFull
from veilmq.core.messages import NewMessage
from veilmq.store.clock import SystemClock
from veilmq.store.port import execute
from veilmq.store.sqlite import SqliteStore
from veilmq.store.sqlite.batch import Batch
from veilmq.store.sqlite.database import Database

QUEUE = "000000000000/jobs"
SEND = Send(queue=QUEUE, messages=(NewMessage(body="a", size_bytes=1),))


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the work of a test in a loop of its own."""
    asyncio.run(asyncio.wait_for(work(), timeout=60))


async def opened(folder: Path, fatal: list[BaseException] | None = None) -> SqliteStore:
    """Return a store with a queue."""
    store = SqliteStore(folder, clock=SystemClock(), on_fatal=None if fatal is None else fatal.append)
    await execute(store, CreateQueue(queue=QUEUE))
    return store


async def together(store: SqliteStore, *commands: Command) -> list[Any]:
    """Submit the commands for one batch; return their results and errors."""
    return list(await asyncio.gather(*(execute(store, each) for each in commands), return_exceptions=True))


def test_a_failed_sync_is_answered_unknown_and_ends_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
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

    with caplog.at_level(logging.CRITICAL + 1):
        run(work)


def test_a_commit_that_finds_the_disk_full_is_a_clean_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
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

    run(work)


def test_a_way_back_that_fails_ends_the_store_and_leaves_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
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

    with caplog.at_level(logging.CRITICAL + 1):
        run(work)


def test_time_goes_on_from_the_mark_that_the_last_batch_and_the_end_left(tmp_path: Path) -> None:
    """Within a boot by the boot clock, whatever the wall clock says."""

    async def at(now_ms: int, wall_ms: int) -> SqliteStore:
        clock = SystemClock(wall_ns=lambda: wall_ms * 1_000_000, boot_ns=lambda: now_ms * 1_000_000, boot_id="one")
        return SqliteStore(tmp_path, clock=clock)

    async def work() -> None:
        seen = []
        for now_ms, wall_ms in ((1_000, 1_000_000), (3_000, 900_000_000), (4_000, 5)):
            store = await at(now_ms, wall_ms)
            await execute(store, CreateQueue(queue=QUEUE))
            seen.append(store.clock.now_ms())
            await store.close()
        assert seen == [1_000_000, 1_002_000, 1_003_000]

    run(work)


def test_closing_finishes_what_was_submitted_and_refuses_what_comes(tmp_path: Path) -> None:
    async def work() -> None:
        store = await opened(tmp_path)
        sending = asyncio.ensure_future(execute(store, SEND))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(store.close())
        await asyncio.sleep(0)
        with pytest.raises(ShuttingDown):
            await execute(store, SEND)
        assert len(await sending) == 1
        await closing
        store = await opened(tmp_path)
        received = await execute(store, Receive(queue=QUEUE, count=10))
        assert [message.body for message in received.messages] == ["a"]
        await store.close()

    run(work)


def test_closing_twice_takes_nothing_from_the_next_owner(tmp_path: Path) -> None:
    async def work() -> None:
        first = await opened(tmp_path)
        await first.close()
        second = await opened(tmp_path)
        await first.close()
        assert (tmp_path / "veilmq.pid").exists()
        await second.close()

    run(work)


def test_the_store_is_private_and_its_key_lives_as_long_as_the_data(tmp_path: Path) -> None:
    """The next start has the same one, another store another one."""

    async def work() -> None:
        keys = []
        for name in ("one", "one", "other"):
            store = await opened(tmp_path / name)
            keys.append(store.token_key)
            modes = {path.stat().st_mode & 0o777 for path in (tmp_path / name).glob("store.db*")}
            assert modes == {0o600}
            await store.close()
        assert keys[0] == keys[1] != keys[2]
        assert {len(key) for key in keys} == {32}

    run(work)
