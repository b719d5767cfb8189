"""Headers that keep a page to itself: nothing of others is loaded, run, framed or told where one was.

No inline script or style is allowed, so that markup in a message's body stays text even if it were not escaped
(Content Security Policy Level 3; OWASP, "HTTP Security Response Headers"). There is no Strict-Transport-Security: it
would hold for every port of the host, where others may serve something else.
"""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)

HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "same-origin",  # under "no-referrer" browsers send forms with "Origin: null", which is refused
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def around(app: ASGIApp) -> ASGIApp:
    """Return ``app`` with these headers on every answer; pages, which hold what one may see, are not stored."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await app(scope, receive, sending)

    return guarded
