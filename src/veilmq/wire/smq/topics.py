"""Topics, their subscriptions, and the notifications that subscriptions get (reference, section 9)."""

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from veilmq.core import limits, topics
from veilmq.core.commands import ReceivedMessage
from veilmq.core.errors import EndpointRefused, SubscriptionNotFound, TopicNotFound
from veilmq.core.messages import Attribute, NewMessage, Properties, decode_properties, encode_properties
from veilmq.core.topics import (
    Notification,
    NotificationFormat,
    PublishedMessage,
    PublishToTopic,
    PushUrl,
    RetryStrategy,
    Subscription,
    SubscriptionPage,
    SubscriptionView,
    TopicPage,
    TopicView,
    read_push_url,
)
from veilmq.wire.exchange import Plan, Reply, RequestContext
from veilmq.wire.smq import errors
from veilmq.wire.smq import request as smq
from veilmq.wire.smq.errors import SmqError, invalid_argument
from veilmq.wire.smq.messages import body_md5, message_properties, missing_body, read_group
from veilmq.wire.smq.queues import read_settings
from veilmq.wire.smq.request import SmqRequest, body_of, checked_name, element, texts, unwrap
from veilmq.wire.sqs.members import GROUP, escaped

TOPIC_NAME = smq.NameRule(
    re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*"),
    limits.SMQ_TOPIC_NAME_CHARACTERS_MAX,
    errors.TOPIC_NAME_LENGTH_ERROR,
    errors.TOPIC_NAME_INVALID,
)
SUBSCRIPTION_NAME = smq.NameRule(
    TOPIC_NAME.pattern,
    limits.SMQ_SUBSCRIPTION_NAME_CHARACTERS_MAX,
    errors.SUBSCRIPTION_NAME_LENGTH_ERROR,
    errors.SUBSCRIPTION_NAME_INVALID,
)


topic_of = partial(smq.queue_of, rule=TOPIC_NAME)
"""Return the full name of the topic in the path; raises ``SmqError`` for an invalid name."""


def subscription_of(request: SmqRequest) -> str:
    """Return the name of the subscription in the path; raises ``SmqError`` for an invalid name."""
    return checked_name(request.path[3], SUBSCRIPTION_NAME)


def plain_name(full: str) -> str:
    return full.partition("/")[2]


def topic_url(topic: str, context: RequestContext) -> str:
    """Return the URL of a topic at the address that the caller uses."""
    return f"{context.base_url}/topics/{plain_name(topic)}"


def subscription_url(topic: str, name: str, context: RequestContext) -> str:
    """Return the URL of a subscription at the address that the caller uses."""
    return f"{topic_url(topic, context)}/subscriptions/{name}"


# Endpoints of subscriptions: a queue of the same account, or a URL for pushes (reference, section 9). URLs are only
# parsed here; the server decides whether pushes to them are allowed.

QUEUE_ENDPOINT = re.compile(r"acs:mns:(?P<where>[A-Za-z0-9._-]{0,64}:.*?):/?queues/(?P<name>.*)", re.DOTALL)
_ACCOUNT = re.compile(r"[0-9]{12,}")
_PUSHED = re.compile(r"https?:", re.IGNORECASE)
_MAIL_OR_SMS = re.compile(r"mail(?:to)?:|sms:", re.IGNORECASE)


def read_endpoint(text: str, context: RequestContext) -> tuple[str, str]:
    """Return (full name of a queue, "") or ("", URL) for an endpoint.

    Raises ``SmqError``: EndpointInvalid, or AccessDenied for a queue of another account.
    """
    queue = QUEUE_ENDPOINT.fullmatch(text)
    if queue is not None:
        account = queue["where"].partition(":")[2]
        if account != context.account and (_ACCOUNT.fullmatch(account) or queue["where"] not in _of_address(context)):
            raise SmqError(errors.ACCESS_DENIED)
        return f"{context.account}/{checked_name(queue['name'])}", ""
    if not _PUSHED.match(text):
        why = " Subscriptions by mail and SMS are not supported." if _MAIL_OR_SMS.match(text) else ""
        raise SmqError(
            errors.ENDPOINT_INVALID,
            f"{errors.ENDPOINT_INVALID.text}{why} Subscribe a queue (acs:mns:<region>:<account>:queues/<queue>) or a "
            "URL (http://… or https://…).",
        )
    try:
        read_push_url(text)
    except EndpointRefused as error:
        raise errors.from_core(error) from None
    return "", text


