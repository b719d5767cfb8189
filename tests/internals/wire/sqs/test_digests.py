"""The digests, against values that AWS returned and against an independent calculation."""

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.internals.wire.sqs.asking import UNHURRIED
from veilmq.core.properties import Attribute
from veilmq.wire.sqs.members import attributes_md5, body_md5


def text(value: str, *, kind: str = "String") -> Attribute:
    """Return an attribute of text."""
    return Attribute(type=kind, text=value)


TRACE = "traceparent\x1e00-774062d6c37081a5a0b9b5b88e30627c-2d2482211f6489da-01"


@pytest.mark.parametrize(
    ("attributes", "digest"),
    [
        pytest.param(
            {"Hello": text("There"), "General": text("Kenobi"), "Help.Me": text("Me")},
            "4c360f3fdafd970e05fae2f149d997f5",
            id="three-out-of-order",
        ),
        pytest.param({"General": text("Kenobi"), "Hello": text("There")}, "fca026605781cb4126a1e9044df24232", id="two"),
        pytest.param({"Hello": text("There")}, "a311262e065454b75da111d535b8dacd", id="one"),
        pytest.param({"Foo": text("Bar")}, "ae7155c6026991b6d54b11589678bf9c", id="another"),
        pytest.param(
            {"attr1": Attribute(type="Binary", data=TRACE.encode())}, "8cbe4db156db8a94db8b801b7addb984", id="binary"
        ),
    ],
)
def test_digests_that_aws_returned(attributes: dict[str, Attribute], digest: str) -> None:
    """Recorded from AWS by others, for these very attributes."""
    assert attributes_md5(attributes) == digest


def test_body_digests_that_aws_returned() -> None:
    """Recorded from AWS, and the RFC's own example of UTF-8 that needs two bytes."""
    assert body_md5("msg") == "6e2baaf3b97dbeef01c0043275f9a0e7"
    assert body_md5("test") == "098f6bcd4621d373cade4e832627b4f6"
    assert body_md5("é") == hashlib.md5(b"\xc3\xa9", usedforsecurity=False).hexdigest()


def test_no_attributes_have_no_digest() -> None:
    """The member is left out then."""
    assert attributes_md5({}) is None


ATTRIBUTES = st.dictionaries(
    st.text(min_size=1, max_size=8),
    st.builds(text, st.text(min_size=1), kind=st.sampled_from(["String", "Number", "String.ü"]))
    | st.builds(lambda data: Attribute(type="Binary.x", data=data), st.binary(min_size=1)),
    min_size=1,
    max_size=10,
)


@UNHURRIED
@given(ATTRIBUTES)
def test_the_digest_is_what_the_page_of_aws_describes(attributes: dict[str, Attribute]) -> None:
    """Put together in one piece here, with struct."""
    parts = []
    for name, value in sorted(attributes.items()):
        content = value.data if value.data is not None else (value.text or "").encode()
        label = (name.encode(), value.type.encode())
        parts += [struct.pack(f"!I{len(piece)}s", len(piece), piece) for piece in label]
        mark = 1 if value.data is None else 2
        parts.append(struct.pack(f"!BI{len(content)}s", mark, len(content), content))
    assert attributes_md5(attributes) == hashlib.md5(b"".join(parts), usedforsecurity=False).hexdigest()
