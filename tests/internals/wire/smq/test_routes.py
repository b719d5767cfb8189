"""The table of routes, the codec, and the errors."""

import inspect
import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import md5

import pytest

from tests.clients.smq.raw import hex_md5
from veilmq.core import commands
from veilmq.core import errors as core
from veilmq.core.commands import QueueView
from veilmq.core.errors import InternalError, QueueNotFound, VeilmqError
from veilmq.core.settings import QueueSettings
from veilmq.wire.exchange import RequestContext
from veilmq.wire.smq import errors as smq
from veilmq.wire.smq.errors import (
    ANSWERS,
    CODES,
    INVALID_CONTENT_TYPE,
    INVALID_DIGEST,
    INVALID_REQUEST_URL,
    INVALID_VERSION_HEADER,
    MESSAGE_NOT_EXIST,
    Code,
    SmqError,
    from_core,
    from_sqs,
    invalid_argument,
    invalid_query,
)
from veilmq.wire.smq.request import SmqRequest, read_request
from veilmq.wire.smq.routes import (
    ROUTES,
    SmqCall,
    check_content_md5,
    decode,
    encode_error,
    encode_failure,
    route_of,
)
from veilmq.wire.sqs import errors as sqs
from veilmq.wire.sqs.actions import ACTIONS
from veilmq.wire.sqs.errors import SqsError

BASE = "http://127.0.0.1:9324"
CONTEXT = RequestContext(base_url=BASE, token_key=bytes(32))
ACCOUNT = CONTEXT.account


def request(method: str, target: str, body: str = "", headers: Mapping[str, str] | None = None) -> SmqRequest:
    given = {name.encode(): value.encode() for name, value in (headers or {}).items()}
    return read_request(method.encode(), target.encode(), given, body.encode())


def ask(method: str, target: str, body: str = "", headers: Mapping[str, str] | None = None) -> SmqCall:
    asked = request(method, target, body, headers)
    return decode(route_of(asked), asked, CONTEXT)


FOUND = [
    ("GET", "/?accountmeta=true", "", "GetAccountAttributes"),
    ("PUT", "/?AccountMeta=True", "", "SetAccountAttributes"), ("POST", "/commonbuy/openservice", "", "OpenService"),
    ("GET", "/queues", "", "ListQueue"), ("GET", "/queues/", "", "ListQueue"), ("PUT", "/queues/q", "", "CreateQueue"),
    ("PUT", "/queues/q?metaoverride=false", "", "CreateQueue"),
    ("PUT", "/queues/q?metaOverride=true", "", "SetQueueAttributes"),
    ("GET", "/queues/q", "", "GetQueueAttributes"), ("DELETE", "/queues/q", "", "DeleteQueue"),
    ("POST", "/queues/q/messages", "<Message/>", "SendMessage"), ("POST", "/queues/q/messages", "", "SendMessage"),
    ("POST", "/queues/q/messages", "<a:Messages/>", "BatchSendMessage"),
    ("GET", "/queues/q/messages", "", "ReceiveMessage"),
    ("GET", "/queues/q/messages?peekonly=false&waitseconds=1", "", "ReceiveMessage"),
    ("GET", "/queues/q/messages?numofmessages=1", "", "BatchReceiveMessage"),
    ("GET", "/queues/q/messages?peekonly=true", "", "PeekMessage"),
    ("GET", "/queues/q/messages?numOfMessages=2&peekOnly=true", "", "BatchPeekMessage"),
    ("PUT", "/queues/q/messages?ReceiptHandle=r&VisibilityTimeout=1", "", "ChangeMessageVisibility"),
    ("DELETE", "/queues/q/messages?ReceiptHandle=r", "", "DeleteMessage"),
    ("DELETE", "/queues/q/messages", "<ReceiptHandles/>", "BatchDeleteMessage"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "target", "body", "name"), FOUND)
def test_a_request_finds_its_route(method: str, target: str, body: str, name: str) -> None:
    assert ROUTES[route_of(request(method, target, body))].name == name


@pytest.mark.parametrize(("method", "target"), [
    ("POST", "/queues/q"), ("GET", "/"), ("GET", "/?accountmeta=false"), ("POST", "/commonbuy/other"),
    ("GET", "/commonbuy/openservice"), ("GET", "/queues/q/r/s"),
])  # fmt: skip
def test_what_no_row_is_about_has_no_route(method: str, target: str) -> None:
    assert route_of(request(method, target)) not in ROUTES


