"""``veilmq events``."""

from pathlib import Path

from tests.cli.conftest import Veilmq
from tests.client.scripted_server import ScriptedServer, reply
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


def test_flush_waits_for_one_that_takes_long(veilmq: Veilmq) -> None:
    """The server answers meanwhile, again and again."""
    told = b'{"exported": 7, "waiting": 0, "dropped": 1}'
    with ScriptedServer(reply(202, told), reply(202, told), reply(200, told)) as server:
        answer = veilmq("events", "flush", "--admin-endpoint", server.endpoint)
        assert len(server.requests) == 3
    assert (answer.code, answer.out) == (0, "Exported 7 events in all; 0 wait, 1 were dropped.\n")


def test_flush_without_a_server(veilmq: Veilmq) -> None:
    """And with what is no URL."""
    answer = veilmq("events", "flush", "--admin-endpoint", "http://127.0.0.1:1")
    assert (answer.code, "No server answers" in answer.err) == (1, True)
    assert veilmq("events", "flush", "--admin-endpoint", "nowhere").code == 2
