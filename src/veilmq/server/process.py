"""The process: listening sockets, TLS, the event loop, and signals.

Sockets are bound first, with errors that say what to do. A name is bound at each of its addresses (``localhost`` is an
IPv4 and an IPv6 address on most machines), at the same port, as a client may try any of them. Addresses that this
machine does not have are skipped if at least one is left.

The first signal lets running requests finish for a limited time; a second one, or a failed store, ends the wait. All
parts of the server share that time. Signals are handled from before the first part starts until the last one has
ended. SIGHUP reloads files without dropping a request.

The server uses TLS 1.2 or later. Each handshake uses the certificate that is current when the client connects; so a new
certificate replaces the old one as a whole, and open connections keep theirs.
"""

import asyncio
import errno
import logging
import os
import signal
import socket
import ssl
import stat
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any, BinaryIO

BACKLOG = 1_024

_NOT_HERE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT})
_FREE_PORT_ATTEMPTS = 16


class BindError(Exception):
    """An address cannot be bound; ``str()`` says which, why and what to do."""


def bind(host: str, port: int, *, setting: str) -> list[socket.socket]:
    """Return sockets bound to all addresses of ``host`` at ``port`` (0: one that is free at all of them).

    ``setting`` is the name of the port's setting. Raises ``BindError``.
    """
    where = f"{host}:{port}"
    try:
        infos = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:  # the latter for labels that no name can have
        reason = error.strerror if isinstance(error, OSError) else error
        raise BindError(f"Cannot listen on {where}: the host is unknown ({reason}).") from None
    addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in infos))
    for attempt in range(_FREE_PORT_ATTEMPTS):
        try:
            return _bind(addresses, port)
        except OSError as error:
            # A port that is free at one address may be taken at the next one.
            if error.errno != errno.EADDRINUSE or attempt == _FREE_PORT_ATTEMPTS - 1:
                raise BindError(f"Cannot listen on {where}: {_reason(error, setting)}") from None
    raise AssertionError("the last attempt returns or raises")


def close(listeners: Sequence[socket.socket]) -> None:
    """Close ``listeners``."""
    for listener in listeners:
        listener.close()


def authority(listener: socket.socket) -> str:
    """Return host and port of ``listener`` for a URL."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(listeners: Sequence[socket.socket]) -> bool:
    """Return whether only this machine can reach ``listeners``."""
    return all(ip_address(listener.getsockname()[0]).is_loopback for listener in listeners)


def _bind(addresses: Sequence[tuple[socket.AddressFamily, Any]], port: int) -> list[socket.socket]:
    """Bind all addresses that this machine has; raises ``OSError`` if it has none, or one cannot be bound."""
    listeners: list[socket.socket] = []
    not_here: OSError | None = None
    try:
        for family, address in addresses:
            both = len(addresses) == 1 and family == socket.AF_INET6 and socket.has_dualstack_ipv6()
            try:  # create_server listens, so that a port in use is noticed here
                listener = socket.create_server(
                    (address[0], port, *address[2:]), family=family, backlog=BACKLOG, dualstack_ipv6=both
                )
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                not_here = error
            else:
                listener.setblocking(False)
                listeners.append(listener)
                port = listener.getsockname()[1]
    except OSError:
        close(listeners)
        raise
    if not_here is not None and not listeners:
        raise not_here
    return listeners


def _reason(error: OSError, setting: str) -> str:
    flag = "--" + setting.replace("_", "-")
    if error.errno == errno.EADDRINUSE:
        return f"the port is in use; stop the other program, or choose another one with {flag} (0: any free one)."
    if error.errno == errno.EACCES:
        return f"this user may not listen on that port; choose one above 1023 with {flag}."
    if error.errno in _NOT_HERE:
        return "the address is not one of this machine."
    return f"{error.strerror}."


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory; ``None`` for Python's loop if it is not installed."""
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        return None
    return uvloop.new_event_loop


