"""The admin port: health for process managers, metrics for Prometheus, and the console.

``/health/live`` replies while the event loop runs; ``/health/ready`` reports whether the server should get requests,
and if not, why; ``/metrics`` is for Prometheus; ``/events/flush`` exports the event log now, and ``/api/clock/trust``
accepts the current time as correct. Starlette on Uvicorn, in the event loop of the queues, which it does not block:
queues are counted a few at a time, and the metrics text is generated in another thread, one at a time.

Uvicorn runs without its main loop, which wakes up ten times a second for a ``Date`` header and takes over the signals.
The limits that Uvicorn lacks are here: connections, and the time from one reply to the next. An event stream has no
end; its client stays as long as it reads. Shutdown is bounded as elsewhere.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, cast

import h11
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from veilmq.core import limits
from veilmq.core.errors import VeilmqError
from veilmq.core.receipts import CountEvents
from veilmq.events import EventsError
from veilmq.server.admin_api import AdminContext
from veilmq.server.console import ConsoleService, or_none
from veilmq.server.metrics import SHOWN_MAX, QueueCountCache, event_metrics, exposition, queue_metrics
from veilmq.server.origin import AdminGuard
from veilmq.server.process import CLOSING_S_MAX, Shutdown, Tls, accept_options, is_loopback
from veilmq.store.port import Metric, SurveyQueues, counter, execute, gauge

HEAD_BYTES_MAX = 16_384
CONNECTIONS_MAX = 256
REQUESTS_MAX = 192
"""Above these numbers of connections or requests, Uvicorn replies 503; event streams of open pages count."""

IDLE_S_MAX = 5


class AdminConnection(H11Protocol):
    """A client connection of the admin port."""

    def __init__(self, *args: Any, request_s_max: float, **kwargs: Any) -> None:
        """``request_s_max`` is how long the client may take for a request and its reply."""
        super().__init__(*args, **kwargs)
        self._request_s_max = request_s_max
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the deadline; refuse the connection if there are too many."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._set_deadline()
        if len(self.connections) > CONNECTIONS_MAX:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clear the deadline."""
        self._clear_deadline()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Set the deadline of the next request."""
        self._set_deadline()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse input that is not HTTP, if no reply has begun, and close.

        Uvicorn would do so in the middle of a reply too, and let the application reply after it: each logs a traceback,
        which any client could cause.
        """
        cycle: Any = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # its output is dropped
            cycle.message_event.set()
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            super().send_400_response(msg)
        else:
            self.transport.close()

    def shutdown(self) -> None:
        """Close the connection after the request in progress, or soon if its body does not arrive."""
        super().shutdown()
        cycle: Any = self.cycle
        if cycle is not None and cycle.more_body:
            self.loop.call_later(CLOSING_S_MAX, lambda: self.abort() if cycle.more_body else None)

    def abort(self) -> None:
        self.transport.abort()

    def _set_deadline(self) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(self._request_s_max, self._on_timer)

    def _on_timer(self) -> None:
        cycle: Any = self.cycle
        is_streaming = cycle is not None and cycle.response_started and not cycle.response_complete
        if is_streaming and not self.flow.write_paused:  # an event stream; other replies are written as a whole
            self._set_deadline()
        else:
            self.abort()

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()


