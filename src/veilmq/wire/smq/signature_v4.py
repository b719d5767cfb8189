"""Version 4 of SMQ's signature: HMAC-SHA256 with a key of the day (reference, section 3.2), and its private variant.

The canonical request has the path and the parameters decoded and encoded anew, so each way to write them fits; names of
parameters do not tell case. A value with white space around it never fits, as the signature leaves that away and a
reader does not. Any region is taken from the header. The keys of the day are remembered once a request was genuine, so
that nobody but a holder of a secret can make one be remembered.
"""

from collections.abc import Iterator
from hmac import compare_digest
from hmac import digest as hmac_digest
from typing import NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from veilmq.wire.smq.errors import INVALID_AUTHORIZATION_HEADER, SmqError
from veilmq.wire.smq.signed_request import PREFIX, Headers, SignedRequest

_SERVICE = b"mns"
_HEADERS = (b"content-md5", b"content-type")
_DAY_CHARACTERS = 8
_REMEMBERED_MAX = 1_024


class Variant(NamedTuple):
    """The words that tell two clouds apart: the scheme, what the secret begins with, and where the scope ends."""

    scheme: bytes
    prefix: bytes
    end: bytes


PUBLIC = Variant(b"MNS4-HMAC-SHA256", b"aliyun_v4", b"aliyun_v4_request")
PRIVATE = Variant(b"APSARA-MNS4-HMAC-SHA256", b"apsara_v4", b"apsara_v4_request")


class ClaimV4(NamedTuple):
    """What the header says after its scheme; ``signature`` is in hexadecimal."""

    key_id: str
    day: bytes
    region: bytes
    signature: bytes


class SignatureV4:
    """The scheme of one variant."""

    __slots__ = ("_keys", "_variant")

    def __init__(self, variant: Variant) -> None:
        """Know no key."""
        self._variant = variant
        self._keys: dict[tuple[bytes, bytes, bytes], bytes] = {}

    def read(self, text: bytes) -> ClaimV4:
        """Return the claim of ``Credential=…,Signature=…``; raises ``SmqError`` (InvalidAuthorizationHeader)."""
        given = [_member(item) for item in text.split(b",")]
        parts = dict(given)
        if len(parts) < len(given):  # a member that stands twice
            raise SmqError(INVALID_AUTHORIZATION_HEADER)
        scope = parts.get(b"Credential", b"").rsplit(b"/", 4)
        signature = parts.get(b"Signature")
        if len(scope) != 5 or not all(scope) or not signature or scope[3:] != [_SERVICE, self._variant.end]:
            raise SmqError(INVALID_AUTHORIZATION_HEADER)
        return ClaimV4(scope[0].decode("latin-1"), scope[1], scope[2], signature)

    def fits(self, claim: ClaimV4, secret: bytes, request: SignedRequest) -> bool:
        """Tell whether ``claim`` is of who has ``secret``, for the day of the request."""
        known = secret, claim.day, claim.region
        key = self._keys.get(known) or _key(secret, claim, self._variant)
        canonical = _canonical(request)
        genuine = any(
            compare_digest(_sign(key, claim, basic, canonical, self._variant), claim.signature)
            for basic in [instant.basic for instant in request.instants]
            if basic[:_DAY_CHARACTERS] == claim.day
        )
        if genuine and known not in self._keys:
            if len(self._keys) >= _REMEMBERED_MAX:
                self._keys.clear()
            self._keys[known] = key
        return genuine


def _member(item: bytes) -> tuple[bytes, bytes]:
    name, _, value = item.strip().partition(b"=")
    return name, value


def _key(secret: bytes, claim: ClaimV4, variant: Variant) -> bytes:
    key = variant.prefix + secret
    for part in (claim.day, claim.region, _SERVICE, variant.end):
        key = hmac_digest(key, part, "sha256")
    return key


def _sign(key: bytes, claim: ClaimV4, basic: bytes, canonical: bytes, variant: Variant) -> bytes:
    scope = b"/".join((claim.day, claim.region, _SERVICE, variant.end))
    text = b"%b\n%b\n%b\n%b" % (variant.scheme, basic, scope, canonical)
    return hmac_digest(key, text, "sha256").hex().encode()


def _canonical(request: SignedRequest) -> bytes:
    path, _, query = request.target.partition(b"?")
    encoded = "/".join([_encoded(unquote_to_bytes(part)) for part in path.split(b"/")])
    return b"%b\n%b\n%b\n%b\n" % (request.method, encoded.encode(), _query(query), _lines(request.headers))


def _query(query: bytes) -> bytes:
    pairs = (pair.partition(b"=") for pair in query.split(b"&") if pair)
    encoded = sorted(
        (_encoded(unquote_to_bytes(name).lower()), _encoded(unquote_to_bytes(value))) for name, _, value in pairs
    )
    return "&".join([f"{name}={value}" if value else name for name, value in encoded]).encode()


def _lines(headers: Headers) -> bytes:
    return b"".join([b"%b:%b\n" % (name, headers[name].strip()) for name in sorted(_signed(headers))])


def _signed(headers: Headers) -> Iterator[bytes]:
    return (name for name in headers if name.startswith(PREFIX) or name in _HEADERS)


def _encoded(value: bytes) -> str:
    return quote_from_bytes(value, safe="~")
