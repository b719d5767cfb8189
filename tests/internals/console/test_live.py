"""Streams of open pages: what they are told and when, what they share, and how they end."""

import asyncio
from dataclasses import dataclass, field
from socket import create_connection
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from tests.console.test_live_page import PATIENCE_S, Watching
from veilmq.client import HttpQueueClient
from veilmq.console import live
from veilmq.console.asking import Asking, Refused
from veilmq.console.live import Live, Reader, Stream, Told, TooManyError
from veilmq.testing import RunningServer, VirtualClock


@dataclass(unsafe_hash=True)
class Asked:
    """A question about a table that the test changes."""

    name: str = "q"
    rows: dict[str, Any] = field(default_factory=dict, compare=False)
    rest: dict[str, Any] = field(default_factory=dict, compare=False)
    refused: Refused | None = field(default=None, compare=False)
    looks: list[int] = field(default_factory=list, compare=False)
    event = "counts"

    async def look(self, asking: Asking, now_ms: int) -> Told:
        self.looks.append(now_ms)
        if self.refused is not None:
            raise self.refused
        return Told(dict(self.rows), dict(self.rest))


async def nobody(*request: Any, **who: Any) -> Any:
    """Carry nothing."""
    raise AssertionError(request, who)


class Page:
    """An open page: what it was told."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.told: list[tuple[str, Any]] = []
        self.reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for sent in self.stream.events():
            for event in sent.decode().split("\n\n"):
                if event.startswith("event: "):
                    name, _, data = event.removeprefix("event: ").partition("\ndata: ")
                    self.told.append((name, msgspec.json.decode(data)))

    @property
    def last(self) -> Any:
        return self.told[-1][1]


class World:
    """A clock, and what is open."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.live = Live(self.clock)
        self.gone: set[str] = set()

    def reader(self, who: str = "me") -> Reader:
        asking = Asking(nobody, caller=None, peer=None, host="h")
        return Reader(who, asking, lambda: who not in self.gone)

    async def page(self, *questions: Asked, who: str = "me") -> Page:
        page = Page(self.live.open(self.reader(who), list(questions)))
        await self.turn()
        return page

    async def turn(self, ms: int = 0) -> None:
        """Move the clock, and let what that sets off happen."""
        self.clock.advance(ms)
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
def world() -> World:
    return World()


async def test_pages_that_look_at_very_many_rows_look_more_seldom(world: World) -> None:
    """Together: the cost is that of so many rows a second, whoever asks; with fewer it is once a second again."""
    one, other = Asked("one"), Asked("other")
    one.rows = dict.fromkeys(map(str, range(live.ROWS_PER_S)), 0)
    other.rows = dict(one.rows)
    await world.page(one)
    await world.turn(1_000)
    page = await world.page(other)
    for asked in (one, other):
        asked.looks.clear()
    await world.turn(2_000)
    await world.turn(1_999)
    assert (len(one.looks), len(other.looks)) == (1, 1)
    await world.turn(1)
    assert (len(one.looks), len(other.looks)) == (2, 2)
    world.live.leave(page.stream)
    await world.turn(2_000)
    await world.turn(1_000)
    assert len(one.looks) == 4


async def test_there_is_one_look_a_second_at_most_and_none_without_a_page(world: World) -> None:
    asked = Asked()
    page = await world.page(asked)
    for _ in range(20):
        await world.turn(250)
    assert len(asked.looks) == 6
    for _ in range(3):
        await world.page(asked)
    assert len(asked.looks) == 6, "who comes later hears what is known"
    world.live.close()
    await world.turn(10_000)
    assert len(asked.looks) == 6
    assert world.clock.next_timer_ms() is None
    assert page.reading.done()


async def test_pages_of_one_caller_share_a_question_and_others_do_not(world: World) -> None:
    mine, same, other = Asked(), Asked(), Asked()
    mine.rows = {"a": 1}
    await world.page(mine)
    second = await world.page(same)
    third = await world.page(other, who="another")
    assert second.last == {"whole": True, "set": {"a": 1}}
    await world.turn(1_000)
    assert (len(mine.looks), len(same.looks), len(other.looks)) == (2, 0, 2)
    assert third.last == {"whole": True, "set": {}}


async def test_a_page_that_does_not_read_has_the_newest_state_waiting(world: World) -> None:
    asked = Asked()
    asked.rows = {"a": 0, "b": 0}
    stream = world.live.open(world.reader(), [asked])
    events = stream.events()
    await anext(events)
    await world.turn()
    for number in range(1, 50):
        asked.rows["a"] = number
        await world.turn(1_000)
    sent = await anext(events)
    assert sent.count(b"event: ") == 1
    assert msgspec.json.decode(sent.partition(b"data: ")[2]) == {"whole": True, "set": {"a": 49, "b": 0}}
    asked.rows["a"] = 99
    await world.turn(1_000)
    assert msgspec.json.decode((await anext(events)).partition(b"data: ")[2]) == {"set": {"a": 99}, "gone": []}


async def test_who_may_not_see_it_any_more_is_told_and_ended(world: World) -> None:
    asked = Asked()
    page = await world.page(asked)
    asked.refused = Refused("AccessDenied", "You may not.", 403)
    await world.turn(1_000)
    assert page.told[-1] == ("over", {"why": "You may not."})
    assert page.reading.done()


async def test_a_store_that_cannot_be_reached_ends_nothing(world: World) -> None:
    asked = Asked()
    page = await world.page(asked)
    asked.refused = Refused("StoreUnavailable", "Later.", 503)
    await world.turn(1_000)
    asked.refused, asked.rows = None, {"a": 1}
    await world.turn(1_000)
    assert page.last["set"] == {"a": 1}


async def test_a_page_that_goes_late_takes_nothing_from_one_that_came_since(world: World) -> None:
    """One that does not read ends when its client goes, though it was ended before."""
    late = world.live.open(world.reader(), [Asked()])
    world.live.leave(late)
    asked = Asked()
    page = await world.page(asked)
    world.live.leave(late)
    asked.rows = {"a": 1}
    await world.turn(1_000)
    assert page.last == {"set": {"a": 1}, "gone": []}


async def test_there_are_so_many_pages_and_no_more(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setattr(live, "STREAMS_MAX", 2)

    first, _ = await world.page(Asked("a")), await world.page(Asked("b"))
    with pytest.raises(TooManyError):
        world.live.open(world.reader(), [Asked("c")])
    world.live.leave(first.stream)
    await world.page(Asked("c"))
    world.live.close()
    with pytest.raises(TooManyError):
        world.live.open(world.reader(), [Asked("d")])


def test_who_asks_for_the_head_alone_is_no_open_page(
    server: RunningServer, client: HttpQueueClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "STREAMS_MAX", 1)
    client.create_queue("a")
    address = urlsplit(server.admin_endpoint)
    with create_connection((address.hostname, address.port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"HEAD /console/live?counts=a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(4_096).startswith(b"HTTP/1.1 200 ")
        with Watching(server, counts="a") as page:
            assert page.reply.status == 200
