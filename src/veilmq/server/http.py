"""HTTP/1.1 connections (RFC 9112): requests in the order in which they come, replies in the same order, deadlines.

The hot path is a request that arrives in one segment or two and gets one reply: one call of the handler and one
``transport.write``; no task, no future, no timer. Replies that are ready together are written together.

A refused request is answered in its turn; then the connection reads no more and drops what comes until the client
closes, for a short time: closing at once would reset the connection and take the reply with it. The server does not
read from a client that reads no replies, or has too many requests under way, or too long ones.

A request that comes while others of its connection are under way is begun in a later turn of the loop, a few in each,
so that a client that pipelines does not go before those that send one request. A large body is admitted by its head,
reserves its bytes, and is read a segment a turn.

One timer serves all deadlines. It is set for the earliest one known; connections announce the short ones. All
connections are inspected every ten seconds, for clients that do not read. So nothing is touched per request.
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
    """The header line with the present date; raw wall-clock time, as clients compare it with their own."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.line = b""

    def renew(self) -> bytes:
        """Return the line, and keep it in ``line`` until the second is over."""
        now_s = time()
        self.line = b"Date: %b\r\n" % formatdate(now_s, usegmt=True).encode()
        self._loop.call_later(1 - now_s % 1, self._forget)
        return self.line

    def _forget(self) -> None:
        self.line = b""


_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_SLICE_BYTES = 65_536
"""A segment up to this is read at once, and that much of a large body in one turn of the loop."""
_UNSENT_BYTES = 65_536
"""A client that leaves more than this unread is not read from until it has taken all."""
_PIPELINED_BYTES = 16_384
"""How much of a larger segment is parsed before the requests in it are begun."""
_BEGUN_IN_A_TURN = 8


Inspect = Callable[[Request], Share | None]
"""The head of a request with a large body → where the body counts; ``None`` once it is refused with a reply."""

Word = Callable[[Refusal, Mapping[bytes, bytes]], Worded]
"""A refusal, and the headers of the request as far as they came → the reply."""


class Http1Connection(asyncio.Protocol):
    """One client. Instants are in the event loop's seconds, 0 where their state does not hold."""

    __slots__ = (
        "_beginning", "_behind", "_corked", "_ended", "_half_closed", "_handler", "_idle_since_s", "_keeper",
        "_limits", "_line", "_lingering_since_s", "_lingers", "_pacing", "_partly_sent_bytes", "_paused", "_peer",
        "_reader", "_reading_since_s", "_resting", "_stalled_since_s", "_transport", "_turn_comes", "_unpaced_bytes",
        "_unread", "_unsent", "_unsent_counted", "_unsent_since_s", "_waiting_since_s", "date", "proven",
    )  # fmt: skip

    def __init__(self, keeper: "Connections") -> None:
        """Made by the event loop's server for each connection; ``keeper`` is shared by all."""
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
        self._behind: list[Request] = []  # those of the line that are not begun
        self._beginning = False  # they have a turn to come
        self._turn_comes = False
        self._unread = b""  # the rest of a segment whose beginning was many requests
        self.proven = False
        self._corked = False  # replies wait for the end of the segment
        self._ended = False  # no further request is read
        self._half_closed = False
        self._lingers = False
        self._pacing = False  # the next segment of a large body is read in a later turn
        self._partly_sent_bytes = 0  # the longest reply since ``pause_writing``: held as a whole until it is sent
        self._paused = False
        self._peer: str | None = None  # not looked up yet; empty where the client has no address
        self._idle_since_s = 0.0
        self._reading_since_s = 0.0
        self._stalled_since_s = 0.0
        self._lingering_since_s = 0.0
        self._waiting_since_s = 0.0  # a body waits for room in the budget
        self._unpaced_bytes = 0
        self._unsent = 0  # what the client had not taken when that was last seen to change
        self._unsent_since_s = 0.0
        self._unsent_counted = 0  # in the budget

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; a client that sends nothing counts as idle."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES, low=0)
        self._idle_since_s = self._keeper.time_s()
        self._keeper.add(self)

    def data_received(self, data: bytes) -> None:
        """Parse one segment, hand on the requests that it completes, and write what is answered already."""
        if self._unread:  # it came behind requests that are not begun
            self._unread += data
            return
        if self._ended:
            if self._lingers:  # what comes after the last request is dropped, in turns
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
        """Answer the requests that came, then close; long polls wait no longer (the client may be gone)."""
        if not self._resting and not self._ended and not self._unread:
            self._refuse(TRUNCATED, self._reader.stop())
            self.answered()
        self._half_closed = True
        self._ended = not self._unread
        self._hurry()
        return bool(self._line) and self._transport.can_write_eof()  # TLS cannot be closed halfway

    def connection_lost(self, exc: Exception | None) -> None:
        """Withdraw what has not been answered."""
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
        """Go on."""
        self._stalled_since_s = 0.0
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES, low=0)
        self._count_unsent(0)
        self._regulate()
        self.turn()

    def answered(self) -> None:
        """Write the replies that are ready, from the front of the line."""
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
        """Begin the first of the line if it waits for its turn, and the client has taken all replies.

        (A reply that is not sent to its end is held as a whole, so a second one would take twice the memory.) While any
        client leaves answers unread, what is begun here is begun slowly: it may bring large answers, too.
        """
        if self._turn_comes or not self._waits_for_turn():
            return
        if self._transport.get_write_buffer_size():
            self._transport.set_write_buffer_limits(high=0)  # ``pause_writing`` now, ``resume_writing`` at its end
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
        """Return the address of the client; one of IPv4 as such, also where it came to a socket of both kinds."""
        if self._peer is None:
            name = self._transport.get_extra_info("peername")
            self._peer = str(unmapped(ip_address(name[0]))) if isinstance(name, tuple) else ""
        return self._peer or None

    def drain(self) -> None:
        """Answer what is there, then close; at once if nothing is."""
        if self._lingering_since_s:
            return
        if self._line and not self._reading_since_s and not self._unread:
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
        """End a connection whose deadline has passed; an unfinished request gets the reason."""
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
        """Answer the request that is being read with an error, and read no more."""
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
        """Check the request that is being read, which is not plain; return whether to read on."""
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
        """Reserve the bytes of the body that is being read, after a check of its head; return whether to read on."""
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
        """Read on in a later turn of the loop if that was a large piece."""
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
        """Parse a large segment: a body at once, but of many requests only as many as fit into a slice."""
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
        """Begin some requests that came while others were in the line, then parse what came behind them."""
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
            self._transport.abort()  # as the event loop does with one that ``data_received`` raises for
            raise
        finally:
            self._corked = False
        self.answered()
        self._regulate()

    def _takes_too_little(self) -> bool:
        """Tell whether the client has so many answers to take that no further request of it begins."""
        if self._stalled_since_s:
            return True
        return sum([len(request.reply) for request in self._line if request.reply is not None]) > _UNSENT_BYTES

    def _is_heavy(self) -> bool:
        """Tell whether the bodies in the line are as long as one may be: behind a long poll they stay for a while."""
        # What is decoded let its body go, but a command may hold a large one, which counts until its reply.
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
        """Read from the client, or do not; begin what waits in its line, if that can go on."""
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


