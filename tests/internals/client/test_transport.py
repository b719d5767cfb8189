"""The transport: signatures, a wrong clock, and the lifetime of connections."""

import gc
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from urllib3 import Timeout
from urllib3.connection import HTTPConnection

from tests.client.scripted_server import ScriptedServer, reply
from tests.server.keys import FRIEND, REGION, SECRETS, TOKEN, written
from veilmq.client import ClientError, HttpQueueClient, SigningKey, Unreachable, transport
from veilmq.client.transport import ServerTime, key_from
from veilmq.core.commands import VisibilityChange
from veilmq.store.clock import wall_s
from veilmq.testing import RunningServer
from veilmq.wire.exchange import AccessKey, caller_named
from veilmq.wire.sqs import signatures
from veilmq.wire.sqs.signatures import Verifier

NOW = datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC)


@pytest.mark.parametrize("path", ["/", "/queues/a b", "/ü%20"])
@pytest.mark.parametrize("token", [None, "a+token="])
def test_signatures_verify(path: str, token: str | None) -> None:
    key = SigningKey(id="AKID", secret="hush", session_token=token, region="eu-west-1")
    headers = key.sign(path, {"Host": "h:1", "Content-Type": "x", "X-Amz-Target": "a.b"}, b"{}", now=NOW)
    known = AccessKey(
        id="AKID", secret=b"hush", session_token=None if token is None else token.encode(), caller=caller_named(FRIEND)
    )
    sent = {name.lower().encode(): value.encode() for name, value in headers.items()}
    verifier = Verifier({"AKID": known}, region="eu-west-1")
    assert verifier.verify(b"POST", path.encode(), sent, b"{}", NOW.timestamp()).account == FRIEND


def test_a_server_with_keys_accepts_only_signed_requests(tmp_path: Path) -> None:
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as server:
        key = SigningKey(id="ASIDBOB", secret=SECRETS["ASIDBOB"], session_token=TOKEN, region=REGION)
        with HttpQueueClient(server.endpoint, key=key) as client:
            assert client.create_queue("jobs") == f"{server.endpoint}/{FRIEND}/jobs"
            client.send("jobs", "hello")
            assert [message.body for message in client.receive("jobs")] == ["hello"]
        with HttpQueueClient(server.endpoint) as client, pytest.raises(ClientError, match="missing Authentication"):
            client.create_queue("jobs")


def test_the_key_is_read_from_the_variables_of_aws_tools() -> None:
    """An id without a secret, or a secret without an id, is ignored."""
    both = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "hush"}
    assert key_from(both) == SigningKey(id="AKID", secret="hush", region="us-east-1")
    more = {"AWS_SESSION_TOKEN": "t", "AWS_DEFAULT_REGION": "eu-west-1"}
    assert key_from(both | more) == SigningKey(id="AKID", secret="hush", session_token="t", region="eu-west-1")
    assert key_from(both | more | {"AWS_REGION": "r"}) == SigningKey(
        id="AKID", secret="hush", session_token="t", region="r"
    )
    assert all(key_from({name: value}) is None for name, value in both.items())
    assert key_from({name: f"{value}\n" for name, value in (both | more).items()}) == key_from(both | more)


def test_a_key_shows_no_secret() -> None:
    assert "hush" not in repr(SigningKey(id="AKID", secret="hush", session_token="hushed"))


@pytest.mark.parametrize("off_s", [-3_600.0, -600.0, 600.0, 3_600.0], ids=lambda off_s: f"{off_s:+g}")
@pytest.mark.parametrize("tolerance_s", [300, 900], ids=["as-amazon", "as-veilmq"])
def test_a_client_with_a_wrong_clock_adjusts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off_s: float, tolerance_s: int
) -> None:
    """To the date of the first error reply; and again after its clock is corrected."""
    monkeypatch.setattr(signatures, "SIGNATURE_SKEW_S", tolerance_s)
    off = [off_s]
    key = SigningKey(id="AKIDOWNER", secret=SECRETS["AKIDOWNER"], region=REGION)
    with (
        RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as server,
        HttpQueueClient(server.endpoint, key=key, wall_s=lambda: wall_s() + off[0]) as client,
    ):
        client.create_queue("jobs")
        client.send("jobs", "hello")
        off[0] = 0.0
        assert [message.body for message in client.receive("jobs")] == ["hello"]


def test_an_error_for_another_reason_is_not_retried(tmp_path: Path) -> None:
    """The date of the reply shows that the clock was right."""
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as server:
        key = SigningKey(id="AKIDOWNER", secret="wrong", region=REGION)
        with HttpQueueClient(server.endpoint, key=key) as client, pytest.raises(ClientError) as caught:
            client.create_queue("jobs")
    assert caught.value.code == "InvalidSignatureException"


