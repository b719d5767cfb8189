"""HTTP/1.1 on one connection (RFC 9112): the line of its requests, their replies in order, its deadlines.

The hot path is a request that arrives in one segment and gets one reply: one call of the handler and one
``transport.write``; no task, no future, no timer. Replies that are ready together are written together.

A refused request is answered in its turn; then the connection says nothing more and drops what comes until the client
closes, for a short time: closing at once would reset the connection and take the reply with it. A client that reads no
replies, or has too many requests in the line, or too long ones, is not read from (then its going is noticed late).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Protocol, cast

from veilmq.server import http_refusal as refusal
from veilmq.server.http_heads import KnownHeads
from veilmq.server.http_limits import HttpLimits
from veilmq.server.http_reader import RequestReader
from veilmq.server.http_refusal import Refusal, Worded
from veilmq.server.http_request import CLOSE, Date, Handler, Request

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


Word = Callable[[Refusal, Mapping[bytes, bytes]], Worded]
"""What refuses a request, and its headers as far as they were heard → how it is answered."""


class Keeper(Protocol):
    """What a connection needs from the table of all connections."""

    handler: Handler
    limits: HttpLimits
    heads: KnownHeads
    draining: bool
    date: Date
    refused: Word

    def time_s(self) -> float:
        """Return the event loop's time."""

    def add(self, connection: "Http1Connection") -> None:
        """Count in a new connection."""

    def remove(self, connection: "Http1Connection") -> None:
        """Count out one that is gone."""

    def expect(self, at_s: float) -> None:
        """Look at the deadlines again soon after ``at_s``."""


