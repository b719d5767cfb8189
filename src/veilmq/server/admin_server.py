"""Uvicorn under the operator's pages, kept within limits and without its main loop.

That loop wakes up ten times a second for a ``Date`` header and takes over the signals. What Uvicorn does not limit is
limited here: the connections, and how long one may take from one reply to the next, so that neither a client that
never ends its request nor one that does not read its replies stays for ever. An event stream has no end; its client
stays as long as it takes what it is sent. Ending is bounded like everything else.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from veilmq.core import limits
from veilmq.server.shutdown import Shutdown
from veilmq.server.tls import CLOSING_S_MAX

HEAD_BYTES_MAX = 16_384
CONNECTIONS_MAX = 256
REQUESTS_MAX = 192
"""Uvicorn answers 503 beyond that many connections or requests: the streams of open pages are among them."""

IDLE_S_MAX = 5

_EVENT_STREAM = b"text/event-stream"
_STREAMS = "veilmq.streams"  # set in the scope of a request whose answer goes on for as long as the client reads it


class AdminConnection(H11Protocol):
    """One client of the operator's port."""

    def __init__(self, *args: Any, request_s_max: float, **kwargs: Any) -> None:
        """Made by Uvicorn; ``request_s_max`` is how long the client may take for a request and its reply."""
        super().__init__(*args, **kwargs)
        self._request_s_max = request_s_max
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless there are too many."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._set_deadline()
        if len(self.connections) > CONNECTIONS_MAX:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing more."""
        self._clear_deadline()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Expect the next request."""
        self._set_deadline()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Say that what came is no HTTP, where nothing was answered yet, and close.

        Uvicorn would say it in the middle of an answer too, and have the application answer after it: each is a
        traceback in the log, for which anybody could ask.
        """
        cycle: Any = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # so that what it says goes nowhere
            cycle.message_event.set()
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            super().send_400_response(msg)
        else:
            self.transport.close()

    def shutdown(self) -> None:
        """End after the request that is being answered, if there is one; over TLS do not wait long for a farewell."""
        super().shutdown()
        if self.transport.is_closing():
            self.loop.call_later(CLOSING_S_MAX, self.abort)

    def abort(self) -> None:
        """Close at once, whatever was going on."""
        self.transport.abort()

    def _set_deadline(self) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(self._request_s_max, self._at_deadline)

    def _at_deadline(self) -> None:
        scope: Any = self.scope  # None before the first request
        if scope is not None and _STREAMS in scope and not self.flow.write_paused:
            self._set_deadline()
        else:
            self.abort()

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()


def _nothing() -> None:
    """Do nothing."""


@asynccontextmanager
async def serving(
    app: ASGIApp,
    listeners: Sequence[socket.socket],
    *,
    shutdown: Shutdown,
    request_s_max: float = limits.HTTP_REQUEST_S_MAX,
    tls: ssl.SSLContext | None = None,
    ending: Callable[[], object] = _nothing,
) -> AsyncIterator[None]:
    """Serve ``app`` on ``listeners`` while the context lasts; its end takes no longer than ``shutdown`` allows.

    ``ending`` is called first then: for what would go on for ever.
    """
    server = uvicorn.Server(_config(_may_be_cut(_telling_of_streams(app)), request_s_max))
    server.config.ssl = tls
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup(sockets=list(listeners))
    try:
        yield
    finally:
        ending()
        await shutdown.let_finish(_end(server, listeners), cut=partial(_cut, server))


async def _end(server: uvicorn.Server, listeners: Sequence[socket.socket]) -> None:
    """Accept nobody, and let those who are connected finish; where nobody is, Uvicorn would wait 0.1 s all the same."""
    if server.server_state.connections or server.server_state.tasks:
        await server.shutdown(sockets=list(listeners))
        return
    for acceptor in server.servers:
        acceptor.close()


def _config(app: ASGIApp, request_s_max: float) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=AdminConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # at "warning", every malformed request is a line
        access_log=False,
        proxy_headers=False,
        date_header=False,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        timeout_keep_alive=IDLE_S_MAX,
        limit_concurrency=REQUESTS_MAX,
    )
    config.load()
    made = partial(AdminConnection, request_s_max=request_s_max)
    config.http_protocol_class = cast(type[asyncio.Protocol], made)
    return config


def _may_be_cut(app: ASGIApp) -> ASGIApp:
    """Keep Uvicorn from logging a request that was cut off at the end as a defect of ``app``."""

    async def cuttable(scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(asyncio.CancelledError):
            await app(scope, receive, send)

    return cuttable


def _telling_of_streams(app: ASGIApp) -> ASGIApp:
    """Mark the requests that are answered by an event stream."""

    async def telling(scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                kind = dict(message.get("headers", ())).get(b"content-type", b"")
                if kind.startswith(_EVENT_STREAM):
                    scope[_STREAMS] = True
            await send(message)

        await app(scope, receive, sending)

    return telling


def _cut(server: uvicorn.Server) -> None:
    """Make Uvicorn's shutdown end now: it waits for connections and for tasks."""
    for connection in list(server.server_state.connections):
        cast(AdminConnection, connection).abort()
    for task in list(server.server_state.tasks):
        task.cancel()
