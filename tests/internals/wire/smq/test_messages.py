"""Bodies and properties of messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilmq.core.errors import BodyUnreadable
from veilmq.core.messages import Attribute, NewMessage
from veilmq.wire.smq.messages import (
    SYSTEM_NAMES,
    body_md5,
    decoded,
    read_system_properties,
    read_user_properties,
    wire_text,
    written_system_properties,
    written_user_properties,
)
from veilmq.wire.smq.request import read_xml
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


# Properties: between SMQ's elements and the attributes that both protocols share.


DIGITS_38 = 10**38 - 1  # the largest number that has no more digits than both protocols take
TEXT = st.text(min_size=1, max_size=50).filter(lambda text: not ILLEGAL.search(text))
NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,9}(\.[a-z]{1,9})?", fullmatch=True)
VALUES = (
    st.builds(Attribute, st.just("String"), TEXT)
    | st.builds(Attribute, st.just("Number"), st.integers(-DIGITS_38, DIGITS_38).map(str))
    | st.builds(Attribute, st.just("String.boolean"), st.sampled_from(["true", "FALSE"]))
    | st.builds(lambda data: Attribute("Binary", data=data), st.binary(min_size=1, max_size=50))
)


@given(attributes=st.dictionaries(NAMES, VALUES, max_size=9))
def test_what_is_written_is_read_as_the_same(attributes: dict[str, Attribute]) -> None:
    """In its order; nothing where there is nothing."""
    written = written_user_properties(attributes)
    assert bool(written) is bool(attributes)
    again = read_user_properties(read_xml(f"<Message>{written}</Message>".encode()))
    assert list(again.items()) == list(attributes.items())


@given(attributes=st.dictionaries(st.sampled_from(sorted(SYSTEM_NAMES)), st.builds(Attribute, st.just("String"), TEXT)))
def test_system_properties_are_those_that_sdks_know(attributes: dict[str, Attribute]) -> None:
    """What else a message carries for its protocol is not told."""
    written = written_system_properties({"SenderId": Attribute("String", "x"), **attributes})
    assert "SenderId" not in written
    assert read_system_properties(read_xml(f"<Message>{written}</Message>".encode())) == attributes


def test_types_that_only_sqs_has_are_told_without_their_suffix() -> None:
    """A truth value is the one that has a type of its own."""
    shown = written_user_properties(
        {"a": Attribute("Number.float", "1"), "b": Attribute("String.json", "{}"), "c": Attribute("Binary.x", data=b"")}
    )
    assert [part.partition("<")[0] for part in shown.split("<Type>")[1:]] == ["NUMBER", "STRING", "BINARY"]
