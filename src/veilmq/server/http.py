"""HTTP/1.1 connections (RFC 9112): pipelined requests, replies in the order of their requests, deadlines.

On the hot path a request arrives in one or two segments and gets one reply: one handler call and one
``transport.write``; no task, future or timer. Replies that become ready together are written together.

A refused request is answered in order. The connection then drops further input until the client closes, for a limited
time: an immediate close would reset the connection and lose the reply. The server stops reading from a client that does
not read replies, or has too many or too large requests in progress.

A request that arrives while its connection has others in progress starts in a later iteration of the event loop, a few
per iteration, so that a client that pipelines gets no priority over those that send one request at a time. A large body
is admitted by its head, reserves its bytes, and is read one segment per iteration.

One timer serves all deadlines. It is set to the earliest known deadline; connections announce the short ones. All
connections are inspected every ten seconds, to find clients that do not read. So requests touch no timer.
"""

import asyncio
from collections.abc import Callable, Mapping
from email.utils import formatdate
from ipaddress import ip_address
from time import time
from typing import cast

from veilmq.core.limits import HTTP_BYTES
from veilmq.server.admission import ByteBudget, Hold, HttpLimits, LoopQueues, Share
from veilmq.server.http_parser import (
    CLOSE,
    NO_ROOM,
    SLOW,
    TRUNCATED,
    Date,
    Handler,
    Layouts,
    Refusal,
    Request,
    RequestReader,
    Worded,
    as_text,
    by_address,
)
from veilmq.server.settings import unmapped


class DateLine:
    """Cache of the ``Date`` header line; raw wall-clock time, as clients compare it with theirs."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.line = b""

    def renew(self) -> bytes:
        """Return the line, and cache it in ``line`` until the second ends."""
        now_s = time()
        self.line = b"Date: %b\r\n" % formatdate(now_s, usegmt=True).encode()
        self._loop.call_later(1 - now_s % 1, self._forget)
        return self.line

    def _forget(self) -> None:
        self.line = b""


_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_SLICE_BYTES = 65_536
"""A segment up to this size is parsed at once; also how much of a large body is read per loop iteration."""
_UNSENT_BYTES = 65_536
"""If a client leaves more unread, the server stops reading from it until all is sent."""
_PIPELINED_BYTES = 16_384
"""How much of a larger segment is parsed before its requests start."""
_BEGUN_IN_A_TURN = 8


Inspect = Callable[[Request], Share | None]
"""The head of a request with a large body → the share to which it counts; ``None`` after replying with a refusal."""

Word = Callable[[Refusal, Mapping[bytes, bytes]], Worded]
"""A refusal, and the request's headers received so far → the reply."""


