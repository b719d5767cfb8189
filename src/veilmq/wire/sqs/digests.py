"""The MD5 digests with which clients check that a message arrived whole.

MD5 of the body is over its UTF-8. MD5 of attributes is over each attribute in the order of its name: name, type and
value, each with its length before it in four bytes, big-endian, and one byte before the value that tells text (1)
from binary (2) (SQS Developer Guide, "Calculating the MD5 message digest for message attributes").
"""

from collections.abc import Mapping
from hashlib import md5

from veilmq.core.properties import Attribute

_TEXT = b"\x01"
_BINARY = b"\x02"


def body_md5(body: str) -> str:
    """Return the digest of a body, in hexadecimal."""
    return md5(body.encode(), usedforsecurity=False).hexdigest()


def attributes_md5(attributes: Mapping[str, Attribute]) -> str | None:
    """Return the digest of message attributes or message system attributes; ``None`` when there are none."""
    if not attributes:
        return None
    digest = md5(usedforsecurity=False)
    for name in sorted(attributes):
        attribute = attributes[name]
        digest.update(_measured(name.encode()) + _measured(attribute.type.encode()))
        if attribute.data is None:
            digest.update(_TEXT + _measured((attribute.text or "").encode()))
        else:
            digest.update(_BINARY + _measured(attribute.data))
    return digest.hexdigest()


def _measured(value: bytes) -> bytes:
    return len(value).to_bytes(4) + value
