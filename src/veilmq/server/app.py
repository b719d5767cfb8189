"""The server, from start to shutdown.

The store is opened before clients can connect, and closed after every request is answered. At the first SIGTERM the
server stops accepting connections, lets running commands finish, answers long polls with an empty result, and closes
idle connections, then the admin port (which reports the draining), and then the store.
"""

import asyncio
import gc
import logging
import os
import resource
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from veilmq.core.commands import BrowseQueues
from veilmq.events import EventsError
from veilmq.server import authentication, process
from veilmq.server.admin_api import AdminContext, InProcessClient
from veilmq.server.admission import ByteBudget
from veilmq.server.authentication import Security, secure
from veilmq.server.background import BackgroundRequest
from veilmq.server.dispatch import Dispatcher
from veilmq.server.http import Connections
from veilmq.server.http_parser import Handler
from veilmq.server.long_polling import LongPolls
from veilmq.server.permissions import Permissions, PolicyDecisions
from veilmq.server.pushes import PushError, TopicService, push_identity
from veilmq.server.queue_statistics import QueueStatistics
from veilmq.server.settings import ServerSettings, SettingError
from veilmq.server.stores import event_exporter, open_store
from veilmq.store.clock import SystemClock, wall_s
from veilmq.store.port import Store, StoreError
from veilmq.wire.exchange import RequestContext

if TYPE_CHECKING:
    from veilmq.server.declarations import Declarations

log = logging.getLogger(__name__)


class StoreFailedError(Exception):
    """The store failed while the server ran; the next start recovers what was acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A running server: its addresses, and what tests and programs that embed it may use."""

    endpoint: str
    admin_endpoint: str
    metrics_endpoint: str | None
    open_admin: Callable[[], Coroutine[Any, Any, None]]
    """Opens the admin ports, with ``admin_on_request``."""
    engine: Store
    polls: LongPolls
    stop: Callable[[], None]
    fail: Callable[[BaseException], None]
    reload: Callable[[], None]
    signed: bool


