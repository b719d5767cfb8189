"""Sign-in with an access key, and sign-out."""

from http import HTTPStatus

from starlette.responses import Response

from veilmq.console.sign_ins import SignInsPaused
from veilmq.console.visit import HOME, SIGN_IN, Page, Visit

_WRONG = "There is no key with this id and secret, or it has expired. Use a key of the server's credentials file."


async def show(visit: Visit) -> Response:
    """Show the form; redirect callers who have signed in or need not."""
    if visit.caller is not None or visit.accounts is None:
        return visit.go(HOME)
    return _form(visit, _own(visit.query.get("next", "")))


async def sign_in(visit: Visit) -> Response:
    """Begin a session with a key."""
    if visit.accounts is None:
        return visit.go(HOME)
    key_id = visit.form.get("key_id", "").strip()
    wanted = _own(visit.form.get("next", ""))
    try:
        caller = visit.accounts.sign_in(key_id, visit.form.get("secret", "").strip(), visit.peer)
    except SignInsPaused as paused:
        response = _form(visit, wanted, key_id, status=HTTPStatus.TOO_MANY_REQUESTS, problem=str(paused))
        response.headers["retry-after"] = str(paused.retry_after_s)
        return response
    if caller is None:
        return _form(visit, wanted, key_id, status=HTTPStatus.FORBIDDEN, problem=_WRONG)
    response = visit.go(wanted)
    visit.sessions.keep(response, visit.request, visit.sessions.begin(key_id))
    return response


async def sign_out(visit: Visit) -> Response:
    """End the session, also for copies of its cookie."""
    visit.sessions.end(visit.session)
    response = visit.go(SIGN_IN, done="signed-out")
    visit.sessions.forget(response, visit.request)
    return response


def _form(visit: Visit, wanted: str, key_id: str = "", *, status: int = HTTPStatus.OK, problem: str = "") -> Response:
    return visit.page("login.html", status=status, next=wanted, problem=problem, key_id=key_id)


def _own(path: str) -> str:
    """Return ``path`` if it is a page of the console: other redirects after sign-in are not allowed."""
    return path if path.startswith("/console/") and "\\" not in path else HOME


PAGES = (
    Page(SIGN_IN, show, sign_in, open=True),
    Page("/console/logout", show, sign_out),
)
