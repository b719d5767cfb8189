"""`veilmq forward` against a real server."""

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, Veilmq, environment
from tests.proofs.forking import Forked
from veilmq.client import ClientError, HttpQueueClient
from veilmq.client.api import Forwards
from veilmq.core.messages import Attribute
from veilmq.testing import RunningServer, SystemClock

RULES = """
default = "rest"

[[rules]]
queue = "video"
attributes.kind = "video"

[queues.video]
visibility_timeout_s = 600
"""
TABLE = {
    "version": 1,
    "attribute": "kind",
    "classes": [
        {"name": "short", "visibility_timeout_s": 20, "queue": "rest"},
        {"name": "long", "visibility_timeout_s": 900, "queue": "video"},
    ],
    "keys": {"video": 1},
    "default": 0,
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    """Run a server on whose clock waits end: a forwarder ends when a receive has waited in vain."""
    with RunningServer(clock=SystemClock()) as running:
        monkeypatch.setenv("VEILMQ_ENDPOINT", running.endpoint)
        yield running


@pytest.fixture
def rules(tmp_path: Path) -> str:
    """A rules file."""
    path = tmp_path / "routes.toml"
    path.write_text(RULES)
    return str(path)


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A routing table that says the same."""
    path = tmp_path / "routing.json"
    path.write_text(json.dumps(TABLE))
    return str(path)


def fill(client: HttpQueueClient) -> None:
    """Make the intake, with three messages."""
    client.create_queue("intake")
    for body, kind in (("a", "video"), ("b", "text"), ("c", "video")):
        client.send("intake", body, attributes={"kind": Attribute("String", kind)})


def bodies(client: HttpQueueClient, queue: str) -> list[str]:
    """Receive all of a queue."""
    return sorted(each.body for each in client.receive(queue, count=10))


@pytest.mark.parametrize("plain", [False, True], ids=["forward", "plain"])
def test_it_forwards_by_rules_and_makes_the_queues(
    client: HttpQueueClient, veilmq: Veilmq, rules: str, *, plain: bool
) -> None:
    fill(client)
    options = ["--plain"] if plain else []
    answer = veilmq("forward", "--from", "intake", "--rules", rules, "--create", "--until-empty", *options)
    assert answer.code == 0
    assert answer.out == "intake: 3 messages forwarded (rest 1, video 2)\n"
    how = "by sending and deleting" if plain else "each message in one transaction"
    assert answer.err == f"rest: created\nvideo: created\nintake: forwarding to rest, video, {how}\n"
    assert (bodies(client, "video"), bodies(client, "rest")) == (["a", "c"], ["b"])
    timeouts = [client.show(queue).settings.visibility_timeout_s for queue in ("video", "rest")]
    assert timeouts == [600, 30]


def test_it_forwards_by_a_table(client: HttpQueueClient, veilmq: Veilmq, table: str) -> None:
    fill(client)
    answer = veilmq("forward", "--from", "intake", "--table", table, "--create", "--until-empty")
    assert answer.out == "intake: 3 messages forwarded (rest 1, video 2)\n"
    assert client.show("video").settings.visibility_timeout_s == 900
    assert bodies(client, "video") == ["a", "c"]


def test_queues_must_be_there(client: HttpQueueClient, veilmq: Veilmq, rules: str) -> None:
    """Nothing is moved before all are; the intake is never made."""
    missing = veilmq("forward", "--from", "intake", "--rules", rules, "--create", "--until-empty")
    assert (missing.code, "QueueDoesNotExist" in missing.err) == (1, True)
    fill(client)
    client.create_queue("rest")
    answer = veilmq("forward", "--from", "intake", "--rules", rules, "--until-empty")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "veilmq: There is no queue video; create it first, or have --create do it.\n"
    assert client.show("intake").visible == 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('default = "rest"\n[[rules]]\nqueue = "video"', "Rule 1 (line 2)"),
        ('default = "intake"', "The intake intake is one of the queues to forward to"),
        ('default = "rest.fifo"', "intake and rest.fifo must both be FIFO queues, or both not."),
        ("\xff", "UTF-8"),
    ],
    ids=["rule", "itself", "type", "encoding"],
)
def test_rules_that_cannot_be_followed_are_told(veilmq: Veilmq, rules: str, text: str, told: str) -> None:
    """Before anything is asked of a server."""
    Path(rules).write_bytes(text.encode("latin-1"))
    answer = veilmq("forward", "--from", "intake", "--rules", rules, "--endpoint", "http://127.0.0.1:1")
    assert answer.code == 2
    assert told.lower() in answer.err.lower().replace("utf-8' codec", "utf-8")


def test_rules_or_a_table_must_be_given(veilmq: Veilmq, rules: str, table: str, tmp_path: Path) -> None:
    neither = veilmq("forward", "--from", "intake")
    both = veilmq("forward", "--from", "intake", "--rules", rules, "--table", table)
    assert (neither.code, both.code) == (2, 2)
    assert "--rules FILE or --table FILE" in neither.err
    gone = veilmq("forward", "--from", "intake", "--rules", str(tmp_path / "none"))
    assert (gone.code, "none" in gone.err) == (2, True)
    bad = veilmq("forward", "--from", "intake", "--table", rules)
    assert (bad.code, "A routing table is JSON" in bad.err) == (2, True)


def test_what_cannot_be_forwarded_stays_and_is_told(client: HttpQueueClient, veilmq: Veilmq, rules: str) -> None:
    fill(client)
    client.create_queue("video", {"message_bytes_max": 1_024})
    client.create_queue("rest")
    client.send("intake", "x" * 2_000, attributes={"kind": Attribute("String", "video")})
    answer = veilmq("forward", "--from", "intake", "--rules", rules, "--until-empty")
    assert answer.code == 0
    assert answer.out == (
        "intake: 3 messages forwarded (rest 1, video 2)\n"
        "intake: 1 attempts failed, and the messages stayed (MessageTooLong 1)\n"
    )
    assert client.show("intake").in_flight == 1


def test_a_server_that_cannot_forward_is_sent_to(
    client: HttpQueueClient, veilmq: Veilmq, rules: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As any other server of SQS: what it answers to an unknown path is no answer of ours."""

    def refuse(self: Forwards, entries: object) -> None:
        raise ClientError("UnexpectedReply", "The answer is not that of a queue server: '<html>'.", 404)

    monkeypatch.setattr(Forwards, "forward", refuse)
    fill(client)
    answer = veilmq("forward", "--from", "intake", "--rules", rules, "--create", "--until-empty")
    assert "by sending and deleting" in answer.err
    assert answer.out == "intake: 3 messages forwarded (rest 1, video 2)\n"


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT], ids=lambda sign: sign.name)
def test_it_goes_on_until_it_is_stopped(
    server: RunningServer, client: HttpQueueClient, rules: str, sign: signal.Signals
) -> None:
    """And then tells what it did; what came while it waited was forwarded at once."""
    fill(client)
    command = [*COMMAND, "forward", "--from", "intake", "--rules", rules, "--create", "--wait", "1"]
    told = {"VEILMQ_ENDPOINT": server.endpoint}
    process = Forked(command, env=environment(**told), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "forwarding to" not in (line := process.stderr.readline()):
        assert line, process.communicate()
    (first,) = client.receive("rest", count=1, wait_s=20)
    client.send("intake", "late")
    (late,) = client.receive("rest", count=1, wait_s=20)
    os.kill(process.pid, sign)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, first.body, late.body) == (0, "b", "late"), err
    assert out == "intake: 4 messages forwarded (rest 2, video 2)\n"


def test_what_it_does_is_told_to_prometheus(server: RunningServer, rules: str) -> None:
    """At the port that it says, as a worker does; the log is for machines where that is asked for."""
    with HttpQueueClient(server.endpoint) as client:
        client.create_queue("intake")
        client.send("intake", "x", attributes={"kind": Attribute(type="String", text="video")})
        arguments = ["--from", "intake", "--rules", rules, "--create", "--wait", "1", "--metrics-port", "0"]
        forwarder = Forked(
            [*COMMAND, "forward", *arguments, "--log", "info", "--log-format", "json"],
            env=environment(VEILMQ_ENDPOINT=server.endpoint),
            stderr=subprocess.PIPE,
            text=True,
        )
        with forwarder:
            assert forwarder.stderr is not None
            line = next(line for line in forwarder.stderr if "metrics at port" in line)
            url = f"http://127.0.0.1:{json.loads(line)['message'].split()[-1]}/metrics"
            expected = 'veilmq_forward_forwarded_total{intake="intake",queue="video",rule="1"} 1.0'
            server.wait_until(lambda: expected in urllib.request.urlopen(url).read().decode())
            forwarder.send_signal(signal.SIGTERM)
        assert forwarder.returncode == 0
