"""Live updates of open pages by server-sent events: at most one tick a second, and none while no page is open.

The cost is bounded for all pages together: above ``ROWS_PER_S`` rows, ticks become less frequent. So fifty pages of
fifty queues cost about as much as a thousand rows of one.

A page registers queries when it is opened (counts of queues, leases of a queue, its move tasks) and gets an event with
what changed since the last one. Pages of the same caller with the same query share it: it runs, is compared and encoded
once per tick. Queries use the public API with the caller's permissions; a denied one, or the end of the session, ends
the stream with a reason for the page to show.

If a page does not read, at most one event per query waits for it; when it reads again, it gets the complete state.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Any, NamedTuple, Protocol

import msgspec

from veilmq.console.api_client import ApiClient, ApiError
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
_SESSION_ENDED = "Your session has ended; reload the page to sign in."
_DEFECT = "This page cannot be updated because of a defect in veilmq; see the server log."


class Snapshot(NamedTuple):
    """The result of a query: ``rows`` by key, and other values; events have those that changed."""

    rows: dict[str, Any]
    rest: dict[str, Any]


class LiveQuery(Protocol):
    """A query that runs once per tick. ``event`` is the event's name; equal queries of a caller are shared."""

    @property
    def event(self) -> str:
        """The name of the event."""

    async def run(self, client: ApiClient, now_ms: int) -> Snapshot:
        """Return the result at ``now_ms``; raises ``ApiError``."""


class Subscriber(NamedTuple):
    """The owner of a stream; those with the same ``identity`` see the same data."""

    identity: Hashable
    client: ApiClient
    is_session_valid: Callable[[], bool]


class TooManyError(Exception):
    """The maximum number of streams is reached, or the server is stopping."""


class Stream:
    """One open page."""

    def __init__(self, subscriber: Subscriber) -> None:
        self.subscriber = subscriber
        self.queries: list[_SharedQuery] = []
        self._pending: dict[_SharedQuery, bytes] = {}
        self._end: bytes | None = None
        self._has_events = asyncio.Event()

    def queue_event(self, query: "_SharedQuery", changed: bytes, full: Callable[[], bytes]) -> None:
        """Queue a change; if an earlier one was not sent yet, replace it with the ``full`` state."""
        if query in self._pending:
            self._pending[query] = full()
        elif changed:
            self._pending[query] = changed
        else:
            return
        self._has_events.set()

    def end(self, reason: str) -> None:
        """End the stream after the queued events; the page connects again unless there is a reason."""
        self._end = self._end or (_event("end", {"reason": reason}) if reason else b"")
        self._has_events.set()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield events until the end."""
        yield _BEGIN
        while True:
            await self._has_events.wait()
            self._has_events.clear()
            events = b"".join(self._pending.values()) + (self._end or b"")
            self._pending.clear()
            if events:
                yield events
            if self._end is not None:
                return


class Live:
    """All open pages of one server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._streams: set[Stream] = set()
        self._queries: dict[Hashable, _SharedQuery] = {}
        self._timer: Timer | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._closed = False

    def open(self, subscriber: Subscriber, queries: list[LiveQuery]) -> Stream:
        """Open a stream with the results of ``queries``; raises ``TooManyError``."""
        if self._closed or len(self._streams) >= STREAMS_MAX:
            raise TooManyError
        stream = Stream(subscriber)
        self._streams.add(stream)
        for query in queries:
            key = subscriber.identity, query
            shared = self._queries.setdefault(key, _SharedQuery(key, query))
            stream.queries.append(shared)
            shared.add(stream)
        self._set_timer()
        return stream

    def close_stream(self, stream: Stream, reason: str = "") -> None:
        """End a stream; idempotent."""
        self._streams.discard(stream)
        for query in stream.queries:
            if stream in query.streams:
                query.streams.remove(stream)
            if not query.streams and self._queries.get(query.key) is query:  # not a later one with the same key
                del self._queries[query.key]
        stream.end(reason)
        self._set_timer()

    def close(self) -> None:
        """End all streams, and open no more."""
        self._closed = True
        for stream in list(self._streams):
            self.close_stream(stream)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._queries and self._ticking is None:
            self._timer = self._clock.call_at(min(query.due_ms for query in self._queries.values()), self._begin_tick)

    def _begin_tick(self) -> None:
        self._timer = None
        self._ticking = asyncio.ensure_future(self._tick())

    async def _tick(self) -> None:
        """Run the due queries one after the other, so that other requests wait for one of them at most."""
        pause_ms = self._pause_ms()
        for query in list(self._queries.values()):
            now_ms = self._clock.now_ms()
            if query.due_ms <= now_ms:
                for stream in [each for each in query.streams if not each.subscriber.is_session_valid()]:
                    self.close_stream(stream, _SESSION_ENDED)
                if query.streams and (reason := await query.tick(now_ms, pause_ms, shown_ms=self._clock.shown_ms())):
                    for stream in list(query.streams):
                        self.close_stream(stream, reason)
        self._ticking = None
        self._set_timer()

    def _pause_ms(self) -> int:
        rows = sum(query.rows for query in self._queries.values())
        return max(TICK_MS, rows * SECOND_MS // ROWS_PER_S)


class _SharedQuery:
    """A query of one caller, and the pages that share it."""

    def __init__(self, key: Hashable, query: LiveQuery) -> None:
        self.key = key
        self.streams: list[Stream] = []
        self.due_ms = 0
        self._query = query
        self._latest: Snapshot | None = None

    @property
    def rows(self) -> int:
        return 0 if self._latest is None else len(self._latest.rows)

    def add(self, stream: Stream) -> None:
        """Add ``stream``, and queue the current state for it."""
        self.streams.append(stream)
        if self._latest is not None:
            stream.queue_event(self, self._full_event(self._latest), bytes)

    async def tick(self, now_ms: int, pause_ms: int, *, shown_ms: int) -> str:
        """Run the query and queue what changed; return why it can no longer run, if so.

        ``shown_ms`` is the current time in shown time.
        """
        self.due_ms = now_ms + pause_ms
        try:
            snapshot = await self._query.run(self.streams[0].subscriber.client, shown_ms)
        except ApiError as error:
            # a server error: the store is unavailable for now
            return "" if error.status >= _SERVER_FAULTS else error.message or error.code
        except Exception:
            log.exception("a page could not be kept up to date")
            return _DEFECT
        before, self._latest = self._latest, snapshot
        self._queue_events(self._full_event(snapshot) if before is None else self._change_event(before, snapshot))
        return ""

    def _queue_events(self, changed: bytes) -> None:
        full = b""

        def full_event() -> bytes:
            nonlocal full
            full = full or (b"" if self._latest is None else self._full_event(self._latest))
            return full

        for stream in self.streams:
            stream.queue_event(self, changed, full_event)

    def _full_event(self, snapshot: Snapshot) -> bytes:
        return _event(self._query.event, {"whole": True, "set": snapshot.rows, **snapshot.rest})

    def _change_event(self, before: Snapshot, now: Snapshot) -> bytes:
        rows = {key: row for key, row in now.rows.items() if before.rows.get(key) != row}
        removed = [key for key in before.rows if key not in now.rows]
        rest = {name: value for name, value in now.rest.items() if before.rest.get(name) != value}
        if not (rows or removed or rest):
            return b""
        return _event(self._query.event, {"set": rows, "removed": removed, **rest})


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(fields))
