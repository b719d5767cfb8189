"""The kinds of value that a setting can have: each reads one raw value, and says what it allows.

A raw value is text (from a flag or the environment) or what a settings file held (text, number, true or false). A kind
answers the typed value or raises ``ValueError``; the caller knows which setting it was and where it came from. Reading
a value that is typed already answers it unchanged, so that the same rule checks settings built in a program.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from veilmq.core.limits import Range
from veilmq.server.addresses import Addresses
from veilmq.server.pushing.allow_list import AllowList
from veilmq.store.urls import split_urls

SettingValue = str | int | bool | Path | None
"""A setting's value once it was read."""

_NUMBER = re.compile(r"-?[0-9]{1,18}")


class Kind(Protocol):
    """One kind of value."""

    @property
    def placeholder(self) -> str:
        """What stands for a value in help, for example ``N``; empty for a switch."""

    @property
    def allowed(self) -> str:
        """What is allowed, as words that follow "must be"."""

    def read(self, raw: object) -> SettingValue:
        """Return the value that ``raw`` stands for; raises ``ValueError``."""


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """A whole number in ``range``; the range's default is the setting's."""

    range: Range
    placeholder: str = "N"

    @property
    def allowed(self) -> str:
        """Name both ends."""
        return f"a whole number from {self.range.minimum} to {self.range.maximum}"

    def read(self, raw: object) -> int:
        """Take a number, or its digits."""
        if isinstance(raw, str) and _NUMBER.fullmatch(raw):
            raw = int(raw)
        if isinstance(raw, bool) or not isinstance(raw, int) or not self.range.holds(raw):
            raise ValueError(self.allowed)
        return raw


@dataclass(frozen=True, slots=True)
class Text:
    """Text that matches ``pattern`` as a whole; ``allowed`` says the same in words."""

    pattern: str
    allowed: str
    placeholder: str

    def read(self, raw: object) -> str:
        """Take text alone: a file's number has lost its leading zeros."""
        if not isinstance(raw, str) or not re.fullmatch(self.pattern, raw):
            raise ValueError(self.allowed)
        return raw


@dataclass(frozen=True, slots=True)
class Choice:
    """One of ``values``."""

    values: tuple[str, ...]
    placeholder: str

    @property
    def allowed(self) -> str:
        """Name them all."""
        return f"one of {', '.join(self.values)}"

    def read(self, raw: object) -> str:
        """Take one of them, spelled exactly."""
        if not isinstance(raw, str) or raw not in self.values:
            raise ValueError(self.allowed)
        return raw


@dataclass(frozen=True, slots=True)
class Switch:
    """True or false; as a flag it has no value and means true."""

    placeholder: str = ""
    allowed: str = "true or false"

    def read(self, raw: object) -> bool:
        """Take a truth value, or its word."""
        if isinstance(raw, bool):
            return raw
        if raw not in ("true", "false"):
            raise ValueError(self.allowed)
        return raw == "true"


@dataclass(frozen=True, slots=True)
class Folder:
    """The path of a folder, which need not exist; relative ones count from the working directory."""

    placeholder: str = "DIR"
    allowed: str = "the path of a folder"

    def read(self, raw: object) -> Path | None:
        """Take a path, its text, or ``None`` (no folder, from a program alone: no source can say it)."""
        if raw is None or isinstance(raw, Path):
            return raw
        if not isinstance(raw, str) or not raw or "\0" in raw:
            raise ValueError(self.allowed)
        return Path(raw)


@dataclass(frozen=True, slots=True)
class Place:
    """A folder, or the URL of one elsewhere; whether it can be used is seen when it is."""

    placeholder: str = "URL"
    allowed: str = "the path of a folder, or a URL"

    def read(self, raw: object) -> str | None:
        """Take text, or ``None`` (no place, from a program alone: no source can say it)."""
        if raw is None:
            return None
        if not isinstance(raw, str) or not raw or not raw.isprintable():
            raise ValueError(self.allowed)
        return raw


@dataclass(frozen=True, slots=True)
class File(Folder):
    """The path of a file that must be there when the server starts; read as a folder's is."""

    placeholder: str = "FILE"
    allowed: str = "the path of a file"


@dataclass(frozen=True, slots=True)
class NewFile(Folder):
    """The path of a file that is made when it is missing; read as a folder's is."""

    placeholder: str = "FILE"
    allowed: str = "the path of a file"


@dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts that may be pushed to, as ``pushing.allow_list`` reads them."""

    placeholder: str = "HOSTS"
    allowed: str = "host names, addresses and networks, each perhaps with a port, with commas between"

    def read(self, raw: object) -> str | None:
        """Take text, or ``None`` (no host, from a program alone: no source can say it)."""
        if raw is None:
            return None
        if not isinstance(raw, str) or not AllowList(raw):
            raise ValueError(self.allowed)
        return raw


@dataclass(frozen=True, slots=True)
class Peers:
    """Addresses and networks that connections come from, as ``addresses`` reads them."""

    placeholder: str = "ADDRESSES"
    allowed: str = "IP addresses and networks with commas between, and none that is everybody"

    def read(self, raw: object) -> str | None:
        """Take text, or ``None`` (no address, from a program alone: no source can say it)."""
        if raw is None:
            return None
        if not isinstance(raw, str):
            raise ValueError(self.allowed)
        Addresses(raw)
        return raw


@dataclass(frozen=True, slots=True)
class Url:
    """The URL of something on a web server."""

    placeholder: str = "URL"
    allowed: str = "a URL that begins with http:// or https://"

    def read(self, raw: object) -> str | None:
        """Take text, or ``None`` (no URL, from a program alone: no source can say it)."""
        if raw is None:
            return None
        if not isinstance(raw, str) or not re.fullmatch(r"https?://[!-~]+", raw):
            raise ValueError(self.allowed)
        return raw


@dataclass(frozen=True, slots=True)
class Stores:
    """The URL of a database, or of several."""

    placeholder: str = "URL"
    allowed: str = "a URL that begins with postgresql://, or several with commas between, each port from 1 to 65535"

    def read(self, raw: object) -> str | None:
        """Take text, or a list of it, or ``None`` (no database, from a program alone: no source can say it)."""
        if raw is None:
            return None
        if isinstance(raw, list) and all(isinstance(each, str) for each in raw):
            raw = ",".join(raw)
        if not isinstance(raw, str):
            raise ValueError(self.allowed)
        return ",".join(split_urls(raw))
