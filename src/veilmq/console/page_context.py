"""The context of a page: its request, form and caller, its API client, and its response."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from veilmq.console.api_client import ApiClient, SendRequest
from veilmq.console.fields import NO_ERRORS, FormErrors
from veilmq.console.ports import Ports
from veilmq.console.rendering import html, plain_name
from veilmq.console.sessions import Accounts, Session, Sessions
from veilmq.wire.exchange import Caller

HOME = "/console/queues"

SIGN_IN = "/console/login"

FORM_BYTES_MAX = 4 << 20
"""Maximum size of a form: a message of 1 MiB with every byte escaped, and the rest."""

OPEN_FORM_BYTES_MAX = 16 << 10
"""Maximum size of a form without a session."""

FIELDS_MAX = 1_000

TOKEN = "csrf"
"""The form field with the CSRF token."""

TOKEN_HEADER = "x-csrf-token"

_FORM = "application/x-www-form-urlencoded"

NOTICES = {
    "claim-released": "The claim was released; its messages are delivered again.",
    "created": "The queue was created.",
    "deleted": "The queue and its messages were deleted.",
    "evicted": "The message was moved from the claim to the dead-letter queue.",
    "move-cancelled": "The redrive was cancelled; messages already moved are not moved back.",
    "move-started": "The redrive was started.",
    "nothing-received": "No message was received: none is available.",
    "purged": "All messages of the queue were deleted.",
    "saved": "The settings were saved.",
    "sent": "The message was sent.",
    "signed-out": "You have signed out.",
    "source-closed": "The source was closed; its messages are delivered again.",
    "timeout-applied": "The recommended timeout was set; messages in flight keep their deadlines.",
    "unchanged": "Nothing was changed: the settings already have these values.",
}
"""Messages after a change, by key, so that a URL cannot put foreign text into a page."""


class FormRefused(Exception):
    """The form is refused; ``str()`` says why and what to do."""

    def __init__(self, message: str, *, status: int = 403) -> None:
        super().__init__(message)
        self.status = status


class PageContext:
    """What a page gets. ``sqs`` and ``api`` raise ``ApiError``, which ``Console`` renders."""

    def __init__(
        self,
        request: Request,
        *,
        sessions: Sessions,
        session: Session,
        accounts: Accounts | None,
        caller: Caller | None,
        ports: Ports,
        send_request: SendRequest,
        account: str,
        host: str,
        now_ms: int,
        is_operator: bool = False,
    ) -> None:
        """``account`` is the caller's, ``host`` the address of the queues, ``now_ms`` the current shown time.

        ``accounts`` is ``None`` without authentication; ``is_operator``: the caller may see data of the whole server.
        """
        self.request = request
        self.sessions = sessions
        self.session = session
        self.accounts = accounts
        self.caller = caller
        self.ports = ports
        self.account = account
        self.endpoint = f"{request.url.scheme}://{host}"
        self.now_ms = now_ms
        self.is_operator = is_operator
        self.client = ApiClient(send_request, caller=caller, peer=self.peer, host=host, program=self.program)
        self.sqs = self.client.sqs
        self.api = self.client.api
        self.form: Mapping[str, str] = {}

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query_params

    @property
    def peer(self) -> str | None:
        return None if self.request.client is None else self.request.client.host

    @property
    def program(self) -> str | None:
        return self.request.headers.get("user-agent")

    @property
    def queue(self) -> str:
        """The full name of the queue in the path, ``account/name``."""
        return f"{self.request.path_params['account']}/{self.request.path_params['name']}"

    @property
    def is_confirmed(self) -> bool:
        """Whether the form contains the queue's name, typed into the field of the macro ``typed_name``."""
        return self.form.get("confirmation", "").strip() == plain_name(self.queue)

    @property
    def queue_url(self) -> str:
        return f"{self.endpoint}/{quote(self.queue, safe='/@')}"

    @property
    def is_partial(self) -> bool:
        """Whether htmx requests a part of the page; its history needs whole pages."""
        headers = self.request.headers
        return headers.get("hx-request") == "true" and headers.get("hx-history-restore-request") != "true"

    async def read_form(self) -> None:
        """Read the body into ``form``, the last of equal names; raises ``FormRefused``."""
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != _FORM:
            why = f"Forms must be sent as {_FORM}; programs use the API. Nothing was changed."
            raise FormRefused(why, status=415)
        must_sign_in = self.caller is None and self.accounts is not None
        body = await self._body(OPEN_FORM_BYTES_MAX if must_sign_in else FORM_BYTES_MAX)
        try:
            self.form = dict(parse_qsl(body, keep_blank_values=True, max_num_fields=FIELDS_MAX))
        except ValueError:
            raise FormRefused(f"The form has more than {FIELDS_MAX:,} fields; send fewer.", status=413) from None
        if not self.session.has(self.form.get(TOKEN) or self.request.headers.get(TOKEN_HEADER, "")):
            raise FormRefused(
                "This form was not made by this console, or you signed in anew since; go back, reload the page and "
                "send it again. Nothing was changed."
            )

    def render(self, template: str, *, status: int = 200, errors: FormErrors = NO_ERRORS, **values: Any) -> Response:
        """Return the page ``templates/{template}`` with ``values``; the status is that of ``errors``, if any."""
        text = html(
            template,
            signing_in=self.accounts is not None,
            session=self.session,
            caller=self.caller,
            account=self.account,
            now_ms=self.now_ms,
            path=self.request.url.path,
            notice=NOTICES.get(self.query.get("done", "")),
            problems=errors.problems,
            general=errors.general,
            **values,
        )
        return HTMLResponse(text, status_code=max(status, errors.status))

    def redirect(self, path: str, *, done: str = "") -> Response:
        """Redirect to another page after a change; ``done`` is a key of ``NOTICES``."""
        assert not done or done in NOTICES, done
        separator = "&" if "?" in path else "?"
        return RedirectResponse(f"{path}{separator}done={done}" if done else path, status_code=303)

    async def _body(self, bytes_max: int) -> str:
        body = bytearray()
        async for chunk in self.request.stream():
            body += chunk
            if len(body) > bytes_max:
                why = f"The form has more than {bytes_max:,} bytes; send less. Nothing was changed."
                raise FormRefused(why, status=413)
        return body.decode("utf-8", "replace")


class PageRoute(NamedTuple):
    """``show`` handles GET, ``change`` POST, with the form read and its token checked. ``open``: needs no session."""

    path: str
    show: Callable[[PageContext], Awaitable[Response]]
    change: Callable[[PageContext], Awaitable[Response]] | None = None
    open: bool = False
