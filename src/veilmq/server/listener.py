"""Listening sockets: bound before anything is promised, with an error that says what to do."""

import errno
import socket

BACKLOG = 1_024


class BindError(Exception):
    """An address cannot be listened on; ``str()`` says which, why and what to do."""


def bind(host: str, port: int, *, setting: str) -> socket.socket:
    """Return a socket bound to ``host`` and ``port`` (0: any free one); ``setting`` names the port's setting.

    Raises ``BindError``.
    """
    where = f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise BindError(f"Cannot listen on {where}: the host is not known here ({error.strerror}).") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # now, so that a port in use is noticed here
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise BindError(f"Cannot listen on {where}: {_why(error, setting)}") from None
    return listener


def url(listener: socket.socket) -> str:
    """Return the address of ``listener`` as a client writes it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _why(error: OSError, setting: str) -> str:
    flag = "--" + setting.replace("_", "-")
    if error.errno == errno.EADDRINUSE:
        return f"the port is in use; stop the other program, or choose another one with {flag} (0: any free one)."
    if error.errno == errno.EACCES:
        return f"this user may not listen on that port; choose one above 1023 with {flag}."
    if error.errno == errno.EADDRNOTAVAIL:
        return "the address is not one of this machine."
    return f"{error.strerror}."
