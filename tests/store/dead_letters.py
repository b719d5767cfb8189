"""What tests of dead letters and of move tasks have in common."""

import pytest

from tests.store.host import QUEUE, Host
from veilmq.core import commands
from veilmq.core.commands import MoveStatus, MoveTask
from veilmq.core.settings import SettingValue

PAUSE_MS = 10

DEAD = "000000000000/dead"
DEEPER = "000000000000/deeper"
LONG_S = 1_209_600


def pair(host: Host, *, receives_max: int = 2, **settings: SettingValue) -> None:
    host.create(DEAD, **settings)
    host.create(QUEUE, dead_letter_queue=DEAD, receives_max=receives_max, **settings)


def wear_out(host: Host, times: int, queue: str = QUEUE) -> None:
    for _ in range(times):
        while host.receive(10, queue=queue, timeout_s=1):
            pass
        host.advance(1_000)


def bodies(host: Host, queue: str = QUEUE) -> list[str]:
    return host.bodies(10, queue=queue, timeout_s=0)


def kill(host: Host, *sent: str, queue: str = QUEUE) -> None:
    for first in range(0, len(sent), 100):
        host.send(*sent[first : first + 100], queue=queue)
    wear_out(host, 1, queue)
    while any(host.counts(queue)):
        host.receive(10, queue=queue)


def start(host: Host, destination: str | None = None, rate: int | None = None, source: str = DEAD) -> MoveTask:
    task: MoveTask = host.do(commands.StartMove(source=source, destination=destination, moves_per_s_max=rate))
    assert task.status is MoveStatus.RUNNING
    return task


def latest(host: Host, source: str = DEAD) -> MoveTask:
    task: MoveTask
    (task,) = host.do(commands.ListMoves(source=source))
    return task


def run(host: Host, time_ms: int) -> None:
    for _ in range(0, time_ms, PAUSE_MS):
        host.advance(PAUSE_MS)


def finish(host: Host, source: str = DEAD) -> MoveTask:
    """Let time pass until the task has ended, as little as possible; return it."""
    for _ in range(1_000):
        task = latest(host, source)
        if task.status is not MoveStatus.RUNNING:
            return task
        host.advance(PAUSE_MS)
    pytest.fail("the task does not end")
