"""SMQ without an SDK: requests over a socket, and signatures written after the reference, without the server's code."""

import hmac
import re
import socket
from base64 import b64encode
from datetime import UTC, datetime
from email.utils import format_datetime
from hashlib import md5
from typing import NamedTuple
from urllib.parse import urlsplit

from veilmq.testing import RunningServer

VERSION = "x-mns-version: 2015-06-06"
_ELEMENT = r"<{0}>([^<]*)</{0}>"


class SmqReply(NamedTuple):
    """A reply; ``head`` is its status line and headers, byte for byte."""

    status: int
    head: bytes
    body: str

    @property
    def code(self) -> str:
        return self.text("Code")

    def text(self, name: str) -> str:
        (text,) = self.texts(name)
        return text

    def texts(self, name: str) -> list[str]:
        return re.findall(_ELEMENT.format(name), self.body)


def smq_request(
    server: RunningServer, method: str, target: str, body: str = "", *headers: str, host: str = "h:1"
) -> SmqReply:
    """Send one request; ``headers`` are whole lines."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", VERSION, f"Content-Length: {len(body.encode())}", *headers]
    request = "\r\n".join([*lines, "Connection: close", "", body])
    place = urlsplit(server.endpoint)
    with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
        connection.sendall(request.encode())
        reply = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, text = reply.partition(b"\r\n\r\n")
    return SmqReply(int(head.split()[1]), head, text.decode())


def lines(document: str) -> str:
    """Format a reply as the server does: each element on a separate line."""
    return re.sub(r"<(\w+)></\1>|(?<=>)<", lambda tag: f"\n{tag[0]}", document)


def message(body: str, **more: object) -> str:
    return f"<Message>{element('MessageBody', body)}{''.join(element(*pair) for pair in more.items())}</Message>"


def element(name: str, text: object) -> str:
    return f"<{name}>{text}</{name}>"


SECRET = "a secret/of+Alice"
KEY = "AKIDALICE"
NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
NOW_S = NOW.timestamp()
DATE = format_datetime(NOW, usegmt=True)


def signature_v2(method: str, target: str, headers: dict[str, str], *, date: str = DATE, secret: str = SECRET) -> str:
    """Return the signature of version 2; ``target`` is not normalised."""
    lower = {name.lower(): value for name, value in headers.items()}
    own = "".join(f"{name}:{lower[name]}\n" for name in sorted(lower) if name.startswith("x-mns-"))
    parts = [method, lower.get("content-md5", ""), lower.get("content-type", ""), date]
    text = "\n".join(parts) + "\n" + own + target
    return b64encode(hmac.digest(secret.encode(), text.encode(), "sha1")).decode()


def signed_v2(
    method: str = "GET",
    target: str = "/queues/jobs/messages?waitseconds=5",
    *,
    headers: dict[str, str] | None = None,
    key: str = KEY,
    secret: str = SECRET,
    date: str = DATE,
) -> dict[bytes, bytes]:
    sent = {"Host": "queues.example", "Date": date, "x-mns-version": "2015-06-06"} | (headers or {})
    signature = signature_v2(method, target, sent, date=date, secret=secret)
    return as_received(sent | {"Authorization": f"MNS {key}:{signature}"})


def authorization_v4(
    method: str, target: str, headers: dict[str, str], *, now: datetime, key: str, secret: str, private: bool = False
) -> str:
    """Return the Authorization header of version 4; ``target`` must need no escaping."""
    word = "apsara" if private else "aliyun"
    name = "APSARA-MNS4-HMAC-SHA256" if private else "MNS4-HMAC-SHA256"
    scope = [now.strftime("%Y%m%d"), "eu-central-9", "mns", f"{word}_v4_request"]
    derived = f"{word}_v4{secret}".encode()
    for part in scope:
        derived = hmac.digest(derived, part.encode(), "sha256")
    path, _, query = target.partition("?")
    pairs = sorted((name.lower(), value) for name, _, value in (pair.partition("=") for pair in query.split("&")))
    canonical_query = "&".join(f"{name}={value}" if value else name for name, value in pairs)
    lines = sorted(
        f"{name.lower()}:{value}\n"
        for name, value in headers.items()
        if name.lower().startswith("x-mns-") or name.lower() in ("content-type", "content-md5")
    )
    canonical = f"{method}\n{path}\n{canonical_query}\n{''.join(lines)}\n"
    text = f"{name}\n{now.strftime('%Y%m%dT%H%M%SZ')}\n{'/'.join(scope)}\n{canonical}"
    signature = hmac.digest(derived, text.encode(), "sha256").hex()
    return f"{name} Credential={key}/{'/'.join(scope)},Signature={signature}"


def hex_md5(body: bytes) -> str:
    return b64encode(md5(body).hexdigest().encode()).decode()


def as_received(headers: dict[str, str]) -> dict[bytes, bytes]:
    return {name.lower().encode(): value.encode() for name, value in headers.items()}
