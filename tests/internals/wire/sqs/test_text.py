"""Which characters a message may have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.internals.wire.sqs.asking import UNHURRIED
from veilmq.wire.sqs.errors import INVALID_MESSAGE_CONTENTS, SqsError
from veilmq.wire.sqs.members import check_text


def is_legal(character: str) -> bool:
    """Return whether SQS documents ``character`` as allowed, said as its page says it."""
    code = ord(character)
    return code in {9, 10, 13} or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or 0x10000 <= code <= 0x10FFFF


def is_accepted(text: str) -> bool:
    """Return whether ``text`` passes the check."""
    try:
        check_text(text, "the message body")
    except SqsError:
        return False
    return True


def test_the_first_and_the_last_of_each_range_and_their_neighbours() -> None:
    """All of ASCII, and both sides of every border."""
    borders = {0xD7FF, 0xD800, 0xDFFF, 0xE000, 0xFFFD, 0xFFFE, 0xFFFF, 0x10000, 0x10FFFF}
    for code in {*range(0x100), *borders}:
        assert is_accepted(f"a{chr(code)}b") == is_legal(chr(code)), hex(code)


@UNHURRIED
@given(st.text(st.characters(codec=None)))
def test_a_text_is_legal_when_each_character_is(text: str) -> None:
    """The quick check for printable ASCII lets nothing else through."""
    assert is_accepted(text) == all(map(is_legal, text))


def test_the_error_names_the_first_illegal_character_and_its_place() -> None:
    """In hexadecimal, as AWS does."""
    with pytest.raises(SqsError, match="Invalid binary character '#xFFFF' was found in the message body") as caught:
        check_text("é\uffff\x00", "the message body")
    assert caught.value.code is INVALID_MESSAGE_CONTENTS
