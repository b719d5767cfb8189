"""The actions on messages."""

import json

import pytest
from botocore.exceptions import ClientError

from tests.clients.sqs_client import service_model
from tests.internals.wire.sqs.asking import ID, ID_TEXT, QUEUE, SENT, answer, ask, entries, message, received, refusal
from veilmq.core.commands import LeaseChange, Receive, Received, ReceivedMessage, Send, SentMessage
from veilmq.core.errors import ReceiptState
from veilmq.core.messages import Attribute, Properties, decode_properties, encode_properties
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.messages import SYSTEM_ATTRIBUTES

MAX = 1_048_576
FIFO = QUEUE + ".fifo"


def messages(action: str, **members: object) -> Send:
    """Return the command of a send."""
    command = ask(action, **members).command
    assert isinstance(command, Send)
    return command


def test_a_message_without_attributes_carries_nothing() -> None:
    """Empty maps are no attributes."""
    (sent,) = messages("SendMessage", MessageBody="é", MessageAttributes={}, MessageSystemAttributes={}).messages
    assert (sent.size_bytes, sent.properties, sent.delay_s) == (2, b"", None)


def test_a_delay_of_zero_is_not_the_queues_own() -> None:
    """It overrides it."""
    (sent,) = messages("SendMessage", MessageBody="x", DelaySeconds=0).messages
    assert sent.delay_s == 0


def test_the_trace_header_is_kept_beside_the_attributes() -> None:
    """As a system attribute."""
    header = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5"}}
    (sent,) = messages("SendMessage", MessageBody="x", MessageSystemAttributes=header).messages
    assert decode_properties(sent.properties).system == {"AWSTraceHeader": Attribute(type="String", text="Root=1-5")}
    assert decode_properties(sent.properties).attributes == {}
    assert sent.size_bytes == 1


def test_an_over_long_message_is_for_the_engine_to_refuse() -> None:
    """Only the engine knows the queue's own limit, so the wire only counts."""
    (sent,) = messages("SendMessage", MessageBody="x" * (MAX + 1)).messages
    assert sent.size_bytes == MAX + 1


def test_a_batch_may_have_a_mebibyte_and_no_byte_more() -> None:
    """Attributes counted."""
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
    """And no member for what it has not."""
    attributes = {"Foo": {"DataType": "String", "StringValue": "Bar"}}
    batch = [{"Id": "a", "MessageBody": "msg", "MessageAttributes": attributes}, {"Id": "b", "MessageBody": "test"}]
    first, second = answer("SendMessageBatch", [SENT, SENT], Entries=batch)["Successful"]
    assert first["MD5OfMessageBody"] == "6e2baaf3b97dbeef01c0043275f9a0e7"
    assert first["MD5OfMessageAttributes"] == "ae7155c6026991b6d54b11589678bf9c"
    assert second["MD5OfMessageBody"] == "098f6bcd4621d373cade4e832627b4f6"
    assert "MD5OfMessageAttributes" not in second


def test_a_message_of_a_group() -> None:
    """Carries the group for the engine and for those who ask; it does not count towards the size."""
    (sent,) = messages("SendMessage", MessageBody="x", MessageGroupId="g").messages
    assert (sent.group, sent.dedup_id, sent.size_bytes) == ("g", None, 1)
    assert decode_properties(sent.properties) == Properties(group="g")


