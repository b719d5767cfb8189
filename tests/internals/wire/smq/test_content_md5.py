"""Content-MD5, in both forms."""

from base64 import b64encode
from hashlib import md5

import pytest

from tests.clients.smq.signing import hex_md5
from veilmq.wire.smq.errors import INVALID_DIGEST, SmqError
from veilmq.wire.smq.routes import check_content_md5

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
