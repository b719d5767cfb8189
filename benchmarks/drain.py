"""Messages per second that one worker process with an empty handler takes from a full queue, each delete confirmed.

Our consumer, the usual loop around boto3, and Celery (kombu's SQS transport, solo pool), one after another, each with
its own server. The rate covers the time from the first message in flight to the last delete, by the queue's counters;
CPU time is that of the worker meanwhile.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from benchmarks import rates
from benchmarks.bench import Bench, Opened
from benchmarks.process import Command, started
from benchmarks.row import Row, Section, alone, failed
from benchmarks.servers import CHECKOUT, VEILMQ
from veilmq.client import HttpQueueClient, NewMessage

MESSAGES = 10_000
MESSAGES_SLOW = 2_000
QUEUE = "drain"
POLL_S = 0.02
DRAIN_S_MAX = 120.0
CELERY = CHECKOUT / ".clients" / "celery_sqs"


class DrainError(Exception):
    """A worker ended, or did not finish in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """How to start a worker, and its number of messages; `sends` is a program that sends one message in its format."""

    figure: str
    words: tuple[str, ...]
    messages: int = MESSAGES
    sends: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    per_s: float
    cpu_us: float


_OURS = {"PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "src")])}
_CELERY = {"PYTHONPATH": os.pathsep.join([str(CELERY), str(CHECKOUT)])}
_BARE = (sys.executable, "-S", "-P", "-m")
WORKERS = (
    Worker(figure="veilmq consumer", words=(sys.executable, "-m", "benchmarks.workers.consumer"), environment=_OURS),
    Worker(
        figure="boto3 loop",
        words=(sys.executable, "-m", "benchmarks.workers.plain"),
        messages=MESSAGES_SLOW,
        environment=_OURS,
    ),
    Worker(
        figure="Celery, solo pool",
        words=(*_BARE, "celery", "--quiet", "--app", "benchmarks.workers.celery_app", "worker", "--pool", "solo"),
        messages=MESSAGES_SLOW,
        sends=(*_BARE, "benchmarks.workers.celery_app"),
        environment=_CELERY,
    ),
)


def measure(bench: Bench) -> Section:
    """Measure all workers in turn."""
    rows: list[Row] = []
    for worker in WORKERS:
        bench.log(f"drain: {worker.figure} …")
        rows += _rows(bench, worker)
    return Section(name="drain: one worker, empty handler", rows=tuple(rows))


def _rows(bench: Bench, worker: Worker) -> Iterator[Row]:
    if worker.sends and not CELERY.exists():
        yield alone(worker.figure, "messages/s", "not installed: Celery (scripts/install-clients.sh)")
        return
    try:
        drained = _drained(bench, worker)
    except (*rates.FAILURES, DrainError, subprocess.SubprocessError) as failure:
        yield alone(worker.figure, "messages/s", failed(failure))
        return
    yield alone(worker.figure, "messages/s", drained.per_s)
    yield alone(f"{worker.figure}, CPU", "µs/message", drained.cpu_us)


def _drained(bench: Bench, worker: Worker) -> Drained:
    with bench.opened(VEILMQ) as opened, HttpQueueClient(opened.url) as client:
        client.create_queue(QUEUE, {"visibility_timeout_s": 3600})
        environment = {**worker.environment, "QUEUE": QUEUE, "VEILMQ_ENDPOINT": opened.url.rstrip("/")}
        _fill(client, worker, environment)
        return _watch(client, worker, environment, opened)


def _fill(client: HttpQueueClient, worker: Worker, environment: Mapping[str, str]) -> None:
    """Fill the queue with messages that the worker can decode."""
    message = NewMessage(body="x" * 200)
    if worker.sends:
        subprocess.run(worker.sends, env={**os.environ, **environment}, check=True, capture_output=True, timeout=60)
        (sent,) = client.receive(QUEUE, wait_s=5)
        client.delete(QUEUE, sent.receipt)
        message = NewMessage(body=sent.body, attributes=sent.attributes)
    for _ in range(worker.messages // 10):
        client.send_batch(QUEUE, [message] * 10)


def _watch(client: HttpQueueClient, worker: Worker, environment: Mapping[str, str], opened: Opened) -> Drained:
    command = Command(name=worker.figure, arguments=worker.words, ready=lambda: True, environment=environment)
    deadline_s = time.perf_counter() + DRAIN_S_MAX
    with started(command) as process:
        began_s, cpu_s = 0.0, 0.0
        while True:
            status, now_s = client.show(QUEUE), time.perf_counter()
            if status.in_flight and not began_s:
                began_s, cpu_s = now_s, process.usage().cpu_s
            if began_s and not status.visible and not status.in_flight:
                break
            if process.ended() or now_s > deadline_s:
                raise DrainError(f"{worker.figure} did not drain the queue: {process.output()}")
            time.sleep(POLL_S)
        used_s = process.usage().cpu_s - cpu_s
    return Drained(per_s=worker.messages / (now_s - began_s), cpu_us=used_s / worker.messages * 1e6)
