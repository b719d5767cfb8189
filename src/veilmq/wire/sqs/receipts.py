"""DeleteMessage, ChangeMessageVisibility and their batches: what each state of a receipt is answered with.

On standard queues a delete succeeds whatever state its receipt is in, and a change fails only for a message that is
gone; on FIFO queues an expired or superseded receipt is refused by both (``docs/lifecycle.md``, the receipt table). A
receipt that was never issued is invalid everywhere. Where the server says so (``stale_receipts``), a superseded receipt
of a standard queue acts as at Amazon.
"""

from functools import partial
from typing import Any

from veilmq.core.commands import ChangeVisibility, Delete, VisibilityChange
from veilmq.core.errors import LeaseTooLong, ReceiptInvalid
from veilmq.core.receipts import has_form
from veilmq.core.results import LeaseChange, ReceiptState
from veilmq.wire.sqs.batches import Batch
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.errors import MISSING_PARAMETER, RECEIPT_HANDLE_IS_INVALID, SqsError, invalid_parameter, shown
from veilmq.wire.sqs.names import is_fifo, queue_of
from veilmq.wire.sqs.parameters import required, required_number
from veilmq.wire.sqs.plan import Plan, answered
from veilmq.wire.sqs.requests import (
    ChangeMessageVisibilityBatchEntry,
    ChangeMessageVisibilityBatchRequest,
    ChangeMessageVisibilityRequest,
    DeleteMessageBatchEntry,
    DeleteMessageBatchRequest,
    DeleteMessageRequest,
)
from veilmq.wire.sqs.responses import BatchResult, BatchResultEntry, ChangedResultEntry

_OUT_OF_ORDER = (ReceiptState.EXPIRED, ReceiptState.SUPERSEDED)
"""What a receipt of a FIFO queue may not be: somebody else may be at work on its group."""

_WITHOUT_EFFECT = (ReceiptState.SUPERSEDED, ReceiptState.GONE)
"""With which a delete succeeds by the rules of SQS, and deletes nothing."""

_NO_RECEIPT = "The request must contain the parameter MessageHandle. Its name in requests is ReceiptHandle."
"""What DeleteMessage says to a request without one, under an old name."""

_LOST = (ReceiptState.SUPERSEDED, ReceiptState.EARLIER)
"""A change with which succeeds, and tells our own consumer that another one has received its message."""


def delete_message(request: DeleteMessageRequest, context: RequestContext) -> Plan:
    """DeleteMessage: succeeds for every receipt that this queue once issued; on FIFO queues not for an expired one."""
    queue = queue_of(request.queue_url, context)
    receipt = request.receipt_handle
    if not receipt:
        raise SqsError(MISSING_PARAMETER, _NO_RECEIPT)
    respond = partial(_delete_in_order if is_fifo(queue) else _acknowledge, receipt)
    return Plan(Delete(queue=queue, receipts=(receipt,), any_receive=context.stale_receipts_act), respond)


def delete_message_batch(request: DeleteMessageBatchRequest, context: RequestContext) -> Plan:
    """DeleteMessageBatch: up to ten receipts, each deleted or refused alone."""
    queue = queue_of(request.queue_url, context)
    batch = Batch(request.entries, "DeleteMessageBatchRequestEntry", _receipt)
    check = _check_in_order if is_fifo(queue) else _check

    def deleted(identifier: str, receipt: str, outcome: Any) -> BatchResultEntry:
        check(receipt, outcome)
        if outcome in _WITHOUT_EFFECT:
            return ChangedResultEntry(id=identifier, veilmq_receipt=outcome.value)
        return BatchResultEntry(id=identifier)

    def respond(results: Any) -> BatchResult:
        return batch.respond(results, deleted)

    receipts = tuple(receipt for _, receipt in batch.prepared)
    return Plan(Delete(queue=queue, receipts=receipts, any_receive=context.stale_receipts_act), respond)


def change_message_visibility(request: ChangeMessageVisibilityRequest, context: RequestContext) -> Plan:
    """ChangeMessageVisibility: hides a message for that long from now on, or releases it with 0."""
    queue = queue_of(request.queue_url, context)
    change = _change(request)

    def respond(results: Any) -> None:
        _check_change(queue, change, answered(results)[0])

    command = ChangeVisibility(queue=queue, changes=(change,), any_receive=context.stale_receipts_act)
    return Plan(command, respond)


def change_message_visibility_batch(request: ChangeMessageVisibilityBatchRequest, context: RequestContext) -> Plan:
    """ChangeMessageVisibilityBatch: up to ten changes, each made or refused alone."""
    queue = queue_of(request.queue_url, context)
    batch = Batch(request.entries, "ChangeMessageVisibilityBatchRequestEntry", _change)

    def changed(identifier: str, change: VisibilityChange, outcome: Any) -> BatchResultEntry:
        _check_change(queue, change, outcome)
        if outcome.state in _LOST:
            return ChangedResultEntry(id=identifier, veilmq_receipt=outcome.state.value)
        return ChangedResultEntry(id=identifier, veilmq_hidden_for_ms=outcome.hidden_for_ms)

    def respond(results: Any) -> BatchResult:
        return batch.respond(results, changed)

    changes = tuple(change for _, change in batch.prepared)
    return Plan(ChangeVisibility(queue=queue, changes=changes, any_receive=context.stale_receipts_act), respond)


def _acknowledge(receipt: str, results: Any) -> None:
    _check(receipt, answered(results)[0])


def _delete_in_order(receipt: str, results: Any) -> None:
    _check_in_order(receipt, answered(results)[0])


def _check(receipt: str, outcome: Any) -> Any:
    if isinstance(outcome, ReceiptInvalid) and not has_form(receipt):
        raise SqsError(
            RECEIPT_HANDLE_IS_INVALID, f'The input receipt handle "{shown(receipt)}" is not a valid receipt handle.'
        )
    return answered(outcome)


def _check_in_order(receipt: str, outcome: Any) -> None:
    if _check(receipt, outcome) in _OUT_OF_ORDER:
        raise _expired(receipt)


def _check_change(queue: str, change: VisibilityChange, outcome: Any) -> None:
    if isinstance(outcome, LeaseTooLong):
        raise _too_long(change, outcome)
    changed: LeaseChange = _check(change.receipt, outcome)
    if changed.state is ReceiptState.GONE:
        raise invalid_parameter(
            "ReceiptHandle",
            change.receipt,
            "Message does not exist or is not available for visibility timeout change.",
        )
    if changed.state in _OUT_OF_ORDER and is_fifo(queue):
        raise _expired(change.receipt)


def _receipt(request: DeleteMessageBatchEntry) -> str:
    return required("ReceiptHandle", request.receipt_handle)


def _change(request: ChangeMessageVisibilityRequest | ChangeMessageVisibilityBatchEntry) -> VisibilityChange:
    receipt = required("ReceiptHandle", request.receipt_handle)
    timeout_s = required_number("VisibilityTimeout", request.visibility_timeout)
    return VisibilityChange(receipt=receipt, timeout_s=timeout_s)


def _expired(receipt: str) -> SqsError:
    return invalid_parameter("ReceiptHandle", receipt, "The receipt handle has expired.")


def _too_long(change: VisibilityChange, error: LeaseTooLong) -> SqsError:
    return invalid_parameter(
        "VisibilityTimeout",
        change.timeout_s,
        f"Total VisibilityTimeout for the message is beyond the limit [{error.seconds_max} seconds]",
    )
