"""One HTTP request and the place of its reply in the connection's line.

A connection answers in the order of its requests (RFC 9112, section 9.3.2), so a reply that is ready before an earlier
one waits in its request. Commands are handed on in that order too, and do not wait for each other.
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

import msgspec

from veilmq.server.byte_budget import Hold

_NO_CONTENT = HTTPStatus.NO_CONTENT.value
"""A status after which there is no body, and no word of its length (RFC 9110, section 8.6)."""

CLOSE = b"Connection: close\r\n"
KEEP = b"Connection: keep-alive\r\n"

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
"""The first line of a reply by its status."""


class Pending(Protocol):
    """A request that waits for something and can be told that there is no more point in waiting."""

    def withdraw(self) -> object:
        """Forget it: the client has gone, and what it asked for shall not happen if it has not begun."""

    def hurry(self) -> object:
        """Answer as soon as possible: the server is closing, or the client will send nothing more."""


class Line(Protocol):
    """What a request needs from its connection."""

    date: "Date"
    proven: bool  # a request of it had a genuine signature

    def answered(self) -> None:
        """Take note that a request of the line has its reply."""

    def peer(self) -> str | None:
        """Return the address of the client, ``None`` where it has none."""

    def turn(self) -> None:
        """Take note that a request of the line waits for its turn."""


class Date(Protocol):
    """Where the ``Date`` header line comes from."""

    line: bytes

    def renew(self) -> bytes:
        """Return the line when there is none."""


class Request(msgspec.Struct, eq=False):
    """A whole, well-formed request: ``method`` and ``target`` as sent, ``headers`` by lower-case name, ``body``.

    Headers that were sent several times are joined with commas; those for which that would be wrong were refused.
    ``hold`` counts the bytes of a large body. ``is_behind`` if there were others in the line when it came.
    ``persistence`` is the ``Connection`` header line of the reply, empty where the version of HTTP implies it.
    (A ``msgspec.Struct``, as these are made four times as fast as objects with an ``__init__`` of their own.)
    """

    line: Line
    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    body: bytes
    keep_alive: bool
    persistence: bytes = b""
    pending: Pending | None = None
    reply: bytes | None = None
    begin: Callable[[], None] | None = None
    hold: Hold | None = None
    is_behind: bool = False

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        """Answer, now or later, exactly once; ``headers`` are whole lines, each with its line end."""
        assert self.reply is None, "a request is answered once"
        line = self.line
        self.pending = None
        date = line.date.line or line.date.renew()
        if status == _NO_CONTENT:
            self.reply = b"%b%b%b%b\r\n" % (STATUS_LINES[status], date, headers, self.persistence)
        else:
            self.reply = b"%b%b%b%bContent-Length: %d\r\n\r\n%b" % (
                STATUS_LINES[status],
                date,
                headers,
                self.persistence,
                len(body),
                body if self.method != b"HEAD" else b"",
            )
        line.answered()

    def in_turn(self, begin: Callable[[], None]) -> None:
        """Have ``begin`` called, now or later, when this is the first of the line and its client takes replies."""
        self.begin = begin
        self.line.turn()

    def end_connection(self) -> None:
        """Close the connection after this reply, and say so in it unless it is written already."""
        self.persistence = CLOSE
        self.keep_alive = False

    def source_ip(self) -> str | None:
        """Return the address of the client, ``None`` where it has none."""
        return self.line.peer()

    def release(self) -> None:
        """Do nothing: a small body is not counted."""

    def user_agent(self) -> str | None:
        """Return what program the client says that it is."""
        agent = self.headers.get(b"user-agent")
        return None if agent is None else agent.decode("latin-1")


class LargeRequest(Request, eq=False):
    """A request whose body counts in the budget of bytes until it is answered, or its client has gone."""

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        """Answer, exactly once."""
        self.release()
        super().respond(status, headers, body)

    def release(self) -> None:
        """Count the body no longer."""
        if self.hold is not None:
            self.hold.release()


Handler = Callable[[Request], Pending | None]
"""Answers a request by ``respond``, at once or later; returns what can be withdrawn until then, or nothing."""