def _of_address(context: RequestContext) -> set[str]:
    """Return each ``region:account`` that SDKs derive from the address of this server.

    They expect ``<account>.mns.<region>[-internal].aliyuncs.com``; from ``127.0.0.1`` they derive the account 127 and
    the region 0. Some omit the port, some do not.
    """
    authority = context.base_url.partition("//")[2]
    return {
        f"{labels[2].partition('-internal')[0] if len(labels) > 2 else ''}:{labels[0]}"
        for labels in (authority.split("."), authority.partition(":")[0].split("."))
    }


# CreateTopic, Set/GetTopicAttributes, DeleteTopic and ListTopic (reference, section 9).

_SIZE = "MaximumMessageSize"
_LOGGED = "LoggingEnabled"
_settings = partial(read_settings, names=(_SIZE, _LOGGED))


def create(request: SmqRequest, context: RequestContext) -> Plan:
    """CreateTopic: creates the topic (201), or returns it if it has the given attributes (204)."""
    topic = topic_of(request, context)
    supplied = _settings(smq.optional_body_of(request, "Topic"), context)
    return Plan(topics.CreateTopic(topic=topic, settings=supplied), smq.creation_response(topic_url(topic, context)))


def set_attributes(request: SmqRequest, context: RequestContext) -> Plan:
    """SetTopicAttributes: changes the given attributes."""
    changes = _settings(body_of(request, "Topic"), context)
    return Plan(topics.SetTopic(topic=topic_of(request, context), settings=changes), smq.no_content)


def get_attributes(request: SmqRequest, context: RequestContext) -> Plan:
    return Plan(topics.ShowTopic(topic=topic_of(request, context)), smq.document_response("Topic", _topic_elements))


def delete(request: SmqRequest, context: RequestContext) -> Plan:
    """DeleteTopic: deletes a topic and its subscriptions; a missing topic is no error."""
    return Plan(topics.DeleteTopic(topic=topic_of(request, context)), smq.deletion_response(TopicNotFound))


def list_page(request: SmqRequest, context: RequestContext) -> Plan:
    """ListTopic: lists the URLs of topics, and with ``x-mns-with-meta`` their attributes."""
    page, detailed = smq.read_listing(request.headers)

    def entries(page: TopicPage) -> list[tuple[str, str, str]]:
        details = _topic_elements if detailed else lambda view: ""
        return [(plain_name(view.topic), topic_url(view.topic, context), details(view)) for view in page.topics]

    return Plan(topics.ListTopics(account=context.account, **page), smq.listing_response("Topic", entries))


