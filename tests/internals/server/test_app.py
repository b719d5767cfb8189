"""The server as a process: how it begins, what it refuses to begin with, and how it ends."""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tests.clients import boto
from tests.proofs.forking import Forked, run
from veilmq.server.app import StoreFailedError, announce, program_as_started
from veilmq.server.process import BindError
from veilmq.server.settings import ServerSettings, SettingError
from veilmq.server.stores import sqlite_options
from veilmq.store.sqlite.database import FolderError
from veilmq.testing import RunningServer

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
AT_ONCE_S = 25.0  # less than a client has for its request, and than the server has for its clients
MAIN = """
import sys
from pathlib import Path
from veilmq.server.app import run
from veilmq.server.settings import ServerSettings
sys.exit(run(ServerSettings(port=0, admin_port=0, data=Path(sys.argv[1]), drain_s_max=int(sys.argv[2]))))
"""


class Process:
    """A server process; its endpoint is read from what it prints for people."""

    def __init__(self, folder: Path, *, drain_s_max: int = 600) -> None:
        self.popen = Forked(
            [sys.executable, "-c", MAIN, str(folder), str(drain_s_max)],
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
        """Read on in what it prints, to the address of the operator's port."""
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


def logged(stream: IO[str] | None, word: str) -> None:
    assert stream is not None
    for line in stream:
        if word in line:
            return
    pytest.fail(f"the log ended without {word}")


def test_sigterm_answers_who_waits_and_keeps_what_was_acknowledged(process: Process, tmp_path: Path) -> None:
    """A long poll is answered empty, the exit status is 0, and the next start finds the messages."""
    sqs = process.client()
    url = sqs.create_queue(QueueName="q")["QueueUrl"]
    empty = sqs.create_queue(QueueName="empty")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="kept")
    answers: list[Any] = []
    waiter = threading.Thread(
        target=lambda: answers.append(process.client().receive_message(QueueUrl=empty, WaitTimeSeconds=20))
    )
    waiter.start()
    await_parked_poll(process)
    process.popen.send_signal(signal.SIGTERM)
    waiter.join(PATIENCE_S)
    assert [answer.get("Messages", []) for answer in answers] == [[]]
    assert answers[0]["ResponseMetadata"]["HTTPHeaders"]["connection"] == "close"
    assert process.end()[0] == 0
    with RunningServer(data=tmp_path / "data") as again:
        found = boto.client(again.endpoint).receive_message(QueueUrl=url.replace(process.endpoint, again.endpoint))
        assert [message["Body"] for message in found["Messages"]] == ["kept"]


def await_parked_poll(process: Process) -> None:
    """Ask the metrics until a poll is parked; each question is a round trip through the server's loop."""
    address = process.admin_address()
    for _ in range(10_000):
        with socket.create_connection(address, timeout=PATIENCE_S) as asked:
            asked.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            if b"veilmq_long_polls_parked 1.0" in asked.makefile("rb").read():
                return
    pytest.fail("no poll was parked")


