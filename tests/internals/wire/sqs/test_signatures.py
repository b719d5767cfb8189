"""Signature Version 4."""

import time
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import pytest
from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from tests.internals.wire.sqs.requests import NO_DEADLINE
from veilmq.wire.exchange import AccessKey, caller_named
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.errors import Code, SqsError
from veilmq.wire.sqs.signatures import Verifier, canonical_path, canonical_query, query_pairs, single_spaced


@pytest.mark.parametrize(("raw", "form"), [
    (b"", b"/"), (b"/", b"/"), (b"//", b"/"), (b"/./", b"/"), (b"/..", b"/"), (b"/a/../b/", b"/b/"),
    (b"/a//b/./c", b"/a/b/c"), (b"/a b", b"/a%20b"), (b"/a%20b", b"/a%2520b"), (b"/a~_-.b", b"/a~_-.b"),
    (b"/\xc3\xbc", b"/%C3%BC"),
])  # fmt: skip
def test_canonical_path(raw: bytes, form: bytes) -> None:
    assert canonical_path(raw) == form


@pytest.mark.parametrize(("raw", "form"), [
    (b"", b""), (b"&&", b""), (b"a", b"a="), (b"b=2&a=1", b"a=1&b=2"), (b"a=2&a=1", b"a=1&a=2"),
    (b"a-b=1&a=2", b"a=2&a-b=1"), (b"A=1&a=1&B=1", b"A=1&B=1&a=1"), (b"a=x+y&b=x%20y", b"a=x%20y&b=x%20y"),
    (b"a=%2b&b=%2B", b"a=%2B&b=%2B"), (b"a=1=2", b"a=1%3D2"), (b"a=/~", b"a=%2F~"),
])  # fmt: skip
def test_canonical_query(raw: bytes, form: bytes) -> None:
    assert canonical_query(query_pairs(raw)) == form


def test_white_space_of_headers_is_trimmed_and_collapsed() -> None:
    assert single_spaced(b"  a \t b  ") == b"a b"


# Signatures: an example of AWS, random requests signed by botocore, and all errors.

EXAMPLE_SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
EXAMPLE_S = datetime(2015, 8, 30, 12, 36, tzinfo=UTC).timestamp()
EXAMPLE = (
    "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders={}, Signature={}"
)

ALICE = caller_named("111122223333", "alice")
SECRET = "a secret/of+Alice"
KEY = AccessKey(id="AKIDALICE", secret=SECRET.encode(), caller=ALICE)
TEMPORARY = AccessKey(
    id="ASIDALICE", secret=SECRET.encode(), caller=ALICE, session_token=b"a/token+==", expires_at_s=EXAMPLE_S + 600
)
KEYS = {key.id: key for key in (KEY, TEMPORARY)}
HOST = "queues.example:9324"


class SignedRequest(NamedTuple):
    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    body: bytes


def example_verifier(**more: AccessKey) -> Verifier:
    key = AccessKey(id="AKIDEXAMPLE", secret=EXAMPLE_SECRET.encode(), caller=caller_named("123456789012"))
    return Verifier({key.id: key}, region="us-east-1", service="service")


def verifier(*, secure: bool = False) -> Verifier:
    return Verifier(KEYS, region="eu-west-1", secure=secure)


def verify(by: Verifier, request: SignedRequest, now_s: float = EXAMPLE_S) -> Any:
    return by.verify(*request, now_s)


def error_of(request: SignedRequest, *, by: Verifier | None = None, now_s: float = EXAMPLE_S) -> SqsError:
    with pytest.raises(SqsError) as caught:
        verify(by or verifier(), request, now_s)
    return caught.value


def freeze_signing(monkeypatch: pytest.MonkeyPatch, at_s: float = EXAMPLE_S) -> None:
    """Make botocore sign at ``at_s``."""
    instant = datetime.fromtimestamp(at_s, tz=UTC).replace(tzinfo=None)
    monkeypatch.setattr(auth, "get_current_datetime", lambda: instant)


@pytest.fixture(autouse=True)
def sign_at_the_time_of_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    freeze_signing(monkeypatch)


