"""Web pages of others are kept away from the operator's pages, as they are from the queues (``origin``).

A page that had its own name pointed at this machine ("DNS rebinding") looks like the operator's own to a browser, which
then says nothing of an origin. Only the ``Host`` header gives it away, so a server that only this machine reaches takes
no foreign names. Health and metrics of one that others reach are known to them by names that it cannot know, and take
any. The console does so behind a proxy or over TLS alone: a browser that asks for a foreign name there finds no
certificate for it.

From where the console can be used at all, ``console_reach`` says.
"""

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from veilmq.console.security_headers import HEADERS
from veilmq.server import origin
from veilmq.server.console_reach import ConsoleReach, Unreachable, is_console

WRONG_NAME = (
    "The Host header is a name that this server does not listen on; "
    "use an IP address, localhost or the name given by --admin-host."
)

NO_NAME = "The Host header is no name or address, with or without a port."


class AdminGuard:
    """ASGI middleware that answers 403 to web pages of others, and to whom the console is not for."""

    def __init__(self, app: ASGIApp, *, own_name: str, any_name: bool, reach: ConsoleReach) -> None:
        """``own_name`` is the host that is listened on; ``any_name`` leaves the ``Host`` header of what is
        no page unchecked.
        """
        self._app = app
        self._own_name = own_name
        self._any_name = any_name
        self._reach = reach

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand on."""
        console = is_console(scope)
        try:
            seen, by_any_name = self._reach.way(scope) if console else (scope, False)
        except Unreachable as unreachable:
            await _refusal(scope, str(unreachable))(scope, receive, send)
            return
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        own_name = origin.name_of(host) if by_any_name else self._own_name
        obstacle = self._misnamed(host, own_name, any_name=self._any_name and not console)
        if obstacle is None and origin.is_foreign(headers, own_name=own_name):
            obstacle = origin.EXPLANATION
        if obstacle is None:
            await self._app(seen, receive, send)
        else:
            await _refusal(scope, obstacle)(scope, receive, send)

    def _misnamed(self, host: str, own_name: str, *, any_name: bool) -> str | None:
        """Return what is wrong with the ``Host`` header, if there is one."""
        if not host:
            return None
        if not origin.is_host(host):
            return NO_NAME
        return None if any_name or origin.is_own(host, own_name=own_name) else WRONG_NAME


def _refusal(scope: Scope, text: str) -> Response:
    if scope["path"].startswith("/api/"):
        return JSONResponse({"code": "AccessDenied", "message": text}, status_code=403, headers=HEADERS)
    return PlainTextResponse(text + "\n", status_code=403, headers=HEADERS)
