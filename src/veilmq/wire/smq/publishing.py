"""PublishMessage: to every subscription of a topic that wants the message's tag (reference, section 9)."""

from functools import partial
from typing import Any

from veilmq.core.topics import PublishedMessage, PublishToTopic
from veilmq.wire.smq.bodies import body_md5
from veilmq.wire.smq.members import body_of, texts
from veilmq.wire.smq.notifications import TAG, Published, make
from veilmq.wire.smq.plan import Answer, Plan, answered
from veilmq.wire.smq.request import SmqRequest
from veilmq.wire.smq.sends import carried_by, no_body, read_group
from veilmq.wire.smq.subscriptions import read_tag
from veilmq.wire.smq.topic_names import topic_of
from veilmq.wire.smq.xml_writing import document, element
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.parameters import GROUP


def publish_message(request: SmqRequest, context: RequestContext) -> Plan:
    """PublishMessage: what is for mail and text messages alone (``MessageAttributes``) is passed over."""
    message = body_of(request, "Message")
    given = texts(message)
    body = given.get("MessageBody")
    if not body:
        raise no_body(message)
    group = read_group(given.get(GROUP))
    carried, carried_bytes = carried_by(message, group, context.caller)
    published = Published(
        body=body,
        tag=read_tag(TAG, given),
        group=group,
        carried=carried,
        size_bytes=len(body.encode()) + carried_bytes,
    )

    def respond(result: Any) -> Answer:
        done: PublishedMessage = answered(result)
        told = element("MessageId", done.id.hex().upper()) + element("MessageBodyMD5", body_md5(body))
        return Answer(201, document("Message", told))

    command = PublishToTopic(
        topic=topic_of(request, context),
        size_bytes=published.size_bytes,
        make=partial(make, published),
        tag=published.tag,
    )
    return Plan(command, respond)
