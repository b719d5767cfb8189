"""SMQ without an SDK: one request, and its reply as it came."""

import re
import socket
from typing import NamedTuple
from urllib.parse import urlsplit

from veilmq.testing import RunningServer

VERSION = "x-mns-version: 2015-06-06"
_ELEMENT = r"<{0}>([^<]*)</{0}>"


class Raw(NamedTuple):
    """A reply: its status line and headers byte for byte, and its body."""

    status: int
    head: bytes
    body: str

    @property
    def code(self) -> str:
        """Return the code of the error."""
        return self.text("Code")

    def text(self, name: str) -> str:
        """Return the text of the one element of that name."""
        (text,) = self.texts(name)
        return text

    def texts(self, name: str) -> list[str]:
        """Return the texts of all elements of that name."""
        return re.findall(_ELEMENT.format(name), self.body)


def ask(server: RunningServer, method: str, target: str, body: str = "", *headers: str, host: str = "h:1") -> Raw:
    """Send one request on a connection of its own."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", VERSION, f"Content-Length: {len(body.encode())}", *headers]
    request = "\r\n".join([*lines, "Connection: close", "", body])
    place = urlsplit(server.endpoint)
    with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
        connection.sendall(request.encode())
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, text = answer.partition(b"\r\n\r\n")
    return Raw(int(head.split()[1]), head, text.decode())


def lines(document: str) -> str:
    """Return a reply as the server writes it: each element on a line of its own."""
    return re.sub(r"<(\w+)></\1>|(?<=>)<", lambda tag: f"\n{tag[0]}", document)


def message(body: str, **more: object) -> str:
    """Return the body of a request that sends one message."""
    return f"<Message>{element('MessageBody', body)}{''.join(element(*pair) for pair in more.items())}</Message>"


def element(name: str, text: object) -> str:
    """Return an element whose text needs no escaping."""
    return f"<{name}>{text}</{name}>"
