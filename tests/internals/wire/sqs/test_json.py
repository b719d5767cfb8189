"""The JSON protocol: decoding, errors, and large requests."""

import json
import sys
import tracemalloc
from base64 import b64encode
from itertools import islice
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.internals.wire.sqs.requests import CONTEXT, ID_TEXT, NO_DEADLINE, QUEUE, URL, decode_request, raises
from veilmq.core.commands import Send
from veilmq.core.limits import HTTP_BODY_BYTES_MAX, JSON_LARGE_BODY_BYTES, JSON_PUNCTUATION_MAX
from veilmq.core.messages import NewMessage
from veilmq.wire.exchange import REQUEST_IDS, Plan
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.actions import ACTIONS
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.json import decode, encode_error, large_body_check
from veilmq.wire.sqs.members import TRACE_HEADER
from veilmq.wire.sqs.messages import SYSTEM_ATTRIBUTES
from veilmq.wire.sqs.queue_attributes import READ_ONLY, SETTINGS

ARN = f"arn:aws:sqs:us-east-1:000000000000:{QUEUE.rpartition('/')[2]}"
POLICY = json.dumps({"deadLetterTargetArn": ARN, "maxReceiveCount": 1})
HANDLE = b64encode(json.dumps({"taskId": ID_TEXT, "sourceArn": ARN}).encode()).decode()
TOO_WIDE = "NUMBER_VALUE can not be converted to an Integer, it is out of range (at DelaySeconds)"


def raw_error(action: str, body: bytes) -> SqsError:
    with pytest.raises(SqsError) as caught:
        decode(action.encode(), body, CONTEXT)
    return caught.value


def test_a_null_member_is_an_absent_member() -> None:
    """As on AWS."""
    call = decode_request(
        "SendMessage", MessageBody="x", DelaySeconds=None, MessageAttributes=None, MessageGroupId=None
    )
    assert call.command == Send(queue=QUEUE, messages=(NewMessage(body="x", size_bytes=1),))


