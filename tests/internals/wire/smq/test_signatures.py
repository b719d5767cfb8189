"""Signatures of SMQ."""

import hmac
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clients.smq.raw import DATE, KEY, NOW_S, SECRET, as_received, signature_v2, signed_v2
from tests.internals.wire.sqs.requests import raises
from veilmq.wire.exchange import AccessKey, caller_named
from veilmq.wire.smq import errors
from veilmq.wire.smq.errors import (
    INVALID_AUTHORIZATION_HEADER,
    INVALID_DATE_HEADER,
    Code,
    SmqError,
)
from veilmq.wire.smq.signatures import (
    PRIVATE,
    PUBLIC,
    Date,
    SignatureV2,
    SignatureV4,
    Verifier,
    read_date,
)

ALICE = caller_named("111122223333", "alice")
KEYS = {
    key.id: key
    for key in (
        AccessKey(id=KEY, secret=SECRET.encode(), caller=ALICE),
        AccessKey(
            id="STS", secret=SECRET.encode(), caller=ALICE, session_token=b"a/token+==", expires_at_s=NOW_S + 600
        ),
    )
}
TARGET = "/queues/jobs/messages?waitseconds=5"


def error_of(headers: dict[bytes, bytes], *, now_s: float = NOW_S, target: str = TARGET) -> Code:
    with pytest.raises(SmqError) as caught:
        Verifier(KEYS).verify(b"GET", target.encode(), headers, b"", now_s)
    return caught.value.code


def test_checks_have_the_order_of_the_reference() -> None:
    """Each request corrects the error of the previous one and has all later errors."""
    bad = {"Authorization": "Bearer abc", "Date": "yesterday"}
    versioned = {"x-mns-version": "2015-06-06"}
    unknown = versioned | {"Authorization": "MNS nobody:abc="}
    stages = [
        ({}, errors.MISSING_AUTHORIZATION_HEADER),
        ({"Authorization": "Bearer abc"}, errors.MISSING_DATE_HEADER),
        (bad, errors.MISSING_VERSION_HEADER),
        (bad | versioned, errors.INVALID_AUTHORIZATION_HEADER),
        (bad | unknown, errors.INVALID_DATE_HEADER),
        (unknown | {"Date": "Tue, 03 Jun 2025 11:23:48 GMT"}, errors.TIME_EXPIRED),
        (unknown | {"Date": DATE}, errors.INVALID_ACCESS_KEY_ID),
        (versioned | {"Authorization": f"MNS {KEY}:abc=", "Date": DATE}, errors.SIGNATURE_DOES_NOT_MATCH),
    ]
    assert [error_of(as_received(sent)) for sent, _ in stages] == [code for _, code in stages]


@pytest.mark.parametrize("authorization", ["MNS", "MNS abc", "mns a:b", "AWS4-HMAC-SHA256 a:b", "MNS4-HMAC-SHA256 a:b"])
def test_invalid_authorization_headers(authorization: str) -> None:
    headers = signed_v2(target=TARGET) | {b"authorization": authorization.encode()}
    assert error_of(headers) is errors.INVALID_AUTHORIZATION_HEADER


@pytest.mark.parametrize("off_s", [-900, 900])
def test_a_date_may_differ_by_15_minutes(off_s: int) -> None:
    headers = signed_v2(target=TARGET)
    assert Verifier(KEYS).verify(b"GET", TARGET.encode(), headers, b"", NOW_S + off_s) is ALICE
    assert error_of(headers, now_s=NOW_S + off_s + (1 if off_s > 0 else -1)) is errors.TIME_EXPIRED


def test_the_date_that_is_checked_is_signed() -> None:
    """An unsigned current date does not renew a request with an old signed one."""
    old = "Tue, 03 Jun 2025 11:23:48 GMT"
    headers = signed_v2(target=TARGET, headers={"x-mns-date": old}, date=old)
    assert error_of(headers | {b"date": DATE.encode()}) is errors.TIME_EXPIRED


@pytest.mark.parametrize("key", [KEY, "STS"])
def test_temporary_keys_need_their_token(key: str) -> None:
    headers = signed_v2(target=TARGET, key=key) | {b"security-token": b"a/token+=="}
    assert Verifier(KEYS).verify(b"GET", TARGET.encode(), headers, b"", NOW_S) is ALICE
    del headers[b"security-token"]
    if key == KEY:
        assert Verifier(KEYS).verify(b"GET", TARGET.encode(), headers, b"", NOW_S) is ALICE
    else:
        assert error_of(headers) is errors.INVALID_ACCESS_KEY_ID
        assert error_of(headers | {b"security-token": b"another"}) is errors.INVALID_ACCESS_KEY_ID


