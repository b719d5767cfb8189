"""What the server uses of its process: listening sockets, the event loop, and signals that end it.

Sockets are bound before the server does anything else, with an error that says what to do. A name is bound at every
address that it stands for (``localhost`` is one of IPv4 and one of IPv6 on most machines), at the same port, as a
client may try any of them. Addresses that this machine does not have are skipped as long as one is left.

The first signal lets running requests finish for a while, a second one, or a failed store, does not. The time is one
for all parts of the server: what one part has used is not left for the next. Signals are handled from before the first
part starts until after the last one has ended.
"""

import asyncio
import errno
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

BACKLOG = 1_024

_Place = tuple[socket.AddressFamily, Any]

_NOT_HERE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT})
_FREE_PORT_ATTEMPTS = 16


class BindError(Exception):
    """An address cannot be listened on; ``str()`` says which, why and what to do."""


def bind(host: str, port: int, *, setting: str) -> list[socket.socket]:
    """Return sockets bound to all addresses of ``host`` at ``port`` (0: any one that is free at all of them).

    ``setting`` names the port's setting. Raises ``BindError``.
    """
    where = f"{host}:{port}"
    places = _places(host, where)
    for attempt in range(_FREE_PORT_ATTEMPTS):
        try:
            return _bind_all(places, port)
        except OSError as error:
            taken_at_one_address = port == 0 and len(places) > 1 and error.errno == errno.EADDRINUSE
            if not taken_at_one_address or attempt == _FREE_PORT_ATTEMPTS - 1:
                raise BindError(f"Cannot listen on {where}: {_why(error, setting)}") from None
    raise AssertionError("the last attempt returns or raises")


def close(listeners: Sequence[socket.socket]) -> None:
    """Listen no more."""
    for listener in listeners:
        listener.close()


def authority(listener: socket.socket) -> str:
    """Return host and port of ``listener`` as they stand in a URL."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def url(listener: socket.socket, *, scheme: str = "http") -> str:
    """Return the address of ``listener`` as a client writes it."""
    return f"{scheme}://{authority(listener)}"


def is_loopback(listeners: Sequence[socket.socket]) -> bool:
    """Tell whether only programs of this machine reach ``listeners``."""
    return all(ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback for listener in listeners)


def _places(host: str, where: str) -> list[_Place]:
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise BindError(f"Cannot listen on {where}: the host is not known here ({error.strerror}).") from None
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _bind_all(places: Sequence[_Place], port: int) -> list[socket.socket]:
    """Raise ``OSError`` if an address cannot be bound for another reason than that it is not here, or none is here."""
    listeners: list[socket.socket] = []
    not_here: OSError | None = None
    try:
        for family, address in places:
            try:
                listener = _bind_one(family, (address[0], port, *address[2:]), alone=len(places) == 1)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                not_here = error
            else:
                listeners.append(listener)
                port = listener.getsockname()[1]
    except OSError:
        close(listeners)
        raise
    if not_here is not None and not listeners:
        raise not_here
    return listeners


def _bind_one(family: socket.AddressFamily, address: tuple[Any, ...], *, alone: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and not alone:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # now, so that a port in use is noticed here
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _why(error: OSError, setting: str) -> str:
    flag = "--" + setting.replace("_", "-")
    if error.errno == errno.EADDRINUSE:
        return f"the port is in use; stop the other program, or choose another one with {flag} (0: any free one)."
    if error.errno == errno.EACCES:
        return f"this user may not listen on that port; choose one above 1023 with {flag}."
    if error.errno in _NOT_HERE:
        return "the address is not one of this machine."
    return f"{error.strerror}."


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the loop, ``None`` for Python's own."""
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        return None
    return uvloop.new_event_loop


_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_FAILURE_GRACE_S = 1.0  # for the answers "unknown" to reach those who wait


class Shutdown:
    """What is known about the end; belongs to the running event loop."""

    def __init__(self, *, grace_s: float) -> None:
        """Once requested, the end may take ``grace_s`` seconds."""
        self.requested = asyncio.Event()
        self.failure: BaseException | None = None
        self._at_once = asyncio.Event()
        self._grace_s = grace_s
        self._over_at_s = 0.0
        self._time_s = asyncio.get_running_loop().time

    def request(self) -> None:
        """Stop when all requests are served; the second time, at once."""
        self._begin(self._grace_s)

    def fail(self, error: BaseException) -> None:
        """Stop very soon: the store has failed with ``error``."""
        self.failure = error
        self._begin(_FAILURE_GRACE_S)

    async def let_finish(self, work: Coroutine[Any, Any, object], *, cut: Callable[[], object]) -> None:
        """Wait for ``work``. When the time is over, or after a second request, ``cut`` is called to end it."""
        working = asyncio.ensure_future(work)
        hurried = asyncio.ensure_future(self._at_once.wait())
        left_s = max(0.0, self._over_at_s - self._time_s())
        await asyncio.wait((working, hurried), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not working.done():
            cut()
        await working

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Take SIGTERM and SIGINT as requests; only the main thread can, in another one this does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.request)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _begin(self, grace_s: float) -> None:
        if self.requested.is_set():
            self._at_once.set()
            return
        self._over_at_s = self._time_s() + grace_s
        self.requested.set()