def test_every_route_of_queues_is_found_above() -> None:
    named = {route.name for route in ROUTES.values() if not route.path.startswith("topics")}
    assert {name for *_, name in FOUND} == named


def test_each_route_has_a_label_of_its_own_and_a_permission_that_policies_know() -> None:
    assert all(key.decode() == route.label == f"smq.{route.name}" for key, route in ROUTES.items())
    assert {route.permission for route in ROUTES.values()} - set(ACTIONS) <= {""}


# From a request to its call, and from answers and errors to bytes.

HEADERS = rb"x-mns-request-id: ([0-9A-F]{24})\r\nx-mns-version: 2015-06-06\r\n"
TYPE = rb"Content-Type: text/xml;charset=utf-8\r\n"


def view(*, is_new: bool) -> QueueView:
    return QueueView(queue="a/q", settings=QueueSettings(), created_at_ms=0, modified_at_ms=0, is_new=is_new)


@pytest.mark.parametrize(("is_new", "status"), [(True, 201), (False, 204)])
def test_a_reply_without_a_body(is_new: bool, status: int) -> None:
    """Its headers, byte for byte: no type, and a location."""
    call = ask("PUT", "/queues/q")
    assert isinstance(call.command, commands.CreateQueue)
    reply = call.encode(view(is_new=is_new))
    assert (reply.status, reply.body, reply.code) == (status, b"", "OK")
    assert re.fullmatch(HEADERS + rb"Location: http://127.0.0.1:9324/queues/q\r\n", reply.headers)


def test_an_error_of_the_engine() -> None:
    reply = ask("GET", "/queues/q").encode(QueueNotFound("a/q"))
    assert (reply.status, reply.code) == (404, "QueueNotExist")
    match = re.fullmatch(TYPE + HEADERS, reply.headers)
    assert match is not None
    assert b"<RequestId>%b</RequestId>" % match[1] in reply.body
    assert f"<HostId>{BASE}</HostId>".encode() in reply.body


def test_errors_before_there_is_a_call() -> None:
    assert encode_error(SmqError(MESSAGE_NOT_EXIST), BASE).status == 404
    assert encode_error(SqsError(sqs.INTERNAL_FAILURE, "x"), BASE).code == "InternalError"
    assert encode_failure(InternalError(), BASE).status == 500
    assert b"secret" not in encode_failure(VeilmqError("secret"), BASE).body


def test_text_of_an_error_is_escaped() -> None:
    reply = encode_error(SmqError(MESSAGE_NOT_EXIST, "a<b\x01"), BASE)
    assert "<Message>a&lt;b\ufffd</Message>".encode() in reply.body


@pytest.mark.parametrize("kind", ["text/xml;charset=UTF-8", "application/xml", "TEXT/XML"])
def test_a_body_is_xml(kind: str) -> None:
    """By what it says, if it says anything; where there is none it does not matter."""
    asked = [("<Queue/>", kind), ("", "application/json")]
    assert len({repr(ask("PUT", "/queues/q", body, {"content-type": each}).command) for body, each in asked}) == 1
    with pytest.raises(SmqError) as caught:
        ask("PUT", "/queues/q", "<Queue/>", {"content-type": "application/json"})
    assert caught.value.code is INVALID_CONTENT_TYPE


def test_there_is_one_version() -> None:
    assert ask("GET", "/queues", headers={"x-mns-version": "2015-06-06"}).command == ask("GET", "/queues").command
    with pytest.raises(SmqError) as caught:
        ask("GET", "/queues", headers={"x-mns-version": "2026-04-09"})
    assert caught.value.code is INVALID_VERSION_HEADER


@pytest.mark.parametrize("target", ["/", "/queues/q/messages/m", "/queues/q/letters"])
def test_where_there_is_no_route_the_url_is_wrong(target: str) -> None:
    """Whatever else the request has."""
    with pytest.raises(SmqError) as caught:
        ask("GET", target)
    assert caught.value.code is INVALID_REQUEST_URL


# Content-MD5, in both forms.

BODY = b"<Message/>"
PLAIN = b64encode(md5(BODY).digest())


