"""The caller that signed a request of SMQ: the header ``Authorization``, by the keys of the credentials file."""

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from hashlib import sha1
from hmac import compare_digest
from hmac import digest as hmac_digest
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote_from_bytes, unquote_to_bytes

from veilmq.core.limits import SIGNATURE_SKEW_S
from veilmq.wire.exchange import AccessKey, Caller
from veilmq.wire.smq.errors import (
    INVALID_ACCESS_KEY_ID,
    INVALID_AUTHORIZATION_HEADER,
    INVALID_DATE_HEADER,
    MISSING_AUTHORIZATION_HEADER,
    MISSING_DATE_HEADER,
    MISSING_VERSION_HEADER,
    SIGNATURE_DOES_NOT_MATCH,
    TIME_EXPIRED,
    SmqError,
)
from veilmq.wire.sqs.signatures import single_spaced

PREFIX = b"x-mns-"

_DATE_BYTES_MAX = 64
_REMEMBERED_MAX = 256

Headers = Mapping[bytes, bytes]


class Instant(NamedTuple):
    """A date in seconds since the epoch, and as ``20260131T235959Z``."""

    at_s: float
    basic: bytes


class SignedRequest(NamedTuple):
    """A request; ``headers`` are by lower-case name. ``dates`` has what may have been signed as date, ours first.

    ``instants`` are the same, read.
    """

    method: bytes
    target: bytes
    headers: Headers
    dates: tuple[bytes, ...]
    instants: tuple[Instant, ...]