def test_a_key_expires() -> None:
    headers = signed_v2(target=TARGET, key="STS") | {b"security-token": b"a/token+=="}
    assert Verifier(KEYS).verify(b"GET", TARGET.encode(), headers, b"", NOW_S + 599) is ALICE
    assert error_of(headers, now_s=NOW_S + 600) is errors.INVALID_ACCESS_KEY_ID


# Version 2.

SCHEME = SignatureV2()


def fits_v2(
    signature: str,
    *,
    method: str = "GET",
    target: str = "/queues/TestQueue",
    headers: dict[str, str] | None = None,
    dates: tuple[str, ...] = (DATE,),
    secret: str = SECRET,
) -> bool:
    known = tuple(Date(date.encode(), 0.0, b"") for date in dates)
    claim = SCHEME.read(b"AKID:" + signature.encode())
    received_headers = as_received(headers or {})
    return claim.signature in SCHEME.signatures(
        claim, secret.encode(), method.encode(), target.encode(), received_headers, known
    )


@pytest.mark.parametrize(("secret", "method", "headers", "date", "target", "signature"), [
    ("TestAccessSecret", "GET", {"x-mns-version": "2015-06-06"}, "Thu, 09 Jul 2015 03:01:34 GMT", "/MyQueue",
        "uwx3yeWoILzgmvesW0BQSgfM7b8="),
    ("sk1", "POST", {"x-mns-abcDEF": "abcDEF"}, "Tue, 03 Jun 2025 11:23:48 GMT", "/queues/TestQueue",
        "cAThPWnbphg3hDe3ZHDADTgkgyE="),
    ("sk-kkkkkk1111111111", "GET", {"X-MNS-abcDEF": "KKKkkk"}, "Wed, 03 Dec 2025 11:23:48 GMT",
        "/queues/TestQueue123456", "lPxnfNA+Qo/aj18MYJUnRMqa84I="),
    ("testSk", "GET", {}, "Tue, 03 Jun 2025 11:23:48 GMT", "/queues/TestQueue", "uDJQXbk2xOhH95MDXmgbAGdtyE4="),
    ("testSk", "POST", {"Content-Type": "application/json"}, "Tue, 03 Jun 2025 11:23:48 GMT", "/queues/Test Queue@123",
        "GZ/I9UgZsqvbzfzjd0GmA6VHOx4="),
])  # fmt: skip
def test_vectors_of_the_reference_v2(
    secret: str, method: str, headers: dict[str, str], date: str, target: str, signature: str
) -> None:
    arguments = {"method": method, "headers": headers, "dates": (date,), "secret": secret}
    assert fits_v2(signature, target=target, **arguments)  # type: ignore[arg-type]
    assert not fits_v2(signature, target=target + "x", **arguments)  # type: ignore[arg-type]


TARGETS = [
    pytest.param("/queues/a/messages?waitseconds=5&numOfMessages=3", None, id="as it is sent"),
    pytest.param("/queues/a/messages?ReceiptHandle=1-a%3D%3D", "/queues/a/messages?ReceiptHandle=1-a==", id="decoded"),
    pytest.param("/queues/a/messages?ReceiptHandle=1%2Db%2F%2B", "/queues/a/messages?ReceiptHandle=1-b/+", id="plus"),
    pytest.param("/queues/a/messages?ReceiptHandle=1%2Da&VisibilityTimeout=9&A",
        "/queues/a/messages?A=&ReceiptHandle=1-a&VisibilityTimeout=9", id="sorted, with a sign behind each name"),
    pytest.param("/queues/a/messages?peekonly=true&numOfMessages=3", "/queues/a/messages?numOfMessages=3&peekonly=true",
        id="sorted"),
    pytest.param("/queues/a%2Db?metaoverride=true", "/queues/a-b?metaoverride=true", id="a decoded path"),
    pytest.param("/queues/a%2Db/messages?x=%31", "/queues/a%2Db/messages?x=1", id="a decoded query alone"),
    pytest.param("/queues/%E4%B8%AD", "/queues/\u4e2d", id="decoded, not ASCII"),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "written"), TARGETS)
