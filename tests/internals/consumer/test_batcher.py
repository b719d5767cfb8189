"""Requests gathered into batches: at ten, after a moment, or when told to."""

import asyncio
from collections.abc import Sequence

from veilmq.client.messages import ClientError, Unreachable
from veilmq.consumer.settling import Batcher

REFUSED = ClientError("InternalError", "no", 500)


class Sink:
    """Takes batches, and answers each entry by its sign."""

    def __init__(self) -> None:
        """Have nothing."""
        self.batches: list[list[int]] = []

    async def take(self, entries: Sequence[int]) -> list[ClientError | None]:
        """Refuse what is negative; a zero makes the whole call fail."""
        self.batches.append(list(entries))
        if 0 in entries:
            raise Unreachable("http://nowhere", "made up")
        return [REFUSED if entry < 0 else None for entry in entries]


def test_ten_are_sent_at_once_and_the_rest_a_moment_later() -> None:
    async def scenario() -> None:
        sink = Sink()
        batcher = Batcher(sink.take, linger_s=0.01)
        await asyncio.gather(*(batcher.put(number) for number in range(1, 13)))
        assert sink.batches == [list(range(1, 11)), [11, 12]]

    asyncio.run(scenario())


def test_nothing_waits_after_a_flush() -> None:
    async def scenario() -> None:
        sink = Sink()
        batcher = Batcher(sink.take, linger_s=3_600)
        answer = batcher.put(1)
        batcher.flush()
        assert await answer is None

    asyncio.run(scenario())


def test_entries_fail_alone_and_calls_fail_whole() -> None:
    async def scenario() -> None:
        batcher = Batcher(Sink().take, linger_s=0)
        answers = await asyncio.gather(batcher.put(1), batcher.put(-1), batcher.put(2))
        assert list(answers) == [None, REFUSED, None]
        errors = await asyncio.gather(batcher.put(1), batcher.put(0))
        assert [type(error) for error in errors] == [Unreachable, Unreachable]

    asyncio.run(scenario())
