"""The cost of each step of a request, without sockets and load generator: ``python -m benchmarks.stack``.

The real parts run one step at a time: 64 connections get one request each, the store's batch applies them and writes
its rows, the database commits, the batch delivers. The cost of a step per request is the minimum of many rounds, which
other work on the machine hardly affects. The kernel's share (sockets, about five microseconds per request on the
machine of ``docs/performance.md``) is not included.
"""

import argparse
import asyncio
import gc
import re
import shutil
import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from veilmq.core.commands import Command, Done, Wake
from veilmq.server.dispatch import Dispatcher
from veilmq.server.http import Connections
from veilmq.server.long_polling import LongPolls
from veilmq.store.clock import SystemClock
from veilmq.store.sqlite.batch import Batch, Entry
from veilmq.store.sqlite.database import Database, EngineOptions, open_connection
from veilmq.store.sqlite.session import Session
from veilmq.wire.exchange import RequestContext

CONNECTIONS = 64
STEPS = ("parse, decode", "apply, write rows", "commit", "encode, reply")
_HOST = "127.0.0.1:9324"
_QUEUE = f'"QueueUrl":"http://{_HOST}/000000000000/bench"'
_SEND = f'{{{_QUEUE},"MessageBody":"{"x" * 256}"}}'
_RECEIVE = f'{{{_QUEUE},"MaxNumberOfMessages":1}}'
_HANDLE = re.compile(rb'"ReceiptHandle":"([^"]+)"')


class SteppedEngine:
    """The engine port over the parts of the SQLite store; a batch runs when the caller runs it."""

    def __init__(self, folder: Path) -> None:
        options = EngineOptions()
        connection = open_connection(folder, options)
        self.database = Database(connection, folder, options=options)
        self.session = Session(connection, options=options, database=self.database)
        self.batch = Batch(self.session)
        self.pending: deque[Entry] = deque()

    def submit(self, command: Command, done: Done) -> None:
        """Keep the command for the next batch."""
        self.pending.append((command, done))

    def withdraw(self, matches: Callable[[Done], bool]) -> list[Done]:
        """Withdraw none: a stepped engine has no clients that disconnect."""
        return []

    def watch(self, queue: str, wake: Wake) -> None: ...

    def unwatch(self, queue: str) -> None: ...

    @property
    def token_key(self) -> bytes:
        return bytes(32)


class Sink:
    """A transport that stores what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def set_write_buffer_limits(self, *, high: int, low: int) -> None: ...

    def is_closing(self) -> bool:
        return False


class Stack:
    """Everything between the socket and the disk."""

    def __init__(self, folder: Path) -> None:
        """Create the parts and open the connections."""
        clock = SystemClock()
        self._clock = clock
        self._engine = SteppedEngine(folder)
        polls = LongPolls(engine=self._engine, clock=clock)
        dispatcher = Dispatcher(polls=polls, context=RequestContext(base_url=""), host="127.0.0.1")
        connections = Connections(handler=dispatcher.handle)
        self._connections = [connections.protocol() for _ in range(CONNECTIONS)]
        self._sinks = [Sink() for _ in self._connections]
        for connection, sink in zip(self._connections, self._sinks, strict=True):
            connection.connection_made(cast(asyncio.Transport, sink))
        self.costs_us: dict[str, list[list[float]]] = {}

    def close(self) -> None:
        self._engine.session.connection.close()

    def round(self, action: str, bodies: list[str]) -> list[bytes]:
        """Give each connection a request, record the cost of each step, and return the replies."""
        requests = [_request(action, body) for body in bodies]
        engine, instants = self._engine, [time.perf_counter()]
        for connection, request in zip(self._connections, requests, strict=False):
            connection.data_received(request)
        instants.append(time.perf_counter())
        changed = engine.batch.run(engine.pending, self._clock.now_ms())
        instants.append(time.perf_counter())
        if changed:
            engine.database.commit()
        instants.append(time.perf_counter())
        engine.batch.deliver(time.perf_counter() + 1)
        instants.append(time.perf_counter())
        steps = [(later - earlier) / len(bodies) * 1e6 for earlier, later in pairwise(instants)]
        self.costs_us.setdefault(action, []).append(steps)
        return [sink.written.pop() for sink in self._sinks[: len(bodies)]]


def _request(action: str, body: str) -> bytes:
    return (
        f"POST / HTTP/1.1\r\nHost: {_HOST}\r\nContent-Type: application/x-amz-json-1.0\r\n"
        f"X-Amz-Target: AmazonSQS.{action}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


def _delete(reply: bytes) -> str:
    found = _HANDLE.search(reply)
    assert found is not None, f"a receive came back empty: {reply!r}"
    return f'{{{_QUEUE},"ReceiptHandle":"{found[1].decode()}"}}'


async def measure(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Return the cost of each step per request of each action, in microseconds."""
    gc.disable()  # most rounds of the server have no garbage collection, and neither does the minimum
    stack = Stack(folder)
    stack.round("CreateQueue", ['{"QueueName":"bench"}'])
    for _ in range(rounds):
        stack.round("SendMessage", [_SEND] * CONNECTIONS)
        received = stack.round("ReceiveMessage", [_RECEIVE] * CONNECTIONS)
        stack.round("DeleteMessage", [_delete(reply) for reply in received])
    stack.close()
    del stack.costs_us["CreateQueue"]
    return {action: [min(step) for step in zip(*rows, strict=True)] for action, rows in stack.costs_us.items()}


def _show(costs_us: dict[str, list[Any]]) -> None:
    print("".join(f"{head:>20}" for head in ("us a request", *STEPS, "together")))
    for action, steps in costs_us.items():
        print(f"{action:>20}" + "".join(f"{step:20.2f}" for step in (*steps, sum(steps))))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stack", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--work", type=Path, default=Path("veilmq-bench"), help="folder of the data: a real disk")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    try:
        _show(asyncio.run(measure(given.work, given.rounds)))
    finally:
        shutil.rmtree(given.work)


if __name__ == "__main__":
    main()
