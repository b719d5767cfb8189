"""Who is signed in: a cookie that says it, signed with a key of the store, so that every node of a store takes it.

It holds the id of an access key and never its secret. A key that leaves the credentials file, or expires, ends its
sessions; signing out ends one, for the process that is told (``EndedSessions``). Each session has a token of its own
that a form must send back: a page of another site cannot know it (OWASP, "Cross-Site Request Forgery Prevention",
synchronizer token).
"""

import secrets
from collections.abc import Callable
from datetime import datetime
from hashlib import sha256
from hmac import compare_digest, digest

import msgspec
from itsdangerous import BadData, TimestampSigner, URLSafeTimedSerializer
from starlette.requests import Request
from starlette.responses import Response

from veilmq.console.sign_ins import SignIns
from veilmq.wire.exchange import Caller

SESSION_S_MAX = 8 * 3_600
"""How long one may stay signed in: a working day."""

_BETWEEN = "~"
"""What stands between the key's id, which may be read before it is known who signed, and what is signed."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Someone at a browser: ``key_id`` is empty where nobody is asked who he is; ``token`` is that of its forms."""

    key_id: str
    token: str

    def has(self, token: str) -> bool:
        """Tell whether a form with ``token`` is one of this session's."""
        return compare_digest(self.token.encode(), token.encode())


class Accounts(msgspec.Struct, frozen=True, kw_only=True):
    """The accounts that may sign in, as the server knows them.

    ``sign_in`` is the way in, ``caller_of`` answers who holds the key with this id now, ``None`` for nobody.
    """

    sign_in: SignIns
    caller_of: Callable[[str], Caller | None]


class Sessions:
    """Makes and reads the cookies of one store's consoles. ``wall_s`` is the wall clock in seconds."""

    def __init__(
        self, *, secret: bytes, wall_s: Callable[[], float], secret_digest: Callable[[str], bytes] = lambda _: b""
    ) -> None:
        """``secret`` signs, and is the same on every node; so does ``secret_digest`` the key that a session names.

        A key that has a new secret under its old id thus ends its sessions.
        """

        class Signer(TimestampSigner):
            def get_timestamp(self) -> int:
                return int(wall_s())

        self._signer = Signer
        self._wall_s = wall_s
        self._ended = EndedSessions(session_s_max=SESSION_S_MAX)
        self._secret = secret
        self._secret_digest = secret_digest

    def begin(self, key_id: str = "") -> Session:
        """Return a new session."""
        return Session(key_id=key_id, token=secrets.token_urlsafe(24))

    def cookie(self, session: Session) -> str:
        """Return what a browser keeps of ``session``."""
        return f"{session.key_id}{_BETWEEN}{self._serializer(session.key_id).dumps(session.token)}"

    def read(self, cookie: str) -> Session | None:
        """Return the session of ``cookie``; ``None`` for one that was ended, is too old, or is none of ours."""
        key_id, _, signed = cookie.partition(_BETWEEN)
        try:
            token, began_at = self._serializer(key_id).loads(signed, max_age=SESSION_S_MAX, return_timestamp=True)
        except BadData:
            return None
        return None if self._ended.has(key_id, token, began_at) else Session(key_id=key_id, token=token)

    def of(self, request: Request) -> Session | None:
        """Return the session whose cookie came with ``request``, ``None`` where none holds."""
        return self.read(request.cookies.get(_name(request), ""))

    def keep(self, response: Response, request: Request, session: Session) -> None:
        """Have the browser keep ``session``, for this console alone and where no script can read it."""
        response.set_cookie(
            _name(request),
            self.cookie(session),
            max_age=SESSION_S_MAX,
            path="/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )

    def forget(self, response: Response, request: Request) -> None:
        """Have the browser forget its session."""
        response.delete_cookie(_name(request), secure=request.url.scheme == "https", httponly=True, samesite="strict")

    def end(self, session: Session) -> None:
        """Take its cookie no more. One of nobody in particular shows nothing and is not remembered."""
        if session.key_id:
            self._ended.add(session.key_id, session.token, self._wall_s())

    def _serializer(self, key_id: str) -> URLSafeTimedSerializer:
        secret = digest(self._secret, key_id.encode() + self._secret_digest(key_id), sha256)
        return URLSafeTimedSerializer(secret, salt="veilmq console", signer=self._signer)


def _name(request: Request) -> str:
    """Return the name of the session's cookie: browsers share cookies between the ports of a host.

    Over TLS it begins with ``__Host-``: browsers take such a cookie from this very host alone, over TLS, so that
    nobody who has a neighbouring name, or who reads along, can put a session of his own into a browser.
    """
    prefix = "__Host-" if request.url.scheme == "https" else ""
    return f"{prefix}veilmq_{request.url.port or request.url.scheme}"


OF_A_KEY_MAX = 256
"""How many of a key are remembered one by one."""


class EndedSessions:
    """Sessions that were ended by signing out, remembered until their cookies are too old anyway.

    A cookie says by itself who is signed in, so a copy of it would hold after its browser has forgotten it. What is
    remembered is bounded for each key, so that nobody who signs in and out without end can have the sessions of others
    forgotten, or ended: of a key with too many, all end that had begun by then. Instants are seconds of the wall clock.
    """

    def __init__(self, *, session_s_max: int) -> None:
        """``session_s_max`` is after how many seconds a cookie is too old."""
        self._session_s_max = session_s_max
        self._one_by_one: dict[str, dict[str, float]] = {}
        self._all_by_s: dict[str, float] = {}

    def add(self, key_id: str, token: str, now_s: float) -> None:
        """Remember the session of ``key_id`` with ``token``."""
        self._forget(now_s - self._session_s_max)
        of_key = self._one_by_one.setdefault(key_id, {})
        of_key[token] = now_s
        if len(of_key) > OF_A_KEY_MAX:
            del self._one_by_one[key_id]
            self._all_by_s[key_id] = now_s

    def has(self, key_id: str, token: str, began_at: datetime) -> bool:
        """Tell whether that session, which began at ``began_at``, was ended."""
        if token in self._one_by_one.get(key_id, ()):
            return True
        all_by_s = self._all_by_s.get(key_id)
        return all_by_s is not None and began_at.timestamp() <= all_by_s

    def _forget(self, before_s: float) -> None:
        """Forget those that were ended before ``before_s``: they had begun still earlier."""
        for key_id, of_key in list(self._one_by_one.items()):
            kept = {token: ended_s for token, ended_s in of_key.items() if ended_s >= before_s}
            if kept:
                self._one_by_one[key_id] = kept
            else:
                del self._one_by_one[key_id]
        self._all_by_s = {key_id: by_s for key_id, by_s in self._all_by_s.items() if by_s >= before_s}
