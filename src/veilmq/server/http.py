"""HTTP/1.1 connections (RFC 9112): pipelined requests, replies in the order of their requests, deadlines.

On the hot path a request arrives in one or two segments and gets one reply: one handler call and one
``transport.write``; no task, future or timer. Replies that become ready together are written together.

A refused request is answered in order. The connection then drops further input until the client closes, for a limited
time: an immediate close would reset the connection and lose the reply. The server stops reading from a client that does
not read replies, or has too many or too large requests in progress.

A request that arrives while its connection has others in progress is handled in a later iteration of the event loop, a
few per iteration, so that a client that pipelines gets no priority over those that send one request at a time. A large
body is admitted by its head and reserves its bytes. After every 64 KiB reading pauses: until a later iteration, or for
clients whose signature is not verified until a paced slot (``admission``).

One timer serves all deadlines. It is set to the earliest known deadline; connections call ``inspect_at`` for short
ones. All connections are inspected three times per ``request_s_max`` (by default every ten seconds), to find clients
that do not read replies. So requests touch no timer.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
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
    STOPPING,
    TRUNCATED,
    Date,
    Handler,
    Layouts,
    Refusal,
    RenderedReply,
    Request,
    RequestReader,
    render_text,
    share_by_address,
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
        self._loop.call_later(1 - now_s % 1, setattr, self, "line", b"")
        return self.line


_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_SLICE_BYTES = 65_536
"""A segment up to this size is parsed at once; also how much of a large body is read per loop iteration."""
_UNSENT_BYTES = 65_536
"""If a client leaves more unread, the server stops reading from it until all is sent."""
_PIPELINED_BYTES = 16_384
"""How much of a larger segment is parsed before its requests are handled."""
_HANDLED_PER_ITERATION = 8


Admit = Callable[[Request], Share | None]
"""The head of a request with a large body → the share to which it counts; ``None`` after replying with a refusal."""

RenderRefusal = Callable[[Refusal, Mapping[bytes, bytes]], RenderedReply]
"""A refusal, and the request's headers received so far → the reply."""