def test_a_target_may_be_signed_in_each_form_of_the_sdks(sent: str, written: str | None) -> None:
    signature = signature_v2("GET", sent if written is None else written, {})
    assert fits_v2(signature, target=sent)


@pytest.mark.parametrize(("signed", "sent"), [
    ("/queues/a/messages?ReceiptHandle=a&peekonly=true", "/queues/a/messages?ReceiptHandle=a%26peekonly=true"),
    ("/queues/a/messages?ReceiptHandle=a%26peekonly=true", "/queues/a/messages?ReceiptHandle=a%2526peekonly=true"),
    ("/queues/a/messages?ReceiptHandle=a=b", "/queues/a/messages?ReceiptHandle%3Da=b"),
    ("/queues/a/messages", "/queues/a%2Fmessages"),
    ("/queues/a/messages?peekonly=true", "/queues/a/messages%3Fpeekonly=true"),
    ("/queues/a b", "/queues/a%20b"), ("/queues/a\nb", "/queues/a%0Ab"), ("/queues/a?b=c d", "/queues/a?b=c+d"),
])  # fmt: skip
def test_a_target_with_another_meaning_is_not_accepted_v2(signed: str, sent: str) -> None:
    """Each of these decodes to the signed target, but has another meaning."""
    assert not fits_v2(signature_v2("GET", signed, {}), target=sent)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 4_096])
def test_secrets_of_any_length(length: int) -> None:
    secret = "s" * length
    assert fits_v2(signature_v2("GET", "/queues/TestQueue", {}, secret=secret), secret=secret)
    assert not fits_v2(signature_v2("GET", "/queues/TestQueue", {}, secret=secret), secret=secret + "s")


def test_headers_may_be_signed_with_collapsed_white_space() -> None:
    """As one SDK does."""
    assert fits_v2(signature_v2("GET", "/queues/TestQueue", {"x-mns-a": "b c"}), headers={"x-mns-a": "b   c"})


def test_either_of_two_dates_may_be_signed() -> None:
    other = "Tue, 03 Jun 2025 11:23:48 GMT"
    signature = signature_v2("GET", "/queues/TestQueue", {"x-mns-date": other})
    assert fits_v2(signature, headers={"x-mns-date": other}, dates=(other, DATE))
    assert not fits_v2(signature, headers={"x-mns-date": other}, dates=(other,))


HEADERS = {"content-type": "text/xml", "content-md5": "abc=", "x-mns-version": "2015-06-06", "x-mns-a": "b"}
SIGNED_TARGET = "/queues/jobs/messages?ReceiptHandle=abc"


def with_changed_character(data: st.DataObject, parts: dict[str, str], *, case_counts: bool) -> dict[str, str]:
    """Return the signed parts with one character changed, by more than its case in a case-insensitive name."""
    part = data.draw(st.sampled_from(sorted(parts)))
    place = data.draw(st.integers(0, len(parts[part]) - 1))
    old = parts[part][place]
    same = {old}
    if part == "target" and SIGNED_TARGET.index("?") < place < SIGNED_TARGET.index("=") and not case_counts:
        same = {old.lower(), old.upper()}
    letters = st.characters(codec="ascii", min_codepoint=33, max_codepoint=126, exclude_characters=same)
    return parts | {part: parts[part][:place] + data.draw(letters) + parts[part][place + 1 :]}


@given(st.data())
def test_every_signed_byte_is_verified_v2(data: st.DataObject) -> None:
    """Method, Content-MD5, Content-Type, date, `x-mns-` headers and target."""
    signature = signature_v2("POST", SIGNED_TARGET, HEADERS)

    def verifies(by: dict[str, str]) -> bool:
        headers = {name: by[name] for name in HEADERS}
        return fits_v2(signature, method=by["method"], target=by["target"], headers=headers, dates=(by["date"],))

    parts = {"method": "POST", "target": SIGNED_TARGET, "date": DATE} | HEADERS
    assert verifies(parts)
    assert not verifies(with_changed_character(data, parts, case_counts=True))


@pytest.mark.parametrize("changed", [{"x-mns-version": "2015-06-06", "x-mns-more": "1"}, {}])
def test_all_own_headers_are_signed(changed: dict[str, str]) -> None:
    signature = signature_v2("GET", "/queues/TestQueue", {"x-mns-version": "2015-06-06"})
    assert not fits_v2(signature, headers=changed)


