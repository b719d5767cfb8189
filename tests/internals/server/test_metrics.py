"""Queue counts for listings and metrics."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from veilmq.core.commands import (
    BrowsedQueues,
    BrowseQueues,
    Command,
    CreateQueue,
    DeleteQueue,
    Done,
    QueueCounts,
    QueueOrder,
    QueueView,
    Send,
)
from veilmq.core.errors import StoreUnavailable
from veilmq.core.limits import SECOND_MS
from veilmq.core.messages import NewMessage
from veilmq.core.settings import QueueSettings
from veilmq.server import metrics
from veilmq.server.metrics import QueueCountCache
from veilmq.server.queue_statistics import HISTORY_MAX, IDLE_MS_MAX, SORT_VALUES, QueueRecord, QueueStatistics
from veilmq.server.settings import ServerSettings
from veilmq.store.port import CountQueues, SurveyQueues, execute
from veilmq.store.sqlite import SqliteStore
from veilmq.testing import VirtualClock


def test_the_durations_of_an_action_are_added() -> None:
    requests = metrics.Metrics()
    for seconds in (0.25, 0.5):
        requests.count("SendMessage", "OK", seconds)
    page = metrics.exposition(requests.series(), []).decode()
    assert 'veilmq_request_duration_seconds_sum{action="SendMessage",code="OK"} 0.75' in page


def view(*, visible: int = 0, sent: int = 0, received: int = 0, deleted: int = 0) -> QueueView:
    counts = QueueCounts(
        visible=visible, in_flight=0, delayed=0, oldest_sent_at_ms=None, sent=sent, received=received, deleted=deleted
    )
    return QueueView(queue="a/q", settings=QueueSettings(), created_at_ms=0, modified_at_ms=0, counts=counts)


def rates(record: QueueRecord) -> tuple[float, ...] | None:
    return record.rates


def test_rates_span_some_seconds() -> None:
    """In one second ten messages would look like a flood; over all time, recent changes would not show."""
    record = QueueRecord(view(), 0)
    assert rates(record) is None, "one count gives no rate"
    record.add_count(view(sent=30, received=20, deleted=10), 1 * SECOND_MS)
    assert rates(record) == (30.0, 20.0, 10.0)
    for second in range(2, 60):
        record.add_count(view(sent=30, received=20 * second, deleted=10), second * SECOND_MS)
    assert rates(record) == (0.0, 20.0, 0.0), "messages sent in the first second no longer count"


def test_a_listed_queue_has_every_field() -> None:
    settings = QueueSettings(fifo=True, dead_letter_queue="a/dead")
    counts = QueueCounts(visible=1, in_flight=2, delayed=3, oldest_sent_at_ms=4, sent=10, received=20, deleted=30)
    later = QueueCounts(visible=5, in_flight=6, delayed=7, oldest_sent_at_ms=8, sent=12, received=26, deleted=40)
    first, second = (replace(view(), settings=settings, counts=each) for each in (counts, later))
    record = QueueRecord(first, 1_000)
    record.add_count(second, 3_000)
    per_s = {"sent_per_s": 1.0, "received_per_s": 3.0, "deleted_per_s": 5.0}
    totals = {"sent": 12, "received": 26, "deleted": 40}
    states = {"visible": 5, "in_flight": 6, "delayed": 7}
    shown: dict[str, Any] = {"name": "q", "fifo": True, "dead_letter_queue": "a/dead", "oldest_sent_at_ms": 8}
    shown |= {"counted_at_ms": 3_100, "history": [(1_100, 1), (3_100, 5)]}
    assert asdict(record.shown("q", shown_ahead_ms=100)) == shown | states | totals | per_s
    assert record.shown("q", history=False).history == []
    assert {order.value: value(record) for order, value in SORT_VALUES.items()} == states | {"oldest": -8} | {
        name.removesuffix("_per_s"): rate for name, rate in per_s.items()
    }


def test_falling_totals_reset_the_rates() -> None:
    record = QueueRecord(view(sent=100), 0)
    record.add_count(view(sent=110), SECOND_MS)
    record.add_count(view(sent=3), 2 * SECOND_MS)
    assert rates(record) is None
    record.add_count(view(sent=5), 3 * SECOND_MS)
    assert rates(record) == (2.0, 0.0, 0.0)


def test_the_history_has_one_point_per_second_and_is_bounded() -> None:
    record = QueueRecord(view(visible=7), 0)
    for at_ms in (SECOND_MS, 2 * SECOND_MS - 1):
        record.add_count(view(visible=at_ms), at_ms)
    assert record.shown("q").history == [(0, 7), (SECOND_MS, 2 * SECOND_MS - 1)]
    for second in range(2, HISTORY_MAX + 10):
        record.add_count(view(visible=second), second * SECOND_MS)
    history = record.shown("q").history
    assert history == [(second * SECOND_MS, second) for second in range(10, HISTORY_MAX + 10)]


QUEUES = 100
CLOCK_STEP_MS = SECOND_MS


class CountingStore(SqliteStore):
    """A store in memory that records which queues are counted."""

    counted: list[str]
    is_unavailable = False
    uncountable = ""  # the name of a queue

    def submit(self, command: Command, done: Done) -> None:
        if self.is_unavailable or (isinstance(command, CountQueues) and self.uncountable in command.names):
            done(StoreUnavailable())
            return
        if isinstance(command, CountQueues):
            self.counted += command.names
        super().submit(command, done)


class World:
    """Many queues, their statistics, and a clock."""

    def __init__(self, engine: CountingStore, clock: VirtualClock) -> None:
        self.engine = engine
        self.clock = clock
        self.statistics = QueueStatistics(engine=engine, clock=clock)

    async def put(self, name: str, messages: int = 1) -> None:
        sent = tuple(NewMessage(body="a", size_bytes=1) for _ in range(messages))
        await execute(self.engine, Send(queue=f"a/{name}", messages=sent))

    async def browse(self, **fields: Any) -> BrowsedQueues:
        return await self.statistics.browse(BrowseQueues(account="a", **fields))

    async def names(self, **fields: Any) -> list[str]:
        return [queue.name for queue in (await self.browse(**fields)).queues]

    async def finish_round(self) -> None:
        if self.statistics._round is not None:
            await asyncio.wait({self.statistics._round})

    async def pass_time(self, ms: int = CLOCK_STEP_MS) -> list[str]:
        """Advance the clock second by second; return which queues are counted meanwhile."""
        before = len(self.engine.counted)
        for _ in range(ms // CLOCK_STEP_MS):
            self.clock.advance(CLOCK_STEP_MS)
            await self.finish_round()
        return self.engine.counted[before:]


@pytest.fixture
@asynccontextmanager
async def world() -> AsyncIterator[World]:
    """``QUEUES`` queues: ``q000`` and so on."""
    clock = VirtualClock()
    engine = CountingStore(None, clock=clock)
    engine.counted = []
    for number in range(QUEUES):
        await execute(engine, CreateQueue(queue=f"a/q{number:03}"))
    await execute(engine, CreateQueue(queue="b/other"))
    world = World(engine, clock)
    yield world
    world.statistics.close()
    await world.finish_round()
    assert await world.pass_time() == []
    await engine.close()


async def test_an_unavailable_store_drops_no_queue(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Requests get the error; afterwards the history is kept, and counting continues."""
    await world.put("q001")
    await world.browse(names=("q001",))
    await world.finish_round()
    world.engine.is_unavailable = True
    world.clock.advance(SECOND_MS)
    await world.finish_round()
    with pytest.raises(StoreUnavailable):
        await world.browse(names=("q001",))
    await world.pass_time(3_000)
    world.engine.is_unavailable = False
    await world.pass_time(3_000)
    (queue,) = (await world.browse(names=("q001",))).queues
    assert (queue.visible, len(queue.history or ()) > 1) == (1, True)
    assert caplog.records == []


