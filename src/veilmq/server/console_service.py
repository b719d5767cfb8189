"""The console as a part of the server: what it is given, and the way to the queues by which it asks."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from hmac import digest
from importlib import import_module
from pathlib import Path
from secrets import token_bytes
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from veilmq.console.asking import Ask
from veilmq.console.audit import AuditLog
from veilmq.console.auditing import Auditing
from veilmq.console.live import Live
from veilmq.console.ports import Ports
from veilmq.console.sign_ins import SignIns
from veilmq.server.admin_api import AdminApi
from veilmq.server.admin_callers import AdminCallers
from veilmq.server.authentication import Authentication
from veilmq.server.console_ports import ConsolePorts
from veilmq.server.settings import ServerSettings
from veilmq.store.port import Store

MISSING = "The console needs more than this install has: pip install 'veilmq[console]'.\n"

_AUDIT_FILE = "audit.jsonl"
_SESSIONS = b"console sessions"
_OF_PROCESS_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleService:
    """What the admin port needs to serve pages and their API: applications. ``asking`` has an audit log.

    ``callers`` finds out who asks, ``live`` has the streams of open pages, which end when it is closed.
    """

    api: ASGIApp
    asking: Auditing
    audit: AuditLog
    callers: AdminCallers
    live: Live
    pages: ASGIApp


def console_service(
    settings: ServerSettings,
    *,
    ask: Ask,
    engine: Store,
    authentication: Authentication | None,
    data_port: int,
    wall_s: Callable[[], float],
    ports: ConsolePorts,
) -> ConsoleService:
    """Return the console of a server; ``ask`` carries out what is asked, ``wall_s`` is the wall clock in seconds.

    ``data_port`` is the port of the queues; ``ports`` have what single pages need.
    """
    audit = AuditLog(audit_file(settings))
    asking = Auditing(ask, audit, now_ms=engine.clock.shown_ms, account=settings.account)
    live = Live(engine.clock)
    sign_ins = None if authentication is None else SignIns(authentication.signed_in, now_ms=engine.clock.now_ms)
    console = _console(
        settings,
        asking,
        engine=engine,
        authentication=authentication,
        sign_ins=sign_ins,
        data_port=data_port,
        wall_s=wall_s,
        ports=ports.of_pages(audit=audit, live=live),
    )
    session_of = None if console is None else console.session_of
    callers = AdminCallers(sign_ins, account=settings.account, session_of=session_of)
    return ConsoleService(
        api=AdminApi(ask=asking, callers=callers, data_port=data_port),
        asking=asking,
        audit=audit,
        callers=callers,
        live=live,
        pages=Starlette(routes=[Route("/{path:path}", _missing)]) if console is None else console.app,
    )


def audit_file(settings: ServerSettings) -> Path | None:
    """Return where the audit log is written, ``None`` for memory alone."""
    if settings.audit_log is not None or settings.data is None or settings.store is not None:
        return settings.audit_log
    return settings.data / _AUDIT_FILE


def _console(
    settings: ServerSettings,
    asking: Ask,
    *,
    engine: Store,
    authentication: Authentication | None,
    sign_ins: SignIns | None,
    data_port: int,
    wall_s: Callable[[], float],
    ports: Ports,
) -> Any:
    """Return the console, ``None`` without the extra ``console``: the server serves queues all the same."""
    try:
        console: Any = import_module("veilmq.console.app")
        sessions: Any = import_module("veilmq.console.sessions")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "veilmq":
            raise  # a defect of ours, which no extra repairs
        return None
    accounts, own = None, {}
    if authentication is not None:
        accounts = sessions.Accounts(signed_in=sign_ins, known=authentication.known)
        own = {"secret_of": _until_restart(authentication) if settings.store is None else authentication.secret_of}
    return console.Console(
        ask=asking,
        sessions=sessions.Sessions(secret=digest(engine.token_key, _SESSIONS, sha256), wall_s=wall_s, **own),
        account=settings.account,
        data_port=data_port,
        now_ms=engine.clock.shown_ms,
        accounts=accounts,
        ports=ports,
    )


def _until_restart(authentication: Authentication) -> Callable[[str], bytes]:
    """Return what signs the sessions of a key for this process alone, the only one of its store.

    A restart forgets which sessions were ended by signing out, so it ends them all.
    """
    of_process = token_bytes(_OF_PROCESS_BYTES)
    return lambda key_id: authentication.secret_of(key_id) + of_process


async def _missing(request: Request) -> Response:
    return PlainTextResponse(MISSING, status_code=501)
