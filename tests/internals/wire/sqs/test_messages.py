"""The actions on messages."""

import json
from hashlib import md5
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.clients.sqs_client import service_model
from tests.internals.wire.sqs.requests import (
    QUEUE,
    SENT,
    URL,
    answer,
    ask,
    entries,
    message,
    received,
    refusal,
)
from veilmq.core.commands import LeaseChange, Receive, ReceivedMessage, Send
from veilmq.core.errors import ReceiptState
from veilmq.core.messages import Attribute, Properties, encode_properties
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.json import encode
from veilmq.wire.sqs.messages import SYSTEM_ATTRIBUTES

MAX = 1_048_576
FIFO = QUEUE + ".fifo"


def messages(action: str, **members: object) -> Send:
    command = ask(action, **members).command
    assert isinstance(command, Send)
    return command


TRACE = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5"}}
TRACED = Properties(system={"AWSTraceHeader": Attribute(type="String", text="Root=1-5")})
GROUP = {"MessageBody": "x", "MessageGroupId": "g"}
NUMBERED = GROUP | {"MessageDeduplicationId": "d"}


@pytest.mark.parametrize(("members", "size_bytes", "carried", "delay_s"), [
    ({"MessageBody": "é", "MessageAttributes": {}, "MessageSystemAttributes": {}}, 2, Properties(), None),
    ({"MessageBody": "x", "DelaySeconds": 0}, 1, Properties(), 0),  # which is not the queue's own
    ({"MessageBody": "x", "MessageSystemAttributes": TRACE}, 1, TRACED, None),
    ({"MessageBody": "x" * (MAX + 1)}, MAX + 1, Properties(), None),  # only the store knows the queue's own limit
    (GROUP, 1, Properties(group="g"), None),
    (NUMBERED | {"QueueUrl": FIFO}, 1, Properties(group="g", dedup_id="d"), None),
    ({"QueueUrl": FIFO, "MessageBody": "x"}, 1, Properties(), None),  # the store knows if content will do for the id
    ({"QueueUrl": FIFO, "MessageBody": "x", "DelaySeconds": 0}, 1, Properties(), None),  # as on AWS
], ids=range(8))  # fmt: skip
def test_what_is_sent(members: dict[str, object], size_bytes: int, carried: Properties, delay_s: int | None) -> None:
    (sent,) = messages("SendMessage", **members).messages
    assert (sent.size_bytes, sent.delay_s, sent.group, sent.dedup_id) == (
        size_bytes, delay_s, carried.group, carried.dedup_id
    )  # fmt: skip
    assert sent.properties == (encode_properties(carried) if carried != Properties() else b"")


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


def test_each_message_of_a_batch_has_its_own_digests() -> None:
    """As AWS returned them; what needs two bytes is digested in UTF-8, and a receive tells the same."""
    attributes = {"Foo": {"DataType": "String", "StringValue": "Bar"}}
    digests = {
        "msg": "6e2baaf3b97dbeef01c0043275f9a0e7",
        "test": "098f6bcd4621d373cade4e832627b4f6",
        "é": md5(b"\xc3\xa9", usedforsecurity=False).hexdigest(),
    }
    batch: list[dict[str, Any]] = [{"Id": str(at), "MessageBody": body} for at, body in enumerate(digests)]
    batch[0]["MessageAttributes"] = attributes
    sent = answer("SendMessageBatch", [SENT] * 3, Entries=batch)["Successful"]
    assert [each["MD5OfMessageBody"] for each in sent] == list(digests.values())
    assert [each.get("MD5OfMessageAttributes") for each in sent] == ["ae7155c6026991b6d54b11589678bf9c", None, None]
    assert [told(message(body=body))["MD5OfBody"] for body in digests] == list(digests.values())


@pytest.mark.parametrize("member", ["MessageGroupId", "MessageDeduplicationId"])
@pytest.mark.parametrize("value", ["", "a b", "é", "x" * 129])
def test_an_id_that_breaks_the_rule(member: str, value: str) -> None:
    error = refusal("SendMessage", QueueUrl=FIFO, MessageBody="x", **{member: value})
    assert error.code is errors.INVALID_PARAMETER_VALUE
    assert f"{member} can only include alphanumeric and punctuation characters. 1 to 128 in length." in error.message


# ReceiveMessage beyond its errors.