@pytest.mark.parametrize("text", [b"", b"AKID", b"AKID:", b":abc=", b"abc="])
def test_invalid_claims_v2(text: bytes) -> None:
    with raises(INVALID_AUTHORIZATION_HEADER):
        SCHEME.read(text)


# Version 4, of both clouds.

TIME = "20260304T050607Z"


def fits_v4(
    signature: str,
    *,
    method: str = "GET",
    target: str = "/queues",
    headers: dict[str, str] | None = None,
    time: str = TIME,
    region: str = "region1",
    secret: str = SECRET,
    scheme: SignatureV4 = PUBLIC,
    day: str | None = None,
) -> bool:
    end = scheme.end.decode()
    claim = scheme.read(f"Credential=AKID/{day or time[:8]}/{region}/mns/{end},Signature={signature}".encode())
    dates = (Date(b"", 0.0, time.encode()),)
    received_headers = as_received(headers or {})
    return claim.signature in scheme.signatures(
        claim, secret.encode(), method.encode(), target.encode(), received_headers, dates
    )


def sign(
    target: str,
    *,
    canonical_query: str = "",
    canonical_path: str = "",
    lines: str = "",
    private: bool = False,
    time: str = TIME,
) -> str:
    """Return the signature of a GET with the `lines` of its headers, by the reference."""
    prefix, end, name = ("apsara_v4", "apsara_v4_request", "APSARA-MNS4-HMAC-SHA256") if private else (
        "aliyun_v4", "aliyun_v4_request", "MNS4-HMAC-SHA256"
    )  # fmt: skip
    key = (prefix + SECRET).encode()
    for part in (TIME[:8], "region1", "mns", end):
        key = hmac.digest(key, part.encode(), "sha256")
    path = canonical_path or quote(target.partition("?")[0], safe="/~")
    scope = f"{TIME[:8]}/region1/mns/{end}"
    text = f"{name}\n{time}\n{scope}\nGET\n{path}\n{canonical_query}\n{lines}\n"
    return hmac.digest(key, text.encode(), "sha256").hex()


@pytest.mark.parametrize(("secret", "method", "target", "headers", "time", "region", "signature"), [
    ("sk1", "POST", "/queues/TestQueue/?param1=abc&PARAM2=d%20%20ef&PARAM3=%5Bdef%5D%23bbb&PARAM4=" + quote("中文参数"),
        {},
        "20250603T105235Z", "region1", "1fc6013f158d4c3aba09570895a2a93c8445c2c5213d82a1463baf602cf0d945"),
    ("skkkkkkk1111111111", "PUT", "/queues/TestQueue123456", {"x-mns-abc": "kkk", "X-MNS-Sss": "2015-06-06xFFF"},
        "20251203T112348Z", "region2", "04f1e5f929b5aaac3af6a54970f591581ecd2aade2562f926c5f2ec5d5c8cfad"),
    ("skkkkkk2222222222", "GET", "/queues", {"x-mns-version": "2015-06-30", "x-mns-ttt": "1", "x-mns-uuuuu": "FALse",
        "content-type": "application/json", "content-md5": "0d9d2ce750000593eb34f00", "accept": "*/*"},
        "20251204T063235Z", "eu-west-1", "294f776a2d5726df679b54b081ab8126a199a2545c8c8a7a875adff0b386e458"),
])  # fmt: skip
def test_vectors_of_the_reference_v4(
    secret: str, method: str, target: str, headers: dict[str, str], time: str, region: str, signature: str
) -> None:
    arguments = {"method": method, "headers": headers, "time": time, "secret": secret}
    assert fits_v4(signature, target=target, region=region, **arguments)  # type: ignore[arg-type]
    assert not fits_v4(signature, target=target + "x", region=region, **arguments)  # type: ignore[arg-type]
    assert not fits_v4(signature, target=target, region="elsewhere", **arguments)  # type: ignore[arg-type]


def test_the_private_variant_differs() -> None:
    assert fits_v4(sign("/queues", private=True), scheme=PRIVATE)
    assert not fits_v4(sign("/queues"), scheme=PRIVATE)
    assert not fits_v4(sign("/queues", private=True))


@pytest.mark.parametrize(("sent", "canonical_path", "canonical_query"), [
    ("/queues/a/messages?WaitSeconds=5&numOfMessages=3", "/queues/a/messages", "numofmessages=3&waitseconds=5"),
    ("/queues/a%2Db/messages?ReceiptHandle=1%2Da", "/queues/a-b/messages", "receipthandle=1-a"),
    ("/?accountmeta", "/", "accountmeta"), ("/?accountmeta=", "/", "accountmeta"),
])  # fmt: skip
def test_all_forms_of_a_target_have_one_signature(sent: str, canonical_path: str, canonical_query: str) -> None:
    signature = sign(sent, canonical_path=canonical_path, canonical_query=canonical_query)
    assert fits_v4(signature, target=sent)