@pytest.mark.parametrize("value", [hex_md5(BODY).encode(), PLAIN, b""])
def test_either_form_of_the_digest_fits(value: bytes) -> None:
    check_content_md5({b"content-md5": value}, BODY)
    check_content_md5({}, BODY)


def test_a_request_without_a_body_may_have_one() -> None:
    check_content_md5({b"content-md5": hex_md5(b"").encode()}, b"")


@pytest.mark.parametrize(
    "value", [hex_md5(b"other").encode(), PLAIN[:-1], md5(BODY).hexdigest().encode(), b"x", b"\xff"]
)
def test_anything_else_is_refused(value: bytes) -> None:
    with pytest.raises(SmqError) as caught:
        check_content_md5({b"content-md5": value}, BODY)
    assert caught.value.code is INVALID_DIGEST


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


def test_the_table_is_that_of_the_reference() -> None:
    """Every code with its status, once; none without a text."""
    assert len({code.name for code in CODES}) == len(CODES)
    found: dict[int, set[str]] = {}
    for code in CODES:
        found.setdefault(code.status, set()).add(code.name)
    assert found == STATUSES
    assert all(code.text.endswith(".") for code in CODES)


TOLD: list[tuple[core.VeilmqError, Code, str]] = [
    (core.QueueNotFound("a/q"), smq.QUEUE_NOT_EXIST, "The queue name you provided is not exist."),
    (core.QueueExists("a/q", "delay_s"), smq.QUEUE_ALREADY_EXIST, "The queue you want to create is already exist."),
    (core.QueueDeletedRecently("a/q", 60), smq.QUEUE_DELETED_RECENTLY, "deleted recently."),
    (core.SettingsConflict("fifo", "Leave it."), smq.INVALID_ARGUMENT, "published schema, cause by Leave it."),
    (core.DeadLetterQueueRefused("a/d", "It is gone."), smq.INVALID_ARGUMENT, "cause by It is gone."),
    (core.MessageTooLong(1_024), smq.INVALID_ARGUMENT, "The value of MessageBody should between 1 and 1024 bytes."),
    (core.BodyUnreadable(), smq.INVALID_ARGUMENT, "cause by The body is no base64"),
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
    (core.OutcomeUnknown(), smq.INTERNAL_SERVER_ERROR, "it may have happened. Try again."),
    (core.ShuttingDown(), smq.INTERNAL_SERVER_ERROR, "Interal error. The server is shutting down; try again."),
    (core.InternalError(), smq.INTERNAL_ERROR, "Interal error."),
]


@pytest.mark.parametrize("told", TOLD, ids=lambda told: type(told[0]).__name__)
def test_an_error_of_core_is_answered_with_its_code(told: tuple[core.VeilmqError, Code, str]) -> None:
    error, code, text = told
    answer = from_core(error)
    assert answer.code is code
    assert text in answer.message == str(answer)


def test_every_row_is_tested_and_every_error_of_topics_has_a_row() -> None:
    kinds = {
        kind
        for name, kind in inspect.getmembers(core, inspect.isclass)
        if name.startswith("Endpoint") or "Topic" in name or "Subscription" in name
    }
    assert len(kinds) == 6
    assert {type(error) for error, _, _ in TOLD} == set(ANSWERS)
    assert kinds <= set(ANSWERS)


def test_an_error_that_no_row_knows_says_nothing_of_itself() -> None:
    answer = from_core(core.VeilmqError("secret"))
    assert (answer.code, answer.message) == (smq.INTERNAL_ERROR, "Interal error.")


def test_what_refuses_requests_of_any_protocol_has_a_code_here() -> None:
    """One that SMQ has no code for keeps its own, as the faults of a test have."""
    assert from_sqs(SqsError(sqs.SERVICE_UNAVAILABLE, "x")).code is smq.INTERNAL_SERVER_ERROR
    other = from_sqs(SqsError(sqs.OVER_LIMIT, "Too many."))
    assert (other.code.name, other.code.status, other.message) == ("OverLimit", 403, "Too many.")


def test_texts_with_a_place_for_what_is_wrong() -> None:
    assert invalid_query("x").message == 'Http request URL contains invalid querystring item "x".'
    assert len(invalid_argument("x" * 9_999).message) < 400
    assert SmqError(smq.MALFORMED_XML).message == "The XML you provided was not well-formed."
