"""URLs that messages may be pushed to, taken apart strictly: what two readers might read otherwise is refused.

A host that ends with a number is an address only in its one usual form, four decimal numbers: others (octal, one large
number, fewer parts) mean an address to some and a name to others.
"""

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address

import msgspec

from veilmq.core.topic_errors import EndpointRefused

PATH_DEFAULT = "/notifications"
"""Where messages are pushed to when the URL names a host alone (SMQ reference, section 9)."""

_URL_CHARACTERS_MAX = 2_048
_URL = re.compile(
    r"(?i:(?P<scheme>https?))://(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>[/?][!$-;=?-Z_a-z~\[\]%]*)?"
)
_NAME = re.compile(
    r"(?:[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.?"
)
_LIKE_A_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_PORTS = {"http": 80, "https": 443}


class PushUrl(msgspec.Struct, frozen=True, kw_only=True):
    """``host`` is a name in lower case, without a dot at its end, or an address in its usual form, without brackets.

    ``path`` is all behind the host, as a request names it; ``authority`` is host and port as ``Host`` names them.
    """

    secure: bool
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """Return the value of the ``Host`` header: without the port where it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.secure else "http"] else f"{host}:{self.port}"


def read_push_url(text: str) -> PushUrl:
    """Return the parts of ``text``; raises ``EndpointRefused`` for what is not plainly the URL of a host."""
    match = _URL.fullmatch(text) if len(text) <= _URL_CHARACTERS_MAX else None
    if match is None:
        raise EndpointRefused(
            text,
            "it must be http:// or https://, a host name or address, perhaps a port and a path, of "
            f"{_URL_CHARACTERS_MAX} ASCII characters at the most, no user name, fragment, space or backslash",
        )
    scheme = match["scheme"].lower()
    port = int(match["port"] or _PORTS[scheme])
    if not 1 <= port <= 65_535:
        raise EndpointRefused(text, "its port must be one from 1 to 65535")
    path = match["path"] or PATH_DEFAULT
    return PushUrl(
        secure=scheme == "https",
        host=_host(text, match["host"]),
        port=port,
        path=path if path.startswith("/") else f"/{path}",
    )


def _host(text: str, host: str) -> str:
    if host.startswith("["):
        try:
            return str(IPv6Address(host[1:-1]))
        except AddressValueError:
            raise EndpointRefused(text, "what stands between brackets is no IPv6 address") from None
    name = host.lower().removesuffix(".")
    if _LIKE_A_NUMBER.fullmatch(name.rpartition(".")[2]):
        try:
            return str(IPv4Address(host))
        except AddressValueError:
            raise EndpointRefused(text, "write an IPv4 address as four decimal numbers with dots between") from None
    if not _NAME.fullmatch(host):
        raise EndpointRefused(text, "its host is no name of a host")
    return name
