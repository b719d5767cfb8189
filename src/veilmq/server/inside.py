"""The way to the queues from inside the process: a request without a socket and without a signature.

Whoever asks here has found out before who the caller is (the console by its session, the API of the admin port by a
password). From there on the request is one like any other: its protocol, its policies, its errors and its place in the
metrics are the same.
"""

import asyncio
from collections.abc import Callable

from veilmq.console.asking import Answer, Asked
from veilmq.server.dispatch import Dispatcher
from veilmq.server.http_request import Date, Request


class Inside:
    """Asks the queues of one server."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        """``dispatcher`` is the handler of the requests that come by sockets."""
        self._dispatcher = dispatcher
        self._awaited: set[_Awaited] = set()

    def __len__(self) -> int:
        """Return how many requests have no answer yet."""
        return len(self._awaited)

    def hurry(self) -> None:
        """Have what waits answered as soon as possible: the server is closing."""
        for request in list(self._awaited):
            if request.pending is not None:
                request.pending.hurry()

    async def ask(self, asked: Asked) -> Answer:
        """Return the answer to a request.

        Whoever is cancelled takes the request back, as a client that hangs up does. Raises ``PermissionError`` for no
        caller where there are accounts: a defect of ours, that must not open the door.
        """
        if asked.caller is None and self._dispatcher.signed:
            raise PermissionError("This server has accounts, and the request has no caller.")
        line = _Inner(asked.peer)
        heard = dict(asked.headers)
        program = heard.pop(b"user-agent", None)
        request = _Awaited(line, asked.method, asked.target, heard, asked.body, True, program=program)
        request.answer = asyncio.get_running_loop().create_future()
        self._awaited.add(request)
        try:
            request.pending = self._dispatcher.handle(request, asked.caller)
            return await request.answer
        except asyncio.CancelledError:
            if request.pending is not None:
                request.pending.withdraw()
            raise
        finally:
            self._awaited.discard(request)


class _Awaited(Request, eq=False):
    """A request whose answer somebody in the process awaits; it is never written as bytes of HTTP.

    ``program`` is who asks for policies alone: as a header it would make a browser of what has passed the guard of
    another port, and that is refused here.
    """

    answer: "asyncio.Future[Answer] | None" = None
    program: bytes | None = None

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        """Answer, exactly once; nobody hears it who has given up."""
        assert self.answer is not None, "set before it is asked"
        assert self.reply is None, "a request is answered once"
        self.pending, self.reply = None, body
        if not self.answer.done():
            self.answer.set_result(Answer(status, headers, body))

    def user_agent(self) -> str | None:
        """Return what program the client of the other port says that it is."""
        return None if self.program is None else self.program.decode("latin-1")

    def in_turn(self, begin: Callable[[], None]) -> None:
        """Begin at once: nothing is before it."""
        begin()

    def end_connection(self) -> None:
        """Do nothing: there is no connection."""


class _Undated:
    """No ``Date`` line."""

    line = b"Date: -\r\n"

    def renew(self) -> bytes:
        """Return it."""
        return self.line


class _Inner:
    """The line of one request, which came from ``peer`` by another port."""

    def __init__(self, peer: str | None) -> None:
        """Carry nothing."""
        self.date: Date = _Undated()
        self.proven = True
        self._peer = peer

    def answered(self) -> None:
        """Do nothing: the answer has been heard."""

    def peer(self) -> str | None:
        """Return the address that policies see."""
        return self._peer

    def turn(self) -> None:
        """Do nothing: nothing waits here."""