ALL = {
    "SenderId": "000000000000",
    "SentTimestamp": "1700000000000",
    "ApproximateReceiveCount": "1",
    "ApproximateFirstReceiveTimestamp": "1700000001000",
}
GROUPED = Properties(group="g", dedup_id="d")
OF_CONTENT = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"


def carrying(carried: Properties, **more: Any) -> ReceivedMessage:
    return message(properties=encode_properties(carried), **more)


def told(each: ReceivedMessage, **members: object) -> dict[str, Any]:
    (shown,) = answer("ReceiveMessage", received(each), **members)["Messages"]
    found: dict[str, Any] = shown
    return found


def test_the_system_attributes_are_those_of_the_service_model() -> None:
    assert {"All", *SYSTEM_ATTRIBUTES} == set(service_model().shape_for("MessageSystemAttributeName").enum)


@pytest.mark.parametrize(("names", "chosen"), [
    ({"AttributeNames": ["All"]}, set(ALL)), ({"MessageSystemAttributeNames": ["All"]}, set(ALL)),
    ({"AttributeNames": ["SenderId", "SequenceNumber"]}, {"SenderId"}),
    ({"MessageSystemAttributeNames": ["SenderId", "SequenceNumber"]}, {"SenderId"}),
    ({"AttributeNames": ["SenderId", "SentTimestamp"], "MessageSystemAttributeNames": ["SenderId"]},
        {"SenderId", "SentTimestamp"}),
    ({"AttributeNames": ["QueueArn", "Policy"]}, set()),  # the service model has them there
    ({}, set()),
], ids=range(7))  # fmt: skip
def test_system_attributes_by_either_name_of_the_member(names: dict[str, list[str]], chosen: set[str]) -> None:
    shown = told(message(), **names)
    assert shown.get("Attributes", {}) == {name: ALL[name] for name in chosen}
    assert ("Attributes" in shown) is bool(chosen)


@pytest.mark.parametrize(("each", "more"), [
    (carrying(TRACED), {"AWSTraceHeader": "Root=1-5"}),
    (carrying(GROUPED, sequence=7),
        {"SequenceNumber": "10000000000000000007", "MessageGroupId": "g", "MessageDeduplicationId": "d"}),
    (carrying(Properties(group="g"), sequence=0),
        {"SequenceNumber": "10000000000000000000", "MessageGroupId": "g", "MessageDeduplicationId": OF_CONTENT}),
    (carrying(Properties(group="g")), {"MessageGroupId": "g"}),
    (message(source="000000000000/jobs"), {"DeadLetterQueueSourceArn": "arn:aws:sqs:us-east-1:000000000000:jobs"}),
], ids=["traced", "fifo", "by-content", "group", "dead-letter"])  # fmt: skip
def test_what_a_message_has_beside_the_usual(each: ReceivedMessage, more: dict[str, str]) -> None:
    assert told(each, MessageSystemAttributeNames=["All"])["Attributes"] == ALL | more


def test_an_attempt_id_goes_to_a_fifo_queue() -> None:
    call = ask("ReceiveMessage", QueueUrl=FIFO, ReceiveRequestAttemptId="x")
    assert call.command == Receive(queue=FIFO, attempt_id="x")
    error = refusal("ReceiveMessage", QueueUrl=FIFO, ReceiveRequestAttemptId="a b")
    assert error.code is errors.INVALID_PARAMETER_VALUE


@pytest.mark.parametrize(
    ("queue_wait_s", "wait_s", "refused"), [(0, None, True), (20, 0, True), (0, 1, False), (1, None, False)]
)
def test_a_queue_with_too_many_messages_in_flight(queue_wait_s: int, wait_s: int | None, refused: bool) -> None:
    """A short poll is refused, one that waited gets nothing; the queue's own wait counts where none was named."""
    result = received(receive_wait_s=queue_wait_s, over_limit=True)
    members = {} if wait_s is None else {"WaitTimeSeconds": wait_s}
    if not refused:
        assert answer("ReceiveMessage", result, **members) == {}
        return
    with pytest.raises(ClientError) as caught:
        answer("ReceiveMessage", result, **members)
    assert caught.value.response["Error"]["Code"] == "OverLimit"


def test_an_attempt_id_means_nothing_on_a_standard_queue() -> None:
    """As on AWS."""
    assert ask("ReceiveMessage", ReceiveRequestAttemptId="x").command == ask("ReceiveMessage").command


def test_a_body_comes_back_whatever_it_holds() -> None:
    body = '"\\\n\r\t\u2028é😀</script>'
    assert told(message(body=body))["Body"] == body


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