_INSPECTIONS_PER_LIMIT = 20  # a client may be late by this fraction of the shortest limit
_INSPECTIONS_OF_UNREAD = 3  # while a client may take nothing of an answer


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
        self.loop_queues = LoopQueues(self._loop)
        self.refused = refused
        self.limits = limits or HttpLimits()
        self.layouts = Layouts(self.limits)
        self.draining = False
        self.date: Date = DateLine()
        self.time_s = self._loop.time
        self._open: set[Http1Connection] = set()
        self.inspected_at_s = 0.0  # when all deadlines are inspected next, but for the gap
        self._timer: asyncio.TimerHandle | None = None
        self._inspection_s = min(self.limits.idle_s_max, self.limits.request_s_max / _INSPECTIONS_OF_UNREAD)
        shortest_s = min(self.limits.request_s_max, self.limits.idle_s_max, self.limits.linger_s_max)
        self._gap_s = shortest_s / _INSPECTIONS_PER_LIMIT
        self._emptied = asyncio.Event()
        self._emptied.set()

    def __len__(self) -> int:
        return len(self._open)

    def protocol(self) -> Http1Connection:
        """Make a connection, for the event loop's server."""
        return Http1Connection(self)

    def add(self, connection: Http1Connection) -> None:
        """Count in a new connection."""
        self._open.add(connection)
        self._emptied.clear()
        self.expect(self.time_s() + self._inspection_s)
        if self.draining:
            connection.drain()

    def remove(self, connection: Http1Connection) -> None:
        """Count out one that is gone."""
        self._open.discard(connection)
        if not self._open:
            self._emptied.set()

    def expect(self, at_s: float) -> None:
        """Inspect the deadlines again soon after ``at_s``."""
        if self._timer is not None:
            if at_s >= self.inspected_at_s:
                return
            self._timer.cancel()
        self.inspected_at_s = at_s
        self._timer = self._loop.call_at(at_s + self._gap_s, self._inspect)

    async def drain(self) -> None:
        """Let every connection answer its requests and close; ``abort`` makes it end."""
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
