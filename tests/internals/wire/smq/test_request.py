"""Taking a request apart: what it is recognised by, its parts, and the root of its body."""

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.internals.wire.smq.asking import CONTEXT, request
from veilmq.core.commands import Command
from veilmq.wire.smq import SmqError, decode, is_smq, read_request, route_of
from veilmq.wire.smq.errors import INVALID_QUERY_STRING, INVALID_REQUEST_URL


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        (b"/", {b"x-mns-version": b"2015-06-06"}),
        (b"/anything", {b"authorization": b"MNS key:signature"}),
        (b"/", {b"authorization": b"MNS4-HMAC-SHA256 Credential=key"}),
        (b"/queues", {}),
        (b"/queues?a=b", {}),
        (b"/queues/q/messages", {}),
        (b"/topics/t", {}),
        (b"/commonbuy/openservice", {}),
        (b"/?accountmeta=true", {}),
        (b"/?AccountMeta", {}),
    ],
)
def test_a_request_of_smq_is_recognised(target: bytes, headers: dict[bytes, bytes]) -> None:
    """By its version, its signature, or its path."""
    assert is_smq(target, headers)


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        (b"/", {}),
        (b"/queuesque", {}),
        (b"/000000000000/queues", {}),
        (b"/v1/queues/000000000000/q/forward", {}),
        (b"/?Action=ListQueues", {b"authorization": b"AWS4-HMAC-SHA256 Credential=key"}),
        (b"/?accountmetadata=true", {}),
    ],
)
def test_requests_of_other_protocols_are_not(target: bytes, headers: dict[bytes, bytes]) -> None:
    """They go on to the next row of the table of protocols."""
    assert not is_smq(target, headers)


def test_the_parts_of_a_target_are_decoded_and_the_target_is_kept() -> None:
    """Values of parameters may hold what others escape; a plus sign is one."""
    asked = request("PUT", "/queues/%71/?ReceiptHandle=1-a+b/c==&VisibilityTimeout=%31&flag&")
    assert asked.path == ("queues", "q")
    assert asked.query == {"receipthandle": "1-a+b/c==", "visibilitytimeout": "1", "flag": ""}
    assert asked.target == b"/queues/%71/?ReceiptHandle=1-a+b/c==&VisibilityTimeout=%31&flag&"
    assert request("GET", "/?accountmeta=true").path == ()


@pytest.mark.parametrize(
    ("target", "code"),
    [
        (b"/queues/%ff", INVALID_REQUEST_URL),
        (b"/queues%2F*", INVALID_REQUEST_URL),
        (b"/queues%2F*%2Fmessages", INVALID_REQUEST_URL),
        (b"/topics/t/subscriptions%2F*", INVALID_REQUEST_URL),
        (b"/queues?a=%ff", INVALID_QUERY_STRING),
        (b"/queues?%ff=a", INVALID_QUERY_STRING),
        (b"/queues?a=1&A=2", INVALID_QUERY_STRING),
    ],
)
def test_what_is_wrong_with_a_target_is_said_when_it_is_decoded(target: bytes, code: object) -> None:
    """So that who asks is asked who he is first."""
    asked = read_request(b"GET", target, {}, b"")
    with pytest.raises(SmqError) as caught:
        decode(route_of(asked), asked, CONTEXT)
    assert caught.value.code is code


def test_a_part_with_a_slash_is_not_several() -> None:
    """Nobody looks for a name where there is none, not even to find the route."""
    asked = read_request(b"POST", b"/commonbuy%2F*", {}, b"")
    assert route_of(asked) == b""
    assert asked.flaw is not None


def test_a_parameter_may_be_given_twice_with_one_value() -> None:
    """That says nothing else."""
    assert request("GET", "/queues?a=1&A=1").query == {"a": "1"}


@pytest.mark.parametrize(
    ("body", "root"),
    [
        (b"", ""),
        (b"text", ""),
        (b"<Messages/>", "Messages"),
        (b"<Messages>", "Messages"),
        (b" \n<Messages a='<Message>'>", "Messages"),
        (b"<m:Messages xmlns:m='x'/>", "Messages"),
        (b"\xef\xbb\xbf<?xml version='1.0'?>\r\n<Messages>", "Messages"),
        (b"<!-- <Message> --><?a <Message> ?><Messages>", "Messages"),
        (b"<?xml-a b><Message>?><Messages>", "Messages"),
        (b"<!DOCTYPE Messages>", "!DOCTYPE"),
        (b"<\xff>", "\ufffd"),
    ],
)
def test_the_root_of_a_body_is_found_before_it_is_read(body: bytes, root: str) -> None:
    """Past what may stand before it, without its prefix."""
    assert read_request(b"POST", b"/queues/q/messages", {}, body).root == root


@pytest.mark.parametrize("piece", [b"<?a?>", b"<!---->", b" ", b"<", b"<a:", b"<?", b"<!--"])
def test_looking_for_a_root_takes_time_that_grows_with_the_body_alone(piece: bytes) -> None:
    """A megabyte of anything takes well under a second."""
    began_s = time.perf_counter()
    read_request(b"POST", b"/queues/q/messages", {}, piece * (1_048_576 // len(piece)))
    assert time.perf_counter() - began_s < 1


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
def test_whatever_comes_is_understood_or_refused(method: bytes, path: bytes, query: bytes, body: bytes) -> None:
    """There is no third way."""
    asked = read_request(method, path + b"?" + query, {}, body)
    with contextlib.suppress(SmqError):
        assert isinstance(decode(route_of(asked), asked, CONTEXT).command, Command)


def test_paths_are_remembered_and_mean_the_same_afterwards() -> None:
    """However many there are, and however long."""
    for number in range(5_000):
        assert request("GET", f"/queues/q{number}").path == ("queues", f"q{number}")
    for _ in range(2):
        assert request("GET", "/queues/q1/messages").path == ("queues", "q1", "messages")
        assert request("GET", "/queues/" + "a" * 4_000).path == ("queues", "a" * 4_000)
        assert request("GET", "/queues/%71").path == ("queues", "q")
