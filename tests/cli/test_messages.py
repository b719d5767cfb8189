"""`veilmq send` and `veilmq receive` against a real server."""

import base64
import io
import json
import os
import subprocess
import sys

import pytest

from tests.cli.conftest import COMMAND, Veilmq, environment
from tests.client.scripted_server import ScriptedServer, reply
from tests.proofs.forking import run
from veilmq.client import HttpQueueClient
from veilmq.core.messages import Attribute
from veilmq.testing import RunningServer


@pytest.fixture(autouse=True)
def queue(client: HttpQueueClient) -> None:
    client.create_queue("orders")


def type_in(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


@pytest.mark.parametrize("body", ["hello", "--hello", "-1", "wörld €", '{"a": [1]}', "a\nb"])
def test_the_body_is_sent_as_it_is(body: str, client: HttpQueueClient, veilmq: Veilmq) -> None:
    answer = veilmq("send", "orders", body)
    assert (answer.code, answer.err) == (0, "")
    (message,) = client.receive("orders")
    assert message.body == body
    assert answer.out == f"{message.id}\n"


@pytest.mark.parametrize("arguments", [[], ["-"]], ids=["nothing", "dash"])
def test_the_body_may_come_from_standard_input(
    arguments: list[str], client: HttpQueueClient, veilmq: Veilmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last line's end belongs to the shell, the others to the message."""
    type_in("zwei\nZeilen für\n".encode(), monkeypatch)
    assert veilmq("send", "orders", *arguments).code == 0
    assert client.receive("orders")[0].body == "zwei\nZeilen für"


def test_standard_input_must_be_text(client: HttpQueueClient, veilmq: Veilmq, monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(b"abc\xff", monkeypatch)
    answer = veilmq("send", "orders")
    assert (answer.code, answer.err) == (2, "veilmq: A message is text: standard input is not UTF-8 at byte 3.\n")
    assert client.show("orders").visible == 0


def test_json_has_the_id(client: HttpQueueClient, veilmq: Veilmq) -> None:
    sent = json.loads(veilmq("send", "orders", "hello", "--json").out)
    assert sent == {"id": client.receive("orders")[0].id, "sequence": None}


def test_a_delay_hides_the_message(client: HttpQueueClient, veilmq: Veilmq) -> None:
    veilmq("send", "orders", "later", "--delay", "900")
    status = client.show("orders")
    assert (status.visible, status.delayed) == (0, 1)


def test_attributes_are_text(client: HttpQueueClient, veilmq: Veilmq) -> None:
    veilmq("send", "orders", "hello", "--attribute", "colour=red", "--attribute", "sum=1+1=2")
    assert client.receive("orders")[0].attributes == {
        "colour": Attribute(type="String", text="red"),
        "sum": Attribute(type="String", text="1+1=2"),
    }


def test_a_refusal_of_the_server_is_shown(veilmq: Veilmq) -> None:
    answer = veilmq("send", "orders", "\x01")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.endswith("(InvalidMessageContents)\n")


# `veilmq receive` against a real server.


def test_a_message_is_printed_aligned(client: HttpQueueClient, veilmq: Veilmq) -> None:
    attributes = {"colour": Attribute(type="String", text="red")}
    sent = client.send("orders", "two\nlines", attributes=attributes)
    lines = veilmq("receive", "orders").out.splitlines()
    assert lines.pop(1).startswith("receipt           ")
    assert lines == [
        f"id                {sent.id}",
        "sent              2023-11-14 22:13:20 UTC",
        "first received    2023-11-14 22:13:20 UTC",
        "receive count     1",
        "attribute colour  red (String)",
        "body              two",
        "                  lines",
    ]


def test_messages_are_printed_with_a_line_between(client: HttpQueueClient, veilmq: Veilmq) -> None:
    for body in ("a", "b", "c"):
        client.send("orders", body)
    blocks = veilmq("receive", "orders", "--count", "2").out.split("\n\n")
    assert [block.split()[-1] for block in blocks] == ["a", "b"]


def test_json_is_an_array(server: RunningServer, client: HttpQueueClient, veilmq: Veilmq) -> None:
    sent = client.send("orders", "hello", attributes={"raw": Attribute(type="Binary", data=b"\x00\xff")})
    (message,) = json.loads(veilmq("receive", "orders", "--json").out)
    assert message.pop("receipt")
    assert message == {
        "id": sent.id,
        "body": "hello",
        "attributes": {"raw": {"type": "Binary", "value": base64.b64encode(b"\x00\xff").decode()}},
        "sent_at_ms": server.clock.now_ms(),
        "first_received_at_ms": server.clock.now_ms(),
        "receive_count": 1,
        "group": None,
        "dedup_id": None,
        "sequence": None,
        "source": None,
    }


def test_a_message_of_a_fifo_queue_tells_its_place(client: HttpQueueClient, veilmq: Veilmq) -> None:
    client.create_queue("a.fifo", {"fifo": True})
    sent = json.loads(veilmq("send", "a.fifo", "hello", "--group", "g", "--dedup-id", "d", "--json").out)
    lines = veilmq("receive", "a.fifo").out.splitlines()
    assert "group           g" in lines
    assert "dedup id        d" in lines
    assert f"sequence        {sent['sequence']}" in lines
    empty = veilmq("receive", "orders", "--json")
    assert (empty.code, empty.out, empty.err) == (0, "[]\n", "")


def test_no_message_is_no_error(veilmq: Veilmq) -> None:
    answer = veilmq("receive", "orders")
    assert (answer.code, answer.out, answer.err) == (0, "", "No message.\n")


def test_the_timeout_hides_the_message(server: RunningServer, client: HttpQueueClient, veilmq: Veilmq) -> None:
    client.send("orders", "hello")
    veilmq("receive", "orders", "--timeout", "5")
    server.advance(4_999)
    assert client.receive("orders") == []
    server.advance(1)
    assert client.receive("orders")[0].receive_count == 2


def test_delete_deletes_what_was_printed(client: HttpQueueClient, veilmq: Veilmq) -> None:
    for body in ("a", "b"):
        client.send("orders", body)
    assert "body            a\n" in veilmq("receive", "orders", "--delete").out
    status = client.show("orders")
    assert (status.visible, status.in_flight) == (1, 0)


def test_wait_is_passed_on(server: RunningServer, client: HttpQueueClient, veilmq: Veilmq) -> None:
    """The queue waits 20 s by itself; with --wait 0 the answer comes although the clock stands still."""
    client.set("orders", {"receive_wait_s": 20})
    assert veilmq("receive", "orders", "--wait", "0").err == "No message.\n"
    assert server.parked == 0


def test_a_message_that_nobody_read_is_not_deleted(server: RunningServer, client: HttpQueueClient) -> None:
    """The reader of the output went away before it came: the message comes back after its timeout."""
    client.send("orders", "hello")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as nowhere:
        answer = run(
            [*COMMAND, "receive", "orders", "--delete", "--endpoint", server.endpoint],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=nowhere,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert (answer.returncode, answer.stderr) == (141, b"")
    server.advance(30_000)
    assert client.receive("orders")[0].body == "hello"


def test_a_delete_that_fails_is_an_error(veilmq: Veilmq) -> None:
    system = {"SentTimestamp": "1", "ApproximateFirstReceiveTimestamp": "1", "ApproximateReceiveCount": "1"}
    message = {"MessageId": "a", "ReceiptHandle": "r", "MD5OfBody": "m", "Body": "hello", "Attributes": system}
    failure = {"Id": "0", "SenderFault": False, "Code": "InternalFailure", "Message": "Try again."}
    answers = [{"QueueUrl": "http://h/1/orders"}, {"Messages": [message]}, {"Failed": [failure]}]
    with ScriptedServer(*[reply(200, json.dumps(answer).encode()) for answer in answers]) as scripted:
        answer = veilmq("receive", "orders", "--delete", "--endpoint", scripted.endpoint)
    assert (answer.code, answer.err) == (1, "veilmq: 1 of 1 messages were not deleted: Try again.\n")
    assert "body            hello\n" in answer.out
