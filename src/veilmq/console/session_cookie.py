"""The cookie of a session: kept by the browser for this console alone, where no script can read it."""

from starlette.requests import Request
from starlette.responses import Response

from veilmq.console.sessions import SESSION_S_MAX, Session, Sessions


def read(request: Request, sessions: Sessions) -> Session | None:
    """Return the session whose cookie came with ``request``, ``None`` where none holds."""
    return sessions.read(request.cookies.get(_name(request), ""))


def _name(request: Request) -> str:
    """Return the name of the session's cookie: browsers share cookies between the ports of a host.

    Over TLS it begins with ``__Host-``: browsers take such a cookie from this very host alone, over TLS, so that
    nobody who has a neighbouring name, or who reads along, can put a session of his own into a browser.
    """
    prefix = "__Host-" if request.url.scheme == "https" else ""
    return f"{prefix}veilmq_{request.url.port or request.url.scheme}"


def keep(response: Response, request: Request, sessions: Sessions, session: Session) -> None:
    """Have the browser keep ``session``."""
    response.set_cookie(
        _name(request),
        sessions.cookie(session),
        max_age=SESSION_S_MAX,
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def forget(response: Response, request: Request) -> None:
    """Have the browser forget its session."""
    response.delete_cookie(_name(request), secure=request.url.scheme == "https", httponly=True, samesite="strict")
