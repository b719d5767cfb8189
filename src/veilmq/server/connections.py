"""All open connections: how many, which of them take too long, and how they end.

One timer serves all deadlines. It is set for the earliest one known; connections announce the short ones, and an idle
connection's cannot come sooner than the idle limit after any look. So nothing is touched per request, and a thousand
waiting clients cost one look in that time.
"""

import asyncio

from veilmq.server.http1 import Http1Connection, Word
from veilmq.server.http_date import DateLine
from veilmq.server.http_heads import KnownHeads
from veilmq.server.http_limits import HttpLimits
from veilmq.server.http_refusal import as_text
from veilmq.server.http_request import Date, Handler

_LOOKS_PER_LIMIT = 20  # a client may be late by this fraction of the shortest limit


class Connections:
    """The table of connections; made in the event loop that serves them."""

    def __init__(self, *, handler: Handler, limits: HttpLimits | None = None, refused: Word = as_text) -> None:
        """``handler`` gets every whole request, ``refused`` words what refuses one before it is whole."""
        self._loop = asyncio.get_running_loop()
        self.handler = handler
        self.refused = refused
        self.limits = limits or HttpLimits()
        self.heads = KnownHeads()
        self.draining = False
        self.date: Date = DateLine()
        self.time_s = self._loop.time
        self._open: set[Http1Connection] = set()
        self._look_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._gap_s = (
            min(self.limits.request_s_max, self.limits.idle_s_max, self.limits.linger_s_max) / _LOOKS_PER_LIMIT
        )
        self._emptied = asyncio.Event()
        self._emptied.set()

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self._open)

    def protocol(self) -> Http1Connection:
        """Make a connection, for the event loop's server."""
        return Http1Connection(self)

    def add(self, connection: Http1Connection) -> None:
        """Count in a new connection."""
        self._open.add(connection)
        self._emptied.clear()
        self.expect(self.time_s() + self.limits.idle_s_max)
        if self.draining:
            connection.drain()

    def remove(self, connection: Http1Connection) -> None:
        """Count out one that is gone."""
        self._open.discard(connection)
        if not self._open:
            self._emptied.set()

    def expect(self, at_s: float) -> None:
        """Look at the deadlines again soon after ``at_s``."""
        if self._timer is not None:
            if at_s >= self._look_at_s - self._gap_s:
                return
            self._timer.cancel()
        self._look_at_s = at_s + self._gap_s
        self._timer = self._loop.call_at(self._look_at_s, self._look)

    async def drain(self) -> None:
        """Let every connection answer what it was asked and close; ``abort`` makes it end."""
        self.draining = True
        for connection in list(self._open):
            connection.drain()
        await self._emptied.wait()

    def abort(self) -> None:
        """Close all connections at once."""
        self.draining = True
        for connection in list(self._open):
            connection.abort()

    def _look(self) -> None:
        self._timer = None
        now_s = self.time_s()
        next_s = now_s + self.limits.idle_s_max
        for connection in list(self._open):
            deadline_s = connection.deadline_s()
            if deadline_s is not None and deadline_s <= now_s:
                connection.time_out()
                deadline_s = now_s + self._gap_s
            if deadline_s is not None:
                next_s = min(next_s, deadline_s)
        if self._open:
            self.expect(next_s)
