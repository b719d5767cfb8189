"""The Query protocol: parameters, members and replies."""

import runpy
import tracemalloc
from functools import partial
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from tests.clients.sqs_client import parse_query_reply, query_form
from tests.internals.wire.sqs.requests import CONTEXT, NO_DEADLINE, URL
from tests.tidy import tree
from veilmq.core.limits import HTTP_BODY_BYTES_MAX, QUERY_DEPTH_MAX, QUERY_PARAMETERS_MAX
from veilmq.wire.exchange import Plan
from veilmq.wire.sqs import errors
from veilmq.wire.sqs import json as sqs_json
from veilmq.wire.sqs.actions import ACTIONS
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.members import Integer, Shape
from veilmq.wire.sqs.query import Form, decode, encode_error, form_of, parameters, read_members

ROOT = b"/"
AT_QUEUE = b"/000000000000/orders"


def decode_form(action: str | bytes, body: str = "", *, target: bytes = AT_QUEUE) -> Plan:
    """Decode a form sent to the path of a queue."""
    name = action if isinstance(action, bytes) else action.encode()
    return decode(name, form_of(target, body.encode()), CONTEXT)


def error_of(action: str | bytes, body: str = "", *, target: bytes = AT_QUEUE) -> SqsError:
    with pytest.raises(SqsError) as caught:
        decode_form(action, body, target=target)
    return caught.value


@pytest.mark.parametrize(("target", "body", "code"), [
    (ROOT, "", errors.MISSING_PARAMETER), (AT_QUEUE, "QueueUrl=", errors.MISSING_PARAMETER),
    (b"/orders", "", errors.INVALID_ADDRESS), (b"/a%2Fb/c d", "", errors.INVALID_ADDRESS),
    (b"/\xff/\xfe", "", errors.INVALID_ADDRESS), (AT_QUEUE, "QueueUrl.1=a", errors.MALFORMED_INPUT),
])  # fmt: skip
def test_missing_and_invalid_queues(target: bytes, body: str, code: errors.Code) -> None:
    assert error_of("DeleteQueue", body, target=target).code is code


@pytest.mark.parametrize("action", [b"Foo", b"", b"\xff\x00<"])
def test_unknown_actions(action: bytes) -> None:
    with pytest.raises(SqsError) as caught:
        sqs_json.decode(action, b"", CONTEXT)
    error = error_of(action, "%")
    assert (error.code, error.message) == (caught.value.code, caught.value.message)


@pytest.mark.parametrize(("action", "body", "text"), [
    ("ReceiveMessage", "MaxNumberOfMessages=ten", "STRING_VALUE can not be converted to an Integer"),
    ("ReceiveMessage", "MaxNumberOfMessages=", "STRING_VALUE can not be converted to an Integer"),
    ("ReceiveMessage", "MaxNumberOfMessages=1.0", "STRING_VALUE can not be converted to an Integer"),
    ("ReceiveMessage", "MaxNumberOfMessages=2147483648", "out of range (at MaxNumberOfMessages)"),
    ("ReceiveMessage", "MaxNumberOfMessages.1=1", "Start of structure or map found where not expected"),
    ("ReceiveMessage", "AttributeName.member.1=All", "member is not a valid index"),
    ("ReceiveMessage", "MessageAttributeNames.member.1=All", "Start of list found where not expected"),
    ("ReceiveMessage", "AttributeName.0=All", "0 is not a valid index"),
    ("SendMessage", "MessageBody.1=x", "Start of structure or map found where not expected (at MessageBody)"),
    ("SendMessage", "MessageBody=x&MessageBody=y", "two values"),
    ("SendMessage", "MessageAttribute=x", "STRING_VALUE can not be converted to a Structure"),
    ("SendMessage", "MessageAttribute.1.Name=a&MessageAttribute.1.Value=x", "can not be converted to a Structure"),
    ("SendMessage", "MessageAttribute.1.Name.1=a", "Start of list found where not expected"),
    ("SendMessage", "MessageAttribute.1.Name=a&MessageAttribute.1.Value.BinaryValue=_", "base64"),
    ("TagQueue", "Tag.1.Key=a&Tag.1.Value=x&Tag.2.Key=a&Tag.2.Value=y", "Tag has two values for a"),
    ("SendMessageBatch", "SendMessageBatchRequestEntry.1=x", "can not be converted to a Structure (at Entries[0])"),
    ("SendMessageBatch", "SendMessageBatchRequestEntry.1.DelaySeconds=x", "(at Entries[0].DelaySeconds)"),
    ("SetQueueAttributes", "Attribute.1.Name=a&Attribute.1.Value.1=x", "Start of structure or map found"),
])  # fmt: skip
def test_conversion_errors(action: str, body: str, text: str) -> None:
    error = error_of(action, body)
    assert error.code is errors.MALFORMED_INPUT
    assert text in error.message


