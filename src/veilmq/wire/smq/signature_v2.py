"""Version 2 of SMQ's signature, the default of every SDK: HMAC-SHA1 over a few lines (reference, section 3.1).

The lines are method, Content-MD5, Content-Type, date, the ``x-mns-`` headers and the target of the request. SDKs differ
in how they write the target that they sign: as it is sent, decoded, or with its parameters sorted (section 3.3). So
where the target as it was sent does not fit, the other ways are tried, but only those that a reader would take for the
same request: else who can change a request on its way could choose between two readings of one signature.
"""

import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha1
from hmac import compare_digest
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from veilmq.wire.smq.errors import INVALID_AUTHORIZATION_HEADER, SmqError
from veilmq.wire.smq.signed_request import PREFIX, Headers, SignedRequest
from veilmq.wire.sqs.canonical import trimmed

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
        """Tell whether ``claim`` is of who has ``secret``."""
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
    return b"".join([b"%b:%b\n" % (name, trimmed(headers[name])) for name in names])


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
