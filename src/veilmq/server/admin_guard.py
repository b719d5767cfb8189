"""Web pages of others are kept away from the operator's pages, as they are from the queues (``origin``).

A page that had its own name pointed at this machine ("DNS rebinding") looks like the operator's own to a browser, which
then says nothing of an origin. Only the ``Host`` header gives it away, so a server that only this machine reaches takes
no foreign names. One that others reach is known to them by names that it cannot know, and takes any. So does the
console behind a proxy or over TLS: a browser that asks for a foreign name there finds no certificate for it.

From where the console can be used at all, ``console_reach`` says.
"""

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

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
        """``own_name`` is the host that is listened on; ``any_name`` leaves the ``Host`` header unchecked."""
        self._app = app
        self._own_name = own_name
        self._any_name = any_name
        self._reach = reach

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand on."""
        try:
            seen, by_any_name = self._reach.way(scope) if is_console(scope) else (scope, False)
        except Unreachable as unreachable:
            await _refusal(scope, str(unreachable))(scope, receive, send)
            return
        obstacle = self._obstacle(dict(scope["headers"]), by_any_name=by_any_name)
        if obstacle is None:
            await self._app(seen, receive, send)
        else:
            await _refusal(scope, obstacle)(scope, receive, send)

    def _obstacle(self, headers: dict[bytes, bytes], *, by_any_name: bool) -> str | None:
        host = headers.get(b"host", b"").decode("latin-1")
        own_name = origin.name_of(host) if by_any_name else self._own_name
        if host and not origin.is_host(host):
            return NO_NAME
        if host and not self._any_name and not origin.is_own(host, own_name=own_name):
            return WRONG_NAME
        return origin.EXPLANATION if origin.is_foreign(headers, own_name=own_name) else None


def _refusal(scope: Scope, text: str) -> Response:
    if scope["path"].startswith("/api/"):
        return JSONResponse({"code": "AccessDenied", "message": text}, status_code=403)
    return PlainTextResponse(text + "\n", status_code=403)