def test_request_ids_run_no_python_frame() -> None:
    """So threads of a process can share them: a generator would raise if two threads enter it."""
    calls: list[str] = []
    sys.setprofile(lambda frame, event, arg: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        ids = {*islice(REQUEST_IDS, 600)}
    finally:
        sys.setprofile(None)
    assert (len(ids), calls) == (600, [])


@pytest.mark.parametrize(("body", "text"), [
    pytest.param(b"", "The request body is empty; it must be a JSON object.", id="empty"),
    pytest.param(b" \n", "The request body is empty; it must be a JSON object.", id="blank"),
    pytest.param(b"{", "cannot be read", id="truncated"),
    pytest.param(b"nonsense", "cannot be read", id="no-json"),
    pytest.param(b"{} {}", "trailing characters", id="trailing"),
    pytest.param(b"[]", "Start of list found where not expected", id="list"),
    pytest.param(b"null", "NULL_VALUE can not be converted to a Structure", id="null"),
    pytest.param(b'"x"', "STRING_VALUE can not be converted to a Structure", id="text"),
    pytest.param(b'{"MessageBody":"\xff"}', "not valid UTF-8", id="not-utf-8"),
    pytest.param(b'{"MessageBody":"\xed\xa0\x80"}', "not valid UTF-8", id="raw-surrogate"),
    pytest.param(b'{"MessageBody":"\\ud800"}', r"\ud800 at byte 16 is half of a surrogate pair", id="first-half"),
    pytest.param(b'{"MessageBody":"\\uD83D, \\uDE00 and more"}', r"\uD83D at byte 16 is half", id="halves-apart"),
    pytest.param(b'{"MessageBody":"\\ude00 alone and more"}', r"\ude00 at byte 16 is half", id="second-half"),
    pytest.param(b'{"MessageBody":"\\\\ud800 \\ud83d\\ude00', "Input data was truncated", id="whole-pair"),
    pytest.param(b'{"MessageBody":"a\nb"}', "cannot be read", id="raw-control-character"),
    pytest.param(b'{"Foo":' + b"[" * 100_000, "nested too deeply", id="deep"),
    pytest.param(b'{"MessageBody":1}', "NUMBER_VALUE can not be converted to a String (at MessageBody)", id="number"),
    pytest.param(b'{"MessageBody":true}', "BOOLEAN_VALUE can not be converted to a String", id="boolean"),
    pytest.param(b'{"MessageBody":["a"]}', "Start of list found where not expected (at MessageBody)", id="array"),
    pytest.param(b'{"MessageBody":{}}', "Start of structure or map found where not expected", id="object"),
    pytest.param(b'{"DelaySeconds":"5"}', "STRING_VALUE can not be converted to an Integer (at DelaySeconds)",
        id="number-as-text"),
    pytest.param(b'{"DelaySeconds":1.5}', "DECIMAL_VALUE can not be converted to an Integer", id="fraction"),
    pytest.param(b'{"DelaySeconds":2147483648}', TOO_WIDE, id="32-bits"),
    pytest.param(b'{"DelaySeconds":-2147483649}', TOO_WIDE, id="32-bits-below"),
    pytest.param(b'{"DelaySeconds":99999999999999999999}', TOO_WIDE, id="65-bits"),
    pytest.param(b'{"DelaySeconds":' + b"9" * 5_000 + b"}", TOO_WIDE, id="5000-digits"),
    pytest.param(b'{"DelaySeconds":1e400}', TOO_WIDE, id="huge-float"),
    pytest.param(b'{"MessageAttributes":[]}', "Start of list found", id="list-for-map"),
    pytest.param(b'{"MessageAttributes":{"a":null}}', "NULL_VALUE can not be converted to a Structure",
        id="null-value"),
    pytest.param(b'{"MessageAttributes":{"a":{"DataType":"Binary","BinaryValue":"%"}}}', "base64", id="not-base64"),
    pytest.param(b'{"MessageAttributes":{"a":{"BinaryValue":true}}}',
        "BOOLEAN_VALUE can not be converted to a Blob (at MessageAttributes[...].BinaryValue)", id="no-blob"),
])  # fmt: skip
def test_conversion_errors(body: bytes, text: str) -> None:
    error = raw_error("SendMessage", body)
    assert error.code is errors.SERIALIZATION
    assert text in error.message


def test_the_wait_time_of_a_request() -> None:
    """0 except for a receive; ``None`` is the setting of the queue."""
    assert decode_request("DeleteQueue").wait_s == 0
    assert decode_request("ReceiveMessage", WaitTimeSeconds=20).wait_s == 20
    assert decode_request("ReceiveMessage", WaitTimeSeconds=0).wait_s == 0
    assert decode_request("ReceiveMessage").wait_s is None


def check(action: str, body: bytes) -> None:
    """Assert that ``body`` decodes to a plan or raises an error that can be encoded."""
    outcome: Plan | int
    try:
        outcome = decode(action.encode(), body, CONTEXT)
    except SqsError as error:
        outcome = encode_error(error).status
    assert isinstance(outcome, Plan) or outcome in {400, 404}


@NO_DEADLINE
@given(action=st.sampled_from([*ACTIONS, "Foo"]), body=st.binary())
def test_any_bytes_decode_or_raise_an_sqs_error(action: str, body: bytes) -> None:
    check(action, body)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
KNOWN = st.sampled_from(
    sorted(
        {field.encode_name for row in ACTIONS.values() for field in msgspec.structs.fields(row.request)}
        | {*SETTINGS, *READ_ONLY, *SYSTEM_ATTRIBUTES, TRACE_HEADER}
        | {"Id", "DataType", "StringValue", "BinaryValue", "StringListValues", "Tags"}
    )
)
VALUES = st.recursive(
    JSON | st.sampled_from([URL, ARN, POLICY, HANDLE, "String", "Number", "Binary", "true", "a", "1", 1]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KNOWN | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@NO_DEADLINE
@given(action=st.sampled_from(list(ACTIONS)), members=st.dictionaries(KNOWN, VALUES), ascii_only=st.booleans())
def test_any_json_decodes_or_raises_an_sqs_error(action: str, members: dict[str, Any], ascii_only: bool) -> None:
    """With known names of members, a valid queue, and lone surrogates."""
    text = json.dumps({"QueueUrl": URL} | members, ensure_ascii=ascii_only)
    check(action, text.encode("utf-8", "surrogatepass"))


# The values of a large request are counted before it is decoded; too many are refused with little memory.

PEAK_BYTES_MAX = 8 * HTTP_BODY_BYTES_MAX
"""Some copies of the body, but nothing that grows with the number of values."""


def body(member: str, *, opening: str, item: str, closing: str) -> bytes:
    head = f'{{"QueueUrl":"{URL}","{member}":{opening}'
    count = (HTTP_BODY_BYTES_MAX - len(head) - 16) // (len(item) + 1)
    return (head + ",".join([item] * count) + closing + "}").encode()


def size_error(action: str, request: bytes) -> SqsError:
    """Return the error of decoding `request`, which must use little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(SqsError) as caught:
            decode(action.encode(), request, CONTEXT)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < PEAK_BYTES_MAX
    return caught.value


@pytest.mark.parametrize("action", ["SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"])
def test_millions_of_entries_are_too_many(action: str) -> None:
    error = size_error(action, body("Entries", opening="[", item="{}", closing="]"))
    assert error.code is errors.TOO_MANY_ENTRIES
    assert error.message == "Maximum number of entries per request are 10. You have sent more than 1365."


def test_millions_of_attributes_are_too_many() -> None:
    error = size_error("SendMessage", body("MessageAttributes", opening="{", item='"a":{}', closing="}"))
    assert error.code is errors.INVALID_PARAMETER_VALUE
    assert error.message == "Number of message attributes [more than 1365] exceeds the allowed maximum [10]."


@pytest.mark.parametrize(("action", "member", "opening", "item", "closing"), [
    ("SendMessageBatch", "Entries", '[{"Id":"a","MessageBody":"x","MessageAttributes":{', '"a":{}', "}}]"),
    ("SendMessageBatch", "Entries", "[" * 5, '"a"', "]" * 5),
    ("SendMessage", "MessageSystemAttributes", "{", '"a":{}', "}"),
    ("SendMessage", "MessageAttributes", '{"a":{"StringListValues":[', '"a"', "]}}"),
    ("ReceiveMessage", "MessageAttributeNames", "[", '"a"', "]"),
    ("ReceiveMessage", "AttributeNames", "[", '"All"', "]"),
    ("GetQueueAttributes", "AttributeNames", "[", '"All"', "]"),
    ("SetQueueAttributes", "Attributes", "{", '"DelaySeconds":"1"', "}"),
    ("CreateQueue", "tags", "{", '"a":"1"', "}"),
])  # fmt: skip
def test_too_many_values_in_any_other_member(action: str, member: str, opening: str, item: str, closing: str) -> None:
    error = size_error(action, body(member, opening=opening, item=item, closing=closing))
    assert error.code is errors.INVALID_PARAMETER_VALUE
    assert error.message.startswith(f"The parameter {member} holds more values than any valid request has")


@pytest.mark.parametrize("text", [
    pytest.param("{[,]}" * 20_000, id="punctuation"),
    pytest.param('"{,' * 30_000, id="quotation-marks"),
    pytest.param("\\" * 50_001 + '"[,', id="backslashes"),
    pytest.param("\\" * 50_000 + '"[,' * 9_000, id="even-backslashes"),
    pytest.param("é漢" * 40_000, id="other-letters"),
])  # fmt: skip
def test_punctuation_in_text_does_not_count(text: str) -> None:
    call = decode_request(
        "SendMessageBatch", Entries=[{"Id": "a", "MessageBody": text}, {"Id": "b", "MessageBody": "x"}]
    )
    assert isinstance(call.command, Send)
    assert [message.body for message in call.command.messages] == [text, "x"]


def test_the_widest_valid_batch_is_accepted() -> None:
    """Ten messages with trace headers and ten attributes each, with all members of an attribute."""
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
    call = decode_request("SendMessageBatch", Entries=entries)
    assert isinstance(call.command, Send)
    assert len(call.command.messages) == 10


@pytest.mark.parametrize("action", ACTIONS)
def test_every_member_of_a_large_request_is_read(action: str) -> None:
    request = ACTIONS[action].request
    small = json.dumps({field.encode_name: field.name for field in msgspec.structs.fields(request)}).encode()
    large = small[:-1] + b',"Foo":"' + b"x" * JSON_LARGE_BODY_BYTES + b'"}'
    assert json.loads(large_body_check(request)(large)) == json.loads(small)


@pytest.mark.parametrize(("count", "shown"), [(1_023, "1023"), (1_024, "more than 1023")])
def test_the_error_has_the_number_of_counted_entries(count: int, shown: str) -> None:
    """Each entry has four punctuation marks (two braces, a comma inside and one after it), the list two brackets."""
    entries = [{"Id": "a", "ReceiptHandle": "r" * 80}] * count
    assert (4 * count + 1 > JSON_PUNCTUATION_MAX) == shown.startswith("more")
    with raises(errors.TOO_MANY_ENTRIES, rf"You have sent {shown}\."):
        decode_request("DeleteMessageBatch", Entries=entries)


def test_errors_do_not_depend_on_the_size_of_the_request() -> None:
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
            decode(b"DeleteMessageBatch", request.encode(), CONTEXT)
        assert caught.value.code is errors.SERIALIZATION
        assert text in caught.value.message
