"""Bulk reads of claims: pages of the engine gathered to one answer, in steps that keep nobody else waiting.

A claim may have a hundred thousand messages, and reading some thousands of them takes the processor tens of
milliseconds. All of it happens in the event loop: a thread would take the interpreter's lock for as long, and hand it
over less often. So all reads together take turns, at two things: one asks the engine for a page at a time, and one has
a few messages of its page written in each turn of the loop. Between two steps everybody else's requests get theirs.

An answer ends with the page that brings it to ``limits.CLAIM_READ_BYTES``, so a read holds little more than that. Reads
beyond ``READS_AT_ONCE`` wait, and hold nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence

from msgspec.structs import replace

from veilmq.core import limits
from veilmq.core.claims import ClaimedMessage, ClaimPage
from veilmq.core.errors import InternalError, VeilmqError
from veilmq.core.ports import Done, Engine
from veilmq.engines.execute import execute
from veilmq.wire.v1.reads import BulkRead, Gathered, Writer

log = logging.getLogger(__name__)

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

    def ask(self, command: BulkRead, wait_s: int | None, answer: Done) -> "Reading":
        """Gather what ``command`` asks for; ``answer`` is called once. No read waits for anything to come."""
        return Reading(asyncio.ensure_future(self._answer(command, answer)))

    async def _answer(self, command: BulkRead, answer: Done) -> None:
        try:
            async with self._inside:
                result: Gathered | VeilmqError = await self._gather(command)
        except VeilmqError as error:
            result = error
        except Exception:
            log.exception("a claim of %s could not be read", command.queue)
            result = InternalError()
        answer(result)

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


class Reading:
    """One read on its way."""

    __slots__ = ("_task",)

    def __init__(self, task: "asyncio.Task[None]") -> None:
        """``task`` answers it."""
        self._task = task

    def withdraw(self) -> None:
        """Forget it: the client has gone."""
        self._task.cancel()

    def hurry(self) -> None:
        """Go on: it waits for nothing."""


def pieces(messages: Sequence[ClaimedMessage]) -> Iterator[Sequence[ClaimedMessage]]:
    """Cut ``messages`` so that none but a single long one takes long to write."""
    first = characters = 0
    for place, message in enumerate(messages):
        if place - first == PIECE_MESSAGES or (characters > PIECE_CHARACTERS and place > first):
            yield messages[first:place]
            first, characters = place, 0
        characters += len(message.body) + len(message.properties)
    if first < len(messages):
        yield messages[first:]
