"""What a message carries beside its body comes back as it was."""

from hypothesis import given
from hypothesis import strategies as st

from veilmq.core.messages import NO_PROPERTIES, Attribute, Properties, decode_properties, encode_properties

ATTRIBUTES = st.dictionaries(
    st.text(max_size=20),
    st.builds(Attribute, type=st.text(max_size=20), text=st.text())
    | st.builds(Attribute, type=st.text(max_size=20), data=st.binary()),
    max_size=10,
)


@given(st.builds(Properties, attributes=ATTRIBUTES, system=ATTRIBUTES))
def test_what_is_encoded_is_decoded(properties: Properties) -> None:
    """Any names, types, texts and bytes."""
    assert decode_properties(encode_properties(properties)) == properties


def test_nothing_costs_nothing() -> None:
    """A message without properties keeps no bytes for them, and reads as one that has none."""
    assert encode_properties(NO_PROPERTIES) == b""
    assert encode_properties(Properties()) == b""
    assert decode_properties(b"") == Properties()


def test_an_empty_text_is_not_no_text() -> None:
    """An attribute with an empty value is not one of the other kind."""
    kept = Properties(attributes={"a": Attribute(type="String", text=""), "b": Attribute(type="Binary", data=b"")})
    attributes = decode_properties(encode_properties(kept)).attributes
    assert attributes["a"].text == ""
    assert attributes["a"].data is None
    assert attributes["b"].data == b""
    assert attributes["b"].text is None
