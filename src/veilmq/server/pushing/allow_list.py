"""Which hosts may be pushed to: names, addresses and networks, each perhaps with one port.

What is no address of the public internet (loopback, private, link-local with the metadata of clouds, and the other
special blocks of IANA's registries) is allowed by a network within such a block alone: neither by a name that happens
to lead there, nor by a network as wide as all addresses.
"""

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import NamedTuple

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

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
