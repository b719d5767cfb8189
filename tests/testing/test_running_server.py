"""The server for tests, used as its users use it: boto3, threads and the virtual clock."""

import contextlib
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.clients import boto
from veilmq.testing import RunningServer, SystemClock, VirtualClock

PATIENCE_S = 60.0


class Waiting:
    """A long poll in a thread of its own."""

    def __init__(self, server: RunningServer, url: str, *, wait_s: int = 20) -> None:
        """Ask, and return once the server has parked it."""
        self._answers: list[list[str]] = []
        self._thread = threading.Thread(target=self._ask, args=(boto.client(server.endpoint), url, wait_s))
        waiting = server.parked
        self._thread.start()
        server.wait_parked(waiting + 1)

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


def test_advance_answers_what_became_due_on_the_way(veilmq_server: RunningServer, veilmq_boto3: Any) -> None:
    """A lease of ten seconds ends during a move of thirty, in front of a poll whose twenty are not over."""
    url = veilmq_server.queue("q").url
    veilmq_boto3.send_message(QueueUrl=url, MessageBody="a")
    veilmq_boto3.receive_message(QueueUrl=url, VisibilityTimeout=10)
    first, second = Waiting(veilmq_server, url), Waiting(veilmq_server, url)
    veilmq_server.advance(9_999)
    assert veilmq_server.parked == 2
    veilmq_server.advance(20_001)
    assert (first.answer(), second.answer()) == (["a"], [])
    assert veilmq_server.parked == 0


def test_advance_in_seconds(veilmq_server: RunningServer) -> None:
    """To the millisecond, and not backwards."""
    before_ms = veilmq_server.clock.now_ms()
    veilmq_server.advance(seconds=29.999)
    veilmq_server.advance(1, seconds=1)
    assert veilmq_server.clock.now_ms() == before_ms + 31_000
    with pytest.raises(ValueError, match="cannot go back"):
        veilmq_server.advance(seconds=-1)


def test_waiting_ends(veilmq_server: RunningServer) -> None:
    """With what was waited for, or with an error that says what it was."""
    answers = iter([False, False, True, False])
    veilmq_server.wait_until(lambda: next(answers))
    assert next(answers) is False
    with pytest.raises(TimeoutError, match=r"not so within 0.01 seconds: .*<lambda>"):
        veilmq_server.wait_until(lambda: False, patience_s=0.01)


def test_the_clock_starts_where_it_was_put() -> None:
    """Messages bear the virtual instant."""
    with RunningServer(clock=VirtualClock(start_ms=1_000_000_000_000)) as server:
        sqs = boto.client(server.endpoint)
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
        boto.client(server.endpoint).create_queue(QueueName="q")
    with RunningServer(data=tmp_path) as server:
        urls = boto.client(server.endpoint).list_queues()["QueueUrls"]
        assert urls == [f"{server.endpoint}/000000000000/q"]


def test_stopping_answers_polls_and_may_be_done_twice(veilmq_server: RunningServer) -> None:
    """As SIGTERM does; the fixture stops it once more."""
    waiting = Waiting(veilmq_server, veilmq_server.queue("q").url)
    assert not waiting.answered
    veilmq_server.stop()
    assert waiting.answer() == []


def test_a_poll_whose_client_has_gone_takes_no_message(veilmq_server: RunningServer, veilmq_boto3: Any) -> None:
    """Its connection closed; the message stays for the next receive."""
    queue = veilmq_server.queue("q")
    host, port = veilmq_server.endpoint.removeprefix("http://").split(":")
    body = json.dumps({"QueueUrl": queue.url, "WaitTimeSeconds": 20}).encode()
    with contextlib.closing(socket.create_connection((host, int(port)), timeout=PATIENCE_S)) as gone:
        gone.sendall(
            b"POST / HTTP/1.1\r\nHost: h\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        veilmq_server.wait_parked()
    veilmq_server.wait_until(lambda: not veilmq_server.parked)
    veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody="a")
    assert [message.receive_count for message in queue.visible] == [0]
