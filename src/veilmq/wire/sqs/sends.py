"""SendMessage and SendMessageBatch: checks what a message may be, and answers with the digests of what arrived."""

from functools import partial
from typing import Any

import msgspec

from veilmq.core import properties
from veilmq.core.commands import NewMessage, Send
from veilmq.core.errors import GroupMissing
from veilmq.core.limits import SQS_BATCH_BYTES_MAX
from veilmq.core.properties import Attribute, Properties, attributes_bytes
from veilmq.core.results import SentMessage
from veilmq.wire.sqs.attributes import TRACE_HEADER, read_attributes, read_system_attributes
from veilmq.wire.sqs.batches import Batch
from veilmq.wire.sqs.callers import SENDER_ID
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.digests import attributes_md5, body_md5
from veilmq.wire.sqs.errors import (
    INVALID_PARAMETER_VALUE,
    SqsError,
    batch_too_long,
    from_core,
    invalid_parameter,
    missing_parameter,
)
from veilmq.wire.sqs.names import id_text, is_fifo, queue_of
from veilmq.wire.sqs.parameters import DEDUPLICATION, GROUP, check_number, checked_id, sequence_text
from veilmq.wire.sqs.plan import Plan, answered, only
from veilmq.wire.sqs.requests import MessageToSend, SendMessageBatchRequest, SendMessageRequest
from veilmq.wire.sqs.responses import BatchResult, SendMessageBatchResultEntry, SendMessageResult
from veilmq.wire.sqs.text import check_text

_NONE: dict[str, Attribute] = {}
_WRONG_KIND = "The request include parameter that is not valid for this queue type."


class _Outgoing(msgspec.Struct, frozen=True, gc=False):
    message: NewMessage
    body_md5: str
    attributes_md5: str | None = None
    system_md5: str | None = None


def send_message(request: SendMessageRequest, context: RequestContext) -> Plan:
    """SendMessage: one message, stored before it is answered."""
    queue = queue_of(request.queue_url, context)
    outgoing = _outgoing(request, queue, context)

    def respond(results: Any) -> SendMessageResult:
        sent: SentMessage = only(results)
        return SendMessageResult(
            message_id=id_text(sent.id),
            md5_of_message_body=outgoing.body_md5,
            md5_of_message_attributes=outgoing.attributes_md5,
            md5_of_message_system_attributes=outgoing.system_md5,
            sequence_number=None if sent.sequence is None else sequence_text(sent.sequence),
        )

    return Plan(Send(queue=queue, messages=(outgoing.message,)), respond)


def send_message_batch(request: SendMessageBatchRequest, context: RequestContext) -> Plan:
    """SendMessageBatch: up to ten messages, each stored or refused alone; none where one lacks group or id of FIFO."""
    queue = queue_of(request.queue_url, context)
    batch = Batch(request.entries, "SendMessageBatchRequestEntry", partial(_outgoing, queue=queue, context=context))
    messages = tuple(outgoing.message for _, outgoing in batch.prepared)
    total_bytes = sum(message.size_bytes for message in messages)
    if total_bytes > SQS_BATCH_BYTES_MAX:
        raise batch_too_long(total_bytes)

    def respond(results: Any) -> BatchResult:
        if isinstance(results, GroupMissing):
            raise SqsError(INVALID_PARAMETER_VALUE, from_core(results).message)
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
        sequence_number=sequence_text(sent.sequence),
    )


def _outgoing(request: MessageToSend, queue: str, context: RequestContext) -> _Outgoing:
    body = request.message_body
    if not body:
        raise missing_parameter("MessageBody")
    check_text(body, "the message body")
    delay_s = request.delay_seconds
    if delay_s is not None:
        delay_s = _delay(delay_s, queue)
    size_bytes = len(body) if body.isascii() else len(body.encode())
    if (
        request.message_attributes
        or request.message_system_attributes
        or request.message_group_id is not None
        or request.message_deduplication_id is not None
        or context.trace_header is not None
    ):
        return _with_properties(request, queue, body, size_bytes, delay_s, context)
    caller = context.caller
    carried = b"" if caller is None else caller.sent
    return _Outgoing(NewMessage(body=body, size_bytes=size_bytes, properties=carried, delay_s=delay_s), body_md5(body))


def _with_properties(
    request: MessageToSend, queue: str, body: str, size_bytes: int, delay_s: int | None, context: RequestContext
) -> _Outgoing:
    attributes = read_attributes(request.message_attributes) if request.message_attributes else _NONE
    system = read_system_attributes(request.message_system_attributes) if request.message_system_attributes else _NONE
    group = checked_id(GROUP, request.message_group_id)
    dedup_id = _deduplication_id(request.message_deduplication_id, queue)
    kept = system if context.caller is None else system | {SENDER_ID: context.caller.sender}
    if context.trace_header is not None:
        kept = {TRACE_HEADER: context.trace_header} | kept
    message = NewMessage(
        body=body,
        size_bytes=size_bytes + attributes_bytes(attributes) if attributes else size_bytes,
        properties=properties.encode(Properties(attributes=attributes, system=kept, group=group, dedup_id=dedup_id)),
        delay_s=delay_s,
        group=group,
        dedup_id=dedup_id,
    )
    if not attributes and not system:
        return _Outgoing(message, body_md5(body))
    return _Outgoing(message, body_md5(body), attributes_md5(attributes), attributes_md5(system))


def _delay(delay_s: int, queue: str) -> int | None:
    """Return the delay of a message; a FIFO queue has one for all of them, so that order is kept."""
    check_number("DelaySeconds", delay_s)
    if not is_fifo(queue):
        return delay_s
    if delay_s:
        raise invalid_parameter("DelaySeconds", delay_s, _WRONG_KIND)
    return None


def _deduplication_id(value: str | None, queue: str) -> str | None:
    if value is not None and not is_fifo(queue):
        raise invalid_parameter(DEDUPLICATION, value, _WRONG_KIND)
    return checked_id(DEDUPLICATION, value)
