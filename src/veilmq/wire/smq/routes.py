"""The one table of routes: method, path and what else tells them apart → what is made of the request.

A new route is a row. Rows that share method and path are tried in their order; the last one needs no condition.
"""

from collections.abc import Callable
from typing import NamedTuple

from veilmq.wire.smq import (
    account,
    publishing,
    queue_lists,
    queues,
    receipts,
    receives,
    sends,
    subscriptions,
    topics,
)
from veilmq.wire.smq.plan import Plan
from veilmq.wire.smq.request import SmqRequest
from veilmq.wire.sqs.context import RequestContext

When = Callable[[SmqRequest], bool]
"""Tells whether a request, of the method and path of a row, is the row's."""


class Route(NamedTuple):
    """One route; in ``path`` a name is ``*``. ``plan`` raises ``SmqError`` for what it cannot take.

    ``permission`` is the SQS action on which a queue's policy decides; empty where none does. ``when`` is ``None``
    where method and path say it all.
    """

    name: str
    method: bytes
    path: str
    plan: Callable[[SmqRequest, RequestContext], Plan]
    permission: str = ""
    when: When | None = None

    @property
    def label(self) -> str:
        """Return the name under which requests are counted."""
        return f"smq.{self.name}"


def says(parameter: str) -> When:
    """Return the condition that a ``parameter``, in lower case, is true."""
    return lambda request: request.query.get(parameter, "").lower() == "true"


def has(parameter: str) -> When:
    """Return the condition that there is a ``parameter``, in lower case, whatever it is."""
    return lambda request: parameter in request.query


def is_about(root: str) -> When:
    """Return the condition that ``root`` is the local name of the body's root."""
    return lambda request: request.root == root


def _peeks_several(request: SmqRequest) -> bool:
    return says("peekonly")(request) and has("numofmessages")(request)


_GET, _PUT, _POST, _DELETE = b"GET", b"PUT", b"POST", b"DELETE"
_ROOT = ""
_QUEUES = "queues"
_QUEUE = "queues/*"
_MESSAGES = "queues/*/messages"
_TOPICS = "topics"
_TOPIC = "topics/*"
_PUBLISHED = "topics/*/messages"
_SUBSCRIPTIONS = "topics/*/subscriptions"
_SUBSCRIPTION = "topics/*/subscriptions/*"

_ROWS = (
    Route("GetAccountAttributes", _GET, _ROOT, account.get_account_attributes, when=says("accountmeta")),
    Route("SetAccountAttributes", _PUT, _ROOT, account.set_account_attributes, when=says("accountmeta")),
    Route("OpenService", _POST, "commonbuy/*", account.open_service, when=lambda it: it.path[1] == "openservice"),
    Route("ListQueue", _GET, _QUEUES, queue_lists.list_queue),
    Route(
        "SetQueueAttributes",
        _PUT,
        _QUEUE,
        queues.set_queue_attributes,
        "SetQueueAttributes",
        says("metaoverride"),
    ),
    Route("CreateQueue", _PUT, _QUEUE, queues.create_queue, "CreateQueue"),
    Route("GetQueueAttributes", _GET, _QUEUE, queues.get_queue_attributes, "GetQueueAttributes"),
    Route("DeleteQueue", _DELETE, _QUEUE, queues.delete_queue, "DeleteQueue"),
    Route("BatchSendMessage", _POST, _MESSAGES, sends.batch_send_message, "SendMessage", is_about("Messages")),
    Route("SendMessage", _POST, _MESSAGES, sends.send_message, "SendMessage"),
    Route("BatchPeekMessage", _GET, _MESSAGES, receives.batch_peek_message, "ReceiveMessage", _peeks_several),
    Route("PeekMessage", _GET, _MESSAGES, receives.peek_message, "ReceiveMessage", says("peekonly")),
    Route(
        "BatchReceiveMessage", _GET, _MESSAGES, receives.batch_receive_message, "ReceiveMessage", has("numofmessages")
    ),
    Route("ReceiveMessage", _GET, _MESSAGES, receives.receive_message, "ReceiveMessage"),
    Route("DeleteMessage", _DELETE, _MESSAGES, receipts.delete_message, "DeleteMessage", has(receipts.RECEIPT)),
    Route("BatchDeleteMessage", _DELETE, _MESSAGES, receipts.batch_delete_message, "DeleteMessage"),
    Route(
        "ChangeMessageVisibility",
        _PUT,
        _MESSAGES,
        receipts.change_message_visibility,
        "ChangeMessageVisibility",
    ),
    Route("ListTopic", _GET, _TOPICS, topics.list_topic),
    Route("SetTopicAttributes", _PUT, _TOPIC, topics.set_topic_attributes, when=says("metaoverride")),
    Route("CreateTopic", _PUT, _TOPIC, topics.create_topic),
    Route("GetTopicAttributes", _GET, _TOPIC, topics.get_topic_attributes),
    Route("DeleteTopic", _DELETE, _TOPIC, topics.delete_topic),
    Route("PublishMessage", _POST, _PUBLISHED, publishing.publish_message),
    Route("ListSubscriptionByTopic", _GET, _SUBSCRIPTIONS, subscriptions.list_subscription_by_topic),
    Route(
        "SetSubscriptionAttributes",
        _PUT,
        _SUBSCRIPTION,
        subscriptions.set_subscription_attributes,
        when=says("metaoverride"),
    ),
    Route("Subscribe", _PUT, _SUBSCRIPTION, subscriptions.subscribe),
    Route("GetSubscriptionAttributes", _GET, _SUBSCRIPTION, subscriptions.get_subscription_attributes),
    Route("Unsubscribe", _DELETE, _SUBSCRIPTION, subscriptions.unsubscribe),
)

ROUTES: dict[bytes, Route] = {row.label.encode(): row for row in _ROWS}
"""Every route, by its label."""

_BY_PATH: dict[tuple[bytes, str], list[tuple[bytes, Route]]] = {}
for _action, _row in ROUTES.items():
    _BY_PATH.setdefault((_row.method, _row.path), []).append((_action, _row))


def route_of(request: SmqRequest) -> bytes:
    """Return under which key of ``ROUTES`` the route of ``request`` is; another one where there is none."""
    for action, row in _BY_PATH.get((request.method, request.shape), ()):
        if row.when is None or row.when(request):
            return action
    return b""
