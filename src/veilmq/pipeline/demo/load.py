"""The load of the demonstration: a producer sends, workers receive, and one worker is killed."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from veilmq.client import HttpQueueClient, NewMessage
from veilmq.core.properties import Attribute
from veilmq.pipeline.demo.kinds import ATTRIBUTE, Work
from veilmq.pipeline.demo.processes import Processes
from veilmq.pipeline.failures import PipelineFailed

WORKERS = 3
THREADS = 24
KILL_AT = 0.4
_LOOK_S = 0.3
_PATIENCE_S = 240.0
_PATIENCE = 12.0  # times as long as sending takes
_BATCH = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Shared by all acts: the folder, the server, and the processes."""

    folder: Path
    endpoint: str
    client: HttpQueueClient
    processes: Processes

    @property
    def events(self) -> Path:
        """Return the folder of the exported event log."""
        return self.folder / "events"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is sent to ``intake``, in which queues workers find it, and to which queue they send what is ``done``.

    ``arrived`` returns how many messages are in the ``worked`` queues or were; without it, all that were sent.
    """

    intake: str
    worked: tuple[str, ...]
    done: str
    work: tuple[Work, ...]
    send_s: float
    arrived: Callable[[], int] | None = None


def run(stage: Stage, load: Load, *, report: Callable[[int], None]) -> float:
    """Send and work until nothing is left; return the seconds. ``report`` is called with the messages done so far."""
    begun_s = time.monotonic()
    workers = [
        stage.processes.start(
            f"worker-{number}",
            "veilmq.pipeline.demo.worker",
            *(stage.endpoint, str(number), str(THREADS), load.done, *load.worked),
        )
        for number in range(WORKERS)
    ]
    producer = _Producer(stage.endpoint, load)
    producer.start()
    finished = 0
    while finished < len(load.work):
        time.sleep(_LOOK_S)
        arrived = load.arrived() if load.arrived else producer.sent
        left = sum(_left(stage.client, queue) for queue in load.worked)  # in the order of classes: none is overlooked
        finished = max(finished, arrived - left)
        report(finished)
        if finished >= KILL_AT * len(load.work) and len(workers) == WORKERS:
            workers.pop().kill()
        _check(stage, load, producer, finished, begun_s)
    stage.processes.end(workers)
    return time.monotonic() - begun_s


def _check(stage: Stage, load: Load, producer: "_Producer", finished: int, begun_s: float) -> None:
    if producer.sent < len(load.work) and not producer.is_alive():
        raise PipelineFailed(f"The producer of the demonstration has failed after {producer.sent} messages.")
    if time.monotonic() - begun_s > _PATIENCE_S + _PATIENCE * load.send_s:
        raise PipelineFailed(f"The demonstration does not end: {finished} of {len(load.work)} messages are done.")


def _left(client: HttpQueueClient, queue: str) -> int:
    status = client.show(queue)
    return status.visible + status.in_flight + status.delayed


class _Producer(threading.Thread):
    """Sends all work, evenly over the seconds that the load says; ``sent`` is how far it is."""

    def __init__(self, endpoint: str, load: Load) -> None:
        super().__init__(daemon=True)
        self.sent = 0
        self._endpoint, self._load = endpoint, load

    def run(self) -> None:
        """Send."""
        work, begun_s = self._load.work, time.monotonic()
        with HttpQueueClient(self._endpoint) as client:
            for start in range(0, len(work), _BATCH):
                messages = [_message(each) for each in work[start : start + _BATCH]]
                client.send_batch(self._load.intake, messages)
                self.sent += len(messages)
                due_s = begun_s + self._load.send_s * self.sent / len(work)
                time.sleep(max(0.0, due_s - time.monotonic()))


def _message(work: Work) -> NewMessage:
    kind = Attribute(type="String", text=work.kind)
    return NewMessage(body=msgspec.json.encode(work).decode(), attributes={ATTRIBUTE: kind})
