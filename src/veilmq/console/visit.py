"""One request of a browser: who is there, what was filled in, what may be asked, and how it is answered."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from veilmq.console.asking import Asking
from veilmq.console.ports import Ports
from veilmq.console.rendering import Rendering, plain_name
from veilmq.console.sessions import Accounts, Session, Sessions
from veilmq.wire.exchange import Caller

HOME = "/console/queues"
"""Where one is without having asked for any page."""

SIGN_IN = "/console/login"

FORM_BYTES_MAX = 4 << 20
"""How long a form may be: a message of 1 MiB, every byte of it escaped, and what is around it."""

OPEN_FORM_BYTES_MAX = 16 << 10
"""How long it may be from whoever has not signed in."""

FIELDS_MAX = 1_000

TOKEN = "csrf"
"""The field, and in lower case the header, with which a form shows that the console made it."""

TOKEN_HEADER = "x-csrf-token"

_FORM = "application/x-www-form-urlencoded"

NOTICES = {
    "claim-released": "The claim was released; its messages are delivered again.",
    "created": "The queue was created.",
    "deleted": "The queue and its messages were deleted.",
    "evicted": "The message was moved out of the claim, to the dead-letter queue.",
    "move-cancelled": "The move was cancelled; what is moved stays moved.",
    "move-started": "The move has begun.",
    "nothing-received": "Nothing was received: no message is visible that a receive could give.",
    "purged": "All messages of the queue were deleted.",
    "saved": "The settings were changed.",
    "sent": "The message is stored.",
    "signed-out": "You have signed out.",
    "source-closed": "The source was closed; its messages are delivered again.",
    "timeout-applied": "The recommended timeout was set; messages in flight keep their deadlines.",
    "unchanged": "Nothing was changed: the settings are as they were.",
}
"""What a page says after a change: sentences by key, so that no address can put words of others into a page."""


class FormRefused(Exception):
    """The form cannot be taken; ``str()`` says why and what to do."""

    status = 403


class FormTooLong(FormRefused):
    """The form has more bytes, or more fields, than are read."""

    status = 413


class FormOfAnotherKind(FormRefused):
    """What was sent is no form of a page."""

    status = 415


class Visit:
    """What a page is given. ``sqs`` and ``api`` of ``asking`` raise ``Refused``, which ``Console`` answers."""

    def __init__(
        self,
        request: Request,
        *,
        sessions: Sessions,
        session: Session,
        accounts: Accounts | None,
        caller: Caller | None,
        ports: Ports,
        asking: Asking,
        rendering: Rendering,
        account: str,
        endpoint: str,
        now_ms: int,
        is_operator: bool = False,
    ) -> None:
        """``account`` is the caller's own, ``endpoint`` where programs reach the queues, ``now_ms`` the shown present.

        ``accounts`` is ``None`` where nobody is asked who he is; ``is_operator`` tells that the caller may see what is
        of the whole server.
        """
        self.request = request
        self.sessions = sessions
        self.session = session
        self.accounts = accounts
        self.caller = caller
        self.ports = ports
        self.account = account
        self.endpoint = endpoint
        self.now_ms = now_ms
        self.is_operator = is_operator
        self.asking = asking
        self.sqs = asking.sqs
        self.api = asking.api
        self._rendering = rendering
        self.form: Mapping[str, str] = {}

    @property
    def query(self) -> Mapping[str, str]:
        """Return the parameters of the address."""
        return self.request.query_params

    @property
    def peer(self) -> str | None:
        """Return the address that the browser came from."""
        return None if self.request.client is None else self.request.client.host

    @property
    def program(self) -> str | None:
        """Return what the browser says that it is."""
        return self.request.headers.get("user-agent")

    @property
    def queue(self) -> str:
        """Return the full name of the queue that the path names, ``account/name``."""
        return f"{self.request.path_params['account']}/{self.request.path_params['name']}"

    @property
    def is_confirmed(self) -> bool:
        """Whether the form has the queue's name, typed: the macro ``typed_name`` asks for it."""
        return self.form.get("confirmation", "").strip() == plain_name(self.queue)

    @property
    def queue_url(self) -> str:
        """Return the URL of that queue, as the actions of SQS take it."""
        return f"{self.endpoint}/{quote(self.queue, safe='/@')}"

    @property
    def is_partial(self) -> bool:
        """Whether htmx asks, for a part of the page; when it goes back to a page it wants the whole."""
        headers = self.request.headers
        return headers.get("hx-request") == "true" and headers.get("hx-history-restore-request") != "true"

    async def read_form(self) -> None:
        """Fill ``form`` with what was sent, the last of equal names; raises ``FormRefused``."""
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != _FORM:
            raise FormOfAnotherKind(f"A page's form comes as {_FORM}; programs use the API. Nothing was changed.")
        body = await self._body(OPEN_FORM_BYTES_MAX if self._is_stranger else FORM_BYTES_MAX)
        try:
            self.form = dict(parse_qsl(body, keep_blank_values=True, max_num_fields=FIELDS_MAX))
        except ValueError:
            raise FormTooLong(f"The form has more than {FIELDS_MAX:,} fields; send fewer.") from None
        if not self.session.has(self.form.get(TOKEN) or self.request.headers.get(TOKEN_HEADER, "")):
            raise FormRefused(
                "This form was not made by this console, or you signed in anew since; go back, reload the page and "
                "send it again. Nothing was changed."
            )

    @property
    def _is_stranger(self) -> bool:
        """Whether somebody is here who would have to sign in."""
        return self.caller is None and self.accounts is not None

    def page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """Answer with ``templates/{template}``, which is told ``values`` beside who is there."""
        html = self._rendering.html(
            template,
            session=self.session,
            caller=self.caller,
            account=self.account,
            now_ms=self.now_ms,
            path=self.request.url.path,
            notice=NOTICES.get(self.query.get("done", "")),
            **values,
        )
        return HTMLResponse(html, status_code=status)

    def go(self, path: str, *, done: str = "") -> Response:
        """Send the browser to another page of ours after a change; ``done`` is a key of ``notices.NOTICES``."""
        assert not done or done in NOTICES, done
        separator = "&" if "?" in path else "?"
        return RedirectResponse(f"{path}{separator}done={done}" if done else path, status_code=303)

    async def _body(self, bytes_max: int) -> str:
        body = bytearray()
        async for chunk in self.request.stream():
            body += chunk
            if len(body) > bytes_max:
                raise FormTooLong(f"The form has more than {bytes_max:,} bytes; send less. Nothing was changed.")
        return body.decode("utf-8", "replace")


class Page(NamedTuple):
    """``show`` answers GET, ``change`` POST, with the form read and its token checked; ``path`` is Starlette's.

    One that is ``open`` is for whoever has not signed in, too.
    """

    path: str
    show: Callable[[Visit], Awaitable[Response]]
    change: Callable[[Visit], Awaitable[Response]] | None = None
    open: bool = False