def signed(
    *,
    method: str = "POST",
    path: str = "/",
    body: bytes = b"{}",
    headers: dict[str, str] | None = None,
    key: AccessKey = KEY,
    region: str = "eu-west-1",
    service: str = "sqs",
    presigned_s: int | None = None,
) -> SignedRequest:
    """Return a request signed by botocore in its header, or presigned for ``presigned_s`` seconds."""
    made = AWSRequest(method, f"http://{HOST}{path}", headers={"Host": HOST} | (headers or {}), data=body)
    token = key.session_token.decode() if key.session_token is not None else None
    credentials = Credentials(key.id, key.secret.decode(), token)
    if presigned_s is None:
        auth.SigV4Auth(credentials, service, region).add_auth(made)
    else:
        auth.SigV4QueryAuth(credentials, service, region, expires=presigned_s).add_auth(made)
    url = urlsplit(made.url)
    sent = {name.lower().encode(): str(value).encode() for name, value in made.headers.items()}
    target = url.path + (f"?{url.query}" if url.query else "")
    return SignedRequest(method.encode(), target.encode(), sent, body)


VALUE = st.text(st.sampled_from("ab~ +%/,;=\té"), max_size=12)
NAME = st.sampled_from(["x-amz-meta", "content-type", "x-100%", "accept"])
PATHS = st.lists(st.sampled_from(["", ".", "..", "a", "b%20c", "d e", "ü", "f+g", "1~2", "q.fifo"]), max_size=5)


@NO_DEADLINE
@given(
    path=PATHS.map("/".join),
    headers=st.dictionaries(NAME, VALUE, max_size=3),
    body=st.binary(max_size=40),
    key=st.sampled_from([KEY, TEMPORARY]),
    method=st.sampled_from(["GET", "POST"]),
)
def test_signatures_of_botocore_verify(
    path: str, headers: dict[str, str], body: bytes, key: AccessKey, method: str
) -> None:
    """With a cached scope too; any change of the request invalidates the signature."""
    request = signed(method=method, path=f"/{path}", headers=headers, body=body, key=key)
    by = verifier()
    assert verify(by, request) is ALICE
    assert verify(by, request) is ALICE
    for other in (
        request._replace(body=body + b"x"),
        request._replace(method=b"PUT"),
        request._replace(target=request.target + b"x"),
        request._replace(target=request.target + b"?x"),
        request._replace(headers={**request.headers, b"host": b"elsewhere"}),
    ):
        assert error_of(other, by=by).code is errors.SIGNATURE_DOES_NOT_MATCH


@NO_DEADLINE
@given(
    values=st.dictionaries(st.sampled_from(["Action", "A.1", "A-1", "é", "a b"]), st.text(max_size=9), max_size=4),
    key=st.sampled_from([KEY, TEMPORARY]),
)
def test_presigned_requests_of_botocore_verify(values: dict[str, str], key: AccessKey) -> None:
    """Any change of a parameter or of the (empty) body invalidates the signature."""
    query = "&".join(f"{quote(name, '')}={quote(text, '')}" for name, text in values.items())
    request = signed(method="GET", path=f"/1/q?{query}" if query else "/1/q", key=key, presigned_s=60, body=b"")
    assert verify(verifier(), request) is ALICE
    for other in (
        request._replace(target=request.target + b"&Action=DeleteQueue"),
        request._replace(target=request.target.replace(b"Expires=60", b"Expires=600")),
        request._replace(body=b"x"),
    ):
        assert error_of(other).code is errors.SIGNATURE_DOES_NOT_MATCH


@NO_DEADLINE
@given(target=st.binary(max_size=60), authorization=st.binary(max_size=80) | st.none(), date=st.binary(max_size=20))
def test_any_bytes_raise_an_sqs_error(target: bytes, authorization: bytes | None, date: bytes) -> None:
    headers = {b"host": b"h", b"x-amz-date": date}
    if authorization is not None:
        headers[b"authorization"] = b"AWS4-HMAC-SHA256 Credential=AKIDALICE/" + authorization
    error_of(SignedRequest(b"GET", target + b"?X-Amz-Algorithm=AWS4-HMAC-SHA256&" + target, headers, b""))


def changed(request: SignedRequest, old: bytes, new: bytes) -> SignedRequest:
    authorization = request.headers[b"authorization"]
    assert old in authorization
    return request._replace(headers={**request.headers, b"authorization": authorization.replace(old, new)})


def without(request: SignedRequest, name: bytes) -> SignedRequest:
    return request._replace(headers={key: value for key, value in request.headers.items() if key != name})


