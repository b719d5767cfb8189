"""A receiver of pushes: an HTTP server that records requests and sends configured replies."""

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
    path: str
    headers: dict[str, str]  # in their order and spelling
    body: str


class Receiver:
    """Records pushes; the next replies have ``status`` and ``headers``, and ``before`` runs before each."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.pushes: list[Push] = []
        self.status = 204
        self.headers: dict[str, str] = {}
        self.before: Callable[[Push], object] = lambda _: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def bodies(self) -> list[str]:
        return [push.body for push in self.pushes]


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

        def log_message(self, *arguments: Any) -> None:
            pass

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


# A topic with push subscriptions.


TOPIC = "/topics/news"
_NEXT_S_MAX = 20
_PUSHES = re.compile(r'^veilmq_pushes_total\{outcome="(\w+)"\} (\d+)\.0$', re.MULTILINE)


def create_topic(server: RunningServer) -> None:
    assert smq_request(server, "PUT", TOPIC).status in (201, 204)


def subscribe(server: RunningServer, name: str, endpoint: str, **more: str) -> SmqReply:
    """Return the reply to Subscribe; `more` has further elements."""
    elements = "".join(element(*pair) for pair in {"Endpoint": endpoint, **more}.items())
    return smq_request(server, "PUT", f"{TOPIC}/subscriptions/{name}", f"<Subscription>{elements}</Subscription>")


def subscribed(server: RunningServer, name: str, endpoint: str, **more: str) -> None:
    create_topic(server)
    reply = subscribe(server, name, endpoint, **more)
    assert reply.status == 201, reply.body


def publish(server: RunningServer, body: str = "hello", tag: str = "") -> str:
    elements = element("MessageBody", body) + (element("MessageTag", tag) if tag else "")
    reply = smq_request(server, "POST", f"{TOPIC}/messages", f"<Message>{elements}</Message>")
    assert reply.status == 201, reply.body
    return reply.text("MessageId")


def waiting(server: RunningServer) -> int:
    return int(smq_request(server, "GET", TOPIC).text("MessageCount"))


def outcomes(server: RunningServer) -> dict[str, int]:
    """Return the number of attempts by outcome."""
    return {outcome: int(count) for outcome, count in _PUSHES.findall(metrics(server)) if count != "0"}


def running(server: RunningServer) -> bool:
    """Return whether a push waits for its reply."""
    return "\nveilmq_pushes_running 0.0\n" not in metrics(server)


def metrics(server: RunningServer) -> str:
    return urllib3.request("GET", f"{server.admin_endpoint}/metrics").data.decode()


def wait_for(server: RunningServer, **wanted: int) -> None:
    """Wait until the outcomes of attempts are exactly these."""
    server.wait_until(lambda: outcomes(server) == wanted)


def next_attempt(server: RunningServer) -> None:
    """Advance the clock by seconds until a push starts, and wait for its end; its timeout is five seconds."""
    before = sum(outcomes(server).values())
    for _ in range(_NEXT_S_MAX):
        server.advance(seconds=1)
        if running(server) or sum(outcomes(server).values()) > before:
            break
    server.wait_until(lambda: sum(outcomes(server).values()) > before)


def verify(push: Push) -> None:
    """Verify the signature of a push with the certificate that it names; raises `InvalidSignature`."""
    certificate = urllib3.request("GET", b64decode(push.headers["x-mns-signing-cert-url"]).decode())
    assert certificate.status == 200
    own = sorted(f"{name.lower()}:{value}" for name, value in push.headers.items() if name.lower().startswith("x-mns-"))
    lines = ["POST", *(push.headers[name] for name in ("Content-md5", "Content-Type", "Date")), *own, push.path]
    key = x509.load_pem_x509_certificate(certificate.data).public_key()
    assert isinstance(key, rsa.RSAPublicKey)
    signature = b64decode(push.headers["Authorization"], validate=True)
    key.verify(signature, "\n".join(lines).encode("latin-1"), padding.PKCS1v15(), hashes.SHA1())
