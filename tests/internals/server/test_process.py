"""The server as a process: listening, TLS, signals, start, and shutdown."""

import asyncio
import contextlib
import gc
import io
import json
import logging
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any, BinaryIO

import pytest
import trustme
from botocore.exceptions import ConnectionClosedError, SSLError
from cryptography.hazmat.primitives import serialization as pem

from tests.clients import boto
from tests.proofs.forking import Forked
from tests.server.http_host import PATIENCE_S, dial
from tests.server.keys import REGION, SECRETS, client, written
from veilmq.cli.command import CommandFailed
from veilmq.cli.connection import post
from veilmq.cli.top import read_queues
from veilmq.client import ClientError, HttpQueueClient, Unreachable
from veilmq.client.transport import SigningKey
from veilmq.server import process as process_module
from veilmq.server.app import StoreFailedError, announce, program_as_started
from veilmq.server.authentication import secure
from veilmq.server.http import Http1Connection
from veilmq.server.long_polling import Poll
from veilmq.server.process import (
    BindError,
    Tls,
    TlsError,
    authority,
    bind,
    close,
    is_loopback,
    on_signals,
    open_file,
)
from veilmq.server.settings import ServerSettings
from veilmq.store.clock import SystemClock
from veilmq.testing import RunningServer

pytestmark = pytest.mark.slow


@contextmanager
def listening(host: str, port: int = 0) -> Iterator[list[socket.socket]]:
    listeners = bind(host, port, setting="port")
    try:
        yield listeners
    finally:
        close(listeners)


ADDRESSES = ("127.0.0.1", "127.0.0.2")


@pytest.fixture
def two_addresses(monkeypatch: pytest.MonkeyPatch) -> str:
    """A host name that resolves to two addresses of this machine and one of another."""
    resolve = socket.getaddrinfo

    def resolved(host: str, *args: Any, **kwargs: Any) -> list[Any]:
        names = (*ADDRESSES, "192.0.2.1") if host == "two.test" else (host,)
        return [address for name in names for address in resolve(name, *args, **kwargs)]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    return "two.test"


def test_bind_listens_on_all_local_addresses_of_a_name(two_addresses: str) -> None:
    """On the same port for all of them."""
    with listening(two_addresses) as listeners:
        names = [each.getsockname() for each in listeners]
        assert tuple(host for host, _ in names) == ADDRESSES
        assert len({port for _, port in names}) == 1


def test_a_server_replies_on_all_addresses_of_its_name(two_addresses: str) -> None:
    with RunningServer(host=two_addresses, admin_host=two_addresses, insecure=True) as server:
        for endpoint in (server.endpoint, server.admin_endpoint):
            port = int(endpoint.rpartition(":")[2])
            for address in ADDRESSES:
                with socket.create_connection((address, port), timeout=60) as client:
                    client.sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
                    assert client.makefile("rb").readline().startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize("address", ADDRESSES)
def test_bind_listens_on_all_addresses_or_none(two_addresses: str, address: str) -> None:
    """If the port is in use on one of them, bind fails and closes the others."""
    with socket.create_server((address, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BindError, match=rf"two.test:{port}: the port is in use"):
            bind(two_addresses, port, setting="port")
    with listening(two_addresses, port) as listeners:
        assert {each.getsockname()[1] for each in listeners} == {port}


def test_authority_and_loopback_of_listeners() -> None:
    with listening("127.0.0.1") as (four,):
        assert authority(four) == f"127.0.0.1:{four.getsockname()[1]}"
        assert is_loopback([four])
    with listening("0.0.0.0") as (everywhere,):
        assert not is_loopback([everywhere])


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_queue_urls_have_the_port_without_a_host_header(version: str) -> None:
    """The header is optional only in HTTP/1.0."""
    with RunningServer() as server:
        with dial(server.endpoint) as connection:
            head = f"POST / HTTP/{version}\r\nX-Amz-Target: AmazonSQS.CreateQueue\r\nContent-Length: 17\r\n\r\n"
            connection.sendall(head.encode() + b'{"QueueName":"q"}')
            connection.shutdown(socket.SHUT_WR)
            reply = connection.makefile("rb").read()
        if version == "1.0":
            assert json.loads(reply.partition(b"\r\n\r\n")[2]) == {"QueueUrl": f"{server.endpoint}/000000000000/q"}
        else:
            assert reply.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("host", ["no.such.host.invalid", "two..dots", "x" * 64])
def test_an_unknown_host_is_refused(host: str) -> None:
    with pytest.raises(BindError, match="is unknown"):
        bind(host, 0, setting="port")


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(BindError, match="not one of this machine"):
        bind("192.0.2.1", 0, setting="port")


AUTHORITY = trustme.CA()
KEY = SigningKey(id="AKIDOWNER", secret=SECRETS["AKIDOWNER"], region=REGION)


class Files:
    """The PEM files of a certificate authority and of the server's certificate and key."""

    def __init__(self, folder: Path) -> None:
        self.authority = folder / "authority.pem"
        self.certificate = folder / "certificate.pem"
        self.key = folder / "key.pem"
        AUTHORITY.cert_pem.write_to_path(str(self.authority))
        self.issue("127.0.0.1", "localhost")

    def issue(self, *names: str, **validity: Any) -> None:
        issued = AUTHORITY.issue_cert(*names, **validity)
        self.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())

    @property
    def settings(self) -> dict[str, Any]:
        return {"tls_certificate": self.certificate, "tls_key": self.key}

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def server(files: Files, tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION, **files.settings) as running:
        yield running


