"""The server for tests, used as its users use it: boto3, threads and the virtual clock."""

import contextlib
import json
import socket
import threading
from pathlib import Path
from typing import Any

import boto3
import pytest

from veilmq.engines.clock import SystemClock
from veilmq.testing import RunningServer, VirtualClock

PATIENCE_S = 10.0


def client(server: RunningServer) -> Any:
    """Return a boto3 client of ``server``."""
    return boto3.client(
        "sqs",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",
    )


class Waiting:
    """A long poll in a thread of its own."""

    def __init__(self, server: RunningServer, url: str, *, wait_s: int = 20) -> None:
        """Ask, and return once the server has parked it."""
        self._answers: list[list[str]] = []
        self._thread = threading.Thread(target=self._ask, args=(client(server), url, wait_s))
        before = server.parked
        self._thread.start()
        while server.parked == before:
            assert self._thread.is_alive(), "answered instead of parked"

    @property
    def answered(self) -> bool:
        """Tell whether there is an answer."""
        return bool(self._answers)

    def answer(self) -> list[str]:
        """Return the bodies that it got."""
        self._thread.join(PATIENCE_S)
        return self._answers[0]

    def _ask(self, sqs: Any, url: str, wait_s: int) -> None:
        reply = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=wait_s)
        self._answers.append([message["Body"] for message in reply.get("Messages", [])])


def test_advance_answers_what_became_due_on_the_way() -> None:
    """A lease of ten seconds ends during a move of thirty, in front of a poll whose twenty are not over."""
    with RunningServer() as server:
        sqs = client(server)
        url = sqs.create_queue(QueueName="q")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="a")
        sqs.receive_message(QueueUrl=url, VisibilityTimeout=10)
        first, second = Waiting(server, url), Waiting(server, url)
        server.advance(9_999)
        assert server.parked == 2
        server.advance(20_001)
        assert (first.answer(), second.answer()) == (["a"], [])
        assert server.parked == 0


def test_the_clock_starts_where_it_was_put() -> None:
    """Messages bear the virtual instant."""
    with RunningServer(clock=VirtualClock(start_ms=1_000_000_000_000)) as server:
        sqs = client(server)
        url = sqs.create_queue(QueueName="q")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="a")
        reply = sqs.receive_message(QueueUrl=url, MessageSystemAttributeNames=["SentTimestamp"])
        assert reply["Messages"][0]["Attributes"] == {"SentTimestamp": "1000000000000"}


def test_the_system_clock_cannot_be_moved() -> None:
    """With it the server runs in real time."""
    with RunningServer(clock=SystemClock()) as server, pytest.raises(TypeError, match="virtual clock"):
        server.advance(1)


def test_a_folder_outlives_the_server(tmp_path: Path) -> None:
    """What one server acknowledged the next one has."""
    with RunningServer(data=tmp_path) as server:
        client(server).create_queue(QueueName="q")
    with RunningServer(data=tmp_path) as server:
        urls = client(server).list_queues()["QueueUrls"]
        assert urls == [f"{server.endpoint}/000000000000/q"]


def test_stopping_answers_polls_and_may_be_done_twice() -> None:
    """As SIGTERM does."""
    with RunningServer() as server:
        url = client(server).create_queue(QueueName="q")["QueueUrl"]
        waiting = Waiting(server, url)
        assert not waiting.answered
        server.stop()
        assert waiting.answer() == []


def test_a_poll_whose_client_has_gone_takes_no_message() -> None:
    """Its connection closed; the message stays for the next receive."""
    with RunningServer() as server:
        sqs = client(server)
        url = sqs.create_queue(QueueName="q")["QueueUrl"]
        host, port = server.endpoint.removeprefix("http://").split(":")
        body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
        with contextlib.closing(socket.create_connection((host, int(port)), timeout=PATIENCE_S)) as gone:
            gone.sendall(
                b"POST / HTTP/1.1\r\nHost: h\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            while server.parked == 0:
                pass
        while server.parked == 1:
            pass
        sqs.send_message(QueueUrl=url, MessageBody="a")
        reply = sqs.receive_message(QueueUrl=url, MessageSystemAttributeNames=["ApproximateReceiveCount"])
        assert reply["Messages"][0]["Attributes"] == {"ApproximateReceiveCount": "1"}
