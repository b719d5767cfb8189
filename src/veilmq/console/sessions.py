"""Who is signed in: a cookie that says it, signed with a key of the store, so that every node of a store takes it.

It holds the id of an access key and never its secret. A key that leaves the credentials file, or expires, ends its
sessions. Each session has a token of its own that a form must send back: a page of another site cannot know it (OWASP,
"Cross-Site Request Forgery Prevention", synchronizer token).
"""

import secrets
from collections.abc import Callable
from hmac import compare_digest

import msgspec
from itsdangerous import BadData, TimestampSigner, URLSafeTimedSerializer

from veilmq.console.sign_ins import SignIns
from veilmq.wire.sqs.callers import Caller

SESSION_S_MAX = 8 * 3_600
"""How long one may stay signed in: a working day."""


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


class Sessions:
    """Makes and reads the cookies of one store's consoles. ``wall_s`` is the wall clock in seconds."""

    def __init__(self, *, secret: bytes, wall_s: Callable[[], float]) -> None:
        """``secret`` signs, and is the same on every node."""

        class Signer(TimestampSigner):
            def get_timestamp(self) -> int:
                return int(wall_s())

        self._serializer = URLSafeTimedSerializer(secret, salt="veilmq console", signer=Signer)

    def begin(self, key_id: str = "") -> Session:
        """Return a new session."""
        return Session(key_id=key_id, token=secrets.token_urlsafe(24))

    def cookie(self, session: Session) -> str:
        """Return what a browser keeps of ``session``."""
        return str(self._serializer.dumps([session.key_id, session.token]))

    def read(self, cookie: str) -> Session | None:
        """Return the session of ``cookie``; ``None`` for one that is too old, or that no node of ours has made."""
        try:
            key_id, token = self._serializer.loads(cookie, max_age=SESSION_S_MAX)
        except (BadData, ValueError, TypeError):
            return None
        return Session(key_id=key_id, token=token)