@pytest.mark.parametrize(("sent", "canonical_path", "canonical_query"), [
    ("/queues/a%2Fmessages", "/queues/a/messages", ""), ("/queues/a?b=%20c", "/queues/a", "b=c"),
    ("/queues/a?b=c%26d=e", "/queues/a", "b=c&d=e"), ("/queues/a?b=c&b=c", "/queues/a", "b=c"),
])  # fmt: skip
def test_a_target_with_another_meaning_is_not_accepted_v4(sent: str, canonical_path: str, canonical_query: str) -> None:
    signature = sign(sent, canonical_path=canonical_path, canonical_query=canonical_query)
    assert not fits_v4(signature, target=sent)


def test_a_signing_key_is_valid_for_one_day() -> None:
    assert not fits_v4(sign("/queues"), day="20260305")
    later = "20260305T050607Z"
    assert not fits_v4(sign("/queues", time=later), time=later, day=TIME[:8])


@given(st.data())
def test_every_signed_byte_is_verified_v4(data: st.DataObject) -> None:
    lines = "".join(f"{name}:{value}\n" for name, value in sorted(HEADERS.items()))
    signature = sign(SIGNED_TARGET, canonical_query="receipthandle=abc", lines=lines)

    def verifies(by: dict[str, str]) -> bool:
        headers = {name: by[name] for name in HEADERS}
        day = TIME[:8]
        return fits_v4(signature, method=by["method"], target=by["target"], time=by["time"], headers=headers, day=day)

    parts = {"method": "GET", "target": SIGNED_TARGET, "time": TIME} | HEADERS
    assert verifies(parts)
    assert not verifies(with_changed_character(data, parts, case_counts=False))


@pytest.mark.parametrize("text", [
    b"", b"AKID:abc", b"Credential=AKID/20260304/region1/mns/aliyun_v4_request", b"Signature=abc",
    b"Credential=AKID/20260304/region1/mns/aliyun_v4_request,Signature=",
    b"Credential=/20260304/region1/mns/aliyun_v4_request,Signature=abc",
    b"Credential=AKID/20260304/region1/sqs/aliyun_v4_request,Signature=abc",
    b"Credential=AKID/20260304/region1/mns/aws4_request,Signature=abc",
    b"Credential=AKID/20260304/mns/aliyun_v4_request,Signature=abc",
    b"Credential=AKID/20260304/region1/mns/aliyun_v4_request,Signature=abc,Signature=abc",
])  # fmt: skip
def test_invalid_claims_v4(text: bytes) -> None:
    with raises(INVALID_AUTHORIZATION_HEADER):
        PUBLIC.read(text)


# Dates.


def test_dates_are_parsed() -> None:
    assert read_date(DATE.encode())[1:] == (NOW_S, b"20260304T050607Z")
    assert read_date(b"Wed, 04 Mar 2026 13:06:07 +0800")[1:] == (NOW_S, b"20260304T050607Z")
    assert read_date(b"Wed, 04 Mar 2026 05:06:07 -0000")[1:] == (NOW_S, b"20260304T050607Z")


@pytest.mark.parametrize(
    "date", [b"", b"yesterday", b"\xff", b"Wed, 99 Mar 2026 05:06:07 GMT", b"20260304T050607Z", b"1" * 30_000]
)
def test_invalid_dates_are_refused(date: bytes) -> None:
    with raises(INVALID_DATE_HEADER):
        read_date(date)


def test_x_mns_date_has_precedence_over_date() -> None:
    old = b"Tue, 03 Jun 2025 11:23:48 GMT"
    headers = signed_v2(target=TARGET, headers={"x-mns-date": DATE}, date=DATE)
    for general in (old, b"", DATE.encode()):
        assert Verifier(KEYS).verify(b"GET", TARGET.encode(), headers | {b"date": general}, b"", NOW_S) is ALICE
    assert error_of(headers | {b"x-mns-date": b"", b"date": old}) is errors.TIME_EXPIRED
    assert error_of(headers | {b"x-mns-date": b"", b"date": b""}) is errors.MISSING_DATE_HEADER
