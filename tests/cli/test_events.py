"""``veilmq events``."""

from pathlib import Path

from tests.cli.conftest import Veilmq
from veilmq.testing import RunningServer


def test_flush_exports_what_there_is(veilmq: Veilmq, tmp_path: Path) -> None:
    """And says how much that was."""
    with RunningServer(events_to=str(tmp_path)) as server:
        answer = veilmq("events", "flush", "--admin-endpoint", server.admin_endpoint)
    assert (answer.code, answer.out) == (0, "Exported 0 events in all; 0 wait, 0 were dropped.\n")


def test_flush_of_a_server_that_exports_nothing(veilmq: Veilmq) -> None:
    """Says what the server needs."""
    with RunningServer() as server:
        answer = veilmq("events", "flush", "--admin-endpoint", server.admin_endpoint)
    assert answer.code == 1
    assert "start it with --events-to" in answer.err


def test_flush_without_a_server(veilmq: Veilmq) -> None:
    """And with what is no URL."""
    answer = veilmq("events", "flush", "--admin-endpoint", "http://127.0.0.1:1")
    assert (answer.code, "No server answers" in answer.err) == (1, True)
    assert veilmq("events", "flush", "--admin-endpoint", "nowhere").code == 2
