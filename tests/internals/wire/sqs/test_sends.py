"""SendMessage and SendMessageBatch beyond their errors."""

import pytest

from tests.internals.wire.sqs.asking import ID, ID_TEXT, QUEUE, SENT, answer, ask, refusal
from veilmq.core.commands import Send
from veilmq.core.properties import Attribute, Properties, decode
from veilmq.core.results import SentMessage
from veilmq.wire.sqs import errors

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
    assert decode(sent.properties).system == {"AWSTraceHeader": Attribute(type="String", text="Root=1-5")}
    assert decode(sent.properties).attributes == {}
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
    assert decode(sent.properties) == Properties(group="g")


def test_a_message_of_a_fifo_queue() -> None:
    """With its deduplication id, and a number in the answer."""
    message = {"MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    (sent,) = messages("SendMessage", QueueUrl=FIFO, **message).messages
    assert (sent.group, sent.dedup_id) == ("g", "d")
    assert decode(sent.properties) == Properties(group="g", dedup_id="d")
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
