"""The engine's own duties: answers after the sync, the end of a failed store, the clock of an earlier run, closing."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import apsw
import pytest

from veilmq.core.commands import Command, CreateQueue, NewMessage, Receive, Send
from veilmq.core.errors import OutcomeUnknown, ShuttingDown, StoreFull
from veilmq.engines.clock import SystemClock
from veilmq.engines.embedded import EmbeddedEngine
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.execute import execute

QUEUE = "000000000000/jobs"
SEND = Send(queue=QUEUE, messages=(NewMessage(body="a", size_bytes=1),))


def _run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), timeout=30))


async def _together(engine: EmbeddedEngine, *commands: Command) -> list[Any]:
    """Submit the commands for one batch; return their results and errors."""
    return list(await asyncio.gather(*(execute(engine, each) for each in commands), return_exceptions=True))


def test_a_failed_sync_is_answered_unknown_and_ends_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        fatal: list[BaseException] = []
        engine = EmbeddedEngine.open(tmp_path, clock=SystemClock(), on_fatal=fatal.append)
        await execute(engine, CreateQueue(queue=QUEUE))

        def fail(journal: Journal) -> None:
            raise apsw.IOError("the sync failed")

        monkeypatch.setattr(Journal, "commit", fail)
        first, second = await _together(engine, SEND, SEND)
        assert isinstance(first, OutcomeUnknown)
        assert isinstance(second, OutcomeUnknown)
        assert [str(error) for error in fatal] == ["the sync failed"]
        assert engine.has_failed
        with pytest.raises(OutcomeUnknown):
            await execute(engine, Receive(queue=QUEUE))
        await engine.close()

    with caplog.at_level(logging.CRITICAL + 1):
        _run(work)


def test_a_commit_that_finds_the_disk_full_is_a_clean_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        engine = EmbeddedEngine.open(tmp_path, clock=SystemClock())
        await execute(engine, CreateQueue(queue=QUEUE))
        commit, failures = Journal.commit, [apsw.FullError("no room"), apsw.FullError("still no room")]

        def fail_twice(journal: Journal) -> None:
            if failures:
                raise failures.pop()
            commit(journal)

        monkeypatch.setattr(Journal, "commit", fail_twice)
        sent, received = await _together(engine, SEND, Receive(queue=QUEUE))
        assert isinstance(sent, StoreFull)
        assert received.messages == []
        assert len(await execute(engine, SEND)) == 1
        await engine.close()

    _run(work)


def test_no_answer_comes_before_its_commit_has_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        events: list[str] = []
        commit = Journal.commit

        def recorded(journal: Journal) -> None:
            commit(journal)
            events.append("durable")

        monkeypatch.setattr(Journal, "commit", recorded)
        engine = EmbeddedEngine.open(tmp_path, clock=SystemClock())
        await execute(engine, CreateQueue(queue=QUEUE))
        events.clear()
        await asyncio.gather(*(_answered(engine, events) for _ in range(5)))
        assert events[0] == "durable"
        assert events.count("answered") == 5
        await engine.close()

    async def _answered(engine: EmbeddedEngine, events: list[str]) -> None:
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(result: object) -> None:
            events.append("answered")
            answered.set_result(None)

        engine.submit(SEND, done)
        await answered

    _run(work)


def test_time_goes_on_from_the_mark_that_the_last_batch_and_the_end_left(tmp_path: Path) -> None:
    """Within a boot by the boot clock, whatever the wall clock says."""

    async def opened(now_ms: int, wall_ms: int) -> EmbeddedEngine:
        clock = SystemClock(wall_ns=lambda: wall_ms * 1_000_000, boot_ns=lambda: now_ms * 1_000_000, boot_id="one")
        return EmbeddedEngine.open(tmp_path, clock=clock)

    async def work() -> None:
        engine = await opened(1_000, 1_000_000)
        await execute(engine, CreateQueue(queue=QUEUE))
        assert engine.clock.now_ms() == 1_000_000
        await engine.close()
        engine = await opened(3_000, 900_000_000)
        assert engine.clock.now_ms() == 1_002_000
        await engine.close()
        engine = await opened(4_000, 5)
        assert engine.clock.now_ms() == 1_003_000
        await engine.close()

    _run(work)


def test_closing_finishes_what_was_submitted_and_refuses_what_comes(tmp_path: Path) -> None:
    async def work() -> None:
        engine = EmbeddedEngine.open(tmp_path, clock=SystemClock())
        await execute(engine, CreateQueue(queue=QUEUE))
        sending = asyncio.ensure_future(execute(engine, SEND))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(engine.close())
        await asyncio.sleep(0)
        with pytest.raises(ShuttingDown):
            await execute(engine, SEND)
        assert len(await sending) == 1
        await closing
        engine = EmbeddedEngine.open(tmp_path, clock=SystemClock())
        received = await execute(engine, Receive(queue=QUEUE, count=10))
        assert [message.body for message in received.messages] == ["a"]
        await engine.close()

    _run(work)


def test_a_withdrawn_command_is_never_applied(tmp_path: Path) -> None:
    async def work() -> None:
        engine = EmbeddedEngine.open(None, clock=SystemClock())
        await execute(engine, CreateQueue(queue=QUEUE))
        await execute(engine, SEND)
        answers: list[object] = []
        engine.submit(Receive(queue=QUEUE), answers.append)
        engine.withdraw(answers.append)
        received = await execute(engine, Receive(queue=QUEUE))
        assert len(received.messages) == 1
        assert answers == []
        await engine.close()

    _run(work)


def test_a_way_back_that_fails_ends_the_engine_and_leaves_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        fatal: list[BaseException] = []
        engine = EmbeddedEngine.open(tmp_path, clock=SystemClock(), on_fatal=fatal.append)
        await execute(engine, CreateQueue(queue=QUEUE))

        def full(journal: Journal) -> None:
            raise apsw.FullError("no room")

        def broken(journal: Journal) -> None:
            raise apsw.IOError("and no way back")

        monkeypatch.setattr(Journal, "commit", full)
        monkeypatch.setattr(Journal, "roll_back", broken)
        with pytest.raises(OutcomeUnknown):
            await execute(engine, SEND)
        assert engine.has_failed
        assert [str(error) for error in fatal] == ["and no way back"]
        monkeypatch.undo()
        await engine.close()

    with caplog.at_level(logging.CRITICAL + 1):
        _run(work)


def test_closing_twice_takes_nothing_from_the_next_owner(tmp_path: Path) -> None:
    async def work() -> None:
        first = EmbeddedEngine.open(tmp_path, clock=SystemClock())
        await first.close()
        second = EmbeddedEngine.open(tmp_path, clock=SystemClock())
        await first.close()
        assert (tmp_path / "veilmq.pid").exists()
        await second.close()

    _run(work)


def test_the_store_is_private(tmp_path: Path) -> None:
    async def work() -> None:
        engine = EmbeddedEngine.open(tmp_path, clock=SystemClock())
        await execute(engine, CreateQueue(queue=QUEUE))
        modes.update((path.name, path.stat().st_mode & 0o777) for path in database)
        await engine.close()

    database = [tmp_path / name for name in ("veilmq.db", "veilmq.db-wal", "veilmq.db-shm")]
    modes: dict[str, int] = {}
    _run(work)
    assert modes == {path.name: 0o600 for path in database}