async def serve(
    settings: ServerSettings,
    *,
    clock: SystemClock | None = None,
    wall_s: Callable[[], float] = wall_s,
    ready: Callable[[Bound], None],
    wrap_handler: Callable[[Handler], Handler] | None = None,
    admin_on_request: bool = False,
) -> None:
    """Serve until SIGTERM, SIGINT or ``Bound.stop``; ``ready`` is called once clients can connect.

    ``wall_s`` is the clock, in seconds, for checking signatures. ``wrap_handler`` may wrap the request handler, for the
    faults of tests. ``admin_on_request`` leaves opening the admin ports to ``Bound.open_admin``: their packages take a
    third of the start. Raises ``StoreError``, ``BindError``, ``EventsError``, ``PushError``, ``SettingError``, one of
    ``authentication.ERRORS``, and ``StoreFailedError`` if the store failed.
    """
    security = secure(settings, wall_s=wall_s)
    exporter_of, declarations = event_exporter(settings), _declarations(settings)
    shutdown = process.Shutdown(grace_s=settings.drain_s_max)
    handlers = {signal.SIGTERM: shutdown.request, signal.SIGINT: shutdown.request, signal.SIGHUP: security.reload}
    async with AsyncExitStack() as closing:
        closing.enter_context(process.on_signals(handlers))
        decisions = PolicyDecisions(region=settings.region, secure=security.tls is not None, wall_s=wall_s)
        may_send = None if security.authentication is None else decisions.may_send
        engine = await open_store(settings, clock=clock, on_fatal=shutdown.fail, may_send=may_send)
        closing.push_async_callback(engine.close)
        _check_audit_log(settings)
        listeners, admin_listeners, metrics_listeners = _bind(settings, closing)
        time, address = engine.clock, process.authority(listeners[0])
        endpoint = f"{security.scheme}://{address}"
        polls = LongPolls(engine=engine, clock=time, budget=ByteBudget(settings.http_bytes_max))
        identity = await push_identity(settings, engine, now_s=wall_s())
        topics = TopicService(settings, engine=engine, clock=time, wall_s=wall_s, base_url=endpoint, identity=identity)
        dispatcher = _dispatcher(settings, security, polls, topics, decisions, address=address, closing=closing)
        handler = dispatcher.handle if wrap_handler is None else wrap_handler(dispatcher.handle)
        connections = Connections(
            handler=handler, render_refusal=dispatcher.render_refusal, admit=dispatcher.admit, budget=polls.budget
        )
        exports = exporter_of(engine)
        shutdown.end_with(closing, exports)
        shutdown.end_with(closing, topics.pusher)
        in_process = InProcessClient(dispatcher)
        admin_context = AdminContext(
            settings=settings,
            security=security,
            decisions=decisions,
            engine=engine,
            polls=polls,
            connections=connections,
            exports=exports,
            metrics=dispatcher.metrics,
            topics=topics.counts,
            send_request=in_process.send,
            data_port=listeners[0].getsockname()[1],
            started_at_ms=time.now_ms(),
        )
        if declarations is not None:
            await declarations.apply(in_process.send, endpoint=endpoint, authentication=security.authentication)
        open_admin = partial(_open_admin, admin_context, shutdown, closing, admin_listeners, metrics_listeners)
        if not admin_on_request:
            await open_admin()
        acceptors = await _accept(connections, security, listeners)
        bound = Bound(
            endpoint=endpoint,
            open_admin=open_admin,
            admin_endpoint=f"{security.scheme}://{process.authority(admin_listeners[0])}",
            metrics_endpoint=f"http://{process.authority(metrics_listeners[0])}" if metrics_listeners else None,
            engine=engine,
            polls=polls,
            stop=shutdown.request,
            fail=shutdown.fail,
            reload=security.reload,
            signed=security.authentication is not None,
        )
        log.info("serving %s, messages are kept %s", bound.endpoint, engine.location)
        ready(bound)
        await shutdown.wait()
        log.info("stopping: %d long polls wait", polls.parked)
        for acceptor in acceptors:
            acceptor.close()
        polls.closing = True
        in_process.hurry()
        await shutdown.let_finish(connections.drain(), cut=connections.abort)
    if shutdown.failure is not None:
        raise StoreFailedError(f"The store has failed: {shutdown.failure}") from shutdown.failure
    log.info("stopped")


async def _open_admin(
    admin_context: AdminContext,
    shutdown: process.Shutdown,
    closing: AsyncExitStack,
    listeners: Sequence[socket.socket],
    monitoring: Sequence[socket.socket],
) -> None:
    from veilmq.server.admin import Admin  # noqa: PLC0415 - a third of the start

    pages = Admin(admin_context)
    await closing.enter_async_context(pages.serving(listeners, shutdown=shutdown))
    if monitoring:
        await closing.enter_async_context(pages.serving_monitoring(monitoring, shutdown=shutdown))


def run(settings: ServerSettings, *, ready: Callable[[Bound], None] | None = None) -> int:
    """Run the server as the process's only task and return the exit status; ``ready`` defaults to ``announce``."""
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Requests leave almost no cycles, and looking for them took 5 to 10 % of the processor time (docs/performance.md):
    # collect a thirtieth as often, and never among the objects made at the start.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    with suppress(ValueError, OSError):  # the default is 1,024, for select(), which is not used
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    try:
        with suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=process.loop_factory()) as runner:
            runner.run(serve(settings, ready=ready or announce))
    except (StoreError, process.BindError, EventsError, PushError, SettingError, *authentication.ERRORS) as error:
        sys.stderr.write(f"veilmq: {error}\n")
        return 1
    except StoreFailedError as error:
        log.error("%s", error)
        return 1
    return 0


