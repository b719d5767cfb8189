"""The credentials file: the accounts that may ask, and the keys with which they sign.

TOML, a table for each account and one for each of its keys (``docs/security.md`` has an example). The file holds
secrets as they are, as a signature can only be checked by who knows the secret; so nobody but its owner may read it,
which is checked. No error repeats anything of its content but the names of members and the ids of accounts and keys.
"""

import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec

from veilmq.wire.exchange import AccessKey, caller_named

_OTHERS = stat.S_IRWXG | stat.S_IRWXO

_AccountId = Annotated[str, msgspec.Meta(pattern="^[0-9]{12}$")]
_KeyId = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{3,128}$")]
_UserName = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_+=,.@-]{1,64}$")]
_Secret = Annotated[str, msgspec.Meta(min_length=1, max_length=4_096)]


class CredentialsError(Exception):
    """The credentials file cannot be used; ``str()`` says why and what to do."""

    def __init__(self, path: Path, problem: str) -> None:
        """``problem`` follows the path in a sentence."""
        super().__init__(f"The credentials file {path} {problem}.")


class _Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: _KeyId
    secret: _Secret
    user: _UserName | None = None
    session_token: _Secret | None = None
    expires: datetime | None = None

    def __repr__(self) -> str:
        """Tell no secret."""
        return f"_Key({self.id!r})"


class _Account(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: _AccountId
    name: str
    keys: list[_Key] = []


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    accounts: list[_Account]


def load(path: Path) -> dict[str, AccessKey]:
    """Return the keys of the file by id; raises ``CredentialsError``."""
    try:
        found = msgspec.toml.decode(_read(path), type=_File)
    except msgspec.ValidationError as error:
        raise CredentialsError(path, f"is not as it must be: {error}") from None
    except (msgspec.DecodeError, ValueError) as error:
        place = str(error).rpartition("(")[2].rstrip(")") if "(at " in str(error) else "its bytes are no UTF-8"
        raise CredentialsError(path, f"is no TOML ({place})") from None
    keys: dict[str, AccessKey] = {}
    for key in _keys(path, found):
        if key.id in keys:
            raise CredentialsError(path, f"has the key {key.id} twice; remove one of them")
        keys[key.id] = key
    if not keys:
        raise CredentialsError(path, "has no keys, so nobody could ask for anything; add one")
    return keys


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise CredentialsError(path, "is no file")
            if mode & _OTHERS:
                allowed = f"{stat.S_IMODE(mode):04o}"
                raise CredentialsError(path, f"can be read or changed by others (mode {allowed}); run chmod 600 on it")
            return file.read()
    except OSError as error:
        raise CredentialsError(path, f"cannot be read: {error.strerror}") from None


def _keys(path: Path, found: _File) -> Iterator[AccessKey]:
    seen: set[str] = set()
    for account in found.accounts:
        if account.id in seen:
            raise CredentialsError(path, f"has the account {account.id} twice; put its keys into one table")
        seen.add(account.id)
        for key in account.keys:
            yield AccessKey(
                id=key.id,
                secret=key.secret,
                caller=caller_named(account.id, key.user or ""),
                session_token=key.session_token,
                expires_at_s=_seconds(key.expires),
            )


def _seconds(instant: datetime | None) -> float | None:
    """Return ``instant`` in seconds since the epoch; one without an offset is in UTC."""
    if instant is None:
        return None
    return (instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)).timestamp()
