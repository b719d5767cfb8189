"""DeleteMessage, BatchDeleteMessage and ChangeMessageVisibility (reference, sections 4.10, 4.11, 4.13 and 5).

A receipt acts once, and only until its message is visible: each receive and each change issues a new one, and the one
before is dead. A server that is lenient still takes the receipts of the same receive that only a change superseded.
"""

from typing import Any

from veilmq.core.commands import ChangeVisibility, Delete, VisibilityChange
from veilmq.core.limits import SMQ_BATCH_ENTRIES_MAX, SMQ_VISIBILITY_TIMEOUT_S
from veilmq.core.results import LeaseChange, ReceiptState
from veilmq.wire.smq.errors import (
    MESSAGE_NOT_EXIST,
    MISSING_RECEIPT_HANDLE,
    MISSING_VISIBILITY_TIMEOUT,
    SmqError,
    invalid_argument,
)
from veilmq.wire.smq.members import SECONDS, body_of, children, whole_number
from veilmq.wire.smq.names import queue_of
from veilmq.wire.smq.plan import NO_CONTENT, Answer, Plan, answered, only
from veilmq.wire.smq.request import SmqRequest
from veilmq.wire.smq.xml_writing import container, document, element
from veilmq.wire.sqs.context import RequestContext

RECEIPT = "receipthandle"


def delete_message(request: SmqRequest, context: RequestContext) -> Plan:
    """DeleteMessage: with a live receipt, of a receive, a change, or the send of a message that is still delayed."""

    def respond(results: Any) -> Answer:
        _check(only(results))
        return NO_CONTENT

    return Plan(_delete(request, context, (_receipt(request),)), respond)


def batch_delete_message(request: SmqRequest, context: RequestContext) -> Plan:
    """BatchDeleteMessage: up to sixteen receipts, each alone; those that did not act are answered."""
    if not request.body:
        raise SmqError(MISSING_RECEIPT_HANDLE)
    receipts = tuple(each.text for each in children(body_of(request, "ReceiptHandles"), "ReceiptHandle"))
    if not all(receipts) or not 1 <= len(receipts) <= SMQ_BATCH_ENTRIES_MAX:
        raise invalid_argument(f"ReceiptHandles, of which there are 1 to {SMQ_BATCH_ENTRIES_MAX}")

    def respond(results: Any) -> Answer:
        failed = [
            failure for pair in zip(receipts, answered(results), strict=True) if (failure := _failure(*pair)) != ""
        ]
        if not failed:
            return NO_CONTENT
        return Answer(404, document("Errors", "".join(failed)), code=MESSAGE_NOT_EXIST.name)

    return Plan(_delete(request, context, receipts), respond)


def change_message_visibility(request: SmqRequest, context: RequestContext) -> Plan:
    """ChangeMessageVisibility: hides a message for that long from now on, and issues another receipt."""
    receipt = _receipt(request)
    timeout = request.query.get("visibilitytimeout")
    if not timeout:
        raise SmqError(MISSING_VISIBILITY_TIMEOUT)
    timeout_s = whole_number("VisibilityTimeout", timeout, SMQ_VISIBILITY_TIMEOUT_S, SECONDS)

    def respond(results: Any) -> Answer:
        change: LeaseChange = only(results)
        _check(change.state)
        told = element("ReceiptHandle", str(change.receipt)) + element("NextVisibleTime", str(change.visible_at_ms))
        return Answer(200, document("ChangeVisibility", told))

    command = ChangeVisibility(
        queue=queue_of(request, context),
        changes=(VisibilityChange(receipt=receipt, timeout_s=timeout_s),),
        only_live=True,
        any_epoch=context.smq_lenient,
        renew_receipt=True,
        lease_s_max=None,
    )
    return Plan(command, respond)


def _delete(request: SmqRequest, context: RequestContext, receipts: tuple[str, ...]) -> Delete:
    return Delete(queue=queue_of(request, context), receipts=receipts, only_live=True, any_epoch=context.smq_lenient)


def _receipt(request: SmqRequest) -> str:
    receipt = request.query.get(RECEIPT)
    if not receipt:
        raise SmqError(MISSING_RECEIPT_HANDLE)
    return receipt


def _check(state: ReceiptState) -> None:
    if state is not ReceiptState.LIVE:
        raise SmqError(MESSAGE_NOT_EXIST)


def _failure(receipt: str, outcome: Any) -> str:
    """Return the element of a receipt that did not act, nothing for one that did."""
    try:
        _check(answered(outcome))
    except SmqError as error:
        told = {"ErrorCode": error.code.name, "ErrorMessage": error.message, "ReceiptHandle": receipt}
        return container("Error", "".join(element(name, text) for name, text in told.items()))
    return ""