class Http1Connection(asyncio.Protocol):
    """One client. Instants are in the event loop's seconds, 0 where the state that they tell of does not hold."""

    __slots__ = (
        "_corked",
        "_ended",
        "_half_closed",
        "_handler",
        "_idle_since_s",
        "_keeper",
        "_limits",
        "_line",
        "_lingering_since_s",
        "_lingers",
        "_paused",
        "_peer",
        "_reader",
        "_reading_since_s",
        "_resting",
        "_stalled_since_s",
        "_transport",
        "date",
    )

    def __init__(self, keeper: Keeper) -> None:
        """Made by the event loop's server for each connection; ``keeper`` is shared by all."""
        self._keeper = keeper
        self._handler = keeper.handler
        self._limits = keeper.limits
        self.date = keeper.date
        self._reader = RequestReader(
            line=self, limits=keeper.limits, heads=keeper.heads, complete=self._begin, refuse=self._refuse
        )
        self._resting = self._reader.resting
        self._transport = cast(asyncio.Transport, None)  # until connection_made
        self._line: deque[Request] = deque()
        self._corked = False  # replies wait for the end of the segment
        self._ended = False  # no further request is read
        self._half_closed = False
        self._lingers = False
        self._paused = False
        self._peer: str | None = None  # not asked yet; empty where the client has no address
        self._idle_since_s = 0.0
        self._reading_since_s = 0.0
        self._stalled_since_s = 0.0
        self._lingering_since_s = 0.0

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; a client that sends nothing counts as idle."""
        self._transport = cast(asyncio.Transport, transport)
        self._idle_since_s = self._keeper.time_s()
        self._keeper.add(self)

    def data_received(self, data: bytes) -> None:
        """Parse one segment, hand on the requests that it completes, and write what is answered already."""
        if self._ended:
            return
        self._corked = True
        try:
            self._reader.feed(data)
            if not self._resting:
                self._await_rest(len(data))
        finally:
            self._corked = False
        self.answered()
        if len(self._line) >= self._limits.pipelined_max:
            self._regulate()

    def eof_received(self) -> bool:
        """Answer what was asked, then close; whoever waits for messages waits no longer (the client may be gone)."""
        if not self._resting and not self._ended:
            self._refuse(refusal.TRUNCATED, self._reader.stop())
            self.answered()
        self._half_closed = self._ended = True
        self._hurry()
        return bool(self._line) and self._transport.can_write_eof()  # TLS cannot be closed halfway

    def connection_lost(self, exc: Exception | None) -> None:
        """Withdraw what has not been answered."""
        self._keeper.remove(self)
        self._ended = True
        self._reader.release()
        waiting, self._line = self._line, deque()
        for request in waiting:
            if request.pending is not None:
                request.pending.withdraw()

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read."""
        self._stalled_since_s = self._keeper.time_s()
        self._keeper.expect(self._stalled_since_s + self._limits.request_s_max)
        self._regulate()

    def resume_writing(self) -> None:
        """Go on."""
        self._stalled_since_s = 0.0
        self._regulate()
        self.turn()

    # What requests and the keeper call.

    def answered(self) -> None:
        """Write the replies that are ready, from the front of the line."""
        line = self._line
        if self._corked or not line or line[0].reply is None:
            return
        request = line.popleft()
        reply = request.reply
        assert reply is not None, "checked above"
        if line and line[0].reply is not None:
            replies = [reply]
            while line and line[0].reply is not None:
                request = line.popleft()
                replies.append(cast(bytes, request.reply))
            reply = b"".join(replies)
        self._transport.write(reply)
        if not line:
            self._rest(request)
        elif line[0].begin is not None:
            self.turn()
        if self._paused:
            self._regulate()

    def turn(self) -> None:
        """Begin the first of the line if it waits for its turn, and the client takes its replies."""
        if not self._line or self._stalled_since_s:
            return
        begin, self._line[0].begin = self._line[0].begin, None
        if begin is not None:
            begin()

    def peer(self) -> str | None:
        """Return the address of the client; one of IPv4 as such, also where it came to a socket of both kinds."""
        if self._peer is None:
            self._peer = _address(self._transport.get_extra_info("peername"))
        return self._peer or None

    def drain(self) -> None:
        """Answer what is there, then close; at once if nothing is."""
        if self._lingering_since_s:
            return
        if self._line and not self._reading_since_s:
            self._line[-1].end_connection()
            self._ended = True
        self._hurry()
        if not self._line and not self._reading_since_s:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, whatever was going on."""
        self._transport.abort()

    def deadline_s(self) -> float | None:
        """Return when this client will have taken too long; ``None`` while it is our turn."""
        if self._lingering_since_s:
            return self._lingering_since_s + self._limits.linger_s_max
        if self._stalled_since_s:
            return self._stalled_since_s + self._limits.request_s_max
        if self._reading_since_s:
            return None if self._paused else self._reading_since_s + self._limits.request_s_max
        return None if self._line else self._idle_since_s + self._limits.idle_s_max

    def time_out(self) -> None:
        """End a connection whose deadline has passed; an unfinished request is told why."""
        if self._lingering_since_s or self._stalled_since_s or self._transport.is_closing():
            self._transport.abort()
        elif self._reading_since_s:
            self._refuse(refusal.slow(self._limits.request_s_max), self._reader.stop())
            self.answered()
        else:
            self._transport.close()

    # Reading.

    def _begin(self, request: Request) -> None:
        self._reading_since_s = 0.0
        if not request.keep_alive or self._keeper.draining:
            request.end_connection()
            self._ended = True
            self._reader.stop()
        self._line.append(request)
        request.pending = self._handler(request)

    def _refuse(self, flaw: Refusal, heard: Mapping[bytes, bytes]) -> None:
        """Answer the request that is being read with an error, and read no more."""
        self._reading_since_s = 0.0
        self._ended = self._lingers = True
        worded = self._keeper.refused(flaw, heard)
        request = Request(self, b"", b"", {}, b"", False, CLOSE)
        self._line.append(request)
        corked, self._corked = self._corked, True
        request.respond(flaw.status, worded.headers, worded.body)
        self._corked = corked

    def _await_rest(self, segment_bytes: int) -> None:
        if self._ended:
            return
        if not self._reading_since_s:
            self._reading_since_s = self._keeper.time_s()
            self._keeper.expect(self._reading_since_s + self._limits.request_s_max)
        self._reader.check_unfinished(segment_bytes)
        if self._reader.continue_due and not self._line:
            self._send_continue()
        if self._line and self._is_heavy():
            self._regulate()

    def _is_heavy(self) -> bool:
        """Tell whether the bodies in the line are as long as one may be: behind a long poll they stay for a while."""
        return sum([len(request.body) for request in self._line]) >= self._limits.body_bytes_max

    def _send_continue(self) -> None:
        self._reader.continue_due = False
        self._transport.write(_CONTINUE)

    def _hurry(self) -> None:
        for request in list(self._line):
            if request.pending is not None:
                request.pending.hurry()

    # Writing.

    def _rest(self, last: Request) -> None:
        """All that was asked is answered."""
        if not last.keep_alive or self._half_closed:
            self._close()
            return
        self._idle_since_s = self._keeper.time_s()
        if self._reader.continue_due:
            self._send_continue()

    def _close(self) -> None:
        if not self._lingers or self._half_closed or self._transport.is_closing():
            self._transport.close()
            return
        self._lingering_since_s = self._keeper.time_s()
        self._keeper.expect(self._lingering_since_s + self._limits.linger_s_max)
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _regulate(self) -> None:
        """Read from the client, or do not."""
        pause = bool(self._stalled_since_s) or len(self._line) >= self._limits.pipelined_max or self._is_heavy()
        if pause is self._paused or self._transport.is_closing():
            return
        self._paused = pause
        if pause:
            self._transport.pause_reading()
            return
        self._transport.resume_reading()
        if self._reading_since_s:
            self._reading_since_s = self._keeper.time_s()
            self._keeper.expect(self._reading_since_s + self._limits.request_s_max)


def _address(name: object) -> str:
    if not isinstance(name, tuple):
        return ""
    address = ip_address(name[0])
    return str(getattr(address, "ipv4_mapped", None) or address)
