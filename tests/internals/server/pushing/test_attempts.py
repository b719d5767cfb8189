"""One attempt: which address it goes to, over which TLS, and what becomes of a broken answer."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from tests.server.pushing.receiver import Receiver
from veilmq.core.results import ReceivedMessage
from veilmq.core.topics import Subscription
from veilmq.server.pushes import Attempts, Guard, Resolve
from veilmq.server.setting_kinds import AllowList
from veilmq.testing import VirtualClock

MESSAGE = ReceivedMessage(
    id=b"0123456789abcdef",
    receipt="r",
    body="hello",
    properties=b"",
    sent_at_ms=1,
    first_received_at_ms=1,
    receive_count=1,
    visible_at_ms=1,
    priority=8,
)


class Fickle:
    """A name that leads to one address, and to another one each time after that."""

    def __init__(self) -> None:
        """Nobody has asked."""
        self.asked = 0

    async def __call__(self, name: str, port: int) -> list[str]:
        """Return the next address."""
        self.asked += 1
        return ["127.0.0.1" if self.asked == 1 else "127.0.0.2"]


def attempt(url: str, *, allow: str = "127.0.0.1", resolve: Resolve | None = None) -> str:
    """Return what an attempt says."""

    async def one() -> str:
        attempts = Attempts(
            guard=Guard(AllowList(allow), resolve=resolve),
            sign=lambda text: b"signature",
            certificate_url="http://certificate.example/",
            clock=VirtualClock(),
            wall_s=lambda: 0.0,
        )
        return await attempts.attempt(Subscription(topic="1/t", name="s", endpoint=url, push_url=url), MESSAGE)

    return asyncio.run(one())


def test_the_address_that_was_looked_at_is_connected_to(receiver: Receiver) -> None:
    """A name that leads elsewhere a moment later is asked for once, and is still what the receiver is called."""
    names = Fickle()
    assert attempt(f"http://hook.example:{receiver.port}/in", resolve=names) == ""
    assert names.asked == 1
    assert receiver.pushes[0].headers["Host"] == f"hook.example:{receiver.port}"


def test_the_next_attempt_looks_again(receiver: Receiver) -> None:
    names = Fickle()
    url = f"http://hook.example:{receiver.port}/in"
    assert attempt(url, resolve=names) == ""
    assert "not allowed" in attempt(url, resolve=names)
    assert len(receiver.pushes) == 1


async def also_here(name: str, port: int) -> list[str]:
    """Lead every name to where nobody listens, and to this machine."""
    return ["127.0.0.2", "127.0.0.1"]


def test_the_next_address_is_tried_where_nobody_listens(receiver: Receiver) -> None:
    url = f"http://hook.example:{receiver.port}/in"
    assert attempt(url, allow="127.0.0.0/8", resolve=also_here) == ""
    assert "no connection to 127.0.0.2: " in attempt("http://127.0.0.2:1/", allow="127.0.0.0/8")


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_what_is_accepted(receiver: Receiver, status: int) -> None:
    receiver.status = status
    assert attempt(receiver.url) == ""


@pytest.mark.parametrize("status", [300, 302, 304, 400, 403, 404, 500, 503])
def test_what_is_not(receiver: Receiver, status: int) -> None:
    receiver.status = status
    assert attempt(receiver.url) == f"status {status}"


def test_no_failure_tells_the_url(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    """It may hold a secret, and what failed goes to the log."""

    async def defective(name: str, port: int) -> list[str]:
        raise ZeroDivisionError

    for url in (f"http://127.0.0.2:{receiver.port}/s3cret", "http://127.0.0.1:1/?token=s3cret"):
        assert "127.0.0." in attempt(url)
        assert "s3cret" not in attempt(url)
    assert attempt("http://hook.example/s3cret", resolve=defective) == "a defect of this server"
    assert "a push of s of 1/t failed" in caplog.text
    assert "s3cret" not in caplog.text


# Answers that are none.


@contextmanager
def answering(answer: bytes, *, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Yield the port of a listener that answers one connection with these bytes, and ends it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                connection, _ = listener.accept()
                with connection if context is None else context.wrap_socket(connection, server_side=True) as wrapped:
                    wrapped.recv(65_536)
                    wrapped.sendall(answer)
            except OSError:
                return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
    thread.join(60)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"", "ended without an answer"),
        (b"HTTP/1.1 200 OK\r\n", "ended without an answer"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "the answer is no HTTP"),
        (b"HTTP/1.1 999 What\r\n\r\n", "the answer is no HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, "ended without an answer"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 500\r\n\r\n", "status 500"),
    ],
    ids=["nothing", "half", "other", "status", "endless", "provisional"],
)
def test_an_answer_that_is_none(answer: bytes, told: str) -> None:
    with answering(answer) as port:
        assert told in attempt(f"http://127.0.0.1:{port}/")


def test_a_provisional_answer_is_followed_by_the_one_that_counts() -> None:
    with answering(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 204 \r\n\r\n") as port:
        assert attempt(f"http://127.0.0.1:{port}/") == ""


# TLS.


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ssl.SSLContext]:
    """Return what makes the context of a server of that name, which the system trusts."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))

    def context(name: str) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(made)
        return made

    return context


async def here(name: str, port: int) -> list[str]:
    """Lead every name to this machine."""
    return ["127.0.0.1"]


def test_tls_verifies_the_name_and_not_the_address(trusted: Callable[[str], ssl.SSLContext]) -> None:
    with answering(b"HTTP/1.1 204 No Content\r\n\r\n", context=trusted("hook.example")) as port:
        assert attempt(f"https://hook.example:{port}/", resolve=here) == ""


@pytest.mark.parametrize("name", ["other.example", "127.0.0.1"])
def test_a_certificate_of_another_name_is_refused(trusted: Callable[[str], ssl.SSLContext], name: str) -> None:
    with answering(b"HTTP/1.1 204 No Content\r\n\r\n", context=trusted(name)) as port:
        assert "CERTIFICATE_VERIFY_FAILED" in attempt(f"https://hook.example:{port}/", resolve=here)


def test_a_certificate_of_nobody_is_refused(trusted: Callable[[str], ssl.SSLContext]) -> None:
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("hook.example").configure_cert(stranger)
    with answering(b"HTTP/1.1 204 No Content\r\n\r\n", context=stranger) as port:
        assert "CERTIFICATE_VERIFY_FAILED" in attempt(f"https://hook.example:{port}/", resolve=here)


def test_a_defect_of_ours_is_a_failure_and_in_the_log(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    async def defective(name: str, port: int) -> list[str]:
        raise ZeroDivisionError

    assert attempt("http://hook.example/", resolve=defective) == "a defect of this server"
    assert "ZeroDivisionError" in caplog.text


def test_no_proxy_is_asked(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert attempt(receiver.url) == ""
