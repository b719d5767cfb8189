"""Counts of many queues, for listings and for the metrics; the text of the metrics."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from veilmq.core.commands import (
    BrowsedQueues,
    BrowseQueues,
    Command,
    CreateQueue,
    Delete,
    DeleteQueue,
    Done,
    QueueCounts,
    QueueOrder,
    QueueView,
    Receive,
    Send,
    ShowQueue,
)
from veilmq.core.errors import StoreUnavailable
from veilmq.core.limits import SECOND_MS
from veilmq.core.messages import NewMessage
from veilmq.core.settings import QueueSettings
from veilmq.server import metrics
from veilmq.server.metrics import QueueCountCache
from veilmq.server.queue_statistics import HISTORY_MAX, IDLE_MS_MAX, QueueRecord, QueueStatistics
from veilmq.server.settings import ServerSettings
from veilmq.store.port import SurveyQueues, execute
from veilmq.store.sqlite import SqliteStore
from veilmq.testing import VirtualClock


def view(*, visible: int = 0, sent: int = 0, received: int = 0, deleted: int = 0) -> QueueView:
    counts = QueueCounts(
        visible=visible, in_flight=0, delayed=0, oldest_sent_at_ms=None, sent=sent, received=received, deleted=deleted
    )
    return QueueView(queue="a/q", settings=QueueSettings(), created_at_ms=0, modified_at_ms=0, counts=counts)


def rates(record: QueueRecord) -> tuple[float, ...] | None:
    return record.rates


def test_rates_are_over_some_seconds() -> None:
    """Not over one, where ten messages at once would look like a flood, and not over all that ever was."""
    record = QueueRecord(view(), 0)
    assert rates(record) is None, "one count tells of no movement"
    record.add_count(view(sent=30, received=20, deleted=10), 1 * SECOND_MS)
    assert rates(record) == (30.0, 20.0, 10.0)
    for second in range(2, 60):
        record.add_count(view(sent=30, received=20 * second, deleted=10), second * SECOND_MS)
    assert rates(record) == (0.0, 20.0, 0.0), "what was sent in the first second is long ago"


def test_totals_that_fall_begin_anew() -> None:
    record = QueueRecord(view(sent=100), 0)
    record.add_count(view(sent=110), SECOND_MS)
    record.add_count(view(sent=3), 2 * SECOND_MS)
    assert rates(record) is None
    record.add_count(view(sent=5), 3 * SECOND_MS)
    assert rates(record) == (2.0, 0.0, 0.0)


def test_the_history_has_a_point_a_second_and_an_end() -> None:
    record = QueueRecord(view(visible=7), 0)
    record.add_count(view(visible=8), SECOND_MS - 1)
    assert record.shown("q").history == [(0, 8)]
    for second in range(1, HISTORY_MAX + 10):
        record.add_count(view(visible=second), second * SECOND_MS)
    history = record.shown("q").history
    assert history == [(second * SECOND_MS, second) for second in range(10, HISTORY_MAX + 10)]


def test_a_single_slow_count_is_no_price() -> None:
    """The machine may have been busy with something else; two in a row are the queue's own."""
    record = QueueRecord(view(), 0)
    record.add_count(view(), SECOND_MS, cost_s=3.0)
    assert record.cost_s == 0.0
    record.add_count(view(), 2 * SECOND_MS, cost_s=2.0)
    assert record.cost_s == pytest.approx(2.0)


QUEUES = 100
CLOCK_STEP_MS = SECOND_MS


class Counting(SqliteStore):
    """An engine in memory that notes which queues are counted, and how many at once."""

    counted: list[str]
    asked_now = 0
    asked_at_once_max = 0
    is_unavailable = False

    def submit(self, command: Command, done: Done) -> None:
        if self.is_unavailable:
            done(StoreUnavailable())
            return
        if not isinstance(command, ShowQueue):
            super().submit(command, done)
            return
        self.counted.append(command.queue)
        self.asked_now += 1
        self.asked_at_once_max = max(self.asked_now, self.asked_at_once_max)

        def answered(result: object) -> None:
            self.asked_now -= 1
            done(result)

        super().submit(command, answered)


