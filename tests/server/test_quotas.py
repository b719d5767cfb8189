"""In-flight quotas over sockets: who does not wait is told of it, who waits is not, and a free place goes to one."""

import contextlib
import json
import select
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError

from tests.clients import boto
from veilmq.testing import RunningServer

QUOTA = 3
FIFO_QUOTA = 2
OWN = "VeilmqInFlightMax"
PATIENCE_S = 60.0


class Client:
    """A client of one queue of a server on the virtual clock."""

    def __init__(self, server: RunningServer, **attributes: str) -> None:
        self.server = server
        self.sqs = boto.client(server.endpoint)
        self.fifo = "FifoQueue" in attributes
        name = "q.fifo" if self.fifo else "q"
        self.url = self.sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]

    def send(self, *bodies: str) -> None:
        for body in bodies:
            more = {"MessageGroupId": body, "MessageDeduplicationId": body} if self.fifo else {}
            self.sqs.send_message(QueueUrl=self.url, MessageBody=body, **more)

    def receive(self, count: int = 10, **more: int) -> list[tuple[str, str]]:
        answer = self.sqs.receive_message(QueueUrl=self.url, MaxNumberOfMessages=count, **more)
        return [(each["Body"], each["ReceiptHandle"]) for each in answer.get("Messages", [])]

    def delete(self, receipt: str) -> None:
        self.sqs.delete_message(QueueUrl=self.url, ReceiptHandle=receipt)

    def quota(self) -> str | None:
        """Return the queue's own quota, as it is shown; ``None`` where it is not."""
        told: dict[str, str] = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=["All"])["Attributes"]
        by_name = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=[OWN]).get("Attributes", {})
        assert by_name == {name: text for name, text in told.items() if name == OWN}
        return told.get(OWN)

    def poll(self, wait_s: int = 20, **more: int) -> HTTPConnection:
        where = urlsplit(self.server.endpoint)
        assert where.hostname is not None
        connection = HTTPConnection(where.hostname, where.port, timeout=PATIENCE_S)
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.ReceiveMessage"}
        parked = self.server.parked
        request = {"QueueUrl": self.url, "WaitTimeSeconds": wait_s, "MaxNumberOfMessages": 10, **more}
        connection.request("POST", "/", json.dumps(request), headers)
        while self.server.parked == parked:
            assert not is_answered(connection)  # each look passes through the server's loop once
        return connection


def is_answered(connection: HTTPConnection) -> bool:
    """Return whether bytes of an answer have come."""
    assert connection.sock is not None
    return bool(select.select([connection.sock], [], [], 0)[0])


def answer(connection: HTTPConnection) -> list[str]:
    """Return the bodies that a poll was answered with; it was answered without an error."""
    reply = connection.getresponse()
    told: dict[str, Any] = json.loads(reply.read())
    connection.close()
    assert reply.status == 200, told
    return [each["Body"] for each in told.get("Messages", [])]


def over_limit(client: Client) -> None:
    with pytest.raises(ClientError) as refusal:
        client.receive()
    assert refusal.value.response["Error"]["Code"].rpartition(".")[2] == "OverLimit"


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with RunningServer(in_flight_max=QUOTA, fifo_in_flight_max=FIFO_QUOTA) as running:
        yield running


@pytest.fixture
def full(server: RunningServer) -> Iterator[tuple[Client, list[str]]]:
    """A client whose standard queue is at its quota, and the receipts; two messages are left."""
    client = Client(server)
    client.send("a", "b", "c", "d", "e")
    taken = client.receive()
    assert len(taken) == QUOTA
    with contextlib.closing(client.sqs):
        yield client, [receipt for _, receipt in taken]


def test_a_receive_that_does_not_wait_is_refused(full: tuple[Client, list[str]]) -> None:
    """Until a place is free; sends are taken all the time."""
    client, receipts = full
    over_limit(client)
    client.send("f")
    over_limit(client)
    client.delete(receipts[0])
    assert [body for body, _ in client.receive()] == ["d"]
    over_limit(client)
    client.server.advance(30_000)
    assert len(client.receive()) == QUOTA


