"""Bulk reads of claims: pages of the engine gathered to one answer, in steps that keep nobody else waiting.

A claim may have a hundred thousand messages, and reading some thousands of them takes the processor tens of
milliseconds. All of it happens in the event loop: a thread would take the interpreter's lock for as long, and hand it
over less often. So all reads together take turns, at two things: one asks the engine for a page at a time, and one has
a few messages of its page written in each turn of the loop. Between two steps everybody else's requests get theirs.

An answer ends with the page that brings it to ``limits.CLAIM_READ_BYTES``, so a read holds little more than that. Reads
beyond ``READS_AT_ONCE`` wait, and hold nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

from msgspec.structs import replace

from veilmq.core import limits
from veilmq.core.claims import ClaimedMessage, ClaimPage
from veilmq.core.ports import Done, Engine
from veilmq.server.answering import Answering
from veilmq.store.port import execute
from veilmq.wire.v1.claims import BulkRead, Gathered, Writer

READS_AT_ONCE = 8
PAGE_MESSAGES = 1_000
PIECE_MESSAGES = 500
PIECE_CHARACTERS = 262_144

Aside = Callable[[Callable[[], Writer]], Awaitable[Writer]]


class BulkReads:
    """All bulk reads of a server; belongs to the running event loop."""

    def __init__(self, engine: Engine, *, aside: Aside = asyncio.to_thread) -> None:
        """Read from ``engine``; ``aside`` calls what may take long, where it keeps nobody waiting."""
        self._engine = engine
        self._aside = aside
        self._inside = asyncio.Semaphore(READS_AT_ONCE)
        self._asking = asyncio.Lock()
        self._writing = asyncio.Lock()

    def ask(self, command: BulkRead, wait_s: int | None, answer: Done) -> Answering:
        """Gather what ``command`` asks for; ``answer`` is called once. No read waits for anything to come."""
        return Answering(self._read(command), answer, what=f"reading a claim of {command.queue}")

    async def _read(self, command: BulkRead) -> Gathered:
        async with self._inside:
            return await self._gather(command)

    async def _gather(self, command: BulkRead) -> Gathered:
        writer = await self._aside(command.writer)
        ask = replace(command.first, messages_max=PAGE_MESSAGES)
        while True:
            async with self._asking:
                page: ClaimPage = await execute(self._engine, ask)
            await self._write(writer, page)
            if not page.cursor or writer.size_bytes >= limits.CLAIM_READ_BYTES:
                return Gathered(writer.finish(), writer.content_type, page.cursor)
            ask = replace(ask, cursor=page.cursor)

    async def _write(self, writer: Writer, page: ClaimPage) -> None:
        for piece in pieces(page.messages):
            async with self._writing:
                writer.add(piece)
                await asyncio.sleep(0)


def pieces(messages: Sequence[ClaimedMessage]) -> Iterator[Sequence[ClaimedMessage]]:
    """Cut ``messages`` so that none but a single long one takes long to write."""
    first = characters = 0
    for place, message in enumerate(messages):
        if place - first == PIECE_MESSAGES or characters > PIECE_CHARACTERS:
            yield messages[first:place]
            first, characters = place, 0
        characters += len(message.body) + len(message.properties)
    if first < len(messages):
        yield messages[first:]
