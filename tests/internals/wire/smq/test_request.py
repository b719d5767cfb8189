"""Routes, errors, requests and XML of SMQ."""

import contextlib
import inspect
import tracemalloc
from base64 import b64encode
from collections.abc import Callable, Mapping
from hashlib import md5
from time import process_time

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.clients.smq.raw import hex_md5
from tests.internals.wire.sqs.requests import raises
from veilmq.core import errors as core
from veilmq.core.commands import Command
from veilmq.core.errors import BodyUnreadable, InternalError, VeilmqError
from veilmq.core.limits import SMQ_XML_DEPTH_MAX, SMQ_XML_ELEMENTS_MAX, SMQ_XML_TAG_CHARACTERS_MAX, Range
from veilmq.core.messages import Attribute, NewMessage
from veilmq.wire.exchange import Plan, RequestContext
from veilmq.wire.smq import errors as smq
from veilmq.wire.smq.errors import (
    CODES,
    CORE_ERRORS,
    INVALID_CONTENT_TYPE,
    INVALID_DIGEST,
    INVALID_QUERY_STRING,
    INVALID_REQUEST_URL,
    INVALID_VERSION_HEADER,
    MALFORMED_XML,
    MESSAGE_NOT_EXIST,
    Code,
    SmqError,
    from_core,
    invalid_argument,
)
from veilmq.wire.smq.messages import decoded, properties_xml
from veilmq.wire.smq.request import (
    Element,
    SmqRequest,
    flag,
    is_smq,
    optional_body_of,
    parse_xml,
    read_flat_xml,
    read_request,
    read_xml,
    whole_number,
)
from veilmq.wire.smq.routes import (
    ROUTES,
    check_content_md5,
    decode,
    encode_error,
    route_of,
)
from veilmq.wire.sqs import errors as sqs
from veilmq.wire.sqs.actions import ACTIONS
from veilmq.wire.sqs.errors import SqsError

BASE = "http://127.0.0.1:9324"
CONTEXT = RequestContext(base_url=BASE, token_key=bytes(32))


def request(method: str, target: str, body: str = "", headers: Mapping[str, str] | None = None) -> SmqRequest:
    given = {name.encode(): value.encode() for name, value in (headers or {}).items()}
    return read_request(method.encode(), target.encode(), given, body.encode())


def decode_request(method: str, target: str, body: str = "", headers: Mapping[str, str] | None = None) -> Plan:
    parsed = request(method, target, body, headers)
    return decode(route_of(parsed), parsed, CONTEXT)


def test_routes_have_distinct_labels_and_valid_permissions() -> None:
    assert all(key.decode() == route.label == f"smq.{route.name}" for key, route in ROUTES.items())
    assert {route.permission for route in ROUTES.values()} - set(ACTIONS) <= {""}


# The codec.


def test_errors_before_decoding() -> None:
    assert encode_error(SmqError(MESSAGE_NOT_EXIST), BASE).status == 404
    assert encode_error(SqsError(sqs.INTERNAL_FAILURE, "x"), BASE).code == "InternalError"
    assert encode_error(InternalError(), BASE).status == 500
    assert b"secret" not in encode_error(VeilmqError("secret"), BASE).body


def test_the_message_of_an_error_is_escaped() -> None:
    reply = encode_error(SmqError(MESSAGE_NOT_EXIST, "a<b\x01"), BASE)
    assert "<Message>a&lt;b\ufffd</Message>".encode() in reply.body


@pytest.mark.parametrize("kind", ["text/xml;charset=UTF-8", "application/xml", "TEXT/XML"])
def test_a_body_must_have_the_content_type_of_xml(kind: str) -> None:
    """If there is a body and a content type."""
    parsed = [("<Queue/>", kind), ("", "application/json")]
    assert (
        len({repr(decode_request("PUT", "/queues/q", body, {"content-type": each}).command) for body, each in parsed})
        == 1
    )
    with raises(INVALID_CONTENT_TYPE):
        decode_request("PUT", "/queues/q", "<Queue/>", {"content-type": "application/json"})


def test_other_versions_are_refused() -> None:
    assert (
        decode_request("GET", "/queues", headers={"x-mns-version": "2015-06-06"}).command
        == decode_request("GET", "/queues").command
    )
    with raises(INVALID_VERSION_HEADER):
        decode_request("GET", "/queues", headers={"x-mns-version": "2026-04-09"})


# Content-MD5.