@contextmanager
def tls_connection(server: RunningServer | str, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    endpoint = server if isinstance(server, str) else server.endpoint
    with dial(endpoint) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
        yield connection


def serial(server: RunningServer, files: Files) -> int:
    """Return the serial number of the certificate that the server uses for a new connection."""
    with tls_connection(server, files.client_context()) as connection:
        found: Any = connection.getpeercert()
        return int(found["serialNumber"], 16)


def test_boto3_over_tls(server: RunningServer, files: Files) -> None:
    """Queue URLs begin with https, and a large body arrives complete."""
    sqs = client(server, verify=str(files.authority))
    url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
    assert url.startswith("https://127.0.0.1:")
    sqs.send_message(QueueUrl=url, MessageBody="x" * 1_000_000)
    assert len(sqs.receive_message(QueueUrl=url)["Messages"][0]["Body"]) == 1_000_000


def test_a_client_without_the_authority_is_refused(
    server: RunningServer, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of veilmq's own client names the variable that adds the authority."""
    with pytest.raises(SSLError):
        client(server).list_queues()
    with pytest.raises(Unreachable, match=r"certificate is not trusted \(.*\); AWS_CA_BUNDLE can name"):
        HttpQueueClient(server.endpoint).list_queues()
    monkeypatch.setenv("AWS_CA_BUNDLE", str(files.authority))
    with pytest.raises(ClientError, match="missing Authentication"):
        HttpQueueClient(server.endpoint).list_queues()
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nowhere")
    with pytest.raises(Unreachable, match="AWS_CA_BUNDLE does not name a file"):
        HttpQueueClient(server.endpoint).list_queues()


def test_plain_http_on_a_tls_port_gets_no_reply(server: RunningServer, files: Files) -> None:
    with pytest.raises(ConnectionClosedError):
        client(server, endpoint_url=server.endpoint.replace("https", "http")).list_queues()
    client(server, verify=str(files.authority)).list_queues()


def test_commands_trust_the_authority_of_the_admin_port(
    server: RunningServer, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CommandFailed, match=r"certificate is not trusted \(.*\); AWS_CA_BUNDLE can name"):
        post(server.admin_endpoint, "/api/clock/trust")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(files.authority))
    assert post(server.admin_endpoint, "/api/clock/trust").status == 401
    with HttpQueueClient(server.endpoint, key=KEY) as queues:
        queues.create_queue("work")
        rows, _ = read_queues(queues, prefix="", admin=server.admin_endpoint)
    assert [row.oldest_s for row in rows] == [0.0]


@pytest.mark.parametrize("port", ["endpoint", "admin_endpoint"])
def test_a_handshake_that_stalls_is_cut_off(monkeypatch: pytest.MonkeyPatch, files: Files, port: str) -> None:
    monkeypatch.setattr("veilmq.server.process.HANDSHAKE_S_MAX", 0.1)
    with RunningServer(**files.settings) as server, dial(getattr(server, port)) as client:
        client.settimeout(30)  # half of the event loop's own limit
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""


def test_tls_1_1_is_refused(server: RunningServer, files: Files) -> None:
    context = files.client_context()
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError), tls_connection(server, context):
        pass