def invalid_headers() -> list[tuple[str, SignedRequest, Code, str]]:
    """Return (name, request, code, part of the message) of invalid headers."""
    good = signed(headers={"X-Amz-Target": "AmazonSQS.ListQueues"})
    return [
        ("unsigned", without(good, b"authorization"), errors.MISSING_AUTHENTICATION_TOKEN, "missing Authentication"),
        ("basic", changed(good, b"AWS4-HMAC-SHA256", b"Basic"), errors.INCOMPLETE_SIGNATURE, "'algorithm': 'Basic'"),
        ("v4a", changed(good, b"HMAC-SHA256", b"ECDSA-P256-SHA256"), errors.INCOMPLETE_SIGNATURE, "ECDSA"),
        ("no-credential", changed(good, b"Credential=", b"X="), errors.INCOMPLETE_SIGNATURE, "'Credential'"),
        ("no-names", changed(good, b"SignedHeaders=", b"X="), errors.INCOMPLETE_SIGNATURE, "'SignedHeaders'"),
        ("no-signature", changed(good, b"Signature=", b"X="), errors.INCOMPLETE_SIGNATURE, "'Signature'"),
        ("short-credential", changed(good, b"/aws4_request", b""), errors.INCOMPLETE_SIGNATURE, "5 slash-delimited"),
        ("no-day", changed(good, b"20150830", b"2015083x"), errors.INCOMPLETE_SIGNATURE, "must be a day"),
        ("no-such-day", changed(good, b"20150830", b"20150231"), errors.INCOMPLETE_SIGNATURE, "must be a day"),
        ("no-date", without(good, b"x-amz-date"), errors.INCOMPLETE_SIGNATURE, "'X-Amz-Date' or a 'Date'"),
        ("other-day", changed(good, b"20150830", b"20150829"), errors.SIGNATURE_DOES_NOT_MATCH, "does not match YYYY"),
        ("unknown-key", changed(good, b"AKIDALICE", b"AKIDNOBODY"), errors.INVALID_CLIENT_TOKEN_ID, "token included"),
        ("region", changed(good, b"eu-west-1", b"us-east-1"), errors.SIGNATURE_DOES_NOT_MATCH, "'eu-west-1', not 'us-"),
        ("service", signed(service="sns"), errors.SIGNATURE_DOES_NOT_MATCH, "service: 'sqs', not 'sns'"),
        ("term", changed(good, b"aws4_request", b"aws4"), errors.SIGNATURE_DOES_NOT_MATCH, "terminator"),
        ("host", changed(good, b"=host;", b"=x;"), errors.SIGNATURE_DOES_NOT_MATCH, "'Host' must be"),
        ("target", changed(good, b";x-amz-target", b""), errors.SIGNATURE_DOES_NOT_MATCH, "'X-Amz-Target' must be"),
        ("twice", changed(good, b"=host;", b"=host;host;"), errors.INCOMPLETE_SIGNATURE, "each header once"),
        ("absent", changed(good, b"=host;", b"=a;host;"), errors.SIGNATURE_DOES_NOT_MATCH, "header 'a' is not in"),
        ("secret", changed(good, b"Signature=", b"Signature=0"), errors.SIGNATURE_DOES_NOT_MATCH, "calculated does"),
    ]  # fmt: skip


@pytest.mark.parametrize("index", range(20))
def test_invalid_headers_are_refused(index: int) -> None:
    cases = invalid_headers()
    assert len(cases) == 20
    _, request, code, words = cases[index]
    error = error_of(request)
    assert error.code is code
    assert words in error.message


def test_an_unsigned_target_is_refused_with_a_cached_scope() -> None:
    by, form = verifier(), signed(body=b"Action=ListQueues")
    for _ in range(2):
        assert verify(by, form) is ALICE
    added = {**form.headers, b"x-amz-target": b"AmazonSQS.ListQueues"}
    error = error_of(form._replace(headers=added), by=by)
    assert (error.code, "'X-Amz-Target' must be" in error.message) == (errors.SIGNATURE_DOES_NOT_MATCH, True)


def test_a_fragment_cannot_hide_an_unsigned_path() -> None:
    """Both targets have the same canonical form."""
    request = signed(path="/111122223333/jobs", body=b"Action=PurgeQueue")
    assert verify(verifier(), request) is ALICE
    other_request = request._replace(target=b"/111122223333/other#/../jobs")
    assert canonical_path(other_request.target) == request.target
    error = error_of(other_request)
    assert (error.code, "fragment" in error.message) == (errors.SIGNATURE_DOES_NOT_MATCH, True)