def test_a_request_in_the_middle_is_finished_after_sigterm(process: Process) -> None:
    """A client that was sending is read to its end, answered, and told that the connection closes."""
    sqs = process.client()
    url = sqs.create_queue(QueueName="q")["QueueUrl"]
    body = json.dumps({"QueueUrl": url, "MessageBody": "late"}).encode()
    host, port = process.endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as sender:
        head = b"POST / HTTP/1.1\r\nHost: h\r\nX-Amz-Target: AmazonSQS.SendMessage\r\nExpect: 100-continue\r\n"
        sender.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body))
        assert sender.recv(1_000).startswith(b"HTTP/1.1 100 ")  # it has begun to read us
        process.popen.send_signal(signal.SIGTERM)
        logged(process.popen.stderr, "stopping")
        sender.sendall(body)
        reply = sender.makefile("rb").read()
    assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nConnection: close\r\n" in reply
    assert process.end()[0] == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_second_signal_does_not_wait(process: Process, second: signal.Signals) -> None:
    """A client that never finishes its request holds the first signal up, not the second."""
    host, port = process.endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as sender:
        sender.sendall(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
        assert sender.recv(1_000).startswith(b"HTTP/1.1 100 ")
        process.popen.send_signal(signal.SIGTERM)
        logged(process.popen.stderr, "stopping")
        process.popen.send_signal(second)
        assert process.end(within_s=AT_ONCE_S)[0] == 0


def test_draining_ends_when_its_time_is_over(tmp_path: Path) -> None:
    process = Process(tmp_path / "data", drain_s_max=0)
    host, port = process.endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as sender:
        sender.sendall(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
        assert sender.recv(1_000).startswith(b"HTTP/1.1 100 ")
        process.popen.send_signal(signal.SIGTERM)
        assert process.end(within_s=AT_ONCE_S)[0] == 0


def test_a_second_server_on_the_same_folder_is_refused(process: Process, tmp_path: Path) -> None:
    """It ends with a sentence and a status, and the first goes on."""
    words = [sys.executable, "-c", MAIN, str(tmp_path / "data"), "20"]
    second = run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)
    assert second.returncode == 1
    assert second.stderr.startswith("veilmq: ")
    assert second.stderr.count("\n") == 1
    assert str(tmp_path / "data") in second.stderr
    assert process.client().list_queues()["ResponseMetadata"]["HTTPStatusCode"] == 200


def test_the_folder_in_use_is_an_error_of_its_own(tmp_path: Path) -> None:
    with RunningServer(data=tmp_path), pytest.raises(FolderError, match="use"), RunningServer(data=tmp_path):
        pytest.fail("two servers on one folder")


@pytest.mark.parametrize("setting", ["port", "admin_port"])
def test_a_port_in_use_is_refused(setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        number = other.getsockname()[1]
        flag = "--" + setting.replace("_", "-")
        with pytest.raises(BindError, match=rf"127\.0\.0\.1:{number}: the port is in use.*{flag} "):
            RunningServer(**{setting: number}).__enter__()


def test_off_loopback_needs_insecure() -> None:
    """The settings refuse it, so nothing is ever bound; told to, the server listens everywhere."""
    with pytest.raises(SettingError, match="insecure"):
        RunningServer(host="0.0.0.0")
    with RunningServer(host="0.0.0.0", insecure=True) as server:
        port = server.endpoint.rpartition(":")[2]
        assert boto.client(f"http://127.0.0.1:{port}").list_queues()["ResponseMetadata"]["HTTPStatusCode"] == 200


def test_a_failed_store_ends_the_server(tmp_path: Path) -> None:
    """The process must not go on answering; whoever runs it learns why."""
    server = RunningServer(data=tmp_path).__enter__()
    server.fail(OSError("the disk went away"))
    with pytest.raises(StoreFailedError, match="the disk went away"):
        server.stop()


def test_the_announcement_says_how_to_begin() -> None:
    """Endpoint, where messages are kept, and two commands."""
    shown = io.StringIO()
    with RunningServer() as server:
        announce(server.bound, shown)
        text = shown.getvalue()
        assert server.endpoint in text
        assert server.admin_endpoint in text
    assert "in memory only" in text
    assert "veilmq queue create hello" in text
    assert "veilmq send hello" in text


def test_the_announced_commands_are_what_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They can be pasted where the server was started, whether or not the program is on the path."""
    program = tmp_path / "my env" / "bin" / "veilmq"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    module = str(tmp_path / "veilmq" / "__main__.py")
    python = str(program.with_name("python"))
    monkeypatch.chdir(tmp_path)
    assert program_as_started(str(program), python=python) == "'my env/bin/python' -m veilmq"  # cannot be started
    program.chmod(0o755)
    assert program_as_started("my env/bin/veilmq", python=python) == "'my env/bin/veilmq'"
    assert program_as_started(module, python=python) == "'my env/bin/python' -m veilmq"
    monkeypatch.chdir(program.parent.parent)
    assert program_as_started(str(program), python=python) == "bin/veilmq"
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    assert program_as_started(str(program), python=python) == "veilmq"


def test_an_admin_client_that_does_not_read_does_not_hold_up_a_second_signal(process: Process) -> None:
    """The second signal cuts it off; the store is closed properly all the same."""
    address = process.admin_address()
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        reader.settimeout(1)
        reader.connect(address)
        with contextlib.suppress(TimeoutError):  # until the server takes no more
            while True:
                reader.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        process.popen.send_signal(signal.SIGTERM)
        logged(process.popen.stderr, "stopping")
        process.popen.send_signal(signal.SIGTERM)
        status, log = process.end(within_s=AT_ONCE_S)
    assert status == 0
    assert "stopped" in log
    assert "Traceback" not in log


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_queue_urls_have_the_port_where_no_host_is_sent(version: str) -> None:
    """HTTP/1.0 may leave the header out; the URL has to work nevertheless. HTTP/1.1 may not."""
    with RunningServer() as server:
        host, port = server.endpoint.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as asking:
            head = f"POST / HTTP/{version}\r\nX-Amz-Target: AmazonSQS.CreateQueue\r\nContent-Length: 17\r\n\r\n"
            asking.sendall(head.encode() + b'{"QueueName":"q"}')
            asking.shutdown(socket.SHUT_WR)
            reply = asking.makefile("rb").read()
        if version == "1.0":
            assert json.loads(reply.partition(b"\r\n\r\n")[2]) == {"QueueUrl": f"{server.endpoint}/000000000000/q"}
        else:
            assert reply.startswith(b"HTTP/1.1 400 ")


def test_account_and_region_reach_the_replies() -> None:
    with RunningServer(account="123456789012", region="eu-central-1") as server:
        sqs = boto.client(server.endpoint)
        url = sqs.create_queue(QueueName="q")["QueueUrl"]
        assert url == f"{server.endpoint}/123456789012/q"
        attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
        assert attributes == {"QueueArn": "arn:aws:sqs:eu-central-1:123456789012:q"}


def test_settings_of_the_store_reach_it() -> None:
    options = sqlite_options(ServerSettings(free_space_reserve_bytes=7, in_flight_max=8, purge_pause_s=9))
    assert (options.free_space_reserve_bytes, options.in_flight_max, options.purge_pause_s) == (7, 8, 9)
