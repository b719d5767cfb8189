"""Who asks the API of the operator's port: by a password, as programs do, or in a session, as pages do.

A password is the secret of an access key, which is the id of a key and its name (HTTP Basic, RFC 7617). It comes over
TLS or from this machine: nothing else passes ``console_reach``. In a session a change needs the token of its forms,
too, which no page of another site knows.
"""

from base64 import b64decode
from collections.abc import Callable
from typing import Protocol

from starlette.requests import Request

from veilmq.console.sign_ins import SignIns, SignInsPaused
from veilmq.wire.exchange import Caller

TOKEN_HEADER = "x-csrf-token"
CHALLENGE = b'Basic realm="veilmq", charset="UTF-8"'
UNAUTHORIZED = 401
TOO_MANY_REQUESTS = 429
READING = frozenset({"GET", "HEAD"})

WRONG_KEY = "There is no key with this id and secret that may sign in; temporary keys may not, and keys may have ended."
NOBODY = "Say who you are: an access key's id and secret as user and password (HTTP Basic), or sign in to the console."
OPERATOR_ONLY = "Only the root user of the server's own account may do this: send the id and secret of its access key."
TOKENLESS = (
    "A change that comes with a session needs the header X-CSRF-Token, with the token of the session's forms; "
    "programs send an access key's id and secret (HTTP Basic) instead."
)


class Session(Protocol):
    """Someone at a browser."""

    def has(self, token: str) -> bool:
        """Tell whether ``token`` is the session's own."""


SessionOf = Callable[[Request], tuple[Session, Caller | None] | None]
"""Answers in which session a request came and who has it; ``None`` for no session that holds."""


class CallerUnknown(Exception):
    """Nobody is let in so; ``str()`` says what to send.

    ``status`` is 401, 403 for a session without its token or a caller without the right, or 429 after too many wrong
    keys; ``headers`` are whole lines.
    """

    def __init__(self, message: str, *, status: int = 401, headers: bytes = b"") -> None:
        """``status`` is that of HTTP."""
        super().__init__(message)
        self.status = status
        self.headers = b"WWW-Authenticate: %b\r\n" % CHALLENGE if status == UNAUTHORIZED else headers


class AdminCallers:
    """Finds out who asks; where there are no accounts, nobody is asked."""

    def __init__(self, sign_ins: SignIns | None, *, account: str, session_of: SessionOf | None = None) -> None:
        """``sign_ins`` is ``None`` where there are no accounts; ``session_of`` is the console's, if there is one.

        The root user of ``account`` operates the server.
        """
        self._sign_ins = sign_ins
        self._account = account
        self._session_of = session_of

    def operator(self, request: Request) -> Caller | None:
        """Return who sent ``request``, as ``caller`` does; raises ``CallerUnknown`` unless he operates the server."""
        caller = self.caller(request)
        if caller is not None and not (caller.is_root and caller.account == self._account):
            raise CallerUnknown(OPERATOR_ONLY, status=403)
        return caller

    def caller(self, request: Request) -> Caller | None:
        """Return who sent ``request``, ``None`` where nobody is asked; raises ``CallerUnknown``."""
        if self._sign_ins is None:
            return None
        given = request.headers.get("authorization")
        if given is not None:
            return self._by_password(self._sign_ins, given, None if request.client is None else request.client.host)
        found = None if self._session_of is None else self._session_of(request)
        if found is None:
            raise CallerUnknown(NOBODY)
        session, caller = found
        if request.method not in READING and not session.has(request.headers.get(TOKEN_HEADER, "")):
            raise CallerUnknown(TOKENLESS, status=403)
        return caller

    def _by_password(self, sign_ins: SignIns, given: str, peer: str | None) -> Caller:
        try:
            caller = sign_ins(*_key(given), peer)
        except SignInsPaused as paused:
            later = b"Retry-After: %d\r\n" % paused.retry_after_s
            raise CallerUnknown(str(paused), status=TOO_MANY_REQUESTS, headers=later) from None
        if caller is None:
            raise CallerUnknown(WRONG_KEY)
        return caller


def _key(given: str) -> tuple[str, str]:
    """Return id and secret of an ``Authorization`` header; raises ``CallerUnknown`` for one of another kind."""
    scheme, _, credentials = given.partition(" ")
    try:
        key_id, colon, secret = b64decode(credentials.strip(), validate=True).decode().partition(":")
    except ValueError:
        raise CallerUnknown(NOBODY) from None
    if scheme.lower() != "basic" or not colon:
        raise CallerUnknown(NOBODY)
    return key_id, secret
