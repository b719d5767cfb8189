"""Staging in bulk: the messages of a request, read in steps that keep nobody else waiting.

Five thousand messages with their attributes take the processor some tenths of a second to check. As with bulk reads,
all of it happens in the event loop, one piece in each turn, and everybody else's requests get theirs in between. One
request is read at a time; those that wait hold no more than their bodies.
"""

import asyncio
from collections.abc import Awaitable, Callable

from veilmq.core.commands import NewMessage
from veilmq.core.ports import Done, Engine
from veilmq.core.publications import Staged
from veilmq.server.answering import Answering
from veilmq.store.port import execute
from veilmq.wire.v1.publications import BulkStage, Pieces

Aside = Callable[[Callable[[], Pieces]], Awaitable[Pieces]]


class BulkStages:
    """All staging of a server; belongs to the running event loop."""

    def __init__(self, engine: Engine, *, aside: Aside = asyncio.to_thread) -> None:
        """Stage in ``engine``; ``aside`` calls what may take long, where it keeps nobody waiting."""
        self._engine = engine
        self._aside = aside
        self._reading = asyncio.Lock()

    def ask(self, command: BulkStage, wait_s: int | None, answer: Done) -> Answering:
        """Stage what ``command`` has; ``answer`` is called once."""
        return Answering(self._stage(command), answer, what=f"staging for {command.queue}")

    async def _stage(self, command: BulkStage) -> Staged:
        async with self._reading:
            messages: list[NewMessage] = []
            for piece in await self._aside(command.read):
                messages += piece
                await asyncio.sleep(0)
        staged: Staged = await execute(self._engine, command.whole(messages))
        return staged
