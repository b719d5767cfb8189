"""What each state of a receipt is answered with: the receipt table of docs/lifecycle.md, its columns for SQS."""

import json

import pytest
from botocore.exceptions import ClientError

from tests.internals.wire.sqs.asking import QUEUE, answer, ask, entries
from veilmq.core.results import LeaseChange, ReceiptState

FIFO = QUEUE + ".fifo"
OUT_OF_ORDER = [ReceiptState.EXPIRED, ReceiptState.SUPERSEDED]
ACTING = {ReceiptState.LIVE, ReceiptState.EXPIRED}


def change(state: ReceiptState) -> LeaseChange:
    """Return what the engine answers a change with, its receipt being in ``state``."""
    if state not in ACTING:
        return LeaseChange(state=state)
    return LeaseChange(state=state, visible_at_ms=1_700_000_000_000, hidden_for_ms=7_000)


@pytest.mark.parametrize("state", ReceiptState)
def test_a_delete_succeeds_in_every_state(state: ReceiptState) -> None:
    """Whether anything was deleted or not."""
    assert answer("DeleteMessage", [state], ReceiptHandle="r") == {}
    told = answer("DeleteMessageBatch", [state], Entries=entries(1, ReceiptHandle="r"))
    assert told == {"Successful": [{"Id": "e0"}]}


@pytest.mark.parametrize("state", [ReceiptState.LIVE, ReceiptState.EXPIRED, ReceiptState.SUPERSEDED])
def test_a_change_succeeds_while_the_message_exists(state: ReceiptState) -> None:
    """Whether anything was changed or not."""
    members = {"ReceiptHandle": "r", "VisibilityTimeout": 0}
    assert answer("ChangeMessageVisibility", [change(state)], **members) == {}
    told = answer("ChangeMessageVisibilityBatch", [change(state)], Entries=entries(1, **members))
    assert told == {"Successful": [{"Id": "e0"}]}


def test_a_change_says_to_those_who_look_whether_it_was_made() -> None:
    """In members of ours, which clients of SQS ignore; nothing else is told more than AWS tells."""
    call = ask("ChangeMessageVisibilityBatch", Entries=entries(1, ReceiptHandle="r", VisibilityTimeout=0))
    bodies = [
        json.loads(call.encode([change(state)]).body)["Successful"] for state in ReceiptState if state.value != "gone"
    ]
    assert bodies == [
        [{"Id": "e0", "VeilmqHiddenForMs": 7_000}],
        [{"Id": "e0", "VeilmqHiddenForMs": 7_000}],
        [{"Id": "e0", "VeilmqReceipt": "earlier"}],
        [{"Id": "e0", "VeilmqReceipt": "superseded"}],
    ]


def test_a_delete_says_to_those_who_look_where_it_deleted_nothing() -> None:
    """In a member of ours, too; a FIFO queue refuses but for what is gone."""
    call = ask("DeleteMessageBatch", Entries=entries(1, ReceiptHandle="r"))
    told = {state.value: json.loads(call.encode([state]).body)["Successful"] for state in ReceiptState}
    assert told == {
        "live": [{"Id": "e0"}],
        "expired": [{"Id": "e0"}],
        "earlier": [{"Id": "e0"}],
        "superseded": [{"Id": "e0", "VeilmqReceipt": "superseded"}],
        "gone": [{"Id": "e0", "VeilmqReceipt": "gone"}],
    }
    fifo = ask("DeleteMessageBatch", QueueUrl=FIFO, Entries=entries(1, ReceiptHandle="r"))
    body = json.loads(fifo.encode([ReceiptState.GONE]).body)
    assert body["Successful"] == [{"Id": "e0", "VeilmqReceipt": "gone"}]


def test_a_change_fails_for_a_message_that_is_gone() -> None:
    """With the receipt that named it."""
    members = {"ReceiptHandle": "r", "VisibilityTimeout": 0}
    with pytest.raises(ClientError, match="Value r for parameter ReceiptHandle is invalid"):
        answer("ChangeMessageVisibility", [change(ReceiptState.GONE)], **members)


@pytest.mark.parametrize("state", [ReceiptState.LIVE, ReceiptState.GONE])
def test_a_fifo_delete_succeeds_for_what_is_live_or_gone(state: ReceiptState) -> None:
    """Repeating a delete is harmless."""
    assert answer("DeleteMessage", [state], QueueUrl=FIFO, ReceiptHandle="r") == {}
    told = answer("DeleteMessageBatch", [state], QueueUrl=FIFO, Entries=entries(1, ReceiptHandle="r"))
    assert told == {"Successful": [{"Id": "e0"}]}


@pytest.mark.parametrize("state", OUT_OF_ORDER)
def test_a_fifo_delete_fails_for_a_receipt_whose_time_is_over(state: ReceiptState) -> None:
    """Somebody else may be at work on its group."""
    with pytest.raises(ClientError, match="Value r for parameter ReceiptHandle is invalid") as caught:
        answer("DeleteMessage", [state], QueueUrl=FIFO, ReceiptHandle="r")
    check_expired(caught.value)
    (failed,) = answer("DeleteMessageBatch", [state], QueueUrl=FIFO, Entries=entries(1, ReceiptHandle="r"))["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("e0", "InvalidParameterValue", True)


@pytest.mark.parametrize("state", OUT_OF_ORDER)
def test_a_fifo_change_fails_for_a_receipt_whose_time_is_over(state: ReceiptState) -> None:
    """As the delete does."""
    members = {"ReceiptHandle": "r", "VisibilityTimeout": 0}
    result = [LeaseChange(state=state)]
    with pytest.raises(ClientError, match="Value r for parameter ReceiptHandle is invalid") as caught:
        answer("ChangeMessageVisibility", result, QueueUrl=FIFO, **members)
    check_expired(caught.value)
    (failed,) = answer("ChangeMessageVisibilityBatch", result, QueueUrl=FIFO, Entries=entries(1, **members))["Failed"]
    assert (failed["Id"], failed["Code"]) == ("e0", "InvalidParameterValue")
    assert answer("ChangeMessageVisibility", [change(ReceiptState.LIVE)], QueueUrl=FIFO, **members) == {}


def check_expired(error: ClientError) -> None:
    """Assert that ``error`` is that of AWS."""
    assert error.response["Error"]["Code"] == "InvalidParameterValue"
    assert "Reason: The receipt handle has expired." in error.response["Error"]["Message"]
