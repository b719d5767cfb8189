"""The table of routes, the codec and the digest of bodies."""

import re
from base64 import b64encode
from hashlib import md5

import pytest

from tests.clients.smq.raw import hex_md5
from tests.internals.wire.smq.asking import BASE, ask, request
from veilmq.core import commands
from veilmq.core.commands import QueueView
from veilmq.core.errors import InternalError, QueueNotFound, VeilmqError
from veilmq.core.settings import QueueSettings
from veilmq.wire.smq import ROUTES, encode_error, encode_failure, route_of
from veilmq.wire.smq.errors import (
    INVALID_CONTENT_TYPE,
    INVALID_DIGEST,
    INVALID_REQUEST_URL,
    INVALID_VERSION_HEADER,
    MESSAGE_NOT_EXIST,
    SmqError,
)
from veilmq.wire.smq.routes import check_content_md5
from veilmq.wire.sqs import errors as sqs
from veilmq.wire.sqs.actions import ACTIONS
from veilmq.wire.sqs.errors import SqsError

FOUND = [
    ("GET", "/?accountmeta=true", "", "GetAccountAttributes"),
    ("PUT", "/?AccountMeta=True", "", "SetAccountAttributes"),
    ("POST", "/commonbuy/openservice", "", "OpenService"),
    ("GET", "/queues", "", "ListQueue"),
    ("GET", "/queues/", "", "ListQueue"),
    ("PUT", "/queues/q", "", "CreateQueue"),
    ("PUT", "/queues/q?metaoverride=false", "", "CreateQueue"),
    ("PUT", "/queues/q?metaOverride=true", "", "SetQueueAttributes"),
    ("GET", "/queues/q", "", "GetQueueAttributes"),
    ("DELETE", "/queues/q", "", "DeleteQueue"),
    ("POST", "/queues/q/messages", "<Message/>", "SendMessage"),
    ("POST", "/queues/q/messages", "", "SendMessage"),
    ("POST", "/queues/q/messages", "<a:Messages/>", "BatchSendMessage"),
    ("GET", "/queues/q/messages", "", "ReceiveMessage"),
    ("GET", "/queues/q/messages?peekonly=false&waitseconds=1", "", "ReceiveMessage"),
    ("GET", "/queues/q/messages?numofmessages=1", "", "BatchReceiveMessage"),
    ("GET", "/queues/q/messages?peekonly=true", "", "PeekMessage"),
    ("GET", "/queues/q/messages?numOfMessages=2&peekOnly=true", "", "BatchPeekMessage"),
    ("PUT", "/queues/q/messages?ReceiptHandle=r&VisibilityTimeout=1", "", "ChangeMessageVisibility"),
    ("DELETE", "/queues/q/messages?ReceiptHandle=r", "", "DeleteMessage"),
    ("DELETE", "/queues/q/messages", "<ReceiptHandles/>", "BatchDeleteMessage"),
]


@pytest.mark.parametrize(("method", "target", "body", "name"), FOUND)
def test_a_request_finds_its_route(method: str, target: str, body: str, name: str) -> None:
    """By method, path, parameters and root."""
    assert ROUTES[route_of(request(method, target, body))].name == name


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/queues/q"),
        ("GET", "/"),
        ("GET", "/?accountmeta=false"),
        ("POST", "/commonbuy/other"),
        ("GET", "/commonbuy/openservice"),
        ("GET", "/queues/q/r/s"),
    ],
)
def test_what_no_row_is_about_has_no_route(method: str, target: str) -> None:
    """And is counted as unknown."""
    assert route_of(request(method, target)) not in ROUTES


def test_every_route_of_queues_is_found_above() -> None:
    """Those of topics have tests of their own."""
    named = {route.name for route in ROUTES.values() if not route.path.startswith("topics")}
    assert {name for *_, name in FOUND} == named


def test_each_route_has_a_label_of_its_own_and_a_permission_that_policies_know() -> None:
    """Where a queue's policy decides at all."""
    assert all(key.decode() == route.label == f"smq.{route.name}" for key, route in ROUTES.items())
    assert {route.permission for route in ROUTES.values()} - set(ACTIONS) <= {""}


# From a request to its call, and from answers and errors to bytes.


HEADERS = rb"x-mns-request-id: ([0-9A-F]{24})\r\nx-mns-version: 2015-06-06\r\n"
TYPE = rb"Content-Type: text/xml;charset=utf-8\r\n"


def view(*, is_new: bool) -> QueueView:
    """Return what an engine answers to a request for a queue."""
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
    """Its id is that of the header, its host the one that was asked."""
    reply = ask("GET", "/queues/q").encode(QueueNotFound("a/q"))
    assert (reply.status, reply.code) == (404, "QueueNotExist")
    match = re.fullmatch(TYPE + HEADERS, reply.headers)
    assert match is not None
    assert b"<RequestId>%b</RequestId>" % match[1] in reply.body
    assert f"<HostId>{BASE}</HostId>".encode() in reply.body


def test_errors_before_there_is_a_call() -> None:
    """Of this protocol, of what all share, and of our own."""
    assert encode_error(SmqError(MESSAGE_NOT_EXIST), BASE).status == 404
    assert encode_error(SqsError(sqs.INTERNAL_FAILURE, "x"), BASE).code == "InternalError"
    assert encode_failure(InternalError(), BASE).status == 500
    assert b"secret" not in encode_failure(VeilmqError("secret"), BASE).body


def test_text_of_an_error_is_escaped() -> None:
    """It may repeat what a client sent."""
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
    """Whoever does not say it means it."""
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
