"""What the server uses of its process: addresses that it listens on, TLS on both ports, and signals."""

import asyncio
import json
import logging
import os
import signal
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from botocore.exceptions import ConnectionClosedError, SSLError
from cryptography.hazmat.primitives import serialization as pem

from tests.server.keys import REGION, client, written
from veilmq.server import process
from veilmq.server.authentication import secure
from veilmq.server.process import BindError, Tls, TlsError, bind, on_signals
from veilmq.server.settings import ServerSettings
from veilmq.testing import RunningServer

pytestmark = pytest.mark.slow


@contextmanager
def bound(host: str, port: int = 0) -> Iterator[list[socket.socket]]:
    listeners = bind(host, port, setting="port")
    try:
        yield listeners
    finally:
        process.close(listeners)


ADDRESSES = ("127.0.0.1", "127.0.0.2")


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> str:
    """A name with two addresses of this machine and one that is not its own, which no resolver here knows."""
    resolve = socket.getaddrinfo

    def resolved(host: str, *args: Any, **kwargs: Any) -> list[Any]:
        names = (*ADDRESSES, "192.0.2.1") if host == "two.test" else (host,)
        return [place for name in names for place in resolve(name, *args, **kwargs)]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    return "two.test"


def test_a_name_is_listened_on_at_all_its_addresses(two: str) -> None:
    """At one port, which was free at all of them; what is not of this machine is passed over."""
    with bound(two) as listeners:
        places = [each.getsockname() for each in listeners]
        assert tuple(host for host, _ in places) == ADDRESSES
        assert len({port for _, port in places}) == 1


