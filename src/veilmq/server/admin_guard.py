"""Web pages of others are kept away from the operator's pages, as they are from the queues (``origin``).

A page that had its own name pointed at this machine ("DNS rebinding") looks like the operator's own to a browser, which
then says nothing of an origin. Only the ``Host`` header gives it away, so a server that only this machine reaches takes
no foreign names. One that others reach is known to them by names that it cannot know, and takes any.
"""

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from veilmq.server import origin

WRONG_NAME = (
    "The Host header is a name that this server does not listen on; "
    "use an IP address, localhost or the name given by --admin-host."
)


class AdminGuard:
    """ASGI middleware that answers 403 to web pages of others."""

    def __init__(self, app: ASGIApp, *, own_name: str, any_name: bool) -> None:
        """``own_name`` is the host that is listened on; ``any_name`` leaves the ``Host`` header unchecked."""
        self._app = app
        self._own_name = own_name
        self._any_name = any_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand on."""
        obstacle = self._obstacle(dict(scope["headers"]))
        if obstacle is None:
            await self._app(scope, receive, send)
        else:
            await PlainTextResponse(obstacle + "\n", status_code=403)(scope, receive, send)

    def _obstacle(self, headers: dict[bytes, bytes]) -> str | None:
        host = headers.get(b"host", b"").decode("latin-1")
        if host and not self._any_name and not origin.is_own(host, own_name=self._own_name):
            return WRONG_NAME
        return origin.EXPLANATION if origin.is_foreign(headers, own_name=self._own_name) else None
