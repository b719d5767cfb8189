"""What members may be: text, numbers, attributes, digests, batches; names, paging tokens, callers and ids."""

import hashlib
import string
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clients.sqs_client import service_model
from tests.internals.wire.sqs.requests import (
    CONTEXT,
    QUEUE,
    SENT,
    UNHURRIED,
    URL,
    answer,
    ask,
    entries,
    message,
    raised,
    received,
    refusal,
)
from veilmq.core.commands import Delete, Send
from veilmq.core.errors import MessageTooLong, ReceiptState
from veilmq.core.messages import Attribute, NewMessage, Properties, decode_properties, encode_properties
from veilmq.wire.exchange import SENDER_ID, AccessKey, RequestContext, caller_named, root_arn
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.actions import ACTIONS
from veilmq.wire.sqs.errors import INVALID_MESSAGE_CONTENTS, INVALID_PARAMETER_VALUE, SqsError
from veilmq.wire.sqs.members import (
    CHARACTERS_MAX,
    NUMBERS,
    AttributeValue,
    attributes_md5,
    check_number,
    check_text,
    checked_id,
    choose,
    read_attributes,
    sequence_text,
    write_attributes,
)
from veilmq.wire.sqs.names import Listing, is_fifo, new_queue, queue_arn, queue_of, queue_of_arn


def members(struct: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(struct)}


@pytest.mark.parametrize("action", list(ACTIONS))
def test_a_request_has_the_members_of_the_model(action: str) -> None:
    operation = service_model().operation_model(action)
    assert members(ACTIONS[action].request) == set(operation.input_shape.members)


# Which characters a message may have.


def is_legal(character: str) -> bool:
    """Return whether SQS documents ``character`` as allowed, said as its page says it."""
    code = ord(character)
    return code in {9, 10, 13} or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or 0x10000 <= code <= 0x10FFFF


def is_accepted(text: str) -> bool:
    try:
        check_text(text, "the message body")
    except SqsError:
        return False
    return True


def test_the_first_and_the_last_of_each_range_and_their_neighbours() -> None:
    borders = {0xD7FF, 0xD800, 0xDFFF, 0xE000, 0xFFFD, 0xFFFE, 0xFFFF, 0x10000, 0x10FFFF}
    for code in {*range(0x100), *borders}:
        assert is_accepted(f"a{chr(code)}b") == is_legal(chr(code)), hex(code)


@UNHURRIED
@given(st.text(st.characters(codec=None)))
def test_a_text_is_legal_when_each_character_is(text: str) -> None:
    """The quick check for printable ASCII lets nothing else through."""
    assert is_accepted(text) == all(map(is_legal, text))


def test_the_error_names_the_first_illegal_character_and_its_place() -> None:
    """In hexadecimal, as AWS does."""
    with raised(INVALID_MESSAGE_CONTENTS, "Invalid binary character '#xFFFF' was found in the message body"):
        check_text("é\uffff\x00", "the message body")


# Numbers in requests: the borders of each range.

RANGES = [
    ("MaxNumberOfMessages", 1, 10), ("MaxResults", 1, 1000), ("ListMessageMoveTasks.MaxResults", 1, 10),
    ("MaxNumberOfMessagesPerSecond", 1, 500), ("VisibilityTimeout", 0, 43_200), ("WaitTimeSeconds", 0, 20),
    ("DelaySeconds", 0, 900),
]  # fmt: skip


@pytest.mark.parametrize(("name", "least", "most"), RANGES)
def test_both_ends_are_allowed_and_their_neighbours_are_not(name: str, least: int, most: int) -> None:
    member = name.rpartition(".")[2]
    for value in (None, least, most):
        check_number(name, value)
    for value in (least - 1, most + 1, -(2**31), 2**31 - 1):
        with raised(INVALID_PARAMETER_VALUE, f"^Value {value} for parameter {member} is invalid. Reason: "):
            check_number(name, value)


def test_every_number_is_in_the_table_above() -> None:
    assert set(NUMBERS) == {row[0] for row in RANGES}


# Message attributes: the rules for names, types and values, sizes, and what a receive chooses.

TEXT = {"DataType": "String", "StringValue": "x"}