def test_a_message_of_a_fifo_queue() -> None:
    """With its deduplication id, and a number in the answer."""
    message = {"MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    (sent,) = messages("SendMessage", QueueUrl=FIFO, **message).messages
    assert (sent.group, sent.dedup_id) == ("g", "d")
    assert decode_properties(sent.properties) == Properties(group="g", dedup_id="d")
    numbered = SentMessage(id=ID, sequence=12)
    told = answer("SendMessage", [numbered], QueueUrl=FIFO, **message)
    assert (told["MessageId"], told["SequenceNumber"]) == (ID_TEXT, "10000000000000000012")
    (told,) = answer("SendMessageBatch", [numbered], QueueUrl=FIFO, Entries=[message | {"Id": "a"}])["Successful"]
    assert told["SequenceNumber"] == "10000000000000000012"


def test_what_is_missing_in_a_fifo_queue_is_for_the_engine_to_say() -> None:
    """Only the engine knows whether content will do for the id."""
    (sent,) = messages("SendMessage", QueueUrl=FIFO, MessageBody="x").messages
    assert (sent.group, sent.dedup_id, sent.properties) == (None, None, b"")


@pytest.mark.parametrize("member", ["MessageGroupId", "MessageDeduplicationId"])
@pytest.mark.parametrize("value", ["", "a b", "é", "x" * 129])
def test_an_id_that_breaks_the_rule(member: str, value: str) -> None:
    """Is refused."""
    error = refusal("SendMessage", QueueUrl=FIFO, MessageBody="x", **{member: value})
    assert error.code is errors.INVALID_PARAMETER_VALUE
    assert f"{member} can only include alphanumeric and punctuation characters. 1 to 128 in length." in error.message


def test_a_fifo_queue_has_one_delay_for_all() -> None:
    """Zero is allowed and means nothing, as on AWS."""
    (sent,) = messages("SendMessage", QueueUrl=FIFO, MessageBody="x", DelaySeconds=0).messages
    assert sent.delay_s is None
    error = refusal("SendMessage", QueueUrl=FIFO, MessageBody="x", DelaySeconds=1)
    assert error.code is errors.INVALID_PARAMETER_VALUE
    assert "Value 1 for parameter DelaySeconds is invalid. Reason: The request include parameter" in error.message


# ReceiveMessage beyond its errors.


TRACED = encode_properties(Properties(system={"AWSTraceHeader": Attribute(type="String", text="Root=1-5")}))
ALL = {
    "SenderId": "000000000000",
    "SentTimestamp": "1700000000000",
    "ApproximateReceiveCount": "1",
    "ApproximateFirstReceiveTimestamp": "1700000001000",
}


def test_a_receive_that_says_nothing() -> None:
    """One message, hidden for as long as its queue says; zero is a number."""
    assert ask("ReceiveMessage").command == Receive(queue=QUEUE, count=1, timeout_s=None)
    assert ask("ReceiveMessage", VisibilityTimeout=0).command == Receive(queue=QUEUE, count=1, timeout_s=0)


def test_an_empty_receive_has_no_member_at_all() -> None:
    """As on AWS."""
    assert answer("ReceiveMessage", received()) == {}


def test_the_system_attributes_are_those_of_the_service_model() -> None:
    """Each is known, whether a message here can have it or not."""
    assert {"All", *SYSTEM_ATTRIBUTES} == set(service_model().shape_for("MessageSystemAttributeName").enum)


@pytest.mark.parametrize("member", ["AttributeNames", "MessageSystemAttributeNames"])
def test_system_attributes_by_either_name_of_the_member(member: str) -> None:
    """The deprecated one and the new one."""
    result = received(message(), message(properties=TRACED))
    plain, traced = answer("ReceiveMessage", result, **{member: ["All"]})["Messages"]
    assert plain["Attributes"] == ALL
    assert traced["Attributes"] == ALL | {"AWSTraceHeader": "Root=1-5"}
    (told,) = answer("ReceiveMessage", received(message()), **{member: ["SenderId", "SequenceNumber"]})["Messages"]
    assert told["Attributes"] == {"SenderId": "000000000000"}


def test_both_members_add_up() -> None:
    """Each name is told once."""
    names = {"AttributeNames": ["SenderId", "SentTimestamp"], "MessageSystemAttributeNames": ["SenderId"]}
    (told,) = answer("ReceiveMessage", received(message()), **names)["Messages"]
    assert set(told["Attributes"]) == {"SenderId", "SentTimestamp"}


def test_names_of_queue_attributes_in_the_deprecated_member_tell_nothing() -> None:
    """The service model lists them there."""
    (told,) = answer("ReceiveMessage", received(message()), AttributeNames=["QueueArn", "Policy"])["Messages"]
    assert "Attributes" not in told


def test_attributes_nobody_asked_for_are_not_told() -> None:
    """Nor their digest."""
    carried = encode_properties(Properties(attributes={"a": Attribute(type="String", text="b")}))
    (told,) = answer("ReceiveMessage", received(message(properties=carried)))["Messages"]
    assert set(told) == {"MessageId", "ReceiptHandle", "MD5OfBody", "Body"}


def test_a_binary_attribute_arrives_as_bytes() -> None:
    """Through base64 on the wire."""
    carried = encode_properties(Properties(attributes={"a": Attribute(type="Binary.x", data=b"\x00\xff")}))
    (told,) = answer("ReceiveMessage", received(message(properties=carried)), MessageAttributeNames=["All"])["Messages"]
    assert told["MessageAttributes"] == {"a": {"BinaryValue": b"\x00\xff", "DataType": "Binary.x"}}


GROUPED = encode_properties(Properties(group="g", dedup_id="d"))


def test_a_message_of_a_fifo_queue_tells_what_it_is() -> None:
    """Its number, its group and its deduplication id."""
    told = told_of(message(properties=GROUPED, sequence=7))
    assert told == ALL | {
        "SequenceNumber": "10000000000000000007",
        "MessageGroupId": "g",
        "MessageDeduplicationId": "d",
    }


def test_a_message_that_was_deduplicated_by_its_content() -> None:
    """Has the SHA-256 of its body for an id."""
    told = told_of(message(properties=encode_properties(Properties(group="g")), sequence=0))
    assert told["MessageDeduplicationId"] == "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"


def test_a_message_of_a_group_in_a_standard_queue() -> None:
    """Has its group and nothing else of FIFO queues."""
    assert told_of(message(properties=encode_properties(Properties(group="g")))) == ALL | {"MessageGroupId": "g"}


def test_a_dead_letter_tells_where_it_came_from() -> None:
    """By the queue's ARN."""
    told = told_of(message(source="000000000000/jobs"))
    assert told == ALL | {"DeadLetterQueueSourceArn": "arn:aws:sqs:us-east-1:000000000000:jobs"}


def told_of(each: ReceivedMessage) -> dict[str, str]:
    """Return all system attributes of a message."""
    (told,) = answer("ReceiveMessage", received(each), MessageSystemAttributeNames=["All"])["Messages"]
    found: dict[str, str] = told["Attributes"]
    return found


def test_an_attempt_id_goes_to_a_fifo_queue() -> None:
    """If it keeps the rule."""
    call = ask("ReceiveMessage", QueueUrl=FIFO, ReceiveRequestAttemptId="x")
    assert call.command == Receive(queue=FIFO, attempt_id="x")
    error = refusal("ReceiveMessage", QueueUrl=FIFO, ReceiveRequestAttemptId="a b")
    assert error.code is errors.INVALID_PARAMETER_VALUE


@pytest.mark.parametrize(
    ("queue_wait_s", "wait_s", "refused"), [(0, None, True), (20, 0, True), (0, 1, False), (1, None, False)]
)
def test_a_queue_with_too_many_messages_in_flight(queue_wait_s: int, wait_s: int | None, refused: bool) -> None:
    """A short poll is refused, one that waited gets nothing; the queue's own wait counts where none was named."""
    result = Received(messages=[], next_due_ms=None, receive_wait_s=queue_wait_s, over_limit=True)
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
    """Quotes, backslashes, line ends and every plane of Unicode."""
    body = '"\\\n\r\t\u2028é😀</script>'
    (told,) = answer("ReceiveMessage", received(message(body=body)))["Messages"]
    assert told["Body"] == body


# What each state of a receipt is answered with: the receipt table of docs/lifecycle.md, its columns for SQS.


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