BODY = b"<Message/>"
PLAIN = b64encode(md5(BODY).digest())


@pytest.mark.parametrize(("headers", "body"), [
    ({b"content-md5": hex_md5(BODY).encode()}, BODY), ({b"content-md5": PLAIN}, BODY), ({b"content-md5": b""}, BODY),
    ({}, BODY), ({b"content-md5": hex_md5(b"").encode()}, b""),
], ids=["base64 of hex", "base64", "empty", "none", "of no body"])  # fmt: skip
def test_content_md5_may_be_base64_of_hex_or_base64(headers: dict[bytes, bytes], body: bytes) -> None:
    check_content_md5(headers, body)


@pytest.mark.parametrize(
    "value", [hex_md5(b"other").encode(), PLAIN[:-1], md5(BODY).hexdigest().encode(), b"x", b"\xff"]
)
def test_another_content_md5_is_refused(value: bytes) -> None:
    with raises(INVALID_DIGEST):
        check_content_md5({b"content-md5": value}, BODY)


# Errors.

STATUSES = {
    400: {"EndpointInvalid", "InvalidArgument", "InvalidAuthorizationHeader", "InvalidContentType", "InvalidDateHeader",
        "InvalidDegist", "InvalidQueryString", "InvalidQueueName", "InvalidRequestURL", "InvalidVersionHeader",
        "MalformedXML", "MissingAuthorizationHeader", "MissingDateHeader", "MissingReceiptHandle",
        "MissingVersionHeader", "MissingVisibilityTimeout", "QueueDeletedRecently", "QueueNameLengthError",
        "ReceiptHandleError", "SubscriptionNameInvalid", "SubscriptionNameLengthError", "TopicNameInvalid",
        "TopicNameLengthError"},
    403: {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"},
    404: {"MessageNotExist", "QueueNotExist", "SubscriptionNotExist", "TopicNotExist"},
    408: {"TimeExpired"},
    409: {"QueueAlreadyExist", "SubscriptionAlreadyExist", "TopicAlreadyExist"},
    429: {"TooManyRequests"},
    500: {"InternalError", "InternalServerError"},
}  # fmt: skip


def test_codes_and_statuses_match_the_reference() -> None:
    assert len({code.name for code in CODES}) == len(CODES)
    found: dict[int, set[str]] = {}
    for code in CODES:
        found.setdefault(code.status, set()).add(code.name)
    assert found == STATUSES
    assert all(code.text.endswith(".") for code in CODES)


CORE_ROWS: list[tuple[core.VeilmqError, Code, str]] = [
    (core.QueueNotFound("a/q"), smq.QUEUE_NOT_EXIST, "The queue name you provided is not exist."),
    (core.QueueExists("a/q", "delay_s"), smq.QUEUE_ALREADY_EXIST, "The queue you want to create is already exist."),
    (core.QueueDeletedRecently("a/q", 60), smq.QUEUE_DELETED_RECENTLY, "deleted recently."),
    (core.SettingsConflict("fifo", "Leave it."), smq.INVALID_ARGUMENT, "published schema, cause by Leave it."),
    (core.DeadLetterQueueRefused("a/d", "It is gone."), smq.INVALID_ARGUMENT, "cause by It is gone."),
    (core.MessageTooLong(1_024), smq.INVALID_ARGUMENT, "The value of MessageBody should between 1 and 1024 bytes."),
    (core.BodyUnreadable(), smq.INVALID_ARGUMENT, "cause by This queue takes bodies in base64"),
    (core.GroupMissing(), smq.INVALID_ARGUMENT, "cause by MessageGroupId"),
    (core.ReceiptInvalid(), smq.RECEIPT_HANDLE_ERROR, "The receipt handle you provide is not valid."),
    (core.ReceivesThrottled(3), smq.TOO_MANY_REQUESTS, "The request is denied by cluster flow limiter"),
    (core.TopicNotFound("a/t"), smq.TOPIC_NOT_EXIST, "The topic you provided does not exist."),
    (core.TopicExists("a/t", "x"), smq.TOPIC_ALREADY_EXIST, "is already exist."),
    (core.SubscriptionNotFound("a/t", "s"), smq.SUBSCRIPTION_NOT_EXIST, "does not exist."),
    (core.SubscriptionExists("a/t", "s", "x"), smq.SUBSCRIPTION_ALREADY_EXIST, "is already exist."),
    (core.TooManySubscriptions(100), smq.INVALID_ARGUMENT, "cause by A topic may have 100 subscriptions"),
    (core.EndpointRefused("http://x", "it is no address"), smq.ENDPOINT_INVALID, "it is no address."),
    (core.StoreFull(), smq.INTERNAL_SERVER_ERROR, "Interal error. The disk that keeps the messages"),
    (core.StoreUnavailable(), smq.INTERNAL_SERVER_ERROR, "nothing was done. Try again."),
    (core.OutcomeUnknown(), smq.INTERNAL_SERVER_ERROR, "so the outcome is unknown. Try again."),
    (core.ShuttingDown(), smq.INTERNAL_SERVER_ERROR, "Interal error. The server is shutting down; try again."),
    (core.InternalError(), smq.INTERNAL_ERROR, "Interal error."),
]


@pytest.mark.parametrize("row", CORE_ROWS, ids=lambda row: type(row[0]).__name__)
def test_errors_of_core_have_their_codes(row: tuple[core.VeilmqError, Code, str]) -> None:
    error, code, text = row
    smq_error = from_core(error)
    assert smq_error.code is code
    assert text in smq_error.message == str(smq_error)


def test_every_error_of_core_is_tested() -> None:
    kinds = {
        kind
        for name, kind in inspect.getmembers(core, inspect.isclass)
        if name.startswith("Endpoint") or "Topic" in name or "Subscription" in name
    }
    assert len(kinds) == 6
    assert {type(error) for error, _, _ in CORE_ROWS} == set(CORE_ERRORS)
    assert kinds <= set(CORE_ERRORS)


def test_errors_truncate_text_of_the_request() -> None:
    assert len(invalid_argument("x" * 9_999).message) < 400


# Requests.


@pytest.mark.parametrize(("target", "headers"), [
    (b"/", {b"x-mns-version": b"2015-06-06"}), (b"/anything", {b"authorization": b"MNS key:signature"}),
    (b"/", {b"authorization": b"MNS4-HMAC-SHA256 Credential=key"}),
    (b"/queues", {}), (b"/queues?a=b", {}), (b"/queues/q/messages", {}), (b"/topics/t", {}),
    (b"/commonbuy/openservice", {}), (b"/?accountmeta=true", {}), (b"/?AccountMeta", {}),
])  # fmt: skip
def test_requests_of_smq_are_recognised(target: bytes, headers: dict[bytes, bytes]) -> None:
    assert is_smq(target, headers)


@pytest.mark.parametrize(("target", "headers"), [
    (b"/", {}), (b"/queuesque", {}), (b"/000000000000/queues", {}), (b"/v1/queues/000000000000/q/forward", {}),
    (b"/?Action=ListQueues", {b"authorization": b"AWS4-HMAC-SHA256 Credential=key"}),
    (b"/?accountmetadata=true", {}),
])  # fmt: skip
def test_requests_of_other_protocols_are_not_of_smq(target: bytes, headers: dict[bytes, bytes]) -> None:
    assert not is_smq(target, headers)


def test_a_target_is_decoded_and_kept_undecoded() -> None:
    parsed = request("PUT", "/queues/%71/?ReceiptHandle=1-a+b/c==&VisibilityTimeout=%31&flag&")
    assert parsed.path == ("queues", "q")
    assert parsed.query == {"receipthandle": "1-a+b/c==", "visibilitytimeout": "1", "flag": ""}
    assert parsed.target == b"/queues/%71/?ReceiptHandle=1-a+b/c==&VisibilityTimeout=%31&flag&"
    assert request("GET", "/?accountmeta=true").path == ()


@pytest.mark.parametrize(("target", "code"), [
    (b"/queues/%ff", INVALID_REQUEST_URL), (b"/queues%2F*", INVALID_REQUEST_URL),
    (b"/queues%2F*%2Fmessages", INVALID_REQUEST_URL), (b"/topics/t/subscriptions%2F*", INVALID_REQUEST_URL),
    (b"/queues?a=%ff", INVALID_QUERY_STRING), (b"/queues?%ff=a", INVALID_QUERY_STRING),
    (b"/queues?a=1&A=2", INVALID_QUERY_STRING),
])  # fmt: skip
def test_an_invalid_target_is_an_error_of_decoding(target: bytes, code: smq.Code) -> None:
    parsed = read_request(b"GET", target, {}, b"")
    with raises(code):
        decode(route_of(parsed), parsed, CONTEXT)


def test_an_escaped_slash_does_not_separate_parts() -> None:
    """The route is not found, and its name is not read."""
    parsed = read_request(b"POST", b"/commonbuy%2F*", {}, b"")
    assert route_of(parsed) == b""
    assert parsed.error is not None


@pytest.mark.parametrize(("body", "root"), [
    (b"", ""), (b"text", ""), (b"<Messages/>", "Messages"), (b"<Messages>", "Messages"),
    (b" \n<Messages a='<Message>'>", "Messages"), (b"<m:Messages xmlns:m='x'/>", "Messages"),
    (b"\xef\xbb\xbf<?xml version='1.0'?>\r\n<Messages>", "Messages"),
    (b"<!-- <Message> --><?a <Message> ?><Messages>", "Messages"),
    (b"<!---->" * 999 + b"<Messages>", "Messages"), (b"<!---->" * 1_000 + b"<Messages>", "!----"),
    (b"<?xml-a b><Message>?><Messages>", "Messages"), (b"<!DOCTYPE Messages>", "!DOCTYPE"), (b"<\xff>", "\ufffd"),
])  # fmt: skip
def test_the_root_of_a_body_is_found_before_parsing(body: bytes, root: str) -> None:
    assert read_request(b"POST", b"/queues/q/messages", {}, body).root == root


@pytest.mark.parametrize("piece", [b"<?a?>", b"<!---->", b" ", b"<", b"<a:", b"<?", b"<!--"])
def test_the_root_is_found_in_linear_time(piece: bytes) -> None:
    """A megabyte takes well under a second."""
    began_s = process_time()
    read_request(b"POST", b"/queues/q/messages", {}, piece * (1_048_576 // len(piece)))
    assert process_time() - began_s < 1


@given(
    method=st.sampled_from([b"GET", b"PUT", b"POST", b"DELETE"]),
    path=st.lists(st.sampled_from([b"/", b"%2F", b"*", b"queues", b"q", b"messages", b"topics", b"subscriptions"])).map(
        b"".join
    )
    | st.sampled_from([b"/queues", b"/queues/q", b"/queues/q/messages", b"/topics/t", b"/"])
    | st.binary(),
    query=st.binary(max_size=30) | st.sampled_from([b"numOfMessages=9", b"metaoverride=true", b"ReceiptHandle=a"]),
    body=st.binary(max_size=60) | st.sampled_from([b"<Message/>", b"<Queue><a/></Queue>", b"<Messages><Message/>"]),
)
def test_any_request_decodes_or_raises_an_smq_error(method: bytes, path: bytes, query: bytes, body: bytes) -> None:
    parsed = read_request(method, path + b"?" + query, {}, body)
    with contextlib.suppress(SmqError):
        assert isinstance(decode(route_of(parsed), parsed, CONTEXT).command, Command)


def test_cached_paths_are_parsed_the_same() -> None:
    for number in range(5_000):
        assert request("GET", f"/queues/q{number}").path == ("queues", f"q{number}")
    for _ in range(2):
        assert request("GET", "/queues/q1/messages").path == ("queues", "q1", "messages")
        assert request("GET", "/queues/" + "a" * 4_000).path == ("queues", "a" * 4_000)
        assert request("GET", "/queues/%71").path == ("queues", "q")


# XML.

MIB = 1_048_576


def is_malformed(body: bytes) -> bool:
    try:
        read_xml(body)
    except SmqError as error:
        return error.code is MALFORMED_XML
    return False


def leaves(root: Element) -> dict[str, str]:
    return {child.name: child.text for child in root.children}


_XML_PIECES = st.sampled_from([
    b'<?xml version="1.0" encoding="utf-8"?>', b'<?xml version="1.0"?>', b'<?xml version="1.0" encoding="GBK"?>',
    b"<A>", b"</A>", b'<A xmlns="http://mns.aliyuncs.com/doc/v1/">', b"<B>", b"</B>", b"<B></B>", b"<B>text</B>",
    b"<B/>", b"<b:B>", b"<!-- -->", b"<![CDATA[x]]>", b"]]>", b"&amp;", b" ", b"\n", b"\r\n", b"\x0c", b"\x7f", b"\x01",
    b"\xc3\xa9", b"x",
])  # fmt: skip


def as_builtins(element: Element) -> object:
    return msgspec.to_builtins(element)


@given(st.lists(_XML_PIECES, max_size=12), st.booleans())
@example([b"<B>text</B>", b" ", b"<B></B>", b"\n"], True)
@example([b'<?xml version="1.0" encoding="GBK"?>', b"<A>", b"<B>text</B>", b"</A>"], False)
@example([], True)
def test_flat_xml_is_read_as_by_the_parser(pieces: list[bytes], whole: bool) -> None:
    body = b"".join([b"<A>", *pieces, b"</A>"] if whole else pieces)
    flat = read_flat_xml(body)
    if flat is not None:
        assert as_builtins(flat) == as_builtins(parse_xml(body))


def test_requests_of_the_sdks_are_flat_xml() -> None:
    text = "SSBhbSB0ZXN0IE1lc3NhZ2Uu+/="
    message = f"<MessageBody>{text}</MessageBody><DelaySeconds>0</DelaySeconds><Priority>10</Priority>"
    for opening in ('<?xml version="1.0" encoding="utf-8"?>\n', '<?xml version="1.0" encoding="UTF-8"?>', ""):
        for namespace in (' xmlns="http://mns.aliyuncs.com/doc/v1/"', ""):
            body = f"{opening}<Message{namespace}>{message}</Message>".encode()
            flat = read_flat_xml(body)
            assert flat is not None
            assert as_builtins(flat) == as_builtins(parse_xml(body))
            assert leaves(flat)["MessageBody"] == text
    assert read_flat_xml(b"<Queue></Queue>") is not None
    assert read_flat_xml(b"<Message><A><B>1</B></A></Message>") is None


@given(st.binary(max_size=200))
def test_any_bytes_are_xml_or_malformed(body: bytes) -> None:
    assert is_malformed(body) or read_xml(body).name


@pytest.mark.parametrize("body", [
    b"", b"   ", b"no xml", b"<Queue>", b"<Queue></queue>", b"<Queue/><Queue/>", b"<Queue>\x01</Queue>",
    b"<Queue><A>]]></A></Queue>", b"<Queue><A>\xff</A></Queue>",
    b"<Queue><A>1</A><</Queue>", b"<Queue><A>1</A><B></Queue>",
    '<?xml version="1.0" encoding="GBK"?><Queue><A>\u4e2d</A></Queue>'.encode(),
    b"<Queue>&#1;</Queue>", b"<Queue>\xff</Queue>", b"<Queue>&unknown;</Queue>", "<Queue>5</Queue>".encode("utf-16"),
    '<?xml version="1.0" encoding="utf-16"?><Queue/>'.encode("utf-16-le"),
    '<?xml version="1.0" encoding="GBK"?><Queue>\u4e2d</Queue>'.encode("gbk"),
    '<?xml version="1.0" encoding="ISO-8859-1"?><Queue>\u00e9</Queue>'.encode(),
    b"<!DOCTYPE Queue><Queue/>", b'<!DOCTYPE Queue [<!ENTITY a "5">]><Queue>&a;</Queue>',
    b'<!DOCTYPE Queue [<!ENTITY a SYSTEM "file:///etc/passwd">]><Queue>&a;</Queue>',
    b'<!DOCTYPE Queue SYSTEM "http://127.0.0.1:9/x.dtd"><Queue/>',
    b'<!DOCTYPE Queue PUBLIC "a" "http://127.0.0.1:9/x.dtd"><Queue/>',
    b'<?xml version="1.0"?><!DOCTYPE Queue [<!ENTITY % a SYSTEM "file:///etc/passwd"> %a;]><Queue/>',
])  # fmt: skip
def test_malformed_xml_and_document_types_are_refused(body: bytes) -> None:
    assert is_malformed(body)


def test_the_depth_of_elements_is_limited() -> None:
    deep = SMQ_XML_DEPTH_MAX
    assert read_xml(b"<a>" * deep + b"</a>" * deep).name == "a"
    assert is_malformed(b"<a>" * (deep + 1) + b"</a>" * (deep + 1))


def test_the_number_of_elements_is_limited() -> None:
    most = SMQ_XML_ELEMENTS_MAX - 1
    assert len(read_xml(b"<a>" + b"<b/>" * most + b"</a>").children) == most
    assert is_malformed(b"<a>" + b"<b/>" * (most + 1) + b"</a>")


def test_the_length_of_names_and_attributes_is_limited() -> None:
    most = SMQ_XML_TAG_CHARACTERS_MAX
    assert read_xml(b"<%b/>" % (b"a" * most)).name == "a" * most
    assert is_malformed(b"<%b/>" % (b"a" * (most + 1)))
    assert read_xml(b'<a b="%b"/>' % (b"c" * (most - 1))).name == "a"
    assert is_malformed(b'<a b="%b"/>' % (b"c" * most))


@pytest.mark.parametrize("character", ["a", "\u20ac", "\U0001f600", "&amp;", "\n", "]"])
def test_a_text_may_fill_the_body(character: str) -> None:
    count = 8 * MIB // len(character.encode()) - 20
    text = read_xml(f"<Message><A>{character * count}</A></Message>".encode()).children[0].text
    assert len(text) == count
    assert set(text) == {"&" if character == "&amp;" else character}


def _billion_laughs() -> bytes:
    entities = b'<!ENTITY l0 "lol">' + b"".join(
        b'<!ENTITY l%d "%b">' % (level, b"&l%d;" % (level - 1) * 10) for level in range(1, 10)
    )
    return b"<!DOCTYPE l [" + entities + b"]><l>&l9;</l>"


def _quadratic() -> bytes:
    return b'<!DOCTYPE l [<!ENTITY a "' + b"x" * MIB + b'">]><l>' + b"&a;" * MIB + b"</l>"


ATTACKS: dict[str, Callable[[], bytes]] = {
    "a billion laughs": _billion_laughs,
    "quadratic": _quadratic,
    "deep": lambda: b"<a>" * (8 * MIB // 3),
    "tiny elements": lambda: b"<a>" + b"<b/>" * (2 * MIB - 1),
    "tiny elements with names of their own": lambda: b"<a>" + b"".join(b"<b%x/>" % n for n in range(700_000)),
    "tiny prefixes": lambda: b"<a>" + b"<b:c/>" * MIB,
    "a megabyte of an attribute": lambda: b'<a b="' + b"c" * MIB + b'"/>',
    "eight megabytes of an attribute": lambda: b'<a b="' + b"c" * (8 * MIB - 20) + b'"/>',
    "attributes": lambda: b"<a " + b" ".join(b'b%x="1"' % n for n in range(600_000)) + b"/>",
    "a name": lambda: b"<" + b"a" * (8 * MIB - 20) + b"/>",
    "an unfinished tag": lambda: b"<a " + b" " * (8 * MIB - 20),
    "references": lambda: b"<a>" + b"&#65;" * (8 * MIB // 5),
    "comments": lambda: b"<a>" + b"<!---->" * MIB,
    "instructions": lambda: b"<a>" + b"<?b?>" * (8 * MIB // 5),
    "sections": lambda: b"<a>" + b"<![CDATA[]]>" * (8 * MIB // 12),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_are_refused_with_little_memory_and_time(attack: str) -> None:
    body = ATTACKS[attack]()
    started_s = process_time()
    tracemalloc.start()
    try:
        assert is_malformed(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert process_time() - started_s < 1.0, "linear time"
    assert peak < 4 * MIB


# Members.

ALLOWED = Range(minimum=1, maximum=16, default=8)


@pytest.mark.parametrize("text", ["", " ", "0", "17", "-1", "+1", "1.0", "1 6", "٣", "9" * 5_000])
def test_invalid_numbers_are_refused(text: str) -> None:
    with pytest.raises(SmqError, match="The value of N should between 1 and 16 seconds"):
        whole_number("N", text, ALLOWED, "seconds")


# Bodies of messages.


@pytest.mark.parametrize("wire", ["?", "YQ", "/w==", "AA==", "7bBA"])
def test_undecodable_bodies_are_refused(wire: str) -> None:
    with pytest.raises(BodyUnreadable):
        decoded(NewMessage(body=wire, size_bytes=len(wire)))


def test_a_decoded_body_counts_by_its_own_size() -> None:
    message = decoded(NewMessage(body="aGVsbG8=", size_bytes=18))
    assert (message.body, message.size_bytes) == ("hello", 15)


def test_system_properties_of_other_protocols_are_not_shown() -> None:
    """One SDK fails on a name that it does not know."""
    shown = {"baggage": Attribute("String", "x")}
    assert properties_xml(shown | {"AWSTraceHeader": Attribute("String", "x")}, "System") == properties_xml(
        shown, "System"
    )


@pytest.mark.parametrize("text", ["true", " True\n"])
def test_a_flag_may_have_white_space(text: str) -> None:
    assert flag("F", text) is True


def test_a_body_of_white_space_is_none() -> None:
    assert optional_body_of(request("PUT", "/queues/a", " \n"), "Queue").children == []