def _topic_elements(view: TopicView) -> str:
    content = {
        "TopicName": plain_name(view.topic),
        "CreateTime": str(view.created_at_ms // limits.SECOND_MS),
        "LastModifyTime": str(view.modified_at_ms // limits.SECOND_MS),
        _SIZE: str(view.settings.message_bytes_max),
        "MessageRetentionPeriod": str(limits.SMQ_TOPIC_RETENTION_S),
        "MessageCount": str(view.messages),
        _LOGGED: str(view.settings.operations_logged),
    }
    return smq.elements(content)


# Subscribe, Set/GetSubscriptionAttributes, Unsubscribe and ListSubscriptionByTopic (reference, section 9).

Value = TypeVar("Value")

_STRATEGY = "NotifyStrategy"
_FORMAT = "NotifyContentFormat"
_FILTER = "FilterTag"
STRATEGIES = {"BACKOFF_RETRY": RetryStrategy.BACKOFF, "EXPONENTIAL_DECAY_RETRY": RetryStrategy.EXPONENTIAL_DECAY}
FORMATS = {"XML": NotificationFormat.XML, "JSON": NotificationFormat.JSON, "SIMPLIFIED": NotificationFormat.SIMPLIFIED}
_NAMES = {value: name for names in (STRATEGIES, FORMATS) for name, value in names.items()}


def subscribe(request: SmqRequest, context: RequestContext) -> Plan:
    """Subscribe: creates the subscription (201), or returns it if an equal one exists (204)."""
    topic, name = topic_of(request, context), subscription_of(request)
    members = texts(body_of(request, "Subscription"))
    text = members.get("Endpoint", "").strip()
    queue, push_url = read_endpoint(text, context)
    subscription = Subscription(
        topic=topic,
        name=name,
        endpoint=text,
        queue=queue,
        push_url=push_url,
        filter_tag=read_tag(_FILTER, members),
        strategy=_one_of(_STRATEGY, members, STRATEGIES) or RetryStrategy.BACKOFF,
        format=_one_of(_FORMAT, members, FORMATS) or NotificationFormat.XML,
    )
    respond = smq.creation_response(subscription_url(topic, name, context))
    return Plan(topics.Subscribe(subscription=subscription), respond)


def set_subscription_attributes(request: SmqRequest, context: RequestContext) -> Plan:
    """SetSubscriptionAttributes: changes the retry strategy, if given."""
    topic, name = topic_of(request, context), subscription_of(request)
    strategy = _one_of(_STRATEGY, texts(body_of(request, "Subscription")), STRATEGIES)
    if strategy is None:
        return Plan(topics.ShowSubscription(topic=topic, name=name), smq.no_content)
    return Plan(topics.SetSubscription(topic=topic, name=name, strategy=strategy), smq.no_content)


def get_subscription_attributes(request: SmqRequest, context: RequestContext) -> Plan:
    """GetSubscriptionAttributes: returns all attributes."""
    command = topics.ShowSubscription(topic=topic_of(request, context), name=subscription_of(request))
    return Plan(command, smq.document_response("Subscription", _subscription_elements))


def unsubscribe(request: SmqRequest, context: RequestContext) -> Plan:
    """Unsubscribe: deletes a subscription; a missing one is no error, a missing topic is."""
    command = topics.Unsubscribe(topic=topic_of(request, context), name=subscription_of(request))
    return Plan(command, smq.deletion_response(SubscriptionNotFound))


def list_subscription_by_topic(request: SmqRequest, context: RequestContext) -> Plan:
    """ListSubscriptionByTopic: lists the URLs of subscriptions, and with ``x-mns-with-meta`` their attributes."""
    topic, (page, detailed) = topic_of(request, context), smq.read_listing(request.headers)

    def entries(page: SubscriptionPage) -> list[tuple[str, str, str]]:
        views = [(each.subscription.name, each) for each in page.subscriptions]
        elements = _subscription_elements if detailed else lambda _: ""
        return [(name, subscription_url(topic, name, context), elements(view)) for name, view in views]

    return Plan(topics.ListSubscriptions(topic=topic, **page), smq.listing_response("Subscription", entries))


def read_tag(name: str, members: Mapping[str, str]) -> str:
    """Return the tag in the member ``name``, empty if there is none; raises ``SmqError`` (InvalidArgument)."""
    tag = members.get(name, "")
    if len(tag) > limits.SMQ_TAG_CHARACTERS_MAX or not tag.isprintable():
        raise invalid_argument(f"{name}, which has {limits.SMQ_TAG_CHARACTERS_MAX} printable characters at the most")
    return tag


def _one_of(name: str, members: Mapping[str, str], values: Mapping[str, Value]) -> Value | None:
    text = members.get(name, "").strip()
    if not text:
        return None
    if text not in values:
        raise invalid_argument(f"{name}, which is {' or '.join(values)}")
    return values[text]


def _subscription_names(subscription: Subscription) -> dict[str, str]:
    owner, _, name = subscription.topic.partition("/")
    return {
        "TopicOwner": owner,
        "TopicName": name,
        "Subscriber": owner,
        "SubscriptionName": subscription.name,
    }


def _subscription_elements(view: SubscriptionView) -> str:
    subscription = view.subscription
    content = {
        **_subscription_names(subscription),
        "Endpoint": subscription.endpoint,
        _FILTER: subscription.filter_tag,
        _STRATEGY: _NAMES[subscription.strategy],
        _FORMAT: _NAMES[subscription.format],
        "CreateTime": str(view.created_at_ms // limits.SECOND_MS),
        "LastModifyTime": str(view.modified_at_ms // limits.SECOND_MS),
    }
    return smq.elements({name: text for name, text in content.items() if text})


# Notifications: a document in XML or JSON, or only the body (reference, section 9). The document is stored as it is
# delivered, so consumers of queues and receivers of pushes get the same. It does not count towards the size of the
# message, because publishers cannot see it.

TAG = "MessageTag"
"""The name of the tag in documents, and in the properties of messages to push."""
_URL = "Endpoint"


def _notification_body(body: str, tag: str, notification: Notification) -> str:
    subscription = notification.subscription
    if subscription.format is NotificationFormat.SIMPLIFIED:
        return body
    content = {
        **_subscription_names(subscription),
        "MessageId": notification.id.hex().upper(),
        "Message": body,
        "MessageMD5": body_md5(body),
        TAG: tag,
        "PublishTime": str(notification.published_at_ms),
    }
    content = {name: text for name, text in content.items() if text}
    if subscription.format is NotificationFormat.JSON:
        return msgspec.json.encode(content).decode()
    inner = "".join(f"<{name}>{escaped(text)}</{name}>" for name, text in content.items())
    return f'<?xml version="1.0"?>\n<Notification xmlns="{smq.NAMESPACE}">{inner}</Notification>'


def publish(request: SmqRequest, context: RequestContext) -> Plan:
    """PublishMessage: publishes a message; ``MessageAttributes``, for mail and SMS, are ignored."""
    message = body_of(request, "Message")
    members = texts(message)
    body = members.get("MessageBody")
    if not body:
        raise missing_body(message)
    group, tag = read_group(members.get(GROUP)), read_tag(TAG, members)
    properties, properties_bytes = message_properties(message, group, context.caller)
    size_bytes = len(body.encode()) + properties_bytes

    def make(notification: Notification) -> NewMessage:
        """Return the message for one subscription; a message to push has its tag and target instead of properties."""
        url = notification.subscription.push_url
        pushed = {TAG: tag, _URL: url, _FORMAT: _NAMES[notification.subscription.format]} if url else {}
        system = {name: Attribute("String", text) for name, text in pushed.items() if text}
        return NewMessage(
            body=_notification_body(body, tag, notification),
            size_bytes=size_bytes,
            properties=encode_properties(Properties(system=system)) if url else properties,
            group=None if url else group,
        )

    def respond(result: Any) -> Reply:
        done: PublishedMessage = unwrap(result)
        content = element("MessageId", done.id.hex().upper()) + element("MessageBodyMD5", body_md5(body))
        return smq.reply(201, smq.document("Message", content))

    command = PublishToTopic(topic=topic_of(request, context), size_bytes=size_bytes, make=make, tag=tag)
    return Plan(command, respond)


# Requests that push a message to a URL (reference, section 9). The signature covers the same as that of a client's
# request (section 3.1), so receivers written for the service can verify it; only the certificate differs. If the body
# is not a document, its fields are in headers, and the digest is not base64. Java's sample finds only ``Content-md5``.

Sign = Callable[[bytes], bytes]
"""Sign a text (RSASSA-PKCS1-v1_5 with SHA-1)."""

_CONTENT_TYPES = {
    NotificationFormat.XML: b"text/xml;charset=utf-8",
    NotificationFormat.JSON: b"application/json;charset=utf-8",
    NotificationFormat.SIMPLIFIED: b"text/plain;charset=utf-8",
}


def pushed_to(subscription: Subscription, message: ReceivedMessage) -> Subscription:
    """Return the subscription to which ``message`` was published; ``subscription`` may be another of its name."""
    system = {name: value.text for name, value in decode_properties(message.properties).system.items()}
    url, kind = system.get(_URL), system.get(_FORMAT)
    return replace(subscription, push_url=url, format=FORMATS[kind]) if url and kind else subscription


def push_request(
    subscription: Subscription, message: ReceivedMessage, url: PushUrl, *, date: str, certificate_url: str, sign: Sign
) -> bytes:
    """Return the bytes of a push request; ``date`` is the HTTP date of the attempt."""
    body, digest = message.body.encode(), body_md5(message.body).encode()
    kind, path = _CONTENT_TYPES[subscription.format], url.path.encode()
    named = {
        b"x-mns-request-id": smq.new_request_id().encode(),
        b"x-mns-version": smq.VERSION,
        b"x-mns-signing-cert-url": b64encode(certificate_url.encode()),
    }
    if subscription.format is NotificationFormat.SIMPLIFIED:
        system = decode_properties(message.properties).system
        content = {
            **_subscription_names(subscription),
            "MessageId": message.id.hex().upper(),
            TAG: system[TAG].text if TAG in system else "",
            "PublishTime": str(message.sent_at_ms),
        }
        for name, value in sorted(content.items()):
            if value:
                named[b"x-mns" + re.sub("[A-Z]", r"-\g<0>", name).lower().encode()] = value.encode()
    else:
        digest = b64encode(digest.lower())
    signed = b"".join(b"%b:%b\n" % pair for pair in sorted(named.items()))
    text = b"\n".join((b"POST", digest, kind, date.encode(), signed + path))
    headers = {
        b"Host": url.authority.encode(),
        b"User-Agent": b"veilmq",
        b"Accept": b"*/*",
        b"Content-Type": kind,
        b"Content-Length": str(len(body)).encode(),
        b"Content-md5": digest,
        b"Date": date.encode(),
        **named,
        b"Authorization": b64encode(sign(text)),
        b"Connection": b"close",
    }
    lines = b"".join(b"%b: %b\r\n" % pair for pair in headers.items())
    return b"POST %b HTTP/1.1\r\n%b\r\n%b" % (path, lines, body)
