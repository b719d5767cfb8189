"""A running consumer that can be watched: its metrics are exported, and it says what it is doing."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from veilmq.consumer.announcing import announced
from veilmq.consumer.figures import figures
from veilmq.consumer.metrics import exported
from veilmq.consumer.running import Running
from veilmq.consumer.status import WorkerStatus, status_of

_lock = threading.Lock()
_seen: list[Running] = []


@contextmanager
def watched(running: Running, *, seen: bool) -> Iterator[None]:
    """Export the metrics of ``running``; ``seen`` lets ``veilmq top`` see what it is doing."""
    with ExitStack() as stack:
        stack.enter_context(exported(figures(running)))
        if seen:
            stack.enter_context(_listed(running))
            stack.enter_context(announced(lambda: msgspec.json.encode([status_of(running)])))
        yield


def statuses() -> list[WorkerStatus]:
    """Return what each consumer of this process that may be seen is doing."""
    with _lock:
        return [status_of(running) for running in _seen]


@contextmanager
def _listed(running: Running) -> Iterator[None]:
    with _lock:
        _seen.append(running)
    try:
        yield
    finally:
        with _lock:
            _seen.remove(running)
