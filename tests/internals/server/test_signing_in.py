"""Who may sign in with a key's id and secret, and who is still known afterwards, by the wall clock."""

from pathlib import Path

import pytest

from tests.server.keys import OWNER, REGION, SECRETS, TEXT, TOKEN, written
from veilmq.server.authentication import Authentication

ENDS_S = 4_102_444_800.0  # 2100-01-01
EXPIRING = f"""
[[accounts]]
id = "{OWNER}"
name = "the owner"

[[accounts.keys]]
id = "AKIDSHORT"
secret = "short"
expires = 2100-01-01T00:00:00Z
"""


class Wall:
    """The wall clock of a test."""

    now_s = ENDS_S - 1


def authentication(tmp_path: Path, wall: Wall, text: str = TEXT) -> Authentication:
    """Return what knows the keys of ``text``."""
    path = written(tmp_path / "keys.toml", text)
    return Authentication(path, region=REGION, secure=False, wall_s=lambda: wall.now_s)


@pytest.mark.parametrize("key_id", ["AKIDOWNER", "AKIDCAROL", "AKIDFRIEND"])
def test_a_key_signs_in_with_its_own_secret(tmp_path: Path, key_id: str) -> None:
    known = authentication(tmp_path, Wall())
    who = known.signed_in(key_id, SECRETS[key_id])
    assert who is not None
    assert who is known.known(key_id)
    for other in {*SECRETS.values(), "", SECRETS[key_id] + " ", SECRETS[key_id].upper(), "ü"} - {SECRETS[key_id]}:
        assert known.signed_in(key_id, other) is None


def test_a_user_is_known_as_himself(tmp_path: Path) -> None:
    who = authentication(tmp_path, Wall()).signed_in("AKIDCAROL", SECRETS["AKIDCAROL"])
    assert who is not None
    assert (who.account, who.user, who.is_root) == (OWNER, "carol", False)


@pytest.mark.parametrize("secret", [SECRETS["ASIDBOB"], TOKEN, ""])
def test_a_key_that_needs_a_token_does_not_sign_in(tmp_path: Path, secret: str) -> None:
    assert authentication(tmp_path, Wall()).signed_in("ASIDBOB", secret) is None


@pytest.mark.parametrize(("key_id", "secret"), [("AKIDNOBODY", SECRETS["AKIDOWNER"]), ("", ""), ("akidowner", "")])
def test_a_key_that_is_not_there_does_not_sign_in(tmp_path: Path, key_id: str, secret: str) -> None:
    known = authentication(tmp_path, Wall())
    assert known.signed_in(key_id, secret) is None
    assert known.known(key_id) is None


def test_a_key_ends_by_the_wall_clock(tmp_path: Path) -> None:
    """For who signs in and for who has signed in."""
    wall = Wall()
    known = authentication(tmp_path, wall, EXPIRING)
    assert known.signed_in("AKIDSHORT", "short") is not None
    assert known.known("AKIDSHORT") is not None
    wall.now_s = ENDS_S
    assert known.signed_in("AKIDSHORT", "short") is None
    assert known.known("AKIDSHORT") is None


def test_a_key_that_leaves_the_file_is_known_no_more(tmp_path: Path) -> None:
    known = authentication(tmp_path, Wall())
    assert known.known("AKIDOWNER") is not None
    written(tmp_path / "keys.toml", EXPIRING)
    known.reload()
    assert known.known("AKIDOWNER") is None
    assert known.signed_in("AKIDOWNER", SECRETS["AKIDOWNER"]) is None