@contextmanager
def on_signals(handlers: Mapping[signal.Signals, Callable[[], object]]) -> Iterator[None]:
    """Handle signals in the context; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    previous = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers)  # delivers what arrived during the start
    try:
        yield
    finally:
        for number, restored in previous.items():
            loop.remove_signal_handler(number)
            signal.signal(number, restored or signal.SIG_DFL)  # nohup ignores SIGHUP, for example


_FAILURE_GRACE_S = 1.0  # for OutcomeUnknown to reach clients


class Shutdown:
    """The shutdown of a server; belongs to the running event loop."""

    def __init__(self, *, grace_s: float) -> None:
        self._requested = asyncio.Event()
        self.failure: BaseException | None = None
        self._at_once = asyncio.Event()
        self._grace_s = grace_s
        self._over_at_s = 0.0
        self.starting = asyncio.current_task()  # ``None`` once the server has started
        self._time_s = asyncio.get_running_loop().time

    def request(self) -> None:
        """Stop when all requests are served; a second call, or one during the start, stops at once."""
        if self.starting is not None:
            self.starting.cancel()
        self._begin(self._grace_s)

    async def wait(self) -> None:
        """Wait for a request to stop; the server has started."""
        self.starting = None
        await self._requested.wait()

    def fail(self, error: BaseException) -> None:
        """Stop soon: the store has failed with ``error``."""
        self.failure = error
        self._begin(_FAILURE_GRACE_S)

    async def let_finish(self, work: Coroutine[Any, Any, object], *, cut: Callable[[], object]) -> None:
        """Wait for ``work``; at the end of the grace time, or after a second request, call ``cut`` to end it."""
        task = asyncio.ensure_future(work)
        at_once = asyncio.ensure_future(self._at_once.wait())
        await asyncio.wait((task, at_once), timeout=self._over_at_s - self._time_s(), return_when="FIRST_COMPLETED")
        at_once.cancel()
        if not task.done():
            cut()
        await task

    def end_with(self, closing: AsyncExitStack, worker: Any) -> None:
        """Start ``worker``, if any; ``closing`` closes it, and cuts it off at the end of the grace time."""
        if worker is not None:
            worker.start()
            closing.push_async_callback(lambda: self.let_finish(worker.close(), cut=worker.cut))

    def _begin(self, grace_s: float) -> None:
        if self._requested.is_set():
            self._at_once.set()
        self._over_at_s = self._time_s() + grace_s
        self._requested.set()


log = logging.getLogger(__name__)

HANDSHAKE_S_MAX, CLOSING_S_MAX = 10, 2
"""How long a client may take for a handshake, and for closing a connection, in seconds."""


def open_file(path: Path) -> BinaryIO:
    """Open a regular file to read it; raises ``OSError``. Opening a pipe would wait for its writer."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115 (returned)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return file


class TlsError(Exception):
    """The certificate and key cannot be used; ``str()`` says why and what to do."""


class _Replaceable(ssl.SSLContext):
    """A context that leaves connections to another one; a callback for server names fails if a name is not ASCII."""

    current: ssl.SSLContext

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        return self.current.wrap_bio(*arguments, **named)


class Tls:
    """The certificate of both ports; ``context`` is for their listeners."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate, self._key = certificate, key
        self.context = _Replaceable(ssl.PROTOCOL_TLS_SERVER)
        self.context.current = _tls_context(certificate, key)

    def reload(self) -> None:
        """Read both files again; log an error and keep the current ones if they cannot be used."""
        try:
            self.context.current = _tls_context(self._certificate, self._key)
            log.info("new connections get the certificate of %s", self._certificate)
        except TlsError as error:
            log.error("the certificate was not reloaded: %s", error)


def accept_options(tls: Tls | None) -> dict[str, Any]:
    """Return the options of ``create_server``."""
    options: dict[str, Any] = {"backlog": BACKLOG}  # both loops default to a tenth of it
    if tls is not None:
        options |= {"ssl": tls.context, "ssl_handshake_timeout": HANDSHAKE_S_MAX, "ssl_shutdown_timeout": CLOSING_S_MAX}
    return options


def _tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    for path, what in ((certificate, "certificate"), (key, "key")):
        try:
            open_file(path).close()
        except OSError as error:
            raise TlsError(f"The TLS {what} {path} cannot be read: {error.strerror}.") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts this certificate
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN

    def refuse_passphrase() -> str:
        raise TlsError(f"The TLS key {key} needs a passphrase; give one without.")

    try:
        context.load_cert_chain(certificate, key, password=refuse_passphrase)
        client.load_verify_locations(certificate)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"The TLS key {key} is not that of the certificate {certificate}.") from None
        reason = (error.reason or "unknown").lower().replace("_", " ")
        raise TlsError(f"The TLS certificate {certificate} or key {key} is unusable or not in PEM: {reason}.") from None
    except OSError as error:  # changed since they were opened
        raise TlsError(f"The TLS certificate {certificate} or key {key} cannot be read: {error.strerror}.") from None
    sent, received = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(received, sent), context.wrap_bio(sent, received, server_side=True)
    for end in (*ends, ends[0]):
        try:
            end.do_handshake()
        except ssl.SSLCertVerificationError as error:
            log.warning("clients may refuse the certificate of %s: %s", certificate, error.verify_message)
        except ssl.SSLError:
            continue  # it waits for the other end
    return context
