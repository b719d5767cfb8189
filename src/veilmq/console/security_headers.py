"""Security headers: pages load, run and embed nothing foreign, are not embedded, and send other sites no referrer.

Inline scripts and styles are forbidden, so that markup in a message body stays text even if it were not escaped
(Content Security Policy Level 3; OWASP, "HTTP Security Response Headers"). There is no Strict-Transport-Security: it
would apply to all ports of the host, which may serve other programs.
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
    "referrer-policy": "same-origin",  # with "no-referrer", browsers send forms with "Origin: null", which is refused
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def around(app: ASGIApp) -> ASGIApp:
    """Add the headers to every response of ``app``; pages, which contain private data, are not cached."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await app(scope, receive, sending)

    return guarded
