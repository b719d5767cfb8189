"""Version 4, of both clouds: the vectors of the reference, and nothing that differs by a byte."""

import hmac
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clients.smq.signing import SECRET, as_received
from veilmq.wire.smq.errors import INVALID_AUTHORIZATION_HEADER, SmqError
from veilmq.wire.smq.signatures import PRIVATE, PUBLIC, Instant, SignatureV4, SignedRequest, Variant

TIME = "20260304T050607Z"


def fits(
    signature: str,
    *,
    method: str = "GET",
    target: str = "/queues",
    headers: dict[str, str] | None = None,
    time: str = TIME,
    region: str = "region1",
    secret: str = SECRET,
    variant: Variant = PUBLIC,
    scheme: SignatureV4 | None = None,
    day: str | None = None,
) -> bool:
    """Tell whether the server takes ``signature`` for a request."""
    scheme = scheme or SignatureV4(variant)
    end = variant.end.decode()
    claim = scheme.read(f"Credential=AKID/{day or time[:8]}/{region}/mns/{end},Signature={signature}".encode())
    instants = (Instant(0.0, time.encode()),)
    request = SignedRequest(method.encode(), target.encode(), as_received(headers or {}), (b"",), instants)
    return scheme.fits(claim, secret.encode(), request)


def sign(target: str, *, canonical_query: str = "", canonical_path: str = "", private: bool = False) -> str:
    """Return the signature of a GET without headers, by the words of the reference."""
    prefix, end, name = ("apsara_v4", "apsara_v4_request", "APSARA-MNS4-HMAC-SHA256") if private else (
        "aliyun_v4", "aliyun_v4_request", "MNS4-HMAC-SHA256"
    )  # fmt: skip
    key = (prefix + SECRET).encode()
    for part in (TIME[:8], "region1", "mns", end):
        key = hmac.digest(key, part.encode(), "sha256")
    path = canonical_path or quote(target.partition("?")[0], safe="/~")
    scope = f"{TIME[:8]}/region1/mns/{end}"
    text = f"{name}\n{TIME}\n{scope}\nGET\n{path}\n{canonical_query}\n\n"
    return hmac.digest(key, text.encode(), "sha256").hex()


@pytest.mark.parametrize(
    ("secret", "method", "target", "headers", "time", "region", "signature"),
    [
        (
            "sk1", "POST",
            "/queues/TestQueue/?param1=abc&PARAM2=d%20%20ef&PARAM3=%5Bdef%5D%23bbb&PARAM4=" + quote("中文参数"), {},
            "20250603T105235Z", "region1", "1fc6013f158d4c3aba09570895a2a93c8445c2c5213d82a1463baf602cf0d945",
        ),
        (
            "skkkkkkk1111111111", "PUT", "/queues/TestQueue123456",
            {"x-mns-abc": "kkk", "X-MNS-Sss": "2015-06-06xFFF"},
            "20251203T112348Z", "region2", "04f1e5f929b5aaac3af6a54970f591581ecd2aade2562f926c5f2ec5d5c8cfad",
        ),
        (
            "skkkkkk2222222222", "GET", "/queues",
            {
                "x-mns-version": "2015-06-30", "x-mns-ttt": "1", "x-mns-uuuuu": "FALse",
                "content-type": "application/json", "content-md5": "0d9d2ce750000593eb34f00", "accept": "*/*",
            },
            "20251204T063235Z", "eu-west-1", "294f776a2d5726df679b54b081ab8126a199a2545c8c8a7a875adff0b386e458",
        ),
    ],
)  # fmt: skip
def test_the_vectors_of_the_reference(
    secret: str, method: str, target: str, headers: dict[str, str], time: str, region: str, signature: str
) -> None:
    asked = {"method": method, "headers": headers, "time": time, "secret": secret}

    assert fits(signature, target=target, region=region, **asked)  # type: ignore[arg-type]
    assert not fits(signature, target=target + "x", region=region, **asked)  # type: ignore[arg-type]
    assert not fits(signature, target=target, region="elsewhere", **asked)  # type: ignore[arg-type]


def test_the_private_cloud_has_words_of_its_own() -> None:
    assert fits(sign("/queues", private=True), variant=PRIVATE)
    assert not fits(sign("/queues"), variant=PRIVATE)
    assert not fits(sign("/queues", private=True))


