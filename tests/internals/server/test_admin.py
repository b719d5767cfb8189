"""Health and metrics, over HTTP."""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from veilmq.server.stores import DRAINING
from veilmq.store.port import FAILED, FULL
from veilmq.testing import RunningServer


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """A server in memory."""
    with RunningServer() as running:
        yield running


def get(server: RunningServer, path: str, **headers: str) -> tuple[int, str]:
    """Return status and text of a page of the operator."""
    asked = urllib.request.Request(server.admin_endpoint.replace("0.0.0.0", "127.0.0.1") + path, headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def ask(server: RunningServer, action: str, **members: object) -> dict[str, object]:
    """Return the reply to an action."""
    wanted = urllib.request.Request(
        server.endpoint,
        json.dumps(members).encode(),
        {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"},
        method="POST",
    )
    with urllib.request.urlopen(wanted, timeout=60) as reply:
        answer: dict[str, object] = json.load(reply)
        return answer


def test_a_running_server_is_live_and_ready(server: RunningServer) -> None:
    """Both say so."""
    assert get(server, "/health/live") == (200, "alive\n")
    assert get(server, "/health/ready") == (200, "ready\n")
    assert get(server, "/nothing")[0] == 404


def test_a_server_that_is_draining_is_not_ready(server: RunningServer) -> None:
    """While somebody is still being served it says so, and is live."""
    host, port = server.endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as sender:
        sender.sendall(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert sender.recv(1_000).startswith(b"HTTP/1.1 100 ")
        server.request_stop()
        told = next(reply for _ in range(1_000) if (reply := get(server, "/health/ready"))[0] != 200)  # it begins soon
        assert told == (503, f"{DRAINING}\n")
        assert get(server, "/health/live")[0] == 200
        sender.sendall(b"{}")
        assert sender.makefile("rb").read().startswith(b"HTTP/1.1 404 ")


def test_a_server_without_room_is_not_ready(tmp_path: Path) -> None:
    """No disk has as much room as this one is told to keep free; the server is live all the same."""
    with RunningServer(data=tmp_path, free_space_reserve_bytes=2**50) as server:
        assert get(server, "/health/ready") == (503, f"{FULL}\n")
        assert get(server, "/health/live")[0] == 200


def test_a_server_whose_store_failed_is_not_ready(monkeypatch: pytest.MonkeyPatch, server: RunningServer) -> None:
    """For the moment that it still lives."""
    monkeypatch.setattr(type(server.bound.engine), "has_failed", True)
    assert get(server, "/health/ready") == (503, f"{FAILED}\n")


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"Sec-Fetch-Site": "cross-site"}, id="cross-site"),
        pytest.param({"Origin": "http://evil.example"}, id="other-origin"),
        pytest.param({"Host": "evil.example"}, id="name-that-was-pointed-at-us"),
        pytest.param({"Host": "evil.example:9325", "Origin": "http://evil.example:9325"}, id="with-its-origin"),
    ],
)
@pytest.mark.parametrize("path", ["/metrics", "/health/ready", "/nothing"])
def test_foreign_web_pages_are_refused(server: RunningServer, headers: dict[str, str], path: str) -> None:
    """A browser shows nothing of the operator's to somebody else's page."""
    assert get(server, path, **headers)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:9325", "127.0.0.1:1", "[::1]:9325"])
def test_addresses_that_nobody_else_can_take_are_served(server: RunningServer, host: str) -> None:
    """Through a forwarded port, for example."""
    assert get(server, "/health/live", Host=host)[0] == 200


def test_a_server_that_others_reach_has_names_that_it_does_not_know() -> None:
    """Behind a service's name, for example; web pages are refused all the same."""
    with RunningServer(admin_host="0.0.0.0", insecure=True) as server:
        assert get(server, "/health/live", Host="veilmq.internal:9325")[0] == 200
        assert get(server, "/health/live", Origin="http://evil.example")[0] == 403


def test_what_the_parser_refuses_is_counted(server: RunningServer) -> None:
    """Under the name of requests that name no action."""
    host, port = server.endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as sender:
        sender.sendall(b"NONSENSE\r\n\r\n")
        assert sender.makefile("rb").readline().startswith(b"HTTP/1.1 400 ")
    assert 'veilmq_requests_total{action="unknown",code="400"} 1.0' in get(server, "/metrics")[1].splitlines()


def test_metrics_count_requests_and_show_queues(server: RunningServer) -> None:
    """Counters by action and code, durations, and each queue's states and the age of its oldest message."""
    url = str(ask(server, "CreateQueue", QueueName="q")["QueueUrl"])
    ask(server, "SendMessage", QueueUrl=url, MessageBody="a")
    ask(server, "SendMessage", QueueUrl=url, MessageBody="b")
    ask(server, "SendMessage", QueueUrl=url, MessageBody="c", DelaySeconds=60)
    ask(server, "ReceiveMessage", QueueUrl=url)
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(server, "Fly")
    refused.value.close()
    server.advance(1_500)
    lines = get(server, "/metrics")[1].splitlines()
    queue = '{queue="000000000000/q"}'
    assert 'veilmq_requests_total{action="SendMessage",code="OK"} 3.0' in lines
    assert 'veilmq_requests_total{action="unknown",code="UnknownOperationException"} 1.0' in lines
    assert 'veilmq_request_duration_seconds_bucket{action="SendMessage",code="OK",le="+Inf"} 3.0' in lines
    assert f"veilmq_queue_messages_visible{queue} 1.0" in lines
    assert f"veilmq_queue_messages_in_flight{queue} 1.0" in lines
    assert f"veilmq_queue_messages_delayed{queue} 1.0" in lines
    assert f"veilmq_queue_oldest_message_age_seconds{queue} 1.5" in lines
    assert "veilmq_queues 1.0" in lines
    assert "veilmq_long_polls_parked 0.0" in lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)


def test_an_empty_queue_has_no_age(server: RunningServer) -> None:
    """Nothing waits, so nothing is old."""
    ask(server, "CreateQueue", QueueName="q")
    server.advance(60_000)
    assert 'veilmq_queue_oldest_message_age_seconds{queue="000000000000/q"} 0.0' in get(server, "/metrics")[1]
