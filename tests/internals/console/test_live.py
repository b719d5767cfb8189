"""Event streams of open pages: events, shared queries, limits, and how streams end."""

import asyncio
from dataclasses import dataclass, field
from socket import create_connection
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from tests.console.test_live_page import PATIENCE_S, EventStream
from veilmq.client import HttpQueueClient
from veilmq.console import live
from veilmq.console.api_client import ApiClient, ApiError
from veilmq.console.live import Live, Snapshot, Stream, Subscriber, TooManyError
from veilmq.testing import RunningServer, VirtualClock


@dataclass(unsafe_hash=True)
class TableQuery:
    """A query of a table that the test changes."""

    name: str = "q"
    rows: dict[str, Any] = field(default_factory=dict, compare=False)
    rest: dict[str, Any] = field(default_factory=dict, compare=False)
    error: ApiError | None = field(default=None, compare=False)
    runs: list[int] = field(default_factory=list, compare=False)
    event = "counts"

    async def run(self, client: ApiClient, now_ms: int) -> Snapshot:
        self.runs.append(now_ms)
        if self.error is not None:
            raise self.error
        return Snapshot(dict(self.rows), dict(self.rest))


async def no_requests(*request: Any, **fields: Any) -> Any:
    raise AssertionError(request, fields)


class Page:
    """An open page and its events."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.events: list[tuple[str, Any]] = []
        self.reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for sent in self.stream.events():
            for event in sent.decode().split("\n\n"):
                if event.startswith("event: "):
                    name, _, data = event.removeprefix("event: ").partition("\ndata: ")
                    self.events.append((name, msgspec.json.decode(data)))

    @property
    def last(self) -> Any:
        return self.events[-1][1]


class World:
    """Live updates on a virtual clock; sessions in ``ended`` are invalid."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.live = Live(self.clock)
        self.ended: set[str] = set()

    def subscriber(self, user: str = "me") -> Subscriber:
        client = ApiClient(no_requests, caller=None, peer=None, host="h")
        return Subscriber(user, client, lambda: user not in self.ended)

    async def page(self, *queries: TableQuery, user: str = "me") -> Page:
        page = Page(self.live.open(self.subscriber(user), list(queries)))
        await self.advance()
        return page

    async def advance(self, ms: int = 0) -> None:
        """Advance the clock, and run what is due."""
        self.clock.advance(ms)
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
def world() -> World:
    return World()


async def test_queries_of_many_rows_run_less_often(world: World) -> None:
    """The limit is on rows per second of all pages; with fewer rows, queries run once a second again."""
    one, other = TableQuery("one"), TableQuery("other")
    one.rows = dict.fromkeys(map(str, range(live.ROWS_PER_S)), 0)
    other.rows = dict(one.rows)
    await world.page(one)
    await world.advance(1_000)
    page = await world.page(other)
    for query in (one, other):
        query.runs.clear()
    await world.advance(2_000)
    await world.advance(1_999)
    assert (len(one.runs), len(other.runs)) == (1, 1)
    await world.advance(1)
    assert (len(one.runs), len(other.runs)) == (2, 2)
    world.live.close_stream(page.stream)
    await world.advance(2_000)
    await world.advance(1_000)
    assert len(one.runs) == 4


async def test_a_query_runs_once_a_second_while_a_page_is_open(world: World) -> None:
    query = TableQuery()
    page = await world.page(query)
    for _ in range(20):
        await world.advance(250)
    assert len(query.runs) == 6
    for _ in range(3):
        await world.page(query)
    assert len(query.runs) == 6, "a new page gets the last result"
    world.live.close()
    await world.advance(10_000)
    assert len(query.runs) == 6
    assert world.clock.next_timer_ms() is None
    assert page.reading.done()


async def test_pages_of_one_caller_share_a_query(world: World) -> None:
    mine, same, other = TableQuery(), TableQuery(), TableQuery()
    mine.rows = {"a": 1}
    await world.page(mine)
    second = await world.page(same)
    third = await world.page(other, user="another")
    assert second.last == {"whole": True, "set": {"a": 1}}
    await world.advance(1_000)
    assert (len(mine.runs), len(same.runs), len(other.runs)) == (2, 0, 2)
    assert third.last == {"whole": True, "set": {}}


async def test_a_page_that_does_not_read_gets_only_the_newest_state(world: World) -> None:
    query = TableQuery()
    query.rows = {"a": 0, "b": 0}
    stream = world.live.open(world.subscriber(), [query])
    events = stream.events()
    await anext(events)
    await world.advance()
    for number in range(1, 50):
        query.rows["a"] = number
        await world.advance(1_000)
    sent = await anext(events)
    assert sent.count(b"event: ") == 1
    assert msgspec.json.decode(sent.partition(b"data: ")[2]) == {"whole": True, "set": {"a": 49, "b": 0}}
    query.rows["a"] = 99
    await world.advance(1_000)
    assert msgspec.json.decode((await anext(events)).partition(b"data: ")[2]) == {"set": {"a": 99}, "removed": []}


async def test_an_unavailable_store_does_not_end_the_stream(world: World) -> None:
    query = TableQuery()
    page = await world.page(query)
    query.error = ApiError("StoreUnavailable", "Later.", 503)
    await world.advance(1_000)
    query.error, query.rows = None, {"a": 1}
    await world.advance(1_000)
    assert page.last["set"] == {"a": 1}


@pytest.mark.parametrize("ended", [pytest.param({"me"}, id="session"), pytest.param(set[str](), id="permission")])
async def test_a_page_that_does_not_read_gets_the_reason_of_the_end(world: World, ended: set[str]) -> None:
    query = TableQuery()
    stream = world.live.open(world.subscriber(), [query])
    events = stream.events()
    await anext(events)
    await world.advance()
    world.ended, query.error = ended, ApiError("AccessDenied", "Denied.", 403)
    await world.advance(1_000)
    sent = await anext(events)
    assert sent.count(b"event: end") == 1
    assert (b"sign in" if ended else b"Denied.") in sent
    assert [event async for event in events] == []


async def test_closing_a_stream_twice_keeps_a_later_query_of_the_same_key(world: World) -> None:
    """A stream that is not read is closed again when its client disconnects."""
    late = world.live.open(world.subscriber(), [TableQuery()])
    world.live.close_stream(late)
    query = TableQuery()
    page = await world.page(query)
    world.live.close_stream(late)
    query.rows = {"a": 1}
    await world.advance(1_000)
    assert page.last == {"set": {"a": 1}, "removed": []}


async def test_the_number_of_open_pages_is_limited(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setattr(live, "STREAMS_MAX", 2)

    first, _ = await world.page(TableQuery("a")), await world.page(TableQuery("b"))
    with pytest.raises(TooManyError):
        world.live.open(world.subscriber(), [TableQuery("c")])
    world.live.close_stream(first.stream)
    await world.page(TableQuery("c"))
    world.live.close()
    with pytest.raises(TooManyError):
        world.live.open(world.subscriber(), [TableQuery("d")])


def test_head_opens_no_stream(server: RunningServer, client: HttpQueueClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "STREAMS_MAX", 1)
    client.create_queue("a")
    address = urlsplit(server.admin_endpoint)
    with create_connection((address.hostname, address.port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"HEAD /console/live?counts=a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(4_096).startswith(b"HTTP/1.1 200 ")
        with EventStream(server, counts="a") as page:
            assert page.reply.status == 200
