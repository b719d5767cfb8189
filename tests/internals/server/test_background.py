"""Bulk reads: pages become one answer of a bounded size, in turns, and nobody's step is long.

Then: staging in bulk: a body is read in turns of the loop, one at a time, and what it comes to is asked of the engine.
Then: requests with large replies: a connection holds one of them, however many its client asks for and does not take.
Then: publications in slices: asked for until all is in, at the pace of the rate, and for some seconds at the most.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from socket import SO_RCVBUF, SOL_SOCKET
from typing import Any

import msgspec
import pytest

from tests.internals.server.scripted_engine import NoLine, ScriptedEngine
from tests.server.http_host import LARGE, Client, HttpHost, Large, wait_until
from veilmq.core import limits
from veilmq.core.claims import ClaimedMessage, ClaimPage, Publish, Published, ReadClaim, Stage
from veilmq.core.errors import ClaimLost, InternalError, StoreFull
from veilmq.core.messages import NewMessage
from veilmq.server.background import (
    PIECE_CHARACTERS,
    PIECE_MESSAGES,
    PUBLISH_S_MAX,
    READS_AT_ONCE,
    BackgroundRequest,
    BulkRequests,
    OrderedReply,
    Publication,
    pieces,
)
from veilmq.server.http_parser import Request
from veilmq.server.process import loop_factory
from veilmq.testing import VirtualClock
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.v1.claims import BulkRead, bulk_reply
from veilmq.wire.v1.publications import BulkStage, MessageSlices
from veilmq.wire.v1.request import INVALID_REQUEST

FIRST = ReadClaim(queue="000000000000/q", source="s", number=1, shard=2, cursor="here")


def message(body: str) -> ClaimedMessage:
    return ClaimedMessage(bytes(16), body, b"", 0, 0, 1, None)


def page(*bodies: str, cursor: str = "") -> ClaimPage:
    return ClaimPage(messages=[message(body) for body in bodies], cursor=cursor)


class Writer:
    """Notes what it is given; `log` is shared by all."""

    content_type = b"text/x"

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.size_bytes = 0
        self.parts: list[str] = []

    def add(self, messages: Sequence[ClaimedMessage]) -> None:
        bodies = [each.body for each in messages]
        if "bad" in bodies:
            raise ValueError("a defect")
        self.parts += bodies
        self.log.append(bodies[0][:10])
        self.size_bytes += sum(map(len, bodies))

    def finish(self) -> bytes:
        return "\n".join(self.parts).encode()


class Bulk:
    """Bulk requests on a scripted engine; `log` has the pieces in the order in which they were read or written."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine()
        self.requests = BulkRequests(self.engine, in_thread=self._at_once)
        self.log: list[str] = []
        self.heard: list[Any] = []

    async def _at_once(self, make: Callable[[], Any]) -> Any:
        return make()


class Bench(Bulk):
    """Bulk reads."""

    def read(self) -> Any:
        command = BulkRead(first=FIRST, writer=lambda: Writer(self.log))
        return BackgroundRequest(self.requests.read, command, 0, self.heard.append)

    async def asked(self) -> ReadClaim:
        """Return what the engine is asked, and that it is one thing."""
        for _ in range(20):
            await asyncio.sleep(0)
        ((command, _),) = self.engine.pending
        assert isinstance(command, ReadClaim)
        return command

    async def answer(self, result: Any) -> None:
        await self.asked()
        self.engine.answer(result)
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_an_answer_ends_with_the_page_that_fills_it(bench: Bench) -> None:
    bench.read()
    await bench.answer(page("x" * (limits.CLAIM_READ_BYTES - 1), cursor="2"))
    await bench.answer(page("yy", cursor="3"))
    (got,) = bench.heard
    assert (len(got.body), b"x-veilmq-cursor: 3\r\n" in got.headers) == (limits.CLAIM_READ_BYTES + 2, True)


async def test_an_error_of_the_engine_is_the_answer(bench: Bench) -> None:
    """Also behind the first page; and the next read goes on."""
    lost = ClaimLost(1)
    bench.read()
    bench.read()
    await bench.answer(page("a", cursor="2"))
    await bench.answer(lost)
    await bench.answer(page("b"))
    assert bench.heard[0] is lost or bench.heard[1] is lost
    assert len(bench.heard) == 2


