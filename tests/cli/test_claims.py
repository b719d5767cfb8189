"""`veilmq claims …` against a real server."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Veilmq
from tests.client.scripted_server import ScriptedServer, reply
from veilmq.client import HttpQueueClient
from veilmq.client.api import Claims
from veilmq.testing import RunningServer


@pytest.fixture
def claims(server: RunningServer, client: HttpQueueClient) -> Iterator[Claims]:
    """A queue of three messages, two of which a source has in two claims."""
    client.create_queue("dead")
    client.create_queue("jobs", {"dead_letter_queue": "dead", "receives_max": 5})
    for body in ("a", "b", "c"):
        client.send("jobs", body)
    with Claims(server.endpoint, "jobs") as connected:
        connected.open("s", consumer="archive")
        for number in (1, 2):
            connected.claim("s", epoch=1, number=number, messages_max=1)
        yield connected


def test_list_tells_sources_and_claims(server: RunningServer, claims: Claims, veilmq: Veilmq) -> None:
    claims.open("t")
    answer = veilmq("claims", "list", "jobs")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == (
        "source        s\n"
        "consumer      archive\n"
        "alive         yes\n"
        "epoch         1\n"
        "acknowledged  0 of 2\n"
        "held until    2023-11-14 23:13:20 UTC\n"
        "claim 1       open, 1 messages since 2023-11-14 22:13:20 UTC\n"
        "claim 2       open, 1 messages since 2023-11-14 22:13:20 UTC\n"
        "\n"
        "source        t\n"
        "consumer      none\n"
        "alive         yes\n"
        "epoch         1\n"
        "acknowledged  0 of 0\n"
        "held until    2023-11-14 23:13:20 UTC\n"
    )
    server.advance(60_000)
    assert "alive         no\n" in veilmq("claims", "list", "jobs").out


def test_list_speaks_json(claims: Claims, veilmq: Veilmq) -> None:
    (source,) = json.loads(veilmq("claims", "list", "jobs", "--json").out)
    assert (source["source"], [claim["state"] for claim in source["claims"]]) == ("s", ["open", "open"])
    assert veilmq("claims", "list", "dead", "--json").out == "[]\n"
    assert veilmq("claims", "list", "dead").out == ""


def test_release_gives_messages_back(client: HttpQueueClient, claims: Claims, veilmq: Veilmq) -> None:
    answer = veilmq("claims", "release", "jobs", "s", "1", "--yes")
    assert (answer.code, answer.out) == (0, "Released claim 1 of s.\n")
    assert client.show("jobs").visible == 2


def test_evict_moves_a_message(client: HttpQueueClient, claims: Claims, veilmq: Veilmq) -> None:
    (batch,) = claims.read("s", number=1)
    message = batch["id"][0].as_py()
    answer = veilmq("claims", "evict", "jobs", "s", "1", message)
    assert (answer.code, answer.out) == (0, f"Evicted {message} from claim 1 of s.\n")
    assert client.receive("dead")[0].id == message


def test_close_forgets_the_source(client: HttpQueueClient, claims: Claims, veilmq: Veilmq) -> None:
    answer = veilmq("claims", "close", "jobs", "s", "--yes")
    assert (answer.code, answer.out) == (0, "Closed s.\n")
    assert claims.sources() == []
    assert client.show("jobs").visible == 3


@pytest.mark.parametrize("command", [("release", "jobs", "s", "1"), ("close", "jobs", "s")], ids=lambda words: words[0])
def test_what_loses_work_asks_first(command: tuple[str, ...], claims: Claims, veilmq: Veilmq) -> None:
    veilmq("claims", *command).fails(2, "--yes")
    assert [claim.state.value for claim in claims.sources()[0].claims] == ["open", "open"]


def test_a_refusal_is_told_with_its_remedy(claims: Claims, veilmq: Veilmq) -> None:
    answer = veilmq("claims", "close", "jobs", "x", "--yes")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == (
        "veilmq: The queue has no source x; open it first. (SourceNotFound) "
        "`veilmq claims list` prints those that there are.\n"
    )
    assert veilmq("claims", "release", "jobs", "s", "9", "--yes").code == 1
    assert "UUID" in veilmq("claims", "evict", "jobs", "s", "1", "x").err


def test_what_was_done_is_told_as_json(claims: Claims, veilmq: Veilmq) -> None:
    released = json.loads(veilmq("claims", "release", "jobs", "s", "1", "--yes", "--json").out)
    assert (released["source"], [claim["state"] for claim in released["claims"]]) == ("s", ["released", "open"])
    (batch,) = claims.read("s", number=2)
    evicted = veilmq("claims", "evict", "jobs", "s", "2", batch["id"][0].as_py(), "--json")
    assert json.loads(evicted.out)["source"] == "s"
    assert json.loads(veilmq("claims", "close", "jobs", "s", "--yes", "--json").out) == {"source": "s", "closed": True}


# ``veilmq events``.


def test_flush_exports_what_there_is(veilmq: Veilmq, tmp_path: Path) -> None:
    with RunningServer(events_to=str(tmp_path)) as server:
        answer = veilmq("events", "flush", "--admin-endpoint", server.admin_endpoint)
        as_json = veilmq("events", "flush", "--json", "--admin-endpoint", server.admin_endpoint)
    assert (answer.code, answer.out) == (0, "Exported 0 events in all; 0 wait, 0 were dropped.\n")
    assert json.loads(as_json.out) == {"exported": 0, "waiting": 0, "dropped": 0}


def test_flush_of_a_server_that_exports_nothing(veilmq: Veilmq) -> None:
    with RunningServer() as server:
        answer = veilmq("events", "flush", "--admin-endpoint", server.admin_endpoint)
    answer.fails(1, "start it with --events-to")


def test_flush_waits_for_one_that_takes_long(veilmq: Veilmq) -> None:
    told = b'{"exported": 7, "waiting": 0, "dropped": 1}'
    with ScriptedServer(reply(202, told), reply(202, told), reply(200, told)) as server:
        answer = veilmq("events", "flush", "--admin-endpoint", server.endpoint)
        assert len(server.requests) == 3
    assert (answer.code, answer.out) == (0, "Exported 7 events in all; 0 wait, 1 were dropped.\n")


def test_flush_without_a_server(veilmq: Veilmq) -> None:
    veilmq("events", "flush", "--admin-endpoint", "http://127.0.0.1:1").fails(1, "No server answers")
    assert veilmq("events", "flush", "--admin-endpoint", "nowhere").code == 2
