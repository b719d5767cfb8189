"""What a message carries beside its body comes back as it was."""

from hypothesis import given
from hypothesis import strategies as st

from veilmq.core.properties import NOTHING, Attribute, Properties, decode, encode

ATTRIBUTES = st.dictionaries(
    st.text(max_size=20),
    st.builds(Attribute, type=st.text(max_size=20), text=st.text())
    | st.builds(Attribute, type=st.text(max_size=20), data=st.binary()),
    max_size=10,
)


@given(st.builds(Properties, attributes=ATTRIBUTES, system=ATTRIBUTES))
def test_what_is_encoded_is_decoded(properties: Properties) -> None:
    """Any names, types, texts and bytes."""
    assert decode(encode(properties)) == properties


def test_nothing_costs_nothing() -> None:
    """A message without properties keeps no bytes for them, and reads as one that has none."""
    assert encode(NOTHING) == b""
    assert encode(Properties()) == b""
    assert decode(b"") == Properties()


def test_an_empty_text_is_not_no_text() -> None:
    """An attribute with an empty value is not one of the other kind."""
    kept = Properties(attributes={"a": Attribute(type="String", text=""), "b": Attribute(type="Binary", data=b"")})
    attributes = decode(encode(kept)).attributes
    assert attributes["a"].text == ""
    assert attributes["a"].data is None
    assert attributes["b"].data == b""
    assert attributes["b"].text is None
