"""Bulk reads: pages become one answer of a bounded size, in turns, and nobody's step is long."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from tests.internals.server.scripted_engine import ScriptedEngine
from veilmq.core import limits
from veilmq.core.claims import ClaimedMessage, ClaimPage, ReadClaim
from veilmq.core.errors import ClaimLost, InternalError
from veilmq.server.bulk_reads import PAGE_MESSAGES, PIECE_CHARACTERS, PIECE_MESSAGES, READS_AT_ONCE, BulkReads, pieces
from veilmq.wire.v1.claims import BulkRead, Gathered

FIRST = ReadClaim(queue="000000000000/q", source="s", number=1, shard=2, cursor="here")


def message(body: str) -> ClaimedMessage:
    """Return a message with `body`."""
    return ClaimedMessage(bytes(16), body, b"", 0, 0, 1, None)


def page(*bodies: str, cursor: str = "") -> ClaimPage:
    """Return a page of messages with `bodies`."""
    return ClaimPage(messages=[message(body) for body in bodies], cursor=cursor)


class Writer:
    """Notes what it is given; `log` is shared by all."""

    content_type = b"text/x"

    def __init__(self, log: list[str]) -> None:
        """Nothing is written."""
        self.log = log
        self.size_bytes = 0
        self.parts: list[str] = []

    def add(self, messages: Sequence[ClaimedMessage]) -> None:
        """Note bodies."""
        bodies = [each.body for each in messages]
        if "bad" in bodies:
            raise ValueError("a defect")
        self.parts += bodies
        self.log.append(bodies[0][:10])
        self.size_bytes += sum(map(len, bodies))

    def finish(self) -> bytes:
        """Return the bodies, each on a line."""
        return "\n".join(self.parts).encode()


class Bench:
    """Bulk reads on a scripted engine."""

    def __init__(self) -> None:
        """Made in the event loop."""
        self.engine = ScriptedEngine()
        self.reads = BulkReads(self.engine, aside=self._aside)
        self.log: list[str] = []
        self.heard: list[Any] = []
        self.made_aside = 0

    def read(self) -> Any:
        """Begin a read."""
        return self.reads.ask(BulkRead(first=FIRST, writer=lambda: Writer(self.log)), 0, self.heard.append)

    async def _aside(self, make: Callable[[], Any]) -> Any:
        self.made_aside += 1
        return make()

    async def asked(self) -> ReadClaim:
        """Return what the engine is asked, and that it is one thing."""
        for _ in range(20):
            await asyncio.sleep(0)
        ((command, _),) = self.engine.asked
        assert isinstance(command, ReadClaim)
        return command

    async def answer(self, result: Any) -> None:
        """Answer it."""
        await self.asked()
        self.engine.answer(result)
        for _ in range(20):
            await asyncio.sleep(0)


def run(story: Callable[[Bench], Awaitable[None]]) -> None:
    """Tell `story` on a fresh bench."""

    async def tell() -> None:
        await story(Bench())

    asyncio.run(tell())


def test_pages_become_one_answer() -> None:
    """The next page begins where the last one ended."""

    async def story(bench: Bench) -> None:
        bench.read()
        assert await bench.asked() == ReadClaim(
            queue="000000000000/q", source="s", number=1, shard=2, cursor="here", messages_max=PAGE_MESSAGES
        )
        await bench.answer(page("a", "b", cursor="there"))
        assert (await bench.asked()).cursor == "there"
        await bench.answer(page("c"))
        assert bench.heard == [Gathered(b"a\nb\nc", b"text/x", "")]

    run(story)


def test_an_answer_ends_with_the_page_that_fills_it() -> None:
    """And tells where the next one begins."""

    async def story(bench: Bench) -> None:
        bench.read()
        await bench.answer(page("x" * (limits.CLAIM_READ_BYTES - 1), cursor="2"))
        await bench.answer(page("yy", cursor="3"))
        assert [(len(got.body), got.cursor) for got in bench.heard] == [(limits.CLAIM_READ_BYTES + 2, "3")]

    run(story)


def test_a_writer_is_made_aside() -> None:
    """Its import may take long."""

    async def story(bench: Bench) -> None:
        bench.read()
        await bench.asked()
        assert bench.made_aside == 1

    run(story)


def test_an_empty_shard_has_an_answer() -> None:
    async def story(bench: Bench) -> None:
        bench.read()
        await bench.answer(page())
        assert bench.heard == [Gathered(b"", b"text/x", "")]

    run(story)


def test_an_error_of_the_engine_is_the_answer() -> None:
    """Also behind the first page; and the next read goes on."""

    async def story(bench: Bench) -> None:
        lost = ClaimLost(1)
        bench.read()
        bench.read()
        await bench.answer(page("a", cursor="2"))
        await bench.answer(lost)
        await bench.answer(page("b"))
        assert bench.heard[0] is lost or bench.heard[1] is lost
        assert len(bench.heard) == 2

    run(story)


def test_a_defect_is_answered_as_one(caplog: pytest.LogCaptureFixture) -> None:
    async def story(bench: Bench) -> None:
        bench.read()
        await bench.answer(page("bad"))
        assert [type(result) for result in bench.heard] == [InternalError]
        assert "reading a claim of 000000000000/q failed" in caplog.text

    run(story)


def test_reads_take_turns() -> None:
    """One page is asked for at a time, and one piece is written in a turn of the loop."""

    async def story(bench: Bench) -> None:
        for _ in range(2):
            bench.read()
        bodies = [f"{n:04}" for n in range(10 * PIECE_MESSAGES)]
        await bench.asked()
        bench.engine.answer(page(*bodies))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(bench.engine.asked) == 1  # the other one's, while this one writes
        assert len(bench.log) < 3
        bench.engine.answer(page("other"))
        for _ in range(50):
            await asyncio.sleep(0)
        assert bench.log.index("other") < 5
        assert len(bench.log) == 11
        assert len(bench.heard) == 2

    run(story)


def test_reads_that_write_take_turns() -> None:
    """However many there are, the loop has other work after each piece."""

    async def story(bench: Bench) -> None:
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

    run(story)


def test_many_reads_wait_outside() -> None:
    """With nothing in their hands, until one of those inside is answered."""

    async def story(bench: Bench) -> None:
        for _ in range(READS_AT_ONCE + 1):
            bench.read()
        for _ in range(READS_AT_ONCE):
            await bench.answer(page("a", cursor="2"))
        assert bench.heard == []
        assert (await bench.asked()).cursor == "2"
        await bench.answer(page("b"))
        assert len(bench.heard) == 1

    run(story)


def test_a_read_whose_client_goes_is_forgotten() -> None:
    """It asks for nothing more, and others do."""

    async def story(bench: Bench) -> None:
        gone = bench.read()
        bench.read().hurry()
        await bench.asked()
        gone.withdraw()
        await bench.answer(page("other"))
        assert bench.heard == [Gathered(b"other", b"text/x", "")]
        assert bench.engine.asked == []

    run(story)


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
