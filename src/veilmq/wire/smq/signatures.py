"""The signatures of SMQ, in the header ``Authorization``: version 2, and version 4 with its private variant."""

import itertools
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from functools import lru_cache
from hmac import compare_digest
from hmac import digest as hmac_digest
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from veilmq.core.limits import SIGNATURE_SKEW_S
from veilmq.wire.exchange import AccessKey, Caller
from veilmq.wire.smq import errors
from veilmq.wire.smq.errors import SmqError
from veilmq.wire.sqs.signatures import parse_http_date, signing_key, single_spaced, split_pair, uri_encoded

PREFIX = b"x-mns-"

_DATE_BYTES_MAX = 64

Headers = Mapping[bytes, bytes]


class Date(NamedTuple):
    """A date: the text of the client, seconds since the epoch, and the format ``20260131T235959Z``."""

    text: bytes
    at_s: float
    basic: bytes


@lru_cache(256)  # all clients send the same date within a second
def read_date(text: bytes) -> Date:
    """Parse an HTTP date; raises ``SmqError`` (InvalidDateHeader)."""
    try:
        if len(text) > _DATE_BYTES_MAX:
            raise ValueError
        at = parse_http_date(text)
    except (ValueError, OverflowError):
        raise SmqError(errors.INVALID_DATE_HEADER) from None
    return Date(text, at.timestamp(), at.strftime("%Y%m%dT%H%M%SZ").encode())


class Claim(NamedTuple):
    """The parsed header after the scheme; ``scope`` (``day/region/mns/…``) is only in version 4."""

    key_id: str
    signature: bytes
    scope: bytes = b""


# Version 2, the default of every SDK: HMAC-SHA1 over method, Content-MD5, Content-Type, date, the ``x-mns-`` headers
# and the target of the request (reference, section 3.1).
#
# SDKs sign the target in different forms: as sent, decoded, or with sorted parameters (section 3.3). If the target as
# sent does not match, the other forms are tried, but only if they mean the same request: otherwise a man in the middle
# could use one signature for two requests.

_DELIMITERS = re.compile(rb"[\x00-\x20%&?#]")
"""Characters that have another meaning after decoding."""


class SignatureV2:
    """The scheme ``MNS``."""

    def read(self, text: bytes) -> Claim:
        """Parse ``key:signature``; raises ``SmqError`` (InvalidAuthorizationHeader)."""
        key_id, _, signature = text.rpartition(b":")
        if not key_id or not signature:
            raise SmqError(errors.INVALID_AUTHORIZATION_HEADER)
        return Claim(key_id.decode("latin-1"), signature)

    def signatures(
        self, claim: Claim, secret: bytes, method: bytes, target: bytes, headers: Headers, dates: tuple[Date, ...]
    ) -> Iterator[bytes]:
        """Yield the valid signatures of a request; ``dates`` may have been signed, ``x-mns-date`` first."""
        names = sorted([name for name in headers if name.startswith(PREFIX)])
        lines = b"".join([b"%b:%b\n" % (name, headers[name]) for name in names])
        start = b"%b\n%b\n%b\n" % (method, headers.get(b"content-md5", b""), headers.get(b"content-type", b""))

        def signature(date: Date, lines: bytes, target: bytes) -> bytes:
            return b64encode(hmac_digest(secret, b"%b%b\n%b%b" % (start, date.text, lines, target), "sha1"))

        yield signature(dates[0], lines, target)
        # one SDK collapses white space in the signed headers
        collapsed = b"".join([b"%b:%b\n" % (name, single_spaced(headers[name])) for name in names])
        targets = [target, *dict.fromkeys(_other_targets(target))]
        yield from itertools.starmap(signature, itertools.product(dates, dict.fromkeys((lines, collapsed)), targets))


def _other_targets(target: bytes) -> Iterator[bytes]:
    """Yield other forms of ``target``, none if a form could mean another request."""
    path, mark, query = target.partition(b"?")
    parts = [unquote_to_bytes(part) for part in path.split(b"/")]
    pairs = [pair.partition(b"=") for pair in query.split(b"&")]
    decoded = [(unquote_to_bytes(name), equals, unquote_to_bytes(value)) for name, equals, value in pairs]
    if any(b"/" in part for part in parts) or any(b"=" in name for name, _, _ in decoded):
        return
    if _DELIMITERS.search(b"".join(parts)) or _DELIMITERS.search(b"".join(map(b"".join, decoded))):
        return
    plain = b"&".join(map(b"".join, decoded))
    with_signs = b"&".join(name + b"=" + value for name, _, value in sorted(decoded))
    for decoded_path in (path, b"/".join(parts)):
        for decoded_query in (plain, with_signs):
            yield decoded_path + mark + decoded_query


# Version 4: HMAC-SHA256 with a key of the day (reference, section 3.2), and its private variant.
#
# In the canonical request, path and parameters are decoded and encoded again, so every form of them matches; names of
# parameters are case-insensitive. A value with white space around it never matches: the signature trims it, but the
# codec does not. Any region in the header is accepted.

_SERVICE = b"mns"
_HEADERS = (b"content-md5", b"content-type")
_DAY_CHARACTERS = 8
_key_of_day = lru_cache(64)(signing_key)