class Http1Connection(asyncio.Protocol):
    """A client connection. Instants are in seconds of the event loop's clock; 0 means that the state does not apply."""

    __slots__ = (
        "_beginning", "_behind", "_corked", "_ended", "_half_closed", "_handler", "_idle_since_s", "_keeper",
        "_limits", "_line", "_lingering_since_s", "_lingers", "_pacing", "_partly_sent_bytes", "_paused", "_peer",
        "_reader", "_reading_since_s", "_resting", "_stalled_since_s", "_transport", "_turn_comes", "_unpaced_bytes",
        "_unread", "_unsent", "_unsent_counted", "_unsent_since_s", "_waiting_since_s", "date", "proven",
    )  # fmt: skip

    def __init__(self, keeper: "Connections") -> None:
        self._keeper = keeper
        self._handler = keeper.handler
        self._limits = keeper.limits
        self.date = keeper.date
        self._reader = RequestReader(
            line=self,
            limits=keeper.limits,
            layouts=keeper.layouts,
            complete=self._begin,
            refuse=self._refuse,
            hold_read=lambda: Hold(keeper.budget, Share(""), self._granted),
        )
        self._resting = self._reader.resting
        self._transport = cast(asyncio.Transport, None)  # until connection_made
        self._line: list[Request] = []
        self._behind: list[Request] = []  # requests in _line that have not started
        self._beginning = False  # their start is scheduled
        self._turn_comes = False
        self._unread = b""  # the unparsed rest of a segment that contained many requests
        self.proven = False
        self._corked = False  # replies are held until the segment is parsed
        self._ended = False  # no further request is parsed
        self._half_closed = False
        self._lingers = False
        self._pacing = False  # the next segment of a large body is read in a later loop iteration
        self._partly_sent_bytes = 0  # the largest reply since pause_writing: memory holds all of it until it is sent
        self._paused = False
        self._peer: str | None = None  # None: not looked up yet; empty: the client has no address
        self._idle_since_s = 0.0
        self._reading_since_s = 0.0
        self._stalled_since_s = 0.0
        self._lingering_since_s = 0.0
        self._waiting_since_s = 0.0  # a body waits for budget
        self._unpaced_bytes = 0
        self._unsent = 0  # unsent bytes at the last change seen
        self._unsent_since_s = 0.0
        self._unsent_counted = 0  # bytes counted in the budget

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the idle deadline."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES, low=0)
        self._idle_since_s = self._keeper.time_s()
        self._keeper.add(self)

    def data_received(self, data: bytes) -> None:
        """Parse one segment, pass its complete requests to the handler, and write replies that are ready."""
        if self._unread:  # behind requests that have not started
            self._unread += data
            return
        if self._ended:
            if self._lingers:  # input after the last request is dropped, at a limited rate
                self._pace(len(data), self._keeper.loop_queues.dropping)
            return
        self._corked = True
        try:
            if len(data) > _SLICE_BYTES:
                self._feed_slices(data)
            else:
                self._reader.feed(data)
                if not self._resting:
                    self._await_rest(len(data))
        finally:
            self._corked = False
        if self._line and self._line[0].reply is not None:
            self.answered()

    def eof_received(self) -> bool:
        """Finish the requests received, without waiting for long polls (the client may be gone), then close."""
        if not self._resting and not self._ended and not self._unread:
            self._refuse(TRUNCATED, self._reader.stop())
            self.answered()
        self._half_closed = True
        self._ended = not self._unread
        self._hurry()
        return bool(self._line) and self._transport.can_write_eof()  # TLS cannot be closed halfway

    def connection_lost(self, exc: Exception | None) -> None:
        """Withdraw requests without a reply."""
        self._keeper.remove(self)
        self._keeper.budget.off_room(self.turn)
        self._ended = True
        self._reader.release()
        self._stalled_since_s = 0.0
        self._count_unsent(0)
        waiting, self._line = self._line, []
        self._behind.clear()
        self._unread = b""
        for request in waiting:
            if request.hold is not None:
                request.hold.release()
            if request.pending is not None:
                request.pending.withdraw()

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read."""
        self._stalled_since_s = self._keeper.time_s()
        self._keeper.expect(self._stalled_since_s + self._limits.request_s_max)
        self._unsent = self._transport.get_write_buffer_size()
        self._unsent_since_s = self._stalled_since_s
        self._partly_sent_bytes = 0
        self._regulate()

    def resume_writing(self) -> None:
        """Read again."""
        self._stalled_since_s = 0.0
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES, low=0)
        self._count_unsent(0)
        self._regulate()
        self.turn()

    def answered(self) -> None:
        """Write the replies that are ready, in the order of their requests."""
        line = self._line
        if self._corked or not line:
            return
        request = line[0]
        reply = request.reply
        if reply is None:
            return
        del line[0]
        if line and line[0].reply is not None:
            replies = [reply]
            while line and line[0].reply is not None:
                request = line.pop(0)
                replies.append(cast(bytes, request.reply))
            reply = b"".join(replies)
        self._transport.write(reply)
        if not line:
            if not request.keep_alive or self._half_closed:
                self._close()
            else:
                self._idle_since_s = self._keeper.time_s()
                if self._reader.continue_due and not self._waiting_since_s:
                    self._send_continue()
        elif line[0].begin is not None:
            self.turn()
        if self._paused:
            self._partly_sent_bytes = max(self._partly_sent_bytes, len(reply))
            self._regulate()

    def turn(self) -> None:
        """Start the first request in ``_line`` if it waits for that and the client has read all replies.

        (A partly sent reply stays in memory as a whole; a second one would double that.) While any client has unread
        replies, ordered requests start at a lower priority, since their replies may be large too.
        """
        if self._turn_comes or not self._waits_for_turn():
            return
        if self._transport.get_write_buffer_size():
            self._transport.set_write_buffer_limits(high=0)  # pause_writing now, resume_writing when all is sent
        elif self._keeper.budget.answers_full:
            self._keeper.budget.on_room(self.turn)
        elif self._keeper.budget.answers:
            self._turn_comes = True
            self._keeper.loop_queues.unhurried(self._take_turn)
        else:
            self._take_turn()

    def _take_turn(self) -> None:
        self._turn_comes = False
        if self._waits_for_turn():
            begin, self._line[0].begin = self._line[0].begin, None
            assert begin is not None, "it waits for its turn"
            begin()

    def _waits_for_turn(self) -> bool:
        return bool(self._line) and not self._stalled_since_s and self._line[0].begin is not None

    def peer(self) -> str | None:
        """Return the client's address; an IPv4 address also on a dual-stack socket. ``None`` if it has none."""
        if self._peer is None:
            name = self._transport.get_extra_info("peername")
            self._peer = str(unmapped(ip_address(name[0]))) if isinstance(name, tuple) else ""
        return self._peer or None

    def drain(self) -> None:
        """Answer the requests in progress, then close; close at once if there are none."""
        if self._lingering_since_s:
            return
        if self._line and not self._reading_since_s and not self._unread:
            self._line[-1].end_connection()
            self._ended = True
        self._hurry()
        if not self._line and not self._reading_since_s:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def deadline_s(self) -> float | None:
        """Return when the client times out; ``None`` while the server has to act."""
        if self._lingering_since_s:
            return self._lingering_since_s + self._limits.linger_s_max
        if unsent := self._transport.get_write_buffer_size():
            if unsent != self._unsent:
                self._unsent, self._unsent_since_s = unsent, self._keeper.time_s()
            return self._unsent_since_s + self._limits.request_s_max
        if self._waiting_since_s:
            return self._waiting_since_s + self._limits.body_wait_s_max
        if self._reading_since_s:
            return None if self._paused else self._reading_since_s + self._limits.request_s_max
        return None if self._line else self._idle_since_s + self._limits.idle_s_max

    def time_out(self) -> None:
        """Close a connection whose deadline has passed; an incomplete request is refused with the reason."""
        takes_nothing = self._transport.get_write_buffer_size() > 0
        if self._lingering_since_s or takes_nothing or self._transport.is_closing():
            self._transport.abort()
        elif self._waiting_since_s:
            self._refuse(NO_ROOM, self._reader.stop())
            self.answered()
        elif self._reading_since_s:
            self._refuse(SLOW.of(self._limits.request_s_max), self._reader.stop())
            self.answered()
        else:
            self._transport.close()

    def _begin(self, request: Request) -> None:
        self._reading_since_s = 0.0
        if not request.keep_alive or self._keeper.draining:
            request.end_connection()
            self._ended = True
            self._reader.stop()
        line = self._line
        line.append(request)
        if len(line) > 1:
            request.is_behind = True
            self._behind.append(request)
            self._regulate()
        else:
            if (pending := self._handler(request)) is not None:
                request.pending = pending

    def _refuse(self, flaw: Refusal, headers: Mapping[bytes, bytes]) -> None:
        """Refuse the request being read, and read no more."""
        self._stop_reading()
        worded = self._keeper.refused(flaw, headers)
        request = Request(self, b"", b"", {}, b"", False, CLOSE)
        self._line.append(request)
        corked, self._corked = self._corked, True
        request.respond(flaw.status, worded.headers, worded.body)
        self._corked = corked

    def _stop_reading(self) -> None:
        self._reading_since_s = self._waiting_since_s = 0.0
        self._ended = self._lingers = True
        self._regulate()

    def _await_rest(self, segment_bytes: int) -> None:
        if self._ended:
            return
        if not self._reading_since_s:
            self._reading_since_s = self._keeper.time_s()
            if self._reading_since_s + self._limits.request_s_max < self._keeper.inspected_at_s:
                self._keeper.expect(self._reading_since_s + self._limits.request_s_max)
        if self._reader.plain is None and not self._read_on_closely(segment_bytes):
            return
        if self._line and self._is_heavy():
            self._regulate()

    def _read_on_closely(self, segment_bytes: int) -> bool:
        """Check a partial request that is not plain; return whether to read on."""
        if not self._reader.check_unfinished(segment_bytes):
            return False
        wanted = self._reader.wanted()
        if (wanted or (self._reader.continue_due and self._reader.hold is None)) and not self._admit(wanted):
            return False
        if self._reader.hold is not None:
            queues = self._keeper.loop_queues
            self._pace(segment_bytes, queues.soon if self._reader.hold.share.trusted else queues.unhurried)
        if self._reader.continue_due and not self._line:
            self._send_continue()
        return True

    def _admit(self, wanted: int) -> bool:
        """Check the head and reserve the body's bytes; return whether to read on."""
        hold = self._reader.hold
        if hold is None:
            head = self._reader.head()
            share = self._keeper.inspect(head)
            if share is None:
                self._reader.stop()
                self._stop_reading()
                self._line.append(head)
                return False
            hold = Hold(self._keeper.budget, share, self._granted)
            self._reader.admit(hold)
        if wanted and not hold.reserve(wanted):
            self._waiting_since_s = self._keeper.time_s()
            self._keeper.expect(self._waiting_since_s + self._limits.body_wait_s_max)
            self._regulate()
            return False
        return True

    def _granted(self) -> None:
        self._waiting_since_s = 0.0
        if self._reader.continue_due and not self._line:
            self._send_continue()
        self._regulate()

    def _pace(self, segment_bytes: int, later: Callable[[Callable[[], object]], None]) -> None:
        """After every ``_SLICE_BYTES``, pause reading until ``later`` runs."""
        self._unpaced_bytes += segment_bytes
        if self._unpaced_bytes < _SLICE_BYTES or self._pacing or self._transport.is_closing():
            return
        self._unpaced_bytes = 0
        self._pacing = True
        if not self._paused:
            self._transport.pause_reading()

        def read_on() -> None:
            self._pacing = False
            if not self._paused and not self._transport.is_closing():
                self._transport.resume_reading()

        later(read_on)

    def _feed_slices(self, data: bytes) -> None:
        """Parse a large segment: a body at once, but pipelined requests only up to a slice."""
        at = 0
        while at < len(data) and not self._ended:
            if self._behind:
                self._unread = data[at:]
                return
            piece = data[at : at + max(_PIPELINED_BYTES, self._reader.body_left())]
            at += len(piece)
            self._reader.feed(piece)
            if not self._resting:
                self._await_rest(len(piece))

    def _begin_behind(self) -> None:
        """Start some pipelined requests, then parse the rest of their segment."""
        self._beginning = False
        self._corked = True
        try:
            for _ in range(min(_BEGUN_IN_A_TURN, len(self._behind))):
                if self._takes_too_little():
                    break
                request = self._behind.pop(0)
                request.pending = self._handler(request)
                if (self._half_closed or self._keeper.draining) and request.pending is not None:
                    request.pending.hurry()
            if not self._behind and self._unread:
                data, self._unread = self._unread, b""
                self._feed_slices(data)
                self._ended = self._ended or (self._half_closed and not self._unread)
        except Exception:
            self._transport.abort()  # as the event loop does if data_received raises
            raise
        finally:
            self._corked = False
        self.answered()
        self._regulate()

    def _takes_too_little(self) -> bool:
        """Return whether the client has too many unread replies for another request to start."""
        if self._stalled_since_s:
            return True
        return sum([len(request.reply) for request in self._line if request.reply is not None]) > _UNSENT_BYTES

    def _is_heavy(self) -> bool:
        """Return whether the bodies in ``_line`` fill the limit of one body: behind a long poll they stay long."""
        # Decoding releases the body, but a command may keep a large one, which counts until the reply.
        held = [len(each.body) if each.hold is None else max(len(each.body), each.hold.bytes) for each in self._line]
        return sum(held) >= self._limits.body_bytes_max

    def _send_continue(self) -> None:
        self._reader.continue_due = False
        self._transport.write(_CONTINUE)

    def _count_unsent(self, unsent: int) -> None:
        self._keeper.budget.count_answers(unsent - self._unsent_counted)
        self._unsent_counted = unsent

    def _hurry(self) -> None:
        for request in list(self._line):
            if request.pending is not None:
                request.pending.hurry()

    def _close(self) -> None:
        if not self._lingers or self._half_closed or self._transport.is_closing():
            self._transport.close()
            return
        self._lingering_since_s = self._keeper.time_s()
        self._keeper.expect(self._lingering_since_s + self._limits.linger_s_max)
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _regulate(self) -> None:
        """Pause or resume reading, and start pipelined requests if possible."""
        if self._stalled_since_s:
            self._count_unsent(max(self._transport.get_write_buffer_size(), self._partly_sent_bytes))
        if self._behind and not self._beginning and not self._takes_too_little():
            self._beginning = True
            self._keeper.loop_queues.soon(self._begin_behind)
        pause = not self._lingers and (
            bool(self._stalled_since_s or self._waiting_since_s or self._behind or self._unread)
            or len(self._line) >= self._limits.pipelined_max
            or self._is_heavy()
        )
        if pause is self._paused or self._transport.is_closing():
            return
        self._paused = pause
        if not self._pacing:
            (self._transport.pause_reading if pause else self._transport.resume_reading)()
        if self._reading_since_s and not pause:
            self._reading_since_s = self._keeper.time_s()
            self._keeper.expect(self._reading_since_s + self._limits.request_s_max)


