"""Properties: between SMQ's elements and the attributes that both protocols share."""

from hypothesis import given
from hypothesis import strategies as st

from veilmq.core.properties import Attribute
from veilmq.wire.smq.messages import (
    SYSTEM_NAMES,
    read_system_properties,
    read_user_properties,
    written_system_properties,
    written_user_properties,
)
from veilmq.wire.smq.request import read_xml
from veilmq.wire.sqs.members import ILLEGAL

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
