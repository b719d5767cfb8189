"""The npm package sqs-consumer as a client: tests/clients/javascript/consumer.mjs, its whole life with a message."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.clients.program import JAVASCRIPT, Program, Report, await_parked, node
from veilmq.testing import RunningServer

ALL = {"acknowledge": 10}


def _hidden(sqs: Any, url: str) -> tuple[int, int]:
    """Return how many messages are visible, and how many in flight."""
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return int(found["ApproximateNumberOfMessages"]), int(found["ApproximateNumberOfMessagesNotVisible"])


@contextmanager
def _consumer(server: RunningServer, url: str, **options: Any) -> Iterator[tuple[Program, Report]]:
    """Yield a consumer that has started, and the question whose answer stops it."""
    words = [*node(str(JAVASCRIPT / "consumer.mjs")), json.dumps({"queueUrl": url, "visibilityTimeout": 30, **options})]
    with Program(words, endpoint=server.endpoint) as program:
        program.expect("event", "started")
        yield program, program.expect("ask", "running")


def test_a_handled_message_is_deleted(server: RunningServer, sqs: Any, url: str) -> None:
    with _consumer(server, url) as (program, _):
        for body in ("first", "second"):
            sqs.send_message(QueueUrl=url, MessageBody=body)
            handling = program.expect("ask", "handle")
            assert (handling["bodies"], _hidden(sqs, url)) == ([body], (0, 1))
            program.answer(handling, ALL)
            assert program.expect("event", "message_processed")["body"] == body
            assert _hidden(sqs, url) == (0, 0)


@pytest.mark.parametrize("releases", [True, False], ids=["released", "timed-out"])
def test_a_message_whose_handler_fails_comes_again(server: RunningServer, sqs: Any, url: str, releases: bool) -> None:
    with _consumer(server, url, terminateVisibilityTimeout=releases) as (program, _):
        sqs.send_message(QueueUrl=url, MessageBody="m")
        program.answer(program.expect("ask", "handle"), {"error": "no luck"})
        assert "no luck" in program.expect("event", "processing_error")["message"]
        if not releases:
            await_parked(server, 1)
            server.advance(30_000)
        again = program.expect("ask", "handle")
        assert again["receives"] == [2]
        program.answer(again, ALL)
        program.expect("event", "message_processed")
        assert _hidden(sqs, url) == (0, 0)


@pytest.mark.parametrize("batch", [1, 10], ids=["one", "batch"])
def test_a_heartbeat_keeps_what_is_handled_hidden(server: RunningServer, sqs: Any, url: str, batch: int) -> None:
    for number in range(batch):
        sqs.send_message(QueueUrl=url, MessageBody=str(number))
    with _consumer(server, url, heartbeatInterval=1, batchSize=batch) as (program, _):
        handling = program.expect("ask", "handle")
        heartbeat = program.expect("ask", "heartbeat")
        server.advance(29_999)
        program.answer(heartbeat)
        program.expect("event", "heartbeat")
        server.advance(29_999)
        assert _hidden(sqs, url) == (0, batch)
        program.answer(handling, ALL)
        for number in range(batch):
            assert program.expect("event", "message_processed")["body"] == str(number)
        assert _hidden(sqs, url) == (0, 0)


def test_what_a_batch_handler_leaves_out_comes_again(server: RunningServer, sqs: Any, url: str) -> None:
    entries = [{"Id": str(number), "MessageBody": str(number)} for number in range(10)]
    sqs.send_message_batch(QueueUrl=url, Entries=entries)
    with _consumer(server, url, batchSize=10) as (program, _):
        handling = program.expect("ask", "handle")
        assert handling["bodies"] == list("0123456789")
        program.answer(handling, {"acknowledge": 9})
        assert [program.expect("event", "message_processed")["body"] for _ in range(9)] == list("012345678")
        await_parked(server, 1)
        server.advance(30_000)
        again = program.expect("ask", "handle")
        assert (again["bodies"], again["receives"]) == (["9"], [2])
        program.answer(again, ALL)
        program.expect("event", "message_processed")


def test_a_failure_keeps_the_order_of_a_group(server: RunningServer, sqs: Any) -> None:
    fifo = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    url = sqs.create_queue(QueueName="jobs.fifo", Attributes=fifo)["QueueUrl"]
    for body in ("a", "b", "c"):
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="group")
    with _consumer(server, url, terminateVisibilityTimeout=True, suppressFifoWarning=True) as (program, _):
        for body, answer in (("a", ALL), ("b", {"error": "no luck"}), ("b", ALL), ("c", ALL)):
            handling = program.expect("ask", "handle")
            assert handling["bodies"] == [body]
            program.answer(handling, answer)
            program.expect("event", "message_processed" if answer is ALL else "processing_error")
        assert _hidden(sqs, url) == (0, 0)


def test_an_aborted_poll_takes_no_message(server: RunningServer, sqs: Any, url: str) -> None:
    with _consumer(server, url) as (program, running):
        await_parked(server, 1)
        program.answer(running, {"abort": True})
        program.expect("event", "stopped")
        await_parked(server, 0)
        sqs.send_message(QueueUrl=url, MessageBody="for others")
        assert _hidden(sqs, url) == (1, 0)


def test_a_stop_lets_the_handler_finish(server: RunningServer, sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="last")
    with _consumer(server, url, pollingCompleteWaitTimeMs=20_000) as (program, running):
        handling = program.expect("ask", "handle")
        program.answer(running, {})
        program.answer(handling, ALL)
        program.expect("event", "message_processed")
        program.expect("event", "stopped")
        assert program.hear() is None
        assert _hidden(sqs, url) == (0, 0)
