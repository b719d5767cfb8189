"""What each state of a receipt is answered with: the receipt table of docs/lifecycle.md, its column for SQS."""

import pytest
from botocore.exceptions import ClientError

from tests.wire.sqs.asking import answer, entries
from veilmq.core.results import LeaseChange, ReceiptState

ACTING = {ReceiptState.LIVE, ReceiptState.EXPIRED}


def change(state: ReceiptState) -> LeaseChange:
    """Return what the engine answers a change with, its receipt being in ``state``."""
    return LeaseChange(state=state, visible_at_ms=1_700_000_000_000 if state in ACTING else None)


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


def test_a_change_fails_for_a_message_that_is_gone() -> None:
    """With the receipt that named it."""
    members = {"ReceiptHandle": "r", "VisibilityTimeout": 0}
    with pytest.raises(ClientError, match="Value r for parameter ReceiptHandle is invalid"):
        answer("ChangeMessageVisibility", [change(ReceiptState.GONE)], **members)
