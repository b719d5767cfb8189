"""The cost of waiting: 100 long polls parked on an empty queue, and how fast a send wakes one of them.

CPU is measured over the same wall time with and without the polls. A wake-up lasts from just before the send is written
to the arrival of the message at a poll; the number of polls that get a message is counted too.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import median

import uvloop

from benchmarks import rates, stock
from benchmarks.bench import Bench, Opened
from benchmarks.dialogue import Connection, Dialogue, DialogueError, connect, request
from benchmarks.row import Row, Section, alone, failed
from benchmarks.servers import VEILMQ
from benchmarks.sqs import Sqs

POLLS = 100
WAIT_S = 20
SETTLE_S = 1.0
WATCH_S = 5.0
SENDS = 20
WOKEN_WITHIN_S = 2.0
OTHERS_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """CPU seconds over `WATCH_S`; for each send the milliseconds to the first wake-up and the polls woken."""

    cpu_without_s: float
    cpu_with_s: float
    wake_ms: list[float]
    woken: list[int]


def measure(bench: Bench) -> Section:
    """Return three rows: CPU, wake-up time, polls woken by one send."""
    bench.log(f"{POLLS} parked long polls …")
    if missing := VEILMQ.missing():
        return Section(name="idle", rows=(alone("parked long polls", "", missing),))
    try:
        with bench.opened(VEILMQ) as opened, Sqs(port=opened.port) as sqs:
            queue_url = sqs.create_queue("idle")
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                idle = runner.run(_measure(opened, queue_url))
    except rates.FAILURES as failure:
        return Section(name="idle", rows=(alone("parked long polls", "", failed(failure)),))
    return Section(name="idle", rows=tuple(_rows(idle)), raw=asdict(idle))


async def _measure(opened: Opened, queue_url: str) -> Idle:
    cpu_without_s = await _cpu_s(opened)
    woken: list[float] = []
    polls = [await connect(port=opened.port, dialogue=_poll(queue_url, woken)) for _ in range(POLLS)]
    try:
        for poll in polls:
            poll.start()
        await asyncio.sleep(SETTLE_S)
        cpu_with_s = await _cpu_s(opened)
        times = [await _wake(opened, queue_url, woken, polls) for _ in range(SENDS)]
    finally:
        for poll in polls:
            poll.close()
    return Idle(
        cpu_without_s=cpu_without_s,
        cpu_with_s=cpu_with_s,
        wake_ms=[first_ms for first_ms, _ in times],
        woken=[count for _, count in times],
    )


async def _cpu_s(opened: Opened) -> float:
    before = opened.process.usage().cpu_s
    await asyncio.sleep(WATCH_S)
    return opened.process.usage().cpu_s - before


def _poll(queue_url: str, woken: list[float]) -> Dialogue:
    """Poll for ever; record the arrival of each message and leave it in flight."""
    receive = request("ReceiveMessage", QueueUrl=queue_url, WaitTimeSeconds=WAIT_S)
    while True:
        if stock.first_handle((yield receive)) is not None:
            woken.append(time.perf_counter())


def _one_send(queue_url: str) -> Dialogue:
    yield request("SendMessage", QueueUrl=queue_url, MessageBody=stock.BODY)


async def _wake(opened: Opened, queue_url: str, woken: list[float], polls: list[Connection]) -> tuple[float, int]:
    """Send once; return the milliseconds to the first wake-up and the number of polls that got a message."""
    woken.clear()
    sender = await connect(port=opened.port, dialogue=_one_send(queue_url))
    began = time.perf_counter()
    sender.start()
    await sender.finished
    await _until_woken(woken, polls, deadline=began + WOKEN_WITHIN_S)
    await asyncio.sleep(OTHERS_S)
    sender.close()
    return (woken[0] - began) * 1e3, len(woken)


async def _until_woken(woken: list[float], polls: list[Connection], *, deadline: float) -> None:
    while not woken:
        for poll in polls:
            if poll.finished.done():
                poll.finished.result()
        if time.perf_counter() > deadline:
            raise DialogueError(f"no poll was woken within {WOKEN_WITHIN_S:.0f} s of a send")
        await asyncio.sleep(0.001)


def _rows(idle: Idle) -> Iterator[Row]:
    polls = f"{POLLS} parked long polls"
    without = f"without them {idle.cpu_without_s:.2f} s"
    yield alone(f"{polls}: CPU over {WATCH_S:.0f} s", "s", idle.cpu_with_s, note=without)
    note = f"worst of {len(idle.wake_ms)}: {max(idle.wake_ms):.1f} ms"
    yield alone(f"{polls}: a send wakes one in", "ms", median(idle.wake_ms), note=note)
    yield alone(f"{polls}: most woken by one send", "polls", float(max(idle.woken)))