class Dates:
    """Reads dates, and remembers the last ones: all clients send the same for a second."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        """Know none."""
        self._known: dict[bytes, Instant] = {}

    def read(self, date: bytes) -> Instant:
        """Return the instant of an HTTP date; raises ``SmqError`` (InvalidDateHeader)."""
        known = self._known.get(date)
        if known is None:
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            known = self._known[date] = _instant(date)
        return known


def dates_of(headers: Headers) -> tuple[bytes, ...]:
    """Return the dates of a request, the one that is compared with the clock first; raises ``SmqError``."""
    own, general = headers.get(b"x-mns-date"), headers.get(b"date")
    if own and general and own != general:
        return own, general
    date = own or general
    if not date:
        raise SmqError(MISSING_DATE_HEADER)
    return (date,)


def _instant(date: bytes) -> Instant:
    try:
        if len(date) > _DATE_BYTES_MAX:
            raise ValueError
        read = parsedate_to_datetime(date.decode("ascii"))
        at = (read if read.tzinfo is not None else read.replace(tzinfo=UTC)).astimezone(UTC)
        return Instant(at.timestamp(), at.strftime("%Y%m%dT%H%M%SZ").encode())
    except (ValueError, OverflowError):
        raise SmqError(INVALID_DATE_HEADER) from None


# Version 2 of SMQ's signature, the default of every SDK: HMAC-SHA1 over a few lines (reference, section 3.1).
#
# The lines are method, Content-MD5, Content-Type, date, the ``x-mns-`` headers and the target of the request. SDKs
# differ in how they write the target that they sign: as it is sent, decoded, or with its parameters sorted (section
# 3.3). So where the target as it was sent does not fit, the other ways are tried, but only those that a reader would
# take for the same request: else a man in the middle could choose between two readings of one
# signature.


_BLOCK = 64
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))
_MARKS = re.compile(rb"[\x00-\x20%&?#]")
"""What is read as something else once it is decoded."""


class ClaimV2(NamedTuple):
    """What the header says after its scheme."""

    key_id: str
    signature: bytes


class SignatureV2:
    """The scheme ``MNS``; what HMAC makes of a secret before it sees a text is remembered for each."""

    __slots__ = ("_prepared",)

    def __init__(self) -> None:
        """Know no secret."""
        self._prepared: dict[bytes, _Prepared] = {}

    def read(self, text: bytes) -> ClaimV2:
        """Return the claim of ``key:signature``; raises ``SmqError`` (InvalidAuthorizationHeader)."""
        key_id, _, signature = text.rpartition(b":")
        if not key_id or not signature:
            raise SmqError(INVALID_AUTHORIZATION_HEADER)
        return ClaimV2(key_id.decode("latin-1"), signature)

    def fits(self, claim: ClaimV2, secret: bytes, request: SignedRequest) -> bool:
        """Return whether ``claim`` was signed with ``secret``."""
        prepared = self._prepared.get(secret)
        if prepared is None:
            prepared = self._prepared[secret] = _Prepared(secret)
        method, target, headers, dates, _ = request
        names = sorted([name for name in headers if name.startswith(PREFIX)])
        lines = b"".join([b"%b:%b\n" % (name, headers[name]) for name in names])
        start = b"%b\n%b\n%b\n" % (method, headers.get(b"content-md5", b""), headers.get(b"content-type", b""))
        if compare_digest(prepared.sign(b"%b%b\n%b%b" % (start, dates[0], lines, target)), claim.signature):
            return True
        others = _other_texts(request, start, (lines, _trimmed_lines(headers, names)))
        return any(compare_digest(prepared.sign(text), claim.signature) for text in others)


class _Prepared:
    """HMAC-SHA1 of one secret, its beginning done."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: bytes) -> None:
        block = (secret if len(secret) <= _BLOCK else sha1(secret).digest()).ljust(_BLOCK, b"\0")
        self._inner = sha1(block.translate(_INNER))
        self._outer = sha1(block.translate(_OUTER))

    def sign(self, text: bytes) -> bytes:
        """Return the signature of ``text``."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(text)
        outer.update(inner.digest())
        return b64encode(outer.digest())


def _other_texts(request: SignedRequest, start: bytes, own: tuple[bytes, bytes]) -> Iterator[bytes]:
    """Yield what else may have been signed; ``own`` has the ways to write the own headers."""
    targets = [request.target, *dict.fromkeys(_other_targets(request.target))]
    for values in dict.fromkeys(own):
        for date in request.dates:
            for target in targets:
                yield b"%b%b\n%b%b" % (start, date, values, target)


def _trimmed_lines(headers: Headers, names: list[bytes]) -> bytes:
    """Return the lines of the headers as one SDK signs them: runs of white space are one space."""
    return b"".join([b"%b:%b\n" % (name, single_spaced(headers[name])) for name in names])


def _other_targets(target: bytes) -> Iterator[bytes]:
    """Yield the ways to write ``target``, none where one could be read otherwise than it."""
    path, mark, query = target.partition(b"?")
    parts = [unquote_to_bytes(part) for part in path.split(b"/")]
    pairs = [pair.partition(b"=") for pair in query.split(b"&")]
    decoded = [(unquote_to_bytes(name), equals, unquote_to_bytes(value)) for name, equals, value in pairs]
    if any(b"/" in part for part in parts) or any(b"=" in name for name, _, _ in decoded):
        return
    if _MARKS.search(b"".join(parts)) or _MARKS.search(b"".join(map(b"".join, decoded))):
        return
    plain = b"&".join(map(b"".join, decoded))
    in_order = b"&".join(map(b"".join, sorted(decoded)))
    with_signs = b"&".join(name + b"=" + value for name, _, value in sorted(decoded))
    for decoded_path in (path, b"/".join(parts)):
        for decoded_query in (plain, in_order, with_signs):
            yield decoded_path + mark + decoded_query


# Version 4 of SMQ's signature: HMAC-SHA256 with a key of the day (reference, section 3.2), and its private variant.
#
# The canonical request has the path and the parameters decoded and encoded anew, so each way to write them fits; names
# of parameters are case-insensitive. A value with white space around it never fits, as the signature leaves that away
# and a reader does not. Any region is taken from the header. The keys of the day are remembered once a request was
# genuine, so that only a holder of a secret can fill the cache.


_SERVICE = b"mns"
_HEADERS = (b"content-md5", b"content-type")
_DAY_CHARACTERS = 8
_KEYS_MAX = 1_024


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
        """Return whether ``claim`` was signed with ``secret``, for the day of the request."""
        known = secret, claim.day, claim.region
        key = self._keys.get(known) or _key(secret, claim, self._variant)
        canonical = _canonical(request)
        genuine = any(
            compare_digest(_sign(key, claim, basic, canonical, self._variant), claim.signature)
            for basic in [instant.basic for instant in request.instants]
            if basic[:_DAY_CHARACTERS] == claim.day
        )
        if genuine and known not in self._keys:
            if len(self._keys) >= _KEYS_MAX:
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
    signed = sorted(name for name in request.headers if name.startswith(PREFIX) or name in _HEADERS)
    lines = b"".join([b"%b:%b\n" % (name, request.headers[name].strip()) for name in signed])
    return b"%b\n%b\n%b\n%b\n" % (request.method, encoded.encode(), _query(query), lines)


def _query(query: bytes) -> bytes:
    pairs = (pair.partition(b"=") for pair in query.split(b"&") if pair)
    encoded = sorted(
        (_encoded(unquote_to_bytes(name).lower()), _encoded(unquote_to_bytes(value))) for name, _, value in pairs
    )
    return "&".join([f"{name}={value}" if value else name for name, value in encoded]).encode()


def _encoded(value: bytes) -> str:
    return quote_from_bytes(value, safe="~")


# The caller that signed a request of SMQ: the header ``Authorization``, by the keys of the credentials file.
#
# The order of the checks is the one that the SDKs' error codes suggest (reference, section 3.4). Nothing is read but
# the request and the keys; the present instant comes in. The body is not signed but through Content-MD5, where that is
# sent: ``content_md5`` checks it.


class _Scheme(Protocol):
    """One way to sign; a claim has a ``key_id``."""

    def read(self, text: bytes) -> Any:
        """Return what the header claims after the scheme's name; raises ``SmqError``."""

    def fits(self, claim: Any, secret: bytes, request: SignedRequest) -> bool:
        """Return whether ``claim`` was signed with ``secret``."""


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
        """Return the ARN of the caller that signed a request whose body is not read yet; raises ``SmqError``."""
        return self.verify(method, target, headers, b"", now_s).arn

    def verify(
        self, method: bytes, target: bytes, headers: Headers, body: bytes, now_s: float, digest: bytes | None = None
    ) -> Caller:
        """Return the caller that signed the request; raises ``SmqError``. ``now_s`` is the wall clock's, in seconds."""
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