@pytest.mark.parametrize("port", ["endpoint", "admin_endpoint"])
def test_clients_that_offer_http_2_get_http_1_1(port: str, server: RunningServer, files: Files) -> None:
    context = files.client_context()
    context.set_alpn_protocols(["h2", "http/1.1"])
    with tls_connection(getattr(server, port), context) as connection:
        assert connection.selected_alpn_protocol() == "http/1.1"


def test_a_client_may_send_any_server_name(server: RunningServer, files: Files) -> None:
    """A name that is not ASCII logged a traceback and ended the handshake."""
    sent = ssl.MemoryBIO()
    client = files.client_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    with dial(server.endpoint) as connection:
        connection.sendall(sent.read().replace(b"localhost", b"local\xe7ost"))
        assert connection.recv(1) == b"\x16"  # a handshake record, not an alert


def test_a_reloaded_certificate_is_used_for_new_connections(server: RunningServer, files: Files) -> None:
    first = serial(server, files)
    with tls_connection(server, files.client_context()) as connection:
        files.issue("127.0.0.1")
        server.reload()
        assert serial(server, files) != first
        connection.sendall(b"PUT / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 405"


def test_reloading_a_broken_certificate_keeps_the_old_one(
    server: RunningServer, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    first = serial(server, files)
    files.certificate.write_text("nonsense", encoding="utf-8")
    with caplog.at_level(logging.ERROR):
        server.reload()
    assert "the certificate was not reloaded" in caplog.text
    assert serial(server, files) == first


def test_a_certificate_removed_during_the_reload_keeps_the_old_one(
    server: RunningServer, files: Files, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removed after it was opened and before it is loaded."""
    first = serial(server, files)

    def remove_opened(path: Path) -> BinaryIO:
        file = open_file(path)
        files.certificate.unlink(missing_ok=True)
        return file

    monkeypatch.setattr(process_module, "open_file", remove_opened)
    with caplog.at_level(logging.ERROR):
        server.reload()
    assert "the certificate was not reloaded" in caplog.text
    assert "cannot be read: No such file or directory" in caplog.text
    assert serial(server, files) == first


def test_a_bad_request_over_tls_gets_a_reply(server: RunningServer, files: Files) -> None:
    """Before the connection is closed, as TLS has no half-close."""
    with tls_connection(server, files.client_context()) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 400"


def test_a_tls_client_may_leave_during_a_long_poll(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is logged, and the poll takes no message."""
    with RunningServer(**files.settings) as server:
        sqs = client(server, verify=str(files.authority))
        url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
        body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
        with tls_connection(server, files.client_context()) as connection:
            head = "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            sqs.list_queues()
            assert server.parked == 1
            with suppress(ssl.SSLError):  # the poll's reply, after the close_notify
                connection.unwrap()
        sqs.list_queues()
        assert server.parked == 0
        sqs.send_message(QueueUrl=url, MessageBody="x")
        assert len(sqs.receive_message(QueueUrl=url)["Messages"]) == 1
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_ended_connections_and_long_polls_are_freed_at_once(files: Files) -> None:
    """Without reference cycles, since garbage collection is rare and a TLS connection has some 20 KB."""

    def remaining() -> list[object]:
        return [each for each in gc.get_objects() if type(each) in (Http1Connection, Poll) and id(each) not in before]

    with RunningServer(clock=SystemClock(), **files.settings) as server:
        url = server.queue("jobs").url
        body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
        head = "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
        gc.collect()
        before = {id(each) for each in gc.get_objects()}  # servers of other tests may still be running
        gc.disable()
        try:
            with tls_connection(server, files.client_context()) as connection:
                connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                server.wait_parked()
                assert len(remaining()) == 2
            server.wait_until(lambda: not remaining())
        finally:
            gc.enable()


def refusal(certificate: Path, key: Path) -> str:
    with pytest.raises(TlsError) as caught:
        Tls(certificate, key)
    return str(caught.value)


def test_unusable_tls_files_are_an_error_at_the_start(files: Files, tmp_path: Path) -> None:
    """A missing file, the key of another certificate, a pipe, and text that is not PEM."""
    missing = tmp_path / "missing.pem"
    assert refusal(missing, files.key) == f"The TLS certificate {missing} cannot be read: No such file or directory."
    assert refusal(files.certificate, missing) == f"The TLS key {missing} cannot be read: No such file or directory."
    other = tmp_path / "other.pem"
    other.write_bytes(AUTHORITY.issue_cert("h").private_key_pem.bytes())
    assert f"The TLS key {other} is not that of the certificate" in refusal(files.certificate, other)
    os.mkfifo(pipe := tmp_path / "pipe")
    assert refusal(pipe, files.key) == f"The TLS certificate {pipe} cannot be read: it is no file."
    assert refusal(files.certificate, pipe) == f"The TLS key {pipe} cannot be read: it is no file."
    other.write_text("nonsense", encoding="utf-8")
    assert "is unusable or not in PEM" in refusal(other, files.key)
    assert "is unusable or not in PEM" in refusal(files.certificate, other)
    with pytest.raises(TlsError):
        RunningServer(tls_certificate=missing, tls_key=files.key).__enter__()


NOW = datetime.now(UTC)


@pytest.mark.parametrize(
    ("validity", "problem"),
    [
        ({"not_after": NOW - timedelta(days=1)}, "certificate has expired"),
        ({"not_before": NOW + timedelta(days=1)}, "certificate is not yet valid"),
    ],
)
def test_a_certificate_that_is_not_valid_now_is_logged(
    files: Files, caplog: pytest.LogCaptureFixture, validity: dict[str, datetime], problem: str
) -> None:
    tls = Tls(files.certificate, files.key)
    files.issue("127.0.0.1", **validity)
    assert caplog.messages == []
    tls.reload()
    assert f"clients may refuse the certificate of {files.certificate}: {problem}" in caplog.messages


def test_a_key_with_a_passphrase_is_refused(files: Files) -> None:
    key = pem.load_pem_private_key(files.key.read_bytes(), None)
    locked = pem.BestAvailableEncryption(b"passphrase")
    files.key.write_bytes(key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, locked))
    assert refusal(files.certificate, files.key) == f"The TLS key {files.key} needs a passphrase; give one without."


@pytest.mark.parametrize("port", ["endpoint", "admin_endpoint"])
def test_an_idle_connection_does_not_delay_shutdown(files: Files, port: str) -> None:
    """Even if its client does not reply to the closing of TLS."""
    with (
        RunningServer(drain_s_max=3_600, **files.settings) as server,
        tls_connection(getattr(server, port), files.client_context()) as connection,
    ):
        connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert connection.recv(9) == b"HTTP/1.1 "
        server.stop()


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN], ids=["default", "ignored, as by nohup"])
def test_sighup_calls_the_handler_each_time(before: signal.Handlers) -> None:
    """The previous handler is restored afterwards."""
    usual = signal.signal(signal.SIGHUP, before)
    calls: list[str] = []

    async def signal_twice() -> None:
        done = asyncio.Event()

        def reload() -> None:
            calls.append("a")
            done.set()

        with on_signals({signal.SIGHUP: reload}):
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGHUP)
                await asyncio.wait_for(done.wait(), PATIENCE_S)
                done.clear()

    try:
        asyncio.run(signal_twice())
        after = signal.getsignal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, usual)
    assert (calls, after) == (["a", "a"], before)


