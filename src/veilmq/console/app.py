"""The console as a Starlette application.

A browser without a session is redirected to sign in or, without authentication, gets a session at once, for the token
of its forms. Pages raise ``ApiError`` for errors of the queue API, which are rendered here.
"""

import logging
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from veilmq.console import security_headers
from veilmq.console.api_client import ApiError, ApiReply, ApiRequest, SendRequest
from veilmq.console.assets import ASSETS, PREFIX
from veilmq.console.audit import change_of
from veilmq.console.page_context import HOME, SIGN_IN, FormRefused, PageContext, PageRoute
from veilmq.console.pages import PAGES
from veilmq.console.ports import Ports
from veilmq.console.sessions import Accounts, Session, Sessions
from veilmq.wire.exchange import Caller

log = logging.getLogger(__name__)

_WORDS: dict[int, tuple[str, str]] = {
    HTTPStatus.NOT_FOUND: ("Page not found", "This page does not exist. Find queues by name in the list of queues."),
    HTTPStatus.METHOD_NOT_ALLOWED: ("Method not allowed", "This page is read-only. Nothing was changed."),
    HTTPStatus.INTERNAL_SERVER_ERROR: (
        "Internal error",
        "The page failed because of a defect in veilmq; see the server log. Check whether your change was made.",
    ),
}
_FOR_EVER = "public, max-age=31536000, immutable"


class Console:
    """The pages of one server."""

    def __init__(
        self,
        *,
        send_request: SendRequest,
        sessions: Sessions,
        account: str,
        data_port: int,
        now_ms: Callable[[], int],
        ports: Ports,
        accounts: Accounts | None = None,
    ) -> None:
        """``send_request`` runs requests of pages. ``account`` is the account without authentication.

        The root user of ``account`` operates the server. ``data_port`` is the port of the queues, whose URLs have the
        browser's host name. ``accounts`` may sign in; ``None`` without authentication.
        """
        self._send_request = send_request
        self._sessions = sessions
        self._account = account
        self._data_port = data_port
        self._now_ms = now_ms
        self._ports = ports
        self._accounts = accounts
        routes = [
            Route("/", _home),
            Route("/console", _home),
            Route(PREFIX + "{name:path}", _asset),
            *(self._route(route) for route in PAGES),
        ]
        self._app = Starlette(routes=routes, exception_handlers={HTTPException: self._http_exception})

    @property
    def app(self) -> ASGIApp:
        return security_headers.around(self._app)

    def session_of(self, request: Request) -> tuple[Session, Caller | None] | None:
        """Return the session and caller of a request; ``None`` if it must sign in."""
        session = self._sessions.of(request)
        if session is None:
            return None
        caller = self._holder(session)
        return None if caller is None and self._accounts is not None else (session, caller)

    def _holder(self, session: Session) -> Caller | None:
        return None if self._accounts is None or not session.key_id else self._accounts.caller_of(session.key_id)

    def _route(self, route: PageRoute) -> Route:
        async def respond(request: Request) -> Response:
            try:
                return await self._page(route, request)
            except ClientDisconnect:
                return Response(status_code=HTTPStatus.BAD_REQUEST)  # no client is left to read it
            except Exception:
                log.exception("the page %s failed", route.path)
                return self._error_page(request, HTTPStatus.INTERNAL_SERVER_ERROR)

        methods = ["GET"] if route.change is None else ["GET", "POST"]
        return Route(route.path, respond, methods=methods)

    async def _page(self, route: PageRoute, request: Request) -> Response:
        existing = self._sessions.of(request)
        session = existing or self._sessions.begin()
        caller = self._holder(session)
        if caller is None and self._accounts is not None and not route.open:
            return _redirect_to_sign_in(request)
        response = await self._respond(route, request, session, caller)
        if existing is None:
            self._sessions.keep(response, request, session)
        return response

    async def _respond(self, route: PageRoute, request: Request, session: Session, caller: Caller | None) -> Response:
        page = self._page_context(request, session, caller)
        try:
            if request.method != "POST" or route.change is None:
                return await route.show(page)
            await page.read_form()
            return await route.change(page)
        except FormRefused as error:
            return page.render("refused.html", status=error.status, title="Form refused", message=str(error))
        except ApiError as error:
            return _refused(page, error)

    async def _http_exception(self, request: Request, error: Exception) -> Response:
        """Render errors that Starlette raises."""
        assert isinstance(error, HTTPException), "registered only for these"
        response = self._error_page(request, error.status_code)
        response.headers.update(error.headers or {})
        return response

    def _error_page(self, request: Request, status: int) -> Response:
        session, caller = self.session_of(request) or (self._sessions.begin(), None)
        title, message = _WORDS.get(status, _WORDS[HTTPStatus.INTERNAL_SERVER_ERROR])
        page = self._page_context(request, session, caller)
        return page.render("refused.html", status=status, title=title, message=message)

    def _page_context(self, request: Request, session: Session, caller: Caller | None) -> PageContext:
        send_request = self._send_request if request.method == "POST" else ReadingOnly(self._send_request)
        return PageContext(
            request,
            sessions=self._sessions,
            session=session,
            accounts=self._accounts,
            caller=caller,
            ports=self._ports,
            send_request=send_request,
            account=self._account if caller is None else caller.account,
            host=self._host(request),
            now_ms=self._now_ms(),
            is_operator=self._is_operator(caller),
        )

    def _is_operator(self, caller: Caller | None) -> bool:
        if caller is None:
            return self._accounts is None
        return caller.is_root and caller.account == self._account

    def _host(self, request: Request) -> str:
        """Return the address of the queues, as seen from the browser."""
        name = request.url.hostname or ""
        return f"[{name}]:{self._data_port}" if ":" in name else f"{name}:{self._data_port}"


def _refused(page: PageContext, error: ApiError) -> Response:
    title, message = "Request refused", error.message
    if error.is_denied:
        title = "Not allowed"
    elif error.is_missing:
        title = "Queue not found"
    elif error.code == "UnknownRoute":  # the address has no account or no name of a queue
        title, message = _WORDS[HTTPStatus.NOT_FOUND]
    return page.render("refused.html", status=error.status, title=title, message=message)


def _redirect_to_sign_in(request: Request) -> Response:
    """Redirect to sign in, and from there back to the page if this was a GET."""
    path = request.url.path if request.method == "GET" else HOME
    query = f"?{request.url.query}" if request.url.query and request.method == "GET" else ""
    return RedirectResponse(f"{SIGN_IN}?next={quote(path + query)}", status_code=303)


async def _home(request: Request) -> Response:
    return RedirectResponse(HOME, status_code=303)


async def _asset(request: Request) -> Response:
    asset = ASSETS.get(request.path_params["name"])
    if asset is None:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    return Response(asset.body, headers={"cache-control": _FOR_EVER}, media_type=asset.kind)


class ReadingOnly:
    """Allows only requests that change nothing: pages must not make changes on GET."""

    def __init__(self, send_request: SendRequest) -> None:
        self._send_request = send_request

    async def __call__(self, request: ApiRequest) -> ApiReply:
        """Run the request; raises ``PermissionError`` if it may change anything, a defect of the page."""
        if change_of(request._replace(body=b""), account="") is not None:
            raise PermissionError(f"A page requested a change on GET: {request.method!r} {request.target!r}.")
        return await self._send_request(request)