def test_a_server_answers_at_all_addresses_of_its_name(two: str) -> None:
    with RunningServer(host=two, admin_host=two, insecure=True) as server:
        for endpoint in (server.endpoint, server.admin_endpoint):
            port = int(endpoint.rpartition(":")[2])
            for address in ADDRESSES:
                with socket.create_connection((address, port), timeout=60) as client:
                    client.sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
                    assert client.makefile("rb").readline().startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_name_is_not_listened_on_by_half(two: str, address: str) -> None:
    """Where the port is taken at one of the addresses, it is refused at all, and none stays open."""
    with socket.create_server((address, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BindError, match=rf"two.test:{port}: the port is in use"):
            bind(two, port, setting="port")
    with bound(two, port) as listeners:
        assert {each.getsockname()[1] for each in listeners} == {port}


def test_an_address_in_a_url() -> None:
    with bound("127.0.0.1") as (four,):
        assert process.authority(four) == f"127.0.0.1:{four.getsockname()[1]}"
        assert process.is_loopback([four])
    with bound("0.0.0.0") as (everywhere,):
        assert not process.is_loopback([everywhere])


def test_an_unknown_host_is_refused() -> None:
    with pytest.raises(BindError, match="not known here"):
        bind("no.such.host.invalid", 0, setting="port")


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(BindError, match="not one of this machine"):
        bind("192.0.2.1", 0, setting="port")


AUTHORITY = trustme.CA()


class Files:
    """An authority's certificate, and those of the server, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.authority = folder / "authority.pem"
        self.certificate = folder / "certificate.pem"
        self.key = folder / "key.pem"
        AUTHORITY.cert_pem.write_to_path(str(self.authority))
        self.issue("127.0.0.1", "localhost")

    def issue(self, *names: str) -> None:
        issued = AUTHORITY.issue_cert(*names)
        self.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())

    @property
    def settings(self) -> dict[str, Any]:
        return {"tls_certificate": self.certificate, "tls_key": self.key}

    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def server(files: Files, tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION, **files.settings) as running:
        yield running


def place(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition("//")[2].rpartition(":")
    return host, int(port)


@contextmanager
def secured(server: RunningServer | str, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    endpoint = server if isinstance(server, str) else server.endpoint
    with (
        socket.create_connection(place(endpoint), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        yield connection


def serial(server: RunningServer, files: Files) -> int:
    """Return the number of the certificate that new connections see."""
    with secured(server, files.trusting()) as connection:
        found: Any = connection.getpeercert()
        return int(found["serialNumber"], 16)


def test_boto3_speaks_tls(server: RunningServer, files: Files) -> None:
    """Queue URLs begin with https, and a long body arrives whole."""
    sqs = client(server, verify=str(files.authority))
    url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
    assert url.startswith("https://127.0.0.1:")
    sqs.send_message(QueueUrl=url, MessageBody="x" * 1_000_000)
    assert len(sqs.receive_message(QueueUrl=url)["Messages"][0]["Body"]) == 1_000_000


def test_who_does_not_trust_the_authority_does_not_speak(server: RunningServer) -> None:
    with pytest.raises(SSLError):
        client(server).list_queues()


def test_plain_http_is_not_answered(server: RunningServer, files: Files) -> None:
    with pytest.raises(ConnectionClosedError):
        client(server, endpoint_url=server.endpoint.replace("https", "http")).list_queues()
    client(server, verify=str(files.authority)).list_queues()


def test_the_operators_port_speaks_tls_too(server: RunningServer, files: Files) -> None:
    address = f"{server.admin_endpoint}/health/ready"
    assert address.startswith("https://")
    with urllib.request.urlopen(address, timeout=60, context=files.trusting()) as answer:
        assert answer.read() == b"ready\n"


def test_nothing_older_than_tls_1_2(server: RunningServer, files: Files) -> None:
    context = files.trusting()
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError), secured(server, context):
        pass


def test_a_new_certificate_is_for_new_connections(server: RunningServer, files: Files) -> None:
    """A connection that is open goes on; one that comes sees the new one."""
    first = serial(server, files)
    with secured(server, files.trusting()) as connection:
        files.issue("127.0.0.1")
        server.reload()
        assert serial(server, files) != first
        connection.sendall(b"PUT / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 405"


def test_a_broken_certificate_changes_nothing(
    server: RunningServer, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    first = serial(server, files)
    files.certificate.write_text("nonsense", encoding="utf-8")
    with caplog.at_level(logging.ERROR):
        server.reload()
    assert "the certificate stays as it was" in caplog.text
    assert serial(server, files) == first


def test_a_refused_client_reads_why(server: RunningServer, files: Files) -> None:
    """TLS cannot be closed halfway; the reply comes, and then the end."""
    with secured(server, files.trusting()) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 400"


def test_a_waiting_client_may_go(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    """Its end is taken for what it is, without a word in the log, and its long poll takes no message."""
    with RunningServer(**files.settings) as server:
        sqs = client(server, verify=str(files.authority))
        url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
        body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
        with secured(server, files.trusting()) as connection:
            head = "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            sqs.list_queues()
            assert server.parked == 1
            with suppress(ssl.SSLError):  # the answer to the poll, after we have said goodbye
                connection.unwrap()
        sqs.list_queues()
        assert server.parked == 0
        sqs.send_message(QueueUrl=url, MessageBody="x")
        assert len(sqs.receive_message(QueueUrl=url)["Messages"]) == 1
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def refusal(certificate: Path, key: Path) -> str:
    with pytest.raises(TlsError) as caught:
        Tls(certificate, key)
    return str(caught.value)


def test_what_cannot_be_used_is_told_at_the_start(files: Files, tmp_path: Path) -> None:
    """A missing file, a key of another certificate, one with a passphrase, and what is no PEM."""
    missing = tmp_path / "missing.pem"
    assert refusal(missing, files.key) == f"The TLS certificate {missing} cannot be read: No such file or directory."
    assert refusal(files.certificate, missing) == f"The TLS key {missing} cannot be read: No such file or directory."
    other = tmp_path / "other.pem"
    other.write_bytes(AUTHORITY.issue_cert("h").private_key_pem.bytes())
    assert f"The TLS key {other} is not that of the certificate" in refusal(files.certificate, other)
    other.write_text("nonsense", encoding="utf-8")
    assert "is not in PEM" in refusal(other, files.key)
    assert "is not in PEM" in refusal(files.certificate, other)
    with pytest.raises(TlsError):
        RunningServer(tls_certificate=missing, tls_key=files.key).__enter__()


def test_a_key_with_a_passphrase_is_refused(files: Files) -> None:
    key = pem.load_pem_private_key(files.key.read_bytes(), None)
    locked = pem.BestAvailableEncryption(b"passphrase")
    files.key.write_bytes(key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, locked))
    assert refusal(files.certificate, files.key) == f"The TLS key {files.key} needs a passphrase; give one without."


def test_an_idle_connection_does_not_hold_up_the_end(files: Files) -> None:
    with RunningServer(**files.settings) as server, secured(server, files.trusting()) as connection:
        connection.sendall(b"PUT / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 405"
        server.stop()


def test_nor_does_one_of_the_operators_port(files: Files) -> None:
    """Its client says nothing when it is told that the connection ends."""
    with (
        RunningServer(drain_s_max=3_600, **files.settings) as server,
        secured(server.admin_endpoint, files.trusting()) as connection,
    ):
        connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"
        server.stop()


def test_the_signal_reads_everything_again() -> None:
    """Each time, while the context lasts; what was there before is there after."""
    before = signal.getsignal(signal.SIGHUP)
    read: list[str] = []

    async def story() -> None:
        done = asyncio.Event()

        def reload() -> None:
            read.append("a")
            done.set()

        with on_signals({signal.SIGHUP: reload}):
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGHUP)
                await asyncio.wait_for(done.wait(), 10)
                done.clear()

    asyncio.run(story())
    assert read == ["a", "a"]
    assert signal.getsignal(signal.SIGHUP) == before


def test_with_nothing_to_read_it_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        secure(ServerSettings(), wall_s=lambda: 0.0).reload()
    assert "there is nothing to read again" in caplog.text


def test_in_another_thread_there_are_no_signals() -> None:
    """A server inside a program leaves the program's signals alone."""

    async def story() -> None:
        with on_signals({signal.SIGHUP: list}):
            assert signal.getsignal(signal.SIGHUP) == before

    before = signal.getsignal(signal.SIGHUP)
    asyncio.run(asyncio.to_thread(lambda: asyncio.run(story())))