_INSPECTIONS_PER_LIMIT = 20  # a timeout may be late by this fraction of the shortest limit
_INSPECTIONS_OF_UNREAD = 3  # per limit, while replies are unread


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
        """``handler`` gets complete requests, ``refused`` renders the refusal of an incomplete one.

        ``inspect`` gets the head of each request with a large body, which counts to ``budget``.
        """
        self._loop = asyncio.get_running_loop()
        self.handler = handler
        self.inspect = inspect
        self.budget = budget or ByteBudget(HTTP_BYTES.default)
        self.loop_queues = LoopQueues(self._loop)
        self.refused = refused
        self.limits = limits or HttpLimits()
        self.layouts = Layouts(self.limits)
        self.draining = False
        self.date: Date = DateLine()
        self.time_s = self._loop.time
        self._open: set[Http1Connection] = set()
        self.inspected_at_s = 0.0  # the next inspection of all deadlines, without the gap
        self._timer: asyncio.TimerHandle | None = None
        self._inspection_s = min(self.limits.idle_s_max, self.limits.request_s_max / _INSPECTIONS_OF_UNREAD)
        shortest_s = min(self.limits.request_s_max, self.limits.idle_s_max, self.limits.linger_s_max)
        self._gap_s = shortest_s / _INSPECTIONS_PER_LIMIT
        self._emptied = asyncio.Event()
        self._emptied.set()

    def __len__(self) -> int:
        return len(self._open)

    def protocol(self) -> Http1Connection:
        """Protocol factory of the event loop's server."""
        return Http1Connection(self)

    def add(self, connection: Http1Connection) -> None:
        """Register a connection."""
        self._open.add(connection)
        self._emptied.clear()
        self.expect(self.time_s() + self._inspection_s)
        if self.draining:
            connection.drain()

    def remove(self, connection: Http1Connection) -> None:
        """Unregister a closed connection."""
        self._open.discard(connection)
        if not self._open:
            self._emptied.set()

    def expect(self, at_s: float) -> None:
        """Inspect the deadlines soon after ``at_s``, or earlier."""
        if self._timer is not None:
            if at_s >= self.inspected_at_s:
                return
            self._timer.cancel()
        self.inspected_at_s = at_s
        self._timer = self._loop.call_at(at_s + self._gap_s, self._inspect)

    async def drain(self) -> None:
        """Wait until every connection has answered its requests and closed; ``abort`` ends the wait."""
        self.draining = True
        for connection in list(self._open):
            connection.drain()
        await self._emptied.wait()

    def abort(self) -> None:
        """Close all connections at once."""
        self.draining = True
        for connection in list(self._open):
            connection.abort()

    def _inspect(self) -> None:
        self._timer = None
        now_s = self.time_s()
        next_s = now_s + self._inspection_s
        for connection in list(self._open):
            deadline_s = connection.deadline_s()
            if deadline_s is not None and deadline_s <= now_s:
                connection.time_out()
                deadline_s = now_s + self._gap_s
            if deadline_s is not None:
                next_s = min(next_s, deadline_s)
        if self._open:
            self.expect(next_s)
