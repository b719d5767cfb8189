"""Requests of many steps: bulk reads, staging and publishing.

A bulk read collects pages of a claim into one reply. It runs in the event loop, as a thread would hold the
interpreter's lock for as long: one read at a time fetches a page from the store, and one encodes a few messages per
loop iteration. A reply ends with the page that brings it to ``limits.CLAIM_READ_BYTES``. Reads beyond ``READS_AT_ONCE``
wait, and hold nothing. Staging decodes the thousands of messages of one body in the same way.

A publication is moved in slices, between which other commands run; with a rate, it waits between them. The reply is
sent after at most ``PUBLISH_S_MAX``; the store then moves the rest.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from veilmq.core import limits
from veilmq.core.claims import ClaimedMessage, ClaimPage, Publish, Published, Staged
from veilmq.core.commands import Clock, Command, Done, Engine
from veilmq.core.errors import InternalError, VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.core.messages import NewMessage
from veilmq.server.http_parser import Pending, Request
from veilmq.store.port import execute
from veilmq.wire.exchange import Reply
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.v1.claims import BulkRead, bulk_reply
from veilmq.wire.v1.publications import BulkStage

log = logging.getLogger(__name__)


Work = Callable[[Any], Coroutine[Any, Any, Any]]
"""Runs a command in many steps; returns its result, or raises its error."""


class BackgroundRequest:
    """A request that runs as a task; a ``Pending``."""

    __slots__ = ("_task",)

    def __init__(self, work: Work, command: Command, wait_s: int | None, done: Done) -> None:
        """Call ``done`` with the result or the error of ``work(command)``; ``wait_s`` is ignored."""
        self._task = asyncio.ensure_future(self._run(work, command, done))

    async def _run(self, work: Work, command: Command, done: Done) -> None:
        try:
            result = await work(command)
        except (VeilmqError, SqsError) as error:
            result = error
        except Exception:
            log.exception("%s failed", type(command).__name__)
            result = InternalError()
        done(result)

    def withdraw(self) -> None:
        self._task.cancel()

    def hurry(self) -> None:
        """Do nothing: the task takes a few seconds at most."""


class Deferred:
    """A ``Pending`` of a request that starts later, by ``start``."""

    __slots__ = ("_begin", "_hurried", "_pending", "withdrawn")

    def __init__(self, begin: Callable[[], Pending | None]) -> None:
        self._begin = begin
        self._pending: Pending | None = None
        self._hurried = False
        self.withdrawn = False

    def withdraw(self) -> None:
        """Drop the request."""
        self.withdrawn = True
        if self._pending is not None:
            self._pending.withdraw()

    def hurry(self) -> None:
        """Start as planned, but then do not wait."""
        self._hurried = True
        if self._pending is not None:
            self._pending.hurry()

    def start(self) -> None:
        """Start the request, unless it was withdrawn."""
        if not self.withdrawn:
            self._pending = self._begin()
            if self._hurried and self._pending is not None:
                self._pending.hurry()


class OrderedReply(Deferred):
    """A request that runs in turn: when the earlier ones on its connection are answered."""

    __slots__ = ()

    def __init__(self, request: Request, begin: Callable[[], Pending | None]) -> None:
        super().__init__(begin)
        request.run_in_turn(self.start)


READS_AT_ONCE = 8
PAGE_MESSAGES = 1_000
PIECE_MESSAGES = 500
PIECE_CHARACTERS = 262_144

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class BulkRequests:
    """All bulk reads and staging of a server; belongs to the running event loop."""

    def __init__(self, engine: Engine, *, in_thread: InThread = asyncio.to_thread) -> None:
        """``in_thread`` runs slow functions outside the event loop."""
        self._engine = engine
        self._in_thread = in_thread
        self._slots = asyncio.Semaphore(READS_AT_ONCE)
        self._reading = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._staging = asyncio.Lock()

    async def read(self, command: BulkRead) -> Reply:
        """Return the messages of a claim as one reply, without waiting for more to arrive. Raises ``VeilmqError``."""
        async with self._slots:
            writer = await self._in_thread(command.writer)
            request = replace(command.first, messages_max=PAGE_MESSAGES)
            while True:
                async with self._reading:
                    page: ClaimPage = await execute(self._engine, request)
                for piece in pieces(page.messages):
                    async with self._writing:
                        writer.add(piece)
                        await asyncio.sleep(0)
                if not page.cursor or writer.size_bytes >= limits.CLAIM_READ_BYTES:
                    return bulk_reply(writer.finish(), writer.content_type, page.cursor)
                request = replace(request, cursor=page.cursor)

    async def stage(self, command: BulkStage) -> Staged:
        """Decode and stage the messages of ``command``; raises ``SqsError`` and ``VeilmqError``."""
        async with self._staging:
            messages: list[NewMessage] = []
            for piece in await self._in_thread(command.read):
                messages += piece
                await asyncio.sleep(0)
        staged: Staged = await execute(self._engine, command.with_messages(messages))
        return staged


def pieces(messages: Sequence[ClaimedMessage]) -> Iterator[Sequence[ClaimedMessage]]:
    """Split ``messages`` into pieces that encode quickly, except for single long messages."""
    first = characters = 0
    for index, message in enumerate(messages):
        if index - first == PIECE_MESSAGES or characters > PIECE_CHARACTERS:
            yield messages[first:index]
            first, characters = index, 0
        characters += len(message.body) + len(message.properties)
    if first < len(messages):
        yield messages[first:]


PUBLISH_S_MAX = 5


class Publication(BackgroundRequest):
    """Publishes in slices, for ``PUBLISH_S_MAX`` at most."""

    __slots__ = ("_due", "_until_ms")

    def __init__(self, engine: Engine, clock: Clock, command: Publish, wait_s: int | None, done: Done) -> None:
        self._due = asyncio.Event()
        self._until_ms = clock.now_ms() + PUBLISH_S_MAX * SECOND_MS
        super().__init__(partial(self._publish, engine, clock), command, wait_s, done)

    async def _publish(self, engine: Engine, clock: Clock, command: Publish) -> Any:
        first: Published = await execute(engine, command)
        published = first
        while published.more:
            now_ms = clock.now_ms()
            due_ms = now_ms if published.next_due_ms is None else published.next_due_ms
            if due_ms >= self._until_ms:
                break
            if due_ms > now_ms:
                self._due.clear()
                timer = clock.call_at(due_ms, self._due.set)
                try:
                    await self._due.wait()
                finally:
                    timer.cancel()
            published = await execute(engine, command)
        return shown_due(replace(published, again=first.again), clock)

    def hurry(self) -> None:
        """Reply after the current slice, or the next one if none runs."""
        self._until_ms = 0
        self._due.set()


def shown_due(result: Any, clock: Clock) -> Any:
    """Return ``result`` with its ``next_due_ms`` in shown time."""
    due_ms = getattr(result, "next_due_ms", None)
    return result if due_ms is None else replace(result, next_due_ms=clock.shown_ms(due_ms))