async def test_watched_queues_counted_per_second_are_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Least recently counted first, so all are counted in turn."""
    monkeypatch.setattr("veilmq.server.queue_statistics.WATCHED_QUEUES", 10)
    monkeypatch.setattr("veilmq.server.queue_statistics.ROUND_QUEUES", 0)
    await world.browse()
    await world.finish_round()
    watched = tuple(f"q{number:03}" for number in range(25))
    turns = []
    for _ in range(5):
        before = len(world.engine.counted)
        world.clock.advance(SECOND_MS)
        await world.finish_round()
        await world.browse(names=watched)
        await world.browse(names=watched)
        turns.append(len(world.engine.counted) - before)
    assert turns == [10] * 5
    assert set(world.engine.counted[-50:]) == {f"a/{name}" for name in watched}


async def test_an_uncounted_queue_is_counted_beyond_the_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its page would treat it as deleted."""
    monkeypatch.setattr("veilmq.server.queue_statistics.WATCHED_QUEUES", 10)
    await world.browse(names=tuple(f"q{number:03}" for number in range(10)))
    assert await world.names(names=("q050",)) == ["q050"]


async def test_all_queues_are_counted_in_rounds_while_pages_are_open(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veilmq.server.queue_statistics.ROUND_QUEUES", 20)
    monkeypatch.setattr("veilmq.server.queue_statistics._NAMES_PER_PAGE", 30)
    await world.browse(count=10)
    await world.finish_round()
    assert sorted(set(world.engine.counted)) == [f"a/q{number:03}" for number in range(QUEUES)]
    world.clock.advance(SECOND_MS - 1)
    before = len(world.engine.counted)
    page = await world.browse(count=10, order=QueueOrder.VISIBLE)
    await world.browse(count=10)
    await world.browse(names=("q000",))
    await world.finish_round()
    assert (page.in_all, page.counted) == (QUEUES, QUEUES)
    assert len(world.engine.counted) - before == 20, "the queues of two pages, and no round more"
    turn = await world.pass_time(5_000)
    assert sorted(turn) == [f"a/q{number:03}" for number in range(QUEUES)], "each once"
    await world.pass_time(IDLE_MS_MAX)
    assert await world.pass_time(10_000) == []
    assert (world.clock.next_timer_ms() or 0) > world.clock.now_ms() + CLOCK_STEP_MS, "only the store's timer"
    await world.browse()
    assert await world.pass_time(1_000) != []


async def test_a_deleted_queue_is_counted_once_more(world: World) -> None:
    await world.browse(count=10)
    await world.finish_round()
    await execute(world.engine, DeleteQueue(queue="a/q001"))
    assert (await world.pass_time(10_000)).count("a/q001") == 1
    await execute(world.engine, DeleteQueue(queue="a/q002"))
    await world.browse(count=1)
    assert "a/q002" not in await world.pass_time(10_000), "a listing has found that it is deleted"


async def test_a_recreated_queue_has_a_new_record(world: World) -> None:
    await world.put("q001", 5)
    await world.browse(names=("q001",))
    await execute(world.engine, DeleteQueue(queue="a/q001"))
    world.clock.advance(IDLE_MS_MAX)
    await world.finish_round()
    await execute(world.engine, CreateQueue(queue="a/q001"))
    world.clock.advance(SECOND_MS)
    await world.finish_round()
    again = (await world.browse(names=("q001",))).queues[0]
    assert (again.visible, len(again.history), again.sent_per_s) == (0, 1, None)


CACHED = 96


class CacheBench:
    """The cached counts of ``CACHED`` queues for metrics."""

    def __init__(self, engine: CountingStore) -> None:
        self.engine = engine
        self.cache = QueueCountCache(engine, ServerSettings())

    async def visible(self) -> dict[str, int]:
        survey = await execute(self.engine, SurveyQueues(names_max=2 * CACHED))
        return {name: counted.counts.visible for name, counted in await self.cache.inspect(survey)}

    async def put(self, *names: str) -> None:
        for name in names:
            await execute(self.engine, Send(queue=name, messages=(NewMessage(body="a", size_bytes=1),)))


@pytest.fixture
@asynccontextmanager
async def caching() -> AsyncIterator[CacheBench]:
    engine = CountingStore(None, clock=VirtualClock())
    engine.counted = []
    for number in range(CACHED):
        await execute(engine, CreateQueue(queue=f"a/q{number:03}"))
    yield CacheBench(engine)
    await engine.close()


async def test_a_scrape_counts_a_limited_number_in_turn(caching: CacheBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """New queues first, then the least recently counted; the others keep their last counts."""
    monkeypatch.setattr("veilmq.server.metrics.COUNTED_MAX", 40)
    monkeypatch.setattr("veilmq.server.metrics.COUNT_BATCH", 32)
    for known in (40, 80, CACHED):
        assert len(await caching.visible()) == known
    assert len(caching.engine.counted) == 3 * 40
    names = [f"a/q{number:03}" for number in range(CACHED)]
    first, late = names[30], names[90]  # counted again in the fourth scrape, and in the fifth
    await caching.put(first, late)
    assert await caching.visible() == {**dict.fromkeys(names, 0), first: 1}
    await execute(caching.engine, CreateQueue(queue="a/new"))
    await caching.put("a/new")
    assert await caching.visible() == {**dict.fromkeys(names, 0), first: 1, late: 1, "a/new": 1}
    assert len(caching.engine.counted) == 5 * 40


async def test_a_queue_that_cannot_be_counted_hides_no_other(caching: CacheBench) -> None:
    caching.engine.uncountable = "a/q030"
    assert len(await caching.visible()) == CACHED - 1
    caching.engine.uncountable = ""
    assert len(await caching.visible()) == CACHED
