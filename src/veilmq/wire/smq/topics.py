"""CreateTopic, Set/GetTopicAttributes, DeleteTopic and ListTopic (reference, section 9)."""

from typing import Any

from veilmq.core import topics
from veilmq.core.limits import SECOND_MS, SMQ_TOPIC_RETENTION_S
from veilmq.core.settings import SettingValue
from veilmq.core.topic_errors import TopicNotFound
from veilmq.core.topics import TopicPage, TopicView
from veilmq.wire.smq.attributes import ATTRIBUTES
from veilmq.wire.smq.listing import next_marker, read_listing
from veilmq.wire.smq.members import body_of, optional_body_of, texts
from veilmq.wire.smq.plan import NO_CONTENT, Answer, Plan, answered, nothing
from veilmq.wire.smq.request import SmqRequest
from veilmq.wire.smq.topic_names import own_name, topic_of, topic_url
from veilmq.wire.smq.xml_reading import Element
from veilmq.wire.smq.xml_writing import container, document, element
from veilmq.wire.sqs.context import RequestContext

_SIZE = "MaximumMessageSize"
_LOGGED = "LoggingEnabled"


def create_topic(request: SmqRequest, context: RequestContext) -> Plan:
    """CreateTopic: makes the topic (201), or finds it when every attribute given has the value that it has (204)."""
    topic = topic_of(request, context)
    supplied = _settings(optional_body_of(request, "Topic"), context)

    def respond(result: Any) -> Answer:
        view: TopicView = answered(result)
        return Answer(201 if view.is_new else 204, location=topic_url(topic, context))

    return Plan(topics.CreateTopic(topic=topic, settings=supplied), respond)


def set_topic_attributes(request: SmqRequest, context: RequestContext) -> Plan:
    """SetTopicAttributes: those given; the others stay as they are."""
    changes = _settings(body_of(request, "Topic"), context)
    return Plan(topics.SetTopic(topic=topic_of(request, context), settings=changes), nothing)


def get_topic_attributes(request: SmqRequest, context: RequestContext) -> Plan:
    """GetTopicAttributes: all of them."""

    def respond(result: Any) -> Answer:
        return Answer(200, document("Topic", _described(answered(result))))

    return Plan(topics.ShowTopic(topic=topic_of(request, context)), respond)


def delete_topic(request: SmqRequest, context: RequestContext) -> Plan:
    """DeleteTopic: with its subscriptions; a topic that is not there is as good as deleted."""

    def respond(result: Any) -> Answer:
        return NO_CONTENT if isinstance(result, TopicNotFound) else nothing(result)

    return Plan(topics.DeleteTopic(topic=topic_of(request, context)), respond)


def list_topic(request: SmqRequest, context: RequestContext) -> Plan:
    """ListTopic: their URLs, and with ``x-mns-with-meta`` what GetTopicAttributes tells of each."""
    asked = read_listing(request.headers)

    def respond(result: Any) -> Answer:
        page: TopicPage = answered(result)
        listed = "".join(
            container(
                "Topic",
                element("TopicURL", topic_url(view.topic, context)) + (_described(view) if asked.detailed else ""),
            )
            for view in page.topics
        )
        last = own_name(page.topics[-1].topic) if page.topics else ""
        return Answer(200, document("Topics", listed + next_marker(last, more=page.more)))

    command = topics.ListTopics(account=context.account, prefix=asked.prefix, after=asked.after, count=asked.count)
    return Plan(command, respond)


def _settings(topic: Element, context: RequestContext) -> dict[str, SettingValue]:
    """Return what the children of ``topic`` set: two attributes that a queue has, too."""
    given, values = texts(topic), dict[str, SettingValue]()
    for name in (_SIZE, _LOGGED):
        if name in given:
            values |= ATTRIBUTES[name].read(name, given[name], context)
    return values


def _described(view: TopicView) -> str:
    told = {
        "TopicName": own_name(view.topic),
        "CreateTime": str(view.created_at_ms // SECOND_MS),
        "LastModifyTime": str(view.modified_at_ms // SECOND_MS),
        _SIZE: str(view.settings.message_bytes_max),
        "MessageRetentionPeriod": str(SMQ_TOPIC_RETENTION_S),
        "MessageCount": str(view.messages),
        _LOGGED: str(view.settings.operations_logged),
    }
    return "".join(element(name, text) for name, text in told.items())