def test_a_request_is_signed_again_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the date of the error reply and the rest of the timeout; here 25 s pass."""
    instants_s, totals_s = iter([100.0, 125.0]), list[float]()

    def timeout(total: float | None = None, **phases: float) -> Timeout:
        totals_s.extend([] if total is None else [total])
        return Timeout(total, **phases)

    monkeypatch.setattr(transport, "monotonic", lambda: next(instants_s))
    monkeypatch.setattr(transport, "Timeout", timeout)
    body = b'{"__type": "com.amazon.coral.service#InvalidSignatureException", "message": "Signature expired."}'
    expired = reply(403, body).replace(b"\r\n", b"\r\nDate: Sat, 31 Jan 2026 23:59:59 GMT\r\n", 1)
    key = SigningKey(id="AKID", secret="hush")
    change = VisibilityChange(receipt="r", timeout_s=30)
    with ScriptedServer(expired, expired, expired) as server, HttpQueueClient(server.endpoint, key=key) as client:
        with pytest.raises(ClientError, match="Signature expired"):
            client.change_visibility_batch(f"{server.endpoint}/000000000000/jobs", [change], call_timeout_s=60)
        first, second = server.requests
    assert totals_s == [60, 35]
    assert b"X-Amz-Date: 20260131T235959Z" not in first
    assert b"X-Amz-Date: 20260131T2359" in second or b"X-Amz-Date: 20260201T0000" in second


@pytest.mark.parametrize("date", [
    None, "", "soon", "Sat, 99 Jan 2026 23:59:59 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "Sat, 01 Jan 1600 00:00:00 GMT",
])  # fmt: skip
def test_an_implausible_date_is_ignored(date: str | None) -> None:
    """A clock in the year 9999 could not sign any more."""
    clock = ServerTime(wall_s)
    assert not clock.adjust(date, signed_at_s=0.0)
    assert clock.now_s() == pytest.approx(wall_s(), abs=60)


def test_a_date_without_a_zone_is_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """``-0000`` is no zone; the zone of this machine is not used."""
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        clock = ServerTime(lambda: 0.0)
        assert clock.adjust("Sat, 31 Jan 2026 23:59:59 -0000", signed_at_s=0.0)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert clock.now_s() == NOW.timestamp()


def test_concurrent_requests_refused_for_their_date_are_all_retried() -> None:
    """The first error reply adjusts the clock; the other requests had the wrong date too."""
    clock = ServerTime(lambda: NOW.timestamp() - 600)
    signed_at_s = clock.now_s()
    for _ in range(2):
        assert clock.adjust("Sat, 31 Jan 2026 23:59:59 GMT", signed_at_s=signed_at_s)
        assert clock.now_s() == NOW.timestamp()
    assert not clock.adjust("Sat, 31 Jan 2026 23:59:59 GMT", signed_at_s=clock.now_s())


def test_an_interrupted_program_exits() -> None:
    """A ``KeyboardInterrupt`` leaves no lock locked for which urllib3 waits at the exit."""
    lines = """
import sys
from veilmq.client import HttpQueueClient, Unreachable

def interrupt(frame, event, _):
    if event == "return" and frame.f_code.co_name == "__enter__" and frame.f_globals["__name__"] == "threading":
        sys.setprofile(None)
        raise KeyboardInterrupt

client = HttpQueueClient("http://127.0.0.1:1")
sys.setprofile(interrupt)
try:
    client.list_queues()
except (KeyboardInterrupt, Unreachable):
    pass
"""
    assert subprocess.run([sys.executable, "-c", lines], timeout=60, check=False).returncode == 0


def test_a_forked_process_opens_its_own_connections() -> None:
    """On a shared connection, replies of two processes would be mixed up. The first requests are concurrent."""
    seen: list[tuple[str, int]] = []
    threads, children = 3, 20
    begin = threading.Barrier(threads)

    class KeepAliveHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            seen.append(self.client_address)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.wfile.write(reply(200, b'{"QueueUrl": "http://h/1/q"}').replace(b"Connection: close\r\n", b""))

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), KeepAliveHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with HttpQueueClient(f"http://127.0.0.1:{server.server_port}") as client:
            client.queue_url("q")
            for _ in range(children):
                child = os.fork()
                if not child:
                    try:
                        sys.setswitchinterval(1e-6)
                        with ThreadPoolExecutor(threads) as calls:
                            list(calls.map(lambda _: (begin.wait(), client.queue_url("q")), range(threads)))
                    finally:
                        os._exit(0)
                os.waitpid(child, 0)
            client.queue_url("q")
        server.shutdown()
    assert [at for at, address in enumerate(seen) if address == seen[0]] == [0, len(seen) - 1]
    assert len(seen) == children * threads + 2


def test_hang_up_ends_a_poll_whose_connection_is_being_opened(
    veilmq_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would wait for its full time."""
    opening, hung_up = threading.Event(), threading.Event()
    connect = HTTPConnection.connect

    def slow(connection: HTTPConnection) -> None:
        connect(connection)
        opening.set()
        hung_up.wait()

    with HttpQueueClient(veilmq_server.endpoint) as client, ThreadPoolExecutor(1) as calls:
        url = client.create_queue("orders")
        monkeypatch.setattr(HTTPConnection, "connect", slow)
        poll = calls.submit(client.receive, url, wait_s=20)
        opening.wait()
        client.hang_up()
        hung_up.set()
        with pytest.raises(Unreachable):
            poll.result(30)


def test_hang_up_ends_a_poll_after_close(veilmq_server: RunningServer) -> None:
    with HttpQueueClient(veilmq_server.endpoint) as client, ThreadPoolExecutor(1) as calls:
        poll = calls.submit(client.receive, client.create_queue("orders"), wait_s=20)
        veilmq_server.wait_parked()
        client.close()
        client.hang_up()
        assert poll.result(30) == []


def test_a_garbage_collected_client_closes_its_connections(
    veilmq_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a program that makes a client for each message, and closes none, runs out of file descriptors."""
    sockets = list[socket.socket]()
    connect = HTTPConnection.connect

    def recording_connect(connection: HTTPConnection) -> None:
        connect(connection)
        sockets.append(connection.sock)

    monkeypatch.setattr(HTTPConnection, "connect", recording_connect)
    client = HttpQueueClient(veilmq_server.endpoint)
    url = client.create_queue("orders")
    client.send(url, "x")
    assert client.receive(url, wait_s=20)
    del client
    gc.collect()
    assert [each.fileno() for each in sockets] == [-1, -1]
