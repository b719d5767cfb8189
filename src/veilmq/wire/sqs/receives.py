"""ReceiveMessage: how many, hidden for how long, waiting how long, and which attributes to tell.

System attributes are told by one function each; attributes of a message are read only when somebody asks for them.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import Any

from veilmq.core import properties
from veilmq.core.commands import Receive
from veilmq.core.limits import SQS_RECEIVE_COUNT
from veilmq.core.properties import Properties
from veilmq.core.results import Received, ReceivedMessage
from veilmq.wire.sqs import settings
from veilmq.wire.sqs.attributes import TRACE_HEADER, choose, write_attributes
from veilmq.wire.sqs.callers import SENDER_ID
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.digests import attributes_md5, body_md5
from veilmq.wire.sqs.errors import OVER_LIMIT, SqsError, unknown_attribute
from veilmq.wire.sqs.names import account_of, id_text, is_fifo, queue_arn, queue_of
from veilmq.wire.sqs.parameters import ATTEMPT, DEDUPLICATION, GROUP, check_number, checked_id, sequence_text
from veilmq.wire.sqs.plan import Plan, answered
from veilmq.wire.sqs.requests import ReceiveMessageRequest
from veilmq.wire.sqs.responses import Message, ReceiveMessageResult

Tell = Callable[[ReceivedMessage, Properties, RequestContext], str | None]


def _sender(message: ReceivedMessage, carried: Properties, context: RequestContext) -> str | None:
    """Return the sender that the message carries, else the account of the queue's receivers."""
    sender = carried.system.get(SENDER_ID)
    return sender.text if sender is not None else account_of(context.account)


def _trace_header(message: ReceivedMessage, carried: Properties, context: RequestContext) -> str | None:
    header = carried.system.get(TRACE_HEADER)
    return header.text if header is not None else None


def _deduplication_id(message: ReceivedMessage, carried: Properties, context: RequestContext) -> str | None:
    """Tell the message's own (its sender's, a dead letter's), or what deduplication made of the body (its SHA-256)."""
    if message.sequence is None or carried.dedup_id is not None:
        return carried.dedup_id
    return sha256(message.body.encode()).hexdigest()


def _source(message: ReceivedMessage, carried: Properties, context: RequestContext) -> str | None:
    return queue_arn(message.source, context) if message.source is not None else None


SYSTEM_ATTRIBUTES: dict[str, Tell] = {
    SENDER_ID: _sender,
    "SentTimestamp": lambda message, carried, context: str(message.sent_at_ms),
    "ApproximateReceiveCount": lambda message, carried, context: str(message.receive_count),
    "ApproximateFirstReceiveTimestamp": lambda message, carried, context: str(message.first_received_at_ms),
    TRACE_HEADER: _trace_header,
    "SequenceNumber": lambda message, carried, context: sequence_text(message.sequence),
    DEDUPLICATION: _deduplication_id,
    GROUP: lambda message, carried, context: carried.group,
    "DeadLetterQueueSourceArn": _source,
}
"""Attribute → what it is of a received message; ``None`` where the message has none."""


def receive_message(request: ReceiveMessageRequest, context: RequestContext) -> Plan:
    """ReceiveMessage: up to ten messages, hidden from everyone else; waits for one if asked to."""
    queue = queue_of(request.queue_url, context)
    check_number("MaxNumberOfMessages", request.max_number_of_messages)
    check_number("VisibilityTimeout", request.visibility_timeout)
    check_number("WaitTimeSeconds", request.wait_time_seconds)
    system = _system_names(request)
    names = request.message_attribute_names or []
    attempt_id = request.receive_request_attempt_id
    if attempt_id is not None:
        attempt_id = checked_id(ATTEMPT, attempt_id) if is_fifo(queue) else None
    wait_s = request.wait_time_seconds

    def respond(result: Any) -> ReceiveMessageResult:
        received: Received = answered(result)
        messages = [_message(message, system, names, context) for message in received.messages]
        if not messages and received.over_limit:
            _check_waited(received, wait_s)
        return ReceiveMessageResult(messages=messages or None)

    command = Receive(
        queue=queue,
        count=request.max_number_of_messages or SQS_RECEIVE_COUNT.default,
        timeout_s=request.visibility_timeout,
        attempt_id=attempt_id,
    )
    return Plan(command, respond, wait_s)


def _check_waited(received: Received, wait_s: int | None) -> None:
    """Raise OverLimit for a receive that did not wait; a long poll is answered with nothing, as on AWS."""
    if not (received.receive_wait_s if wait_s is None else wait_s):
        raise SqsError(
            OVER_LIMIT,
            "The maximum number of messages of this queue is in flight; delete some, or wait until they are visible.",
        )


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
    if not system and (not names or not message.properties):
        return Message(
            message_id=id_text(message.id), receipt_handle=message.receipt, md5_of_body=body_md5(body), body=body
        )
    carried = properties.decode(message.properties)
    chosen = choose(carried.attributes, names) if names else {}
    return Message(
        message_id=id_text(message.id),
        receipt_handle=message.receipt,
        md5_of_body=body_md5(body),
        body=body,
        attributes=_told(message, carried, system, context),
        md5_of_message_attributes=attributes_md5(chosen),
        message_attributes=write_attributes(chosen) or None,
    )


def _told(
    message: ReceivedMessage, carried: Properties, names: list[str], context: RequestContext
) -> dict[str, str] | None:
    told = {}
    for name in names:
        text = SYSTEM_ATTRIBUTES[name](message, carried, context)
        if text is not None:
            told[name] = text
    return told or None