class Http1Connection(asyncio.Protocol):
    """A client connection. Instants are in seconds of the event loop's clock; 0 means that the state does not apply."""

    __slots__ = (
        "_awaits_close_since_s", "_between_requests", "_connections", "_corked", "_drops_input", "_ended",
        "_half_closed", "_handler", "_handling_scheduled", "_idle_since_s", "_largest_unsent_reply_bytes",
        "_limits", "_next_scheduled", "_not_handled", "_paused", "_paused_for_pacing", "_peer", "_reader",
        "_reading_since_s", "_requests", "_stalled_since_s", "_transport", "_unpaced_bytes", "_unparsed",
        "_unsent_bytes", "_unsent_bytes_counted", "_unsent_since_s", "_waiting_since_s", "authenticated", "date",
    )  # fmt: skip

    def __init__(self, connections: "Connections") -> None:
        self._connections = connections
        self._handler = connections.handler
        self._limits = connections.limits
        self.date = connections.date
        self._reader = RequestReader(
            connection=self,
            limits=connections.limits,
            layouts=connections.layouts,
            complete=self._on_request,
            refuse=self._refuse_partial,
            hold_read=lambda: Hold(connections.budget, Share(""), self._on_body_granted),
        )
        self._between_requests = self._reader.between_requests
        self._transport = cast(asyncio.Transport, None)  # until connection_made
        self._requests: list[Request] = []
        self._not_handled: list[Request] = []  # requests in _requests that were not passed to the handler yet
        self._handling_scheduled = False  # _handle_pipelined is scheduled
        self._next_scheduled = False
        self._unparsed = b""  # the unparsed rest of a segment that contained many requests
        self.authenticated = False
        self._corked = False  # replies are held until the segment is parsed
        self._ended = False  # no further request is parsed
        self._half_closed = False
        self._drops_input = False
        self._paused_for_pacing = False  # the next segment of a large body is read in a later loop iteration
        self._largest_unsent_reply_bytes = 0  # since pause_writing: a reply stays in memory until all of it is sent
        self._paused = False
        self._peer: str | None = None  # None: not looked up yet; empty: the client has no address
        self._idle_since_s = 0.0
        self._reading_since_s = 0.0
        self._stalled_since_s = 0.0
        self._awaits_close_since_s = 0.0
        self._waiting_since_s = 0.0  # a body waits for budget
        self._unpaced_bytes = 0
        self._unsent_bytes = 0  # unsent bytes at the last change seen
        self._unsent_since_s = 0.0
        self._unsent_bytes_counted = 0  # bytes counted in the budget

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the idle deadline."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES, low=0)
        self._idle_since_s = self._connections.time_s()
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Parse one segment, pass its complete requests to the handler, and write replies that are ready."""
        if self._unparsed:  # behind requests that are not handled yet
            self._unparsed += data
            return
        if self._ended:
            if self._drops_input:  # input after the last request is dropped, at a limited rate
                self._pace(len(data), self._connections.loop_queues.paced_drop)
            return
        self._corked = True
        try:
            if len(data) > _SLICE_BYTES:
                self._feed_slices(data)
            else:
                self._reader.feed(data)
                if not self._between_requests:
                    self._await_more(len(data))
        finally:
            self._corked = False
        if self._requests and self._requests[0].reply is not None:
            self.reply_ready()

    def eof_received(self) -> bool:
        """Finish the requests received, without waiting for long polls (the client may be gone), then close."""
        if not self._between_requests and not self._ended and not self._unparsed:
            self._refuse_partial(TRUNCATED, self._reader.stop())
            self.reply_ready()
        self._half_closed = True
        self._ended = not self._unparsed
        self._hurry()
        return bool(self._requests) and self._transport.can_write_eof()  # TLS cannot be closed halfway

    def connection_lost(self, exc: Exception | None) -> None:
        """Withdraw requests without a reply."""
        self._connections.remove(self)
        self._connections.budget.remove_waiter(self.run_next_in_turn)
        self._ended = True
        self._reader.release()
        self._stalled_since_s = 0.0
        self._count_unsent(0)
        waiting, self._requests = self._requests, []
        self._not_handled.clear()
        self._unparsed = b""
        for request in waiting:
            if request.hold is not None:
                request.hold.release()
            if request.pending is not None:
                request.pending.withdraw()

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read."""
        self._stalled_since_s = self._connections.time_s()
        self._connections.inspect_at(self._stalled_since_s + self._limits.request_s_max)
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self._unsent_since_s = self._stalled_since_s
        self._largest_unsent_reply_bytes = 0
        self._update_flow()

    def resume_writing(self) -> None:
        """Read again."""
        self._stalled_since_s = 0.0
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES, low=0)
        self._count_unsent(0)
        self._update_flow()
        self._connections.loop_queues.soon(self.run_next_in_turn)  # later: asyncio closes twice if this call does

    def reply_ready(self) -> None:
        """Write the replies that are ready, in the order of their requests."""
        requests = self._requests
        if self._corked or not requests:
            return
        request = requests[0]
        reply = request.reply
        if reply is None:
            return
        del requests[0]
        if requests and requests[0].reply is not None:
            replies = [reply]
            while requests and requests[0].reply is not None:
                request = requests.pop(0)
                replies.append(cast(bytes, request.reply))
            reply = b"".join(replies)
        self._transport.write(reply)
        if not requests:
            if not request.keep_alive or self._half_closed:
                self._close()
            else:
                self._idle_since_s = self._connections.time_s()
                if self._reader.continue_due and not self._waiting_since_s:
                    self._send_continue()
        elif requests[0].in_turn is not None:
            self.run_next_in_turn()
        if self._paused:
            self._largest_unsent_reply_bytes = max(self._largest_unsent_reply_bytes, len(reply))
            self._update_flow()

    def run_next_in_turn(self) -> None:
        """Run the first request in ``_requests`` if it waits for its turn and the client has read all replies.

        (A partly sent reply stays in memory as a whole; a second one would double that.) While any client has unread
        replies, requests in turn run at a lower priority, since their replies may be large too.
        """
        if self._next_scheduled or not self._next_waits():
            return
        if self._transport.get_write_buffer_size():
            self._transport.set_write_buffer_limits(high=0)  # pause_writing now, resume_writing when all is sent
        elif self._connections.budget.replies_full:
            self._connections.budget.add_waiter(self.run_next_in_turn)
        elif self._connections.budget.unread_replies:
            self._next_scheduled = True
            self._connections.loop_queues.paced(self._run_next)
        else:
            self._run_next()

    def _run_next(self) -> None:
        self._next_scheduled = False
        if self._next_waits():
            run, self._requests[0].in_turn = self._requests[0].in_turn, None
            assert run is not None, "it waits for its turn"
            run()

    def _next_waits(self) -> bool:
        return bool(self._requests) and not self._stalled_since_s and self._requests[0].in_turn is not None

    def peer(self) -> str | None:
        """Return the client's address; an IPv4 address also on a dual-stack socket. ``None`` if it has none."""
        if self._peer is None:
            name = self._transport.get_extra_info("peername")
            self._peer = str(unmapped(ip_address(name[0]))) if isinstance(name, tuple) else ""
        return self._peer or None

    def drain(self) -> None:
        """Answer the requests in progress, then close; close at once if there are none."""
        if self._awaits_close_since_s:
            return
        if self._requests and not self._reading_since_s and not self._unparsed:
            self._requests[-1].end_connection()
            self._ended = True
        self._hurry()
        if self._reading_since_s:
            self._limit_reading()
        elif not self._requests:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def deadline_s(self) -> float | None:
        """Return when the client times out; ``None`` while the server has to act."""
        if self._awaits_close_since_s:
            return self._awaits_close_since_s + self._limits.linger_s_max
        if unsent := self._transport.get_write_buffer_size():
            if unsent != self._unsent_bytes:
                self._unsent_bytes, self._unsent_since_s = unsent, self._connections.time_s()
            return self._unsent_since_s + self._limits.request_s_max
        if self._waiting_since_s:
            return self._waiting_since_s + self._limits.body_wait_s_max
        if self._reading_since_s:
            return None if self._paused else self._reading_since_s + self._connections.read_s_max
        return None if self._requests else self._idle_since_s + self._limits.idle_s_max

    def time_out(self) -> None:
        """Close a connection whose deadline has passed; an incomplete request is refused with the reason."""
        client_stalled = self._transport.get_write_buffer_size() > 0
        if self._awaits_close_since_s or client_stalled or self._transport.is_closing():
            self._transport.abort()
        elif self._waiting_since_s or self._reading_since_s:
            slow = STOPPING if self._connections.draining else SLOW.of(self._limits.request_s_max)
            self._refuse_partial(NO_ROOM if self._waiting_since_s else slow, self._reader.stop())
            self.reply_ready()
        else:
            self._transport.close()

    def _on_request(self, request: Request) -> None:
        self._reading_since_s = 0.0
        if not request.keep_alive or self._connections.draining:
            request.end_connection()
            self._ended = True
            self._reader.stop()
        requests = self._requests
        requests.append(request)
        if len(requests) > 1:
            request.is_pipelined = True
            self._not_handled.append(request)
            self._update_flow()
        elif (pending := self._handler(request)) is not None:
            request.pending = pending

    def _refuse_partial(self, refusal: Refusal, headers: Mapping[bytes, bytes]) -> None:
        self._stop_reading()
        rendered = self._connections.render_refusal(refusal, headers)
        request = Request(self, b"", b"", {}, b"", False, CLOSE)
        self._requests.append(request)
        corked, self._corked = self._corked, True
        request.respond(refusal.status, rendered.headers, rendered.body)
        self._corked = corked

    def _stop_reading(self) -> None:
        self._reading_since_s = self._waiting_since_s = 0.0
        self._ended = self._drops_input = True
        self._update_flow()

    def _await_more(self, segment_bytes: int) -> None:
        if self._ended:
            return
        if not self._reading_since_s or self._connections.draining:
            self._reading_since_s = self._connections.time_s()
            if self._reading_since_s + self._connections.read_s_max < self._connections.next_inspection_s:
                self._connections.inspect_at(self._reading_since_s + self._connections.read_s_max)
        if self._reader.plain is None:
            if not self._reader.check_unfinished(segment_bytes):
                return
            more = self._reader.bytes_to_reserve()
            if (more or (self._reader.continue_due and self._reader.hold is None)) and not self._reserve(more):
                return
            if self._reader.hold is not None:
                queues = self._connections.loop_queues
                self._pace(segment_bytes, queues.soon if self._reader.hold.share.trusted else queues.paced)
            if self._reader.continue_due and not self._requests:
                self._send_continue()
        if self._requests and self._bodies_fill_limit():
            self._update_flow()

    def _reserve(self, more: int) -> bool:
        """Check the head and reserve the body's bytes; return whether to read on."""
        hold = self._reader.hold
        if hold is None:
            head = self._reader.head()
            share = self._connections.admit(head)
            if share is None:
                self._reader.stop()
                self._stop_reading()
                self._requests.append(head)
                return False
            hold = Hold(self._connections.budget, share, self._on_body_granted)
            self._reader.admit(hold)
        if more and not hold.reserve(more):
            self._waiting_since_s = self._connections.time_s()
            self._connections.inspect_at(self._waiting_since_s + self._limits.body_wait_s_max)
            self._update_flow()
            return False
        return True

    def _on_body_granted(self) -> None:
        self._waiting_since_s = 0.0
        if self._reader.continue_due and not self._requests:
            self._send_continue()
        self._update_flow()

    def _pace(self, segment_bytes: int, later: Callable[[Callable[[], object]], None]) -> None:
        """After every ``_SLICE_BYTES``, pause reading until ``later`` runs."""
        self._unpaced_bytes += segment_bytes
        if self._unpaced_bytes < _SLICE_BYTES or self._paused_for_pacing or self._transport.is_closing():
            return
        self._unpaced_bytes = 0
        self._paused_for_pacing = True
        if not self._paused:
            self._transport.pause_reading()

        def resume() -> None:
            self._paused_for_pacing = False
            if not self._paused and not self._transport.is_closing():
                self._transport.resume_reading()

        later(resume)

    def _feed_slices(self, data: bytes) -> None:
        """Parse a large segment: a body at once, but pipelined requests only up to a slice."""
        at = 0
        while at < len(data) and not self._ended:
            if self._not_handled:
                self._unparsed = data[at:]
                return
            piece = data[at : at + max(_PIPELINED_BYTES, self._reader.body_left())]
            at += len(piece)
            self._reader.feed(piece)
            if not self._between_requests:
                self._await_more(len(piece))

    def _handle_pipelined(self) -> None:
        """Handle some pipelined requests, then parse the rest of their segment."""
        self._handling_scheduled = False
        self._corked = True
        try:
            for _ in range(min(_HANDLED_PER_ITERATION, len(self._not_handled))):
                if self._has_unread_replies():
                    break
                request = self._not_handled.pop(0)
                request.pending = self._handler(request)
                if (self._half_closed or self._connections.draining) and request.pending is not None:
                    request.pending.hurry()
            if not self._not_handled and self._unparsed:
                data, self._unparsed = self._unparsed, b""
                self._feed_slices(data)
                self._ended = self._ended or (self._half_closed and not self._unparsed)
        except Exception:
            self._transport.abort()  # as the event loop does if data_received raises
            raise
        finally:
            self._corked = False
        self.reply_ready()
        self._update_flow()

    def _has_unread_replies(self) -> bool:
        """Return whether the client has too many unread replies for another request to be handled."""
        if self._stalled_since_s:
            return True
        return sum([len(request.reply) for request in self._requests if request.reply is not None]) > _UNSENT_BYTES

    def _bodies_fill_limit(self) -> bool:
        """Return whether the bodies in ``_requests`` fill the limit of one body: behind a long poll they stay long."""
        # Decoding releases the body, but a command may keep a large one, which counts until the reply.
        held = [
            len(each.body) if each.hold is None else max(len(each.body), each.hold.bytes) for each in self._requests
        ]
        return sum(held) >= self._limits.body_bytes_max

    def _limit_reading(self) -> None:
        self._reading_since_s = self._connections.time_s()
        self._connections.inspect_at(self._reading_since_s + self._connections.read_s_max)

    def _send_continue(self) -> None:
        self._reader.continue_due = False
        self._transport.write(_CONTINUE)

    def _count_unsent(self, unsent: int) -> None:
        self._connections.budget.count_replies(unsent - self._unsent_bytes_counted)
        self._unsent_bytes_counted = unsent

    def _hurry(self) -> None:
        for request in list(self._requests):
            if request.pending is not None:
                request.pending.hurry()

    def _close(self) -> None:
        if not self._drops_input or self._half_closed or self._transport.is_closing():
            self._transport.close()
            return
        self._awaits_close_since_s = self._connections.time_s()
        self._connections.inspect_at(self._awaits_close_since_s + self._limits.linger_s_max)
        if self._transport.can_write_eof():
            with suppress(OSError):  # asyncio raises it if the client has just reset the connection
                self._transport.write_eof()

    def _update_flow(self) -> None:
        """Pause or resume reading, and handle pipelined requests if possible."""
        if self._stalled_since_s:
            self._count_unsent(max(self._transport.get_write_buffer_size(), self._largest_unsent_reply_bytes))
        if self._not_handled and not self._handling_scheduled and not self._has_unread_replies():
            self._handling_scheduled = True
            self._connections.loop_queues.soon(self._handle_pipelined)
        pause = not self._drops_input and (
            bool(self._stalled_since_s or self._waiting_since_s or self._not_handled or self._unparsed)
            or len(self._requests) >= self._limits.pipelined_max
            or self._bodies_fill_limit()
        )
        if pause is self._paused or self._transport.is_closing():
            return
        self._paused = pause
        if not self._paused_for_pacing:
            (self._transport.pause_reading if pause else self._transport.resume_reading)()
        if self._reading_since_s and not pause:
            self._limit_reading()


