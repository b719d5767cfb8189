"""SendMessage, ReceiveMessage, DeleteMessage, ChangeMessageVisibility and their batches."""

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec

from veilmq.core.commands import (
    ChangeVisibility,
    Delete,
    LeaseChange,
    Receive,
    Received,
    ReceivedMessage,
    Send,
    SentMessage,
    VisibilityChange,
)
from veilmq.core.errors import GroupMissing, LeaseTooLong, ReceiptInvalid, ReceiptState, VeilmqError
from veilmq.core.limits import SQS_BATCH_BYTES_MAX, SQS_RECEIVE_COUNT
from veilmq.core.messages import (
    Attribute,
    NewMessage,
    Properties,
    attributes_bytes,
    decode_properties,
    encode_properties,
)
from veilmq.core.receipts import is_well_formed
from veilmq.wire.exchange import SENDER_ID, Plan, RequestContext, id_text, md5
from veilmq.wire.sqs import errors, members
from veilmq.wire.sqs.errors import SqsError, truncated
from veilmq.wire.sqs.members import Shape, attributes_md5, check_number, check_text, checked_id, required, unwrap
from veilmq.wire.sqs.names import account_of, is_fifo, queue_arn, queue_of
from veilmq.wire.sqs.queue_attributes import ALL, NAMES


class MessageToSend(Shape):
    """The members of SendMessage and of each entry of SendMessageBatch."""

    message_body: str | None = None
    delay_seconds: members.Integer | None = None
    message_attributes: dict[str, members.AttributeValue] | None = None
    message_system_attributes: dict[str, members.AttributeValue] | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessageBatchEntry(MessageToSend):
    """One message of SendMessageBatch."""

    id: str | None = None


class DeleteMessageBatchEntry(Shape):
    """One receipt of DeleteMessageBatch."""

    id: str | None = None
    receipt_handle: str | None = None


class ChangeMessageVisibilityBatchEntry(Shape):
    """One change of ChangeMessageVisibilityBatch."""

    id: str | None = None
    receipt_handle: str | None = None
    visibility_timeout: members.Integer | None = None


class Message(Shape):
    """One received message."""

    message_id: str
    receipt_handle: str
    md5_of_body: str
    body: str
    attributes: dict[str, str] | None = None
    md5_of_message_attributes: str | None = None
    message_attributes: dict[str, members.AttributeValue] | None = None


class ReceiveMessageResult(Shape):
    messages: list[Message] | None = None


# SendMessage and SendMessageBatch.

_WRONG_QUEUE_TYPE = "The request include parameter that is not valid for this queue type."


