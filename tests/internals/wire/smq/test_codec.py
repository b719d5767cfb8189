"""From a request to its call, and from answers and errors to bytes."""

import re

import pytest

from tests.internals.wire.smq.asking import BASE, ask
from veilmq.core import commands
from veilmq.core.errors import InternalError, QueueNotFound, VeilmqError
from veilmq.core.results import QueueView
from veilmq.core.settings import QueueSettings
from veilmq.wire.smq import SmqError, encode_error, encode_failure
from veilmq.wire.smq.errors import INVALID_CONTENT_TYPE, INVALID_REQUEST_URL, INVALID_VERSION_HEADER, MESSAGE_NOT_EXIST
from veilmq.wire.sqs import errors as sqs
from veilmq.wire.sqs.errors import SqsError

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
