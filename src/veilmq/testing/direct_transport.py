"""A client's way to the server of the same process without a socket, in virtual time.

Requests go straight to the server's handler, its faults included, so that nothing but the clock decides how long a call
takes: one that waits for an answer sleeps on the clock, and its patience is virtual, too.
"""

import threading
from collections.abc import Mapping

from urllib3 import HTTPResponse

from veilmq.client.messages import Unreachable
from veilmq.client.transport import ATTEMPTS_MAX, REPLY_S_MAX, HttpReply, Transport
from veilmq.server.http_request import Date, Request
from veilmq.testing.running_server import RunningServer
from veilmq.testing.stepped_clock import SteppedAlarm, SteppedClock

PAUSE_S = 0.1
_RETRIED_STATUSES = (500, 502, 503, 504)
_END_OF_HEAD = b"\r\n\r\n"


class DirectTransport(Transport):
    """``Transport`` to ``server``; what is tried again is the same, at instants of ``clock``."""

    def __init__(self, server: RunningServer, clock: SteppedClock) -> None:
        """Send nothing yet."""
        super().__init__(server.endpoint)
        self._server = server
        self._clock = clock
        self._alarms = threading.local()
        self._waiting: set[Call] = set()

    def request(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        wait_s: int = 0,
        patience_s: float | None = None,
    ) -> HttpReply:
        """Send a request and return the answer, whatever its status; raises ``Unreachable``."""
        limit_s = wait_s + REPLY_S_MAX if patience_s is None else patience_s
        tries = ATTEMPTS_MAX if patience_s is None else 1
        while True:
            tries -= 1
            call = Call(method, target or "/", headers, body, self._alarm())
            if wait_s:
                self._waiting.add(call)
            self._wait(call, limit_s)
            self._waiting.discard(call)
            if call.reply is not None and (call.reply.status not in _RETRIED_STATUSES or not tries):
                return call.reply
            if not tries:
                raise Unreachable(self.endpoint, "connection reset by peer" if call.is_over else "no answer in time")
            self._sleep(PAUSE_S)

    def hang_up(self) -> None:
        """Have the server answer now those that wait on purpose."""
        for call in list(self._waiting):
            self._server.hurry(call.request)

    def _wait(self, call: "Call", limit_s: float) -> None:
        """Hand the request over, and sleep until it is over or has been given up."""
        until_s = self._clock.now_s() + limit_s
        self._server.hand(call.request)
        while not call.is_over and self._clock.now_s() < until_s:
            call.alarm.wait_until(until_s)
        if not call.is_over:
            self._server.withdraw(call.request)

    def _sleep(self, duration_s: float) -> None:
        until_s = self._clock.now_s() + duration_s
        while self._clock.now_s() < until_s:
            self._alarm().wait_until(until_s)

    def _alarm(self) -> SteppedAlarm:
        """Return the alarm of this thread."""
        if not hasattr(self._alarms, "own"):
            self._alarms.own = self._clock.alarm()
        alarm: SteppedAlarm = self._alarms.own
        return alarm


class Call:
    """One request and the line that it came by, which carries nothing else."""

    def __init__(self, method: str, target: str, headers: Mapping[str, str], body: bytes, alarm: SteppedAlarm) -> None:
        """``alarm`` rings when it is answered or hung up on."""
        self.alarm = alarm
        self.date: Date = _Undated()
        self.proven = False
        self.reply: HttpReply | None = None
        self.is_over = False
        sent = {name.lower().encode(): value.encode() for name, value in headers.items()}
        self.request = Request(self, method.encode(), target.encode(), sent, body, True)

    # What the request calls, in the server's thread.

    def answered(self) -> None:
        """Take the reply."""
        assert self.request.reply is not None, "called when it is answered"
        head, _, body = self.request.reply.partition(_END_OF_HEAD)
        self.reply = HTTPResponse(body=body, status=int(head.split(maxsplit=2)[1]))
        self.abort()

    def abort(self) -> None:
        """Be over, with a reply or without one."""
        self.is_over = True
        self.alarm.ring()

    def peer(self) -> str | None:
        """Return nothing: it came by no network."""
        return None

    def turn(self) -> None:
        """Have it begin at once: there is nothing before it."""
        begin, self.request.begin = self.request.begin, None
        assert begin is not None, "set by whoever waits"
        begin()


class _Undated:
    """No ``Date`` line."""

    line = b"Date: -\r\n"

    def renew(self) -> bytes:
        return self.line