def test_parts_of_the_header_may_have_any_order() -> None:
    """With a cached scope too."""
    by, good = verifier(), signed()
    scheme, _, rest = good.headers[b"authorization"].partition(b" ")
    parts = rest.split(b", ")
    for order in ((0, 1, 2), (2, 0, 1), (0, 2, 1)):
        authorization = scheme + b" " + b",".join(parts[index] for index in order)
        for _ in range(2):
            assert verify(by, good._replace(headers={**good.headers, b"authorization": authorization})) is ALICE


def test_invalid_dates_are_refused() -> None:
    good = signed()
    for date in (b"2015-08-30", b"20150830T1236ZZZ", b"20150830 123600Z", b"2015083xT123600Z", b"20150830T240000Z"):
        error = error_of(good._replace(headers={**good.headers, b"x-amz-date": date}))
        assert error.code is errors.INCOMPLETE_SIGNATURE
    error = error_of(
        without(good, b"x-amz-date")._replace(headers={**without(good, b"x-amz-date").headers, b"date": b"x"})
    )
    assert error.code is errors.INCOMPLETE_SIGNATURE


def test_a_date_without_a_zone_is_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regardless of the zone of the server; -0000 is no zone (RFC 5322, 3.3)."""
    request = without(signed(), b"x-amz-date")
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        error = error_of(request._replace(headers={**request.headers, b"date": b"Sun, 30 Aug 2015 12:36:00 -0000"}))
    time.tzset()
    assert error.message == "The signed header 'x-amz-date' is not in the request."


def test_the_date_header_replaces_x_amz_date() -> None:
    headers = {b"host": b"example.amazonaws.com", b"date": b"Sun, 30 Aug 2015 12:36:00 GMT"}
    error = error_of(
        SignedRequest(b"GET", b"/", headers | {b"authorization": EXAMPLE.format("date;host", "0").encode()}, b""),
        by=example_verifier(),
    )
    assert error.code is errors.SIGNATURE_DOES_NOT_MATCH
    signature = "b27ccfbfa7df52a200ff74193ca6e32d4b48b8856fab7ebf1c595d0670a7e470"
    genuine = headers | {b"host": b"host.foo.com", b"date": b"Mon, 09 Sep 2011 23:36:00 GMT"}
    authorization = (
        EXAMPLE.replace("20150830", "20110909").replace("/service/", "/host/").format("date;host", signature)
    )
    key = AccessKey(id="AKIDEXAMPLE", secret=EXAMPLE_SECRET.encode(), caller=ALICE)
    by = Verifier({key.id: key}, region="us-east-1", service="host")
    at_s = datetime(2011, 9, 9, 23, 36, tzinfo=UTC).timestamp()
    assert (
        verify(by, SignedRequest(b"GET", b"/", genuine | {b"authorization": authorization.encode()}, b""), at_s)
        is ALICE
    )


@pytest.mark.parametrize(("late_s", "words"), [
    (-901, "not yet current: 20150830T123645Z is still later than 20150830T123644Z (20150830T122144Z + 15 min.)"),
    (-900, None), (900, None),
    (901, "expired: 20150830T123645Z is now earlier than 20150830T123646Z (20150830T125146Z - 15 min.)"),
], ids=["early", "just-early-enough", "just-late-enough", "late"])  # fmt: skip
def test_a_signature_is_valid_for_15_minutes(monkeypatch: pytest.MonkeyPatch, late_s: int, words: str | None) -> None:
    """Before and after, to the second; also with a cached scope, from a request of another date."""
    at_s, by = EXAMPLE_S + 45, verifier()
    assert verify(by, signed()) is ALICE
    freeze_signing(monkeypatch, at_s)
    request = signed()
    if words is None:
        assert verify(by, request, at_s + late_s) is ALICE
        return
    error = error_of(request, by=by, now_s=at_s + late_s)
    assert error.code is errors.SIGNATURE_DOES_NOT_MATCH
    assert error.message == f"Signature {words}"


def test_a_temporary_key_needs_its_token_and_expires() -> None:
    """A missing, wrong or superfluous token is an unknown key."""
    good = signed(key=TEMPORARY)
    assert verify(verifier(), good, EXAMPLE_S + 599) is ALICE
    assert error_of(without(good, b"x-amz-security-token")).code is errors.INVALID_CLIENT_TOKEN_ID
    wrong = {**good.headers, b"x-amz-security-token": b"another"}
    assert error_of(good._replace(headers=wrong)).code is errors.INVALID_CLIENT_TOKEN_ID
    needless = signed(headers={"X-Amz-Security-Token": "t"})
    assert error_of(needless).code is errors.INVALID_CLIENT_TOKEN_ID
    assert error_of(good, now_s=EXAMPLE_S + 600).code is errors.EXPIRED_TOKEN


def test_a_presigned_request_expires() -> None:
    """After its own lifetime, not after 15 minutes; a date in the future is refused."""
    good = signed(method="GET", path="/?Action=ListQueues", presigned_s=604_800, body=b"")
    assert verify(verifier(), good, EXAMPLE_S + 604_800) is ALICE
    assert error_of(good, now_s=EXAMPLE_S + 604_801).code is errors.REQUEST_EXPIRED
    assert error_of(good, now_s=EXAMPLE_S - 901).code is errors.SIGNATURE_DOES_NOT_MATCH


def test_a_presigned_request_without_a_lifetime_is_valid_for_15_minutes() -> None:
    """As the npm packages aws4, which made this one, and aws4fetch presign; the service accepts it."""
    scope = b"AKIDALICE%2F20150830%2Feu-west-1%2Fsqs%2Faws4_request"
    target = (
        b"/?Action=ListQueues&X-Amz-Date=20150830T123600Z&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=" + scope
        + b"&X-Amz-SignedHeaders=host&X-Amz-Signature=e81f9b63b01a2e4cd26573e36586036bea3ba3ad7508598768409a2f1a01de98"
    )  # fmt: skip
    good = SignedRequest(b"GET", target, {b"host": HOST.encode()}, b"")
    assert verify(verifier(), good, EXAMPLE_S + 900) is ALICE
    assert error_of(good, now_s=EXAMPLE_S + 901).code is errors.REQUEST_EXPIRED
    assert error_of(good._replace(target=target + b"&X-Amz-Expires=60")).code is errors.SIGNATURE_DOES_NOT_MATCH


@pytest.mark.parametrize(("old", "new"), [
    (b"X-Amz-Expires=60", b"X-Amz-Expires=0"), (b"X-Amz-Expires=60", b"X-Amz-Expires=604801"),
    (b"X-Amz-Expires=60", b"X-Amz-Expires=x"), (b"X-Amz-Expires=60", b"X-Amz-Expires=6,0"),
    (b"X-Amz-Expires=60", b"X-Amz-Expires=" + b"6" * 5_000),
    (b"X-Amz-Expires=60", b"X-Amz-Expires=60&X-Amz-Expires=60"), (b"X-Amz-Credential=", b"Y="), (b"X-Amz-Date=", b"Y="),
    (b"X-Amz-SignedHeaders=", b"Y="), (b"X-Amz-Signature=", b"Y="),
    (b"X-Amz-Algorithm=AWS4-HMAC-SHA256", b"X-Amz-Algorithm=AWS3"),
], ids=range(11))  # fmt: skip
def test_a_presigned_request_with_wrong_parameters_is_refused(old: bytes, new: bytes) -> None:
    good = signed(method="GET", path="/?Action=ListQueues", presigned_s=60, body=b"")
    assert old in good.target
    assert error_of(good._replace(target=good.target.replace(old, new))).code is errors.INCOMPLETE_SIGNATURE


def test_only_over_tls_a_body_may_be_unsigned() -> None:
    """Whether the signature is in the header or in the query."""
    for presigned_s in (None, 60):
        request = signed(headers={"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"}, presigned_s=presigned_s)
        assert verify(verifier(secure=True), request._replace(body=b"anything")) is ALICE
        assert error_of(request).code is errors.SIGNATURE_DOES_NOT_MATCH


def test_white_space_in_a_signed_header_is_collapsed() -> None:
    request = signed(headers={"X-List": "b,a"})
    spaced = request._replace(headers={**request.headers, b"x-list": b" \tb,a  "})
    assert verify(verifier(), spaced) is ALICE


def test_the_cache_of_scopes_is_bounded() -> None:
    by = verifier()
    for number in range(1_100):
        assert verify(by, signed(headers={f"x-{number}": "1"})) is ALICE
    assert len(by._scopes) <= 1_024


def test_no_key_shows_its_secret() -> None:
    assert SECRET not in repr(KEY) + str(KEY)
    assert "token" not in repr(TEMPORARY)
    for _, request, _, _ in invalid_headers():
        assert SECRET not in str(error_of(request))
