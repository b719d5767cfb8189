"""The kinds of value that a setting can have: each reads one raw value, and says what it allows.

A raw value is text (from a flag or the environment) or what a settings file held (text, number, true or false). A kind
returns the typed value or raises ``ValueError``; the caller knows which setting it was and where it came from. Reading
a typed value returns it unchanged, so that the same rule checks settings built in a program.

Two kinds are lists of hosts. ``AllowList`` names hosts, addresses and networks that may be pushed to, each perhaps with
one port. What is no address of the public internet (loopback, private, link-local with the metadata of clouds, and the
other special blocks of IANA's registries) is allowed by a network within such a block alone: neither by a name that
happens to lead there, nor by a network as wide as all addresses.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from pathlib import Path
from typing import NamedTuple, Protocol

from veilmq.core.limits import Range
from veilmq.store.urls import split_urls

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class Addresses:
    """A list as ``10.1.2.3, 10.2.0.0/16, fd00::/8``: a container of addresses, empty for ``None``."""

    def __init__(self, text: str | None) -> None:
        """Raises ``ValueError`` for what is no list of addresses, or has a network of all addresses."""
        entries = [] if text is None else text.split(",")
        self._networks: list[Network] = [ip_network(each.strip()) for each in entries]
        if any(network.prefixlen == 0 for network in self._networks):
            raise ValueError(text)

    def __contains__(self, address: Address) -> bool:
        """Tell whether ``address`` is among them."""
        return any(address in network for network in self._networks)


_SPECIAL_4 = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 "
    "192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4"
)
_SPECIAL_6 = (  # those that lead to IPv4 addresses by another way are among them
    "::/96 ::ffff:0:0/96 64:ff9b::/96 64:ff9b:1::/48 100::/64 2001::/23 2001:db8::/32 2002::/16 3fff::/20 5f00::/16 "
    "fc00::/7 fe80::/10 fec0::/10 ff00::/8"
)
_SPECIAL: dict[int, list[Network]] = {
    4: [ip_network(block) for block in _SPECIAL_4.split()],
    6: [ip_network(block) for block in _SPECIAL_6.split()],
}
_WITH_PORT = re.compile(r"(?:\[(?P<address>[^\]]+)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]{1,5})")
_NAME = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")


class _Entry(NamedTuple):
    """One of ``name`` (in lower case) and ``network`` is given; ``port`` is ``None`` for every one."""

    name: str
    network: Network | None
    special: bool
    port: int | None


class AllowList:
    """What a server may push to; an empty list allows nothing."""

    def __init__(self, text: str) -> None:
        """Read entries between commas; raises ``ValueError`` for what is none."""
        self._entries = [_read(entry.strip()) for entry in text.split(",") if entry.strip()]

    def __bool__(self) -> bool:
        """Tell whether anything is allowed."""
        return bool(self._entries)

    @property
    def has_networks(self) -> bool:
        """Whether an address may be allowed that no name is."""
        return any(entry.network is not None for entry in self._entries)

    def names(self, host: str, port: int) -> bool:
        """Tell whether the host of that name, in lower case, is allowed at ``port``, wherever it is in public."""
        return any(entry.name == host and entry.port in (None, port) for entry in self._entries if entry.name)

    def holds(self, address: Address, port: int, *, named: bool) -> bool:
        """Tell whether ``address`` may be connected to at ``port``; ``named``: its host is allowed by name."""
        plain = unmapped(address)
        special = is_special(plain)
        if named and not special:
            return True
        return any(
            plain in entry.network and entry.port in (None, port)
            for entry in self._entries
            if entry.network is not None and (entry.special or not special)
        )


def unmapped(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address only writes otherwise, or the address itself."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def is_special(address: Address) -> bool:
    """Tell whether ``address`` is none of the public internet."""
    return any(address in block for block in _SPECIAL[address.version])


def _read(text: str) -> _Entry:
    with_port = _WITH_PORT.fullmatch(text)
    if with_port is None:
        return _entry(text, None)
    port = int(with_port["port"])
    if not 1 <= port <= 65_535:
        raise ValueError(text)
    return _entry(with_port["address"] or with_port["host"], port)


def _entry(host: str, port: int | None) -> _Entry:
    try:
        network = ip_network(host)
    except ValueError:
        if not _NAME.fullmatch(host):
            raise
        return _Entry(host.lower(), None, False, port)
    return _Entry("", network, _is_within_special(network), port)


def _is_within_special(network: Network) -> bool:
    return any(
        network.network_address in block and network.broadcast_address in block for block in _SPECIAL[network.version]
    )


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
        """Return the value that ``raw`` stands for; raises ``ValueError``. Only a program can give ``None``."""


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
    """Text for which ``check`` returns something true, and ``None`` where that is ``optional``."""

    placeholder: str
    allowed: str
    check: Callable[[str], object]
    optional: bool = False

    def read(self, raw: object) -> str | None:
        """Take text alone: a file's number has lost its leading zeros."""
        if raw is None and self.optional:
            return None
        if not isinstance(raw, str) or not self.check(raw):
            raise ValueError(self.allowed)
        return raw


def matching(pattern: str, allowed: str, placeholder: str) -> Text:
    """Return the kind of text that matches ``pattern`` as a whole; ``allowed`` says the same in words."""
    return Text(placeholder, allowed, re.compile(pattern).fullmatch)


def one_of(*values: str, placeholder: str) -> Text:
    """Return the kind that is one of ``values``, spelled exactly."""
    return Text(placeholder, f"one of {', '.join(values)}", values.__contains__)


PLACE = Text("URL", "the path of a folder, or a URL", lambda raw: raw and raw.isprintable(), optional=True)
HOSTS = Text(
    "HOSTS",
    "host names, addresses and networks, each perhaps with a port, with commas between",
    AllowList,
    optional=True,
)
PEERS = Text(
    "ADDRESSES", "IP addresses and networks with commas between, and none that is everybody", Addresses, optional=True
)
WEB_URL = Text(
    "URL", "a URL that begins with http:// or https://", re.compile(r"https?://[!-~]+").fullmatch, optional=True
)


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
class PathOf:
    """A path, or ``None``; relative ones count from the working directory."""

    placeholder: str
    allowed: str

    def read(self, raw: object) -> Path | None:
        """Take a path or its text."""
        if raw is None or isinstance(raw, Path):
            return raw
        if not isinstance(raw, str) or not raw or "\0" in raw:
            raise ValueError(self.allowed)
        return Path(raw)


FOLDER = PathOf("DIR", "the path of a folder")
FILE = PathOf("FILE", "the path of a file")


@dataclass(frozen=True, slots=True)
class Stores:
    """The URL of a database, or of several."""

    placeholder: str = "URL"
    allowed: str = "a URL that begins with postgresql://, or several with commas between, each port from 1 to 65535"

    def read(self, raw: object) -> str | None:
        """Take text, a list of it, or ``None``."""
        if raw is None:
            return None
        if isinstance(raw, list) and all(isinstance(each, str) for each in raw):
            raw = ",".join(raw)
        if not isinstance(raw, str):
            raise ValueError(self.allowed)
        return ",".join(split_urls(raw))
