"""Callers and their keys; ids of requests and messages."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilmq.core.messages import decode_properties
from veilmq.wire.exchange import SENDER_ID, AccessKey, caller_named, root_arn
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.members import CHARACTERS_MAX, checked_id, sequence_text

ACCOUNT = "111122223333"


def test_an_account_is_its_own_root() -> None:
    """Its id is the sender's."""
    root = caller_named(ACCOUNT)
    assert root.is_root
    assert root.arn == root_arn(ACCOUNT) == "arn:aws:iam::111122223333:root"
    assert root.sender_id == ACCOUNT


def test_a_user_has_an_id_of_its_own_for_ever() -> None:
    """It depends on account and name alone, and looks like that of a user."""
    alice = caller_named(ACCOUNT, "alice")
    assert not alice.is_root
    assert alice.arn == "arn:aws:iam::111122223333:user/alice"
    assert alice.sender_id == "AIDADGLAF6RBMIIBBOI5L"
    assert (
        len({caller_named(*who).sender_id for who in ((ACCOUNT, "alice"), (ACCOUNT, "bob"), ("1" * 12, "alice"))}) == 3
    )


@pytest.mark.parametrize("user", ["", "alice"])
def test_what_a_message_carries_of_its_sender(user: str) -> None:
    who = caller_named(ACCOUNT, user)
    carried = decode_properties(who.sent)
    assert carried.system == {SENDER_ID: who.sender}
    assert who.sender.text == who.sender_id
    assert carried.attributes == {}


def test_a_key_shows_whose_it_is_and_nothing_else() -> None:
    key = AccessKey(id="AKID", secret="hush", session_token="hushed", caller=caller_named(ACCOUNT, "alice"))
    assert repr(key) == "AccessKey(id='AKID', caller='arn:aws:iam::111122223333:user/alice')"
    assert "hush" not in str(key) + f"{key}"


# The ids that clients give, and sequence numbers.


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
