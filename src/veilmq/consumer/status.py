"""The metrics of a running consumer, and its status, which ``veilmq top`` reads through a socket.

The sockets of a user's workers are in a folder that only this user may enter: below ``XDG_RUNTIME_DIR``, else below the
temporary folder with the user id in its name. Another user could create the latter first, so a folder that is not owned
by the user, or is open to others, is not used. Readers and new workers remove the sockets of killed workers. A socket
gets its final name only once it listens, so that it is not mistaken for a dead one.
"""

import contextlib
import logging
import os
import secrets
import socket
import stat
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from veilmq.consumer.leases import LeaseTable
from veilmq.consumer.metrics import Labels, Metric, MetricKind, RenewalMetrics
from veilmq.consumer.renewal_policies import LeaseTerms, Measured, RenewalPolicy
from veilmq.consumer.runner import Runner
from veilmq.core import Value

PATIENCE_S = 1.0  # for a worker's reply
LEASES_MAX = 1_000  # a status has the leases that end first

_SUFFIX = ".sock"
_READ_BYTES = 65_536

_log = logging.getLogger("veilmq.consumer")


class LeaseStatus(Value):
    """One message that a worker holds.

    ``state`` is ``held``, ``suspect``, ``lost`` or ``ended``. ``left_s`` is negative after the end of the lease,
    ``held_s`` counts from the receive; ``running``: the handler has started.
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


class HandlerStatus(Value):
    """One handler: its messages ``leased`` (between receive and settle), ``running`` and ``buffered``; event counts."""

    queue: str
    handler: str
    leased: int
    running: int
    buffered: int
    events: dict[str, int]


class WorkerStatus(Value):
    """One running consumer; ``leases`` are up to ``LEASES_MAX``."""

    worker: str
    host: str
    pid: int
    stopping: bool
    handlers: list[HandlerStatus]
    leases: list[LeaseStatus]


def status_of(runners: Sequence[Runner], table: LeaseTable, *, stopping: bool) -> WorkerStatus:
    """Return the status of a consumer. Thread-safe."""
    host, pid, now_s = socket.gethostname(), os.getpid(), table.clock.now_s()
    names = {id(runner.subscription): runner.handler.name for runner in runners}
    leases = [
        LeaseStatus(
            queue=lease.subscription.queue,
            handler=names[id(lease.subscription)],
            message_id=lease.message.id,
            attempt=lease.message.receive_count,
            state=lease.state.value,
            left_s=round(lease.remaining, 3),
            held_s=round(now_s - lease.received_at_s, 3),
            running=lease.started_at_s is not None,
            renewals=lease.renewals,
        )
        for lease in table.open_leases()
    ]
    handlers = [
        HandlerStatus(
            queue=runner.handler.options.queue,
            handler=runner.handler.name,
            leased=runner.held,
            running=runner.working,
            buffered=runner.waiting,
            events=dict(runner.counts.events),
        )
        for runner in runners
    ]
    first = sorted(leases, key=lambda lease: (lease.left_s, lease.message_id))[:LEASES_MAX]
    return WorkerStatus(worker=f"{host}:{pid}", host=host, pid=pid, stopping=stopping, handlers=handlers, leases=first)


def lease_length_s(runner: Runner) -> float | None:
    """Return the length of a lease received now; ``None`` before the first receive if the queue decides it."""
    subscription = runner.subscription
    return subscription.policy.receive_timeout_s(subscription.measured) or runner.lease_s or None


def guard_s(runner: Runner) -> float | None:
    """Return how long before its end such a lease would be renewed; ``None`` if its length is unknown."""
    length_s, subscription = lease_length_s(runner), runner.subscription
    return None if length_s is None else guard_of(subscription.policy, int(length_s), subscription.measured)


def guard_of(policy: RenewalPolicy, timeout_s: int, measured: Measured) -> float:
    """Return the shortest time before its end at which ``policy`` renews a lease of ``timeout_s``; 0 for never."""
    expires_at_s = policy.first_expiry_s(answered_at_s=0.0, timeout_s=timeout_s, measured=measured)
    lease = LeaseTerms(timeout_s=timeout_s, expires_at_s=expires_at_s, measured=measured, started_at_s=0.0)
    return max(0.0, expires_at_s - policy.renew_at_s(lease, 0.0))


Values = list[tuple[Labels, Any]]


def consumer_metrics(runners: Sequence[Runner], renewals: RenewalMetrics) -> list[Metric]:
    """Return the metrics of a consumer."""

    def metric(name: str, kind: MetricKind, text: str, read: Callable[[], Values], *labels: str) -> Metric:
        return Metric(name=f"veilmq_consumer_{name}", kind=kind, text=text, labels=labels, read=read)

    def each(name: str, kind: MetricKind, text: str, of: Callable[[Runner], Any]) -> Metric:
        """Return a metric with the value of ``of`` for each handler; ``None`` means no value yet."""

        def read() -> Values:
            values = [((runner.handler.options.queue, runner.handler.name), of(runner)) for runner in runners]
            return [(labels, value) for labels, value in values if value is not None]

        return metric(name, kind, text, read, "queue", "handler")

    def by(counts: dict[str, int], *labels: str) -> Values:
        return [((*labels, name), count) for name, count in sorted(counts.items())]

    def events() -> Values:
        return [
            row
            for runner in runners
            for row in by(runner.counts.events, runner.handler.options.queue, runner.handler.name)
        ]

    return [
        metric("events", "counter", "Messages by event.", events, "queue", "handler", "event"),
        each("leased", "gauge", "Messages held, from receive to settle.", lambda runner: runner.held),
        each("running", "gauge", "Messages in handlers.", lambda runner: runner.working),
        each("buffered", "gauge", "Messages that wait for a slot.", lambda runner: runner.waiting),
        each("lease_length_seconds", "gauge", "Lease of a message received now.", lease_length_s),
        each("guard_seconds", "gauge", "How long before the end of that lease its renewal begins.", guard_s),
        each("queue_wait_seconds", "histogram", "From sending to the first receive.", lambda r: r.counts.queue_wait),
        each("buffer_wait_seconds", "histogram", "From receive to handler.", lambda r: r.counts.buffer_wait),
        each("handle_time_seconds", "histogram", "In the handler.", lambda r: r.counts.handle_time),
        each("hold_time_seconds", "histogram", "From receive to the confirmed settle.", lambda r: r.counts.hold_time),
        metric("renew_calls", "counter", "Calls that renewed leases.", lambda: [((), renewals.calls)]),
        metric("renew_entries", "counter", "Renewals by their result.", lambda: by(renewals.results), "result"),
        metric("renew_errors", "counter", "Failed renewals, by reason.", lambda: by(renewals.errors), "class"),
        metric("renew_rtt_seconds", "histogram", "Calls that renewed leases.", lambda: [((), renewals.took)]),
        metric(
            "timer_lateness_seconds", "histogram", "From due to sent, for renewals.", lambda: [((), renewals.lateness)]
        ),
        metric("margin_at_renewal_seconds", "histogram", "Lease left at its renewal.", lambda: [((), renewals.margin)]),
    ]


class FolderUnfit(OSError):
    """The folder is not owned by the user, or others may enter it."""


def status_folder() -> Path:
    """Return the folder of the sockets, which may not exist."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "veilmq" if runtime else Path(tempfile.gettempdir()) / f"veilmq-{os.getuid()}"


