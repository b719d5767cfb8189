"""Version 2: the vectors of the reference, every way in which SDKs write a target, and no byte that differs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clients.smq.signing import DATE, SECRET, as_received, hex_md5, signature_v2
from veilmq.wire.smq.errors import INVALID_AUTHORIZATION_HEADER, SmqError
from veilmq.wire.smq.signatures import SignatureV2, SignedRequest

SCHEME = SignatureV2()


def fits(
    signature: str,
    *,
    method: str = "GET",
    target: str = "/queues/TestQueue",
    headers: dict[str, str] | None = None,
    dates: tuple[str, ...] = (DATE,),
    secret: str = SECRET,
) -> bool:
    """Tell whether the server takes ``signature`` for a request."""
    known = tuple(date.encode() for date in dates)
    request = SignedRequest(method.encode(), target.encode(), as_received(headers or {}), known, ())
    return SCHEME.fits(SCHEME.read(b"AKID:" + signature.encode()), secret.encode(), request)


@pytest.mark.parametrize(
    ("secret", "method", "headers", "date", "target", "signature"),
    [
        (
            "TestAccessSecret", "GET", {"x-mns-version": "2015-06-06"},
            "Thu, 09 Jul 2015 03:01:34 GMT", "/MyQueue", "uwx3yeWoILzgmvesW0BQSgfM7b8=",
        ),
        (
            "sk1", "POST", {"x-mns-abcDEF": "abcDEF"},
            "Tue, 03 Jun 2025 11:23:48 GMT", "/queues/TestQueue", "cAThPWnbphg3hDe3ZHDADTgkgyE=",
        ),
        (
            "sk-kkkkkk1111111111", "GET", {"X-MNS-abcDEF": "KKKkkk"},
            "Wed, 03 Dec 2025 11:23:48 GMT", "/queues/TestQueue123456", "lPxnfNA+Qo/aj18MYJUnRMqa84I=",
        ),
        ("testSk", "GET", {}, "Tue, 03 Jun 2025 11:23:48 GMT", "/queues/TestQueue", "uDJQXbk2xOhH95MDXmgbAGdtyE4="),
        (
            "testSk", "POST", {"Content-Type": "application/json"},
            "Tue, 03 Jun 2025 11:23:48 GMT", "/queues/Test Queue@123", "GZ/I9UgZsqvbzfzjd0GmA6VHOx4=",
        ),
    ],
)  # fmt: skip
def test_the_vectors_of_the_reference(
    secret: str, method: str, headers: dict[str, str], date: str, target: str, signature: str
) -> None:
    asked = {"method": method, "headers": headers, "dates": (date,), "secret": secret}

    assert fits(signature, target=target, **asked)  # type: ignore[arg-type]
    assert not fits(signature, target=target + "x", **asked)  # type: ignore[arg-type]


HANDLE = "1-MTgtMTc5NTIzNzE1NDIyOS0xLTg"
TARGETS = [
    pytest.param("/queues/a/messages?waitseconds=5&numOfMessages=3", None, id="as it is sent"),
    pytest.param("/queues/a/messages?ReceiptHandle=1-a%3D%3D", "/queues/a/messages?ReceiptHandle=1-a==", id="decoded"),
    pytest.param("/queues/a/messages?ReceiptHandle=1%2Db%2F%2B", "/queues/a/messages?ReceiptHandle=1-b/+", id="plus"),
    pytest.param(
        "/queues/a/messages?ReceiptHandle=1%2Da&VisibilityTimeout=9&A",
        "/queues/a/messages?A=&ReceiptHandle=1-a&VisibilityTimeout=9",
        id="sorted, with a sign behind each name",
    ),
    pytest.param(
        "/queues/a/messages?peekonly=true&numOfMessages=3",
        "/queues/a/messages?numOfMessages=3&peekonly=true",
        id="sorted",
    ),
    pytest.param("/queues/a%2Db?metaoverride=true", "/queues/a-b?metaoverride=true", id="a decoded path"),
    pytest.param("/queues/a%2Db/messages?x=%31", "/queues/a%2Db/messages?x=1", id="a decoded query alone"),
    pytest.param("/queues/%E4%B8%AD", "/queues/\u4e2d", id="decoded, not ASCII"),
]


@pytest.mark.parametrize(("sent", "written"), TARGETS)
def test_a_target_may_be_signed_in_all_ways_of_the_sdks(sent: str, written: str | None) -> None:
    signature = signature_v2("GET", sent if written is None else written, {})

    assert fits(signature, target=sent)


@pytest.mark.parametrize(
    ("signed", "sent"),
    [
        ("/queues/a/messages?ReceiptHandle=a&peekonly=true", "/queues/a/messages?ReceiptHandle=a%26peekonly=true"),
        ("/queues/a/messages?ReceiptHandle=a%26peekonly=true", "/queues/a/messages?ReceiptHandle=a%2526peekonly=true"),
        ("/queues/a/messages?ReceiptHandle=a=b", "/queues/a/messages?ReceiptHandle%3Da=b"),
        ("/queues/a/messages", "/queues/a%2Fmessages"),
        ("/queues/a/messages?peekonly=true", "/queues/a/messages%3Fpeekonly=true"),
        ("/queues/a b", "/queues/a%20b"),
        ("/queues/a\nb", "/queues/a%0Ab"),
        ("/queues/a?b=c d", "/queues/a?b=c+d"),
    ],
)
def test_no_other_reading_has_the_same_signature(signed: str, sent: str) -> None:
    """Each of these, decoded, is what was signed, and means something else."""
    assert not fits(signature_v2("GET", signed, {}), target=sent)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 4_096])
def test_a_secret_has_any_length(length: int) -> None:
    secret = "s" * length

    assert fits(signature_v2("GET", "/queues/TestQueue", {}, secret=secret), secret=secret)
    assert not fits(signature_v2("GET", "/queues/TestQueue", {}, secret=secret), secret=secret + "s")


def test_values_of_headers_may_be_signed_with_single_spaces() -> None:
    """As one SDK does; how many there were says nothing."""
    assert fits(signature_v2("GET", "/queues/TestQueue", {"x-mns-a": "b c"}), headers={"x-mns-a": "b   c"})


def test_either_date_may_be_signed_where_there_are_two() -> None:
    other = "Tue, 03 Jun 2025 11:23:48 GMT"
    signature = signature_v2("GET", "/queues/TestQueue", {"x-mns-date": other})

    assert fits(signature, headers={"x-mns-date": other}, dates=(other, DATE))
    assert not fits(signature, headers={"x-mns-date": other}, dates=(other,))


@given(st.data())
def test_no_byte_of_what_is_signed_can_be_changed(data: st.DataObject) -> None:
    """Method, Content-MD5, Content-Type, date, own headers and target: each as it was, or it does not fit."""
    body = b"<Message/>"
    headers = {"content-md5": hex_md5(body), "content-type": "text/xml", "x-mns-version": "2015-06-06", "x-mns-b": "c"}
    target = "/queues/jobs/messages?ReceiptHandle=" + HANDLE
    signature = signature_v2("POST", target, headers)
    parts = {"method": b"POST", "target": target.encode(), "date": DATE.encode()} | {
        name: value.encode() for name, value in headers.items()
    }
    part = data.draw(st.sampled_from(sorted(parts)))
    place = data.draw(st.integers(0, len(parts[part]) - 1))
    byte = data.draw(st.integers(33, 126).filter(lambda code: code != parts[part][place]))
    changed = parts | {part: parts[part][:place] + bytes([byte]) + parts[part][place + 1 :]}

    def taken(by: dict[str, bytes]) -> bool:
        sent = {name.encode(): by[name] for name in headers}
        request = SignedRequest(by["method"], by["target"], sent, (by["date"],), ())
        return SCHEME.fits(SCHEME.read(b"AKID:" + signature.encode()), SECRET.encode(), request)

    assert taken(parts)
    assert not taken(changed)


@pytest.mark.parametrize("changed", [{"x-mns-version": "2015-06-06", "x-mns-more": "1"}, {}])
def test_no_own_header_can_come_or_go(changed: dict[str, str]) -> None:
    signature = signature_v2("GET", "/queues/TestQueue", {"x-mns-version": "2015-06-06"})

    assert not fits(signature, headers=changed)


@pytest.mark.parametrize("text", [b"", b"AKID", b"AKID:", b":abc=", b"abc="])
def test_a_claim_has_a_key_and_a_signature(text: bytes) -> None:
    with pytest.raises(SmqError) as caught:
        SCHEME.read(text)

    assert caught.value.code is INVALID_AUTHORIZATION_HEADER
