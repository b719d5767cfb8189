"""Bodies on the wire, and as they are kept where a queue decodes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilmq.core.commands import NewMessage
from veilmq.core.errors import BodyUnreadable
from veilmq.wire.smq.messages import body_md5, decoded, wire_text
from veilmq.wire.sqs.members import ILLEGAL


def test_a_digest_is_over_the_text_on_the_wire_in_upper_case() -> None:
    """As in the samples of the reference."""
    assert body_md5("SSBhbSB0ZXN0IE1lc3NhZ2Uu") == "A0C058F880735A24499A909001058591"


@given(text=st.text(min_size=1).filter(lambda text: not ILLEGAL.search(text) and text.isprintable()))
def test_what_is_encoded_is_decoded_to_the_same(text: str) -> None:
    """Its size counts the bytes that are kept, and what else the message has."""
    wire = wire_text(text, smq_base64=True)
    kept = decoded(NewMessage(body=wire, size_bytes=len(wire) + 7))
    assert (kept.body, kept.size_bytes) == (text, len(text.encode()) + 7)
    assert wire_text(text, smq_base64=False) == text


@pytest.mark.parametrize("wire", ["?", "YQ", "/w==", "AA==", "7bBA"])
def test_what_cannot_be_kept_is_refused(wire: str) -> None:
    """No base64, no UTF-8, no text that the other protocol could carry."""
    with pytest.raises(BodyUnreadable):
        decoded(NewMessage(body=wire, size_bytes=len(wire)))
