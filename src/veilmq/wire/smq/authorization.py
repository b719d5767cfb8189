"""Who signed a request of SMQ: the header ``Authorization``, by the keys of the credentials file.

The order of the checks is the one that the SDKs' error codes suggest (reference, section 3.4). Nothing is read but the
request and the keys; the present instant comes in. The body is not signed but through Content-MD5, where that is sent:
``content_md5`` checks it.
"""

from collections.abc import Mapping
from hmac import compare_digest
from typing import Any, Protocol

from veilmq.core.limits import SIGNATURE_SKEW_S
from veilmq.wire.smq.errors import (
    INVALID_ACCESS_KEY_ID,
    INVALID_AUTHORIZATION_HEADER,
    MISSING_AUTHORIZATION_HEADER,
    MISSING_VERSION_HEADER,
    SIGNATURE_DOES_NOT_MATCH,
    TIME_EXPIRED,
    SmqError,
)
from veilmq.wire.smq.signature_v2 import SignatureV2
from veilmq.wire.smq.signature_v4 import PRIVATE, PUBLIC, SignatureV4
from veilmq.wire.smq.signed_request import Dates, Headers, SignedRequest, dates_of
from veilmq.wire.sqs.callers import AccessKey, Caller


class _Scheme(Protocol):
    """One way to sign; a claim has a ``key_id``."""

    def read(self, text: bytes) -> Any:
        """Return what the header claims after the scheme's name; raises ``SmqError``."""

    def fits(self, claim: Any, secret: bytes, request: SignedRequest) -> bool:
        """Tell whether the claim is of who has ``secret``."""


class Verifier:
    """The keys of one credentials file, for SMQ."""

    __slots__ = ("_dates", "_keys", "_schemes")

    signs_body = False

    def __init__(self, keys: Mapping[str, AccessKey]) -> None:
        """``keys`` are by id."""
        self._keys = keys
        self._dates = Dates()
        self._schemes: dict[bytes, _Scheme] = {
            b"MNS": SignatureV2(),
            PUBLIC.scheme: SignatureV4(PUBLIC),
            PRIVATE.scheme: SignatureV4(PRIVATE),
        }

    def inspect(self, method: bytes, target: bytes, headers: Headers, now_s: float) -> str:
        """Return the name of who signed a request, whose body is not read yet; raises ``SmqError``."""
        return self.verify(method, target, headers, b"", now_s).arn

    def verify(
        self, method: bytes, target: bytes, headers: Headers, body: bytes, now_s: float, digest: bytes | None = None
    ) -> Caller:
        """Return who signed the request; raises ``SmqError``. ``now_s`` is the wall clock's, in seconds."""
        authorization = headers.get(b"authorization")
        if not authorization:
            raise SmqError(MISSING_AUTHORIZATION_HEADER)
        dates = dates_of(headers)
        if not headers.get(b"x-mns-version"):
            raise SmqError(MISSING_VERSION_HEADER)
        name, _, text = authorization.partition(b" ")
        scheme = self._schemes.get(name)
        if scheme is None:
            raise SmqError(INVALID_AUTHORIZATION_HEADER)
        claim = scheme.read(text.strip())
        instants = tuple([self._dates.read(date) for date in dates])
        if not -SIGNATURE_SKEW_S <= now_s - instants[0].at_s <= SIGNATURE_SKEW_S:
            raise SmqError(TIME_EXPIRED)
        key = self._key(claim.key_id, headers, now_s)
        if not scheme.fits(claim, key.secret, SignedRequest(method, target, headers, dates, instants)):
            raise SmqError(SIGNATURE_DOES_NOT_MATCH)
        return key.caller

    def _key(self, key_id: str, headers: Headers, now_s: float) -> AccessKey:
        """Return a key that is good now; a temporary one needs its token, which no signature covers."""
        key = self._keys.get(key_id)
        if key is None or (key.expires_at_s is not None and now_s >= key.expires_at_s):
            raise SmqError(INVALID_ACCESS_KEY_ID)
        if key.session_token is not None and not compare_digest(headers.get(b"security-token", b""), key.session_token):
            raise SmqError(INVALID_ACCESS_KEY_ID)
        return key
