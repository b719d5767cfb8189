"""Who signed a request: the order of the checks, the clock, and the keys."""

import pytest

from tests.clients.smq.signing import DATE, KEY, NOW_S, SECRET, as_received, signed_v2
from veilmq.wire.exchange import AccessKey, caller_named
from veilmq.wire.smq import errors
from veilmq.wire.smq.errors import Code, SmqError
from veilmq.wire.smq.signatures import Verifier

ALICE = caller_named("111122223333", "alice")
KEYS = {
    key.id: key
    for key in (
        AccessKey(id=KEY, secret=SECRET, caller=ALICE),
        AccessKey(id="STS", secret=SECRET, caller=ALICE, session_token="a/token+==", expires_at_s=NOW_S + 600),
    )
}
TARGET = "/queues/jobs/messages?waitseconds=5"


def refusal(headers: dict[bytes, bytes], *, now_s: float = NOW_S, target: str = TARGET) -> Code:
    """Return the code with which a GET is refused."""
    with pytest.raises(SmqError) as caught:
        Verifier(KEYS).verify(b"GET", target.encode(), headers, b"", now_s)
    return caught.value.code


def test_who_signed_is_told() -> None:
    assert Verifier(KEYS).verify(b"GET", TARGET.encode(), signed_v2(target=TARGET), b"", NOW_S) is ALICE


def test_the_order_of_the_checks_is_that_of_the_reference() -> None:
    """Each request has everything that the ones before it lack, and everything wrong that comes later."""
    bad = {"Authorization": "Bearer abc", "Date": "yesterday"}
    stages = [
        ({}, errors.MISSING_AUTHORIZATION_HEADER),
        ({"Authorization": "Bearer abc"}, errors.MISSING_DATE_HEADER),
        (bad, errors.MISSING_VERSION_HEADER),
        (bad | {"x-mns-version": "2015-06-06"}, errors.INVALID_AUTHORIZATION_HEADER),
        (bad | {"x-mns-version": "2015-06-06", "Authorization": "MNS nobody:abc="}, errors.INVALID_DATE_HEADER),
        (
            {
                "x-mns-version": "2015-06-06",
                "Authorization": "MNS nobody:abc=",
                "Date": "Tue, 03 Jun 2025 11:23:48 GMT",
            },
            errors.TIME_EXPIRED,
        ),
        (
            {"x-mns-version": "2015-06-06", "Authorization": "MNS nobody:abc=", "Date": DATE},
            errors.INVALID_ACCESS_KEY_ID,
        ),
        (
            {"x-mns-version": "2015-06-06", "Authorization": f"MNS {KEY}:abc=", "Date": DATE},
            errors.SIGNATURE_DOES_NOT_MATCH,
        ),
    ]

    assert [refusal(as_received(sent)) for sent, _ in stages] == [code for _, code in stages]


@pytest.mark.parametrize("authorization", ["MNS", "MNS abc", "mns a:b", "AWS4-HMAC-SHA256 a:b", "MNS4-HMAC-SHA256 a:b"])
def test_a_header_of_another_form_is_invalid(authorization: str) -> None:
    headers = signed_v2(target=TARGET) | {b"authorization": authorization.encode()}

    assert refusal(headers) is errors.INVALID_AUTHORIZATION_HEADER


@pytest.mark.parametrize("off_s", [-900, 900])
def test_a_clock_may_be_off_by_a_quarter_of_an_hour(off_s: int) -> None:
    headers = signed_v2(target=TARGET)

    assert Verifier(KEYS).verify(b"GET", TARGET.encode(), headers, b"", NOW_S + off_s) is ALICE
    assert refusal(headers, now_s=NOW_S + off_s + (1 if off_s > 0 else -1)) is errors.TIME_EXPIRED


def test_the_date_that_is_compared_with_the_clock_is_signed() -> None:
    """An unsigned date of now beside the signed one of then does not make a request young again."""
    old = "Tue, 03 Jun 2025 11:23:48 GMT"
    headers = signed_v2(target=TARGET, headers={"x-mns-date": old}, date=old)

    assert refusal(headers | {b"date": DATE.encode()}) is errors.TIME_EXPIRED


@pytest.mark.parametrize("key", [KEY, "STS"])
def test_a_token_is_asked_of_the_keys_that_have_one(key: str) -> None:
    """Others may send any, as no signature covers it."""
    headers = signed_v2(target=TARGET, key=key) | {b"security-token": b"a/token+=="}
    assert Verifier(KEYS).verify(b"GET", TARGET.encode(), headers, b"", NOW_S) is ALICE

    del headers[b"security-token"]
    if key == KEY:
        assert Verifier(KEYS).verify(b"GET", TARGET.encode(), headers, b"", NOW_S) is ALICE
    else:
        assert refusal(headers) is errors.INVALID_ACCESS_KEY_ID
        assert refusal(headers | {b"security-token": b"another"}) is errors.INVALID_ACCESS_KEY_ID


def test_a_key_ends_when_it_says() -> None:
    headers = signed_v2(target=TARGET, key="STS") | {b"security-token": b"a/token+=="}

    assert Verifier(KEYS).verify(b"GET", TARGET.encode(), headers, b"", NOW_S + 599) is ALICE
    assert refusal(headers, now_s=NOW_S + 600) is errors.INVALID_ACCESS_KEY_ID


def test_no_key_is_taken_for_another() -> None:
    assert refusal(signed_v2(target=TARGET, secret="another")) is errors.SIGNATURE_DOES_NOT_MATCH
    assert refusal(signed_v2(target=TARGET, key="STRANGER")) is errors.INVALID_ACCESS_KEY_ID
