"""Client programs as processes: two versions of boto3, JavaScript, Celery and the AWS CLI."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clients import boto
from tests.clients.program import ACTIONS, JAVASCRIPT, Program, Report, answers, node, packages, python
from tests.conftest import EVERYTHING
from veilmq.testing import RunningServer

PROGRAM = "tests.clients.python.sdk"
STEPS = (
    "queues message delay attributes batches long_poll errors resource tags dead_letters move_tasks permissions "
    "fifo end"
)


def counts(sqs: Any, url: str) -> tuple[int, int]:
    """Return the numbers of visible messages and of those in flight."""
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return int(found["ApproximateNumberOfMessages"]), int(found["ApproximateNumberOfMessagesNotVisible"])


def _current(server: RunningServer) -> Program:
    return Program([sys.executable, "-m", PROGRAM], endpoint=server.endpoint)


def _older(server: RunningServer) -> Program:
    return Program(python(PROGRAM), endpoint=server.endpoint, **packages("boto3_query"))


@pytest.mark.parametrize(
    ("kind", "start", "protocol"),
    [
        pytest.param("verifying_server", _current, "json", id="verifying_server-json"),
        pytest.param("server", _older, "query", id="server-query"),
        pytest.param("server", _current, "json", id="server-json", marks=EVERYTHING),
        pytest.param("verifying_server", _older, "query", id="verifying_server-query", marks=EVERYTHING),
    ],
)
@pytest.mark.usefixtures("veilmq_settings")
def test_every_action_works_with_boto3(
    request: pytest.FixtureRequest, kind: str, start: Callable[[RunningServer], Program], protocol: str
) -> None:
    server: RunningServer = request.getfixturevalue(kind)
    with start(server) as program:
        *steps, last = program.reports(answers(server))
    assert steps == [{"step": step} for step in STEPS.split()]
    assert last["protocol"] == protocol
    assert set(last["actions"]) == ACTIONS


JAVASCRIPT_STEPS = {
    "sdk.mjs": "queues message delay attributes batches longPoll errors tags "
    "deadLetters moveTasks permissions fifo end",
    "smq.mjs": "queues attributes message visibility delay priorities batches longPoll errors end",
}
"""The AWS SDK for JavaScript v3, and @alicloud/mns, the SDK of SMQ."""


@pytest.mark.parametrize("program", JAVASCRIPT_STEPS)
@pytest.mark.parametrize("kind", ["server", "verifying_server"])
@pytest.mark.usefixtures("veilmq_settings")
def test_every_action_works_from_javascript(request: pytest.FixtureRequest, kind: str, program: str) -> None:
    server: RunningServer = request.getfixturevalue(kind)
    with Program(node(str(JAVASCRIPT / program)), endpoint=server.endpoint) as running_program:
        reports = running_program.reports(answers(server))
    if program == "sdk.mjs":
        assert set(reports.pop()["actions"]) == ACTIONS
    assert reports == [{"step": step} for step in JAVASCRIPT_STEPS[program].split()]


# AWS's extended client for Python stores large bodies in S3 and prefixes receipt handles with their location.


MESSAGES = 32  # it splits at the last `-`, which a quarter of the receipt handles of an older version contained


@pytest.mark.slow
def test_the_extended_client_returns_receipt_handles_unchanged(verifying_server: RunningServer) -> None:
    """It changes, deletes and batch-deletes messages with bodies in S3."""
    sqs = boto.client(verifying_server.endpoint)
    url = sqs.create_queue(QueueName="large")["QueueUrl"]

    extended = Program(
        python("tests.clients.python.extended"),
        endpoint=verifying_server.endpoint,
        QUEUE=url,
        **packages("sqs_extended"),
    )
    with extended as program:
        assert program.expect("event", "sent")["objects"] == MESSAGES
        assert program.expect("event", "received")["whole"] == MESSAGES
        question = program.expect("ask", "hidden")
        verifying_server.advance(60_000)
        assert counts(sqs, url) == (0, MESSAGES)
        program.answer(question)
        assert program.expect("event", "deleted")["objects"] == 0
        assert program.next_report() is None
    assert counts(sqs, url) == (0, 0)


# The npm package sqs-consumer: tests/clients/javascript/consumer.mjs.


ALL = {"acknowledge": 10}


@contextmanager
def _consumer(server: RunningServer, url: str, **options: Any) -> Iterator[tuple[Program, Report]]:
    words = [*node(str(JAVASCRIPT / "consumer.mjs")), json.dumps({"queueUrl": url, "visibilityTimeout": 30, **options})]
    with Program(words, endpoint=server.endpoint) as program:
        program.expect("event", "started")
        yield program, program.expect("ask", "running")


def test_sqs_consumer_deletes_handled_messages(server: RunningServer, sqs: Any, url: str) -> None:
    with _consumer(server, url) as (program, _):
        for body in ("first", "second"):
            sqs.send_message(QueueUrl=url, MessageBody=body)
            handling = program.expect("ask", "handle")
            assert (handling["bodies"], counts(sqs, url)) == ([body], (0, 1))
            program.answer(handling, ALL)
            assert program.expect("event", "message_processed")["body"] == body
            assert counts(sqs, url) == (0, 0)


@pytest.mark.parametrize("releases", [True, False], ids=["released", "timed-out"])
def test_sqs_consumer_receives_a_failed_message_again(
    server: RunningServer, sqs: Any, url: str, releases: bool
) -> None:
    with _consumer(server, url, terminateVisibilityTimeout=releases) as (program, _):
        sqs.send_message(QueueUrl=url, MessageBody="m")
        program.answer(program.expect("ask", "handle"), {"error": "no luck"})
        assert "no luck" in program.expect("event", "processing_error")["message"]
        if not releases:
            server.wait_until(lambda: server.parked == 1)
            server.advance(30_000)
        again = program.expect("ask", "handle")
        assert again["receives"] == [2]
        program.answer(again, ALL)
        program.expect("event", "message_processed")
        assert counts(sqs, url) == (0, 0)


@pytest.mark.parametrize("batch", [1, 10], ids=["one", "batch"])
def test_a_heartbeat_of_sqs_consumer_extends_leases(server: RunningServer, sqs: Any, url: str, batch: int) -> None:
    for number in range(batch):
        sqs.send_message(QueueUrl=url, MessageBody=str(number))
    with _consumer(server, url, heartbeatInterval=1, batchSize=batch) as (program, _):
        handling = program.expect("ask", "handle")
        heartbeat = program.expect("ask", "heartbeat")
        server.advance(29_999)
        program.answer(heartbeat)
        program.expect("event", "heartbeat")
        server.advance(29_999)
        assert counts(sqs, url) == (0, batch)
        program.answer(handling, ALL)
        for number in range(batch):
            assert program.expect("event", "message_processed")["body"] == str(number)
        assert counts(sqs, url) == (0, 0)


def test_sqs_consumer_receives_messages_again_that_its_batch_handler_omits(
    server: RunningServer, sqs: Any, url: str
) -> None:
    entries = [{"Id": str(number), "MessageBody": str(number)} for number in range(10)]
    sqs.send_message_batch(QueueUrl=url, Entries=entries)
    with _consumer(server, url, batchSize=10) as (program, _):
        handling = program.expect("ask", "handle")
        assert handling["bodies"] == list("0123456789")
        program.answer(handling, {"acknowledge": 9})
        assert [program.expect("event", "message_processed")["body"] for _ in range(9)] == list("012345678")
        server.wait_until(lambda: server.parked == 1)
        server.advance(30_000)
        again = program.expect("ask", "handle")
        assert (again["bodies"], again["receives"]) == (["9"], [2])
        program.answer(again, ALL)
        program.expect("event", "message_processed")


def test_a_failure_in_sqs_consumer_keeps_the_order_of_a_group(server: RunningServer, sqs: Any) -> None:
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
        assert counts(sqs, url) == (0, 0)


def test_an_aborted_poll_of_sqs_consumer_receives_no_message(server: RunningServer, sqs: Any, url: str) -> None:
    with _consumer(server, url) as (program, running):
        server.wait_until(lambda: server.parked == 1)
        program.answer(running, {"abort": True})
        program.expect("event", "stopped")
        server.wait_until(lambda: server.parked == 0)
        sqs.send_message(QueueUrl=url, MessageBody="for others")
        assert counts(sqs, url) == (1, 0)


def test_sqs_consumer_stops_after_its_handler(server: RunningServer, sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="last")
    with _consumer(server, url, pollingCompleteWaitTimeMs=20_000) as (program, running):
        handling = program.expect("ask", "handle")
        program.answer(running, {})
        program.answer(handling, ALL)
        program.expect("event", "message_processed")
        program.expect("event", "stopped")
        assert program.next_report() is None
        assert counts(sqs, url) == (0, 0)


# Celery with kombu's SQS transport: tests/clients/python/celery_*.py.


WORKER = ["celery", "--quiet", "--app", "tests.clients.python.celery_tasks", "worker", "--concurrency", "1"]
WAIT_MS = 10_000  # kombu's wait_time_seconds, also the timeout of messages that it releases


class Setting:
    """A queue with producers and workers of its tasks; ``clients`` are their packages, in order of precedence."""

    def __init__(self, server: RunningServer, *, protocol: str, queue: str, clients: tuple[str, ...]) -> None:
        self.protocol = protocol
        self.environment = {"QUEUE": queue, **packages(*clients)}
        self.server = server
        self.sqs = boto.client(server.endpoint)
        attributes = {"VisibilityTimeout": "3600", **({"FifoQueue": "true"} if queue.endswith(".fifo") else {})}
        self.url = self.sqs.create_queue(QueueName=queue, Attributes=attributes)["QueueUrl"]

    def worker(self, **environment: str) -> Program:
        return Program(python(*WORKER), endpoint=self.server.endpoint, **self.environment, **environment)

    def producer(self) -> Program:
        return Program(
            python("tests.clients.python.celery_producer"), endpoint=self.server.endpoint, **self.environment
        )

    def await_counts(self, visible: int, in_flight: int) -> None:
        while counts(self.sqs, self.url) != (visible, in_flight):
            pass  # the worker does not report its acknowledgements


def _order(producer: Program, task: str, **arguments: Any) -> float:
    producer.answer(producer.expect("ask", "order"), {"task": task, **arguments})
    at: float = producer.expect("event", "sent")["at"]
    return at


SETTINGS: dict[str, dict[str, Any]] = {
    "json": {"protocol": "json", "queue": "celery", "clients": ("celery_sqs",)},
    "query": {"protocol": "query", "queue": "celery", "clients": ("boto3_query", "celery_sqs")},
    "fifo": {"protocol": "json", "queue": "celery.fifo", "clients": ("celery_sqs",)},
}


@pytest.fixture(params=["json", *(pytest.param(name, marks=EVERYTHING) for name in ("query", "fifo"))])
def setting(request: pytest.FixtureRequest, verifying_server: RunningServer) -> Setting:
    """A setting for each protocol and kind of queue."""
    return Setting(verifying_server, **SETTINGS[request.param])


@pytest.fixture
def producer(setting: Setting) -> Iterator[Program]:
    with setting.producer() as program:
        assert program.expect("event", "ready")["protocol"] == setting.protocol
        yield program


@pytest.mark.slow
def test_celery_runs_retries_and_delays_tasks(setting: Setting, producer: Program) -> None:
    with setting.worker() as worker:
        _order(producer, "add", args=[2, 3])
        assert worker.expect("event", "add")["sum"] == 5
        _order(producer, "flaky")
        assert [worker.expect("event", "flaky")["attempt"] for _ in range(3)] == [0, 1, 2]
        setting.await_counts(0, 0)
        at = _order(producer, "add", args=[3, 4], countdown=1)
        setting.await_counts(0, 1)  # the worker holds the message meanwhile
        held = worker.expect("event", "add")
        assert held["sum"] == 7
        assert held["at"] - at >= 0.9  # Celery waits by another clock
        setting.await_counts(0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("setting", [pytest.param("json", marks=EVERYTHING), "fifo"], indirect=True)
def test_a_celery_worker_releases_tasks_that_it_has_not_started(setting: Setting, producer: Program) -> None:
    for number in range(3):
        _order(producer, "add", args=[number, 0], countdown=3000)
    with setting.worker(RECEIVED="say") as worker:
        for _ in range(3):  # kombu releases messages without a timeout while the worker stops
            worker.expect("event", "received")
        setting.await_counts(0, 3)
        assert worker.terminate() == 0, worker.errors
    assert counts(setting.sqs, setting.url) == (0, 3)
    setting.server.advance(WAIT_MS)
    assert counts(setting.sqs, setting.url) == (3, 0)


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["json"], indirect=True)
def test_celery_runs_the_task_of_a_killed_worker_again(setting: Setting, producer: Program) -> None:
    with setting.worker() as worker:
        _order(producer, "hang")
        worker.expect("event", "hang")
    setting.server.advance(3_600_000)
    with setting.worker() as worker:
        worker.expect("event", "hang")
        assert counts(setting.sqs, setting.url) == (0, 1)


# The AWS CLI.


ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "any",
    "AWS_SECRET_ACCESS_KEY": "any",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}

Run = Callable[..., Any]


def _words(server: RunningServer, words: tuple[str, ...]) -> list[str]:
    return ["--endpoint-url", server.endpoint, "--output", "json", "sqs", *words]


@contextmanager
def running(server: RunningServer) -> Iterator[Run]:
    words = [sys.executable, "-m", "tests.clients.python.cli"]
    with Program(words, endpoint=server.endpoint, **ENVIRONMENT) as program:

        def run(*words: str) -> Any:
            program.answer(program.expect("ask", "command"), _words(server, words))
            done = program.expect("event", "done")
            if done["status"]:
                return done["error"]
            return json.loads(done["output"]) if done["output"].strip() else None

        yield run


def test_the_aws_cli_sends_receives_and_deletes_messages(verifying_server: RunningServer) -> None:
    """The first command is a process; the others share one, as each start takes a second."""
    aws, creates = str(Path(sys.executable).with_name("aws")), ("create-queue", "--queue-name", "jobs")
    words = [sys.executable, aws, *_words(verifying_server, (*creates, "--attributes", "VisibilityTimeout=60"))]
    created = subprocess.run(words, env={**os.environ, **ENVIRONMENT}, capture_output=True, timeout=60, check=True)
    url = json.loads(created.stdout)["QueueUrl"]
    with running(verifying_server) as run:
        sent = run("send-message", "--queue-url", url, "--message-body", "hello")
        (message,) = run("receive-message", "--queue-url", url, "--wait-time-seconds", "5")["Messages"]
        assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "hello")
        handle = ("--queue-url", url, "--receipt-handle", message["ReceiptHandle"])
        assert run("change-message-visibility", *handle, "--visibility-timeout", "0") is None
        (again,) = run("receive-message", "--queue-url", url, "--attribute-names", "All")["Messages"]
        assert again["Attributes"]["ApproximateReceiveCount"] == "2"
        handle = ("--queue-url", url, "--receipt-handle", again["ReceiptHandle"])
        assert run("delete-message", *handle) is None
        found = run("get-queue-attributes", "--queue-url", url, "--attribute-names", "All")["Attributes"]
        assert (found["ApproximateNumberOfMessages"], found["VisibilityTimeout"]) == ("0", "60")
        assert run("delete-queue", "--queue-url", url) is None
        assert "NonExistentQueue" in run("get-queue-url", "--queue-name", "jobs")
