"""dramatiq-sqs as a client: a task and a retried task. See ../test_other_programs.py."""

import os
import queue
from typing import Any

import dramatiq
from dramatiq_sqs import SQSBroker

from tests.clients.python.conversation import call_test, report

broker = SQSBroker(namespace="tasks", endpoint_url=os.environ["VEILMQ_ENDPOINT"])
dramatiq.set_broker(broker)
done: "queue.Queue[Any]" = queue.Queue()
attempts: list[str] = []


@dramatiq.actor  # type: ignore[untyped-decorator]
def add(first: int, second: int) -> None:
    done.put(first + second)


@dramatiq.actor(min_backoff=1_000, max_backoff=1_000, max_retries=1)  # type: ignore[untyped-decorator]
def flaky() -> None:
    attempts.append("flaky")
    if len(attempts) == 1:
        raise ValueError("at first")
    done.put(len(attempts))


worker = dramatiq.Worker(broker, worker_threads=1)
worker.start()
add.send(3, 4)
assert done.get(timeout=30) == 7
report(step="task")
flaky.send()
while done.empty():
    call_test("parked")
    call_test("advance", ms=1_000)
assert done.get() == 2
report(step="retry")
call_test("parked")
worker.stop(timeout=0)
