"""Requests that a web page of somebody else makes are refused: a browser can reach what only its user may reach.

Browsers tell where a request comes from (``Origin``, ``Sec-Fetch-Site``; Fetch standard), no other client does. A page
is ours if its origin is the address that the request was sent to, and if that address is an IP address, a name of the
loopback interface or the name that we listen on: any other name may have been pointed at us by its owner ("DNS
rebinding").
"""

import re
from ipaddress import ip_address

FOREIGN_SITES = frozenset({b"cross-site", b"same-site"})

EXPLANATION = (
    "This request comes from a web page of another site, which may not use this server. "
    "Programs need no Origin header; a page must be served from this address."
)

UNASKED = (
    "This GET may come from a web page of another site, which may not use this server. Programs need none of a "
    "browser's headers (Accept-Language, Referer, Sec-Fetch-…, the User-Agent Mozilla/…), or use POST; a person may "
    "enter the address of this server by number or as localhost."
)

_BROWSERS_HEADERS = frozenset(
    {
        b"accept-language",
        b"referer",
        b"sec-fetch-dest",
        b"sec-fetch-mode",
        b"sec-fetch-site",
        b"upgrade-insecure-requests",
    }
)
_HOST = re.compile(r"(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")
_PORT_MAX = 65_535
_ASKED_FOR = frozenset({b"none", b"same-origin"})


def is_foreign(headers: dict[bytes, bytes], *, own_name: str) -> bool:
    """Tell whether a foreign web page made the request; ``own_name`` is the host name that the server listens on."""
    if headers.get(b"sec-fetch-site") in FOREIGN_SITES:
        return True
    origin = headers.get(b"origin")
    if origin is None:
        return False
    host = headers.get(b"host", b"")
    address = origin.lower().removeprefix(b"https:").removeprefix(b"http:")
    return address != b"//" + host.lower() or not is_own(host.decode("latin-1"), own_name=own_name)


def is_unasked(headers: dict[bytes, bytes], *, own_name: str, mark: bytes = b"") -> bool:
    """Tell whether a foreign web page may have made a browser send this GET, which could delete a queue.

    A page can have any address loaded, as an image, by a link, in a form, and the browser may keep to itself whose page
    it was: there is no ``Origin`` with a GET, and no ``Sec-Fetch-Site`` for plain HTTP to other machines. So what looks
    like a browser at all (a page cannot make it leave out ``Accept-Language``) must show that its user entered the
    address, or that a page of ours asked, at an address that is ours. So does a request there with the header ``mark``,
    which browsers send for a page of another site only with our leave (CORS), and nobody has that.
    """
    if _BROWSERS_HEADERS.isdisjoint(headers) and not headers.get(b"user-agent", b"").startswith(b"Mozilla/"):
        return False
    host = headers.get(b"host", b"").decode("latin-1")
    shown = mark in headers or headers.get(b"sec-fetch-site") in _ASKED_FOR
    return not shown or not is_own(host, own_name=own_name)


def is_own(host: str, *, own_name: str) -> bool:
    """Tell whether ``host``, a ``Host`` header, is an address that nobody else can have pointed at us."""
    name = name_of(host)
    if name.lower() in {own_name.lower(), "localhost"}:
        return True
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def is_host(host: str) -> bool:
    """Tell whether ``host``, a ``Host`` header, can stand in a URL."""
    match = _HOST.fullmatch(host)
    return match is not None and int(match[1] or 0) <= _PORT_MAX


def name_of(host: str) -> str:
    """Return the name or address in ``host``, a ``Host`` header, without the port."""
    return host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
