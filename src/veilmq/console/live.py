"""Live updates of open pages by server-sent events: at most one tick a second, and none while no page is open.

The cost is bounded for all pages together: above ``ROWS_PER_S`` rows, ticks become less frequent. So fifty pages of
fifty queues cost about as much as a thousand rows of one.

A page registers queries when it is opened (counts of queues, leases of a queue, its move tasks) and gets an event with
what changed since the last one. Pages of the same caller with the same query share it: it runs, is compared and encoded
once per tick. Queries use the public API with the caller's permissions; a denied one, or the end of the session, ends
the stream.

If a page does not read, at most one event per query waits for it; when it reads again, it gets the complete state.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Any, NamedTuple, Protocol

import msgspec

from veilmq.console.asking import Asking, Refused
from veilmq.core.commands import Clock, Timer
from veilmq.core.limits import SECOND_MS

log = logging.getLogger(__name__)

TICK_MS = SECOND_MS
ROWS_PER_S = 1_500
"""How many rows all open pages may query per second: one or two hundredths of a core."""

STREAMS_MAX = 64
"""Maximum number of open pages; further ones must retry later."""

_BEGIN = b"retry: 3000\n\n"
_SERVER_FAULTS = 500


class Told(NamedTuple):
    """The result of a query: ``rows`` by key, and other values; events have those that changed."""

    rows: dict[str, Any]
    rest: dict[str, Any]


class Question(Protocol):
    """A query that runs once per tick. ``event`` is the event's name; equal queries of a caller are shared."""

    @property
    def event(self) -> str:
        """The name of the event."""

    async def look(self, asking: Asking, now_ms: int) -> Told:
        """Return the result at ``now_ms``; raises ``Refused``."""


class Reader(NamedTuple):
    """The owner of a stream: equal ``who`` see the same data. ``is_there`` returns whether the session is valid."""

    who: Hashable
    asking: Asking
    is_there: Callable[[], bool]


class TooManyError(Exception):
    """The maximum number of streams is reached, or the server is stopping."""


class Stream:
    """One open page."""

    def __init__(self, reader: Reader) -> None:
        """Start without events."""
        self.reader = reader
        self.feeds: list[_Feed] = []
        self._waiting: dict[_Feed, bytes] = {}
        self._over = False
        self._something = asyncio.Event()

    def tell(self, feed: "_Feed", changed: bytes, whole: Callable[[], bytes]) -> None:
        """Queue a change; if an earlier one was not sent yet, replace it with the ``whole`` state."""
        if feed in self._waiting:
            self._waiting[feed] = whole()
        elif changed:
            self._waiting[feed] = changed
        else:
            return
        self._something.set()

    def end(self) -> None:
        """End the stream after the queued events."""
        self._over = True
        self._something.set()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield events until the end."""
        yield _BEGIN
        while True:
            await self._something.wait()
            self._something.clear()
            told = b"".join(self._waiting.values())
            self._waiting.clear()
            if told:
                yield told
            if self._over:
                return


class Live:
    """All open pages of one server."""

    def __init__(self, clock: Clock) -> None:
        """Tick by ``clock``."""
        self._clock = clock
        self._streams: set[Stream] = set()
        self._feeds: dict[Hashable, _Feed] = {}
        self._timer: Timer | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._closed = False

    def open(self, reader: Reader, questions: list[Question]) -> Stream:
        """Open a stream with the results of ``questions``; raises ``TooManyError``."""
        if self._closed or len(self._streams) >= STREAMS_MAX:
            raise TooManyError
        stream = Stream(reader)
        self._streams.add(stream)
        for question in questions:
            key = reader.who, question
            feed = self._feeds.setdefault(key, _Feed(key, question))
            stream.feeds.append(feed)
            feed.join(stream)
        self._arrange()
        return stream

    def leave(self, stream: Stream) -> None:
        """End a stream; idempotent."""
        self._streams.discard(stream)
        for feed in stream.feeds:
            if stream in feed.streams:
                feed.streams.remove(stream)
            if not feed.streams and self._feeds.get(feed.key) is feed:  # not a later one with the same key
                del self._feeds[feed.key]
        stream.end()
        self._arrange()

    def close(self) -> None:
        """End all streams, and open no more."""
        self._closed = True
        for stream in list(self._streams):
            self.leave(stream)

    def _arrange(self) -> None:
        """Set the timer for the next due query."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._feeds and self._ticking is None:
            self._timer = self._clock.call_at(min(feed.due_ms for feed in self._feeds.values()), self._begin_tick)

    def _begin_tick(self) -> None:
        self._timer = None
        self._ticking = asyncio.ensure_future(self._tick())

    async def _tick(self) -> None:
        """Run the due queries one after the other, so that other requests wait for one of them at most."""
        pause_ms = self._pause_ms()
        for feed in list(self._feeds.values()):
            now_ms = self._clock.now_ms()
            if feed.due_ms <= now_ms:
                for stream in [each for each in feed.streams if not each.reader.is_there()]:
                    self.leave(stream)
                if feed.streams and not await feed.tick(now_ms, pause_ms, shown_ms=self._clock.shown_ms()):
                    for stream in list(feed.streams):
                        self.leave(stream)
        self._ticking = None
        self._arrange()

    def _pause_ms(self) -> int:
        """Return the time between two runs of a query."""
        rows = sum(feed.rows for feed in self._feeds.values())
        return max(TICK_MS, rows * SECOND_MS // ROWS_PER_S)


class _Feed:
    """A query of one caller, and the pages that share it."""

    def __init__(self, key: Hashable, question: Question) -> None:
        self.key = key
        self.streams: list[Stream] = []
        self.due_ms = 0
        self._question = question
        self._told: Told | None = None

    @property
    def rows(self) -> int:
        """The number of rows of the last result."""
        return 0 if self._told is None else len(self._told.rows)

    def join(self, stream: Stream) -> None:
        """Add ``stream``, and queue the current state for it."""
        self.streams.append(stream)
        if self._told is not None:
            stream.tell(self, self._whole(self._told), bytes)

    async def tick(self, now_ms: int, pause_ms: int, *, shown_ms: int) -> bool:
        """Run the query and queue what changed; return False if it is no longer permitted.

        ``shown_ms`` is the current time in shown time.
        """
        self.due_ms = now_ms + pause_ms
        try:
            told = await self._question.look(self.streams[0].reader.asking, shown_ms)
        except Refused as refused:
            if refused.status >= _SERVER_FAULTS:
                return True  # the store is unavailable for now
            self._say(self._event("over", {"why": refused.message}))
            return False
        except Exception:
            log.exception("a page could not be kept up to date")
            return False
        before, self._told = self._told, told
        self._say(self._whole(told) if before is None else self._change(before, told))
        return True

    def _say(self, changed: bytes) -> None:
        whole = b""

        def all_of_it() -> bytes:
            nonlocal whole
            whole = whole or (b"" if self._told is None else self._whole(self._told))
            return whole

        for stream in self.streams:
            stream.tell(self, changed, all_of_it)

    def _whole(self, told: Told) -> bytes:
        return self._event(self._question.event, {"whole": True, "set": told.rows, **told.rest})

    def _change(self, before: Told, now: Told) -> bytes:
        rows = {key: row for key, row in now.rows.items() if before.rows.get(key) != row}
        gone = [key for key in before.rows if key not in now.rows]
        rest = {name: value for name, value in now.rest.items() if before.rest.get(name) != value}
        if not (rows or gone or rest):
            return b""
        return self._event(self._question.event, {"set": rows, "gone": gone, **rest})

    @staticmethod
    def _event(name: str, fields: dict[str, Any]) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(fields))
