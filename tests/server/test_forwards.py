"""Forwards through a server: what the client makes of them, who is woken, and who may."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.server.keys import FRIEND, OWNER, REGION, SECRETS, client, set_policy, statement, written
from veilmq.client import ClientError, HttpQueueClient
from veilmq.client.api import Forwards
from veilmq.client.transport import SigningKey
from veilmq.core.messages import Attribute
from veilmq.testing import RunningServer
from veilmq.wire.v1.publications import ForwardedEntry


@pytest.fixture(params=["memory", "postgres"])
def server(request: pytest.FixtureRequest, place: Callable[[str], dict[str, Any]]) -> Iterator[RunningServer]:
    """A server with an intake and a target."""
    with RunningServer(**place(request.param)) as running, HttpQueueClient(running.endpoint) as queue:
        queue.create_queue("jobs")
        queue.create_queue("fast")
        yield running


def test_a_message_arrives_with_its_id_and_its_attributes(server: RunningServer) -> None:
    with HttpQueueClient(server.endpoint) as queue, Forwards(server.endpoint, "jobs") as jobs:
        attributes = {"kind": Attribute("String", "x"), "raw": Attribute("Binary", data=b"\x00")}
        sent = queue.send("jobs", "a", attributes=attributes, group="tenant")
        (message,) = queue.receive("jobs")
        assert jobs.forward([(message.receipt, "fast")]) == [ForwardedEntry(id=sent.id)]
        (got,) = queue.receive("fast")
        assert (got.id, got.body, got.attributes, got.group) == (sent.id, "a", attributes, "tenant")
        assert queue.receive("jobs") == []
        (again,) = jobs.forward([(message.receipt, "fast")])
        assert isinstance(again, ClientError)
        assert (again.code, again.status, again.fields["state"]) == ("ReceiptEnded", 410, "gone")
        assert queue.show("fast").in_flight == 1


def test_a_server_tells_that_it_can(server: RunningServer) -> None:
    with Forwards(server.endpoint, "jobs") as jobs:
        assert jobs.forward([]) == []
    with Forwards(server.endpoint, f"{server.endpoint}/000000000000/none") as none:
        with pytest.raises(ClientError) as caught:
            none.forward([])
        assert caught.value.code == "QueueNotFound"


def test_a_waiting_receive_gets_what_is_forwarded(server: RunningServer) -> None:
    """A long poll at the target, woken by a forward."""
    with HttpQueueClient(server.endpoint) as queue, Forwards(server.endpoint, "jobs") as jobs:
        queue.send("jobs", "a")
        (message,) = queue.receive("jobs")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(queue.receive, "fast", wait_s=20)
            jobs.forward([(message.receipt, "fast")])
            assert [got.body for got in waiting.result(60)] == ["a"]


# Who may.


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RunningServer]:
    """A server of two accounts; the owner has an intake and a target."""
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as running:
        for name in ("jobs", "fast"):
            client(running).create_queue(QueueName=name)
        yield running


def forwards(server: RunningServer, key: str) -> Forwards:
    """Return the forwards of the owner's intake, asked for with a key."""
    signing = SigningKey(id=key, secret=SECRETS[key], region=REGION)
    return Forwards(server.endpoint, f"{server.endpoint}/{OWNER}/jobs", key=signing)


ARN = f"arn:aws:sqs:{REGION}:{OWNER}"
RECEIVE = statement(Action="sqs:ReceiveMessage", Resource=f"{ARN}:jobs")
DELETE = statement(Action="sqs:DeleteMessage", Resource=f"{ARN}:jobs")
SEND = statement(Action="sqs:SendMessage", Resource=f"{ARN}:fast")


@pytest.mark.parametrize(
    ("intake", "target", "missing"),
    [
        pytest.param([DELETE], [SEND], "sqs:receivemessage", id="receive"),
        pytest.param([RECEIVE], [SEND], "sqs:deletemessage", id="delete"),
        pytest.param([RECEIVE, DELETE], [], "sqs:sendmessage", id="send"),
    ],
)
def test_a_forward_needs_what_its_parts_need(
    guarded: RunningServer, intake: list[object], target: list[object], missing: str
) -> None:
    sqs = client(guarded)
    sqs.send_message(QueueUrl=f"{guarded.endpoint}/{OWNER}/jobs", MessageBody="a")
    (message,) = sqs.receive_message(QueueUrl=f"{guarded.endpoint}/{OWNER}/jobs")["Messages"]
    set_policy(sqs, f"{guarded.endpoint}/{OWNER}/jobs", *intake)  # type: ignore[arg-type]
    set_policy(sqs, f"{guarded.endpoint}/{OWNER}/fast", *target)  # type: ignore[arg-type]
    entry = (message["ReceiptHandle"], f"{OWNER}/fast")
    with forwards(guarded, "AKIDFRIEND") as friend:
        with pytest.raises(ClientError) as caught:
            friend.forward([entry])
        assert caught.value.code == "AccessDenied"
        assert missing in caught.value.message
        assert FRIEND in caught.value.message
        set_policy(sqs, f"{guarded.endpoint}/{OWNER}/jobs", RECEIVE, DELETE)
        set_policy(sqs, f"{guarded.endpoint}/{OWNER}/fast", SEND)
        (done,) = friend.forward([entry])
    assert isinstance(done, ForwardedEntry)


def test_the_owner_forwards_to_a_friends_queue_that_lets_him_send(guarded: RunningServer) -> None:
    theirs = client(guarded, "AKIDFRIEND")
    url = theirs.create_queue(QueueName="theirs")["QueueUrl"]
    sqs = client(guarded)
    sqs.send_message(QueueUrl=f"{guarded.endpoint}/{OWNER}/jobs", MessageBody="a")
    (message,) = sqs.receive_message(QueueUrl=f"{guarded.endpoint}/{OWNER}/jobs")["Messages"]
    entry = (message["ReceiptHandle"], f"{FRIEND}/theirs")
    with forwards(guarded, "AKIDOWNER") as owner:
        with pytest.raises(ClientError, match=r"AccessDenied|not authorized"):
            owner.forward([entry])
        allowed = statement(Principal={"AWS": OWNER}, Resource=f"arn:aws:sqs:{REGION}:{FRIEND}:theirs")
        set_policy(theirs, url, allowed)
        (done,) = owner.forward([entry])
    assert isinstance(done, ForwardedEntry)
    (got,) = theirs.receive_message(QueueUrl=url)["Messages"]
    assert got["Body"] == "a"


def test_a_target_that_does_not_exist_is_told_before_anything_is_moved(guarded: RunningServer) -> None:
    with forwards(guarded, "AKIDOWNER") as owner:
        with pytest.raises(ClientError) as caught:
            owner.forward([("r", "none")])
        assert (caught.value.code, caught.value.fields["queue"]) == ("QueueNotFound", f"{OWNER}/none")
