"""The counts of many queues: a few at a time, a bounded number a look, the longest uncounted first.

Then: the exposition of one snapshot.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from veilmq.core.commands import Command, CreateQueue, DeleteQueue, NewMessage, Send, ShowQueue
from veilmq.core.events import EventCounts
from veilmq.core.ports import Done
from veilmq.core.results import QueueCounts
from veilmq.server.metrics import COUNTED_TOGETHER, Counted, Metrics, QueueCountBook, Snapshot, exposition
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
    monkeypatch.setattr("veilmq.server.metrics.COUNTED_MAX", 40)

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
    monkeypatch.setattr("veilmq.server.metrics.SHOWN_MAX", 5)

    async def story(engine: Counting, book: QueueCountBook) -> None:
        assert list(await visible(book, engine)) == (await engine.names())[:5]
        assert engine.asked == 5

    run(story)


def lines(**parts: Any) -> list[str]:
    """Return the text of a snapshot of a server at rest, but for `parts`."""
    rest: dict[str, Any] = {
        "metrics": Metrics(),
        "queues": [],
        "queues_in_all": 0,
        "now_ms": 0,
        "parked_polls": 0,
        "open_connections": 0,
        "events": EventCounts(recorded=0, exported=0, dropped=0),
        "event_export_failures": 0,
    }
    return exposition(Snapshot(**(rest | parts))).decode().splitlines()


def test_the_sum_of_a_histogram_is_that_of_the_durations() -> None:
    """Per action and code, beside the count."""
    metrics = Metrics()
    metrics.count("SendMessage", "OK", 1.5)
    metrics.count("SendMessage", "OK", 0.25)
    metrics.count("SendMessage", "InternalFailure", 3.0)
    copied = metrics.copy()
    metrics.count("SendMessage", "OK", 9.0)  # not in the copy
    told = lines(metrics=copied)
    name = "veilmq_request_duration_seconds"
    assert f'{name}_sum{{action="SendMessage",code="OK"}} 1.75' in told
    assert f'{name}_count{{action="SendMessage",code="OK"}} 2.0' in told
    assert f'{name}_sum{{action="SendMessage",code="InternalFailure"}} 3.0' in told


def test_the_event_log_is_told_of() -> None:
    """What waits is what was recorded and not exported."""
    told = lines(events=EventCounts(recorded=10, exported=7, dropped=2), event_export_failures=1)
    assert "veilmq_events_recorded_total 10.0" in told
    assert "veilmq_events_exported_total 7.0" in told
    assert "veilmq_events_dropped_total 2.0" in told
    assert "veilmq_events_waiting 3.0" in told
    assert "veilmq_event_export_failures_total 1.0" in told


def test_what_has_passed_through_a_queue_is_told_of() -> None:
    """As counters, by its name."""
    counts = QueueCounts(
        visible=0, in_flight=0, delayed=0, oldest_sent_at_ms=None, redelivered=1, sent=4, received=3, deleted=2
    )
    told = lines(queues=[("000000000000/jobs", Counted(counts))])
    label = '{queue="000000000000/jobs"}'
    assert f"veilmq_queue_messages_sent_total{label} 4.0" in told
    assert f"veilmq_queue_messages_received_total{label} 3.0" in told
    assert f"veilmq_queue_messages_deleted_total{label} 2.0" in told
    assert f"veilmq_queue_redeliveries_total{label} 1.0" in told
