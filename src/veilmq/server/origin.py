"""Checks of request origins: foreign web pages are refused, and the console is restricted to safe networks.

Browsers send where a request comes from (``Origin``, ``Sec-Fetch-Site``; Fetch standard), other clients do not. A page
is our own if its origin is the address that the request was sent to, and that address is an IP address, a loopback name
or the name that the server listens on. Any other name may have been pointed here by its owner (DNS rebinding), which
only the ``Host`` header shows. So an admin port that only this machine can reach accepts no other names. Health and
metrics of a port that other machines can reach accept any name, as the server cannot know its names; the console does
so only behind a proxy or over TLS, as an attacker's name has no certificate there.

Passwords and sessions are not sent in the clear. The console can be used from this machine, over TLS to a server with
accounts, or through a proxy listed in ``console_proxy``. Only listed proxies are trusted to name their client's scheme
and address (``X-Forwarded-Proto``, ``X-Forwarded-For``), as any client can send these headers. Health and metrics
contain no secrets and are not restricted.
"""

import re
from dataclasses import dataclass
from ipaddress import ip_address

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from veilmq.console.security_headers import HEADERS
from veilmq.server.settings import Address, Addresses, unmapped

FOREIGN_SITES = frozenset({b"cross-site", b"same-site"})

FOREIGN_PAGE = (
    "This request comes from a web page of another site, which may not use this server. "
    "Programs need no Origin header; a page must be served from this address."
)

