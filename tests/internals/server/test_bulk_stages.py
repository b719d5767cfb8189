"""Staging in bulk: a body is read in turns of the loop, one at a time, and what it comes to is asked of the engine."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.internals.server.scripted_engine import ScriptedEngine
from veilmq.core.commands import NewMessage
from veilmq.core.errors import InternalError, StoreFull
from veilmq.core.publications import Stage, Staged
from veilmq.server.bulk_stages import BulkStages
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.v1.publications import BulkStage, Pieces
from veilmq.wire.v1.request import INVALID_REQUEST

FIRST = Stage(queue="000000000000/q", writer="w", batch=1, attempt="a", part=0, messages=())


class Bench:
    """Staging on a scripted engine; `log` has the pieces in the order in which they were read."""

    def __init__(self) -> None:
        """Made in the event loop."""
        self.engine = ScriptedEngine()
        self.stages = BulkStages(self.engine, aside=self._aside)
        self.log: list[str] = []
        self.heard: list[Any] = []
        self.made_aside = 0

    def stage(self, *bodies: str, error: Exception | None = None) -> Any:
        """Begin to stage messages of these bodies, each a piece; `error` is raised behind them."""

        def read() -> Pieces:
            return self._read(bodies, error)

        return self.stages.ask(BulkStage(first=FIRST, read=read), 0, self.heard.append)

    def _read(self, bodies: tuple[str, ...], error: Exception | None) -> Iterator[tuple[NewMessage, ...]]:
        for body in bodies:
            self.log.append(body)
            yield (NewMessage(body=body, size_bytes=1),)
        if error is not None:
            raise error

    async def _aside(self, begin: Callable[[], Pieces]) -> Pieces:
        self.made_aside += 1
        return begin()

    async def asked(self) -> list[str]:
        """Return the bodies that the engine is asked to keep."""
        for _ in range(50):
            await asyncio.sleep(0)
        ((command, _),) = self.engine.asked
        assert isinstance(command, Stage)
        return [message.body for message in command.messages]


def run(story: Callable[[Bench], Awaitable[None]]) -> None:
    """Tell `story` on a fresh bench."""

    async def tell() -> None:
        await story(Bench())

    asyncio.run(tell())


def test_pieces_become_one_command() -> None:
    async def story(bench: Bench) -> None:
        bench.stage("a", "b").hurry()
        assert await bench.asked() == ["a", "b"]
        bench.engine.answer(Staged(messages=2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert bench.heard == [Staged(messages=2)]
        assert bench.made_aside == 1

    run(story)


def test_one_piece_is_read_in_a_turn_and_one_body_at_a_time() -> None:
    async def story(bench: Bench) -> None:
        bench.stage(*"abcdef")
        bench.stage("other")
        turns = 0
        while "f" not in bench.log:
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 6
        assert bench.log == list("abcdef")

    run(story)


@pytest.mark.parametrize("error", [SqsError(INVALID_REQUEST, "no"), StoreFull()])
def test_what_reading_raises_is_the_answer_and_nothing_is_staged(error: Exception) -> None:
    async def story(bench: Bench) -> None:
        bench.stage("a", error=error)
        bench.stage("next")
        assert await bench.asked() == ["next"]
        assert bench.heard == [error]

    run(story)


def test_a_defect_is_answered_as_one(caplog: pytest.LogCaptureFixture) -> None:
    async def story(bench: Bench) -> None:
        bench.stage("a", error=RuntimeError("a defect"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert [type(result) for result in bench.heard] == [InternalError]
        assert "staging for 000000000000/q failed" in caplog.text

    run(story)


def test_what_a_client_that_goes_wanted_is_not_staged() -> None:
    async def story(bench: Bench) -> None:
        gone = bench.stage("a")
        bench.stage("b")
        await asyncio.sleep(0)
        gone.withdraw()
        assert await bench.asked() == ["b"]
        assert bench.heard == []

    run(story)
