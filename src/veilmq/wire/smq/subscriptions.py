"""Subscribe, Set/GetSubscriptionAttributes, Unsubscribe and ListSubscriptionByTopic (reference, section 9)."""

from collections.abc import Mapping
from typing import Any, TypeVar

from veilmq.core import topics
from veilmq.core.limits import SECOND_MS, SMQ_TAG_CHARACTERS_MAX
from veilmq.core.topic_errors import SubscriptionNotFound
from veilmq.core.topics import NotificationFormat, RetryStrategy, Subscription, SubscriptionPage, SubscriptionView
from veilmq.wire.smq.endpoints import read_endpoint
from veilmq.wire.smq.errors import invalid_argument
from veilmq.wire.smq.listing import next_marker, read_listing
from veilmq.wire.smq.members import body_of, texts
from veilmq.wire.smq.plan import NO_CONTENT, Answer, Plan, answered, nothing
from veilmq.wire.smq.request import SmqRequest
from veilmq.wire.smq.topic_names import own_name, subscription_of, subscription_url, topic_of
from veilmq.wire.smq.xml_writing import container, document, element, optional
from veilmq.wire.sqs.context import RequestContext

Value = TypeVar("Value")

_STRATEGY = "NotifyStrategy"
_FORMAT = "NotifyContentFormat"
_FILTER = "FilterTag"

STRATEGIES = {
    "BACKOFF_RETRY": RetryStrategy.BACKOFF,
    "EXPONENTIAL_DECAY_RETRY": RetryStrategy.EXPONENTIAL_DECAY,
}
"""The names of the strategies."""

FORMATS = {
    "XML": NotificationFormat.XML,
    "JSON": NotificationFormat.JSON,
    "SIMPLIFIED": NotificationFormat.SIMPLIFIED,
}
"""The names of the formats."""

_STRATEGY_NAMES = {value: name for name, value in STRATEGIES.items()}
_FORMAT_NAMES = {value: name for name, value in FORMATS.items()}


def subscribe(request: SmqRequest, context: RequestContext) -> Plan:
    """Subscribe: makes the subscription (201), or finds one that is the same in all (204)."""
    topic, name = topic_of(request, context), subscription_of(request)
    given = texts(body_of(request, "Subscription"))
    text = given.get("Endpoint", "").strip()
    endpoint = read_endpoint(text, context)
    subscription = Subscription(
        topic=topic,
        name=name,
        endpoint=text,
        queue=endpoint.queue,
        push_url=endpoint.push_url,
        filter_tag=read_tag(_FILTER, given),
        strategy=_one_of(_STRATEGY, given, STRATEGIES) or RetryStrategy.BACKOFF,
        format=_one_of(_FORMAT, given, FORMATS) or NotificationFormat.XML,
    )

    def respond(result: Any) -> Answer:
        view: SubscriptionView = answered(result)
        return Answer(201 if view.is_new else 204, location=subscription_url(topic, name, context))

    return Plan(topics.Subscribe(subscription=subscription), respond)


def set_subscription_attributes(request: SmqRequest, context: RequestContext) -> Plan:
    """SetSubscriptionAttributes: the strategy; a body that does not name one changes nothing."""
    topic, name = topic_of(request, context), subscription_of(request)
    strategy = _one_of(_STRATEGY, texts(body_of(request, "Subscription")), STRATEGIES)
    if strategy is None:
        return Plan(topics.ShowSubscription(topic=topic, name=name), nothing)
    return Plan(topics.SetSubscription(topic=topic, name=name, strategy=strategy), nothing)


def get_subscription_attributes(request: SmqRequest, context: RequestContext) -> Plan:
    """GetSubscriptionAttributes: all of them."""

    def respond(result: Any) -> Answer:
        return Answer(200, document("Subscription", _described(answered(result))))

    command = topics.ShowSubscription(topic=topic_of(request, context), name=subscription_of(request))
    return Plan(command, respond)


def unsubscribe(request: SmqRequest, context: RequestContext) -> Plan:
    """Unsubscribe: a subscription that is not there is as good as ended, where there is the topic."""

    def respond(result: Any) -> Answer:
        return NO_CONTENT if isinstance(result, SubscriptionNotFound) else nothing(result)

    command = topics.Unsubscribe(topic=topic_of(request, context), name=subscription_of(request))
    return Plan(command, respond)


def list_subscription_by_topic(request: SmqRequest, context: RequestContext) -> Plan:
    """ListSubscriptionByTopic: their URLs."""
    topic, asked = topic_of(request, context), read_listing(request.headers)

    def respond(result: Any) -> Answer:
        page: SubscriptionPage = answered(result)
        names = [view.subscription.name for view in page.subscriptions]
        listed = "".join(
            container("Subscription", element("SubscriptionURL", subscription_url(topic, name, context)))
            for name in names
        )
        return Answer(200, document("Subscriptions", listed + next_marker(names[-1] if names else "", more=page.more)))

    command = topics.ListSubscriptions(topic=topic, prefix=asked.prefix, after=asked.after, count=asked.count)
    return Plan(command, respond)


def read_tag(name: str, given: Mapping[str, str]) -> str:
    """Return the tag called ``name``, empty where there is none; raises ``SmqError`` (InvalidArgument)."""
    tag = given.get(name, "")
    if len(tag) > SMQ_TAG_CHARACTERS_MAX or not tag.isprintable():
        raise invalid_argument(f"{name}, which has {SMQ_TAG_CHARACTERS_MAX} printable characters at the most")
    return tag


def _one_of(name: str, given: Mapping[str, str], values: Mapping[str, Value]) -> Value | None:
    text = given.get(name, "").strip()
    if not text:
        return None
    if text not in values:
        raise invalid_argument(f"{name}, which is {' or '.join(values)}")
    return values[text]


def _described(view: SubscriptionView) -> str:
    subscription = view.subscription
    owner = subscription.topic.partition("/")[0]
    told = {
        "TopicOwner": owner,
        "TopicName": own_name(subscription.topic),
        "Subscriber": owner,
        "SubscriptionName": subscription.name,
        "Endpoint": subscription.endpoint,
        _FILTER: subscription.filter_tag,
        _STRATEGY: _STRATEGY_NAMES[subscription.strategy],
        _FORMAT: _FORMAT_NAMES[subscription.format],
        "CreateTime": str(view.created_at_ms // SECOND_MS),
        "LastModifyTime": str(view.modified_at_ms // SECOND_MS),
    }
    return "".join(optional(name, text) for name, text in told.items())
