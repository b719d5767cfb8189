"""IP addresses and networks, as a setting lists them."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

Address = IPv4Address | IPv6Address


class Addresses:
    """A list as ``10.1.2.3, 10.2.0.0/16, fd00::/8``: a container of addresses."""

    def __init__(self, text: str) -> None:
        """Raises ``ValueError`` for what is no list of addresses, or has a network that is everybody."""
        self._networks: list[IPv4Network | IPv6Network] = [ip_network(each.strip()) for each in text.split(",")]
        if any(network.prefixlen == 0 for network in self._networks):
            raise ValueError(text)

    @classmethod
    def none(cls) -> "Addresses":
        """Return the empty list."""
        made = cls.__new__(cls)
        made._networks = []
        return made

    def __contains__(self, address: Address) -> bool:
        """Tell whether ``address`` is among them."""
        return any(address in network for network in self._networks)
