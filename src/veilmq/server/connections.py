"""All open connections: how many, which of them take too long, and how they end.

One timer serves all deadlines. It is set for the earliest one known; connections announce the short ones. All are
inspected every ten seconds, for clients that do not take their answers. So nothing is touched per request.
"""

import asyncio

from veilmq.core.limits import HTTP_BYTES
from veilmq.server.byte_budget import ByteBudget, by_address
from veilmq.server.http1 import Http1Connection, Inspect, Word
from veilmq.server.http_date import DateLine
from veilmq.server.http_heads import KnownHeads
from veilmq.server.http_limits import HttpLimits
from veilmq.server.http_refusal import as_text
from veilmq.server.http_request import Date, Handler
from veilmq.server.turns import Turns

_LOOKS_PER_LIMIT = 20  # a client may be late by this fraction of the shortest limit
_LOOKS_AT_UNREAD = 3  # while a client may take nothing of an answer


class Connections:
    """The table of connections; made in the event loop that serves them."""

    def __init__(
        self,
        *,
        handler: Handler,
        limits: HttpLimits | None = None,
        refused: Word = as_text,
        inspect: Inspect = by_address,
        budget: ByteBudget | None = None,
    ) -> None:
        """``handler`` gets every whole request, ``refused`` words what refuses one before it is whole.

        ``inspect`` gets the head of each with a large body, which counts in ``budget``.
        """
        self._loop = asyncio.get_running_loop()
        self.handler = handler
        self.inspect = inspect
        self.budget = budget or ByteBudget(HTTP_BYTES.default)
        self.turns = Turns(self._loop)
        self.refused = refused
        self.limits = limits or HttpLimits()
        self.heads = KnownHeads()
        self.draining = False
        self.date: Date = DateLine()
        self.time_s = self._loop.time
        self._open: set[Http1Connection] = set()
        self._look_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._look_s = min(self.limits.idle_s_max, self.limits.request_s_max / _LOOKS_AT_UNREAD)
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
        self.expect(self.time_s() + self._look_s)
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
        next_s = now_s + self._look_s
        for connection in list(self._open):
            deadline_s = connection.deadline_s()
            if deadline_s is not None and deadline_s <= now_s:
                connection.time_out()
                deadline_s = now_s + self._gap_s
            if deadline_s is not None:
                next_s = min(next_s, deadline_s)
        if self._open:
            self.expect(next_s)
