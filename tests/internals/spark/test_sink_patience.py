"""A publication that takes long, and a server that is away now and then: the sink's patience is for each time."""

import json
from typing import Any

import pytest

from tests.client.scripted_server import ScriptedServer, reply
from veilmq.client.messages import ClientError
from veilmq.spark import patience
from veilmq.spark.sink import QueueStreamWriter, Written
from veilmq.spark.sink_options import SinkOptions

AWAY = reply(503, b'{"code": "ShuttingDown", "message": "The server is about to stop."}')


class Watch:
    """A clock that only sleeping moves; it stands for the module ``time``."""

    def __init__(self) -> None:
        """Begin at 0."""
        self.now_s = 0.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.now_s

    def sleep(self, s: float) -> None:
        """Let time pass."""
        self.now_s += s


def told(*, more: bool) -> bytes:
    """Return an answer to `publish`."""
    return reply(200, json.dumps({"messages": 4, "duplicates": 0, "again": False, "more": more}).encode())


def publish(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit a batch."""
    monkeypatch.setattr(patience, "time", Watch())
    queue = f"{server.endpoint}/000000000000/jobs"
    options = SinkOptions.of({"endpoint": server.endpoint, "queue": queue, "patience": "3"})
    written = Written(writer="w", batch=0, attempt="a", partition=0, messages=4)
    QueueStreamWriter(options).commit([written], 0)


def test_a_server_may_restart_more_than_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A batch with a rate takes minutes; each time that the server is away counts by itself."""
    away: list[Any] = [AWAY] * 12  # the client tries three times before the sink counts one
    with ScriptedServer(*away, told(more=True), *away, told(more=True), *away, told(more=False)) as server:
        publish(server, monkeypatch)
        assert len(server.requests) == 3 * 13
    assert "was sent before" not in caplog.text


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    away: list[Any] = [AWAY] * 60
    with ScriptedServer(*away) as server, pytest.raises(ClientError, match="about to stop"):
        publish(server, monkeypatch)
