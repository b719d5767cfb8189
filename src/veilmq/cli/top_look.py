"""One look at a server and at workers: the rows that ``veilmq top`` shows.

Queues are asked for as any client asks, with the caller's rights. What SQS has no attribute for (the age of the oldest
message, redeliveries) comes from the server's metrics, where these can be reached.
"""

import re
from collections.abc import Iterator, Sequence

import msgspec
import urllib3

from veilmq.client import ClientError, HttpQueueClient
from veilmq.consumer.status import WorkerStatus, replies
from veilmq.wire.sqs.names import full_name

QUEUES_MAX = 200
"""Queues that are looked at, the first ones by name: each costs a request a look."""
PATIENCE_S = 2.0
AGE = "veilmq_queue_oldest_message_age_seconds"
REDELIVERIES = "veilmq_queue_redeliveries_total"

_SAMPLE = re.compile(r'^(\w+)\{queue="([^"]*)"\} (\S+)$', re.MULTILINE)
_GONE = ("QueueDoesNotExist", "NonExistentQueue")


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """One queue; ``None`` for what nobody tells."""

    queue: str
    visible: int
    in_flight: int
    delayed: int
    oldest_s: float | None = None
    redeliveries: int | None = None


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What there was to see at ``at_ms``; ``silent`` are the places of workers that did not answer."""

    endpoint: str
    at_ms: int
    queues: Sequence[QueueRow]
    queues_in_all: int
    workers: Sequence[WorkerStatus]
    silent: Sequence[str]


class Observer:
    """Looks as often as it is told to."""

    def __init__(self, client: HttpQueueClient, *, prefix: str, admin: str | None, workers: Sequence[str]) -> None:
        """``admin`` is the URL of the server's metrics, ``workers`` are URLs of workers elsewhere."""
        self._client = client
        self._prefix = prefix
        self._admin = admin
        self._workers = workers
        timeout = urllib3.Timeout(PATIENCE_S)
        self._pages = urllib3.PoolManager(retries=False, timeout=timeout)

    def queues(self) -> tuple[list[QueueRow], int]:
        """Return the rows of queues, and how many there are; raises ``ClientError`` and ``Unreachable``."""
        names = self._client.list_queues(self._prefix)
        samples = self._samples() if self._admin else {}
        return [row for name in names[:QUEUES_MAX] for row in self._row(name, samples)], len(names)

    def workers(self) -> tuple[list[WorkerStatus], list[str]]:
        """Return what workers do, and the places of those that did not answer."""
        found: list[WorkerStatus] = []
        silent: list[str] = []
        for place, data in (*self._here(), *self._elsewhere()):
            try:
                found += msgspec.json.decode(data or b"", type=list[WorkerStatus])
            except msgspec.DecodeError:
                silent.append(place)
        return sorted(found, key=lambda worker: worker.worker), silent

    def close(self) -> None:
        """Close the idle connections."""
        self._pages.clear()

    def _row(self, name: str, samples: dict[tuple[str, str], float]) -> Iterator[QueueRow]:
        try:
            status = self._client.show(name)
        except ClientError as error:
            if error.code.endswith(_GONE):  # it was deleted meanwhile
                return
            raise
        label = full_name(status.url)
        redeliveries = samples.get((REDELIVERIES, label))
        yield QueueRow(
            queue=name,
            visible=status.visible,
            in_flight=status.in_flight,
            delayed=status.delayed,
            oldest_s=samples.get((AGE, label)),
            redeliveries=None if redeliveries is None else int(redeliveries),
        )

    def _samples(self) -> dict[tuple[str, str], float]:
        data = self._page(f"{self._admin}/metrics")
        text = "" if data is None else data.decode(errors="replace")
        return {(name, queue): float(value) for name, queue, value in _SAMPLE.findall(text)}

    def _here(self) -> Iterator[tuple[str, bytes | None]]:
        for path, data in replies():
            yield path.stem, data

    def _elsewhere(self) -> Iterator[tuple[str, bytes | None]]:
        for url in self._workers:
            yield url, self._page(f"{url.rstrip('/')}/status")

    def _page(self, url: str) -> bytes | None:
        try:
            answer = self._pages.request("GET", url)
        except urllib3.exceptions.HTTPError:
            return None
        return bytes(answer.data) if answer.status == 200 else None
