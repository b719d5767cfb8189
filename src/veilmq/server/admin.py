"""The second port: health for whoever starts and stops servers, metrics for whoever watches them, and the console.

``/health/live`` answers while the event loop turns; ``/health/ready`` says whether requests should be sent here, and
if not, why; ``/metrics`` is for Prometheus; ``/events/flush`` has the event log exported now, and ``/api/clock/trust``
takes the present time for right. Starlette on Uvicorn, in the same event loop as the queues, which are not held up:
queues are counted a few at a time, and the text of the metrics is made in another thread, one at a time.
"""

import asyncio
import socket
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from veilmq.console.audit import AuditLogError
from veilmq.core import limits
from veilmq.core.errors import VeilmqError
from veilmq.core.events import CountEvents, EventCounts
from veilmq.events import EventsError
from veilmq.server.admin_callers import CallerUnknown
from veilmq.server.admin_guard import AdminGuard
from veilmq.server.admin_server import serving
from veilmq.server.connections import Connections
from veilmq.server.console_service import ConsoleService
from veilmq.server.event_exports import EventExports
from veilmq.server.listener import is_loopback
from veilmq.server.longpoll import LongPolls
from veilmq.server.metrics import Metrics
from veilmq.server.obstacles import obstacles
from veilmq.server.prometheus import Snapshot, exposition
from veilmq.server.queue_counts import SHOWN_MAX, QueueCountBook
from veilmq.server.security import Security
from veilmq.server.shutdown import Shutdown
from veilmq.server.topic_counts import TopicCounts
from veilmq.store.port import Store, execute

T = TypeVar("T")

FLUSH_S_MAX = limits.HTTP_REQUEST_S_MAX / 2
"""How long an export on demand is waited for: a connection may take no longer than twice that for its reply."""

NO_EXPORT = "This server exports no events: start it with --events-to."


class Admin:
    """The operator's pages of one server."""

    def __init__(
        self,
        *,
        engine: Store,
        polls: LongPolls,
        connections: Connections,
        metrics: Metrics,
        exports: EventExports | None = None,
        topics: TopicCounts | None = None,
        console: ConsoleService | None = None,
    ) -> None:
        """Look at these; nothing is changed, but that ``exports`` may be asked to hurry, and by the ``console``."""
        self._engine = engine
        self._clock = polls.clock
        self._polls = polls
        self._connections = connections
        self._metrics = metrics
        self._exports = exports
        self._topics = topics or TopicCounts()
        self._console = console
        self._counts = QueueCountBook(engine)
        self._showing = asyncio.Lock()
        self.app = Starlette(
            routes=[
                Route("/health/live", self._live),
                Route("/health/ready", self._ready),
                Route("/metrics", self._show_metrics),
                Route("/events/flush", self._flush_events, methods=["POST"]),
                *([] if console is None else self._of_console(console)),
            ]
        )

    def _of_console(self, console: ConsoleService) -> list[BaseRoute]:
        return [
            Route("/api/clock/trust", self._trust_clock, methods=["POST"]),
            Mount("/api", console.api),
            Mount("/", console.pages),
        ]

    def serving(
        self,
        listeners: Sequence[socket.socket],
        *,
        host: str,
        shutdown: Shutdown,
        guard: Security,
    ) -> AbstractAsyncContextManager[None]:
        """Serve on ``listeners``, which are those of ``host``, while the context lasts.

        ``guard`` says whether over TLS alone, and who may use the console from where.
        """
        any_name = not is_loopback(listeners)
        guarded = AdminGuard(self.app, own_name=host, any_name=any_name, reach=guard.console_reach)
        ending = _nothing if self._console is None else self._console.live.close
        return serving(guarded, listeners, shutdown=shutdown, tls=guard.context, ending=ending)

    async def _live(self, request: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def _ready(self, request: Request) -> Response:
        told = await obstacles(self._connections, self._engine)
        if told:
            return PlainTextResponse("\n".join(told) + "\n", status_code=503)
        warnings = self._engine.warnings()
        return PlainTextResponse("\n".join(["degraded" if warnings else "ready", *warnings]) + "\n")

    async def _trust_clock(self, request: Request) -> Response:
        assert self._console is not None, "the route is made with it"
        try:
            caller = self._console.callers.operator(request)
            peer = None if request.client is None else request.client.host
            message = await self._console.asking.operation(caller, peer, "TrustClock", self._engine.trust_clock)
        except CallerUnknown as unknown:
            refused = {"code": "AccessDenied", "message": str(unknown)}
            headers = dict(line.split(": ", 1) for line in unknown.headers.decode().splitlines())
            return JSONResponse(refused, status_code=unknown.status, headers=headers)
        except (VeilmqError, AuditLogError) as error:
            return JSONResponse({"code": type(error).__name__, "message": str(error)}, status_code=503)
        return JSONResponse({"message": message})

    async def _flush_events(self, request: Request) -> Response:
        if self._exports is None:
            return PlainTextResponse(NO_EXPORT + "\n", status_code=409)
        flushing = asyncio.ensure_future(self._exports.flush())
        flushing.add_done_callback(_heard)
        done, _ = await asyncio.wait({flushing}, timeout=FLUSH_S_MAX)
        try:
            counts = flushing.result() if done else await execute(self._engine, CountEvents())
        except EventsError as error:
            return PlainTextResponse(f"{error}\n", status_code=503)
        told = {"exported": counts.exported, "waiting": counts.waiting, "dropped": counts.dropped}
        return JSONResponse(told, status_code=200 if done else 202)

    async def _show_metrics(self, request: Request) -> Response:
        async with self._showing:
            events = asyncio.create_task(_if_told(execute(self._engine, CountEvents())))
            survey = await _if_told(self._engine.survey(SHOWN_MAX))
            snapshot = Snapshot(
                metrics=self._metrics.copy(),
                queues=[] if survey is None else await self._counts.look(survey.names),
                queues_in_all=None if survey is None else survey.in_all,
                now_ms=self._clock.shown_ms(),
                parked_polls=self._polls.parked,
                open_connections=len(self._connections),
                events=await events,
                event_export_failures=0 if self._exports is None else self._exports.failures,
                topics=self._topics,
                store=self._engine.figures(),
                http_bytes=self._connections.budget.parts(),
            )
            text = await asyncio.to_thread(exposition, snapshot)
        return Response(text, media_type=CONTENT_TYPE_LATEST)


def _nothing() -> None:
    """Do nothing: no page can be open."""


async def _if_told(question: Coroutine[Any, Any, T]) -> T | None:
    """Return the answer; ``None`` where the store gives none, which is no reason to say nothing of the rest."""
    try:
        return await question
    except VeilmqError:
        return None


def _heard(flushing: "asyncio.Future[EventCounts]") -> None:
    """Take the error of an export that nobody waits for any more; it was logged where it happened."""
    if not flushing.cancelled():
        flushing.exception()
