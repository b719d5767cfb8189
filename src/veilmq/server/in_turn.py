"""A request with a large reply, which is begun when its client can take it.

A client may send many requests without reading a reply, and each reply of a bulk read has some megabytes. So one of
them is begun when all before it on the connection are answered and written, and the client was not slow to take them: a
connection holds one such reply, not as many as a client asks for.
"""

from collections.abc import Callable

from veilmq.server.http_request import Pending, Request


class InTurn:
    """What stands for the request until it is answered; a ``Pending``."""

    __slots__ = ("_begin", "_hurried", "_pending")

    def __init__(self, request: Request, begin: Callable[[], Pending]) -> None:
        """``begin`` begins it."""
        self._begin = begin
        self._pending: Pending | None = None
        self._hurried = False
        request.in_turn(self._start)

    def withdraw(self) -> None:
        """Forget it; one that was not begun never is, as its connection has no line any more."""
        if self._pending is not None:
            self._pending.withdraw()

    def hurry(self) -> None:
        """Have it wait for nothing but its turn."""
        self._hurried = True
        if self._pending is not None:
            self._pending.hurry()

    def _start(self) -> None:
        self._pending = self._begin()
        if self._hurried:
            self._pending.hurry()