async def test_a_defect_is_answered_as_one(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.read()
    await bench.answer(page("bad"))
    assert [type(result) for result in bench.heard] == [InternalError]
    assert "BulkRead failed" in caplog.text


async def test_reads_take_turns(bench: Bench) -> None:
    """One page is asked for at a time, and one piece is written in a turn of the loop."""
    for _ in range(2):
        bench.read()
    bodies = [f"{n:04}" for n in range(10 * PIECE_MESSAGES)]
    await bench.asked()
    bench.engine.answer(page(*bodies))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(bench.engine.pending) == 1  # the other one's, while this one writes
    assert len(bench.log) < 3
    bench.engine.answer(page("other"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert bench.log.index("other") < 5
    assert len(bench.log) == 11
    assert len(bench.heard) == 2


async def test_reads_that_write_take_turns(bench: Bench) -> None:
    """However many there are, the loop has other work after each piece."""
    long = page(*["x"] * (200 * PIECE_MESSAGES), cursor="more")
    for _ in range(4):
        bench.read()
    for _ in range(4):
        await bench.asked()
        bench.engine.answer(long)
    before = len(bench.log)
    for turns in range(1, 21):
        await asyncio.sleep(0)
        assert len(bench.log) - before <= turns


async def test_many_reads_wait_outside(bench: Bench) -> None:
    """With nothing in their hands, until one of those inside is answered."""
    for _ in range(READS_AT_ONCE + 1):
        bench.read()
    for _ in range(READS_AT_ONCE):
        await bench.answer(page("a", cursor="2"))
    assert bench.heard == []
    assert (await bench.asked()).cursor == "2"
    await bench.answer(page("b"))
    assert len(bench.heard) == 1


async def test_a_read_whose_client_goes_is_forgotten(bench: Bench) -> None:
    gone = bench.read()
    bench.read().hurry()
    await bench.asked()
    gone.withdraw()
    await bench.answer(page("other"))
    assert bench.heard == [bulk_reply(b"other", b"text/x", "")]
    assert bench.engine.pending == []


def test_pieces_are_of_bounded_size() -> None:
    """In messages and in characters; a long one is a piece by itself; none is lost."""
    many = [message(str(n)) for n in range(2 * PIECE_MESSAGES + 1)]
    assert [len(piece) for piece in pieces(many)] == [PIECE_MESSAGES, PIECE_MESSAGES, 1]
    long = [message("x" * size) for size in (1, PIECE_CHARACTERS + 1, PIECE_CHARACTERS + 1, 2)]
    assert [[len(each.body) for each in piece] for piece in pieces(long)] == [
        [1, PIECE_CHARACTERS + 1],
        [PIECE_CHARACTERS + 1],
        [2],
    ]
    assert list(pieces([])) == []
    heavy = msgspec.structs.replace(message("x"), properties=bytes(PIECE_CHARACTERS - 1))
    assert [len(piece) for piece in pieces([heavy] * 3)] == [2, 1], "attributes take their time, too"


FIRST_STAGED = Stage(queue="000000000000/q", writer="w", batch=1, attempt="a", part=0, messages=())


class StagingBench(Bulk):
    """Staging in bulk."""

    def stage(self, *bodies: str, error: Exception | None = None) -> Any:
        """Begin to stage messages of these bodies, each a piece; `error` is raised behind them."""

        def read() -> MessageSlices:
            return self._read(bodies, error)

        command = BulkStage(first=FIRST_STAGED, read=read)
        return BackgroundRequest(self.requests.stage, command, 0, self.heard.append)

    def _read(self, bodies: tuple[str, ...], error: Exception | None) -> Iterator[tuple[NewMessage, ...]]:
        for body in bodies:
            self.log.append(body)
            yield (NewMessage(body=body, size_bytes=1),)
        if error is not None:
            raise error

    async def asked(self) -> list[str]:
        """Return the bodies that the engine is asked to keep."""
        for _ in range(50):
            await asyncio.sleep(0)
        ((command, _),) = self.engine.pending
        assert isinstance(command, Stage)
        return [message.body for message in command.messages]


@pytest.fixture
def staging() -> StagingBench:
    return StagingBench()


async def test_one_piece_is_read_in_a_turn_and_one_body_at_a_time(staging: StagingBench) -> None:
    staging.stage(*"abcdef")
    staging.stage("other")
    turns = 0
    while "f" not in staging.log:
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 6
    assert staging.log == list("abcdef")


@pytest.mark.parametrize("error", [SqsError(INVALID_REQUEST, "no"), StoreFull()])
async def test_what_reading_raises_is_the_answer_and_nothing_is_staged(staging: StagingBench, error: Exception) -> None:
    staging.stage("a", error=error)
    staging.stage("next")
    assert await staging.asked() == ["next"]
    assert staging.heard == [error]


async def test_a_defect_of_staging_is_answered_as_one(staging: StagingBench, caplog: pytest.LogCaptureFixture) -> None:
    staging.stage("a", error=RuntimeError("a defect"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert [type(result) for result in staging.heard] == [InternalError]
    assert "BulkStage failed" in caplog.text


async def test_what_a_client_that_goes_wanted_is_not_staged(staging: StagingBench) -> None:
    gone = staging.stage("a")
    staging.stage("b")
    await asyncio.sleep(0)
    gone.withdraw()
    assert await staging.asked() == ["b"]
    assert staging.heard == []


GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
HOLD = b"GET /hold HTTP/1.1\r\nHost: h\r\n\r\n"
ASK = b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n"


def pass_turns(client: Client) -> None:
    for _ in range(50):
        client.send(GET)
        client.read()


@pytest.mark.parametrize("loops", [None, loop_factory()], ids=["asyncio", "the product's"])
def test_what_a_client_does_not_take_is_not_begun(loops: object) -> None:
    """Whatever it asks for: sixty reads without a look at their replies would be a quarter of a gigabyte."""
    with HttpHost(loop_factory=loops) as host, host.client() as client, host.client() as other:  # type: ignore[arg-type]
        client.socket.setsockopt(SOL_SOCKET, SO_RCVBUF, 262_144)
        client.send(ASK * 5)
        pass_turns(other)
        assert 1 <= len(host.begun) <= 2
        assert {len(client.read().body) for _ in range(5)} == {len(LARGE)}
        assert len(host.begun) == 5


@pytest.mark.parametrize("loops", [None, loop_factory()], ids=["asyncio", "the product's"])
def test_an_answer_counts_as_a_whole_until_all_of_it_is_taken(loops: object) -> None:
    """That much it takes of the memory, however little is left of it, and none other is made meanwhile."""
    with HttpHost(loop_factory=loops) as host, host.client() as client:  # type: ignore[arg-type]
        client.socket.setsockopt(SOL_SOCKET, SO_RCVBUF, 262_144)
        client.send(ASK * 3)
        wait_until(lambda: host.call(lambda: host.budget.unread_replies) > len(LARGE))
        assert len(host.begun) == 1
        assert {len(client.read().body) for _ in range(3)} == {len(LARGE)}
        wait_until(lambda: host.call(lambda: host.budget.unread_replies) == 0)


def test_it_is_begun_when_all_before_it_are_answered() -> None:
    with HttpHost() as host, host.client() as client, host.client() as other:
        client.send(HOLD + GET + ASK + GET)
        held = host.await_held()
        pass_turns(other)
        assert host.begun == []
        host.release(held, b"first")
        assert client.read().body == b"first"
        assert client.read().body.startswith(b"GET /")
        assert client.read().body == LARGE
        assert client.read().body.startswith(b"GET /")


def test_it_is_not_begun_for_a_client_that_has_gone() -> None:
    with HttpHost() as host:
        client = host.client()
        client.send(HOLD + ASK)
        held = host.await_held()
        client.reset()
        host.wait_closed()
        host.release(held, b"late")
        assert host.begun == []


def test_it_hears_of_a_half_close_before_and_after_it_has_begun() -> None:
    with HttpHost() as host, host.client() as client, host.client() as other:
        client.socket.setsockopt(SOL_SOCKET, SO_RCVBUF, 262_144)
        client.send(HOLD + ASK)
        host.await_held()
        client.half_close()
        assert client.read().body == b"hurried"
        assert client.read().body == LARGE
        assert client.at_end()
        assert host.begun[0].calls == ["hurry"]
        pass_turns(other)


def test_one_that_is_begun_while_the_server_drains_hears_of_it() -> None:
    with HttpHost() as host, host.client() as client, host.client() as other:
        client.socket.setsockopt(SOL_SOCKET, SO_RCVBUF, 262_144)
        client.send(ASK * 3)
        pass_turns(other)
        host.drain()
        begun = len(host.begun)
        assert begun < 3
        assert [client.read().body == LARGE for _ in range(3)] == [True] * 3
        assert [each.calls for each in host.begun[begun:]] == [["hurry"]] * (3 - begun)


@pytest.mark.parametrize("at_first", [True, False])
def test_one_that_is_withdrawn_ends_or_never_begins(at_first: bool) -> None:
    begun: list[Large] = []
    request = Request(NoLine(), b"GET", b"/large", {}, b"", True)

    def begin() -> Large:
        begun.append(Large(request))
        return begun[-1]

    pending = OrderedReply(request, begin)
    if at_first:
        pending.withdraw()
    assert begun == []
    assert request.start_when_first is not None
    request.start_when_first()
    pending.withdraw()
    assert [each.calls for each in begun] == ([] if at_first else [["withdraw"]])


COMMAND = Publish(queue="000000000000/q", writer="w", batch=1, attempts=(("a", 9),))
ALL = Published(messages=9)
SOME = Published(messages=9, more=True)


class PublishingBench:
    """Publishing on a scripted engine."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine()
        self.clock = VirtualClock()
        self.heard: list[Any] = []

    async def publish(self) -> Publication:
        one = Publication(self.engine, self.clock, COMMAND, 0, self.heard.append)
        await self.rest()
        return one

    async def rest(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def answer(self, result: Any) -> None:
        assert self.engine.answer(result) == COMMAND
        await self.rest()

    async def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        await self.rest()

    def some(self, *, in_ms: int) -> Published:
        return Published(messages=9, more=True, next_due_ms=self.clock.now_ms() + in_ms)


@pytest.fixture
def publishing() -> PublishingBench:
    return PublishingBench()


async def test_slices_follow_each_other_until_all_is_in(publishing: PublishingBench) -> None:
    """What is answered is whether the first found the batch published."""
    await publishing.publish()
    await publishing.answer(SOME)
    await publishing.answer(Published(messages=9, again=True, more=True))
    assert publishing.heard == []
    await publishing.answer(Published(messages=9, again=True, duplicates=2))
    assert publishing.heard == [Published(messages=9, duplicates=2)]
    await publishing.publish()
    await publishing.answer(Published(messages=9, again=True))
    assert publishing.heard[1:] == [Published(messages=9, again=True)]


async def test_a_rate_is_waited_for(publishing: PublishingBench) -> None:
    await publishing.publish()
    await publishing.answer(publishing.some(in_ms=100))
    await publishing.advance(99)
    assert publishing.engine.pending == []
    await publishing.advance(1)
    await publishing.answer(ALL)
    assert publishing.heard == [ALL]


async def test_an_answer_comes_after_some_seconds(publishing: PublishingBench) -> None:
    """Also where the next slice is due behind them; there is more then, and somebody may ask again."""
    await publishing.publish()
    late = publishing.some(in_ms=PUBLISH_S_MAX * 1_000)
    await publishing.answer(late)
    assert publishing.heard == [late]
    await publishing.publish()
    await publishing.advance(PUBLISH_S_MAX * 1_000)
    await publishing.answer(SOME)
    assert publishing.heard[1:] == [SOME]


async def test_who_is_hurried_answers_with_the_next_slice(publishing: PublishingBench) -> None:
    waiting, asking = await publishing.publish(), await publishing.publish()
    await publishing.answer(publishing.some(in_ms=100))
    for each in (waiting, asking):
        each.hurry()
    await publishing.rest()
    assert len(publishing.engine.pending) == 2
    for _ in range(2):
        await publishing.answer(SOME)
    assert publishing.heard == [SOME, SOME]
    await publishing.advance(100)
    assert publishing.engine.pending == []


async def test_who_has_gone_asks_for_nothing_more(publishing: PublishingBench) -> None:
    """Neither what it has asked already, nor when its time comes, nor after an answer that was on its way."""
    (await publishing.publish()).withdraw()
    await publishing.rest()
    assert publishing.engine.pending == []
    waiting = await publishing.publish()
    await publishing.answer(publishing.some(in_ms=100))
    waiting.withdraw()
    await publishing.advance(100)
    assert publishing.engine.pending == []
    begun = await publishing.publish()
    publishing.engine.answer(SOME)
    begun.withdraw()
    await publishing.rest()
    assert (publishing.engine.pending, publishing.heard) == ([], [])
