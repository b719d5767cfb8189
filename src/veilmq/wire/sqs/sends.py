"""SendMessage and SendMessageBatch: checks what a message may be, and answers with the digests of what arrived."""

from typing import Any

import msgspec

from veilmq.core import properties
from veilmq.core.commands import NewMessage, Send
from veilmq.core.limits import SQS_BATCH_BYTES_MAX
from veilmq.core.properties import Properties
from veilmq.core.results import SentMessage
from veilmq.wire.sqs.attributes import attributes_bytes, read_attributes, read_system_attributes
from veilmq.wire.sqs.batches import Batch
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.digests import attributes_md5, body_md5
from veilmq.wire.sqs.errors import batch_too_long, invalid_parameter, missing_parameter, not_supported
from veilmq.wire.sqs.names import id_text, queue_of
from veilmq.wire.sqs.parameters import check_number
from veilmq.wire.sqs.plan import Plan, answered, only
from veilmq.wire.sqs.requests import MessageToSend, SendMessageBatchRequest, SendMessageRequest
from veilmq.wire.sqs.responses import BatchResult, SendMessageBatchResultEntry, SendMessageResult
from veilmq.wire.sqs.text import check_text


class _Outgoing(msgspec.Struct, frozen=True, gc=False):
    message: NewMessage
    body_md5: str
    attributes_md5: str | None = None
    system_md5: str | None = None


def send_message(request: SendMessageRequest, context: RequestContext) -> Plan:
    """SendMessage: one message, stored before it is answered."""
    queue = queue_of(request.queue_url, context)
    outgoing = _outgoing(request)

    def respond(results: Any) -> SendMessageResult:
        sent: SentMessage = only(results)
        return SendMessageResult(
            message_id=id_text(sent.id),
            md5_of_message_body=outgoing.body_md5,
            md5_of_message_attributes=outgoing.attributes_md5,
            md5_of_message_system_attributes=outgoing.system_md5,
        )

    return Plan(Send(queue=queue, messages=(outgoing.message,)), respond)


def send_message_batch(request: SendMessageBatchRequest, context: RequestContext) -> Plan:
    """SendMessageBatch: up to ten messages, each stored or refused alone; too long together, none is."""
    queue = queue_of(request.queue_url, context)
    batch = Batch(request.entries, "SendMessageBatchRequestEntry", _outgoing)
    messages = tuple(outgoing.message for _, outgoing in batch.prepared)
    total_bytes = sum(message.size_bytes for message in messages)
    if total_bytes > SQS_BATCH_BYTES_MAX:
        raise batch_too_long(total_bytes)

    def respond(results: Any) -> BatchResult:
        return batch.respond(results, _sent)

    return Plan(Send(queue=queue, messages=messages), respond)


def _sent(identifier: str, outgoing: _Outgoing, outcome: Any) -> SendMessageBatchResultEntry:
    sent: SentMessage = answered(outcome)
    return SendMessageBatchResultEntry(
        id=identifier,
        message_id=id_text(sent.id),
        md5_of_message_body=outgoing.body_md5,
        md5_of_message_attributes=outgoing.attributes_md5,
        md5_of_message_system_attributes=outgoing.system_md5,
    )


def _outgoing(request: MessageToSend) -> _Outgoing:
    body = request.message_body
    if not body:
        raise missing_parameter("MessageBody")
    check_text(body, "the message body")
    delay_s = request.delay_seconds
    if delay_s is not None:
        check_number("DelaySeconds", delay_s)
    _refuse_fifo(request)
    size_bytes = len(body) if body.isascii() else len(body.encode())
    if request.message_attributes or request.message_system_attributes:
        return _with_properties(request, body, size_bytes)
    return _Outgoing(NewMessage(body=body, size_bytes=size_bytes, delay_s=delay_s), body_md5(body))


def _with_properties(request: MessageToSend, body: str, size_bytes: int) -> _Outgoing:
    attributes = read_attributes(request.message_attributes or {})
    system = read_system_attributes(request.message_system_attributes or {})
    message = NewMessage(
        body=body,
        size_bytes=size_bytes + attributes_bytes(attributes),
        properties=properties.encode(Properties(attributes=attributes, system=system)),
        delay_s=request.delay_seconds,
    )
    return _Outgoing(message, body_md5(body), attributes_md5(attributes), attributes_md5(system))


def _refuse_fifo(request: MessageToSend) -> None:
    if request.message_deduplication_id is not None:
        raise invalid_parameter(
            "MessageDeduplicationId",
            request.message_deduplication_id,
            "The request include parameter that is not valid for this queue type.",
        )
    if request.message_group_id is not None:
        raise not_supported("MessageGroupId (FIFO queues and fair queues)", "leave it out")
