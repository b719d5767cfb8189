"""A large request is measured before it is built: what is too wide is refused cheaply, anything else is unchanged."""

import json
import tracemalloc
from typing import Any

import msgspec
import pytest

from tests.internals.wire.sqs.asking import CONTEXT, QUEUE, URL, ask
from veilmq.core.commands import Delete, Send
from veilmq.core.limits import HTTP_BODY_BYTES_MAX, JSON_LARGE_BODY_BYTES, JSON_PUNCTUATION_MAX
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.actions import ACTIONS
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.json import decode, narrowing

PEAK_BYTES_MAX = 8 * HTTP_BODY_BYTES_MAX
"""Copies of the body, but nothing that grows with the number of its values."""


def body(member: str, *, opening: str, item: str, closing: str) -> bytes:
    """Return a request of the largest size whose `member` repeats `item`."""
    head = f'{{"QueueUrl":"{URL}","{member}":{opening}'
    count = (HTTP_BODY_BYTES_MAX - len(head) - 16) // (len(item) + 1)
    return (head + ",".join([item] * count) + closing + "}").encode()


def refusal(action: str, request: bytes) -> SqsError:
    """Return the error with which `request` is refused, having taken little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(SqsError) as caught:
            decode(action, request, CONTEXT)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < PEAK_BYTES_MAX
    return caught.value


@pytest.mark.parametrize("action", ["SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"])
def test_millions_of_entries_are_too_many(action: str) -> None:
    """The error of a batch of eleven, without their number."""
    error = refusal(action, body("Entries", opening="[", item="{}", closing="]"))
    assert error.code is errors.TOO_MANY_ENTRIES
    assert error.message == "Maximum number of entries per request are 10. You have sent more than 1365."


def test_millions_of_attributes_are_too_many() -> None:
    """The error of a message with eleven; names that repeat are not built either."""
    error = refusal("SendMessage", body("MessageAttributes", opening="{", item='"a":{}', closing="}"))
    assert error.code is errors.INVALID_PARAMETER_VALUE
    assert error.message == "Number of message attributes [more than 1365] exceeds the allowed maximum [10]."


@pytest.mark.parametrize(
    ("action", "member", "opening", "item", "closing"),
    [
        ("SendMessageBatch", "Entries", '[{"Id":"a","MessageBody":"x","MessageAttributes":{', '"a":{}', "}}]"),
        ("SendMessageBatch", "Entries", "[" * 5, '"a"', "]" * 5),
        ("SendMessage", "MessageSystemAttributes", "{", '"a":{}', "}"),
        ("SendMessage", "MessageAttributes", '{"a":{"StringListValues":[', '"a"', "]}}"),
        ("ReceiveMessage", "MessageAttributeNames", "[", '"a"', "]"),
        ("ReceiveMessage", "AttributeNames", "[", '"All"', "]"),
        ("GetQueueAttributes", "AttributeNames", "[", '"All"', "]"),
        ("SetQueueAttributes", "Attributes", "{", '"DelaySeconds":"1"', "}"),
        ("CreateQueue", "tags", "{", '"a":"1"', "}"),
    ],
)
def test_any_other_list_or_map_may_be_too_wide(action: str, member: str, opening: str, item: str, closing: str) -> None:
    """Also one inside of another; the error names the member."""
    error = refusal(action, body(member, opening=opening, item=item, closing=closing))
    assert error.code is errors.INVALID_PARAMETER_VALUE
    assert error.message.startswith(f"The parameter {member} holds more values than any valid request has")


def test_a_member_given_twice_counts_once_and_only_that_is_built() -> None:
    """The last one counts, and the first cannot smuggle its values in."""
    wide = body("Entries", opening="[", item="{}", closing="]")
    error = refusal("DeleteMessageBatch", wide[:-1] + b',"Entries":[]}')
    assert error.code is errors.EMPTY_BATCH_REQUEST


def test_a_wide_member_that_nobody_knows_is_ignored() -> None:
    """As every unknown member is."""
    call = ask("DeleteMessageBatch", Entries=[{"Id": "a", "ReceiptHandle": "r"}], Foo=[{}] * 100_000)
    assert call.command == Delete(queue=QUEUE, receipts=("r",))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{[,]}" * 20_000, id="punctuation"),
        pytest.param('"{,' * 30_000, id="quotation-marks"),
        pytest.param("\\" * 50_001 + '"[,', id="backslashes"),
        pytest.param("\\" * 50_000 + '"[,' * 9_000, id="even-backslashes"),
        pytest.param("é漢" * 40_000, id="other-letters"),
    ],
)
def test_what_stands_in_a_text_does_not_count(text: str) -> None:
    """A batch whose bodies are JSON themselves is as narrow as any."""
    call = ask("SendMessageBatch", Entries=[{"Id": "a", "MessageBody": text}, {"Id": "b", "MessageBody": "x"}])
    assert isinstance(call.command, Send)
    assert [message.body for message in call.command.messages] == [text, "x"]


def test_the_widest_valid_batch_passes() -> None:
    """Ten messages with ten attributes each, with every member that an attribute has, and their trace headers."""
    value: dict[str, Any] = {"DataType": "String", "StringValue": "v" * 700}
    value |= {"StringListValues": [], "BinaryListValues": [], "BinaryValue": None}
    entry = {
        "MessageBody": "x",
        "MessageAttributes": {f"name{number}": value for number in range(10)},
        "MessageSystemAttributes": {"AWSTraceHeader": value},
        "DelaySeconds": 0,
    }
    entries = [entry | {"Id": str(number)} for number in range(10)]
    assert len(json.dumps(entries)) > JSON_LARGE_BODY_BYTES
    call = ask("SendMessageBatch", Entries=entries)
    assert isinstance(call.command, Send)
    assert len(call.command.messages) == 10


@pytest.mark.parametrize("action", ACTIONS)
def test_every_member_of_a_large_request_is_read(action: str) -> None:
    """By the name that its action has for it, as in a small one."""
    request = ACTIONS[action].request
    small = json.dumps({field.encode_name: field.name for field in msgspec.structs.fields(request)}).encode()
    large = small[:-1] + b',"Foo":"' + b"x" * JSON_LARGE_BODY_BYTES + b'"}'
    assert json.loads(narrowing(request)(large)) == json.loads(small)


@pytest.mark.parametrize(("count", "told"), [(1_023, "1023"), (1_024, "more than 1023")])
def test_as_many_entries_as_are_counted_are_told(count: int, told: str) -> None:
    """Each of these has four marks (two braces, a comma inside and one behind), and their list two brackets."""
    entries = [{"Id": "a", "ReceiptHandle": "r" * 80}] * count
    assert (4 * count + 1 > JSON_PUNCTUATION_MAX) == told.startswith("more")
    with pytest.raises(SqsError, match=rf"You have sent {told}\.") as caught:
        ask("DeleteMessageBatch", Entries=entries)
    assert caught.value.code is errors.TOO_MANY_ENTRIES


def test_a_large_request_is_refused_in_the_same_words() -> None:
    """What is wrong with a member, or with the whole, does not depend on the size."""
    filler = "x" * JSON_LARGE_BODY_BYTES
    for request, text in [
        (f'{{"Entries":"{filler}"}}', "STRING_VALUE can not be converted to a List (at Entries)"),
        (
            f'{{"Entries":[{{"Id":1,"Foo":"{filler}"}}]}}',
            "NUMBER_VALUE can not be converted to a String (at Entries[0].Id)",
        ),
        (f'["{filler}"]', "Start of list found where not expected"),
        (f'{{"Entries":[{{"Id":"{filler}"', "The request body cannot be read: Input data was truncated."),
    ]:
        with pytest.raises(SqsError) as caught:
            decode("DeleteMessageBatch", request.encode(), CONTEXT)
        assert caught.value.code is errors.SERIALIZATION
        assert text in caught.value.message