def send(attributes: dict[str, Any], **members: Any) -> NewMessage:
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
    assert list(decode_properties(send({name: TEXT}).properties).attributes) == [name]


@pytest.mark.parametrize(
    "name", ["", ".a", "a.", "a..b", "a b", "€", "a\n", "AWS.a", "aws.a", "Amazon.a", "aMAZON.x", "a" * 257, "a:b"]
)
def test_bad_names(name: str) -> None:
    assert "attribute name" in refused({name: TEXT})


@pytest.mark.parametrize("kind", ["String", "String.x", "Number", "Number.int.age", "String.ü", "String." + "x" * 249])
def test_good_types(kind: str) -> None:
    value = {"DataType": kind, "StringValue": "1"}
    assert decode_properties(send({"a": value}).properties).attributes["a"] == Attribute(type=kind, text="1")


@pytest.mark.parametrize(("value", "text"), [
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
    ({"DataType": "Number", "StringValue": "x"}, "Can't cast the value of message (user) attribute 'a' to a number."),
], ids=range(12))  # fmt: skip
def test_bad_values(value: dict[str, str], text: str) -> None:
    assert text in refused({"a": value})


@pytest.mark.parametrize("kind", ["String", "String.x\x07"])
def test_illegal_characters(kind: str) -> None:
    """Are refused in values and types, other than in a body as an invalid value."""
    value = {"DataType": kind, "StringValue": "x" if "." in kind else "\x07"}
    error = refusal("SendMessage", MessageBody="x", MessageAttributes={"a": value})
    assert error.code is errors.INVALID_PARAMETER_VALUE
    assert "#x7" in error.message


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
def test_numbers(text: str, good: bool) -> None:
    attributes = {"a": {"DataType": "Number", "StringValue": text}}
    if good:
        assert decode_properties(send(attributes).properties).attributes["a"].text == text
    else:
        assert "'a'" in refused(attributes)


def test_a_long_number_is_read_at_once() -> None:
    """A million digits and a letter once took hours, and the whole server with them."""
    assert "'a'" in refused({"a": {"DataType": "Number", "StringValue": "1" * 1_000_000 + "x"}})


def test_ten_attributes_are_allowed_and_eleven_are_not() -> None:
    assert len(decode_properties(send({f"a{i}": TEXT for i in range(10)}).properties).attributes) == 10
    text = refused({f"a{i}": TEXT for i in range(11)})
    assert text == "Number of message attributes [11] exceeds the allowed maximum [10]."


def test_size_counts_body_names_types_and_values_in_utf_8() -> None:
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
], ids=["unknown", "told-only", "type", "empty"])  # fmt: skip
def test_system_attributes_of_a_send(name: str, value: dict[str, str], text: str) -> None:
    error = refusal("SendMessage", MessageBody="x", MessageSystemAttributes={name: value})
    assert error.code is errors.INVALID_PARAMETER_VALUE
    assert text in error.message


THREE = {name: Attribute(type="String", text=name) for name in ("Hello", "General", "Help.Me")}


@pytest.mark.parametrize(("names", "chosen"), [
    ([], []), (["All"], ["Hello", "General", "Help.Me"]), ([".*"], ["Hello", "General", "Help.Me"]),
    (["*"], ["Hello", "General", "Help.Me"]), (["Hel.*"], ["Hello", "Help.Me"]),
    (["Help.*", "General"], ["General", "Help.Me"]), (["Hello", "Foo"], ["Hello"]), (["Foo"], []), (["hello"], []),
    (["AWS.", "..x", ""], []), (["Hel*"], []),
], ids=range(11))  # fmt: skip
def test_which_attributes_a_receive_chooses(names: list[str], chosen: list[str]) -> None:
    """As AWS was seen to answer: exact names, All, prefixes; an impossible name chooses nothing."""
    assert list(choose(THREE, names)) == chosen


def test_a_receive_tells_the_digest_of_what_it_chose() -> None:
    carried = encode_properties(Properties(attributes=THREE))
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
    kept = encode_properties(Properties(attributes=read_attributes(values)))
    assert write_attributes(decode_properties(kept).attributes) == values


# The digests, against values that AWS returned and against an independent calculation.


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
def test_digests_that_aws_returned(attributes: dict[str, Attribute], digest: str) -> None:
    """Recorded from AWS by others, for these very attributes."""
    assert attributes_md5(attributes) == digest


