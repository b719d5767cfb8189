"""Requests of many steps: bulk reads, bulk staging, large replies, publications.

Bulk reads and staging share the event loop, one piece per iteration. A connection holds one large reply at a time.
Publications run in slices, at the pace of their rate, and reply after some seconds at most.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from socket import SO_RCVBUF, SOL_SOCKET
from typing import Any

import msgspec
import pytest

from tests.internals.server.scripted_engine import NullConnection, ScriptedEngine
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
    """Records the messages; `log` is shared by all."""

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
    """Bulk requests on a scripted engine; `log` has the pieces in processing order."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine()
        self.requests = BulkRequests(self.engine, in_thread=self._at_once)
        self.log: list[str] = []
        self.results: list[Any] = []

    async def _at_once(self, make: Callable[[], Any]) -> Any:
        return make()


class Bench(Bulk):
    """Bulk reads."""

    def read(self) -> Any:
        command = BulkRead(first=FIRST, writer=lambda: Writer(self.log))
        return BackgroundRequest(self.requests.read, command, 0, self.results.append)

    async def pending(self) -> ReadClaim:
        """Return the only pending command."""
        for _ in range(20):
            await asyncio.sleep(0)
        ((command, _),) = self.engine.pending
        assert isinstance(command, ReadClaim)
        return command

    async def complete(self, result: Any) -> None:
        await self.pending()
        self.engine.complete(result)
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_reply_ends_with_the_page_that_fills_it(bench: Bench) -> None:
    bench.read()
    await bench.complete(page("x" * (limits.CLAIM_READ_BYTES - 1), cursor="2"))
    await bench.complete(page("yy", cursor="3"))
    (got,) = bench.results
    assert (len(got.body), b"x-veilmq-cursor: 3\r\n" in got.headers) == (limits.CLAIM_READ_BYTES + 2, True)


async def test_an_error_of_the_store_is_the_reply(bench: Bench) -> None:
    """Also after the first page; the next read continues."""
    lost = ClaimLost(1)
    bench.read()
    bench.read()
    await bench.complete(page("a", cursor="2"))
    await bench.complete(lost)
    await bench.complete(page("b"))
    assert bench.results[0] is lost or bench.results[1] is lost
    assert len(bench.results) == 2


