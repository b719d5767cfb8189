"""What moves on open pages: server-sent events, one tick a second at most, and nothing while no page is open.

What looks cost is bounded for all pages together: where they look at more than ``ROWS_PER_S`` rows, they tick the more
seldom. So it is about the same for fifty pages of fifty queues as for a thousand rows of one.

A page asks a few questions when it is opened (what is in these queues, which leases has this queue, how far are its
move tasks), and is told what changed since it was told last. Pages of the same caller that ask the same share the
answer: it is asked for, compared and encoded once a tick. It is asked as that caller, by the endpoints that everybody
uses; what he may not ask (any more), and a session that has ended, ends the stream.

A page that does not read what it is sent has one event waiting and no more; when it reads again, it is told all there
is by then.
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
"""How many rows all open pages may look at in a second: one or two hundredths of a core."""

STREAMS_MAX = 64
"""How many pages may be open; one more is told to come again."""

_BEGIN = b"retry: 3000\n\n"
_SERVER_FAULTS = 500


class Told(NamedTuple):
    """An answer: ``rows`` by what tells them apart, of which those that changed are told, and ``rest`` likewise."""

    rows: dict[str, Any]
    rest: dict[str, Any]


class Question(Protocol):
    """What a page asks each second. ``event`` is the name under which it is told; equal questions are one."""

    @property
    def event(self) -> str:
        """Return the name of the event."""

    async def look(self, asking: Asking, now_ms: int) -> Told:
        """Return the answer at ``now_ms``; raises ``Refused``."""


class Reader(NamedTuple):
    """Who opened a page: pages with the same ``who`` see the same. ``is_there`` tells if the session still holds."""

    who: Hashable
    asking: Asking
    is_there: Callable[[], bool]


class TooManyError(Exception):
    """There are as many streams as there may be, or the server is about to end."""


class Stream:
    """One open page."""

    def __init__(self, reader: Reader) -> None:
        """Begin with nothing to be told."""
        self.reader = reader
        self.feeds: list[_Feed] = []
        self._waiting: dict[_Feed, bytes] = {}
        self._over = False
        self._something = asyncio.Event()

    def tell(self, feed: "_Feed", changed: bytes, whole: Callable[[], bytes]) -> None:
        """Have a change sent, or the ``whole``, if what was before was not sent yet."""
        if feed in self._waiting:
            self._waiting[feed] = whole()
        elif changed:
            self._waiting[feed] = changed
        else:
            return
        self._something.set()

    def end(self) -> None:
        """End it, after what is waiting."""
        self._over = True
        self._something.set()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield what is to be sent, until the end."""
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
        """Tick by ``clock``; nothing is open yet."""
        self._clock = clock
        self._streams: set[Stream] = set()
        self._feeds: dict[Hashable, _Feed] = {}
        self._timer: Timer | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._closed = False

    def open(self, reader: Reader, questions: list[Question]) -> Stream:
        """Begin to tell ``reader`` the answers to ``questions``, at once and each second; raises ``TooManyError``."""
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
        """End a stream; harmless when that has happened."""
        self._streams.discard(stream)
        for feed in stream.feeds:
            if stream in feed.streams:
                feed.streams.remove(stream)
            if not feed.streams and self._feeds.get(feed.key) is feed:  # not one that others have begun since
                del self._feeds[feed.key]
        stream.end()
        self._arrange()

    def close(self) -> None:
        """End all streams, and take no more."""
        self._closed = True
        for stream in list(self._streams):
            self.leave(stream)

    def _arrange(self) -> None:
        """Tick when the next question is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._feeds and self._ticking is None:
            self._timer = self._clock.call_at(min(feed.due_ms for feed in self._feeds.values()), self._begin_tick)

    def _begin_tick(self) -> None:
        self._timer = None
        self._ticking = asyncio.ensure_future(self._tick())

    async def _tick(self) -> None:
        """Have the questions that are due asked one after the other, so that nobody waits for more than one of them."""
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
        """Return how long it is from one look to the next."""
        rows = sum(feed.rows for feed in self._feeds.values())
        return max(TICK_MS, rows * SECOND_MS // ROWS_PER_S)


class _Feed:
    """One question of one caller, and all pages that ask it."""

    def __init__(self, key: Hashable, question: Question) -> None:
        self.key = key
        self.streams: list[Stream] = []
        self.due_ms = 0
        self._question = question
        self._told: Told | None = None

    @property
    def rows(self) -> int:
        """Return how many rows there were at the last look."""
        return 0 if self._told is None else len(self._told.rows)

    def join(self, stream: Stream) -> None:
        """Tell ``stream``, too: what is known at once, the rest as it comes."""
        self.streams.append(stream)
        if self._told is not None:
            stream.tell(self, self._whole(self._told), bytes)

    async def tick(self, now_ms: int, pause_ms: int, *, shown_ms: int) -> bool:
        """Ask, and tell what changed; ``False`` where it may not be asked any more. The next look is after a pause.

        ``shown_ms`` is the present as the answer has instants.
        """
        self.due_ms = now_ms + pause_ms
        try:
            told = await self._question.look(self.streams[0].reader.asking, shown_ms)
        except Refused as refused:
            if refused.status >= _SERVER_FAULTS:
                return True  # the store cannot be reached just now
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