def test_a_reload_without_files_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        secure(ServerSettings(), wall_s=lambda: 0.0).reload()
    assert "nothing to reload" in caplog.text


def test_signal_handlers_are_not_set_outside_the_main_thread() -> None:
    async def check() -> None:
        with on_signals({signal.SIGHUP: list}):
            assert signal.getsignal(signal.SIGHUP) == before

    before = signal.getsignal(signal.SIGHUP)
    asyncio.run(asyncio.to_thread(lambda: asyncio.run(check())))


# The server as a process of its own.

AT_ONCE_S = 25.0  # less than the timeouts of requests and of draining
MAIN = """
import sys
from pathlib import Path
from veilmq.server import process as process_module
from veilmq.server.app import run
from veilmq.server.settings import ServerSettings
sys.exit(run(ServerSettings(port=0, admin_port=0, data=Path(sys.argv[1]), drain_s_max=int(sys.argv[2]))))
"""


class Process:
    """A server process, with the endpoint that it prints."""

    def __init__(self, folder: Path, *, drain_s_max: int = 600, main: str = MAIN) -> None:
        self.popen = Forked(
            [sys.executable, "-c", main, str(folder), str(drain_s_max)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert self.popen.stdout is not None
        first = self.popen.stdout.readline()
        assert "serves Amazon SQS and Alibaba Cloud SMQ at http://" in first, first
        self.endpoint = first.split()[-1]

    def admin_address(self) -> tuple[str, int]:
        """Read the output up to the address of the admin port."""
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if "health and metrics" in line:
                host, port = line.split("http://")[1].strip().split(":")
                return host, int(port)
        pytest.fail("no address was printed")

    def client(self) -> Any:
        return boto.client(self.endpoint)

    def end(self, *, within_s: float = PATIENCE_S) -> tuple[int, str]:
        _, log = self.popen.communicate(timeout=within_s)
        return self.popen.returncode, log


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    started = Process(tmp_path / "data")
    yield started
    started.popen.kill()
    started.end()


def wait_for_log(stream: IO[str] | None, word: str) -> None:
    assert stream is not None
    for line in stream:
        if word in line:
            return
    pytest.fail(f"the log ended without {word}")


def test_sigterm_replies_to_long_polls_and_keeps_messages(process: Process, tmp_path: Path) -> None:
    """The reply is empty, the exit status is 0, and the next start has the messages."""
    sqs = process.client()
    url = sqs.create_queue(QueueName="q")["QueueUrl"]
    empty = sqs.create_queue(QueueName="empty")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="kept")
    replies: list[Any] = []
    waiter = threading.Thread(
        target=lambda: replies.append(process.client().receive_message(QueueUrl=empty, WaitTimeSeconds=20))
    )
    waiter.start()
    await_parked_poll(process)
    process.popen.send_signal(signal.SIGTERM)
    waiter.join(PATIENCE_S)
    assert [reply.get("Messages", []) for reply in replies] == [[]]
    assert replies[0]["ResponseMetadata"]["HTTPHeaders"]["connection"] == "close"
    assert process.end()[0] == 0
    with RunningServer(data=tmp_path / "data") as again:
        found = boto.client(again.endpoint).receive_message(QueueUrl=url.replace(process.endpoint, again.endpoint))
        assert [message["Body"] for message in found["Messages"]] == ["kept"]


def await_parked_poll(process: Process) -> None:
    """Poll the metrics until a poll is parked; each request is a round trip through the server's event loop."""
    address = process.admin_address()
    for _ in range(10_000):
        with socket.create_connection(address, timeout=PATIENCE_S) as connection:
            connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            if b"veilmq_long_polls_parked 1.0" in connection.makefile("rb").read():
                return
    pytest.fail("no poll was parked")


def test_a_busy_server_queues_a_burst_of_connections(process: Process) -> None:
    """With a short backlog in the kernel, connections would be retried a second later."""
    with ExitStack() as clients:
        process.popen.send_signal(signal.SIGSTOP)
        clients.callback(process.popen.send_signal, signal.SIGCONT)
        host, port = process.endpoint.removeprefix("http://").split(":")
        for _ in range(500):
            clients.enter_context(socket.create_connection((host, int(port)), timeout=5))


def test_the_limit_of_open_files_is_raised(tmp_path: Path) -> None:
    """From the soft limit, which is low for programs that use select(), to the hard limit."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (128, 4_096))"
    process = Process(tmp_path / "data", main=limit + MAIN)
    with ExitStack() as clients:
        clients.callback(process.end)
        clients.callback(process.popen.kill)
        for _ in range(200):
            client = clients.enter_context(dial(process.endpoint))
            client.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            assert client.recv(9) == b"HTTP/1.1 "


def test_a_request_is_completed_after_sigterm(process: Process) -> None:
    """The rest of its body is read, and its reply has "Connection: close"."""
    sqs = process.client()
    url = sqs.create_queue(QueueName="q")["QueueUrl"]
    body = json.dumps({"QueueUrl": url, "MessageBody": "late"}).encode()
    with dial(process.endpoint) as sender:
        head = b"POST / HTTP/1.1\r\nHost: h\r\nX-Amz-Target: AmazonSQS.SendMessage\r\nExpect: 100-continue\r\n"
        sender.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body))
        assert sender.recv(1_000).startswith(b"HTTP/1.1 100 ")  # the server has begun to read
        process.popen.send_signal(signal.SIGTERM)
        wait_for_log(process.popen.stderr, "stopping")
        sender.sendall(body)
        reply = sender.makefile("rb").read()
    assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nConnection: close\r\n" in reply
    assert process.end()[0] == 0


@pytest.mark.parametrize(("second", "drain_s_max"), [(signal.SIGTERM, 600), (signal.SIGINT, 600), (None, 0)])
def test_draining_ends_at_a_second_signal_or_its_time_limit(
    tmp_path: Path, second: signal.Signals | None, drain_s_max: int
) -> None:
    """Here the client never completes its request."""
    process = Process(tmp_path / "data", drain_s_max=drain_s_max)
    with dial(process.endpoint) as sender:
        sender.sendall(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
        assert sender.recv(1_000).startswith(b"HTTP/1.1 100 ")
        process.popen.send_signal(signal.SIGTERM)
        if second is not None:
            wait_for_log(process.popen.stderr, "stopping")
            process.popen.send_signal(second)
        assert process.end(within_s=AT_ONCE_S)[0] == 0


def test_a_signal_ends_the_start() -> None:
    """Here the database never replies; the server would give up later, with an error."""
    with socket.create_server(("127.0.0.1", 0)) as database:
        url = f"postgresql://{authority(database)}/queues"
        main = MAIN.replace("data=Path(sys.argv[1])", "store=sys.argv[1]")
        server = Forked([sys.executable, "-c", main, url, "600"], stderr=subprocess.PIPE, text=True)
        with database.accept()[0] as connection:
            connection.recv(1)
            server.send_signal(signal.SIGTERM)
            assert (server.communicate(timeout=PATIENCE_S)[1], server.returncode) == ("", 0)


@pytest.mark.parametrize("setting", ["port", "admin_port"])
def test_a_port_in_use_is_refused(setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        number = other.getsockname()[1]
        flag = "--" + setting.replace("_", "-")
        with pytest.raises(BindError, match=rf"127\.0\.0\.1:{number}: the port is in use.*{flag} "):
            RunningServer(**{setting: number}).__enter__()


def test_a_failed_store_stops_the_server_with_an_error(tmp_path: Path) -> None:
    server = RunningServer(data=tmp_path).__enter__()
    server.fail(OSError("the disk went away"))
    with pytest.raises(StoreFailedError, match="the disk went away"):
        server.stop()


def test_the_announcement_shows_endpoints_and_first_commands() -> None:
    output = io.StringIO()
    with RunningServer() as server:
        announce(server.bound, output)
        text = output.getvalue()
        assert server.endpoint in text
        assert server.admin_endpoint in text
    assert "in memory only" in text
    assert "the console, health and metrics are at" in text
    assert "veilmq queue create hello" in text
    assert "veilmq send hello" in text


def test_a_console_that_is_not_installed_is_not_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    monkeypatch.setattr("veilmq.server.app.find_spec", lambda _name: None)
    with RunningServer() as server:
        announce(server.bound, output)
        assert f"  health and metrics are at {server.admin_endpoint} (for the console: pip" in output.getvalue()


def test_announced_commands_run_the_started_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They can be pasted into the same shell, whether or not the program is in the PATH."""
    program = tmp_path / "my env" / "bin" / "veilmq"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    module = str(tmp_path / "veilmq" / "__main__.py")
    python = str(program.with_name("python"))
    monkeypatch.chdir(tmp_path)
    assert program_as_started(str(program), python=python) == f"'{python}' -m veilmq"  # cannot be started
    program.chmod(0o755)
    assert program_as_started("my env/bin/veilmq", python=python) == "'my env/bin/veilmq'"
    assert program_as_started(module, python="python3") == "python3 -m veilmq"
    assert program_as_started(str(program), python=python) == f"'{program}'"
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    assert program_as_started(str(program), python=python) == "veilmq"


def test_a_second_signal_closes_an_admin_client_that_does_not_read(process: Process) -> None:
    """The store is closed properly nevertheless."""
    address = process.admin_address()
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        reader.settimeout(1)
        reader.connect(address)
        with contextlib.suppress(TimeoutError):  # until the server stops reading
            while True:
                reader.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        process.popen.send_signal(signal.SIGTERM)
        wait_for_log(process.popen.stderr, "stopping")
        process.popen.send_signal(signal.SIGTERM)
        status, log = process.end(within_s=AT_ONCE_S)
    assert status == 0
    assert "stopped" in log
    assert "Traceback" not in log
