"""Sign-in with an access key, and sign-out."""

from http import HTTPStatus

from starlette.responses import Response

from veilmq.console.page_context import HOME, SIGN_IN, PageContext, PageRoute
from veilmq.console.sign_ins import SignInsPaused

_WRONG = "The key id or secret is wrong, or the key has expired. Use a key of the server's credentials file."


async def show(page: PageContext) -> Response:
    """Show the form; redirect callers who have signed in or need not."""
    if page.caller is not None or page.accounts is None:
        return page.redirect(HOME)
    return _form(page, _own(page.query.get("next", "")))


async def sign_in(page: PageContext) -> Response:
    """Begin a session with a key."""
    if page.accounts is None:
        return page.redirect(HOME)
    key_id = page.form.get("key_id", "").strip()
    next_path = _own(page.form.get("next", ""))
    try:
        caller = page.accounts.sign_in(key_id, page.form.get("secret", "").strip(), page.peer)
    except SignInsPaused as paused:
        response = _form(page, next_path, key_id, status=HTTPStatus.TOO_MANY_REQUESTS, problem=str(paused))
        response.headers["retry-after"] = str(paused.retry_after_s)
        return response
    if caller is None:
        return _form(page, next_path, key_id, status=HTTPStatus.FORBIDDEN, problem=_WRONG)
    response = page.redirect(next_path)
    page.sessions.keep(response, page.request, page.sessions.begin(key_id))
    return response


async def sign_out(page: PageContext) -> Response:
    """End the session, also for copies of its cookie."""
    page.sessions.end(page.session)
    response = page.redirect(SIGN_IN, done="signed-out")
    page.sessions.forget(response, page.request)
    return response


def _form(
    page: PageContext, next_path: str, key_id: str = "", *, status: int = HTTPStatus.OK, problem: str = ""
) -> Response:
    response = page.render("login.html", status=status, next=next_path, problem=problem, key_id=key_id)
    response.headers["hx-refresh"] = "true"  # htmx would insert the form into the page of an ended session
    return response


def _own(path: str) -> str:
    """Return ``path`` if it is a page of the console: other redirects after sign-in are not allowed."""
    return path if path.startswith("/console/") and "\\" not in path else HOME


PAGES = (PageRoute(SIGN_IN, show, sign_in, open=True), PageRoute("/console/logout", show, sign_out))
