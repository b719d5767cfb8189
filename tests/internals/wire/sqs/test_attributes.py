"""Message attributes: the rules for names, types and values, sizes, and what a receive chooses."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.internals.wire.sqs.asking import SENT, UNHURRIED, answer, ask, message, received, refusal
from veilmq.core import properties
from veilmq.core.commands import NewMessage, Send
from veilmq.core.properties import Attribute
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.members import AttributeValue, choose, read_attributes, write_attributes

TEXT = {"DataType": "String", "StringValue": "x"}


def send(attributes: dict[str, Any], **members: Any) -> NewMessage:
    """Return the message that a send with ``attributes`` gives the engine."""
    command = ask("SendMessage", MessageBody="hello", MessageAttributes=attributes, **members).command
    assert isinstance(command, Send)
    return command.messages[0]


def refused(attributes: dict[str, Any]) -> str:
    """Return the text with which a send with ``attributes`` is refused, as a parameter that is invalid."""
    error = refusal("SendMessage", MessageBody="hello", MessageAttributes=attributes)
    assert error.code is errors.INVALID_PARAMETER_VALUE
    return error.message


@pytest.mark.parametrize("name", ["a", "é", "A-b_c.9", "aws", "awsx.y", "x.aws.y", "AmazonS3", "a" * 256])
def test_good_names(name: str) -> None:
    """Letters, digits and three signs; a reserved prefix is one only before a period."""
    assert list(properties.decode(send({name: TEXT}).properties).attributes) == [name]


@pytest.mark.parametrize(
    "name", ["", ".a", "a.", "a..b", "a b", "€", "a\n", "AWS.a", "aws.a", "Amazon.a", "aMAZON.x", "a" * 257, "a:b"]
)
def test_bad_names(name: str) -> None:
    """Are refused with the rule that they break."""
    assert "attribute name" in refused({name: TEXT})


@pytest.mark.parametrize("kind", ["String", "String.x", "Number", "Number.int.age", "String.ü", "String." + "x" * 249])
def test_good_types(kind: str) -> None:
    """A known prefix, and any suffix after a period."""
    value = {"DataType": kind, "StringValue": "1"}
    assert properties.decode(send({"a": value}).properties).attributes["a"] == Attribute(type=kind, text="1")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"StringValue": "x"}, "non-empty DataType"),
        ({"DataType": "", "StringValue": "x"}, "non-empty DataType"),
        ({"DataType": "string", "StringValue": "x"}, "supported type prefixes: Binary, Number, String."),
        ({"DataType": "Stringy", "StringValue": "x"}, "supported type prefixes"),
        ({"DataType": "String.", "StringValue": "x"}, "supported type prefixes"),
        ({"DataType": "String." + "x" * 250, "StringValue": "x"}, "must be shorter than 256 bytes"),
        ({"DataType": "String"}, "Message (user) attribute 'a' must contain a non-empty value of type 'String'."),
        ({"DataType": "String", "StringValue": ""}, "must contain a non-empty value of type 'String'."),
        ({"DataType": "Binary", "BinaryValue": ""}, "must contain a non-empty value of type 'Binary'."),
        ({"DataType": "Binary", "StringValue": "x"}, "must use BinaryValue"),
        ({"DataType": "Number", "BinaryValue": "eA=="}, "must use StringValue"),
        (
            {"DataType": "Number", "StringValue": "x"},
            "Can't cast the value of message (user) attribute 'a' to a number.",
        ),
    ],
    ids=range(12),
)  # fmt: skip
def test_bad_values(value: dict[str, str], text: str) -> None:
    """Say which attribute and what is wrong with it."""
    assert text in refused({"a": value})


@pytest.mark.parametrize("kind", ["String", "String.x\x07"])
def test_illegal_characters(kind: str) -> None:
    """Are refused in values and types, other than in a body as an invalid value."""
    value = {"DataType": kind, "StringValue": "x" if "." in kind else "\x07"}
    error = refusal("SendMessage", MessageBody="x", MessageAttributes={"a": value})
    assert error.code is errors.INVALID_PARAMETER_VALUE
    assert "#x7" in error.message


NUMBERS = {
    "0": True, "-0.0": True, "+7": True, "1.": True, ".5": True, "1e126": True, "9.9e126": True, "1E-128": True,
    "0e9999": True, "1" * 38: True, "1" * 38 + "0" * 50: True, "0" * 100 + "1": True, "230.000000000000000001": True,
    "": False, ".": False, "e1": False, "1e": False, "1e127": False, "1e-129": False, "1" * 39: False, "1" * 128: False,
    "NaN": False, "Infinity": False, "1_0": False, "0x1": False, " 1": False, "1\n": False, "٣": False, "--1": False,
    "0." + "0" * 128 + "1": False, "1" + "0" * 127: False, "1e9999999": False,
}  # fmt: skip


@pytest.mark.parametrize(("text", "good"), [pytest.param(*row, id=str(i)) for i, row in enumerate(NUMBERS.items())])
def test_numbers(text: str, good: bool) -> None:
    """Up to 38 digits between 10^-128 and 10^126, in ASCII."""
    attributes = {"a": {"DataType": "Number", "StringValue": text}}
    if good:
        assert properties.decode(send(attributes).properties).attributes["a"].text == text
    else:
        assert "'a'" in refused(attributes)


def test_a_long_number_is_read_at_once() -> None:
    """A million digits and a letter once took hours, and the whole server with them."""
    assert "'a'" in refused({"a": {"DataType": "Number", "StringValue": "1" * 1_000_000 + "x"}})


def test_ten_attributes_are_allowed_and_eleven_are_not() -> None:
    """The limit of SQS."""
    assert len(properties.decode(send({f"a{i}": TEXT for i in range(10)}).properties).attributes) == 10
    text = refused({f"a{i}": TEXT for i in range(11)})
    assert text == "Number of message attributes [11] exceeds the allowed maximum [10]."


def test_the_reserved_lists_may_only_be_empty() -> None:
    """Some SDKs send them empty; AWS has no use for others either."""
    assert send({"a": TEXT | {"StringListValues": [], "BinaryListValues": []}}).properties
    error = refusal("SendMessage", MessageBody="x", MessageAttributes={"a": TEXT | {"StringListValues": ["x"]}})
    assert error.code is errors.UNSUPPORTED_OPERATION


def test_size_counts_body_names_types_and_values_in_utf_8() -> None:
    """And not the system attributes."""
    attributes = {
        "ab": {"DataType": "String.é", "StringValue": "üü"},
        "c": {"DataType": "Binary", "BinaryValue": "AAAA"},
    }
    sent = send(attributes, MessageSystemAttributes={"AWSTraceHeader": TEXT})
    assert sent.size_bytes == len("hello") + (2 + 9 + 4) + (1 + 6 + 3)


def test_digests_of_a_send() -> None:
    """Of the attributes and of the system attributes, each where there are any."""
    told = answer(
        "SendMessage",
        [SENT],
        MessageBody="x",
        MessageAttributes={"Foo": {"DataType": "String", "StringValue": "Bar"}},
        MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5"}},
    )
    assert told["MD5OfMessageAttributes"] == "ae7155c6026991b6d54b11589678bf9c"
    assert len(told["MD5OfMessageSystemAttributes"]) == 32
    assert "MD5OfMessageAttributes" not in answer("SendMessage", [SENT], MessageBody="x", MessageAttributes={})


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("Foo", TEXT, "Message system attribute name 'Foo' is invalid."),
        ("SenderId", TEXT, "Message system attribute name 'SenderId' is invalid."),
        ("AWSTraceHeader", {"DataType": "Binary", "BinaryValue": "eA=="}, "must have the type 'String'"),
        ("AWSTraceHeader", {"DataType": "String", "StringValue": ""}, "non-empty value"),
    ],
    ids=["unknown", "told-only", "type", "empty"],
)
def test_system_attributes_of_a_send(name: str, value: dict[str, str], text: str) -> None:
    """Only the trace header, only as a String."""
    error = refusal("SendMessage", MessageBody="x", MessageSystemAttributes={name: value})
    assert error.code is errors.INVALID_PARAMETER_VALUE
    assert text in error.message


THREE = {name: Attribute(type="String", text=name) for name in ("Hello", "General", "Help.Me")}


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ([], []),
        (["All"], ["Hello", "General", "Help.Me"]),
        ([".*"], ["Hello", "General", "Help.Me"]),
        (["*"], ["Hello", "General", "Help.Me"]),
        (["Hel.*"], ["Hello", "Help.Me"]),
        (["Help.*", "General"], ["General", "Help.Me"]),
        (["Hello", "Foo"], ["Hello"]),
        (["Foo"], []),
        (["hello"], []),
        (["AWS.", "..x", ""], []),
        (["Hel*"], []),
    ],
    ids=range(11),
)
def test_which_attributes_a_receive_chooses(names: list[str], chosen: list[str]) -> None:
    """As AWS was seen to answer: exact names, All, prefixes; an impossible name chooses nothing."""
    assert list(choose(THREE, names)) == chosen


def test_a_receive_tells_the_digest_of_what_it_chose() -> None:
    """So that a client can check what it got."""
    carried = properties.encode(properties.Properties(attributes=THREE))
    result = received(message(properties=carried))
    (told,) = answer("ReceiveMessage", result, MessageAttributeNames=["General", "Hello"])["Messages"]
    assert set(told["MessageAttributes"]) == {"General", "Hello"}
    assert told["MessageAttributes"]["Hello"] == {"StringValue": "Hello", "DataType": "String"}
    assert len(told["MD5OfMessageAttributes"]) == 32
    (told,) = answer("ReceiveMessage", result, MessageAttributeNames=["Foo"])["Messages"]
    assert not {"MessageAttributes", "MD5OfMessageAttributes"} & set(told)


VALUES = st.builds(
    AttributeValue, data_type=st.sampled_from(["String", "String.a"]), string_value=st.text("abcé\n", min_size=1)
) | st.builds(AttributeValue, data_type=st.sampled_from(["Binary", "Binary.gif"]), binary_value=st.binary(min_size=1))


@UNHURRIED
@given(st.dictionaries(st.text("abc-_9", min_size=1), VALUES, max_size=10))
def test_attributes_come_back_as_they_were_sent(values: dict[str, AttributeValue]) -> None:
    """Through the bytes in which the engine keeps them."""
    kept = properties.encode(properties.Properties(attributes=read_attributes(values)))
    assert write_attributes(properties.decode(kept).attributes) == values