ATTRIBUTES = st.dictionaries(
    st.text(min_size=1, max_size=8),
    st.builds(text, st.text(min_size=1), kind=st.sampled_from(["String", "Number", "String.ü"]))
    | st.builds(lambda data: Attribute(type="Binary.x", data=data), st.binary(min_size=1)),
    min_size=1,
    max_size=10,
)


@UNHURRIED
@given(ATTRIBUTES)
def test_the_digest_is_what_the_page_of_aws_describes(attributes: dict[str, Attribute]) -> None:
    parts = []
    for name, value in sorted(attributes.items()):
        content = value.data if value.data is not None else (value.text or "").encode()
        label = (name.encode(), value.type.encode())
        parts += [struct.pack(f"!I{len(piece)}s", len(piece), piece) for piece in label]
        mark = 1 if value.data is None else 2
        parts.append(struct.pack(f"!BI{len(content)}s", mark, len(content), content))
    assert attributes_md5(attributes) == hashlib.md5(b"".join(parts), usedforsecurity=False).hexdigest()


# What the batches have in common; their errors are in test_actions.


@pytest.mark.parametrize("good", [["a"], ["A-z_09"], ["x" * 80], ["a", "A"]], ids=["short", "signs", "long", "case"])
def test_good_ids(good: list[str]) -> None:
    batch = [{"Id": each, "ReceiptHandle": "r"} for each in good]
    told = answer("DeleteMessageBatch", [ReceiptState.LIVE, ReceiptState.SUPERSEDED][: len(good)], Entries=batch)
    assert told == {"Successful": [{"Id": each} for each in good]}


@pytest.mark.parametrize("identifier", ["", "a b", "a:b", "é", "x" * 81, "a\n", "٣"])
def test_bad_ids(identifier: str) -> None:
    error = refusal("DeleteMessageBatch", Entries=[{"Id": identifier, "ReceiptHandle": "r"}])
    assert error.code is errors.INVALID_ENTRY_ID


def test_bad_entries_stay_here_and_good_ones_go_on() -> None:
    batch: list[dict[str, Any]] = entries(4, MessageBody="x")
    batch[0]["MessageBody"] = ""
    batch[2]["DelaySeconds"] = 901
    command = ask("SendMessageBatch", Entries=batch).command
    assert isinstance(command, Send)
    assert len(command.messages) == 2
    told = answer("SendMessageBatch", [MessageTooLong(1_024), SENT], Entries=batch)
    assert [entry["Id"] for entry in told["Failed"]] == ["e0", "e2", "e1"]
    assert [entry["Id"] for entry in told["Successful"]] == ["e3"]


def test_the_engine_is_asked_even_when_no_entry_is_good() -> None:
    call = ask("DeleteMessageBatch", Entries=entries(2))
    assert call.command == Delete(queue="000000000000/orders", receipts=())
    told = answer("DeleteMessageBatch", [], Entries=entries(2))
    assert [entry["Code"] for entry in told["Failed"]] == ["MissingParameter"] * 2
    assert "Successful" not in told


# Names on the wire, paging tokens; callers and their keys; ids.


@pytest.mark.parametrize("url", [
    URL, "https://sqs.us-east-1.amazonaws.com/000000000000/orders", "http://elsewhere:1/a/b/000000000000/orders/",
    "http://[::1]:9324/000000000000/orders?x=y#z", "/000000000000/orders", "000000000000/orders", "orders",
])  # fmt: skip
def test_only_the_path_of_a_url_counts(url: str) -> None:
    """Its last two parts; a bare name is a queue of the caller. The second look says the same as the first."""
    assert queue_of(url, CONTEXT) == queue_of(url, CONTEXT) == QUEUE


def test_a_bare_name_belongs_to_the_caller_of_each_request() -> None:
    other = RequestContext(base_url=CONTEXT.base_url, account="111111111111")
    assert queue_of("orders", CONTEXT) == "000000000000/orders"
    assert queue_of("orders", other) == "111111111111/orders"
    assert queue_of(URL, other) == QUEUE


