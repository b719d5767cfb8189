"""The request by which a message is pushed to a subscription's URL (reference, section 9).

Its signature covers what that of a client's request covers (section 3.1), so that receivers of the real service verify
it as they do; only the certificate is another one. A body without a document around it has its particulars in headers.
"""

from base64 import b64encode
from collections.abc import Callable
from hashlib import md5

from veilmq.core import properties
from veilmq.core.push_urls import PushUrl
from veilmq.core.results import ReceivedMessage
from veilmq.core.topics import NotificationFormat, Subscription
from veilmq.wire.smq import request_id
from veilmq.wire.smq.notifications import TAG
from veilmq.wire.smq.request import VERSION

Sign = Callable[[bytes], bytes]
"""Text → its signature (RSASSA-PKCS1-v1_5 with SHA-1)."""

_METHOD = b"POST"
_CONTENT_TYPES = {
    NotificationFormat.XML: b"text/xml;charset=utf-8",
    NotificationFormat.JSON: b"application/json;charset=utf-8",
    NotificationFormat.SIMPLIFIED: b"text/plain;charset=utf-8",
}


def push_request(
    subscription: Subscription,
    message: ReceivedMessage,
    url: PushUrl,
    *,
    date: str,
    certificate_url: str,
    sign: Sign,
) -> bytes:
    """Return the whole request; ``date`` is that of the attempt, as HTTP has it."""
    body = message.body.encode()
    digest = b64encode(md5(body, usedforsecurity=False).hexdigest().encode())
    kind, path = _CONTENT_TYPES[subscription.format], url.path.encode()
    named = {
        b"x-mns-request-id": request_id.new().encode(),
        b"x-mns-version": VERSION,
        b"x-mns-signing-cert-url": b64encode(certificate_url.encode()),
        **(_particulars(subscription, message) if subscription.format is NotificationFormat.SIMPLIFIED else {}),
    }
    signed = b"".join(b"%b:%b\n" % pair for pair in sorted(named.items()))
    text = b"\n".join((_METHOD, digest, kind, date.encode(), signed + path))
    headers = {
        b"Host": url.authority.encode(),
        b"User-Agent": b"veilmq",
        b"Accept": b"*/*",
        b"Content-Type": kind,
        b"Content-Length": str(len(body)).encode(),
        b"Content-MD5": digest,
        b"Date": date.encode(),
        **named,
        b"Authorization": b64encode(sign(text)),
        b"Connection": b"close",
    }
    lines = b"".join(b"%b: %b\r\n" % pair for pair in headers.items())
    return b"%b %b HTTP/1.1\r\n%b\r\n%b" % (_METHOD, path, lines, body)


def _particulars(subscription: Subscription, message: ReceivedMessage) -> dict[bytes, bytes]:
    owner, _, topic = subscription.topic.partition("/")
    tag = properties.decode(message.properties).system.get(TAG)
    told = {
        b"x-mns-message-id": message.id.hex().upper(),
        b"x-mns-message-tag": (tag.text or "") if tag is not None else "",
        b"x-mns-publish-time": str(message.sent_at_ms),
        b"x-mns-subscriber": owner,
        b"x-mns-subscription-name": subscription.name,
        b"x-mns-topic-name": topic,
        b"x-mns-topic-owner": owner,
    }
    return {name: text.encode() for name, text in told.items() if text}