@asynccontextmanager
async def serving(
    app: ASGIApp,
    listeners: Sequence[socket.socket],
    *,
    shutdown: Shutdown,
    ending: Callable[[], object],
    request_s_max: float = limits.HTTP_REQUEST_S_MAX,
    tls: Tls | None = None,
) -> AsyncIterator[None]:
    """Serve ``app`` on ``listeners`` in the context; its end takes no longer than ``shutdown`` allows.

    At the end ``ending`` is called first, to close endless streams.
    """

    async def cancellable(scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(asyncio.CancelledError):  # Uvicorn would log it
            await app(scope, receive, send)

    config = uvicorn.Config(
        cancellable,
        http=AdminConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # at "warning", every malformed request logs a line
        access_log=False,
        proxy_headers=False,
        date_header=False,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        timeout_keep_alive=IDLE_S_MAX,
        limit_concurrency=REQUESTS_MAX,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    state, loop, options = server.server_state, asyncio.get_running_loop(), accept_options(tls)
    connect = partial(AdminConnection, config, state, {}, request_s_max=request_s_max)
    server.servers = [await loop.create_server(connect, sock=each, **options) for each in listeners]

    async def end() -> None:
        """Stop accepting, and let clients finish; without connections, Uvicorn would still wait 0.1 s."""
        if state.connections or state.tasks:
            await server.shutdown(sockets=list(listeners))
            return
        for acceptor in server.servers:
            acceptor.close()

    def cut() -> None:
        """End Uvicorn's wait for connections and tasks."""
        for connection in list(state.connections):
            cast(AdminConnection, connection).abort()
        for task in list(state.tasks):
            task.cancel()

    try:
        yield
    finally:
        ending()
        await shutdown.let_finish(end(), cut=cut)


FLUSH_S_MAX = limits.HTTP_REQUEST_S_MAX / 2
"""How long to wait for an export on demand: a connection may take twice that for its reply."""

HTTP_BYTES_TEXT = "Bytes of http_bytes_max that large request bodies and unread replies use."
NO_EXPORT = "This server exports no events: start it with --events-to."


class Admin:
    """The admin pages of one server."""

    def __init__(self, server: AdminContext) -> None:
        self._server = server
        self._console = ConsoleService(server)
        self._counts = QueueCountCache(server.engine, server.settings)
        self._metrics_lock = asyncio.Lock()
        self._monitoring = [
            Route("/health/live", PlainTextResponse("alive\n"), methods=["GET"]),
            Route("/health/ready", self._ready),
            Route("/metrics", self._show_metrics),
        ]

    def serving(self, listeners: Sequence[socket.socket], *, shutdown: Shutdown) -> AbstractAsyncContextManager[None]:
        """Serve on ``listeners``, those of ``admin_host``, in the context."""
        security, console = self._server.security, self._console
        operations = [
            Route("/events/flush", self._flush_events, methods=["POST"]),
            Mount("/api", console.api),
            Mount("/", console.pages),
        ]
        guarded = AdminGuard(
            Starlette(routes=[*self._monitoring, *operations]),
            own_name=self._server.settings.admin_host,
            any_name=not is_loopback(listeners),
            signed=security.authentication is not None,
            tls=security.tls is not None,
            proxies=security.proxies,
        )
        return serving(guarded, listeners, shutdown=shutdown, tls=security.tls, ending=console.live.close)

    def serving_monitoring(
        self, listeners: Sequence[socket.socket], *, shutdown: Shutdown
    ) -> AbstractAsyncContextManager[None]:
        """Serve only health and metrics on ``listeners``, those of ``metrics_host``, in the context."""
        monitoring, name = Starlette(routes=self._monitoring), self._server.settings.metrics_host
        guarded = AdminGuard(monitoring, own_name=name, any_name=not is_loopback(listeners), has_console=False)
        return serving(guarded, listeners, shutdown=shutdown, ending=lambda: None)

    async def _ready(self, request: Request) -> Response:
        reasons = await self._server.readiness_failures()
        if reasons:
            return PlainTextResponse("\n".join(reasons) + "\n", status_code=503)
        warnings = self._server.engine.warnings()
        return PlainTextResponse("\n".join(["degraded" if warnings else "ready", *warnings]) + "\n")

    async def _flush_events(self, request: Request) -> Response:
        if self._server.exports is None:
            return PlainTextResponse(NO_EXPORT + "\n", status_code=409)
        flush = asyncio.ensure_future(self._server.exports.flush())
        # retrieve an error after the client gave up; flush() has logged it
        flush.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        done, _ = await asyncio.wait({flush}, timeout=FLUSH_S_MAX)
        try:
            counts = flush.result() if done else await execute(self._server.engine, CountEvents())
        except (EventsError, VeilmqError) as error:
            return PlainTextResponse(f"{error}\n", status_code=503)
        body = {"exported": counts.exported, "waiting": counts.waiting, "dropped": counts.dropped}
        return JSONResponse(body, status_code=200 if done else 202)

    async def _show_metrics(self, request: Request) -> Response:
        server = self._server
        failures = 0 if server.exports is None else server.exports.failures
        async with self._metrics_lock:
            events = asyncio.create_task(or_none(execute(server.engine, CountEvents())))
            survey = await or_none(execute(server.engine, SurveyQueues(names_max=SHOWN_MAX)))
            counted = [] if survey is None else await self._counts.inspect(survey)
            metrics = [
                *queue_metrics(counted, server.polls.clock.shown_ms()),
                *server.engine.metrics(),
                gauge("ready", "1 while /health/ready returns 200.", not await server.readiness_failures()),
                gauge("degraded", "1 while /health/ready returns degraded.", bool(server.engine.warnings())),
                gauge("long_polls_parked", "Receives and claims that wait for a message.", server.polls.parked),
                gauge("connections_open", "Connections of clients.", len(server.connections)),
                counter("event_export_failures", "Exports that failed; each is retried.", failures),
                Metric("http_bytes", HTTP_BYTES_TEXT, "gauge", server.connections.budget.parts(), "what"),
                *server.topics.metrics(),
            ]
            if (counts := await events) is not None:
                metrics += event_metrics(counts)
            if survey is not None:
                metrics.append(gauge("queues", "Number of queues.", survey.in_all))
            body = await asyncio.to_thread(exposition, server.metrics.series(), metrics)
        return Response(body, media_type=CONTENT_TYPE_LATEST)