def test_a_url_names_the_same_queue_in_each_region() -> None:
    """Its own region counts, or the server's: so it is remembered; a bare name is of the request's region."""
    here = RequestContext(base_url="http://h", by_region=True)
    there = msgspec.structs.replace(here, account="000000000000@eu-west-1")
    for context in (there, here, there):
        assert queue_of("http://h/000000000000/orders", context) == QUEUE
        assert queue_of("http://h/eu-west-1/000000000000/orders", context) == "000000000000@eu-west-1/orders"
    assert set(here.queues.values()) == {QUEUE, "000000000000@eu-west-1/orders"}
    assert [queue_of("orders", context) for context in (here, there)] == [QUEUE, "000000000000@eu-west-1/orders"]


@pytest.mark.parametrize(
    "url",
    ["/", "http://host", "http://host/", "http://host/orders", "http://host/a b/c", "http://[::1/a/b", "é", "a//b"],
)
def test_bad_addresses(url: str) -> None:
    with raised(errors.INVALID_ADDRESS, "is not valid for this endpoint"):
        queue_of(url, CONTEXT)


def test_what_is_remembered_is_bounded() -> None:
    for number in range(5_000):
        queue_of(f"http://h/000000000000/q{number}", CONTEXT)
    queue_of(f"http://{'h' * 600}/000000000000/q", CONTEXT)
    assert len(CONTEXT.queues) <= 4_096
    assert max(len(url or "") for url in CONTEXT.queues) <= 512


@pytest.mark.parametrize("name", ["a", "A-z_09", "x" * 80, "a.fifo", "A-z_09.fifo", "x" * 75 + ".fifo"])
def test_good_names_of_new_queues(name: str) -> None:
    fifo = name.endswith(".fifo")
    queue = new_queue(name, CONTEXT, fifo=fifo)
    assert (queue, is_fifo(queue)) == (f"000000000000/{name}", fifo)


@pytest.mark.parametrize("name", ["a.b", "a b", "é", "a/b", "x" * 81, "a\n", "٣"])
def test_bad_names_of_new_queues(name: str) -> None:
    error = refusal("CreateQueue", QueueName=name)
    assert error.code is errors.INVALID_PARAMETER_VALUE
    assert "1 to 80 in length" in error.message


@pytest.mark.parametrize("name", ["orders", "orders.fifo", "x" * 80, "x" * 75 + ".fifo"])
def test_an_arn_leads_back_to_its_queue(name: str) -> None:
    queue = f"111111111111/{name}"
    assert queue_of_arn(queue_arn(queue, CONTEXT), CONTEXT) == queue


@pytest.mark.parametrize("arn", [
    "", "orders", "arn:aws:sqs:us-east-1:000000000000", "arn:aws:sqs:us-east-1:000000000000:",
    "arn:aws:sqs:us-east-1:000000000000:a.b", "arn:aws:sqs:us-east-1:000000000000:a.fifo.fifo",
    "arn:aws:sqs:us-east-1:000000000000:a:b", "arn:aws:sqs:us-east-1:000000000000:a\n",
    "arn:aws:sqs:us-east-1:00000000000:a", "arn:aws:sqs:us-east-1:٠٠٠٠٠٠٠٠٠٠٠٠:a",
    "arn:aws:sqs:eu-west-1:000000000000:a", "arn:aws:sqs::000000000000:a", "arn:aws:sns:us-east-1:000000000000:a",
    "arn:aws:sqs:us-east-1:000000000000:" + "x" * 257, "arn:aws:sqs:us-east-1:000000000000:" + "x" * 252 + ".fifo", URL,
])  # fmt: skip
def test_what_is_no_arn_of_a_queue_here(arn: str) -> None:
    assert queue_of_arn(arn, CONTEXT) is None


# Paging tokens.

LISTING = Listing("ListQueues", "jobs-", CONTEXT)


@UNHURRIED
@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_a_token_leads_back_to_its_name(name: str) -> None:
    token = LISTING.token_after(name)
    assert LISTING.name_before(token) == name
    assert token.isascii()
    assert not set(token) & set("+/ ")


@pytest.mark.parametrize(
    "token", ["!", "a", "b3JkZXJz", "é", urlsafe_b64encode(b"\xff").decode(), "===", LISTING.token_after("")]
)
def test_a_token_that_we_did_not_make(token: str) -> None:
    with raised(INVALID_PARAMETER_VALUE, "Invalid or expired next token; use the NextToken"):
        LISTING.name_before(token)


