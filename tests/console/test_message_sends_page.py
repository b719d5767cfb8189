"""Sending in the console: what was typed arrives as it was typed, and stays in the form where it cannot be taken."""

from base64 import b64encode
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.clients import boto
from tests.console.visitor import Seen, Visitor
from tests.server.keys import OWNER, REGION, SECRETS, client, written
from veilmq.testing import RunningServer

ACCOUNT = "000000000000"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """One server; each test has queues of its own."""
    with RunningServer() as running:
        yield running


def send(visitor: Visitor, queue: str, fields: dict[str, str], account: str = ACCOUNT) -> Seen:
    """Fill in the form and send it."""
    return visitor.post(f"/console/queues/{account}/{queue}/messages/send", **fields)  # type: ignore[arg-type]


def received(server: RunningServer, url: str) -> dict[str, Any]:
    """Return the one message of a queue, as somebody's program gets it."""
    names: dict[str, Any] = {"MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]}
    (message,) = boto.client(server.endpoint).receive_message(QueueUrl=url, **names)["Messages"]
    return dict(message)


def test_a_message_arrives_as_it_was_typed(server: RunningServer, visitor: Visitor) -> None:
    queue = server.queue("plain")
    fields = {
        "body": "\r\nhello <b>\r\n🐘 &amp; ",
        "attribute.0.name": "size",
        "attribute.0.type": "Number.float",
        "attribute.0.value": "1.50",
        "attribute.7.name": "raw",
        "attribute.7.type": "Binary",
        "attribute.7.value": b64encode(b"\0\xff").decode(),
    }
    seen = send(visitor, "plain", fields)
    assert (seen.path, "The message is stored." in seen.text) == (
        f"/console/queues/{ACCOUNT}/plain/messages?done=sent",
        True,
    )
    message = received(server, queue.url)
    assert message["Body"] == "\nhello <b>\n🐘 &amp; "
    assert message["MessageAttributes"] == {
        "size": {"DataType": "Number.float", "StringValue": "1.50"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\0\xff"},
    }


def test_a_delay_delays(server: RunningServer, visitor: Visitor) -> None:
    queue = server.queue("later")
    send(visitor, "later", {"body": "x", "delay": "900"})
    assert queue.counts.delayed == 1


def test_groups_and_ids_go_along(server: RunningServer, visitor: Visitor) -> None:
    fifo, fair = server.queue("groups.fifo"), server.queue("fair")
    for _ in range(2):
        send(visitor, "groups.fifo", {"body": "x", "group": "g", "deduplication_id": "d"})
    send(visitor, "fair", {"body": "x", "group": "tenant", "deduplication_id": ""})
    told = received(server, fifo.url)["Attributes"]
    assert (told["MessageGroupId"], told["MessageDeduplicationId"]) == ("g", "d")
    assert received(server, fair.url)["Attributes"]["MessageGroupId"] == "tenant"


@pytest.mark.parametrize(
    ("queue", "fields", "said"),
    [
        ("refusing", {"body": ""}, "A message has a body"),
        ("refusing", {"body": "x\x0by"}, "Invalid binary character &#39;#xB&#39;"),
        ("refusing", {"body": "é" * 600}, "Message must be shorter than 1024 bytes"),
        ("refusing", {"body": "x", "delay": "901"}, "This must be 0 to 900 seconds."),
        ("refusing", {"body": "x", "delay": "soon"}, "This must be a whole number, 0 to 900 seconds."),
        ("refusing", {"body": "x", "group": "a group"}, "MessageGroupId can only include"),
        ("refusing.fifo", {"body": "x"}, "MessageGroupId"),
        ("refusing.fifo", {"body": "x", "group": "g"}, "ContentBasedDeduplication"),
        ("refusing", {"body": "x", "attribute.1.value": "v"}, "Give it a name, or empty the value."),
        ("refusing", {"body": "x", "attribute.1.name": "AWS.x", "attribute.1.value": "v"}, "reserved for internal use"),
        ("refusing", {"body": "x", "attribute.1.name": "n"}, "must contain a non-empty value"),
        (
            "refusing",
            {"body": "x", "attribute.1.name": "n", "attribute.1.type": "Number", "attribute.1.value": "one"},
            "to a number",
        ),
        (
            "refusing",
            {"body": "x", "attribute.9.name": "n", "attribute.9.type": "Binary", "attribute.9.value": "é"},
            "written in base64",
        ),
        (
            "refusing",
            {"body": "x", "attribute.0.name": "n", "attribute.0.value": "1", "attribute.1.name": "n"},
            "Another row has this name",
        ),
    ],
)
def test_what_cannot_be_sent_stays_in_the_form(
    server: RunningServer, visitor: Visitor, queue: str, fields: dict[str, str], said: str
) -> None:
    there = server.queue(queue, **({} if queue.endswith(".fifo") else {"message_bytes_max": 1024}))
    seen = send(visitor, queue, fields)
    assert seen.status in {400, 422}
    assert said in seen.html
    assert seen.html.count('class="problem"') >= 1
    for value in fields.values():
        assert value in unescape(seen.html)
    assert there.messages() == []


def test_a_form_without_the_token_sends_nothing(server: RunningServer, visitor: Visitor) -> None:
    queue = server.queue("tokenless")
    path = f"/console/queues/{ACCOUNT}/tokenless/messages/send"
    assert (visitor.send(path, {"body": "x"}).status, queue.messages()) == (403, [])


def test_there_is_no_form_of_a_queue_that_is_not_there(visitor: Visitor) -> None:
    assert "No such queue" in visitor.get(f"/console/queues/{ACCOUNT}/nowhere/messages/send").text


def test_whoever_may_not_send_keeps_what_he_typed(tmp_path: Path) -> None:
    with RunningServer(credentials=written(tmp_path / "credentials.toml"), account=OWNER, region=REGION) as running:
        client(running).create_queue(QueueName="theirs")
        with Visitor(running, key=("AKIDFRIEND", SECRETS["AKIDFRIEND"])) as friend:
            seen = send(friend, "theirs", {"body": "long thought"}, account=OWNER)
            assert (seen.status, "long thought" in seen.text) == (403, True)
            assert "not authorized to perform: sqs:sendmessage" in seen.text.lower()
