"""What a worker is doing at one instant, for whoever looks: its handlers, and each lease with the time left on it."""

import os
import socket
from collections.abc import Iterator

import msgspec

from veilmq.consumer.leases import Lease
from veilmq.consumer.runner import Runner
from veilmq.consumer.running import Running

LEASES_MAX = 1_000
"""Leases that are told of, those first that end first."""


class LeaseStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One message in the hands of a worker.

    ``state`` is that of the lease: ``held``, ``suspect``, ``lost``, ``ended``. ``left_s`` is negative when it is over,
    ``held_s`` counts from the receive; ``running`` tells whether the handler has begun.
    """

    queue: str
    handler: str
    message_id: str
    attempt: int
    state: str
    left_s: float
    held_s: float
    running: bool
    renewals: int


class HandlerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One handler: messages ``leased`` (in our hands), ``running`` and ``buffered``, and what happened, by event."""

    queue: str
    handler: str
    leased: int
    running: int
    buffered: int
    events: dict[str, int]


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One running consumer; ``leases`` of all its leases those that end first."""

    worker: str
    host: str
    pid: int
    stopping: bool
    handlers: list[HandlerStatus]
    leases: list[LeaseStatus]


def status_of(running: Running) -> WorkerStatus:
    """Return what ``running`` is doing; may be called in any thread."""
    host, pid = socket.gethostname(), os.getpid()
    leases = sorted(_leases(running), key=lambda lease: (lease.left_s, lease.message_id))
    return WorkerStatus(
        worker=f"{host}:{pid}",
        host=host,
        pid=pid,
        stopping=running.stopping,
        handlers=[_handler(runner) for runner in running.runners],
        leases=leases[:LEASES_MAX],
    )


def _handler(runner: Runner) -> HandlerStatus:
    return HandlerStatus(
        queue=runner.handler.options.queue,
        handler=runner.handler.name,
        leased=runner.held,
        running=runner.working,
        buffered=runner.waiting,
        events=dict(runner.counts.events),
    )


def _leases(running: Running) -> Iterator[LeaseStatus]:
    now_s = running.table.clock.now_s()
    runners = {id(runner.subscription): runner for runner in running.runners}
    for lease in running.table.open_leases():
        yield _lease(lease, runners[id(lease.subscription)], now_s)


def _lease(lease: Lease, runner: Runner, now_s: float) -> LeaseStatus:
    return LeaseStatus(
        queue=runner.handler.options.queue,
        handler=runner.handler.name,
        message_id=lease.message.id,
        attempt=lease.message.receive_count,
        state=lease.state_at(now_s).value,
        left_s=round(lease.remaining_s(now_s), 3),
        held_s=round(now_s - lease.received_at_s, 3),
        running=lease.started_at_s is not None,
        renewals=lease.renewals,
    )
