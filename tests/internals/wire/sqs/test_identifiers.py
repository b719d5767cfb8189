"""The ids that clients give, and sequence numbers."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilmq.wire.sqs import errors
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.members import CHARACTERS_MAX, checked_id, sequence_text


@pytest.mark.parametrize("name", list(CHARACTERS_MAX))
def test_what_an_id_may_have(name: str) -> None:
    """Every letter, digit and punctuation of ASCII, 128 of them; or it is not there."""
    signs = string.ascii_letters + string.digits + string.punctuation
    for value in (None, "a", signs, "x" * 128):
        assert checked_id(name, value) == value


@pytest.mark.parametrize("name", list(CHARACTERS_MAX))
@pytest.mark.parametrize("value", ["", " ", "a b", "é", "a\n", "\x7f", "x" * 129])
def test_what_an_id_may_not_have(name: str, value: str) -> None:
    """Is refused with the rule."""
    with pytest.raises(SqsError, match="can only include alphanumeric and punctuation") as caught:
        checked_id(name, value)
    assert caught.value.code is errors.INVALID_PARAMETER_VALUE


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_sequence_numbers_have_twenty_digits_in_the_order_of_the_numbers(one: int, other: int) -> None:
    """As texts and as numbers."""
    texts = [sequence_text(one), sequence_text(other)]
    assert all(text is not None and len(text) == 20 and text.isdigit() for text in texts)
    assert sorted(str(text) for text in texts) == [sequence_text(number) for number in sorted([one, other])]


def test_a_standard_queue_has_no_sequence_numbers() -> None:
    """Nothing is nothing."""
    assert sequence_text(None) is None
