"""Celery with kombu's SQS transport as a client: real workers, tests/clients/python/celery_*.py."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients import boto
from tests.clients.program import Program, packages, python
from tests.conftest import EVERYTHING
from veilmq.testing import RunningServer

pytestmark = pytest.mark.slow

WORKER = ["celery", "--quiet", "--app", "tests.clients.python.celery_tasks", "worker", "--concurrency", "1"]
WAIT_MS = 10_000  # kombu's wait_time_seconds, for which it also hides what it gives back


class Setting:
    """A queue, who sends tasks to it and workers for them; ``clients`` are the packages that they find, in order."""

    def __init__(self, server: RunningServer, *, protocol: str, queue: str, clients: tuple[str, ...]) -> None:
        """Start nothing yet."""
        self.protocol = protocol
        self.environment = {"QUEUE": queue, **packages(*clients)}
        self.server = server
        self.sqs = boto.client(server.endpoint)
        attributes = {"VisibilityTimeout": "3600", **({"FifoQueue": "true"} if queue.endswith(".fifo") else {})}
        self.url = self.sqs.create_queue(QueueName=queue, Attributes=attributes)["QueueUrl"]

    def worker(self) -> Program:
        """Return a worker."""
        return Program(python(*WORKER), endpoint=self.server.endpoint, **self.environment)

    def producer(self) -> Program:
        """Return a process that sends tasks."""
        return Program(
            python("tests.clients.python.celery_producer"), endpoint=self.server.endpoint, **self.environment
        )

    def counts(self) -> tuple[int, int]:
        """Return how many messages are visible, and how many in flight."""
        found = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=["All"])["Attributes"]
        return int(found["ApproximateNumberOfMessages"]), int(found["ApproximateNumberOfMessagesNotVisible"])

    def await_counts(self, visible: int, in_flight: int) -> None:
        """Return when the queue has come to these counts."""
        while self.counts() != (visible, in_flight):
            pass  # the worker acknowledges beside the task, and says nothing of it


def _order(producer: Program, task: str, **arguments: Any) -> float:
    producer.answer(producer.expect("ask", "order"), {"task": task, **arguments})
    at: float = producer.expect("event", "sent")["at"]
    return at


_TODAY = ("celery_sqs",)
_OLDER = ("boto3_query", "celery_sqs")  # kombu speaks as the boto3 that it finds
SETTINGS: dict[str, dict[str, Any]] = {
    "json": {"protocol": "json", "queue": "celery", "clients": _TODAY},
    "query": {"protocol": "query", "queue": "celery", "clients": _OLDER},
    "fifo": {"protocol": "json", "queue": "celery.fifo", "clients": _TODAY},
}


@pytest.fixture(params=["json", *(pytest.param(name, marks=EVERYTHING) for name in ("query", "fifo"))])
def setting(request: pytest.FixtureRequest, verifying_server: RunningServer) -> Setting:
    """A setting for each protocol and kind of queue; kombu signs the requests of a worker by itself."""
    return Setting(verifying_server, **SETTINGS[request.param])


@pytest.fixture
def producer(setting: Setting) -> Iterator[Program]:
    """A process that sends tasks."""
    with setting.producer() as program:
        assert program.expect("event", "ready")["protocol"] == setting.protocol
        yield program


def test_tasks_run_are_retried_and_wait_for_their_time(setting: Setting, producer: Program) -> None:
    with setting.worker() as worker:
        _order(producer, "add", args=[2, 3])
        assert worker.expect("event", "add")["sum"] == 5
        _order(producer, "flaky")
        assert [worker.expect("event", "flaky")["attempt"] for _ in range(3)] == [0, 1, 2]
        setting.await_counts(0, 0)
        at = _order(producer, "add", args=[3, 4], countdown=1)
        setting.await_counts(0, 1)  # the worker holds the message until then
        held = worker.expect("event", "add")
        assert held["sum"] == 7
        assert held["at"] - at >= 0.9  # Celery counts on another clock than it says the time by
        setting.await_counts(0, 0)


@pytest.mark.parametrize("setting", [pytest.param("json", marks=EVERYTHING), "fifo"], indirect=True)
def test_a_worker_gives_back_what_it_has_not_started(setting: Setting, producer: Program) -> None:
    for number in range(3):
        _order(producer, "add", args=[number, 0], countdown=3000)
    with setting.worker() as worker:
        setting.await_counts(0, 3)
        assert worker.terminate() == 0, worker.complaints
    assert setting.counts() == (0, 3)
    setting.server.advance(WAIT_MS)
    assert setting.counts() == (3, 0)


@pytest.mark.parametrize("setting", ["json"], indirect=True)
def test_the_task_of_a_killed_worker_runs_again(setting: Setting, producer: Program) -> None:
    with setting.worker() as worker:
        _order(producer, "hang")
        worker.expect("event", "hang")
    setting.server.advance(3_600_000)
    with setting.worker() as worker:
        worker.expect("event", "hang")
        assert setting.counts() == (0, 1)