class SignatureV4(NamedTuple):
    """The scheme of one cloud: its name, the prefix of the secret, and the end of the scope."""

    scheme: bytes
    prefix: bytes
    end: bytes

    def read(self, text: bytes) -> Claim:
        """Parse ``Credential=…,Signature=…``; raises ``SmqError`` (InvalidAuthorizationHeader)."""
        pairs = [split_pair(item) for item in text.split(b",")]
        parts = dict(pairs)
        key_id, *scope = parts.get(b"Credential", b"").rsplit(b"/", 4)
        signature = parts.get(b"Signature", b"")
        is_complete = len(parts) == len(pairs) and signature and key_id and all(scope)
        if not is_complete or scope[2:] != [_SERVICE, self.end]:
            raise SmqError(errors.INVALID_AUTHORIZATION_HEADER)
        return Claim(key_id.decode("latin-1"), signature, b"/".join(scope))

    def signatures(
        self, claim: Claim, secret: bytes, method: bytes, target: bytes, headers: Headers, dates: tuple[Date, ...]
    ) -> Iterator[bytes]:
        """Yield the valid signatures, in hexadecimal, for ``dates`` on the day of the scope."""
        key = _key_of_day(secret, claim.scope, self.prefix)
        canonical = _canonical(method, target, headers)
        for date in dates:
            if claim.scope.startswith(date.basic[:_DAY_CHARACTERS] + b"/"):
                text = b"%b\n%b\n%b\n%b" % (self.scheme, date.basic, claim.scope, canonical)
                yield hmac_digest(key, text, "sha256").hex().encode()


def _canonical(method: bytes, target: bytes, headers: Headers) -> bytes:
    path, _, query = target.partition(b"?")
    parts = "/".join([uri_encoded(unquote_to_bytes(part)) for part in path.split(b"/")])
    pairs = sorted(
        (uri_encoded(unquote_to_bytes(name).lower()), uri_encoded(unquote_to_bytes(value)))
        for name, _, value in (pair.partition(b"=") for pair in query.split(b"&") if pair)
    )
    canonical_query = "&".join([f"{name}={value}" if value else name for name, value in pairs])
    signed = sorted(name for name in headers if name.startswith(PREFIX) or name in _HEADERS)
    lines = b"".join([b"%b:%b\n" % (name, headers[name].strip()) for name in signed])
    return b"%b\n%b\n%b\n%b\n" % (method, parts.encode(), canonical_query.encode(), lines)


# The order of the checks follows the error codes of the SDKs (reference, section 3.4). The body is signed only through
# Content-MD5, if sent; ``routes.check_content_md5`` checks that header.

PUBLIC = SignatureV4(b"MNS4-HMAC-SHA256", b"aliyun_v4", b"aliyun_v4_request")
PRIVATE = SignatureV4(b"APSARA-MNS4-HMAC-SHA256", b"apsara_v4", b"apsara_v4_request")
_SCHEMES: dict[bytes, SignatureV2 | SignatureV4] = {
    b"MNS": SignatureV2(),
    PUBLIC.scheme: PUBLIC,
    PRIVATE.scheme: PRIVATE,
}


class Verifier:
    """Verifies signatures with the keys of a credentials file."""

    signs_body = False

    def __init__(self, keys: Mapping[str, AccessKey]) -> None:
        self._keys = keys

    def inspect(self, method: bytes, target: bytes, headers: Headers, now_s: float) -> str:
        """Return the ARN of the caller that signed a request whose body is not read yet; raises ``SmqError``."""
        return self.verify(method, target, headers, b"", now_s).arn

    def verify(
        self, method: bytes, target: bytes, headers: Headers, body: bytes, now_s: float, digest: bytes | None = None
    ) -> Caller:
        """Return the caller that signed the request; raises ``SmqError``. ``now_s`` is wall clock time."""
        authorization = headers.get(b"authorization")
        if not authorization:
            raise SmqError(errors.MISSING_AUTHORIZATION_HEADER)
        texts = [text for name in (b"x-mns-date", b"date") if (text := headers.get(name))]  # the first is the time
        if not texts:
            raise SmqError(errors.MISSING_DATE_HEADER)
        if not headers.get(b"x-mns-version"):
            raise SmqError(errors.MISSING_VERSION_HEADER)
        name, _, credentials = authorization.partition(b" ")
        scheme = _SCHEMES.get(name)
        if scheme is None:
            raise SmqError(errors.INVALID_AUTHORIZATION_HEADER)
        claim = scheme.read(credentials.strip())
        dates = tuple([read_date(text) for text in dict.fromkeys(texts)])
        if not -SIGNATURE_SKEW_S <= now_s - dates[0].at_s <= SIGNATURE_SKEW_S:
            raise SmqError(errors.TIME_EXPIRED)
        key = self._keys.get(claim.key_id)
        if key is None or (key.expires_at_s is not None and now_s >= key.expires_at_s):
            raise SmqError(errors.INVALID_ACCESS_KEY_ID)
        token = headers.get(b"security-token", b"")  # not covered by the signature
        if key.session_token is not None and not compare_digest(token, key.session_token):
            raise SmqError(errors.INVALID_ACCESS_KEY_ID)
        valid_signatures = scheme.signatures(claim, key.secret, method, target, headers, dates)
        if not any(compare_digest(signature, claim.signature) for signature in valid_signatures):
            raise SmqError(errors.SIGNATURE_DOES_NOT_MATCH)
        return key.caller