class _PreparedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message to send, with the digests for the reply."""

    message: NewMessage
    body_md5: str
    attributes_md5: str | None = None
    system_md5: str | None = None

    def respond(self, results: Any) -> members.SendMessageResult:
        """Return the response of SendMessage."""
        sent = results if isinstance(results, VeilmqError) else results[0]
        if isinstance(sent, VeilmqError):
            raise errors.from_core(sent)
        return members.SendMessageResult(
            message_id=id_text(sent.id),
            md5_of_message_body=self.body_md5,
            md5_of_message_attributes=self.attributes_md5,
            md5_of_message_system_attributes=self.system_md5,
            sequence_number=None if sent.sequence is None else members.sequence_text(sent.sequence),
        )


class SendMessage(MessageToSend, members.Request):
    """SendMessage: sends one message; the reply means that it is on disk."""

    queue_url: str | None = None

    def plan(self, context: RequestContext) -> Plan:
        queue = context.queues.get(self.queue_url) or queue_of(self.queue_url, context)
        prepared = _prepare(self, queue, context)
        return Plan(Send(queue=queue, messages=(prepared.message,)), prepared.respond)


class SendMessageBatch(members.QueueRequest):
    """SendMessageBatch: sends up to ten messages, each stored or refused alone; none if a FIFO entry lacks its ids."""

    entries: list[SendMessageBatchEntry] | None = None

    def plan(self, context: RequestContext) -> Plan:
        queue = context.queues.get(self.queue_url) or queue_of(self.queue_url, context)
        batch = members.Batch(self, partial(_prepare, queue=queue, context=context))
        messages = tuple(prepared.message for prepared in batch.items)
        sent_bytes = sum(message.size_bytes for message in messages)
        if sent_bytes > SQS_BATCH_BYTES_MAX:
            why = f"Batch requests cannot be longer than {SQS_BATCH_BYTES_MAX} bytes. You have sent {sent_bytes} bytes."
            raise SqsError(errors.BATCH_TOO_LONG, why)

        def respond(results: Any) -> members.BatchResult:
            if isinstance(results, GroupMissing):
                raise errors.invalid(errors.from_core(results).message)
            return batch.respond(results, _sent_entry)

        return Plan(Send(queue=queue, messages=messages), respond)


def _sent_entry(identifier: str, prepared: _PreparedMessage, outcome: Any) -> members.SendMessageBatchResultEntry:
    sent: SentMessage = unwrap(outcome)
    return members.SendMessageBatchResultEntry(
        id=identifier,
        message_id=id_text(sent.id),
        md5_of_message_body=prepared.body_md5,
        md5_of_message_attributes=prepared.attributes_md5,
        md5_of_message_system_attributes=prepared.system_md5,
        sequence_number=members.sequence_text(sent.sequence),
    )


def _prepare(request: MessageToSend, queue: str, context: RequestContext) -> _PreparedMessage:
    body = request.message_body
    if not body:
        raise errors.missing_parameter("MessageBody")
    data = body.encode() if body.isascii() else None
    if data is None or data.translate(members.LEGAL_ASCII) != data:
        check_text(body, "the message body")
        data = body.encode()
    delay_s = request.delay_seconds
    if delay_s is not None:  # all messages of a FIFO queue have the same delay, so that they stay in order
        check_number("DelaySeconds", delay_s)
        if is_fifo(queue):
            if delay_s:
                raise errors.invalid_parameter("DelaySeconds", delay_s, _WRONG_QUEUE_TYPE)
            delay_s = None
    digest = md5(data, usedforsecurity=False).hexdigest()
    if (
        request.message_attributes
        or request.message_system_attributes
        or request.message_group_id is not None
        or request.message_deduplication_id is not None
        or context.trace_header is not None
    ):
        return _with_properties(request, queue, len(data), delay_s, digest, context)
    properties = b"" if context.caller is None else context.caller.sender_properties
    return _PreparedMessage(NewMessage(body=body, size_bytes=len(data), properties=properties, delay_s=delay_s), digest)


def _with_properties(
    request: MessageToSend, queue: str, body_bytes: int, delay_s: int | None, digest: str, context: RequestContext
) -> _PreparedMessage:
    attributes = members.read_attributes(request.message_attributes) if request.message_attributes else {}
    system = (
        members.read_system_attributes(request.message_system_attributes) if request.message_system_attributes else {}
    )
    group, dedup_id = checked_id(members.GROUP, request.message_group_id), request.message_deduplication_id
    if dedup_id is not None and not is_fifo(queue):
        raise errors.invalid_parameter(members.DEDUPLICATION, dedup_id, _WRONG_QUEUE_TYPE)
    checked_id(members.DEDUPLICATION, dedup_id)
    kept = system if context.caller is None else system | {SENDER_ID: context.caller.sender}
    if context.trace_header is not None:
        kept = {members.TRACE_HEADER: context.trace_header} | kept
    message = NewMessage(
        body=request.message_body or "",
        size_bytes=body_bytes + attributes_bytes(attributes),
        properties=encode_properties(Properties(attributes=attributes, system=kept, group=group, dedup_id=dedup_id)),
        delay_s=delay_s,
        group=group,
        dedup_id=dedup_id,
    )
    if not attributes and not system:
        return _PreparedMessage(message, digest)
    return _PreparedMessage(message, digest, attributes_md5(attributes), attributes_md5(system))


# ReceiveMessage. The properties of a message are decoded only if the request names attributes.

_OVER_LIMIT = "The maximum number of messages of this queue is in flight; delete some, or wait until they are visible."

ReadAttribute = Callable[[ReceivedMessage, Properties, RequestContext], str | None]
_ABSENT = Attribute("String")

SYSTEM_ATTRIBUTES: dict[str, ReadAttribute] = {
    # the sender of the message, or the account of the receiver
    SENDER_ID: lambda message, properties, context: (
        properties.system[SENDER_ID].text if SENDER_ID in properties.system else account_of(context.account)
    ),
    "SentTimestamp": lambda message, properties, context: str(message.sent_at_ms),
    "ApproximateReceiveCount": lambda message, properties, context: str(message.receive_count),
    "ApproximateFirstReceiveTimestamp": lambda message, properties, context: str(message.first_received_at_ms),
    members.TRACE_HEADER: lambda message, properties, context: (
        properties.system.get(members.TRACE_HEADER, _ABSENT).text
    ),
    "SequenceNumber": lambda message, properties, context: members.sequence_text(message.sequence),
    # the stored id (of the sender or of a dead letter), or the one that deduplication derived from the body
    members.DEDUPLICATION: lambda message, properties, context: (
        properties.dedup_id
        if message.sequence is None or properties.dedup_id is not None
        else sha256(message.body.encode()).hexdigest()
    ),
    members.GROUP: lambda message, properties, context: properties.group,
    "DeadLetterQueueSourceArn": lambda message, properties, context: (
        None if message.source is None else queue_arn(message.source, context)
    ),
}
"""System attribute → a function that returns its value, ``None`` if the message has none."""


class ReceiveMessage(members.QueueRequest):
    """ReceiveMessage: returns up to ten messages and hides them from other consumers; may wait for the first one."""

    attribute_names: list[str] | None = None
    message_system_attribute_names: list[str] | None = None
    message_attribute_names: list[str] | None = None
    max_number_of_messages: members.Integer | None = None
    visibility_timeout: members.Integer | None = None
    wait_time_seconds: members.Integer | None = None
    receive_request_attempt_id: str | None = None  # ignored on a standard queue, as on AWS

    def plan(self, context: RequestContext) -> Plan:
        queue = context.queues.get(self.queue_url) or queue_of(self.queue_url, context)
        if (count := self.max_number_of_messages) is not None:
            check_number("MaxNumberOfMessages", count)
        if self.visibility_timeout is not None:
            check_number("VisibilityTimeout", self.visibility_timeout)
        if (wait_s := self.wait_time_seconds) is not None:
            check_number("WaitTimeSeconds", wait_s)
        has_names = self.message_system_attribute_names or self.attribute_names
        system = _system_names(self) if has_names else []
        names = self.message_attribute_names or []
        attempt_id = self.receive_request_attempt_id
        if attempt_id is not None:
            attempt_id = checked_id(members.ATTEMPT, attempt_id) if is_fifo(queue) else None

        def respond(result: Any) -> ReceiveMessageResult:
            if isinstance(result, VeilmqError):
                raise errors.from_core(result)
            received: Received = result
            messages = [_message(message, system, names, context) for message in received.messages]
            waited = received.receive_wait_s if wait_s is None else wait_s
            if not messages and received.over_limit and not waited:  # long polls return no messages, as on AWS
                raise SqsError(errors.OVER_LIMIT, _OVER_LIMIT)
            return ReceiveMessageResult(messages=messages or None)

        command = Receive(
            queue=queue,
            count=SQS_RECEIVE_COUNT.default if count is None else count,
            timeout_s=self.visibility_timeout,
            attempt_id=attempt_id,
        )
        return Plan(command, respond, wait_s)


def _system_names(request: ReceiveMessage) -> list[str]:
    requested = dict.fromkeys(request.message_system_attribute_names or [])
    for name in requested:
        if name != ALL and name not in SYSTEM_ATTRIBUTES:
            raise errors.unknown_attribute(name)
    for name in request.attribute_names or []:
        # In the model, the deprecated member has the names of queue attributes, which are ignored here.
        if name not in SYSTEM_ATTRIBUTES and name not in NAMES:
            raise errors.unknown_attribute(name)
        requested[name] = None
    if ALL in requested:
        return list(SYSTEM_ATTRIBUTES)
    return [name for name in requested if name in SYSTEM_ATTRIBUTES]


def _message(message: ReceivedMessage, system: list[str], names: list[str], context: RequestContext) -> Message:
    body, identifier = message.body, id_text(message.id)
    digest = md5(body.encode(), usedforsecurity=False).hexdigest()
    if not system and (not names or not message.properties):
        return Message(message_id=identifier, receipt_handle=message.receipt, md5_of_body=digest, body=body)
    properties = decode_properties(message.properties)
    chosen = members.select_attributes(properties.attributes, names) if names else {}
    values = {}
    for name in system:
        text = SYSTEM_ATTRIBUTES[name](message, properties, context)
        if text is not None:
            values[name] = text
    return Message(
        message_id=identifier,
        receipt_handle=message.receipt,
        md5_of_body=digest,
        body=body,
        attributes=values or None,
        md5_of_message_attributes=attributes_md5(chosen),
        message_attributes=members.write_attributes(chosen) or None,
    )


# DeleteMessage, ChangeMessageVisibility and their batches.
#
# On standard queues a delete succeeds with a receipt in any state, and a change fails only for a deleted message. On
# FIFO queues both fail with an expired or superseded receipt (``docs/lifecycle.md``, the receipt table). A receipt that
# was never issued is always invalid. If the setting ``stale_receipts`` is ``act``, a superseded receipt of a standard
# queue acts, as on AWS.

_REFUSED_ON_FIFO = (ReceiptState.EXPIRED, ReceiptState.SUPERSEDED)
"""States that FIFO queues refuse: another consumer may be processing the group."""

_NO_EFFECT = (ReceiptState.SUPERSEDED, ReceiptState.GONE)
"""States with which a delete succeeds without deleting the message."""

_MISSING_RECEIPT = "The request must contain the parameter MessageHandle. Its name in requests is ReceiptHandle."
"""The error of DeleteMessage, which names the parameter as AWS does, by an old name."""

_LEASE_LOST = (ReceiptState.SUPERSEDED, ReceiptState.EARLIER)
"""States with which a change on a standard queue succeeds, although veilmq's consumer has lost its lease; the reply
reports it."""


class DeleteMessage(members.QueueRequest):
    """DeleteMessage: deletes a message; accepts any receipt of the queue; FIFO refuses expired and superseded ones."""

    receipt_handle: str | None = None

    def plan(self, context: RequestContext) -> Plan:
        queue = context.queues.get(self.queue_url) or queue_of(self.queue_url, context)
        receipt = self.receipt_handle
        if not receipt:
            raise SqsError(errors.MISSING_PARAMETER, _MISSING_RECEIPT)

        def respond(results: Any) -> None:
            outcome = results if isinstance(results, VeilmqError) else results[0]
            if outcome is not ReceiptState.LIVE:
                (_check_fifo if is_fifo(queue) else _checked_state)(receipt, outcome)

        return Plan(Delete(queue=queue, receipts=(receipt,), any_receive=context.stale_receipts_act), respond)


class DeleteMessageBatch(members.QueueRequest):
    """DeleteMessageBatch: deletes up to ten messages, each deleted or refused alone."""

    entries: list[DeleteMessageBatchEntry] | None = None

    def plan(self, context: RequestContext) -> Plan:
        queue = context.queues.get(self.queue_url) or queue_of(self.queue_url, context)
        batch = members.Batch(self, _receipt)
        check = _check_fifo if is_fifo(queue) else _checked_state

        def deleted(identifier: str, receipt: str, outcome: Any) -> members.BatchResultEntry:
            check(receipt, outcome)
            if outcome in _NO_EFFECT:
                return members.ChangedResultEntry(id=identifier, veilmq_receipt=outcome.value)
            return members.BatchResultEntry(id=identifier)

        command = Delete(queue=queue, receipts=tuple(batch.items), any_receive=context.stale_receipts_act)
        return Plan(command, lambda results: batch.respond(results, deleted))


class ChangeMessageVisibility(members.QueueRequest):
    """ChangeMessageVisibility: hides a message for that long from now, or releases it with 0."""

    receipt_handle: str | None = None
    visibility_timeout: members.Integer | None = None

    def plan(self, context: RequestContext) -> Plan:
        queue = context.queues.get(self.queue_url) or queue_of(self.queue_url, context)
        change = _change(self)
        command = ChangeVisibility(queue=queue, changes=(change,), any_receive=context.stale_receipts_act)
        return Plan(command, lambda results: _check_change(queue, change, unwrap(results)[0]))


class ChangeMessageVisibilityBatch(members.QueueRequest):
    """ChangeMessageVisibilityBatch: changes up to ten messages, each changed or refused alone."""

    entries: list[ChangeMessageVisibilityBatchEntry] | None = None

    def plan(self, context: RequestContext) -> Plan:
        queue = context.queues.get(self.queue_url) or queue_of(self.queue_url, context)
        batch = members.Batch(self, _change)

        def changed(identifier: str, change: VisibilityChange, outcome: Any) -> members.BatchResultEntry:
            _check_change(queue, change, outcome, in_batch=True)
            if outcome.state in _LEASE_LOST:
                return members.ChangedResultEntry(id=identifier, veilmq_receipt=outcome.state.value)
            return members.ChangedResultEntry(id=identifier, veilmq_hidden_for_ms=outcome.hidden_for_ms)

        command = ChangeVisibility(queue=queue, changes=tuple(batch.items), any_receive=context.stale_receipts_act)
        return Plan(command, lambda results: batch.respond(results, changed))


def _receipt(entry: DeleteMessageBatchEntry | ChangeMessageVisibility | ChangeMessageVisibilityBatchEntry) -> str:
    return required("ReceiptHandle", entry.receipt_handle)


def _checked_state(receipt: str, outcome: Any) -> Any:
    if isinstance(outcome, ReceiptInvalid) and not is_well_formed(receipt):
        why = f'The input receipt handle "{truncated(receipt)}" is not a valid receipt handle.'
        raise SqsError(errors.RECEIPT_HANDLE_IS_INVALID, why)
    return unwrap(outcome)


def _check_fifo(receipt: str, outcome: Any) -> None:
    if _checked_state(receipt, outcome) in _REFUSED_ON_FIFO:
        raise _expired(receipt)


def _check_change(queue: str, change: VisibilityChange, outcome: Any, *, in_batch: bool = False) -> None:
    if isinstance(outcome, LeaseTooLong):
        why = f"Total VisibilityTimeout for the message is beyond the limit [{outcome.seconds_max} seconds]"
        raise errors.invalid_parameter("VisibilityTimeout", change.timeout_s, why)
    changed: LeaseChange = _checked_state(change.receipt, outcome)
    if changed.state is ReceiptState.GONE:
        why = "Message does not exist or is not available for visibility timeout change"
        if in_batch:  # as on AWS: clients match on code and text
            raise SqsError(errors.RECEIPT_HANDLE_IS_INVALID, why)
        raise errors.invalid_parameter("ReceiptHandle", change.receipt, f"{why}.")
    if changed.state in _REFUSED_ON_FIFO and is_fifo(queue):
        raise _expired(change.receipt)


def _change(request: ChangeMessageVisibility | ChangeMessageVisibilityBatchEntry) -> VisibilityChange:
    receipt = _receipt(request)
    timeout_s = request.visibility_timeout
    if timeout_s is None:
        raise errors.missing_parameter("VisibilityTimeout")
    check_number("VisibilityTimeout", timeout_s)
    return VisibilityChange(receipt=receipt, timeout_s=timeout_s)


def _expired(receipt: str) -> SqsError:
    return errors.invalid_parameter("ReceiptHandle", receipt, "The receipt handle has expired.")