@pytest.mark.parametrize(
    ("sent", "canonical_path", "canonical_query"),
    [
        ("/queues/a/messages?WaitSeconds=5&numOfMessages=3", "/queues/a/messages", "numofmessages=3&waitseconds=5"),
        ("/queues/a%2Db/messages?ReceiptHandle=1%2Da", "/queues/a-b/messages", "receipthandle=1-a"),
        ("/?accountmeta", "/", "accountmeta"),
        ("/?accountmeta=", "/", "accountmeta"),
    ],
)
def test_each_way_to_write_a_target_has_one_form(sent: str, canonical_path: str, canonical_query: str) -> None:
    signature = sign(sent, canonical_path=canonical_path, canonical_query=canonical_query)

    assert fits(signature, target=sent)


@pytest.mark.parametrize(
    ("sent", "canonical_path", "canonical_query"),
    [
        ("/queues/a%2Fmessages", "/queues/a/messages", ""),
        ("/queues/a?b=%20c", "/queues/a", "b=c"),
        ("/queues/a?b=c%26d=e", "/queues/a", "b=c&d=e"),
        ("/queues/a?b=c&b=c", "/queues/a", "b=c"),
    ],
)
def test_no_other_reading_has_the_same_signature(sent: str, canonical_path: str, canonical_query: str) -> None:
    signature = sign(sent, canonical_path=canonical_path, canonical_query=canonical_query)

    assert not fits(signature, target=sent)


def test_a_days_key_is_good_for_its_day() -> None:
    assert not fits(sign("/queues"), day="20260305")
    assert not fits(sign("/queues"), time="20260305T050607Z", day="20260304")


def test_a_key_of_the_day_is_remembered_for_who_proved_to_have_it() -> None:
    """And its memory does not grow for others, nor let anybody in."""
    scheme = SignatureV4(PUBLIC)
    for _ in range(3):
        assert fits(sign("/queues"), scheme=scheme)
        assert not fits("0" * 64, scheme=scheme)
        assert not fits(sign("/queues"), secret="another", scheme=scheme)

    assert len(scheme._keys) == 1


HEADERS = {"content-type": "text/xml", "content-md5": "abc=", "x-mns-version": "2015-06-06", "x-mns-a": "b"}


@given(st.data())
def test_no_byte_of_what_is_signed_can_be_changed(data: st.DataObject) -> None:
    target = "/queues/jobs/messages?ReceiptHandle=abc"
    lines = "".join(f"{name}:{value}\n" for name, value in sorted(HEADERS.items()))
    text = (
        f"MNS4-HMAC-SHA256\n{TIME}\n{TIME[:8]}/region1/mns/aliyun_v4_request\n"
        f"GET\n/queues/jobs/messages\nreceipthandle=abc\n{lines}\n"
    )
    key = ("aliyun_v4" + SECRET).encode()
    for scope in (TIME[:8], "region1", "mns", "aliyun_v4_request"):
        key = hmac.digest(key, scope.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    parts = {"method": "GET", "target": target, "time": TIME} | HEADERS
    part = data.draw(st.sampled_from(sorted(parts)))
    place = data.draw(st.integers(0, len(parts[part]) - 1))
    letters = st.characters(codec="ascii", min_codepoint=33).filter(lambda one: one != parts[part][place])
    letter = data.draw(letters)
    in_name = part == "target" and target.index("?") < place < target.index("=")
    if in_name and letter.lower() == parts[part][place].lower():
        return  # names do not tell case, to whoever reads them either
    changed = parts | {part: parts[part][:place] + letter + parts[part][place + 1 :]}

    def taken(by: dict[str, str]) -> bool:
        headers = {name: by[name] for name in HEADERS}
        day = TIME[:8]
        return fits(signature, method=by["method"], target=by["target"], time=by["time"], headers=headers, day=day)

    assert taken(parts)
    assert not taken(changed)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"AKID:abc",
        b"Credential=AKID/20260304/region1/mns/aliyun_v4_request",
        b"Signature=abc",
        b"Credential=AKID/20260304/region1/mns/aliyun_v4_request,Signature=",
        b"Credential=/20260304/region1/mns/aliyun_v4_request,Signature=abc",
        b"Credential=AKID/20260304/region1/sqs/aliyun_v4_request,Signature=abc",
        b"Credential=AKID/20260304/region1/mns/aws4_request,Signature=abc",
        b"Credential=AKID/20260304/mns/aliyun_v4_request,Signature=abc",
    ],
)
def test_a_claim_has_all_its_parts(text: bytes) -> None:
    with pytest.raises(SmqError) as caught:
        SignatureV4(PUBLIC).read(text)

    assert caught.value.code is INVALID_AUTHORIZATION_HEADER
