"""A request whose answer does not go straight to its client: held back, late, or never.

The server is given a second request, the *inner* one, with the same content. What it answers comes here; the client's
own request, the *outer* one, keeps its place in the line of its connection until it is given an answer or hung up on.
"""

from collections.abc import Callable
from typing import cast

from veilmq.core.ports import Timer
from veilmq.server.http import Http1Connection
from veilmq.server.http_parser import Date, Handler, Pending, Request


def hang_up(request: Request) -> None:
    """Break the connection of ``request`` without an answer."""
    cast(Http1Connection, request.line).abort()


class Held:
    """A request that nobody answers; a ``Pending``."""

    def __init__(self, request: Request) -> None:
        """Do nothing with ``request``."""
        self._request = request

    def withdraw(self) -> None:
        """Let it be: the client has given up."""

    def hurry(self) -> None:
        """Hang up: the server ends, or the client will send nothing more."""
        hang_up(self._request)


class Shadow:
    """The line of the inner request, and what is pending of the outer one."""

    def __init__(self, outer: Request, *, answered: Callable[["Shadow"], object], body: bytes | None = None) -> None:
        """``answered`` is called when the inner request has its reply; ``body`` is another content for it."""
        self.outer = outer
        self.date: Date = outer.line.date
        self.proven = False
        self.timer: Timer | None = None
        self.inner = Request(
            self,
            outer.method,
            outer.target,
            outer.headers,
            outer.body if body is None else body,
            outer.keep_alive,
            outer.persistence,
        )
        self._answered = answered

    def begin(self, handler: Handler) -> Pending:
        """Have the server answer the inner request."""
        self.inner.pending = handler(self.inner)
        return self

    def deliver(self) -> None:
        """Give the outer request the answer of the inner one; a connection that is gone takes no notice."""
        self.outer.pending = None
        self.outer.reply = self.inner.reply
        self.outer.line.answered()

    # What the inner request calls.

    def answered(self) -> None:
        """Take note of the reply."""
        self._answered(self)

    def peer(self) -> str | None:
        """Return the address of the client."""
        return self.outer.line.peer()

    def turn(self) -> None:
        """Let the inner request wait for the turn of the outer one."""
        begin, self.inner.begin = self.inner.begin, None
        assert begin is not None, "set by whoever waits"
        self.outer.in_turn(begin)

    # What the connection calls.

    def withdraw(self) -> None:
        """Forget it: the client has gone."""
        if self.timer is not None:
            self.timer.cancel()
        if self.inner.pending is not None:
            self.inner.pending.withdraw()

    def hurry(self) -> None:
        """Hang up: the server ends, or the client has given up."""
        hang_up(self.outer)


class Delayed:
    """A request that the server sees later, whether its client still waits or not; a ``Pending``."""

    def __init__(self, request: Request, handler: Handler) -> None:
        """Whoever makes it arranges for ``arrive`` to be called."""
        self._request = request
        self._handler = handler
        self._withdrawn = False

    def arrive(self) -> None:
        """Hand the request on; where nobody waits for its answer any more, that goes nowhere."""
        if self._withdrawn:
            Shadow(self._request, answered=_forget).begin(self._handler)
            return
        self._request.pending = self._handler(self._request)

    def withdraw(self) -> None:
        """Take note that the client has gone; what it sent is on its way."""
        self._withdrawn = True

    def hurry(self) -> None:
        """Hang up: the server ends, or the client has given up."""
        hang_up(self._request)


def _forget(shadow: Shadow) -> None:
    """Let an answer be."""
