"""Health and metrics, over HTTP."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from veilmq.server.admin import DRAINING, FAILED, FULL
from veilmq.testing import RunningServer


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """A server in memory."""
    with RunningServer() as running:
        yield running


def get(server: RunningServer, path: str) -> tuple[int, str]:
    """Return status and text of a page of the operator."""
    try:
        with urllib.request.urlopen(server.admin_endpoint + path, timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def ask(server: RunningServer, action: str, **members: object) -> dict[str, object]:
    """Return the reply to an action."""
    wanted = urllib.request.Request(
        server.endpoint, json.dumps(members).encode(), {"X-Amz-Target": f"AmazonSQS.{action}"}, method="POST"
    )
    with urllib.request.urlopen(wanted, timeout=10) as reply:
        answer: dict[str, object] = json.load(reply)
        return answer


def test_a_running_server_is_live_and_ready(server: RunningServer) -> None:
    """Both say so."""
    assert get(server, "/health/live") == (200, "alive\n")
    assert get(server, "/health/ready") == (200, "ready\n")
    assert get(server, "/nothing")[0] == 404


@pytest.mark.parametrize(
    ("owner", "attribute", "text"),
    [
        pytest.param("veilmq.server.connections.Connections", "draining", DRAINING, id="draining"),
        pytest.param("veilmq.engines.embedded.EmbeddedEngine", "has_failed", FAILED, id="failed"),
        pytest.param("veilmq.engines.embedded.EmbeddedEngine", "is_short_of_space", FULL, id="full"),
    ],
)
def test_a_server_that_is_not_ready_says_why(
    monkeypatch: pytest.MonkeyPatch, server: RunningServer, owner: str, attribute: str, text: str
) -> None:
    """Each obstacle has its sentence; the server is live all the same."""
    holds = property(lambda _: True, lambda _, __: None)
    monkeypatch.setattr(f"{owner}.{attribute}", holds, raising=False)
    assert get(server, "/health/ready") == (503, f"{text}\n")
    assert get(server, "/health/live")[0] == 200


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
    assert "veilmq_long_polls_parked 0.0" in lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)


def test_an_empty_queue_has_no_age(server: RunningServer) -> None:
    """Nothing waits, so nothing is old."""
    ask(server, "CreateQueue", QueueName="q")
    server.advance(60_000)
    assert 'veilmq_queue_oldest_message_age_seconds{queue="000000000000/q"} 0.0' in get(server, "/metrics")[1]