@contextmanager
def announced(status: Callable[[], bytes]) -> Iterator[None]:
    """While the context lasts, send ``status()`` to each process of the user that connects.

    Uses one waiting thread. If a socket cannot be created, the worker runs without it.
    """
    try:
        listener, path = _bind(f"{os.getpid()}-{secrets.token_hex(4)}")
    except (OSError, AttributeError) as error:  # no folder, the path is too long, or the system has no such sockets
        _log.info("this worker cannot be seen by veilmq top: %s", error)
        yield
        return
    over = threading.Event()
    threading.Thread(target=_serve, args=(listener, status, over), name="veilmq-status", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        with contextlib.suppress(OSError):  # wakes the thread on Linux; `close` would not
            listener.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError), _connected(path):  # wakes it elsewhere, unless the path was removed
            pass
        path.unlink(missing_ok=True)
        listener.close()


def replies(*, read: bool = True) -> Iterator[tuple[Path, bytes | None]]:
    """Yield the reply of each worker's socket; ``None`` if it does not reply in time.

    Removes the sockets of dead workers; with ``read=False`` that is all. Raises ``OSError`` for an unfit folder.
    """
    folder = status_folder()
    if not folder.is_dir():
        return
    _check(folder)
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        try:
            with _connected(path) as connection:
                reply = b"".join(iter(lambda: connection.recv(_READ_BYTES), b"")) if read else b""
        except (ConnectionRefusedError, FileNotFoundError):  # the worker was killed or has just ended
            path.unlink(missing_ok=True)
        except OSError:
            yield path, None
        else:
            yield path, reply


@contextmanager
def _connected(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(os.fspath(path))
        yield connection


def _check(path: Path) -> None:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise FolderUnfit(f"{path} must be a folder of this user alone (mode 0700); remove it, or set XDG_RUNTIME_DIR")


def _bind(name: str) -> tuple[socket.socket, Path]:
    """Return a listening socket and its path. Raises ``OSError``."""
    folder = status_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    _check(folder)
    path = folder / f"{name}{_SUFFIX}"
    deque(replies(read=False), maxlen=0)  # removes dead sockets
    unnamed = path.with_suffix(".new")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(os.fspath(unnamed))
        unnamed.chmod(0o600)
        listener.listen()
        unnamed.rename(path)
    except OSError:
        listener.close()
        unnamed.unlink(missing_ok=True)
        raise
    return listener, path


def _serve(listener: socket.socket, status: Callable[[], bytes], over: threading.Event) -> None:
    while not over.is_set():
        try:
            connection, _ = listener.accept()
        except OSError:  # closed, or out of file descriptors
            return
        with connection, contextlib.suppress(OSError, RuntimeError):  # disconnected, or a dict changed during the read
            connection.settimeout(PATIENCE_S)
            connection.sendall(status())
