"""A topic whose subscriptions are pushed, spoken to as any client does."""

import re
from base64 import b64decode

import urllib3
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.clients.smq.raw import Raw, ask, element
from tests.server.pushing.receiver import Push
from veilmq.testing import RunningServer

TOPIC = "/topics/news"
_NEXT_S_MAX = 20
_PUSHES = re.compile(r'^veilmq_pushes_total\{outcome="(\w+)"\} (\d+)\.0$', re.MULTILINE)


def create_topic(server: RunningServer) -> None:
    """Make the topic, if need be."""
    assert ask(server, "PUT", TOPIC).status in (201, 204)


def subscribe(server: RunningServer, name: str, endpoint: str, **more: str) -> Raw:
    """Return the answer to Subscribe; `more` are other elements."""
    told = "".join(element(*pair) for pair in {"Endpoint": endpoint, **more}.items())
    return ask(server, "PUT", f"{TOPIC}/subscriptions/{name}", f"<Subscription>{told}</Subscription>")


def subscribed(server: RunningServer, name: str, endpoint: str, **more: str) -> None:
    """Subscribe, with the topic made if need be."""
    create_topic(server)
    reply = subscribe(server, name, endpoint, **more)
    assert reply.status == 201, reply.body


def publish(server: RunningServer, body: str = "hello", tag: str = "") -> str:
    """Publish; return the id of the message."""
    told = element("MessageBody", body) + (element("MessageTag", tag) if tag else "")
    reply = ask(server, "POST", f"{TOPIC}/messages", f"<Message>{told}</Message>")
    assert reply.status == 201, reply.body
    return reply.text("MessageId")


def waiting(server: RunningServer) -> int:
    """Return how many messages wait to be pushed."""
    return int(ask(server, "GET", TOPIC).text("MessageCount"))


def outcomes(server: RunningServer) -> dict[str, int]:
    """Return how many attempts ended how."""
    return {outcome: int(count) for outcome, count in _PUSHES.findall(metrics(server)) if count != "0"}


def running(server: RunningServer) -> bool:
    """Return whether any push waits for its answer."""
    return "\nveilmq_pushes_running 0.0\n" not in metrics(server)


def metrics(server: RunningServer) -> str:
    """Return the server's metrics."""
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
