"""What can be watched of a running consumer: its metrics, and its status through a socket for ``veilmq top``.

The sockets of a user's workers are in a folder that only this user may enter: below ``XDG_RUNTIME_DIR``, else below the
folder for temporary files, with the user's number in its name. Other users could have made it first, so a folder that
is not the user's own, or open to others, is not used. A killed worker leaves its socket behind; readers and new workers
remove such sockets. A socket gets its name once it listens, so that it is never taken for a dead one.
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

PATIENCE_S = 1.0
"""How long a worker may take to reply."""
LEASES_MAX = 1_000
"""Leases in a status: those that end first."""

_SUFFIX = ".sock"
_READ_BYTES = 65_536

_log = logging.getLogger("veilmq.consumer")


class LeaseStatus(Value):
    """One message that a worker holds.

    ``state`` is that of the lease: ``held``, ``suspect``, ``lost``, ``ended``. ``left_s`` is negative when it is over,
    ``held_s`` counts from the receive; ``running``: the handler has begun.
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
    """One handler: messages ``leased`` (from receive to settle), ``running`` and ``buffered``, and counts by event."""

    queue: str
    handler: str
    leased: int
    running: int
    buffered: int
    events: dict[str, int]


class WorkerStatus(Value):
    """One running consumer; ``leases`` has those that end first."""

    worker: str
    host: str
    pid: int
    stopping: bool
    handlers: list[HandlerStatus]
    leases: list[LeaseStatus]


def status_of(runners: Sequence[Runner], table: LeaseTable, *, stopping: bool) -> WorkerStatus:
    """Return the status of a consumer; may be called in any thread."""
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


# ------------------------------------------------------------------------------------------------- metrics


def lease_length_s(runner: Runner) -> float | None:
    """Return the length of a lease that began now; ``None`` until the first receive, where the queue decides."""
    subscription = runner.subscription
    return subscription.policy.receive_timeout_s(subscription.measured) or runner.lease_s or None


def guard_s(runner: Runner) -> float | None:
    """Return how long before its end such a lease would be renewed; ``None`` where its length is not known."""
    length_s, subscription = lease_length_s(runner), runner.subscription
    return None if length_s is None else guard_of(subscription.policy, int(length_s), subscription.measured)


def guard_of(policy: RenewalPolicy, timeout_s: int, measured: Measured) -> float:
    """Return how long before its end ``policy`` renews a lease of ``timeout_s`` at the latest; 0 for never."""
    expires_at_s = policy.first_expiry_s(answered_at_s=0.0, timeout_s=timeout_s, measured=measured)
    lease = LeaseTerms(timeout_s=timeout_s, expires_at_s=expires_at_s, measured=measured, started_at_s=0.0)
    return max(0.0, expires_at_s - policy.renew_at_s(lease, 0.0))


Values = list[tuple[Labels, Any]]


def consumer_metrics(runners: Sequence[Runner], renewals: RenewalMetrics) -> list[Metric]:
    """Return the metrics of a consumer."""

    def metric(name: str, kind: MetricKind, text: str, read: Callable[[], Values], *labels: str) -> Metric:
        return Metric(name=f"veilmq_consumer_{name}", kind=kind, text=text, labels=labels, read=read)

    def each(name: str, kind: MetricKind, text: str, of: Callable[[Runner], Any]) -> Metric:
        """Return what ``of`` reads of each handler; ``None`` is for no value yet."""

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


# ------------------------------------------------------------------------------------------------- sockets


class FolderUnfit(OSError):
    """The folder is not the user's own, or others may enter it; says what to do."""


def status_folder() -> Path:
    """Return the folder, which may not exist."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "veilmq" if runtime else Path(tempfile.gettempdir()) / f"veilmq-{os.getuid()}"


@contextmanager
def announced(status: Callable[[], bytes]) -> Iterator[None]:
    """Send what ``status`` returns to each process of the user that connects, while the context lasts.

    Costs a thread that waits. Where there can be no socket, the worker runs without.
    """
    try:
        listener, path = _listen(f"{os.getpid()}-{secrets.token_hex(4)}")
    except (OSError, AttributeError) as error:  # no folder, a path that is too long, a system without such sockets
        _log.info("this worker cannot be seen by veilmq top: %s", error)
        yield
        return
    over = threading.Event()
    threading.Thread(target=_serve, args=(listener, status, over), name="veilmq-status", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        with contextlib.suppress(OSError):  # closing the socket would not wake the thread: on Linux this does,
            listener.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError), _connected(path):  # and elsewhere a connection, unless the path was removed
            pass
        path.unlink(missing_ok=True)
        listener.close()


def replies(*, read: bool = True) -> Iterator[tuple[Path, bytes | None]]:
    """Yield the status that each worker of the user sends at its socket, ``None`` where one does not reply in time.

    Removes the sockets of dead workers, and does no more than that unless ``read``. Raises ``OSError`` for a folder
    that is unfit.
    """
    folder = status_folder()
    if not folder.is_dir():
        return
    _check(folder)
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        try:
            with _connected(path) as connection:
                reply = b"".join(iter(lambda: connection.recv(_READ_BYTES), b"")) if read else b""
        except (ConnectionRefusedError, FileNotFoundError):  # the worker was killed, or has just ended
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


def _listen(name: str) -> tuple[socket.socket, Path]:
    """Return a socket that listens in the folder under ``name``, with its path; raises ``OSError``."""
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
        except OSError:  # closed, or no file descriptor is left
            return
        with connection, contextlib.suppress(OSError, RuntimeError):  # disconnected, or it changed while it was read
            connection.settimeout(PATIENCE_S)
            connection.sendall(status())
