"""The lines in which commands wait to travel together, and the commands that a node knows."""

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import pytest

from tests.store.host import HOT, QUEUE
from tests.store.postgres_host import hosting_postgres
from veilmq.core.commands import Receive
from veilmq.core.errors import QueueNotFound
from veilmq.store.cold import COLD
from veilmq.store.postgres.queues import Coalescer, Measured


class Asked:
    """A line, what it did together, and what it answered."""

    def __init__(self) -> None:
        self.together: list[int] = []
        self.answers: list[Any] = []
        self.drained = 0
        self.line = Coalescer(
            self._work, weight=lambda command: 1, weight_max=10, drained=self._drain, measured=Measured()
        )

    async def _work(self, together: Sequence[Any]) -> list[Any]:
        self.together.append(len(together))
        return list(range(len(together)))

    def _drain(self) -> None:
        self.drained += 1

    def fail(self, answer: Any) -> None:
        raise OSError

    async def ended(self) -> None:
        if self.line.task is not None:
            await self.line.task


def test_an_answer_that_is_not_taken_keeps_nobody_waiting() -> None:
    async def act() -> Asked:
        asked = Asked()
        asked.line.add(Receive(queue=QUEUE), asked.fail)
        asked.line.add(Receive(queue=QUEUE), asked.answers.append)
        await asked.ended()
        asked.line.add(Receive(queue=QUEUE), asked.answers.append)
        await asked.ended()
        return asked

    asked = asyncio.run(act())
    assert (asked.together, asked.answers, asked.drained) == ([2, 1], [1, 0], 2)


def test_a_line_without_anybody_says_so() -> None:
    async def act() -> Asked:
        asked = Asked()
        asked.line.add(Receive(queue=QUEUE), asked.fail)
        asked.line.withdraw(asked.fail)
        await asked.ended()
        return asked

    asked = asyncio.run(act())
    assert (asked.together, asked.drained) == ([], 1)


def test_an_engine_keeps_no_line_of_a_queue_that_nobody_names_any_more(postgres_url: str) -> None:
    """Whoever names queues at will, also those that are not there, does not fill the memory."""
    with hosting_postgres(postgres_url) as host:
        for place in range(10):
            with pytest.raises(QueueNotFound):
                host.do(Receive(queue=f"{QUEUE}{place}"))
        gc.collect()
        assert [each for each in gc.get_objects() if isinstance(each, Coalescer)] == []


def test_it_knows_every_command(postgres_url: str) -> None:
    with hosting_postgres(postgres_url) as node:
        engine: Any = node.engine
        assert set(engine.alone) & set(engine.together) == set()
        assert {*engine.alone, *engine.together} == {*COLD, *HOT}
