"""The actions on messages."""

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.clients.sqs_client import service_model
from tests.internals.wire.sqs.requests import QUEUE, URL, answer, ask, entries, refusal
from veilmq.core.commands import LeaseChange, Receive, Send
from veilmq.core.errors import ReceiptState
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.json import encode
from veilmq.wire.sqs.messages import SYSTEM_ATTRIBUTES

MAX = 1_048_576
FIFO = QUEUE + ".fifo"


def messages(action: str, **members: object) -> Send:
    command = ask(action, **members).command
    assert isinstance(command, Send)
    return command


def test_a_batch_may_have_a_mebibyte_and_no_byte_more() -> None:
    half = {"Id": "a", "MessageBody": "x" * (MAX // 2)}
    rest = {"Id": "b", "MessageBody": "x" * (MAX // 2 - 8)}
    attribute = {"MessageAttributes": {"a": {"DataType": "String", "StringValue": "x"}}}
    command = messages("SendMessageBatch", Entries=[half, rest | attribute])
    assert sum(message.size_bytes for message in command.messages) == MAX
    longer = rest | attribute | {"MessageBody": "x" * (MAX // 2 - 7)}
    error = refusal("SendMessageBatch", Entries=[half, longer])
    assert error.code is errors.BATCH_TOO_LONG
    assert "You have sent 1048577 bytes." in error.message


@pytest.mark.parametrize("member", ["MessageGroupId", "MessageDeduplicationId"])
@pytest.mark.parametrize("value", ["", "a b", "é", "x" * 129])
def test_an_id_that_breaks_the_rule(member: str, value: str) -> None:
    error = refusal("SendMessage", QueueUrl=FIFO, MessageBody="x", **{member: value})
    assert error.code is errors.INVALID_PARAMETER_VALUE
    assert f"{member} can only include alphanumeric and punctuation characters. 1 to 128 in length." in error.message


# ReceiveMessage beyond its errors.


def test_the_system_attributes_are_those_of_the_service_model() -> None:
    assert {"All", *SYSTEM_ATTRIBUTES} == set(service_model().shape_for("MessageSystemAttributeName").enum)


def test_an_attempt_id_goes_to_a_fifo_queue() -> None:
    call = ask("ReceiveMessage", QueueUrl=FIFO, ReceiveRequestAttemptId="x")
    assert call.command == Receive(queue=FIFO, attempt_id="x")
    error = refusal("ReceiveMessage", QueueUrl=FIFO, ReceiveRequestAttemptId="a b")
    assert error.code is errors.INVALID_PARAMETER_VALUE


def test_an_attempt_id_means_nothing_on_a_standard_queue() -> None:
    """As on AWS."""
    assert ask("ReceiveMessage", ReceiveRequestAttemptId="x").command == ask("ReceiveMessage").command


# What each state of a receipt is answered with: the receipt table of docs/lifecycle.md, its columns for SQS.

SUCCEEDED = {"Successful": [{"Id": "e0"}]}
CHANGE = {"ReceiptHandle": "r", "VisibilityTimeout": 0}
INVALID = "Value r for parameter ReceiptHandle is invalid. Reason: "
EXPIRED = INVALID + "The receipt handle has expired."
GONE = INVALID + "Message does not exist or is not available for visibility timeout change."
LIVE, EARLIER = ReceiptState.LIVE, ReceiptState.EARLIER
OVER, SUPERSEDED, DELETED = ReceiptState.EXPIRED, ReceiptState.SUPERSEDED, ReceiptState.GONE

DELETES: dict[tuple[str, ReceiptState], str] = {
    (URL, LIVE): "", (URL, OVER): "", (URL, EARLIER): "", (URL, SUPERSEDED): "", (URL, DELETED): "",
    (FIFO, LIVE): "", (FIFO, DELETED): "", (FIFO, OVER): EXPIRED, (FIFO, SUPERSEDED): EXPIRED,
}  # fmt: skip
CHANGES: dict[tuple[str, ReceiptState], str] = {
    (URL, LIVE): "", (URL, OVER): "", (URL, SUPERSEDED): "", (URL, DELETED): GONE,
    (FIFO, LIVE): "", (FIFO, OVER): EXPIRED, (FIFO, SUPERSEDED): EXPIRED, (FIFO, DELETED): GONE,
}  # fmt: skip
"""Queue and state of a receipt → why the action fails, empty where it succeeds."""


def change(state: ReceiptState) -> LeaseChange:
    """Return what the store answers a change with, its receipt being in ``state``."""
    acts = state in {LIVE, OVER}
    return LeaseChange(state=state, visible_at_ms=1, hidden_for_ms=7_000) if acts else LeaseChange(state=state)


def check(action: str, result: Any, url: str, why: str, **members: object) -> None:
    """Assert that an action and its batch succeed, or fail for the reason ``why``."""
    batch: dict[str, Any] = {"QueueUrl": url, "Entries": entries(1, **members)}
    if not why:
        assert answer(action, [result], QueueUrl=url, **members) == {}
        assert answer(f"{action}Batch", [result], **batch) == SUCCEEDED
        return
    with pytest.raises(ClientError) as caught:
        answer(action, [result], QueueUrl=url, **members)
    error = caught.value.response["Error"]
    assert (error["Code"], error["Message"]) == ("InvalidParameterValue", why)
    (failed,) = answer(f"{action}Batch", [result], **batch)["Failed"]
    assert failed == {"Id": "e0", "Code": "InvalidParameterValue", "SenderFault": True, "Message": why}


@pytest.mark.parametrize(("url", "state"), DELETES)
def test_a_delete(url: str, state: ReceiptState) -> None:
    check("DeleteMessage", state, url, DELETES[url, state], ReceiptHandle="r")


@pytest.mark.parametrize(("url", "state"), CHANGES)
def test_a_change(url: str, state: ReceiptState) -> None:
    check("ChangeMessageVisibility", change(state), url, CHANGES[url, state], **CHANGE)


def succeeded(action: str, result: Any, **members: object) -> Any:
    return json.loads(encode(ask(action, **members), [result]).body)["Successful"][0]


def test_what_was_done_stands_in_members_of_ours() -> None:
    """Clients of SQS ignore them; nothing else is told more than AWS tells."""
    expected: dict[ReceiptState, dict[str, Any]] = {
        LIVE: {"VeilmqHiddenForMs": 7_000},
        OVER: {"VeilmqHiddenForMs": 7_000},
        EARLIER: {"VeilmqReceipt": "earlier"},
        SUPERSEDED: {"VeilmqReceipt": "superseded"},
    }
    for state, more in expected.items():
        entry = succeeded("ChangeMessageVisibilityBatch", change(state), Entries=entries(1, **CHANGE))
        assert entry == {"Id": "e0"} | more
    receipts = entries(1, ReceiptHandle="r")
    for state in ReceiptState:
        more = {"VeilmqReceipt": state.value} if state in {SUPERSEDED, DELETED} else {}
        assert succeeded("DeleteMessageBatch", state, Entries=receipts) == {"Id": "e0"} | more
    gone = succeeded("DeleteMessageBatch", DELETED, QueueUrl=FIFO, Entries=receipts)
    assert gone == {"Id": "e0", "VeilmqReceipt": "gone"}