@pytest.mark.parametrize("code", errors.CODES, ids=lambda code: code.query)
def test_a_client_understands_each_error(code: errors.Code) -> None:
    reply = encode_error(SqsError(code, "a < b"))
    assert (reply.status, reply.code) == (code.status, code.name)
    with pytest.raises(ClientError) as caught:
        parse_query_reply("ListQueues", reply)
    assert caught.value.response["Error"] == {
        "Type": code.fault,
        "Code": code.query,
        "Message": "a < b",
        "Detail": None,
    }


def test_common_errors_of_the_protocol_are_documented() -> None:
    raised = {error_of("Foo").code, error_of("PurgeQueue", "%").code, error_of("PurgeQueue", "a=1&a=2").code}
    raised |= {error_of("PurgeQueue", "Version=1").code, error_of("PurgeQueue", target=b"/orders").code}
    page = runpy.run_path(str(tree.ROOT / "scripts" / "sqs_page.py"))
    assert raised == {*page["BY_PROTOCOL"]["Query"], errors.UNKNOWN_OPERATION}
    assert errors.UNKNOWN_OPERATION in page["EVERYWHERE"]


def members_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return requests, or parts of them, of the type ``kind``, in the form that botocore takes."""
    strategy: st.SearchStrategy[Any] = _MEMBERS[type(kind)](kind)
    return strategy


def _structures(kind: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={field.encode_name: members_of(field.type) for field in kind.fields})


def _present(kind: Any) -> st.SearchStrategy[Any]:
    (present,) = (choice for choice in kind.types if not isinstance(choice, inspect.NoneType))
    return members_of(present)


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
_MEMBERS: dict[type, Any] = {
    inspect.UnionType: _present,
    inspect.StructType: _structures,
    # In a form, an empty list and an empty structure are both absent.
    inspect.ListType: lambda kind: st.lists(members_of(kind.item_type).filter(_is_not_empty), min_size=1, max_size=3),
    inspect.DictType: lambda kind: st.dictionaries(TEXT, members_of(kind.value_type), min_size=1, max_size=3),
    inspect.StrType: lambda kind: TEXT,
    inspect.IntType: lambda kind: st.integers(kind.ge or 0, kind.le or 2**31),
    inspect.BytesType: lambda kind: st.binary(max_size=8),
}


def _is_not_empty(part: Any) -> bool:
    return bool(part != {})


@NO_DEADLINE
@given(data=st.data(), action=st.sampled_from(list(ACTIONS)))
def test_a_request_is_the_same_in_both_protocols(data: st.DataObject, action: str) -> None:
    """botocore encodes the form."""
    request = ACTIONS[action].request
    members = data.draw(_structures(inspect.type_info(request)))
    in_json = msgspec.json.decode(msgspec.json.encode(members), type=request)
    form = Form(ROOT, b"", query_form(action, members).encode())
    in_query = msgspec.convert(read_members(request, parameters(form), action), request)
    if hasattr(in_query, "entries") and "Entries" not in members:
        in_json = msgspec.structs.replace(in_json, entries=[])
    assert in_query == in_json


def check(action: bytes, form: Form) -> None:
    """Assert that ``form`` decodes to a plan or raises an error that can be encoded."""
    try:
        outcome = decode(action, form, CONTEXT)
    except SqsError as error:
        reply = encode_error(error)
        assert 400 <= reply.status < 500
        ET.fromstring(reply.body)
    else:
        assert isinstance(outcome, Plan)


@NO_DEADLINE
@given(action=st.sampled_from([*map(str.encode, ACTIONS), b"Foo"]) | st.binary(), target=st.binary(), body=st.binary())
def test_any_bytes_decode_or_raise_an_sqs_error(action: bytes, target: bytes, body: bytes) -> None:
    check(action, form_of(target, body))


NAME_PARTS = st.sampled_from(
    [
        "QueueUrl", "QueueName", "Attribute", "AttributeName", "AttributeNames", "MessageAttribute", "Name", "Value",
        "Key", "Tag", "SendMessageBatchRequestEntry", "DeleteMessageBatchRequestEntry", "Id", "MessageBody",
        "MessageSystemAttribute", "ChangeMessageVisibilityBatchRequestEntry", "VisibilityTimeout", "ReceiptHandle",
        "MaxNumberOfMessages", "DataType", "StringValue", "BinaryValue", "StringListValue", "Entries", "Version",
        "AWSTraceHeader", "NextToken", "member", "entry", "0", "1", "2", "3", "",
    ]
)  # fmt: skip
NAMES = st.lists(NAME_PARTS, min_size=1, max_size=9).map(".".join)
VALUES = st.sampled_from(
    [URL, "String", "Binary", "Number", "a", "1", "YQ==", "2012-11-05", "All", "%", "%41", "%ff", ""]
)


@NO_DEADLINE
@given(
    action=st.sampled_from(list(ACTIONS)),
    pairs=st.lists(st.tuples(NAMES, VALUES | TEXT), max_size=8),
    target=st.sampled_from([ROOT, AT_QUEUE]),
)
def test_any_parameters_decode_or_raise_an_sqs_error(action: str, pairs: list[tuple[str, str]], target: bytes) -> None:
    body = "&".join(f"{name}={value}" for name, value in pairs)
    check(action.encode(), form_of(target, body.encode()))


# Parameters.


def form(body: bytes, *, query: bytes = b"") -> Form:
    return Form(b"/", query, body)


def form_error(read: Form) -> SqsError:
    with pytest.raises(SqsError) as caught:
        parameters(read)
    return caught.value


@pytest.mark.parametrize(
    ("contradiction", "name"), [(b"a=b&a=c", "a"), (b"a=b&a.1=c", "a.1"), (b"a.1=c&a=b", "a"), (b"a.1=c&a=", "a")]
)
def test_a_parameter_with_two_values_is_refused(contradiction: bytes, name: str) -> None:
    error = form_error(form(contradiction))
    assert error.code is errors.MALFORMED_INPUT
    assert error.message == f"The parameter {name} has two values; send it once."
    first, _, second = contradiction.partition(b"&")
    assert form_error(form(second, query=first)).message == error.message


@pytest.mark.parametrize(("text", "why"), [
    *((text, "percent sign") for text in (b"a=%", b"a=%4", b"a=%4g", b"a=%%41", b"%=a", b"a=+%-1")),
    *((text, "UTF-8") for text in (b"a=%ff", b"a=\xff", b"a=%ED%A0%80", b"%c3=a")),
])  # fmt: skip
def test_invalid_escapes_and_invalid_utf_8_are_refused(text: bytes, why: str) -> None:
    error = form_error(form(text))
    assert error.code is errors.MALFORMED_QUERY_STRING
    assert why in error.message


def test_parameters_are_counted_before_they_are_split() -> None:
    """Query string and body count together."""
    most = b"&".join(b"p%d=" % number for number in range(QUERY_PARAMETERS_MAX - 1))
    assert len(parameters(form(most))) == QUERY_PARAMETERS_MAX - 1
    assert len(parameters(form(most[5:], query=b"p0="))) == QUERY_PARAMETERS_MAX - 1
    for read in (form(most + b"&x&y"), form(most, query=b"&x"), form(b"&" * QUERY_PARAMETERS_MAX)):
        error = form_error(read)
        assert error.code is errors.MALFORMED_INPUT
        assert error.message == "The request has more than 1024 parameters; send fewer."


def test_parameter_names_are_split_to_a_fixed_depth() -> None:
    tree = parameters(form(b"a" + b".a" * 1_000_000 + b"=x"))
    depth = 0
    while isinstance(below := tree["a"] if "a" in tree else tree.popitem()[1], dict):
        tree = below
        depth += 1
    assert depth == QUERY_DEPTH_MAX


@pytest.mark.parametrize("body", [
    pytest.param(b"a=" + b"%41" * (HTTP_BODY_BYTES_MAX // 3 - 1), id="escapes"),
    pytest.param(b"a=" + b"=" * (HTTP_BODY_BYTES_MAX - 2), id="signs"),
    pytest.param(b"a" + b".a" * (HTTP_BODY_BYTES_MAX // 2 - 1), id="parts"),
    pytest.param(b"&".join(b"%d%s" % (n, b".a" * 9) for n in range(QUERY_PARAMETERS_MAX - 1)), id="branches"),
])  # fmt: skip
def test_the_largest_body_takes_little_memory(body: bytes) -> None:
    tracemalloc.start()
    parameters(form(body))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 5 * HTTP_BODY_BYTES_MAX


# Members.


class Part(Shape, frozen=True, kw_only=True):
    """An element of a list or a map."""

    id: str | None = None
    values: list[bytes] | None = None


class SampleRequest(Shape, frozen=True, kw_only=True):
    """A request with one member of each type."""

    text: str = ""
    number: Integer | None = None
    names: list[str] | None = None
    tags: dict[str, str] | None = None
    parts: list[Part] | None = None
    settings: dict[str, Part] | None = None
    entries: list[Part] | None = None


read = partial(read_members, SampleRequest, action="Do")


def members(body: bytes) -> dict[str, Any]:
    return read(parameters(Form(b"/", b"", body)))


def members_error(body: bytes) -> SqsError:
    with pytest.raises(SqsError) as caught:
        members(body)
    return caught.value


@pytest.mark.parametrize("index", ["0", "-1", "01", "x", "", "1x", "1 ", "٣", "1000000000", "member"])
@pytest.mark.parametrize("body", ["Name.{}=a", "Name.1=a&Name.{}=b", "Tag.{}.Key=a", "Part.{}.Id=b"])
def test_invalid_indices_are_refused(body: str, index: str) -> None:
    """With the text of AWS; ``.member.`` is refused too, as on AWS."""
    error = members_error(body.format(index).encode())
    assert error.code is errors.MALFORMED_INPUT
    assert error.message == f"{index} is not a valid index"


def test_elements_are_in_the_order_of_their_numbers() -> None:
    """Not of the digits: the entries of a FIFO batch are sent in this order."""
    assert members(b"Name.10=c&Name.9=b&Name.1=a")["Names"] == ["a", "b", "c"]


@pytest.mark.parametrize(("body", "missing"), [
    (b"Tag.1.Value=b", "Tag.1.Key"), (b"Tag.7.Key=b", "Tag.7.Value"), (b"Tag.1=b", "Tag.1.Key"),
    (b"Tag.Key=b", "Tag.Value"), (b"Setting.1.Value.Id=b", "Setting.1.Name"),
])  # fmt: skip
def test_an_entry_of_a_map_needs_key_and_value(body: bytes, missing: str) -> None:
    """The error has the name of the missing parameter."""
    error = members_error(body)
    assert error.code is errors.MISSING_PARAMETER
    assert error.message == f"The request must contain the parameter {missing}."