async def test_a_defect_is_an_internal_error(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.read()
    await bench.complete(page("bad"))
    assert [type(result) for result in bench.results] == [InternalError]
    assert "BulkRead failed" in caplog.text


async def test_reads_alternate(bench: Bench) -> None:
    """One page is queried at a time, and one piece is encoded per loop iteration."""
    for _ in range(2):
        bench.read()
    bodies = [f"{n:04}" for n in range(10 * PIECE_MESSAGES)]
    await bench.pending()
    bench.engine.complete(page(*bodies))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(bench.engine.pending) == 1  # of the other read, while this one encodes
    assert len(bench.log) < 3
    bench.engine.complete(page("other"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert bench.log.index("other") < 5
    assert len(bench.log) == 11
    assert len(bench.results) == 2


async def test_encoding_reads_yields_after_each_piece(bench: Bench) -> None:
    """However many reads there are."""
    long = page(*["x"] * (200 * PIECE_MESSAGES), cursor="more")
    for _ in range(4):
        bench.read()
    for _ in range(4):
        await bench.pending()
        bench.engine.complete(long)
    before = len(bench.log)
    for turns in range(1, 21):
        await asyncio.sleep(0)
        assert len(bench.log) - before <= turns


async def test_the_number_of_concurrent_reads_is_limited(bench: Bench) -> None:
    """The others wait and hold nothing."""
    for _ in range(READS_AT_ONCE + 1):
        bench.read()
    for _ in range(READS_AT_ONCE):
        await bench.complete(page("a", cursor="2"))
    assert bench.results == []
    assert (await bench.pending()).cursor == "2"
    await bench.complete(page("b"))
    assert len(bench.results) == 1


async def test_a_withdrawn_read_is_cancelled(bench: Bench) -> None:
    gone = bench.read()
    bench.read().hurry()
    await bench.pending()
    gone.withdraw()
    await bench.complete(page("other"))
    assert bench.results == [bulk_reply(b"other", b"text/x", "")]
    assert bench.engine.pending == []


def test_pieces_are_bounded() -> None:
    """In messages and in characters; a long message is a piece alone; none is lost."""
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
    assert [len(piece) for piece in pieces([heavy] * 3)] == [2, 1], "attributes count too"


FIRST_STAGED = Stage(queue="000000000000/q", writer="w", batch=1, attempt="a", part=0, messages=())


class StagingBench(Bulk):
    """Bulk staging."""

    def stage(self, *bodies: str, error: Exception | None = None) -> Any:
        """Begin to stage messages with these bodies, each a piece; then `error` is raised."""

        def read() -> MessageSlices:
            return self._read(bodies, error)

        command = BulkStage(first=FIRST_STAGED, read=read)
        return BackgroundRequest(self.requests.stage, command, 0, self.results.append)

    def _read(self, bodies: tuple[str, ...], error: Exception | None) -> Iterator[tuple[NewMessage, ...]]:
        for body in bodies:
            self.log.append(body)
            yield (NewMessage(body=body, size_bytes=1),)
        if error is not None:
            raise error

    async def staged(self) -> list[str]:
        """Return the bodies of the pending Stage command."""
        for _ in range(50):
            await asyncio.sleep(0)
        ((command, _),) = self.engine.pending
        assert isinstance(command, Stage)
        return [message.body for message in command.messages]


@pytest.fixture
def staging() -> StagingBench:
    return StagingBench()


async def test_one_piece_is_decoded_per_iteration_and_one_body_at_a_time(staging: StagingBench) -> None:
    staging.stage(*"abcdef")
    staging.stage("other")
    turns = 0
    while "f" not in staging.log:
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 6
    assert staging.log == list("abcdef")


@pytest.mark.parametrize("error", [SqsError(INVALID_REQUEST, "no"), StoreFull()])
async def test_an_error_of_decoding_is_the_reply(staging: StagingBench, error: Exception) -> None:
    staging.stage("a", error=error)
    staging.stage("next")
    assert await staging.staged() == ["next"]
    assert staging.results == [error]


async def test_a_defect_of_staging_is_an_internal_error(
    staging: StagingBench, caplog: pytest.LogCaptureFixture
) -> None:
    staging.stage("a", error=RuntimeError("a defect"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert [type(result) for result in staging.results] == [InternalError]
    assert "BulkStage failed" in caplog.text


async def test_a_withdrawn_request_stages_nothing(staging: StagingBench) -> None:
    gone = staging.stage("a")
    staging.stage("b")
    await asyncio.sleep(0)
    gone.withdraw()
    assert await staging.staged() == ["b"]
    assert staging.results == []


GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
HOLD = b"GET /hold HTTP/1.1\r\nHost: h\r\n\r\n"
LARGE_GET = b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n"


def pass_turns(client: Client) -> None:
    for _ in range(50):
        client.send(GET)
        client.read()


@pytest.mark.parametrize("loops", [None, loop_factory()], ids=["asyncio", "uvloop"])
def test_a_large_request_starts_when_the_client_has_read_earlier_replies(loops: object) -> None:
    """Otherwise sixty unread replies would take a quarter of a gigabyte."""
    with HttpHost(loop_factory=loops) as host, host.client() as client, host.client() as other:  # type: ignore[arg-type]
        client.socket.setsockopt(SOL_SOCKET, SO_RCVBUF, 262_144)
        client.send(LARGE_GET * 5)
        pass_turns(other)
        assert 1 <= len(host.begun) <= 2
        assert {len(client.read().body) for _ in range(5)} == {len(LARGE)}
        assert len(host.begun) == 5


@pytest.mark.parametrize("loops", [None, loop_factory()], ids=["asyncio", "uvloop"])
def test_a_reply_counts_as_a_whole_until_all_of_it_is_read(loops: object) -> None:
    """It occupies that memory until then, and no other reply is made meanwhile."""
    with HttpHost(loop_factory=loops) as host, host.client() as client:  # type: ignore[arg-type]
        client.socket.setsockopt(SOL_SOCKET, SO_RCVBUF, 262_144)
        client.send(LARGE_GET * 3)
        wait_until(lambda: host.call(lambda: host.budget.unread_replies) > len(LARGE))
        assert len(host.begun) == 1
        assert {len(client.read().body) for _ in range(3)} == {len(LARGE)}
        wait_until(lambda: host.call(lambda: host.budget.unread_replies) == 0)


def test_a_large_request_starts_when_all_earlier_ones_are_answered() -> None:
    with HttpHost() as host, host.client() as client, host.client() as other:
        client.send(HOLD + GET + LARGE_GET + GET)
        held = host.await_held()
        pass_turns(other)
        assert host.begun == []
        host.release(held, b"first")
        assert client.read().body == b"first"
        assert client.read().body.startswith(b"GET /")
        assert client.read().body == LARGE
        assert client.read().body.startswith(b"GET /")


def test_a_large_request_of_a_closed_connection_does_not_start() -> None:
    with HttpHost() as host:
        client = host.client()
        client.send(HOLD + LARGE_GET)
        held = host.await_held()
        client.reset()
        host.wait_closed()
        host.release(held, b"late")
        assert host.begun == []


def test_a_half_close_hurries_a_large_request() -> None:
    with HttpHost() as host, host.client() as client, host.client() as other:
        client.socket.setsockopt(SOL_SOCKET, SO_RCVBUF, 262_144)
        client.send(HOLD + LARGE_GET)
        host.await_held()
        client.half_close()
        assert client.read().body == b"hurried"
        assert client.read().body == LARGE
        assert client.at_end()
        assert host.begun[0].calls == ["hurry"]
        pass_turns(other)


def test_a_large_request_that_starts_while_the_server_drains_is_hurried() -> None:
    with HttpHost() as host, host.client() as client, host.client() as other:
        client.socket.setsockopt(SOL_SOCKET, SO_RCVBUF, 262_144)
        client.send(LARGE_GET * 3)
        pass_turns(other)
        host.drain()
        begun = len(host.begun)
        assert begun < 3
        assert [client.read().body == LARGE for _ in range(3)] == [True] * 3
        assert [each.calls for each in host.begun[begun:]] == [["hurry"]] * (3 - begun)


@pytest.mark.parametrize("at_first", [True, False])
def test_a_withdrawn_ordered_reply_ends_or_never_starts(at_first: bool) -> None:
    begun: list[Large] = []
    request = Request(NullConnection(), b"GET", b"/large", {}, b"", True)

    def begin() -> Large:
        begun.append(Large(request))
        return begun[-1]

    pending = OrderedReply(request, begin)
    if at_first:
        pending.withdraw()
    assert begun == []
    assert request.in_turn is not None
    request.in_turn()
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
        self.results: list[Any] = []

    async def publish(self) -> Publication:
        one = Publication(self.engine, self.clock, COMMAND, 0, self.results.append)
        await self.rest()
        return one

    async def rest(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def complete(self, result: Any) -> None:
        assert self.engine.complete(result) == COMMAND
        await self.rest()

    async def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        await self.rest()

    def some(self, *, in_ms: int) -> Published:
        return Published(messages=9, more=True, next_due_ms=self.clock.now_ms() + in_ms)


@pytest.fixture
def publishing() -> PublishingBench:
    return PublishingBench()


async def test_slices_follow_until_the_batch_is_published(publishing: PublishingBench) -> None:
    """The reply has ``again`` of the first slice."""
    await publishing.publish()
    await publishing.complete(SOME)
    await publishing.complete(Published(messages=9, again=True, more=True))
    assert publishing.results == []
    await publishing.complete(Published(messages=9, again=True, duplicates=2))
    assert publishing.results == [Published(messages=9, duplicates=2)]
    await publishing.publish()
    await publishing.complete(Published(messages=9, again=True))
    assert publishing.results[1:] == [Published(messages=9, again=True)]


async def test_a_rate_delays_the_next_slice(publishing: PublishingBench) -> None:
    await publishing.publish()
    for _ in range(2):
        await publishing.complete(publishing.some(in_ms=100))
        await publishing.advance(99)
        assert publishing.engine.pending == []
        await publishing.advance(1)
    await publishing.complete(ALL)
    assert publishing.results == [ALL]


async def test_the_reply_comes_after_some_seconds(publishing: PublishingBench) -> None:
    """Even if more is to be published; the client may repeat the request."""
    await publishing.publish()
    late = publishing.some(in_ms=PUBLISH_S_MAX * 1_000)
    await publishing.complete(late)
    assert publishing.results == [late]
    await publishing.publish()
    await publishing.advance(PUBLISH_S_MAX * 1_000)
    await publishing.complete(SOME)
    assert publishing.results[1:] == [SOME]


async def test_a_hurried_publication_replies_after_its_current_slice(publishing: PublishingBench) -> None:
    waiting, submitted = await publishing.publish(), await publishing.publish()
    await publishing.complete(publishing.some(in_ms=100))
    for each in (waiting, submitted):
        each.hurry()
    await publishing.rest()
    assert len(publishing.engine.pending) == 2
    for _ in range(2):
        await publishing.complete(SOME)
    assert publishing.results == [SOME, SOME]
    await publishing.advance(100)
    assert publishing.engine.pending == []


async def test_a_withdrawn_publication_submits_nothing_more(publishing: PublishingBench) -> None:
    """While it waits, while a slice is pending, and after a slice was applied."""
    (await publishing.publish()).withdraw()
    await publishing.rest()
    assert publishing.engine.pending == []
    waiting = await publishing.publish()
    await publishing.complete(publishing.some(in_ms=100))
    waiting.withdraw()
    await publishing.advance(100)
    assert publishing.engine.pending == []
    begun = await publishing.publish()
    publishing.engine.complete(SOME)
    begun.withdraw()
    await publishing.rest()
    assert (publishing.engine.pending, publishing.results) == ([], [])
