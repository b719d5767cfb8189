"""Requests that take many steps: bulk reads, staging and publishing.

Bulk reads gather pages of a claim to one reply. All of it happens in the event loop, as a thread would hold the
interpreter's lock for as long: one read at a time requests a page from the store, and one writes a few messages in each
turn of the loop. A reply ends with the page that brings it to ``limits.CLAIM_READ_BYTES``. Reads beyond
``READS_AT_ONCE`` wait, and hold nothing. Staging reads thousands of messages of one body in the same way.

A publication is moved a slice at a time, and commands of others run between two slices; with a rate there is a wait
between them. The reply is sent after ``PUBLISH_S_MAX`` at the latest; the store moves the rest by itself.
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
"""Carries out a command in many steps; returns its result, or raises its error."""


class BackgroundRequest:
    """A request on its way, in a task; a ``Pending``."""

    __slots__ = ("_task",)

    def __init__(self, work: Work, command: Command, wait_s: int | None, answer: Done) -> None:
        """Answer with what ``work`` returns of ``command``, or the error that it raises; ``wait_s`` plays no part."""
        self._task = asyncio.ensure_future(self._run(work, command, answer))

    async def _run(self, work: Work, command: Command, answer: Done) -> None:
        try:
            result = await work(command)
        except (VeilmqError, SqsError) as error:
            result = error
        except Exception:
            log.exception("%s failed", type(command).__name__)
            result = InternalError()
        answer(result)

    def withdraw(self) -> None:
        """Forget it: the client has gone."""
        self._task.cancel()

    def hurry(self) -> None:
        """Go on: it waits for some seconds at most."""


class Deferred:
    """What stands for a request that begins later, with ``start``; a ``Pending``."""

    __slots__ = ("_begin", "_hurried", "_pending", "withdrawn")

    def __init__(self, begin: Callable[[], Pending | None]) -> None:
        self._begin = begin
        self._pending: Pending | None = None
        self._hurried = False
        self.withdrawn = False

    def withdraw(self) -> None:
        """Forget it; one that was not begun never is."""
        self.withdrawn = True
        if self._pending is not None:
            self._pending.withdraw()

    def hurry(self) -> None:
        """Have it wait for nothing but its beginning."""
        self._hurried = True
        if self._pending is not None:
            self._pending.hurry()

    def start(self) -> None:
        """Begin, unless it was withdrawn."""
        if not self.withdrawn:
            self._pending = self._begin()
            if self._hurried and self._pending is not None:
                self._pending.hurry()


class OrderedReply(Deferred):
    """Stands for a request that begins when those before it on its connection are answered."""

    __slots__ = ()

    def __init__(self, request: Request, begin: Callable[[], Pending | None]) -> None:
        super().__init__(begin)
        request.in_turn(self.start)


READS_AT_ONCE = 8
PAGE_MESSAGES = 1_000
PIECE_MESSAGES = 500
PIECE_CHARACTERS = 262_144

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class BulkRequests:
    """All bulk reads and all staging of a server; belongs to the running event loop."""

    def __init__(self, engine: Engine, *, in_thread: InThread = asyncio.to_thread) -> None:
        """Use ``engine``; ``in_thread`` calls what may take long, outside the event loop."""
        self._engine = engine
        self._in_thread = in_thread
        self._slots = asyncio.Semaphore(READS_AT_ONCE)
        self._reading = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._staging = asyncio.Lock()

    async def read(self, command: BulkRead) -> Reply:
        """Gather the messages of a claim; no read waits for messages to come. Raises ``VeilmqError``."""
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
        """Stage what ``command`` has; raises ``SqsError`` and ``VeilmqError``."""
        async with self._staging:
            messages: list[NewMessage] = []
            for piece in await self._in_thread(command.read):
                messages += piece
                await asyncio.sleep(0)
        staged: Staged = await execute(self._engine, command.whole(messages))
        return staged


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


PUBLISH_S_MAX = 5


class Publication(BackgroundRequest):
    """A publication on its way, a slice after the other for ``PUBLISH_S_MAX`` at most."""

    __slots__ = ("_due", "_until_ms")

    def __init__(self, engine: Engine, clock: Clock, command: Publish, wait_s: int | None, answer: Done) -> None:
        self._due = asyncio.Event()
        self._until_ms = clock.now_ms() + PUBLISH_S_MAX * SECOND_MS
        super().__init__(partial(self._publish, engine, clock), command, wait_s, answer)

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
        """Answer with the next slice."""
        self._until_ms = 0
        self._due.set()


def shown_due(result: Any, clock: Clock) -> Any:
    """Return ``result`` with the instant at which something is due next as users see it."""
    due_ms = getattr(result, "next_due_ms", None)
    return result if due_ms is None else replace(result, next_due_ms=clock.shown_ms(due_ms))