class World:
    """Many queues, the book of them, and time."""

    def __init__(self, engine: Counting, clock: VirtualClock) -> None:
        self.engine = engine
        self.clock = clock
        self.book = QueueStatistics(engine=engine, clock=clock)

    async def put(self, name: str, messages: int = 1) -> None:
        sent = tuple(NewMessage(body="a", size_bytes=1) for _ in range(messages))
        await execute(self.engine, Send(queue=f"a/{name}", messages=sent))

    async def browse(self, **asked: Any) -> BrowsedQueues:
        return await self.book.browse(BrowseQueues(account="a", **asked))

    async def names(self, **asked: Any) -> list[str]:
        return [queue.name for queue in (await self.browse(**asked)).queues]

    async def rest(self) -> None:
        if self.book._round is not None:
            await asyncio.wait({self.book._round})

    async def pass_time(self, ms: int = CLOCK_STEP_MS) -> list[str]:
        """Move the clock second by second, and return what was counted meanwhile."""
        before = len(self.engine.counted)
        for _ in range(ms // CLOCK_STEP_MS):
            self.clock.advance(CLOCK_STEP_MS)
            await self.rest()
        return self.engine.counted[before:]


@pytest.fixture
@asynccontextmanager
async def world() -> AsyncIterator[World]:
    """Give a world with ``QUEUES`` queues, ``q000`` and further."""
    clock = VirtualClock()
    engine = Counting(None, clock=clock)
    engine.counted = []
    for number in range(QUEUES):
        await execute(engine, CreateQueue(queue=f"a/q{number:03}"))
    await execute(engine, CreateQueue(queue="b/other"))
    made = World(engine, clock)
    yield made
    made.book.close()
    await made.rest()
    await engine.close()


async def test_a_page_by_counts_has_those_with_most(world: World) -> None:
    """Equal ones by name; those in which there is nothing that has an age are the last, both ways."""
    for name, messages in (("q050", 5), ("q010", 2), ("q090", 5)):
        await world.put(name, messages)
        world.clock.advance(1)
    assert await world.names(order=QueueOrder.VISIBLE, descending=True, count=4) == ["q050", "q090", "q010", "q000"]
    assert await world.names(order=QueueOrder.VISIBLE, count=2) == ["q000", "q001"]
    assert await world.names(order=QueueOrder.OLDEST, descending=True, count=4) == ["q050", "q010", "q090", "q000"]
    assert await world.names(order=QueueOrder.OLDEST, count=4) == ["q090", "q010", "q050", "q000"]


async def test_rates_sort_too(world: World) -> None:
    await world.browse()
    await world.rest()
    await world.put("q003", 10)
    received = await execute(world.engine, Receive(queue="a/q003", count=4))
    await execute(world.engine, Delete(queue="a/q003", receipts=(received.messages[0].receipt,)))
    await world.pass_time(1_000)
    first = (await world.browse(order=QueueOrder.RECEIVED, descending=True, count=1)).queues[0]
    assert (first.name, first.sent_per_s, first.received_per_s, first.deleted_per_s) == ("q003", 10.0, 4.0, 1.0)


async def test_a_search_is_in_the_name_alone(world: World) -> None:
    """In upper or lower case; accounts are no part of it, and other accounts' queues are not found."""
    await execute(world.engine, CreateQueue(queue="a/Orders-01"))
    assert await world.names(search="orders") == ["Orders-01"]
    assert await world.names(search="ORDERS-0") == ["Orders-01"]
    assert await world.names(search="Q09", descending=True, count=2) == ["q099", "q098"]
    assert (await world.browse(search="a/")).in_all == 0
    assert (await world.browse(search="other")).in_all == 0


async def test_what_may_not_be_seen_is_a_name(world: World) -> None:
    """It is known in no order by counts either: it comes last, whatever is in it."""
    await world.put("q001", 9)
    await world.put("q002", 1)

    def may_see(view: Any) -> bool:
        return bool(view.queue != "a/q001")

    page = await world.browse(order=QueueOrder.VISIBLE, descending=True, count=QUEUES, may_see=may_see)
    assert page.queues[0].name == "q002"
    denied = page.queues[-1]
    assert (denied.name, denied.visible, denied.fifo, denied.counted_at_ms) == ("q001", None, None, None)


async def test_a_store_that_cannot_be_reached_deletes_no_queue(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever asks hears of it; what was known of the queues is known afterwards, and they are counted again."""
    await world.put("q001")
    await world.browse(names=("q001",))
    await world.rest()
    world.engine.is_unavailable = True
    world.clock.advance(SECOND_MS)
    await world.rest()
    with pytest.raises(StoreUnavailable):
        await world.browse(names=("q001",))
    await world.pass_time(3_000)
    world.engine.is_unavailable = False
    await world.pass_time(3_000)
    (queue,) = (await world.browse(names=("q001",))).queues
    assert (queue.visible, len(queue.history or ()) > 1) == (1, True)
    assert caplog.records == []


async def test_many_pages_have_a_bounded_number_counted_a_second(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest uncounted first, so all have their turn."""
    monkeypatch.setattr("veilmq.server.queue_statistics.WATCHED_QUEUES", 10)
    monkeypatch.setattr("veilmq.server.queue_statistics.ROUND_QUEUES", 0)
    await world.browse()
    await world.rest()
    watched = tuple(f"q{number:03}" for number in range(25))
    turns = []
    for _ in range(5):
        before = len(world.engine.counted)
        world.clock.advance(SECOND_MS)
        await world.rest()
        await world.browse(names=watched)
        await world.browse(names=watched)
        turns.append(len(world.engine.counted) - before)
    assert turns == [10] * 5
    assert set(world.engine.counted[-50:]) == {f"a/{name}" for name in watched}


async def test_a_queue_that_nobody_has_counted_is_there_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much is counted for others in this second: a page that is told of none takes it for deleted."""
    monkeypatch.setattr("veilmq.server.queue_statistics.WATCHED_QUEUES", 10)
    await world.browse(names=tuple(f"q{number:03}" for number in range(10)))
    assert await world.names(names=("q050",)) == ["q050"]


async def test_all_are_counted_in_rounds_while_somebody_looks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilmq.server.queue_statistics.ROUND_QUEUES", 20)
    await world.browse(count=10)
    await world.rest()
    assert sorted(set(world.engine.counted)) == [f"a/q{number:03}" for number in range(QUEUES)]
    turn = await world.pass_time(5_000)
    assert sorted(turn) == [f"a/q{number:03}" for number in range(QUEUES)], "each in its turn"
    await world.pass_time(IDLE_MS_MAX)
    assert await world.pass_time(10_000) == []
    assert (world.clock.next_timer_ms() or 0) > world.clock.now_ms() + CLOCK_STEP_MS, "that of the store alone"
    await world.browse()
    assert await world.pass_time(1_000) != []


async def test_a_queue_that_was_deleted_is_counted_once_more(world: World) -> None:
    await world.browse(count=10)
    await world.rest()
    await execute(world.engine, DeleteQueue(queue="a/q001"))
    assert (await world.pass_time(10_000)).count("a/q001") == 1


async def test_a_queue_made_anew_begins_anew(world: World) -> None:
    """Its name alone is that of the one that was deleted."""
    await world.put("q001", 5)
    await world.browse(names=("q001",))
    await execute(world.engine, DeleteQueue(queue="a/q001"))
    world.clock.advance(IDLE_MS_MAX)
    await world.rest()
    await execute(world.engine, CreateQueue(queue="a/q001"))
    world.clock.advance(SECOND_MS)
    await world.rest()
    again = (await world.browse(names=("q001",))).queues[0]
    assert (again.visible, len(again.history), again.sent_per_s) == (0, 1, None)


BOOKED = 3 * metrics.COUNT_BATCH


class Books:
    """The counts of ``BOOKED`` queues for the metrics."""

    def __init__(self, engine: Counting) -> None:
        self.engine = engine
        self.book = QueueCountCache(engine, ServerSettings())

    async def names(self) -> list[str]:
        return list((await execute(self.engine, SurveyQueues(names_max=2 * BOOKED))).names)

    async def visible(self) -> dict[str, int]:
        return {name: counted.counts.visible for name, counted in await self.book.inspect(await self.names())}

    async def put(self, *names: str) -> None:
        for name in names:
            await execute(self.engine, Send(queue=name, messages=(NewMessage(body="a", size_bytes=1),)))


@pytest.fixture
@asynccontextmanager
async def books() -> AsyncIterator[Books]:
    engine = Counting(None, clock=VirtualClock())
    engine.counted = []
    for number in range(BOOKED):
        await execute(engine, CreateQueue(queue=f"a/q{number:03}"))
    yield Books(engine)
    await engine.close()


async def test_a_snapshot_counts_so_many_and_goes_round(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    """New queues first, then the one counted longest ago; the others are shown as they were."""
    monkeypatch.setattr("veilmq.server.metrics.COUNTED_MAX", 40)
    for known in (40, 80, BOOKED):
        assert len(await books.visible()) == known
    assert len(books.engine.counted) == 3 * 40
    names = await books.names()
    first, late = names[30], names[90]  # counted again in the fourth snapshot, and in the fifth
    await books.put(first, late)
    assert await books.visible() == {**dict.fromkeys(names, 0), first: 1}
    await execute(books.engine, CreateQueue(queue="a/new"))
    await books.put("a/new")
    assert await books.visible() == {**dict.fromkeys(names, 0), first: 1, late: 1, "a/new": 1}
    assert len(books.engine.counted) == 5 * 40