def test_a_poll_waits_for_a_place_and_ends_without_an_error(full: tuple[Client, list[str]]) -> None:
    """It hears nothing of the quota, and holds its wait to the millisecond."""
    client, _ = full
    poll = client.poll(wait_s=20)
    client.server.advance(19_999)
    assert not is_answered(poll)
    client.server.advance(1)
    assert answer(poll) == []


def test_a_delete_frees_a_place_for_one_poll(full: tuple[Client, list[str]]) -> None:
    """The first of the line gets one message, however many it asked for; the next waits on."""
    client, receipts = full
    first, second = client.poll(), client.poll()
    client.delete(receipts[0])
    client.server.settle()
    assert answer(first) == ["d"]
    assert not is_answered(second)
    client.delete(receipts[1])
    client.server.settle()
    assert answer(second) == ["e"]
    over_limit(client)


def test_the_end_of_a_lease_frees_a_place_for_a_poll(full: tuple[Client, list[str]]) -> None:
    """At the very instant at which it ends."""
    client, receipts = full
    client.sqs.change_message_visibility(QueueUrl=client.url, ReceiptHandle=receipts[1], VisibilityTimeout=5)
    first, second = client.poll(), client.poll()
    client.server.advance(4_999)
    assert not is_answered(first)
    client.server.advance(1)
    assert answer(first) == ["d"]
    assert not is_answered(second)
    client.server.advance(15_000)
    assert answer(second) == []


def test_a_release_and_a_purge_free_places_for_polls(full: tuple[Client, list[str]]) -> None:
    """A release one, a purge all; what is sent afterwards goes to who waits."""
    client, receipts = full
    client.server.advance(1)  # what is released comes after what was visible before
    first, second, third = client.poll(), client.poll(), client.poll()
    client.sqs.change_message_visibility(QueueUrl=client.url, ReceiptHandle=receipts[2], VisibilityTimeout=0)
    client.server.settle()
    assert answer(first) == ["d"]
    client.sqs.purge_queue(QueueUrl=client.url)
    client.send("new")
    client.server.settle()
    assert answer(second) == ["new"]
    client.server.advance(20_000)
    assert answer(third) == []


def test_a_queue_may_have_a_quota_of_its_own(server: RunningServer) -> None:
    """Given by an attribute that boto3 does not know; empty text takes the queue back to the server's."""
    client = Client(server, **{OWN: "2"})
    client.send("a", "b", "c", "d")
    assert [body for _ in range(2) for body, _ in client.receive(count=1)] == ["a", "b"]
    over_limit(client)
    assert client.quota() == "2"
    poll = client.poll()
    client.sqs.set_queue_attributes(QueueUrl=client.url, Attributes={OWN: ""})
    server.settle()
    assert answer(poll) == ["c"]
    over_limit(client)
    assert client.quota() is None
    client.sqs.set_queue_attributes(QueueUrl=client.url, Attributes={OWN: str(QUOTA + 1)})
    assert [body for body, _ in client.receive()] == ["d"]
    client.sqs.close()


def test_another_quota_is_another_queue(server: RunningServer) -> None:
    """To who would create one of its name: the attribute is named, unless he left it out."""
    client = Client(server, **{OWN: "2"})
    for other in ("3", ""):
        with pytest.raises(client.sqs.exceptions.QueueNameExists, match=f"different value for attribute {OWN}"):
            client.sqs.create_queue(QueueName="q", Attributes={OWN: other})
    for same in ({OWN: "2"}, {}):
        assert client.sqs.create_queue(QueueName="q", Attributes=same)["QueueUrl"] == client.url
    client.sqs.close()


def test_a_fifo_queue_at_its_quota_is_silent(server: RunningServer) -> None:
    """Nothing, without an error; a poll gets the place that a delete frees."""
    client = Client(server, FifoQueue="true")
    client.send("a", "b", "c")
    taken = client.receive()
    assert len(taken) == FIFO_QUOTA
    assert client.receive() == []
    poll = client.poll()
    client.delete(taken[0][1])
    server.settle()
    assert answer(poll) == sorted({"a", "b", "c"} - {body for body, _ in taken})
    client.send("d")
    poll = client.poll(wait_s=20)
    server.advance(20_000)
    assert answer(poll) == []
    client.sqs.close()
