"""A real receiver of pushes: an HTTP server that keeps what it gets and answers as it is told."""

import re
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import urllib3
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.clients.smq.raw import SmqReply, element, smq_request
from veilmq.testing import RunningServer


class Push(NamedTuple):
    """A request as it came: ``headers`` in their order and spelling."""

    path: str
    headers: dict[str, str]
    body: str


class Receiver:
    """Keeps pushes; ``answer`` says what the next ones are answered with."""

    def __init__(self, port: int) -> None:
        """`port` is where it listens."""
        self.port = port
        self.pushes: list[Push] = []
        self.status = 204
        self.headers: dict[str, str] = {}
        self.before: Callable[[Push], object] = _at_once

    @property
    def url(self) -> str:
        """Return its URL, without a slash at its end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def bodies(self) -> list[str]:
        return [push.body for push in self.pushes]


def _at_once(push: Push) -> None:
    """Do not wait before the answer."""


@contextmanager
def receiving() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            push = Push(self.path, dict(self.headers.items()), body)
            receiver.pushes.append(push)
            receiver.before(push)
            self.send_response(receiver.status)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *told: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


# A topic whose subscriptions are pushed, spoken to as any client does.


TOPIC = "/topics/news"
_NEXT_S_MAX = 20
_PUSHES = re.compile(r'^veilmq_pushes_total\{outcome="(\w+)"\} (\d+)\.0$', re.MULTILINE)


def create_topic(server: RunningServer) -> None:
    assert smq_request(server, "PUT", TOPIC).status in (201, 204)


def subscribe(server: RunningServer, name: str, endpoint: str, **more: str) -> SmqReply:
    """Return the answer to Subscribe; `more` are other elements."""
    told = "".join(element(*pair) for pair in {"Endpoint": endpoint, **more}.items())
    return smq_request(server, "PUT", f"{TOPIC}/subscriptions/{name}", f"<Subscription>{told}</Subscription>")


def subscribed(server: RunningServer, name: str, endpoint: str, **more: str) -> None:
    create_topic(server)
    reply = subscribe(server, name, endpoint, **more)
    assert reply.status == 201, reply.body


def publish(server: RunningServer, body: str = "hello", tag: str = "") -> str:
    told = element("MessageBody", body) + (element("MessageTag", tag) if tag else "")
    reply = smq_request(server, "POST", f"{TOPIC}/messages", f"<Message>{told}</Message>")
    assert reply.status == 201, reply.body
    return reply.text("MessageId")


def waiting(server: RunningServer) -> int:
    return int(smq_request(server, "GET", TOPIC).text("MessageCount"))


def outcomes(server: RunningServer) -> dict[str, int]:
    """Return how many attempts ended how."""
    return {outcome: int(count) for outcome, count in _PUSHES.findall(metrics(server)) if count != "0"}


def running(server: RunningServer) -> bool:
    """Return whether any push waits for its answer."""
    return "\nveilmq_pushes_running 0.0\n" not in metrics(server)


def metrics(server: RunningServer) -> str:
    return urllib3.request("GET", f"{server.admin_endpoint}/metrics").data.decode()


def wait_for(server: RunningServer, **wanted: int) -> None:
    """Return when attempts have ended so; what is not named has not happened."""
    server.wait_until(lambda: outcomes(server) == wanted)


def next_attempt(server: RunningServer) -> None:
    """Let time pass, second by second, until a push runs, and wait for its end: it has but five seconds."""
    before = sum(outcomes(server).values())
    for _ in range(_NEXT_S_MAX):
        server.advance(seconds=1)
        if running(server) or sum(outcomes(server).values()) > before:
            break
    server.wait_until(lambda: sum(outcomes(server).values()) > before)


def verify(push: Push) -> None:
    """Verify a push as its receiver does, with the certificate that it names; raises `InvalidSignature`."""
    certificate = urllib3.request("GET", b64decode(push.headers["x-mns-signing-cert-url"]).decode())
    assert certificate.status == 200
    own = sorted(f"{name.lower()}:{value}" for name, value in push.headers.items() if name.lower().startswith("x-mns-"))
    lines = ["POST", *(push.headers[name] for name in ("Content-MD5", "Content-Type", "Date")), *own, push.path]
    key = x509.load_pem_x509_certificate(certificate.data).public_key()
    assert isinstance(key, rsa.RSAPublicKey)
    signature = b64decode(push.headers["Authorization"], validate=True)
    key.verify(signature, "\n".join(lines).encode("latin-1"), padding.PKCS1v15(), hashes.SHA1())