@UNHURRIED
@given(st.integers(min_value=0), st.integers(1, 255))
def test_a_token_with_one_byte_changed(place: int, bits: int) -> None:
    """Is none of ours, whichever byte it is."""
    data = bytearray(urlsafe_b64decode(LISTING.token_after("orders")))
    data[place % len(data)] ^= bits
    with pytest.raises(SqsError):
        LISTING.name_before(urlsafe_b64encode(data).decode())


@pytest.mark.parametrize("other", [
    Listing("ListDeadLetterSourceQueues", "jobs-", CONTEXT), Listing("ListQueues", "jobs", CONTEXT),
    Listing("ListQueues", "jobs-", msgspec.structs.replace(CONTEXT, account="111111111111")),
    Listing("ListQueues", "jobs-", msgspec.structs.replace(CONTEXT, token_key=bytes(32))),
], ids=["action", "filter", "account", "server"])  # fmt: skip
def test_a_token_of_another_listing(other: Listing) -> None:
    with pytest.raises(SqsError):
        LISTING.name_before(other.token_after("orders"))


def test_another_connection_reads_it() -> None:
    """The way to the server does not matter, and the key is the process's where nobody gave one."""
    one, other = (Listing("ListQueues", "", RequestContext(base_url=url)) for url in ("http://a", "https://b"))
    assert other.name_before(one.token_after("orders")) == "orders"


# Callers and their keys, and the ids that clients give.

ACCOUNT = "111122223333"


def test_an_account_is_its_own_root() -> None:
    root = caller_named(ACCOUNT)
    assert root.is_root
    assert root.arn == root_arn(ACCOUNT) == "arn:aws:iam::111122223333:root"
    assert root.sender_id == ACCOUNT


def test_a_user_has_an_id_of_its_own_for_ever() -> None:
    alice = caller_named(ACCOUNT, "alice")
    assert not alice.is_root
    assert alice.arn == "arn:aws:iam::111122223333:user/alice"
    assert alice.sender_id == "AIDADGLAF6RBMIIBBOI5L"
    assert (
        len({caller_named(*who).sender_id for who in ((ACCOUNT, "alice"), (ACCOUNT, "bob"), ("1" * 12, "alice"))}) == 3
    )


@pytest.mark.parametrize("user", ["", "alice"])
def test_what_a_message_carries_of_its_sender(user: str) -> None:
    who = caller_named(ACCOUNT, user)
    carried = decode_properties(who.sent)
    assert carried.system == {SENDER_ID: who.sender}
    assert who.sender.text == who.sender_id
    assert carried.attributes == {}


def test_a_key_shows_whose_it_is_and_nothing_else() -> None:
    key = AccessKey(id="AKID", secret=b"hush", session_token=b"hushed", caller=caller_named(ACCOUNT, "alice"))
    assert repr(key) == "AccessKey(id='AKID', caller='arn:aws:iam::111122223333:user/alice')"
    assert "hush" not in str(key) + f"{key}"


# The ids that clients give, and sequence numbers.


@pytest.mark.parametrize("name", list(CHARACTERS_MAX))
def test_what_an_id_may_have(name: str) -> None:
    """Every letter, digit and punctuation of ASCII, 128 of them; or it is not there."""
    signs = string.ascii_letters + string.digits + string.punctuation
    for value in (None, "a", signs, "x" * 128):
        assert checked_id(name, value) == value


@pytest.mark.parametrize("name", list(CHARACTERS_MAX))
@pytest.mark.parametrize("value", ["", " ", "a b", "é", "a\n", "\x7f", "x" * 129])
def test_what_an_id_may_not_have(name: str, value: str) -> None:
    with raised(errors.INVALID_PARAMETER_VALUE, "can only include alphanumeric and punctuation"):
        checked_id(name, value)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_sequence_numbers_have_twenty_digits_in_the_order_of_the_numbers(one: int, other: int) -> None:
    texts = [sequence_text(one), sequence_text(other)]
    assert all(text is not None and len(text) == 20 and text.isdigit() for text in texts)
    assert sorted(str(text) for text in texts) == [sequence_text(number) for number in sorted([one, other])]
