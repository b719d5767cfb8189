"""From where the console and its API can be used: from this machine, over TLS, or through a proxy that is named.

Passwords and sessions do not travel in the clear. Who asks from another machine must come over TLS, to a server that
asks who he is: to this one, or to a proxy whose address the setting ``console_proxy`` names. Of a named proxy alone is
it believed how its client came and from where (``X-Forwarded-Proto``, ``X-Forwarded-For``): anybody can send these.
Health and metrics, which hold no secrets, are not for people and stay as they are.
"""

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

from starlette.types import Scope

from veilmq.server.addresses import Address, Addresses

_OPERATORS = frozenset({"/health/live", "/health/ready", "/metrics", "/events/flush"})
_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-proto"})

UNASKED = (
    "The console is for this machine alone, as nobody is asked who he is here. Give the server accounts "
    "(--credentials) and a certificate (--tls-certificate, --tls-key), or come by a tunnel (ssh -L)."
)
IN_THE_CLEAR = (
    "The console is served to other machines over TLS alone: give the server a certificate (--tls-certificate, "
    "--tls-key), or put a proxy before it that speaks TLS and name the proxy's address (--console-proxy)."
)
UNNAMED = (
    "This request came through a proxy that is not named: name its address with --console-proxy, so that the server "
    "believes what the proxy says of its clients."
)
UNFORWARDED = (
    "The proxy must say how its client came and from where: X-Forwarded-Proto, which must be https, and "
    "X-Forwarded-For, each with addresses and schemes that it knows to be true."
)


class Unreachable(Exception):
    """The console cannot be used from there; ``str()`` says what to do."""


class Way(NamedTuple):
    """How a request came: ``scope`` tells its client and scheme.

    ``by_any_name`` where no ``Host`` header needs to be feared: a foreign name has no certificate, or no proxy.
    """

    scope: Scope
    by_any_name: bool


def is_console(scope: Scope) -> bool:
    """Tell whether a request is for the console or its API, and not for health and metrics."""
    return scope["path"] not in _OPERATORS


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleReach:
    """``signed``: there are accounts; ``tls``: this server speaks it; ``proxies`` are named."""

    signed: bool
    tls: bool
    proxies: Addresses

    def way(self, scope: Scope) -> Way:
        """Return how a request for the console came; raises ``Unreachable``."""
        peer = _address(scope["client"][0]) if scope.get("client") else None
        forwarded = [name for name, _ in scope["headers"] if name in _FORWARDED]
        if peer is not None and peer in self.proxies:
            return self._through_proxy(scope)
        if peer is not None and peer.is_loopback:
            if forwarded:
                raise Unreachable(UNNAMED)
            return Way(scope, by_any_name=self.tls)
        if not self.signed:
            raise Unreachable(UNASKED)
        if not self.tls:
            raise Unreachable(UNNAMED if forwarded else IN_THE_CLEAR)
        return Way(scope, by_any_name=True)

    def _through_proxy(self, scope: Scope) -> Way:
        if not self.signed:
            raise Unreachable(UNASKED)
        schemes = _listed(scope, b"x-forwarded-proto")
        client = self._client(_listed(scope, b"x-forwarded-for"))
        if not schemes or any(scheme.lower() != "https" for scheme in schemes) or client is None:
            raise Unreachable(UNFORWARDED)
        return Way({**scope, "scheme": "https", "client": (str(client), 0)}, by_any_name=True)

    def _client(self, told: list[str]) -> Address | None:
        """Return the last address that no named proxy has: what stands before it, anybody can have written."""
        for text in reversed(told):
            address = _address(_portless(text))
            if address is None or address not in self.proxies:
                return address
        return _address(_portless(told[0])) if told else None


def _listed(scope: Scope, wanted: bytes) -> list[str]:
    """Return the elements of a header that is a list, over all its lines."""
    lines = [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]
    return [element.strip() for line in lines for element in line.split(",")]


def _portless(told: str) -> str:
    """Return an address of X-Forwarded-For without the port that some proxies write behind it."""
    if told.startswith("["):
        return told[1:].partition("]")[0]
    address, colon, _ = told.partition(":")
    return address if colon and told.count(":") == 1 else told


def _address(text: str) -> Address | None:
    """Return an address, one of IPv4 also where it is written as one of IPv6; ``None`` for what is none."""
    try:
        address: IPv4Address | IPv6Address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
