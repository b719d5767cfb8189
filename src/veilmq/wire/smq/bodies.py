"""Bodies as they are on this wire: as they were given, or in base64 for queues that say so.

Most SDKs put every body into base64, which nobody tells the server; so bodies are opaque, and the other protocol sees
base64. A queue with ``smq_base64`` keeps them decoded: here they are decoded on their way in, and encoded on their way
out (reference, sections 6 and 11). The digest is always over the text on the wire, in upper case.
"""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from hashlib import md5

from msgspec.structs import replace

from veilmq.core.commands import NewMessage
from veilmq.core.errors import BodyUnreadable
from veilmq.wire.sqs.text import ILLEGAL


def body_md5(text: str) -> str:
    """Return the digest of a body as it is on the wire."""
    return md5(text.encode(), usedforsecurity=False).hexdigest().upper()


def wire_text(body: str, *, smq_base64: bool) -> str:
    """Return a body that is kept as it is on the wire."""
    return b64encode(body.encode()).decode() if smq_base64 else body


def decoded(message: NewMessage) -> NewMessage:
    """Return what to keep of ``message`` where the queue keeps bodies decoded; raises ``BodyUnreadable``."""
    try:
        data = b64decode(message.body, validate=True)
        body = data.decode()
    except (Base64Error, ValueError):
        raise BodyUnreadable from None
    if not body or ILLEGAL.search(body):
        raise BodyUnreadable
    wire_bytes = len(message.body.encode())
    return replace(message, body=body, size_bytes=message.size_bytes - wire_bytes + len(data))
