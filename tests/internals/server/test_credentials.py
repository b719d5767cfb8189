"""The credentials file: what it may say, who may read it, and that nothing of its secrets comes out."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.server.keys import FRIEND, OWNER, SECRETS, TEXT, TOKEN, written
from veilmq.server.authentication import CredentialsError, load


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of two accounts."""
    return written(tmp_path / "keys.toml")


def refusal(path: Path) -> str:
    """Return why the file is not taken; no secret is told, whatever it says."""
    with pytest.raises(CredentialsError) as caught:
        load(path)
    text = str(caught.value)
    assert text.startswith(f"The credentials file {path} ")
    assert not any(secret in text for secret in (*SECRETS.values(), TOKEN))
    return text


def test_accounts_and_keys_are_read(path: Path) -> None:
    """Each key knows whose it is, and when it ends."""
    keys = load(path)
    assert list(keys) == list(SECRETS)
    assert {name: key.caller.account for name, key in keys.items()} == {
        "AKIDOWNER": OWNER,
        "AKIDCAROL": OWNER,
        "AKIDFRIEND": FRIEND,
        "ASIDBOB": FRIEND,
    }
    assert keys["AKIDOWNER"].caller.is_root
    assert keys["ASIDBOB"].caller.arn == f"arn:aws:iam::{FRIEND}:user/bob"
    assert keys["ASIDBOB"].expires_at_s == datetime(2100, 1, 1, tzinfo=UTC).timestamp()
    assert (keys["ASIDBOB"].session_token, keys["AKIDOWNER"].session_token) == (TOKEN.encode(), None)


def test_an_end_without_an_offset_is_in_utc(path: Path) -> None:
    written(path, TEXT.replace("00:00:00Z", "00:00:00"))
    assert load(path)["ASIDBOB"].expires_at_s == datetime(2100, 1, 1, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o610, 0o777])
def test_a_file_that_others_may_touch_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    assert f"(mode {mode:04o}); run chmod 600" in refusal(path)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_the_owner_alone_may_read(path: Path, mode: int) -> None:
    path.chmod(mode)
    assert load(path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('secret = "secret/of+owner"', "secret = secret/of+owner", "is no TOML (at line 8, column 10)"),
        ('secret = "secret/of+owner"', "secret = 5", "Expected `str`, got `int` - at `$.accounts[0].keys[0].secret`"),
        ('secret = "secret/of+owner"', 'secret = ""', "length >= 1"),
        ('secret = "secret/of+owner"', "", "missing required field `secret`"),
        ("secret = ", "Secret = ", "field `"),
        (f'"{OWNER}"', '"1"', "$.accounts[0].id"),
        ('"AKIDCAROL"', '"AKID CAROL"', "$.accounts[0].keys[1].id"),
        ('"AKIDCAROL"', '"AKIDOWNER"', "has the key AKIDOWNER twice"),
        (f'"{FRIEND}"', f'"{OWNER}"', f"has the account {OWNER} twice"),
        ('user = "carol"', 'user = "car/ol"', "keys[1].user"),
        ("2100-01-01T00:00:00Z", '"soon"', "keys[1].expires"),
        (TEXT, "", "missing required field `accounts`"),
        (TEXT, "accounts = []", "has no keys"),
    ],
    ids=range(13),
)
def test_what_is_wrong_is_told_and_no_secret(path: Path, old: str, new: str, words: str) -> None:
    assert old in TEXT
    written(path, TEXT.replace(old, new))
    assert words in refusal(path)


def test_bytes_that_are_no_text_are_refused(path: Path) -> None:
    path.write_bytes(b"\xff")
    assert "its bytes are no UTF-8" in refusal(path)


def test_a_file_must_be_there_and_a_file(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refusal(tmp_path / "missing.toml")
    assert "cannot be read: Is a directory" in refusal(tmp_path)
    assert "is no file" in refusal(Path("/dev/null"))


def test_no_key_shows_its_secret(path: Path) -> None:
    shown = repr(load(path))
    assert "AKIDOWNER" in shown
    assert not any(secret in shown for secret in (*SECRETS.values(), TOKEN))
