"""ReceiveMessage: how many, hidden for how long, waiting how long, and which attributes to tell.

System attributes are told by one function each; attributes of a message are read only when somebody asks for them.
"""

from collections.abc import Callable
from typing import Any

from veilmq.core import properties
from veilmq.core.commands import Receive
from veilmq.core.limits import SQS_RECEIVE_COUNT
from veilmq.core.properties import Properties
from veilmq.core.results import Received, ReceivedMessage
from veilmq.wire.sqs import settings
from veilmq.wire.sqs.attributes import TRACE_HEADER, choose, write_attributes
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.digests import attributes_md5, body_md5
from veilmq.wire.sqs.errors import unknown_attribute
from veilmq.wire.sqs.names import id_text, queue_of
from veilmq.wire.sqs.parameters import check_number
from veilmq.wire.sqs.plan import Plan, answered
from veilmq.wire.sqs.requests import ReceiveMessageRequest
from veilmq.wire.sqs.responses import Message, ReceiveMessageResult

Tell = Callable[[ReceivedMessage, RequestContext], str | None]


def _trace_header(message: ReceivedMessage, context: RequestContext) -> str | None:
    header = properties.decode(message.properties).system.get(TRACE_HEADER)
    return header.text if header is not None else None


def _absent(message: ReceivedMessage, context: RequestContext) -> None:
    """Tell nothing: an attribute of FIFO queues or of dead letters, which no message here has."""


SYSTEM_ATTRIBUTES: dict[str, Tell] = {
    "SenderId": lambda message, context: context.account,
    "SentTimestamp": lambda message, context: str(message.sent_at_ms),
    "ApproximateReceiveCount": lambda message, context: str(message.receive_count),
    "ApproximateFirstReceiveTimestamp": lambda message, context: str(message.first_received_at_ms),
    TRACE_HEADER: _trace_header,
    "SequenceNumber": _absent,
    "MessageDeduplicationId": _absent,
    "MessageGroupId": _absent,
    "DeadLetterQueueSourceArn": _absent,
}
"""Attribute → what it is of a received message; ``None`` where the message has none."""


def is_absent(tell: Tell) -> bool:
    """Tell whether ``tell`` is of an attribute that no message here has."""
    return tell is _absent


def receive_message(request: ReceiveMessageRequest, context: RequestContext) -> Plan:
    """ReceiveMessage: up to ten messages, hidden from everyone else; waits for one if asked to."""
    queue = queue_of(request.queue_url, context)
    check_number("MaxNumberOfMessages", request.max_number_of_messages)
    check_number("VisibilityTimeout", request.visibility_timeout)
    check_number("WaitTimeSeconds", request.wait_time_seconds)
    system = _system_names(request)
    names = request.message_attribute_names or []

    def respond(result: Any) -> ReceiveMessageResult:
        received: Received = answered(result)
        messages = [_message(message, system, names, context) for message in received.messages]
        return ReceiveMessageResult(messages=messages or None)

    command = Receive(
        queue=queue,
        count=request.max_number_of_messages or SQS_RECEIVE_COUNT.default,
        timeout_s=request.visibility_timeout,
    )
    return Plan(command, respond, request.wait_time_seconds)


def _system_names(request: ReceiveMessageRequest) -> list[str]:
    if not request.message_system_attribute_names and not request.attribute_names:
        return []
    asked = dict.fromkeys(request.message_system_attribute_names or [])
    for name in asked:
        if name != settings.ALL and name not in SYSTEM_ATTRIBUTES:
            raise unknown_attribute(name)
    for name in request.attribute_names or []:
        # The deprecated member is a list of names of queue attributes in the model: those mean nothing here.
        if name not in SYSTEM_ATTRIBUTES and name not in settings.NAMES:
            raise unknown_attribute(name)
        asked[name] = None
    if settings.ALL in asked:
        return list(SYSTEM_ATTRIBUTES)
    return [name for name in asked if name in SYSTEM_ATTRIBUTES]


def _message(message: ReceivedMessage, system: list[str], names: list[str], context: RequestContext) -> Message:
    body = message.body
    told = _told(message, system, context) if system else None
    if not names or not message.properties:
        return Message(
            message_id=id_text(message.id),
            receipt_handle=message.receipt,
            md5_of_body=body_md5(body),
            body=body,
            attributes=told,
        )
    carried: Properties = properties.decode(message.properties)
    chosen = choose(carried.attributes, names)
    return Message(
        message_id=id_text(message.id),
        receipt_handle=message.receipt,
        md5_of_body=body_md5(body),
        body=body,
        attributes=told,
        md5_of_message_attributes=attributes_md5(chosen),
        message_attributes=write_attributes(chosen) or None,
    )


def _told(message: ReceivedMessage, names: list[str], context: RequestContext) -> dict[str, str] | None:
    told = {}
    for name in names:
        text = SYSTEM_ATTRIBUTES[name](message, context)
        if text is not None:
            told[name] = text
    return told or None
