"""DeleteMessage, ChangeMessageVisibility and their batches: what each state of a receipt is answered with.

On standard queues a delete succeeds whatever state its receipt is in, and a change fails only for a message that is
gone (``docs/lifecycle.md``, the receipt table); a receipt that was never issued is invalid for both.
"""

from typing import Any

from veilmq.core.commands import ChangeVisibility, Delete, VisibilityChange
from veilmq.core.errors import LeaseTooLong
from veilmq.core.results import LeaseChange, ReceiptState
from veilmq.wire.sqs.batches import Batch
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.errors import SqsError, invalid_parameter
from veilmq.wire.sqs.names import queue_of
from veilmq.wire.sqs.parameters import required, required_number
from veilmq.wire.sqs.plan import Plan, answered, only
from veilmq.wire.sqs.requests import (
    ChangeMessageVisibilityBatchEntry,
    ChangeMessageVisibilityBatchRequest,
    ChangeMessageVisibilityRequest,
    DeleteMessageBatchEntry,
    DeleteMessageBatchRequest,
    DeleteMessageRequest,
)
from veilmq.wire.sqs.responses import BatchResult, BatchResultEntry


def delete_message(request: DeleteMessageRequest, context: RequestContext) -> Plan:
    """DeleteMessage: succeeds for every receipt that this queue once issued."""
    queue = queue_of(request.queue_url, context)
    return Plan(Delete(queue=queue, receipts=(_receipt(request),)), _acknowledge)


def delete_message_batch(request: DeleteMessageBatchRequest, context: RequestContext) -> Plan:
    """DeleteMessageBatch: up to ten receipts, each deleted or refused alone."""
    queue = queue_of(request.queue_url, context)
    batch = Batch(request.entries, "DeleteMessageBatchRequestEntry", _receipt)

    def respond(results: Any) -> BatchResult:
        return batch.respond(results, _deleted)

    return Plan(Delete(queue=queue, receipts=tuple(receipt for _, receipt in batch.prepared)), respond)


def change_message_visibility(request: ChangeMessageVisibilityRequest, context: RequestContext) -> Plan:
    """ChangeMessageVisibility: hides a message for that long from now on, or releases it with 0."""
    queue = queue_of(request.queue_url, context)
    change = _change(request)

    def respond(results: Any) -> None:
        _check_change(change, answered(results)[0])

    return Plan(ChangeVisibility(queue=queue, changes=(change,)), respond)


def change_message_visibility_batch(request: ChangeMessageVisibilityBatchRequest, context: RequestContext) -> Plan:
    """ChangeMessageVisibilityBatch: up to ten changes, each made or refused alone."""
    queue = queue_of(request.queue_url, context)
    batch = Batch(request.entries, "ChangeMessageVisibilityBatchRequestEntry", _change)

    def respond(results: Any) -> BatchResult:
        return batch.respond(results, _changed)

    return Plan(ChangeVisibility(queue=queue, changes=tuple(change for _, change in batch.prepared)), respond)


def _acknowledge(results: Any) -> None:
    only(results)


def _check_change(change: VisibilityChange, outcome: Any) -> None:
    if isinstance(outcome, LeaseTooLong):
        raise _too_long(change, outcome)
    changed: LeaseChange = answered(outcome)
    if changed.state is ReceiptState.GONE:
        raise invalid_parameter(
            "ReceiptHandle",
            change.receipt,
            "Message does not exist or is not available for visibility timeout change.",
        )


def _deleted(identifier: str, receipt: str, outcome: Any) -> BatchResultEntry:
    answered(outcome)
    return BatchResultEntry(id=identifier)


def _changed(identifier: str, change: VisibilityChange, outcome: Any) -> BatchResultEntry:
    _check_change(change, outcome)
    return BatchResultEntry(id=identifier)


def _receipt(request: DeleteMessageRequest | DeleteMessageBatchEntry) -> str:
    return required("ReceiptHandle", request.receipt_handle)


def _change(request: ChangeMessageVisibilityRequest | ChangeMessageVisibilityBatchEntry) -> VisibilityChange:
    receipt = required("ReceiptHandle", request.receipt_handle)
    timeout_s = required_number("VisibilityTimeout", request.visibility_timeout)
    return VisibilityChange(receipt=receipt, timeout_s=timeout_s)


def _too_long(change: VisibilityChange, error: LeaseTooLong) -> SqsError:
    return invalid_parameter(
        "VisibilityTimeout",
        change.timeout_s,
        f"Total VisibilityTimeout for the message is beyond the limit [{error.seconds_max} seconds]",
    )
