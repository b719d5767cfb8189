"""The table of routes, by method, path and further conditions, and the codec.

A new route is a row. Rows with the same method and path are tried in order; the last one needs no condition.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from veilmq.core.errors import VeilmqError
from veilmq.wire.exchange import Plan, Reply, RequestContext, md5
from veilmq.wire.smq import errors, messages, queues, topics
from veilmq.wire.smq import request as smq
from veilmq.wire.smq.errors import SmqError
from veilmq.wire.smq.request import SmqRequest, document, elements, new_request_id
from veilmq.wire.sqs.errors import SqsError


def check_content_md5(headers: Mapping[bytes, bytes], body: bytes) -> None:
    """Raise ``SmqError`` (InvalidDegist) if ``Content-MD5`` is present and does not match ``body``."""
    sent = headers.get(b"content-md5")
    if not sent:
        return
    digest = md5(body, usedforsecurity=False)
    if sent != b64encode(digest.hexdigest().encode()) and sent != b64encode(digest.digest()):
        raise SmqError(errors.INVALID_DIGEST)


When = Callable[[SmqRequest], bool]
"""The condition of a route, for requests with its method and path."""


class Route(NamedTuple):
    """One route; in ``path`` a name is ``*``. ``plan`` raises ``SmqError``.

    ``permission`` is the SQS action to check in the policy of the queue, if any.
    """

    name: str
    method: bytes
    path: str
    plan: Callable[[SmqRequest, RequestContext], Plan]
    permission: str = ""
    when: When | None = None

    @property
    def label(self) -> str:
        return f"smq.{self.name}"


def is_true(parameter: str) -> When:
    """Return the condition that a ``parameter`` (lower-case) is true."""
    return lambda request: request.query.get(parameter, "").lower() == "true"


def is_given(parameter: str) -> When:
    """Return the condition that a ``parameter`` (lower-case) is present."""
    return lambda request: parameter in request.query


_GET, _PUT, _POST, _DELETE = b"GET", b"PUT", b"POST", b"DELETE"
_QUEUE, _MESSAGES = "queues/*", "queues/*/messages"
_TOPIC, _PUBLISHED = "topics/*", "topics/*/messages"
_SUBSCRIPTIONS, _SUBSCRIPTION = "topics/*/subscriptions", "topics/*/subscriptions/*"
_override = is_true("metaoverride")

# fmt: off
_ROWS = (
    Route("GetAccountAttributes", _GET, "", queues.get_account_attributes, when=is_true("accountmeta")),
    Route("SetAccountAttributes", _PUT, "", queues.set_account_attributes, when=is_true("accountmeta")),
    Route("OpenService", _POST, "commonbuy/*", queues.open_service, when=lambda it: it.path[1] == "openservice"),
    Route("ListQueue", _GET, "queues", queues.list_page),
    Route("SetQueueAttributes", _PUT, _QUEUE, queues.set_attributes, "SetQueueAttributes", _override),
    Route("CreateQueue", _PUT, _QUEUE, queues.create, "CreateQueue"),
    Route("GetQueueAttributes", _GET, _QUEUE, queues.get_attributes, "GetQueueAttributes"),
    Route("DeleteQueue", _DELETE, _QUEUE, queues.delete, "DeleteQueue"),
    Route("BatchSendMessage", _POST, _MESSAGES, messages.send_batch, "SendMessage",
          lambda it: it.root == "Messages"),
    Route("SendMessage", _POST, _MESSAGES, messages.send, "SendMessage"),
    Route("BatchPeekMessage", _GET, _MESSAGES, partial(messages.peek, several=True), "ReceiveMessage",
          lambda it: is_true("peekonly")(it) and is_given("numofmessages")(it)),
    Route("PeekMessage", _GET, _MESSAGES, messages.peek, "ReceiveMessage", is_true("peekonly")),
    Route("BatchReceiveMessage", _GET, _MESSAGES, partial(messages.receive, several=True), "ReceiveMessage",
          is_given("numofmessages")),
    Route("ReceiveMessage", _GET, _MESSAGES, messages.receive, "ReceiveMessage"),
    Route("DeleteMessage", _DELETE, _MESSAGES, messages.delete, "DeleteMessage", is_given(messages.RECEIPT)),
    Route("BatchDeleteMessage", _DELETE, _MESSAGES, messages.delete_batch, "DeleteMessage"),
    Route("ChangeMessageVisibility", _PUT, _MESSAGES, messages.change_visibility, "ChangeMessageVisibility"),
    Route("ListTopic", _GET, "topics", topics.list_page),
    Route("SetTopicAttributes", _PUT, _TOPIC, topics.set_attributes, when=_override),
    Route("CreateTopic", _PUT, _TOPIC, topics.create),
    Route("GetTopicAttributes", _GET, _TOPIC, topics.get_attributes),
    Route("DeleteTopic", _DELETE, _TOPIC, topics.delete),
    Route("PublishMessage", _POST, _PUBLISHED, topics.publish),
    Route("ListSubscriptionByTopic", _GET, _SUBSCRIPTIONS, topics.list_subscription_by_topic),
    Route("SetSubscriptionAttributes", _PUT, _SUBSCRIPTION, topics.set_subscription_attributes, when=_override),
    Route("Subscribe", _PUT, _SUBSCRIPTION, topics.subscribe),
    Route("GetSubscriptionAttributes", _GET, _SUBSCRIPTION, topics.get_subscription_attributes),
    Route("Unsubscribe", _DELETE, _SUBSCRIPTION, topics.unsubscribe),
)
# fmt: on

ROUTES: dict[bytes, Route] = {row.label.encode(): row for row in _ROWS}
"""Routes by label."""

_BY_PATH: dict[tuple[bytes, str], list[tuple[bytes, Route]]] = {}
for _action, _row in ROUTES.items():
    _BY_PATH.setdefault((_row.method, _row.path), []).append((_action, _row))


def route_of(request: SmqRequest) -> bytes:
    """Return the key of the route of ``request`` in ``ROUTES``, empty if there is none."""
    for action, row in _BY_PATH.get((request.method, request.shape), ()):
        if row.when is None or row.when(request):
            return action
    return b""


_XML = frozenset({b"text/xml", b"application/xml"})


def _reply(respond: Callable[[Any], Reply], base_url: str, result: Any) -> Reply:
    try:
        return respond(result)
    except SmqError as error:
        return encode_error(error, base_url)


def decode(action: bytes, request: SmqRequest, context: RequestContext) -> Plan:
    """Return the plan of ``request`` for the route ``action``; ``Plan.respond`` returns a ``Reply``.

    Raises only ``SmqError``.
    """
    if request.error is not None:
        raise request.error
    if request.headers.get(smq.VERSION_HEADER, smq.VERSION) != smq.VERSION:
        raise SmqError(errors.INVALID_VERSION_HEADER)
    kind = request.headers.get(b"content-type")
    if request.body and kind is not None and kind.partition(b";")[0].strip().lower() not in _XML:
        raise SmqError(errors.INVALID_CONTENT_TYPE)
    check_content_md5(request.headers, request.body)
    route = ROUTES.get(action)
    if route is None:
        raise SmqError(errors.INVALID_REQUEST_URL)
    plan = route.plan(request, context)
    return Plan(plan.command, partial(_reply, plan.respond, context.base_url), plan.wait_s)


def encode_error(error: SmqError | SqsError | VeilmqError, base_url: str) -> Reply:
    """Return an error reply for a request at ``base_url``; ``SqsError`` is raised by the shared server code."""
    if isinstance(error, VeilmqError):
        error = errors.from_core(error)
    if isinstance(error, SqsError):
        code = errors.SQS_ERRORS.get(error.code) or errors.Code(error.code.query, error.code.status, "")
        error = SmqError(code, "" if code is errors.ACCESS_DENIED else error.message)
    identifier = new_request_id()
    content = {"Code": error.code.name, "Message": error.message, "RequestId": identifier, "HostId": base_url}
    body = document("Error", elements(content))
    return smq.reply(error.code.status, body, code=error.code.name, identifier=identifier)


def encode_refusal(status: int, text: str, base_url: str) -> Reply:
    """Return the reply for a request that was refused with an HTTP status before decoding."""
    return encode_error(
        SmqError(replace(errors.STATUS_ERRORS.get(status, errors.INVALID_REQUEST_URL), status=status), text), base_url
    )