_INSPECTIONS_PER_LIMIT = 20  # a timeout may be late by the shortest limit divided by this
_INSPECTIONS_PER_REQUEST_LIMIT = 3  # all connections are inspected this often per request_s_max


class Connections:
    """The table of connections; made in the event loop that serves them."""

    def __init__(
        self,
        *,
        handler: Handler,
        limits: HttpLimits | None = None,
        render_refusal: RenderRefusal = render_text,
        admit: Admit = share_by_address,
        budget: ByteBudget | None = None,
    ) -> None:
        """``handler`` gets complete requests, ``render_refusal`` renders the refusal of an incomplete one.

        ``admit`` gets the head of each request with a large body, which counts to ``budget``.
        """
        self._loop = asyncio.get_running_loop()
        self.handler = handler
        self.admit = admit
        self.budget = budget or ByteBudget(HTTP_BYTES.default)
        self.loop_queues = LoopQueues(self._loop)
        self.render_refusal = render_refusal
        self.limits = limits or HttpLimits()
        self.layouts = Layouts(self.limits)
        self.draining = False
        self.read_s_max = self.limits.request_s_max
        self.date: Date = DateLine()
        self.time_s = self._loop.time
        self._open: set[Http1Connection] = set()
        self.next_inspection_s = 0.0  # the next inspection of all deadlines, without the gap
        self._timer: asyncio.TimerHandle | None = None
        self._inspection_s = min(self.limits.idle_s_max, self.limits.request_s_max / _INSPECTIONS_PER_REQUEST_LIMIT)
        shortest_s = min(self.limits.request_s_max, self.limits.idle_s_max, self.limits.linger_s_max)
        self._gap_s = shortest_s / _INSPECTIONS_PER_LIMIT
        self._emptied = asyncio.Event()
        self._emptied.set()

    def __len__(self) -> int:
        return len(self._open)

    def protocol(self) -> Http1Connection:
        return Http1Connection(self)

    def add(self, connection: Http1Connection) -> None:
        """Register a connection."""
        self._open.add(connection)
        self._emptied.clear()
        self.inspect_at(self.time_s() + self._inspection_s)
        if self.draining:
            connection.drain()

    def remove(self, connection: Http1Connection) -> None:
        """Unregister a closed connection."""
        self._open.discard(connection)
        if not self._open:
            self._emptied.set()

    def inspect_at(self, at_s: float) -> None:
        """Inspect the deadlines soon after ``at_s``, or earlier."""
        if self._timer is not None:
            if at_s >= self.next_inspection_s:
                return
            self._timer.cancel()
        self.next_inspection_s = at_s
        self._timer = self._loop.call_at(at_s + self._gap_s, self._on_timer)

    async def drain(self) -> None:
        """Wait until every connection has answered its requests and closed; ``abort`` ends the wait."""
        self.draining = True
        self.read_s_max = self.limits.linger_s_max
        for connection in list(self._open):
            connection.drain()
        await self._emptied.wait()

    def abort(self) -> None:
        """Close all connections at once."""
        self.draining = True
        for connection in list(self._open):
            connection.abort()

    def _on_timer(self) -> None:
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
            self.inspect_at(next_s)
