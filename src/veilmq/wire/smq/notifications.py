"""What subscriptions get of a message: a document about it in XML or JSON, or its body alone (reference, section 9).

A document is stored as it is delivered, so a queue's reader and a receiver of pushes see the same. Its frame does not
count towards the size of the message, which its sender knows nothing of.
"""

from collections.abc import Callable

import msgspec

from veilmq.core import properties
from veilmq.core.commands import NewMessage
from veilmq.core.properties import Attribute, Properties
from veilmq.core.topics import Notification, NotificationFormat
from veilmq.wire.smq.bodies import body_md5
from veilmq.wire.smq.xml_writing import NAMESPACE, escaped

TAG = "MessageTag"
"""The name of a message's tag in documents, and in what a subscription that is pushed keeps beside the body."""

Content = dict[str, str]
"""The members of a document, in order."""


class Published(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message as it was published; ``carried`` are its properties for queues, ``size_bytes`` counts both."""

    body: str
    tag: str
    group: str | None
    carried: bytes
    size_bytes: int


def make(published: Published, notification: Notification) -> NewMessage:
    """Return what the queue of a subscription is to store; one that is pushed keeps the tag instead of properties."""
    subscription = notification.subscription
    carried = published.carried
    if subscription.push_url:
        told = {TAG: Attribute("String", published.tag)} if published.tag else {}
        carried = properties.encode(Properties(system=told))
    return NewMessage(
        body=_WRITERS[subscription.format](published, notification),
        size_bytes=published.size_bytes,
        properties=carried,
        group=None if subscription.push_url else published.group,
    )


def _content(published: Published, notification: Notification) -> Content:
    subscription = notification.subscription
    owner, _, name = subscription.topic.partition("/")
    told = {
        "TopicOwner": owner,
        "TopicName": name,
        "Subscriber": owner,
        "SubscriptionName": subscription.name,
        "MessageId": notification.id.hex().upper(),
        "Message": published.body,
        "MessageMD5": body_md5(published.body),
        TAG: published.tag,
        "PublishTime": str(notification.published_at_ms),
    }
    return {name: text for name, text in told.items() if text}


def _as_xml(published: Published, notification: Notification) -> str:
    told = _content(published, notification)
    inner = "".join(f"<{name}>{escaped(text)}</{name}>" for name, text in told.items())  # as it is pushed: on one line
    return f'<?xml version="1.0"?>\n<Notification xmlns="{NAMESPACE}">{inner}</Notification>'


def _as_json(published: Published, notification: Notification) -> str:
    return msgspec.json.encode(_content(published, notification)).decode()


def _simplified(published: Published, notification: Notification) -> str:
    return published.body


_WRITERS: dict[NotificationFormat, Callable[[Published, Notification], str]] = {
    NotificationFormat.XML: _as_xml,
    NotificationFormat.JSON: _as_json,
    NotificationFormat.SIMPLIFIED: _simplified,
}
