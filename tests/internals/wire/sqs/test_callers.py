"""Callers: their names and ids as those of AWS IAM, and keys that keep their secrets."""

import pytest

from veilmq.core import properties
from veilmq.wire.exchange import SENDER_ID, AccessKey, caller_named, root_arn

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
    carried = properties.decode(who.sent)
    assert carried.system == {SENDER_ID: who.sender}
    assert who.sender.text == who.sender_id
    assert carried.attributes == {}


def test_a_key_shows_whose_it_is_and_nothing_else() -> None:
    key = AccessKey(id="AKID", secret="hush", session_token="hushed", caller=caller_named(ACCOUNT, "alice"))
    assert repr(key) == "AccessKey(id='AKID', caller='arn:aws:iam::111122223333:user/alice')"
    assert "hush" not in str(key) + f"{key}"
