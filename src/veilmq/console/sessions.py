"""Who is signed in: a cookie that says it, signed with a key of the store, so that every node of a store takes it.

It holds the id of an access key and never its secret. A key that leaves the credentials file, or expires, ends its
sessions; signing out ends one, for the process that is told (``ended_sessions``). Each session has a token of its own
that a form must send back: a page of another site cannot know it (OWASP, "Cross-Site Request Forgery Prevention",
synchronizer token).
"""

import secrets
from collections.abc import Callable
from hashlib import sha256
from hmac import compare_digest, digest

import msgspec
from itsdangerous import BadData, TimestampSigner, URLSafeTimedSerializer

from veilmq.console.ended_sessions import EndedSessions
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

    ``signed_in`` is the way in, ``known`` answers who holds the key with this id now, ``None`` for nobody.
    """

    signed_in: SignIns
    known: Callable[[str], Caller | None]


def _no_secret(key_id: str) -> bytes:
    return b""


class Sessions:
    """Makes and reads the cookies of one store's consoles. ``wall_s`` is the wall clock in seconds."""

    def __init__(
        self, *, secret: bytes, wall_s: Callable[[], float], secret_of: Callable[[str], bytes] = _no_secret
    ) -> None:
        """``secret`` signs, and is the same on every node; so does ``secret_of`` the key that a session names.

        A key that has a new secret under its old id thus ends its sessions.
        """

        class Signer(TimestampSigner):
            def get_timestamp(self) -> int:
                return int(wall_s())

        self._signer = Signer
        self._wall_s = wall_s
        self._ended = EndedSessions(session_s_max=SESSION_S_MAX)
        self._secret = secret
        self._secret_of = secret_of

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

    def end(self, session: Session) -> None:
        """Take its cookie no more. One of nobody in particular shows nothing and is not remembered."""
        if session.key_id:
            self._ended.add(session.key_id, session.token, self._wall_s())

    def _serializer(self, key_id: str) -> URLSafeTimedSerializer:
        secret = digest(self._secret, key_id.encode() + self._secret_of(key_id), sha256)
        return URLSafeTimedSerializer(secret, salt="veilmq console", signer=self._signer)
