"""The guard: from a URL to an address that may be connected to, or to the reason why there is none.

A name is resolved once, here, and who asked connects to the address that was looked at: what its owner makes the name
lead to a moment later plays no part. The guard is asked when somebody subscribes, and again before each push.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from ipaddress import ip_address
from threading import Thread
from typing import NamedTuple

from veilmq.core.push_urls import PushUrl, read_push_url
from veilmq.core.topic_errors import EndpointRefused
from veilmq.server.pushing.allow_list import Address, AllowList, unmapped

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Name and port → addresses as text; raises ``OSError``."""

_REMEDY = "add it to the server's setting push_allow (--push-allow) to let messages be pushed there"
_LOOKED_UP_MAX = 64


class Target(NamedTuple):
    """A URL, and the addresses that may be connected to for it, one at least, in the order in which to try them."""

    url: PushUrl
    addresses: list[Address]


class Guard:
    """What may be pushed to."""

    def __init__(self, allowed: AllowList, *, resolve: Resolve | None = None) -> None:
        """Names are looked up by ``resolve``, or by the system."""
        self._allowed = allowed
        self._resolve = resolve or SystemResolver()

    async def admit(self, text: str) -> Target:
        """Return the target of the URL ``text``; raises ``EndpointRefused``."""
        url = read_push_url(text)
        if not self._allowed:
            raise EndpointRefused(text, f"no host is allowed; {_REMEDY}")
        named = self._allowed.names(url.host, url.port)
        if not named and not self._allowed.has_networks:  # nobody is told that the name was asked for
            raise EndpointRefused(text, f"{url.host} port {url.port} is not allowed; {_REMEDY}")
        addresses = await self._addresses(text, url)
        allowed = [unmapped(each) for each in addresses if self._allowed.holds(each, url.port, named=named)]
        if not allowed:
            raise EndpointRefused(text, _reason(url, addresses, named=named))
        return Target(url, allowed)

    async def _addresses(self, text: str, url: PushUrl) -> list[Address]:
        literal = _literal(url.host)
        if literal is not None:
            return [literal]
        try:
            found = await self._resolve(url.host, url.port)
        except OSError as error:
            raise EndpointRefused(text, f"the name {url.host} cannot be resolved ({error.strerror or error})") from None
        return [ip_address(address) for address in found]


class SystemResolver:
    """Looks names up as every program of the machine does, in a thread for each name.

    The system may take half a minute for a name whose servers are dead, also when nobody waits any more. So whoever
    asks for a name that is being looked up waits with the others, and the threads hold up no end of the process.
    """

    def __init__(self) -> None:
        """Look up nothing yet."""
        self._looking: dict[tuple[str, int], asyncio.Future[list[str]]] = {}

    async def __call__(self, name: str, port: int) -> list[str]:
        """Return the addresses of ``name``; raises ``OSError``."""
        looking = self._looking.get((name, port))
        if looking is None:
            if len(self._looking) >= _LOOKED_UP_MAX:
                raise OSError("too many names are being looked up")
            looking = self._begin(name, port)
        return await asyncio.shield(looking)

    def _begin(self, name: str, port: int) -> "asyncio.Future[list[str]]":
        loop = asyncio.get_running_loop()
        looking: asyncio.Future[list[str]] = loop.create_future()
        self._looking[name, port] = looking

        def found(answer: list[str] | OSError) -> None:
            del self._looking[name, port]
            if isinstance(answer, OSError):
                looking.set_exception(answer)
                looking.exception()  # perhaps nobody waits for it any more
            else:
                looking.set_result(answer)

        def look_up() -> None:
            answer = _look_up(name, port)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(found, answer)

        Thread(target=look_up, name=f"veilmq-push-{name}", daemon=True).start()
        return looking


def _look_up(name: str, port: int) -> list[str] | OSError:
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return error
    except UnicodeError as error:
        return OSError(str(error))
    return [str(address[0]).partition("%")[0] for *_, address in found]


def _literal(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _reason(url: PushUrl, addresses: list[Address], *, named: bool) -> str:
    if not named:
        return f"{url.host} port {url.port} is not allowed; {_REMEDY}"
    leads = ", ".join(map(str, addresses)) or "nowhere"
    return (
        f"{url.host} leads to {leads}, which is no public address; add that address, or its network, to the server's "
        "setting push_allow (--push-allow), too"
    )
