"""The header Content-MD5 of a request, in both of its forms: base64 of the digest, or of its hexadecimal digits.

The second is what the XML SDKs send (reference, section 3.5).
"""

from base64 import b64encode
from collections.abc import Mapping
from hashlib import md5

from veilmq.wire.smq.errors import INVALID_DIGEST, SmqError


def check(headers: Mapping[bytes, bytes], body: bytes) -> None:
    """Raise ``SmqError`` (InvalidDegist) when the header is there and is not that of ``body``."""
    given = headers.get(b"content-md5")
    if not given:
        return
    digest = md5(body, usedforsecurity=False)
    if given != b64encode(digest.hexdigest().encode()) and given != b64encode(digest.digest()):
        raise SmqError(INVALID_DIGEST)
