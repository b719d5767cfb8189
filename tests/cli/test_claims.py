"""`veilmq claims …` against a real server."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Veilmq
from tests.client.scripted_server import ScriptedReply, ScriptedServer, reply
from veilmq.client import HttpQueueClient
from veilmq.client.api import Claims
from veilmq.testing import RunningServer


@pytest.fixture
def claims(server: RunningServer, client: HttpQueueClient) -> Iterator[Claims]:
    """A queue of three messages, of which a source holds two in two claims."""
    client.create_queue("dead")
    client.create_queue("jobs", {"dead_letter_queue": "dead", "receives_max": 5})
    for body in ("a", "b", "c"):
        client.send("jobs", body)
    with Claims(server.endpoint, "jobs") as connected:
        connected.open("s", consumer="archive")
        for number in (1, 2):
            connected.claim("s", epoch=1, number=number, messages_max=1)
        yield connected


def test_list_prints_sources_and_claims(server: RunningServer, claims: Claims, veilmq: Veilmq) -> None:
    claims.open("t")
    result = veilmq("claims", "list", "jobs")
    assert (result.code, result.err) == (0, "")
    assert result.out == (
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


def test_list_prints_json(claims: Claims, veilmq: Veilmq) -> None:
    (source,) = json.loads(veilmq("claims", "list", "jobs", "--json").out)
    assert (source["source"], [claim["state"] for claim in source["claims"]]) == ("s", ["open", "open"])
    veilmq("claims", "list", "dead", "--json").prints("[]\n")
    veilmq("claims", "list", "dead").prints("")


def test_release_makes_the_messages_of_a_claim_visible(client: HttpQueueClient, claims: Claims, veilmq: Veilmq) -> None:
    veilmq("claims", "release", "jobs", "s", "1", "--yes").prints("Released claim 1 of s.\n")
    assert client.show("jobs").visible == 2


def test_evict_moves_a_message_to_the_dead_letter_queue(
    client: HttpQueueClient, claims: Claims, veilmq: Veilmq
) -> None:
    (batch,) = claims.read("s", number=1)
    message = batch["id"][0].as_py()
    veilmq("claims", "evict", "jobs", "s", "1", message).prints(f"Evicted {message} from claim 1 of s.\n")
    assert client.receive("dead")[0].id == message


def test_close_deletes_the_source(client: HttpQueueClient, claims: Claims, veilmq: Veilmq) -> None:
    veilmq("claims", "close", "jobs", "s", "--yes").prints("Closed s.\n")
    assert claims.sources() == []
    assert client.show("jobs").visible == 3


@pytest.mark.parametrize("command", [("release", "jobs", "s", "1"), ("close", "jobs", "s")], ids=lambda words: words[0])
def test_release_and_close_require_confirmation(command: tuple[str, ...], claims: Claims, veilmq: Veilmq) -> None:
    veilmq("claims", *command).fails(2, "--yes")
    assert [claim.state.value for claim in claims.sources()[0].claims] == ["open", "open"]


def test_an_error_has_a_remedy(claims: Claims, veilmq: Veilmq) -> None:
    error = "The queue has no source x; open it first. (SourceNotFound) `veilmq claims list` prints the existing ones."
    result = veilmq("claims", "close", "jobs", "x", "--yes")
    assert (result.code, result.out, result.err) == (1, "", f"veilmq: {error}\n")
    assert veilmq("claims", "release", "jobs", "s", "9", "--yes").code == 1
    assert "UUID" in veilmq("claims", "evict", "jobs", "s", "1", "x").err


def test_changes_print_json(claims: Claims, veilmq: Veilmq) -> None:
    released = json.loads(veilmq("claims", "release", "jobs", "s", "1", "--yes", "--json").out)
    assert (released["source"], [claim["state"] for claim in released["claims"]]) == ("s", ["released", "open"])
    (batch,) = claims.read("s", number=2)
    evicted = veilmq("claims", "evict", "jobs", "s", "2", batch["id"][0].as_py(), "--json")
    assert json.loads(evicted.out)["source"] == "s"
    assert json.loads(veilmq("claims", "close", "jobs", "s", "--yes", "--json").out) == {"source": "s", "closed": True}


# ``veilmq events``.


def test_flush_prints_the_counts_of_the_export(veilmq: Veilmq, tmp_path: Path) -> None:
    with RunningServer(events_to=str(tmp_path)) as server:
        flush = ("events", "flush", "--admin-endpoint", server.admin_endpoint)
        veilmq(*flush).prints("Exported 0 events in all; 0 wait, 0 were dropped.\n")
        assert json.loads(veilmq(*flush, "--json").out) == {"exported": 0, "waiting": 0, "dropped": 0}


def test_flush_waits_for_the_end_of_an_export(veilmq: Veilmq) -> None:
    counts = b'{"exported": 7, "waiting": 0, "dropped": 1}'
    with ScriptedServer(reply(202, counts), reply(202, counts), reply(200, counts)) as server:
        result = veilmq("events", "flush", "--admin-endpoint", server.endpoint)
        assert len(server.requests) == 3
    result.prints("Exported 7 events in all; 0 wait, 1 were dropped.\n")


def test_flush_needs_a_server_that_exports_events(server: RunningServer, veilmq: Veilmq) -> None:
    veilmq("events", "flush", "--admin-endpoint", server.admin_endpoint).fails(1, "start it with --events-to")
    veilmq("events", "flush", "--admin-endpoint", "http://127.0.0.1:1").fails(
        1, "No answer from http://127.0.0.1:1: connection refused; --admin-endpoint names"
    )
    assert veilmq("events", "flush", "--admin-endpoint", "nowhere").code == 2


@pytest.mark.parametrize("answer", [reply(200, b"<html>"), reply(200, b"[]"), reply(404, b"<html>")], ids=str)
def test_flush_needs_an_admin_port(answer: ScriptedReply, veilmq: Veilmq) -> None:
    with ScriptedServer(answer) as server:
        result = veilmq("events", "flush", "--admin-endpoint", server.endpoint)
    result.fails(1, "is not the admin port of a veilmq server: it answered")