FORGED_GET = (
    "This GET may come from a web page of another site, which may not use this server. Programs omit a "
    "browser's headers (Accept-Language, Referer, Sec-Fetch-…, the User-Agent Mozilla/…) or use POST; in a browser, "
    "enter the IP address of this server or localhost."
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
_OWN_SITES = frozenset({b"none", b"same-origin"})


def is_foreign(headers: dict[bytes, bytes], *, own_name: str) -> bool:
    """Return whether a foreign web page made the request; ``own_name`` is the host name that the server listens on."""
    if headers.get(b"sec-fetch-site") in FOREIGN_SITES:
        return True
    origin = headers.get(b"origin")
    if origin is None:
        return False
    host = headers.get(b"host", b"")
    address = origin.lower().removeprefix(b"https:").removeprefix(b"http:")
    return address != b"//" + host.lower() or not is_own(host.decode("latin-1"), own_name=own_name)


def may_be_forged(headers: dict[bytes, bytes], *, own_name: str, mark: bytes = b"") -> bool:
    """Return whether a foreign web page may have caused a browser to send this GET, which could delete a queue.

    A page can load any address, as an image, a link or a form, and the browser need not send the page's origin: GET has
    no ``Origin``, and plain HTTP to other machines no ``Sec-Fetch-Site``. So a request that looks like a browser's (a
    page cannot suppress ``Accept-Language``) must show that the user entered the address, or that it comes from our own
    page, and be sent to an own address. The header ``mark`` shows it too: for foreign pages, browsers send it only with
    permission (CORS), which the server never gives.
    """
    if _BROWSERS_HEADERS.isdisjoint(headers) and not headers.get(b"user-agent", b"").startswith(b"Mozilla/"):
        return False
    host = headers.get(b"host", b"").decode("latin-1")
    shown = mark in headers or headers.get(b"sec-fetch-site") in _OWN_SITES
    return not shown or not is_own(host, own_name=own_name)


def is_own(host: str, *, own_name: str) -> bool:
    """Return whether ``host``, a ``Host`` header, is an address that nobody else can have pointed here."""
    name = name_of(host)
    if name.lower() in {own_name.lower(), "localhost"}:
        return True
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def name_of(host: str) -> str:
    """Return ``host``, a ``Host`` header, without the port."""
    return host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host


_OPERATORS = frozenset({"/health/live", "/health/ready", "/metrics", "/events/flush"})
_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-proto"})

LOCAL_ONLY = (
    "Without authentication the console serves only this machine. Give the server accounts "
    "(--credentials) and a certificate (--tls-certificate, --tls-key), or use a tunnel (ssh -L)."
)
TLS_REQUIRED = (
    "The console serves other machines only over TLS: give the server a certificate (--tls-certificate, "
    "--tls-key), or put a TLS proxy in front of it and list the proxy's address (--console-proxy)."
)
UNLISTED_PROXY = (
    "This request came through a proxy that is not listed: list its address with --console-proxy, so that the server "
    "trusts what the proxy states about its clients."
)
FORWARDED_HEADERS_REQUIRED = (
    "The proxy must set X-Forwarded-Proto, which must be https, and X-Forwarded-For to the scheme and the address of "
    "its client."
)


WRONG_NAME = (
    "The Host header is a name that this server does not listen on; "
    "use an IP address, localhost or the name given by --admin-host."
)

NO_NAME = "The Host header must be a name or an address, with or without a port."


class Unreachable(Exception):
    """The request may not come by this network; ``str()`` says what to do."""


def _header_elements(scope: Scope, wanted: bytes) -> list[str]:
    """Return the elements of a list header, over all its lines."""
    lines = [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]
    return [element.strip() for line in lines for element in line.split(",")]


def _address(text: str) -> Address | None:
    try:
        return unmapped(ip_address(text.partition("%")[0]))
    except ValueError:
        return None


_NO_PROXIES = Addresses(None)


@dataclass(frozen=True, slots=True)
class AdminGuard:
    """ASGI middleware that replies 403 to foreign web pages, and to clients that may not use the console.

    ``own_name`` is the host that the server listens on; with ``any_name``, health and metrics accept any ``Host``
    header. ``signed``: there are accounts; ``tls``: this server uses TLS; ``proxies`` are the listed ones.
    """

    app: ASGIApp
    own_name: str
    any_name: bool
    has_console: bool = True
    signed: bool = False
    tls: bool = False
    proxies: Addresses = _NO_PROXIES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_console = self.has_console and scope["path"] not in _OPERATORS
        try:
            seen, certified = self.client_scope(scope) if is_console else (scope, False)
            self._check(scope, certified=certified, any_name=self.any_name and not is_console)
        except Unreachable as unreachable:
            text = str(unreachable)
            refusal: Response = PlainTextResponse(text + "\n", status_code=403, headers=HEADERS)
            if scope["path"].startswith("/api/"):
                content = {"code": "AccessDenied", "message": text}
                refusal = JSONResponse(content, status_code=403, headers=HEADERS)
            await refusal(scope, receive, send)
        else:
            await self.app(seen, receive, send)

    def client_scope(self, scope: Scope) -> tuple[Scope, bool]:
        """Return ``scope`` with the real client and scheme; raises ``Unreachable``.

        Also return whether any ``Host`` header is safe: an attacker's name has no certificate, or no proxy.
        """
        peer = _address(scope["client"][0]) if scope.get("client") else None
        forwarded = any(name in _FORWARDED for name, _ in scope["headers"])
        proxied = peer is not None and peer in self.proxies
        if peer is not None and peer.is_loopback and not proxied:
            if forwarded:
                raise Unreachable(UNLISTED_PROXY)
            return scope, self.tls
        if not self.signed:
            raise Unreachable(LOCAL_ONLY)
        if not proxied:
            if not self.tls:
                raise Unreachable(UNLISTED_PROXY if forwarded else TLS_REQUIRED)
            return scope, True
        schemes = _header_elements(scope, b"x-forwarded-proto")
        client = self._client(_header_elements(scope, b"x-forwarded-for"))
        if not schemes or any(scheme.lower() != "https" for scheme in schemes) or client is None:
            raise Unreachable(FORWARDED_HEADERS_REQUIRED)
        return {**scope, "scheme": "https", "client": (str(client), 0)}, True

    def _client(self, listed: list[str]) -> Address | None:
        """Return the last address that is not a listed proxy's: clients can forge those before it."""
        address = None
        for text in reversed(listed):
            if text.startswith("["):
                address = _address(text[1:].partition("]")[0])
            else:
                address = _address(text.partition(":")[0] if text.count(":") == 1 else text)
            if address is None or address not in self.proxies:
                return address
        return address

    def _check(self, scope: Scope, *, certified: bool, any_name: bool) -> None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        own_name = name_of(host) if certified else self.own_name
        if host:
            match = _HOST.fullmatch(host)
            if match is None or int(match[1] or 0) > _PORT_MAX:
                raise Unreachable(NO_NAME)
            if not any_name and not is_own(host, own_name=own_name):
                raise Unreachable(WRONG_NAME)
        if is_foreign(headers, own_name=own_name):
            raise Unreachable(FOREIGN_PAGE)