def announce(bound: Bound, stream: TextIO | None = None) -> None:
    """Write the server's addresses to ``stream`` (default: standard output), and how to send a first message."""
    stream = stream or sys.stdout
    program = program_as_started(sys.argv[0])
    sign = (
        "Requests must be signed: put a key of the credentials file into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.\n"
    )
    pages, missing = "the console, health and metrics", ""
    if find_spec("itsdangerous") is None:  # which only the console needs
        pages, missing = "health and metrics", " (for the console: pip install 'veilmq[console]')"
    monitoring = f"  only health and metrics are at {bound.metrics_endpoint}\n" if bound.metrics_endpoint else ""
    stream.write(
        f"""veilmq serves Amazon SQS and Alibaba Cloud SMQ at {bound.endpoint}
  messages are kept {bound.engine.location}
  {pages} are at {bound.admin_endpoint}{missing}
{monitoring}{sign if bound.signed else ""}Send a first message from another terminal:
  {program} queue create hello --endpoint {bound.endpoint}
  {program} send hello 'Hello, world' --endpoint {bound.endpoint}
"""
    )
    stream.flush()


def program_as_started(started: str, *, python: str = sys.executable) -> str:
    """Return the shell command for veilmq: that of ``started`` (``sys.argv[0]``) if it is installed, else a module."""
    path = Path(started)
    if path.stem != "veilmq" or not path.is_file() or not os.access(path, os.X_OK):
        return f"{shlex.quote(python)} -m veilmq"
    found = shutil.which(path.name)
    return path.name if found is not None and path.samefile(found) else shlex.quote(started)


def _declarations(settings: ServerSettings) -> "Declarations | None":
    if settings.queues_file is None:
        return None
    from veilmq.server.declarations import Declarations  # noqa: PLC0415 - client imports slow the start

    return Declarations(settings)


def _check_audit_log(settings: ServerSettings) -> None:
    try:
        if settings.audit_log is not None:
            os.close(os.open(settings.audit_log, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600))
    except OSError as error:
        problem = f"cannot be written: {error.strerror}; name another file"
        raise SettingError("audit_log", value=settings.audit_log, problem=problem) from None


def _bind(settings: ServerSettings, closing: AsyncExitStack) -> list[list[socket.socket]]:
    """Bind the ports of queues, console and monitoring (if configured); ``closing`` closes them."""
    listeners: list[list[socket.socket]] = []
    for prefix in ("", "admin_", "metrics_"):
        host, setting = getattr(settings, f"{prefix}host"), f"{prefix}port"
        port = getattr(settings, setting)
        listeners.append([] if port is None else process.bind(host, port, setting=setting))
        closing.callback(process.close, listeners[-1])
    return listeners


def _dispatcher(
    settings: ServerSettings,
    security: Security,
    polls: LongPolls,
    topics: TopicService,
    decisions: PolicyDecisions,
    *,
    address: str,
    closing: AsyncExitStack,
) -> Dispatcher:
    statistics = QueueStatistics(engine=polls.engine, clock=polls.clock)
    closing.callback(statistics.close)
    return Dispatcher(
        polls=polls,
        context=RequestContext(
            base_url="",
            account=settings.account,
            region=settings.region,
            by_region=settings.regions == "by-request",
            token_key=polls.engine.token_key,
            smq_lenient=settings.smq_handles == "lenient",
            stale_receipts_act=settings.stale_receipts == "act",
            smq_message_bytes_max=settings.smq_message_bytes_max,
        ),
        host=settings.host,
        address=address,
        scheme=security.scheme,
        authentication=security.authentication,
        permissions=None if security.authentication is None else Permissions(polls.engine, decisions),
        handlers={**topics.handlers, BrowseQueues: partial(BackgroundRequest, statistics.browse)},
        pages=topics.pages,
    )


async def _accept(
    connections: Connections, security: Security, listeners: Sequence[socket.socket]
) -> list[asyncio.Server]:
    """Accept connections on ``listeners``.

    libuv accepts one connection per socket and loop iteration, so a client behind sixty new ones would wait for sixty
    iterations: the loop watches two copies of each listener.
    """
    options = process.accept_options(security.tls)
    loop, copies = asyncio.get_running_loop(), [each.dup() for each in listeners]
    return [await loop.create_server(connections.protocol, sock=each, **options) for each in (*listeners, *copies)]
