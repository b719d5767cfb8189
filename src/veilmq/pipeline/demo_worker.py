"""A process of the demonstration, and the work that messages describe.

``python -m veilmq.pipeline.demo_worker work ENDPOINT NUMBER THREADS DONE QUEUE…`` is a worker; with any other first
argument, the process runs that module with the other arguments. Either ends with its parent process: when its standard
input closes, even because the parent is killed, the process sends itself SIGTERM.
"""

import math
import os
import random
import runpy
import signal
import sys
import threading
import time
from collections.abc import Iterator
from itertools import islice

import msgspec

from veilmq.client import ClientError, HttpQueueClient, Unreachable
from veilmq.core import Value

IDLE_S = 1
SIGMA = 0.5

KINDS = {"thumbnail": (0.04, 0.40), "invoice": (0.16, 0.30), "video": (0.6, 0.18), "forecast": (1.6, 0.12)}
"""Kind of work → median of its log-normal durations in seconds, and its share of all messages.

The durations are so far apart that no single timeout suits them.
"""

ATTRIBUTE = "Type"
"""The message attribute with the kind of work."""


class Work(Value):
    """The body of a message: its number, its kind, and the duration of the work, the same at each attempt."""

    number: int
    kind: str
    seconds: float


class Done(Value):
    """The body of the message that a worker sends after the work: the work and the attempt."""

    number: int
    kind: str
    attempt: int
    worker: int


def work(messages: int, *, seed: int, first: int = 0) -> Iterator[Work]:
    """Yield ``messages`` pieces of work, drawn from ``seed`` and numbered from ``first`` on."""
    chance = random.Random(seed)
    kinds = chance.choices([*KINDS], [share for _, share in KINDS.values()], k=messages)
    for number, kind in enumerate(kinds, start=first):
        seconds = chance.lognormvariate(math.log(KINDS[kind][0]), SIGMA)
        yield Work(number=number, kind=kind, seconds=round(seconds, 3))


def _work(endpoint: str, number: str, threads: str, done: str, *queues: str) -> None:
    """Run a worker with its threads until SIGTERM; messages in progress are finished.

    A thread receives a message, works for the time in its body, sends a message to the queue ``done``, and deletes the
    received one. With several queues, a thread polls all of them without waiting, its own first, and then waits at its
    own.
    """
    stop = threading.Event()

    def run(own: int) -> None:
        ordered = [*queues[own:], *queues[:own]]
        waits = [*((queue, 0) for queue in ordered if len(ordered) > 1), (ordered[0], IDLE_S)]
        with HttpQueueClient(endpoint) as client:
            while not stop.is_set():
                try:
                    received = (
                        (queue, each) for queue, wait_s in waits for each in client.receive(queue, wait_s=wait_s)
                    )
                    for queue, message in islice(received, 1):
                        piece = msgspec.json.decode(message.body, type=Work)
                        time.sleep(piece.seconds)
                        attempt = message.receive_count
                        report = Done(number=piece.number, kind=piece.kind, attempt=attempt, worker=int(number))
                        client.send(done, msgspec.json.encode(report).decode())
                        client.delete(queue, message.receipt)
                except (ClientError, Unreachable):
                    stop.wait(IDLE_S)  # the server is busy or starting; the message is delivered again

    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    running = [threading.Thread(target=run, args=(place % len(queues),)) for place in range(int(threads))]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def _end_with_parent() -> None:
    while os.read(0, 1):  # not through a buffer: its lock would be held when the interpreter ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    del sys.argv[0]
    if sys.argv[0] == "work":
        _work(*sys.argv[1:])
    else:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
