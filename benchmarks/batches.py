"""Batches of the SQLite store without a server: pages in the log, CPU, and time with the sync.

`python -m benchmarks.batches fifo --batches 200`. The kind determines the batch: `send`, `send-ten`, `cycle` and `fifo`
(22 sends, receives and deletes each; 1,000 groups), `fifo-steps` (64 sends, then their receives, then their deletes).
A loop has warm caches: it shows which pages are written, not how many requests a server results.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.servers import CHECKOUT
from veilmq.core.commands import Command, CreateQueue, Delete, Receive, Send
from veilmq.core.messages import NewMessage
from veilmq.store.clock import SystemClock
from veilmq.store.sqlite import SqliteStore
from veilmq.store.sqlite.database import EngineOptions

KINDS = ("send", "send-ten", "cycle", "fifo", "fifo-steps")
COMMANDS = 64
GROUPS = 1_000
WARM_UP = 40
QUEUE = "bench/q"
OPTIONS = EngineOptions(in_flight_max=1_000_000, fifo_in_flight_max=1_000_000)


@dataclass(slots=True)
class Load:
    """Submits batches of one kind to a store and records their costs."""

    kind: str
    engine: Any
    cpu_s: list[float] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    _sent: int = 0
    _ready: int = 0
    _step: int = 0
    _receipts: list[tuple[str, ...]] = field(default_factory=list)

    async def batch(self) -> None:
        """Submit one batch and wait for its results."""
        commands = self._commands()
        pages = self._log_pages()
        started_s, cpu_s = time.perf_counter(), time.thread_time()
        results = await self.submit(commands)
        self.cpu_s.append((time.thread_time() - cpu_s) / len(commands))
        self.took_s.append(time.perf_counter() - started_s)
        grown = self._log_pages() - pages
        self.pages.append(grown if grown >= 0 else self._log_pages())
        for command, result in zip(commands, results, strict=True):
            if isinstance(command, Receive):
                assert result.messages, "what was sent is received"
                self._receipts.append(tuple(message.receipt for message in result.messages))
            elif isinstance(command, Send):
                self._ready += 1

    async def submit(self, commands: Sequence[Command]) -> list[Any]:
        """Submit commands together and return their results."""
        futures: list[asyncio.Future[Any]] = [asyncio.get_running_loop().create_future() for _ in commands]
        for command, future in zip(commands, futures, strict=True):
            self.engine.submit(command, future.set_result)
        return await asyncio.gather(*futures)

    def _log_pages(self) -> int:
        return int(self.engine._database._log_pages)

    def _commands(self) -> list[Command]:
        if self.kind.startswith("send"):
            return [self._send() for _ in range(COMMANDS)]
        if self.kind == "fifo-steps":
            self._step += 1
            if self._step % 3 == 1:
                return [self._send() for _ in range(COMMANDS)]
            return self._deletes(COMMANDS) or [Receive(queue=QUEUE) for _ in range(COMMANDS)]
        receives = min(self._ready, COMMANDS // 3)
        self._ready -= receives
        return [
            *self._deletes(COMMANDS // 3),
            *[self._send() for _ in range(COMMANDS // 3)],
            *[Receive(queue=QUEUE) for _ in range(receives)],
        ]

    def _deletes(self, count: int) -> list[Command]:
        taken, self._receipts = self._receipts[:count], self._receipts[count:]
        return [Delete(queue=QUEUE, receipts=receipts) for receipts in taken]

    def _send(self) -> Send:
        return Send(queue=QUEUE, messages=tuple(self._message() for _ in range(10 if self.kind == "send-ten" else 1)))

    def _message(self) -> NewMessage:
        self._sent += 1
        if not self.kind.startswith("fifo"):
            return NewMessage(body="x" * 256, size_bytes=256)
        return NewMessage(body="x" * 256, size_bytes=256, group=f"g{self._sent % GROUPS}", dedup_id=str(self._sent))

    def line(self) -> str:
        pages = sum(self.pages) / len(self.pages)
        took_ms, cpu_us = median(self.took_s) * 1e3, median(self.cpu_s) * 1e6
        return f"{self.kind}: {pages:.1f} pages and {took_ms:.2f} ms a batch, {cpu_us:.1f} µs CPU a command"


async def measure(kind: str, batches: int, folder: Path) -> str:
    """Run `batches` on an empty store; return the figures."""
    store = SqliteStore(folder, clock=SystemClock(), options=OPTIONS)
    load = Load(kind, store)
    await load.submit([CreateQueue(queue=QUEUE, settings={"fifo": True} if kind.startswith("fifo") else {})])
    for _ in range(WARM_UP):
        await load.batch()
    load.cpu_s, load.took_s, load.pages = [], [], []
    for _ in range(batches):
        await load.batch()
    await store.close()
    return load.line()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batches")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--batches", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=CHECKOUT) as folder:
        print(asyncio.run(measure(options.kind, options.batches, Path(folder))))


if __name__ == "__main__":
    main()
