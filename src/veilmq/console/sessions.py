"""Sessions: signed cookies, with a key of the store, so that all its nodes accept them.

A cookie contains the id of an access key, never its secret. A key that is removed from the credentials file, or
expires, ends its sessions; signing out ends one, on the node that handles it (``EndedSessions``). Each session has a
token that its forms must send back, as foreign pages cannot know it (OWASP, "Cross-Site Request Forgery Prevention",
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
"""Maximum age of a session: a working day."""

_BETWEEN = "~"
"""Separates the key id, which is read before the signature is checked, from the signed part."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A browser session: ``key_id`` is empty without authentication; ``token`` is the token of its forms."""

    key_id: str
    token: str

    def has(self, token: str) -> bool:
        return compare_digest(self.token.encode(), token.encode())


class Accounts(msgspec.Struct, frozen=True, kw_only=True):
    """The accounts that may sign in. ``caller_of`` returns the holder of a key id, if it is valid now."""

    sign_in: SignIns
    caller_of: Callable[[str], Caller | None]


class Sessions:
    """Creates and reads the session cookies of a store. ``wall_s`` is the wall clock in seconds."""

    def __init__(
        self, *, secret: bytes, wall_s: Callable[[], float], secret_digest: Callable[[str], bytes] = lambda _: b""
    ) -> None:
        """``secret`` signs cookies, together with ``secret_digest`` of the key; both are the same on every node.

        So a new secret of a key ends its sessions.
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
        return Session(key_id=key_id, token=secrets.token_urlsafe(24))

    def cookie(self, session: Session) -> str:
        return f"{session.key_id}{_BETWEEN}{self._serializer(session.key_id).dumps(session.token)}"

    def read(self, cookie: str) -> Session | None:
        """Return the session of ``cookie``; ``None`` if it has ended, expired, or is invalid."""
        key_id, _, signed = cookie.partition(_BETWEEN)
        try:
            token, began_at = self._serializer(key_id).loads(signed, max_age=SESSION_S_MAX, return_timestamp=True)
        except BadData:
            return None
        return None if self._ended.has(key_id, token, began_at) else Session(key_id=key_id, token=token)

    def of(self, request: Request) -> Session | None:
        """Return the session of ``request``, if its cookie is valid."""
        return self.read(request.cookies.get(_name(request), ""))

    def keep(self, response: Response, request: Request, session: Session) -> None:
        """Set the cookie, for this console only and hidden from scripts."""
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
        response.delete_cookie(_name(request), secure=request.url.scheme == "https", httponly=True, samesite="strict")

    def end(self, session: Session) -> None:
        """Reject the session from now on; one without a key needs no record, as it grants nothing."""
        if session.key_id:
            self._ended.add(session.key_id, session.token, self._wall_s())

    def _serializer(self, key_id: str) -> URLSafeTimedSerializer:
        secret = digest(self._secret, key_id.encode() + self._secret_digest(key_id), sha256)
        return URLSafeTimedSerializer(secret, salt="veilmq console", signer=self._signer)


def _name(request: Request) -> str:
    """Return the cookie's name, with the port: browsers share cookies between the ports of a host.

    Over TLS it begins with ``__Host-``: browsers accept such a cookie only from this host, over TLS, so that an
    attacker on a neighbouring name or on the network cannot plant a session.
    """
    prefix = "__Host-" if request.url.scheme == "https" else ""
    return f"{prefix}veilmq_{request.url.port or request.url.scheme}"


ENDED_PER_KEY_MAX = 256


class EndedSessions:
    """Sessions that were ended by signing out, until their cookies expire.

    A cookie is self-contained, so a copy would stay valid after the browser has deleted it. Storage is bounded for each
    key, so that sign-outs of one key cannot displace the records of others: above the bound, all sessions of the key
    that have begun by then end. Times are in seconds of the wall clock.
    """

    def __init__(self, *, session_s_max: int) -> None:
        self._session_s_max = session_s_max
        self._ended_tokens: dict[str, dict[str, float]] = {}
        self._all_ended_s: dict[str, float] = {}

    def add(self, key_id: str, token: str, now_s: float) -> None:
        """Record the end of a session."""
        self._forget(now_s - self._session_s_max)
        of_key = self._ended_tokens.setdefault(key_id, {})
        of_key[token] = now_s
        if len(of_key) > ENDED_PER_KEY_MAX:
            del self._ended_tokens[key_id]
            self._all_ended_s[key_id] = now_s

    def has(self, key_id: str, token: str, began_at: datetime) -> bool:
        """Return whether the session, which began at ``began_at``, has ended."""
        if token in self._ended_tokens.get(key_id, ()):
            return True
        all_ended_s = self._all_ended_s.get(key_id)
        return all_ended_s is not None and began_at.timestamp() <= all_ended_s

    def _forget(self, before_s: float) -> None:
        """Drop records of sessions that ended before ``before_s``: their cookies have expired."""
        for key_id, of_key in list(self._ended_tokens.items()):
            recent = {token: ended_s for token, ended_s in of_key.items() if ended_s >= before_s}
            if recent:
                self._ended_tokens[key_id] = recent
            else:
                del self._ended_tokens[key_id]
        self._all_ended_s = {key_id: by_s for key_id, by_s in self._all_ended_s.items() if by_s >= before_s}
