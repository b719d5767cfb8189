"""Members of requests: text, numbers, attributes, digests, batches, ids; names, paging tokens and callers."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clients.sqs_client import service_model
from tests.internals.wire.sqs.requests import CONTEXT, NO_DEADLINE, URL, decode_request, error_of, raises
from veilmq.core.commands import Send
from veilmq.core.messages import Attribute, NewMessage, decode_properties
from veilmq.wire.exchange import AccessKey, caller_named
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.actions import ACTIONS
from veilmq.wire.sqs.errors import INVALID_PARAMETER_VALUE, SqsError
from veilmq.wire.sqs.members import (
    CHARACTERS_MAX,
    NUMBERS,
    attributes_md5,
    check_number,
    check_text,
    checked_id,
    sequence_text,
)
from veilmq.wire.sqs.names import Listing, is_fifo, new_queue, queue_of, queue_of_arn


def members(struct: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(struct)}


@pytest.mark.parametrize("action", list(ACTIONS))
def test_requests_have_the_members_of_the_service_model(action: str) -> None:
    operation = service_model().operation_model(action)
    assert members(ACTIONS[action].request) == set(operation.input_shape.members)


# Characters of messages.


def is_legal(character: str) -> bool:
    """Return whether the documentation of SQS allows ``character``, in its own ranges."""
    code = ord(character)
    return code in {9, 10, 13} or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or 0x10000 <= code <= 0x10FFFF


def is_accepted(text: str) -> bool:
    try:
        check_text(text, "the message body")
    except SqsError:
        return False
    return True


def test_legal_characters_at_the_limits_of_each_range() -> None:
    borders = {0xD7FF, 0xD800, 0xDFFF, 0xE000, 0xFFFD, 0xFFFE, 0xFFFF, 0x10000, 0x10FFFF}
    for code in {*range(0x100), *borders}:
        assert is_accepted(f"a{chr(code)}b") == is_legal(chr(code)), hex(code)


@NO_DEADLINE
@given(st.text(st.characters(codec=None)))
def test_a_text_is_legal_if_all_of_its_characters_are(text: str) -> None:
    """The fast path for ASCII accepts the same characters."""
    assert is_accepted(text) == all(map(is_legal, text))


# Numbers.

RANGES = [
    ("MaxNumberOfMessages", 1, 10), ("MaxResults", 1, 1000), ("ListMessageMoveTasks.MaxResults", 1, 10),
    ("MaxNumberOfMessagesPerSecond", 1, 500), ("VisibilityTimeout", 0, 43_200), ("WaitTimeSeconds", 0, 20),
    ("DelaySeconds", 0, 900),
]  # fmt: skip


@pytest.mark.parametrize(("name", "least", "most"), RANGES)
def test_ranges_of_numbers_include_both_ends(name: str, least: int, most: int) -> None:
    member = name.rpartition(".")[2]
    for value in (None, least, most):
        check_number(name, value)
    for value in (least - 1, most + 1, -(2**31), 2**31 - 1):
        with raises(INVALID_PARAMETER_VALUE, f"^Value {value} for parameter {member} is invalid. Reason: "):
            check_number(name, value)


def test_every_number_is_tested() -> None:
    assert set(NUMBERS) == {row[0] for row in RANGES}


# Message attributes.

TEXT = {"DataType": "String", "StringValue": "x"}


def send(attributes: dict[str, Any], **members: Any) -> NewMessage:
    command = decode_request("SendMessage", MessageBody="hello", MessageAttributes=attributes, **members).command
    assert isinstance(command, Send)
    return command.messages[0]


def error_message(attributes: dict[str, Any]) -> str:
    """Return the message of the InvalidParameterValue of a send with ``attributes``."""
    error = error_of("SendMessage", MessageBody="hello", MessageAttributes=attributes)
    assert error.code is errors.INVALID_PARAMETER_VALUE
    return error.message


@pytest.mark.parametrize("name", ["a", "é", "A-b_c.9", "aws", "awsx.y", "x.aws.y", "AmazonS3", "a" * 256])
def test_valid_attribute_names(name: str) -> None:
    assert list(decode_properties(send({name: TEXT}).properties).attributes) == [name]


@pytest.mark.parametrize(
    "name", ["", ".a", "a.", "a..b", "a b", "€", "a\n", "AWS.a", "aws.a", "Amazon.a", "aMAZON.x", "a" * 257, "a:b"]
)
def test_invalid_attribute_names(name: str) -> None:
    assert "attribute name" in error_message({name: TEXT})


@pytest.mark.parametrize(("value", "text"), [
    ({"StringValue": "x"}, "non-empty DataType"),
    ({"DataType": "", "StringValue": "x"}, "non-empty DataType"),
    ({"DataType": "string", "StringValue": "x"}, "supported type prefixes: Binary, Number, String."),
    ({"DataType": "Stringy", "StringValue": "x"}, "supported type prefixes"),
    ({"DataType": "String.", "StringValue": "x"}, "supported type prefixes"),
    ({"DataType": "String.\x08", "StringValue": "x"}, "'#x8' was found in the type of message attribute 'a'"),
    ({"DataType": "String." + "x" * 250, "StringValue": "x"}, "must be shorter than 256 bytes"),
    ({"DataType": "String"}, "Message (user) attribute 'a' must contain a non-empty value of type 'String'."),
    ({"DataType": "String", "StringValue": ""}, "must contain a non-empty value of type 'String'."),
    ({"DataType": "Binary", "BinaryValue": ""}, "must contain a non-empty value of type 'Binary'."),
    ({"DataType": "Binary", "StringValue": "x"}, "must use BinaryValue"),
    ({"DataType": "Number", "BinaryValue": "eA=="}, "must use StringValue"),
    ({"DataType": "Number", "StringValue": "x"}, "Can't cast the value of message (user) attribute 'a' to a number."),
], ids=range(13))  # fmt: skip
def test_invalid_attribute_values(value: dict[str, str], text: str) -> None:
    assert text in error_message({"a": value})


NUMBER_TEXTS = {
    "0": True, "-0.0": True, "+7": True, "1.": True, ".5": True, "1e126": True, "9.9e126": True, "1E-128": True,
    "0e9999": True, "1" * 38: True, "1" * 38 + "0" * 50: True, "0" * 100 + "1": True, "230.000000000000000001": True,
    "": False, ".": False, "e1": False, "1e": False, "1e127": False, "1e-129": False, "1" * 39: False, "1" * 128: False,
    "NaN": False, "Infinity": False, "1_0": False, "0x1": False, " 1": False, "1\n": False, "٣": False, "--1": False,
    "0." + "0" * 128 + "1": False, "1" + "0" * 127: False, "1e9999999": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "good"), [pytest.param(*row, id=str(i)) for i, row in enumerate(NUMBER_TEXTS.items())]
)
def test_number_attributes(text: str, good: bool) -> None:
    attributes = {"a": {"DataType": "Number", "StringValue": text}}
    if good:
        assert decode_properties(send(attributes).properties).attributes["a"].text == text
    else:
        assert "'a'" in error_message(attributes)


def test_a_long_number_is_checked_in_linear_time() -> None:
    """A million digits and a letter once blocked the server for hours."""
    assert "'a'" in error_message({"a": {"DataType": "Number", "StringValue": "1" * 1_000_000 + "x"}})


def test_a_message_has_at_most_ten_attributes() -> None:
    assert len(decode_properties(send({f"a{i}": TEXT for i in range(10)}).properties).attributes) == 10
    text = error_message({f"a{i}": TEXT for i in range(11)})
    assert text == "Number of message attributes [11] exceeds the allowed maximum [10]."


def test_the_size_of_a_message_counts_body_names_types_and_values() -> None:
    attributes = {
        "ab": {"DataType": "String.é", "StringValue": "üü"},
        "c": {"DataType": "Binary", "BinaryValue": "AAAA"},
    }
    sent = send(attributes, MessageSystemAttributes={"AWSTraceHeader": TEXT})
    assert sent.size_bytes == len("hello") + (2 + 9 + 4) + (1 + 6 + 3)


@pytest.mark.parametrize(("name", "value", "text"), [
    ("Foo", TEXT, "Message system attribute name 'Foo' is invalid."),
    ("SenderId", TEXT, "Message system attribute name 'SenderId' is invalid."),
    ("AWSTraceHeader", {"DataType": "Binary", "BinaryValue": "eA=="}, "must have the type 'String'"),
    ("AWSTraceHeader", {"DataType": "String", "StringValue": ""}, "non-empty value"),
], ids=["unknown", "read-only", "type", "empty"])  # fmt: skip
def test_invalid_system_attributes(name: str, value: dict[str, str], text: str) -> None:
    error = error_of("SendMessage", MessageBody="x", MessageSystemAttributes={name: value})
    assert error.code is errors.INVALID_PARAMETER_VALUE
    assert text in error.message


# Digests.


def text(value: str, *, kind: str = "String") -> Attribute:
    return Attribute(type=kind, text=value)


TRACE = "traceparent\x1e00-774062d6c37081a5a0b9b5b88e30627c-2d2482211f6489da-01"


@pytest.mark.parametrize(("attributes", "digest"), [
    pytest.param({"Hello": text("There"), "General": text("Kenobi"), "Help.Me": text("Me")},
        "4c360f3fdafd970e05fae2f149d997f5", id="three-out-of-order"),
    pytest.param({"General": text("Kenobi"), "Hello": text("There")}, "fca026605781cb4126a1e9044df24232", id="two"),
    pytest.param({"Hello": text("There")}, "a311262e065454b75da111d535b8dacd", id="one"),
    pytest.param({"Foo": text("Bar")}, "ae7155c6026991b6d54b11589678bf9c", id="another"),
    pytest.param({"attr1": Attribute(type="Binary", data=TRACE.encode())}, "8cbe4db156db8a94db8b801b7addb984",
        id="binary"),
])  # fmt: skip
def test_attribute_digests_match_those_of_aws(attributes: dict[str, Attribute], digest: str) -> None:
    """Recorded from AWS by others."""
    assert attributes_md5(attributes) == digest


# Batches; other errors are in test_actions.


@pytest.mark.parametrize("identifier", ["", "a b", "a:b", "é", "x" * 81, "a\n", "٣"])
def test_invalid_entry_ids(identifier: str) -> None:
    error = error_of("DeleteMessageBatch", Entries=[{"Id": identifier, "ReceiptHandle": "r"}])
    assert error.code is errors.INVALID_ENTRY_ID


# Names.


@pytest.mark.parametrize(
    "url",
    [
        "/",
        "http://host",
        "http://host/",
        "http://host/orders",
        "http://host/a b/c",
        "http://[::1/a/b",
        "é",
        "a//b",
        "/1@eu/a",
    ],
)
def test_invalid_queue_urls(url: str) -> None:
    with raises(errors.INVALID_ADDRESS, "is not valid for this endpoint"):
        queue_of(url, CONTEXT)


def test_the_cache_of_urls_is_bounded() -> None:
    for number in range(5_000):
        queue_of(f"http://h/000000000000/q{number}", CONTEXT)
    queue_of(f"http://{'h' * 600}/000000000000/q", CONTEXT)
    assert len(CONTEXT.queues) <= 4_096
    assert max(len(url or "") for url in CONTEXT.queues) <= 512


@pytest.mark.parametrize("name", ["a", "A-z_09", "x" * 80, "a.fifo", "A-z_09.fifo", "x" * 75 + ".fifo"])
def test_valid_names_of_new_queues(name: str) -> None:
    fifo = name.endswith(".fifo")
    queue = new_queue(name, CONTEXT, fifo=fifo)
    assert (queue, is_fifo(queue)) == (f"000000000000/{name}", fifo)


@pytest.mark.parametrize("name", ["a.b", "a b", "é", "a/b", "x" * 81, "a\n", "٣"])
def test_invalid_names_of_new_queues(name: str) -> None:
    error = error_of("CreateQueue", QueueName=name)
    assert error.code is errors.INVALID_PARAMETER_VALUE
    assert "1 to 80 in length" in error.message


@pytest.mark.parametrize("name", ["a", ".fifo", "a.b.fifo", "x" * 76 + ".fifo"])
def test_invalid_names_of_new_fifo_queues(name: str) -> None:
    error = error_of("CreateQueue", QueueName=name, Attributes={"FifoQueue": "true"})
    assert error.code is errors.INVALID_PARAMETER_VALUE
    assert "must end with .fifo suffix" in error.message


@pytest.mark.parametrize("arn", [
    "", "orders", "arn:aws:sqs:us-east-1:000000000000", "arn:aws:sqs:us-east-1:000000000000:",
    "arn:aws:sqs:us-east-1:000000000000:a.b", "arn:aws:sqs:us-east-1:000000000000:a.fifo.fifo",
    "arn:aws:sqs:us-east-1:000000000000:a:b", "arn:aws:sqs:us-east-1:000000000000:a\n",
    "arn:aws:sqs:us-east-1:00000000000:a", "arn:aws:sqs:us-east-1:٠٠٠٠٠٠٠٠٠٠٠٠:a",
    "arn:aws:sqs:eu-west-1:000000000000:a", "arn:aws:sqs::000000000000:a", "arn:aws:sns:us-east-1:000000000000:a",
    "arn:aws:sqs:us-east-1:000000000000:" + "x" * 257, "arn:aws:sqs:us-east-1:000000000000:" + "x" * 252 + ".fifo", URL,
])  # fmt: skip
def test_invalid_arns(arn: str) -> None:
    assert queue_of_arn(arn, CONTEXT) is None


# Paging tokens.

LISTING = Listing("ListQueues", "jobs-", CONTEXT)


@pytest.mark.parametrize(
    "token", ["!", "a", "b3JkZXJz", "é", urlsafe_b64encode(b"\xff").decode(), "===", LISTING.token_after("")]
)
def test_forged_paging_tokens_are_invalid(token: str) -> None:
    with raises(INVALID_PARAMETER_VALUE, "Invalid or expired next token; use the NextToken"):
        LISTING.name_of(token)


@NO_DEADLINE
@given(st.integers(min_value=0), st.integers(1, 255))
def test_a_paging_token_with_a_changed_byte_is_invalid(place: int, bits: int) -> None:
    data = bytearray(urlsafe_b64decode(LISTING.token_after("orders")))
    data[place % len(data)] ^= bits
    with pytest.raises(SqsError):
        LISTING.name_of(urlsafe_b64encode(data).decode())


@pytest.mark.parametrize("other", [
    Listing("ListDeadLetterSourceQueues", "jobs-", CONTEXT), Listing("ListQueues", "jobs", CONTEXT),
    Listing("ListQueues", "jobs-", msgspec.structs.replace(CONTEXT, account="111111111111")),
    Listing("ListQueues", "jobs-", msgspec.structs.replace(CONTEXT, token_key=bytes(32))),
], ids=["action", "filter", "account", "server"])  # fmt: skip
def test_a_paging_token_of_another_listing_is_invalid(other: Listing) -> None:
    with pytest.raises(SqsError):
        LISTING.name_of(other.token_after("orders"))


# Callers and access keys.

ACCOUNT = "111122223333"


def test_sender_ids_are_stable_and_distinct() -> None:
    alice = caller_named(ACCOUNT, "alice")
    assert not alice.is_root
    assert alice.arn == "arn:aws:iam::111122223333:user/alice"
    assert alice.sender_id == "AIDADGLAF6RBMIIBBOI5L"
    assert (
        len({caller_named(*who).sender_id for who in ((ACCOUNT, "alice"), (ACCOUNT, "bob"), ("1" * 12, "alice"))}) == 3
    )


def test_the_repr_of_a_key_shows_no_secret() -> None:
    key = AccessKey(id="AKID", secret=b"hush", session_token=b"hushed", caller=caller_named(ACCOUNT, "alice"))
    assert repr(key) == "AccessKey(id='AKID', caller='arn:aws:iam::111122223333:user/alice')"
    assert "hush" not in str(key) + f"{key}"


# Ids of clients, and sequence numbers.


@pytest.mark.parametrize("name", list(CHARACTERS_MAX))
@pytest.mark.parametrize("value", ["", " ", "a b", "é", "a\n", "\x7f", "x" * 129])
def test_invalid_client_ids(name: str, value: str) -> None:
    with raises(errors.INVALID_PARAMETER_VALUE, "can only include alphanumeric and punctuation"):
        checked_id(name, value)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_sequence_texts_have_20_digits_and_sort_like_numbers(one: int, other: int) -> None:
    texts = [sequence_text(one), sequence_text(other)]
    assert all(text is not None and len(text) == 20 and text.isdigit() for text in texts)
    assert sorted(str(text) for text in texts) == [sequence_text(number) for number in sorted([one, other])]
