"""The counts of many queues: a few at a time, a bounded number a look, the longest uncounted first."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from veilmq.core.commands import Command, CreateQueue, DeleteQueue, NewMessage, Send, ShowQueue
from veilmq.core.ports import Done
from veilmq.server import metrics as queue_counts
from veilmq.server.metrics import COUNTED_TOGETHER, QueueCountBook
from veilmq.store.port import execute
from veilmq.store.sqlite import SqliteStore
from veilmq.testing import VirtualClock

QUEUES = 3 * COUNTED_TOGETHER


class Counting(SqliteStore):
    """An engine in memory that knows how many questions for counts were asked, and at once."""

    asked = 0
    asked_now = 0
    asked_at_once_max = 0

    def submit(self, command: Command, done: Done) -> None:
        """Count what is counted."""
        if not isinstance(command, ShowQueue):
            super().submit(command, done)
            return
        self.asked += 1
        self.asked_now += 1
        self.asked_at_once_max = max(self.asked_now, self.asked_at_once_max)

        def answered(result: object) -> None:
            self.asked_now -= 1
            done(result)

        super().submit(command, answered)

    async def names(self) -> list[str]:
        """Return the full names of all queues, in order."""
        return list((await self.survey(2 * QUEUES)).names)

    async def put(self, *names: str) -> None:
        """Send one message to each queue."""
        for name in names:
            await execute(self, Send(queue=name, messages=(NewMessage(body="a", size_bytes=1),)))


def run(story: Callable[[Counting, QueueCountBook], Awaitable[None]]) -> None:
    """Tell ``story`` with many queues."""

    async def tell() -> None:
        engine = Counting(None, clock=VirtualClock())
        for number in range(QUEUES):
            await execute(engine, CreateQueue(queue=f"a/q{number:03}"))
        await story(engine, QueueCountBook(engine))
        await engine.close()

    asyncio.run(tell())


async def visible(book: QueueCountBook, engine: Counting) -> dict[str, int]:
    """Look, and return what is told of each queue."""
    return {name: counted.counts.visible for name, counted in await book.look(await engine.names())}


def test_queues_are_counted_a_few_at_a_time() -> None:
    """So that everybody else is served between them."""

    async def story(engine: Counting, book: QueueCountBook) -> None:
        assert await visible(book, engine) == dict.fromkeys(await engine.names(), 0)
        assert (engine.asked, engine.asked_at_once_max) == (QUEUES, COUNTED_TOGETHER)

    run(story)


def test_a_look_counts_so_many_and_goes_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """New queues first, then the one counted longest ago; the others are told as they were."""
    monkeypatch.setattr(queue_counts, "COUNTED_MAX", 40)

    async def story(engine: Counting, book: QueueCountBook) -> None:
        for known in (40, 80, QUEUES):
            assert len(await visible(book, engine)) == known
        assert engine.asked == 3 * 40
        names = await engine.names()
        first, late = names[30], names[90]  # counted again in the fourth look, and in the fifth
        await engine.put(first, late)
        assert await visible(book, engine) == {**dict.fromkeys(names, 0), first: 1}
        await execute(engine, CreateQueue(queue="a/new"))
        await engine.put("a/new")
        told = {**dict.fromkeys(names, 0), first: 1, late: 1, "a/new": 1}
        assert await visible(book, engine) == told
        assert engine.asked == 5 * 40

    run(story)


def test_a_deleted_queue_is_not_told_of() -> None:
    """Not even by what was counted of it before."""

    async def story(engine: Counting, book: QueueCountBook) -> None:
        names = await engine.names()
        await book.look(names)
        await execute(engine, DeleteQueue(queue=names[0]))
        assert len(await book.look(names)) == QUEUES - 1, "it was deleted after the names were asked for"
        assert len(await book.look(await engine.names())) == QUEUES - 1

    run(story)


def test_no_more_queues_are_told_of_than_a_page_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first by name."""
    monkeypatch.setattr(queue_counts, "SHOWN_MAX", 5)

    async def story(engine: Counting, book: QueueCountBook) -> None:
        assert list(await visible(book, engine)) == (await engine.names())[:5]
        assert engine.asked == 5

    run(story)
