"""AWS Signature Version 4, in the header ``Authorization`` or in the query ("presigned").

The rules are those of the IAM User Guide ("AWS Signature Version 4 for API requests") and of the published examples of
AWS, the codes those of the API Reference ("Common Errors").

A ``_Scope`` caches what is the same for all requests of a client on one day: the signing key, the names of the signed
headers, the start of the day. The cache key is the part of the header before the signature. A scope is cached only
after a valid request, so only holders of a key can fill the cache. All other work is one pass over the signed headers
and four runs of SHA-256, in C.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from hashlib import sha256
from hmac import compare_digest
from hmac import digest as hmac_digest
from operator import itemgetter
from urllib.parse import quote_from_bytes, unquote_to_bytes

from veilmq.core.limits import SIGNATURE_SKEW_S, SQS_PRESIGNED_S
from veilmq.wire.exchange import AccessKey, Caller
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.errors import SqsError, truncated

_CACHED_SCOPES_MAX = 1_024
_PLAIN_PATH = re.compile(rb"/|(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*+)++/?")

Pair = tuple[bytes, bytes]


def canonical_path(raw: bytes) -> bytes:
    """Return the canonical form of the path of a target."""
    if _PLAIN_PATH.fullmatch(raw):
        return raw
    kept: list[bytes] = []
    for part in raw.split(b"/"):
        if part == b"..":
            del kept[-1:]
        elif part not in (b"", b"."):
            kept.append(part)
    plain = b"/" + b"/".join(kept) + (b"/" if kept and raw.endswith(b"/") else b"")
    return quote_from_bytes(plain, "/~").encode()


def query_pairs(query: bytes) -> list[Pair]:
    """Return the names and values of a query, decoded; ``+`` is a space, as in a form."""
    pairs = []
    for item in query.split(b"&"):
        if item:
            name, _, value = item.replace(b"+", b" ").partition(b"=")
            pairs.append((unquote_to_bytes(name), unquote_to_bytes(value)))
    return pairs


def canonical_query(decoded: Iterable[Pair]) -> bytes:
    """Return the canonical form of a query: encoded, then sorted by name and value."""
    pairs = sorted((uri_encoded(name), uri_encoded(value)) for name, value in decoded)
    return "&".join([f"{name}={value}" for name, value in pairs]).encode()


def single_spaced(value: bytes) -> bytes:
    """Return the value of a header with white space trimmed and collapsed."""
    return b" ".join(value.split())


def uri_encoded(value: bytes) -> str:
    """Return a name or value encoded for a canonical query."""
    return quote_from_bytes(value, "~")


def signing_key(secret: bytes, scope: bytes, prefix: bytes = b"AWS4") -> bytes:
    """Return the key for ``scope`` (``day/region/service/aws4_request``)."""
    key = prefix + secret
    for part in scope.split(b"/"):
        key = hmac_digest(key, part, "sha256")
    return key


def split_pair(item: bytes) -> Pair:
    """Return the name and the value of one ``name=value`` of an Authorization header."""
    name, _, value = item.strip().partition(b"=")
    return name, value


def parse_http_date(date: bytes) -> datetime:
    """Parse an HTTP date, in UTC without a zone; raises ``ValueError`` or ``OverflowError``."""
    read = parsedate_to_datetime(date.decode("ascii"))
    return (read if read.tzinfo is not None else read.replace(tzinfo=UTC)).astimezone(UTC)


ALGORITHM = b"AWS4-HMAC-SHA256"
UNSIGNED = b"UNSIGNED-PAYLOAD"

_SIGNATURE = b"Signature="
_END = b"aws4_request"
_BLOCK = 64
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))
_TARGET = b"x-amz-target"  # names the action
_DATE = re.compile(rb"[0-9]{8}T(?:[01][0-9]|2[0-3])[0-5][0-9][0-5][0-9]Z")  # a day's key must not outlive its day
_DAY_CHARACTERS = 8
_QUERY = (b"X-Amz-Algorithm", b"X-Amz-Credential", b"X-Amz-Date", b"X-Amz-SignedHeaders")
_QUERY_SIGNATURE = b"X-Amz-Signature"
_QUERY_TOKEN = b"X-Amz-Security-Token"

Headers = Mapping[bytes, bytes]


class Verifier:
    """The keys of one credentials file, for one region and service."""

    signs_body = True

    def __init__(
        self, keys: Mapping[str, AccessKey], *, region: str, service: str = "sqs", secure: bool = False
    ) -> None:
        """``keys`` are by id; an empty ``region`` accepts any; with ``secure`` (TLS) bodies may be unsigned."""
        self._keys = keys
        self._region = region.encode()
        self._service = service.encode()
        self._secure = secure
        self._scopes: dict[bytes, _Scope] = {}

    def verify(
        self, method: bytes, target: bytes, headers: Headers, body: bytes, now_s: float, digest: bytes | None = None
    ) -> Caller:
        """Return the caller that signed the request; raises ``SqsError``. ``now_s`` is wall clock time.

        ``digest`` is the SHA-256 of the body in hexadecimal, if it is known.
        """
        authorization = headers.get(b"authorization")
        if authorization is None:
            presigned, signature, path, pairs = self._read_presigned(target, now_s)
            rest = [pair for pair in pairs if pair[0] != _QUERY_SIGNATURE]
            presigned.check(signature, _start(method, path, rest), headers, self._digest(headers, body, digest))
            return presigned.key.caller
        header_prefix, _, signature = authorization.rpartition(_SIGNATURE)
        scope = self._scopes.get(header_prefix)
        is_new = scope is None
        if scope is None:
            scope, signature = self._read_header(authorization)
        date = headers.get(b"x-amz-date") or _from_http_date(headers.get(b"date"))
        if date != scope.date:
            scope.set_date(date)
        if not -SIGNATURE_SKEW_S <= now_s - scope.date_s <= SIGNATURE_SKEW_S:
            raise _out_of_window(date, scope.date_s, now_s)
        if not scope.is_permanent or b"x-amz-security-token" in headers:
            _check_key(scope.key, headers.get(b"x-amz-security-token"), now_s)
        if self._secure or digest is not None:
            payload = self._digest(headers, body, digest)
        else:
            payload = sha256(body).hexdigest().encode()
        start = method + b"\n/\n\n" if target == b"/" else _start(method, *_split(target))
        scope.check(signature, start, headers, payload)
        if is_new and authorization.endswith(_SIGNATURE + signature):  # nothing after the signature
            if len(self._scopes) >= _CACHED_SCOPES_MAX:
                self._scopes.clear()
            self._scopes[header_prefix] = scope
        return scope.key.caller

    def inspect(self, method: bytes, target: bytes, headers: Headers, now_s: float) -> str:
        """Return the key id of a request whose body is not read yet; raises ``SqsError``.

        Checks the same as ``verify``, except the signature.
        """
        authorization = headers.get(b"authorization")
        if authorization is None:
            scope = self._read_presigned(target, now_s)[0]
        else:
            scope, _ = self._read_header(authorization)
            date = headers.get(b"x-amz-date") or _from_http_date(headers.get(b"date"))
            scope.set_date(date)
            if not -SIGNATURE_SKEW_S <= now_s - scope.date_s <= SIGNATURE_SKEW_S:
                raise _out_of_window(date, scope.date_s, now_s)
            _check_key(scope.key, headers.get(b"x-amz-security-token"), now_s)
        return scope.key.id

    def _read_presigned(self, target: bytes, now_s: float) -> "tuple[_Scope, bytes, bytes, list[Pair]]":
        """Return the scope, the signature, the path and the parameters of a presigned request."""
        path, pairs = _split(target)
        parameters = dict(pairs)
        if b"X-Amz-Algorithm" not in parameters:
            raise SqsError(errors.MISSING_AUTHENTICATION_TOKEN, "Request is missing Authentication Token; sign it.")
        why = "AWS query-string parameters must include '{}', once."
        algorithm, credential, date, names, signature = _single_values(pairs, (*_QUERY, _QUERY_SIGNATURE), why)
        if algorithm != ALGORITHM:
            raise _incomplete(f"Unsupported AWS 'algorithm': '{_text(algorithm)}'.")
        scope = self._scope(credential, names)
        scope.set_date(date)
        expires = b",".join(text for name, text in pairs if name == b"X-Amz-Expires") or b"%d" % SQS_PRESIGNED_S.default
        seconds = int(expires) if expires.isdigit() and len(expires) <= 6 else 0
        if not SQS_PRESIGNED_S.holds(seconds):
            raise _incomplete(f"X-Amz-Expires must be a whole number from 1 to {SQS_PRESIGNED_S.maximum}.")
        if scope.date_s - now_s > SIGNATURE_SKEW_S:
            raise _out_of_window(scope.date, scope.date_s, now_s)
        if now_s > scope.date_s + seconds:
            expired = f"The presigned request expired at {_basic_date(scope.date_s + seconds)}."
            raise SqsError(errors.REQUEST_EXPIRED, expired)
        _check_key(scope.key, parameters.get(_QUERY_TOKEN), now_s)
        return scope, signature, path, pairs

    def _digest(self, headers: Headers, body: bytes, digest: bytes | None) -> bytes:
        """Return the signed hash of the payload, or ``UNSIGNED-PAYLOAD``."""
        if self._secure and headers.get(b"x-amz-content-sha256") == UNSIGNED:
            return UNSIGNED
        return digest or sha256(body).hexdigest().encode()

    def _read_header(self, authorization: bytes) -> "tuple[_Scope, bytes]":
        algorithm, _, rest = authorization.strip().partition(b" ")
        if algorithm != ALGORITHM:
            raise _incomplete(f"Unsupported AWS 'algorithm': '{_text(algorithm)}'; sign with Signature Version 4.")
        pairs = [split_pair(item) for item in rest.split(b",")]
        why = "Authorization header requires '{}' parameter, once."
        credential, names, signature = _single_values(pairs, (b"Credential", b"SignedHeaders", b"Signature"), why)
        return self._scope(credential, names), signature

    def _scope(self, credential: bytes, names: bytes) -> "_Scope":
        parts = credential.rsplit(b"/", 4)
        if len(parts) != 5 or not all(parts):
            why = "Credential must have exactly 5 slash-delimited elements, e.g. keyid/date/region/service/term."
            raise _incomplete(why)
        key_id, day, region, service, end = parts
        key = self._keys.get(key_id.decode("latin-1"))
        if key is None:
            raise _unknown_key()
        for place, wanted, what in (
            (region, self._region, "a valid region"),
            (service, self._service, "the correct service"),
            (end, _END, "a valid terminator"),
        ):
            if place != wanted and wanted:
                why = f"Credential should be scoped to {what}: '{wanted.decode()}', not '{_text(place)}'."
                raise _mismatch(why)
        signed = names.split(b";")
        if len(set(signed)) < len(signed):  # a repeated long value could make the signed text huge
            raise _incomplete("'SignedHeaders' must name each header once.")
        if b"host" not in signed:
            raise _mismatch("'Host' must be a 'SignedHeader' in the AWS Authorization.")
        return _Scope(key, day, b"/".join((day, region, service, end)), signed)


class _Scope:
    """The common part of the signatures of a client on one day, prepared, and the date of its last request."""

    __slots__ = (
        "_day_s",
        "_header_lines",
        "_inner",
        "_inner_dated",
        "_outer",
        "_signs_target",
        "_text",
        "_values",
        "date",
        "date_s",
        "day",
        "is_permanent",
        "key",
    )

    def __init__(self, key: AccessKey, day: bytes, text: bytes, names: list[bytes]) -> None:
        self.key = key
        self.is_permanent = key.session_token is None and key.expires_at_s is None
        self.day = day
        self.date = b""
        self.date_s = 0
        self._day_s = _day_s(day)
        self._text = text
        self._signs_target = _TARGET in names
        self._values = itemgetter(*names, names[0]) if len(names) == 1 else itemgetter(*names)
        lines = b"".join(name.replace(b"%", b"%%") + b":%b\n" for name in names)
        self._header_lines = lines + b"%.0b" * (len(names) == 1) + b"\n" + b";".join(names).replace(b"%", b"%%") + b"\n"
        block = signing_key(key.secret, text).ljust(_BLOCK, b"\0")
        self._inner, self._outer = sha256(block.translate(_INNER)), sha256(block.translate(_OUTER))
        self._inner_dated = self._inner

    def set_date(self, date: bytes) -> None:
        """Set the date of a request (``20260131T235959Z``); raises ``SqsError`` for another format or day."""
        if not _DATE.fullmatch(date):
            raise _incomplete("Date must be in ISO-8601 'basic format', like 20260131T235959Z.")
        if date[:_DAY_CHARACTERS] != self.day:
            raise _mismatch(f"Date in Credential scope does not match YYYYMMDD from {_text(date)}.")
        self.date_s = self._day_s + int(date[9:11]) * 3_600 + int(date[11:13]) * 60 + int(date[13:15])
        self.date = date
        self._inner_dated = self._inner.copy()
        self._inner_dated.update(b"%b\n%b\n%b\n" % (ALGORITHM, date, self._text))

    def check(self, signature: bytes, start: bytes, headers: Headers, payload: bytes) -> None:
        """Raise SignatureDoesNotMatch unless ``signature`` is valid for the request at this date.

        ``start`` is the canonical request up to its headers. Few headers have white space to collapse, so that is tried
        only if the signature does not match without it.
        """
        if not self._signs_target and _TARGET in headers:
            raise _mismatch("'X-Amz-Target' must be a 'SignedHeader' in the AWS Authorization.")
        try:
            values = self._values(headers)
        except KeyError as error:
            raise _mismatch(f"The signed header '{_text(error.args[0])}' is not in the request.") from None
        if compare_digest(self._sign(start + self._header_lines % values + payload), signature):
            return
        trimmed = tuple(map(single_spaced, values))
        if not compare_digest(self._sign(start + self._header_lines % trimmed + payload), signature):
            raise _mismatch()

    def _sign(self, request: bytes) -> bytes:
        """Return the signature of a canonical request in hexadecimal: HMAC-SHA-256 from the prepared states."""
        inner, outer = self._inner_dated.copy(), self._outer.copy()
        inner.update(sha256(request).hexdigest().encode())
        outer.update(inner.digest())
        signature: str = outer.hexdigest()
        return signature.encode()


def credential_of(authorization: bytes, target: bytes) -> bytes:
    """Return the unverified credential of a request (``keyid/date/region/service/term``), empty if there is none."""
    if authorization:
        if not authorization.startswith(ALGORITHM):
            return b""
        _, _, rest = authorization.partition(b"Credential=")
        return rest.partition(b",")[0].strip()
    _, _, query = target.partition(b"?")
    return dict(query_pairs(query)).get(_QUERY[1], b"")


def _single_values(pairs: list[Pair], names: Sequence[bytes], why: str) -> list[bytes]:
    """Return the values of ``names``, which must occur once and not be empty; ``why`` has a ``{}`` for a name."""
    values = []
    for name in names:
        matches = [value for sent_name, value in pairs if sent_name == name]
        if len(matches) != 1 or not matches[0]:
            raise _incomplete(why.format(name.decode()))
        values += matches
    return values


def _split(target: bytes) -> tuple[bytes, list[Pair]]:
    """Return the path and the parameters of ``target``; a fragment is refused, as no target has one (RFC 9112, 3.2).

    Dot segments after a ``#`` would remove the part before it, which names the queue, from the signed path.
    """
    if b"#" in target:
        raise _mismatch("The target of a signed request must not have a fragment (#...).")
    path, _, query = target.partition(b"?")
    return path, query_pairs(query)


def _start(method: bytes, path: bytes, query: list[Pair]) -> bytes:
    return b"%b\n%b\n%b\n" % (method, canonical_path(path), canonical_query(query))


def _check_key(key: AccessKey, token: bytes | None, now_s: float) -> None:
    """Raise ``SqsError`` for an expired key or a wrong session token."""
    if key.session_token is None:
        if token is not None:
            raise _unknown_key()
    elif token is None or not compare_digest(token, key.session_token):
        raise _unknown_key()
    if key.expires_at_s is not None and now_s >= key.expires_at_s:
        raise SqsError(errors.EXPIRED_TOKEN, "The security token included in the request is expired.")


def _out_of_window(date: bytes, date_s: int, now_s: float) -> SqsError:
    is_early = date_s > now_s
    state, where, sign = ("not yet current", "still later", "+") if is_early else ("expired", "now earlier", "-")
    bound = _basic_date(now_s + SIGNATURE_SKEW_S if is_early else now_s - SIGNATURE_SKEW_S)
    return _mismatch(f"Signature {state}: {_text(date)} is {where} than {bound} ({_basic_date(now_s)} {sign} 15 min.)")


def _from_http_date(date: bytes | None) -> bytes:
    if date is None:
        raise _incomplete("Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header.")
    try:
        return _basic_date(parse_http_date(date).timestamp()).encode()
    except (ValueError, OverflowError):
        raise _incomplete("The Date header is not a date; send X-Amz-Date, like 20260131T235959Z.") from None


def _day_s(day: bytes) -> int:
    try:
        if len(day) != _DAY_CHARACTERS or not day.isdigit():
            raise ValueError
        return int(datetime(int(day[:4]), int(day[4:6]), int(day[6:]), tzinfo=UTC).timestamp())
    except ValueError:
        raise _incomplete("The date in the Credential scope must be a day, like 20260131.") from None


def _basic_date(at_s: float) -> str:
    return datetime.fromtimestamp(int(at_s), tz=UTC).strftime("%Y%m%dT%H%M%SZ")


def _text(value: bytes) -> str:
    return truncated(value.decode("ascii", "replace"))


def _incomplete(message: str) -> SqsError:
    return SqsError(errors.INCOMPLETE_SIGNATURE, message)


def _unknown_key() -> SqsError:
    return SqsError(errors.INVALID_CLIENT_TOKEN_ID, "The security token included in the request is invalid.")


def _mismatch(
    message: str = "The request signature we calculated does not match the signature you provided. "
    "Check your AWS Secret Access Key and signing method. Consult the service documentation for details.",
) -> SqsError:
    return SqsError(errors.SIGNATURE_DOES_NOT_MATCH, message)
