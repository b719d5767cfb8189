"""Offsets of a stream in Spark's checkpoint: a source and the number of its last claim; and when a batch is finished.

The server binds the messages of a number before Spark logs it.

``Progress`` determines which batches are finished. Normally Spark requests the batch after an offset only if that
offset is in its commit log, so the request proves that the batch is finished. With asynchronous progress tracking,
Spark runs ahead of its logs. Only the order of calls reveals that: normally Spark calls ``commit(a)`` before it plans
the batch from *a* to *b*, asynchronously it does so later or never. So no batch counts as finished before this order
was observed, with two exceptions: offsets from before this process were read from the logs, and the first batch of a
process is logged immediately in both cases, so it is finished after some idle seconds. (Spark 4.3.0:
MicroBatchExecution and AsyncProgressTrackingMicroBatchExecution.)
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from veilmq.spark.options import CLAIMS, SQS, SourceOptions
from veilmq.spark.retries import with_remedies

VERSION = 1

_log = logging.getLogger("veilmq.spark")


class OffsetUnknown(ValueError):
    """The checkpoint belongs to another version of the source, to another source or to another queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """The claims of ``source`` up to ``number``; ``first`` is set if the batch that ends here starts at a later claim.

    ``queue`` is the name of the queue; empty in checkpoints of earlier versions.
    """

    source: str = ""
    number: int = 0
    first: int | None = None
    queue: str = ""

    @classmethod
    def of(cls, json: dict[str, Any], *, mode: str = CLAIMS, queue: str = "") -> Self:
        """Return the offset in ``json``, for a stream with ``mode`` on ``queue``; raises ``OffsetUnknown``."""
        source, number, first = json.get("src"), json.get("n"), json.get("first")
        if json.get("v") != VERSION or type(source) is not str or type(number) is not int:
            raise OffsetUnknown(f"the checkpoint has {json!r}, which is no offset of veilmq (version {VERSION})")
        own_mode = SQS if source == SQS else CLAIMS
        if source and own_mode != mode:
            raise OffsetUnknown(f"the checkpoint has mode={own_mode}; use this mode, or a new checkpoint")
        written = json.get("queue", "")
        if queue and written and written != queue:
            raise OffsetUnknown(
                f"the checkpoint is of the queue {written}, not of {queue}; read {written}, or use a new checkpoint"
            )
        return cls(source=source, number=number, first=first, queue=written)

    def json(self) -> dict[str, Any]:
        """Return the offset as a dictionary; equal offsets give equal dictionaries."""
        json: dict[str, Any] = {"v": VERSION, "src": self.source, "n": self.number}
        json |= {} if self.first is None else {"first": self.first}
        return json | ({"queue": self.queue} if self.queue else {})

    def claims_to(self, end: "Offset") -> range:
        """Return the numbers of the claims in the batch from this offset to ``end``."""
        return range(end.first or self.number + 1, end.number + 1)


INITIAL = Offset()

IDLE_S = 5.0
"""Time for Spark to write the first two entries of its logs."""


class AsynchronousProgress(Exception):
    """The query tracks its progress asynchronously, which a queue does not support."""

    def __init__(self) -> None:
        super().__init__(
            "The query has asyncProgressTrackingEnabled: Spark continues before a batch is stored, and messages would "
            "be deleted too early. Remove this option of writeStream."
        )


class Progress:
    """The calls of Spark that one process has observed. ``ordered``: progress tracking is not asynchronous."""

    def __init__(self) -> None:
        self.ordered = False
        self._made: list[int] = []  # the last two offsets
        self._committed = 0
        self._idle_since_s: dict[int, float] = {}

    def made(self, number: int) -> None:
        """Record that Spark received the offset ``number``."""
        self._made = [*self._made[-1:], number]

    def committed(self, number: int) -> None:
        """Record that Spark has committed all batches up to ``number``."""
        self._committed = max(self._committed, number)

    def finished(self, number: int) -> bool:
        """Return whether the batch that ends at ``number``, where the next batch starts, is certainly finished."""
        return self.ordered or number <= self._committed or number not in self._made

    def is_idle(self, number: int, now_s: float) -> bool:
        """Return whether the batch is finished because Spark has requested the one after it for ``IDLE_S``."""
        since_s = self._idle_since_s.setdefault(number, now_s)
        self._idle_since_s = {number: since_s}
        return now_s - since_s >= IDLE_S

    def planned(self, start: int) -> None:
        """Record that Spark plans a batch from ``start``; raises ``AsynchronousProgress`` if that is out of order."""
        if not self.finished(start):
            raise AsynchronousProgress
        self.ordered = self.ordered or (start in self._made and start <= self._committed)


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The base of the readers of both modes; they also run in planning processes and executors."""

    mode: str
    messages_max: int  # default maximum size of a batch
    messages_all: int  # maximum size of a batch of all available messages

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._progress = Progress()
        self._held: Any = None  # the source or the receipts that are renewed
        self._budget: int | None = None  # remaining messages of a query with trigger(availableNow=True)

    def __reduce__(self) -> tuple[type, tuple[SourceOptions]]:
        return type(self), (self._options,)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        """Return the start of a new checkpoint; Spark does not log it, so it is constant."""
        return INITIAL.json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the maximum size of a batch from the options."""
        return ReadMaxRows(self._options.messages_max or self.messages_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Count the visible messages (on SQS approximately); the query ends after as many messages."""
        from veilmq.client.sqs import QueueClient  # noqa: PLC0415 - not needed in tasks, which import this module

        self._progress.ordered = True  # Spark refuses asynchronous tracking for this trigger
        connection = self._options.connection
        with with_remedies(), QueueClient(connection.transport()) as client:
            self._budget = client.show(connection.queue).visible

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Finish ``start`` if that is safe; return the end of the next batch, or ``start`` without messages."""
        messages_max: int = getattr(limit, "max_rows", self.messages_all)  # ReadAllAvailable has none
        if isinstance(limit, ReadAllAvailable):
            _log.warning(
                "trigger(once=True) ends before its batch is acknowledged: if the query does not run again before its "
                "hold ends, the messages are delivered twice. Use trigger(availableNow=True)."
            )
        with with_remedies():
            begin = self._begin(self._offset(start))
            if self._progress.finished(begin.number) or self._progress.is_idle(begin.number, time.monotonic()):
                self._finish(begin.number)
            if self._budget is not None:  # a takeover increases it when the source is opened
                messages_max = min(messages_max, self._budget)
            number = self._next(begin, messages_max)
            if number is None:
                return start
        self._progress.made(number)
        first, queue = None if number == start["n"] + 1 else number, self._options.connection.queue_name
        return Offset(source=self._held.name, number=number, first=first, queue=queue).json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of the batch from ``start`` to ``end``."""
        begin, until = self._offset(start), self._offset(end)
        if not (numbers := begin.claims_to(until)):
            return []
        self._progress.planned(begin.number)
        with with_remedies():
            return self._parts(until, numbers)

    def commit(self, end: dict[str, Any]) -> None:
        """Finish ``end``, which Spark has committed."""
        until = self._offset(end)
        if self._held is None or self._held.name != until.source:
            return  # the server has deleted the source
        self._progress.committed(until.number)
        with with_remedies():
            self._finish(until.number)

    def stop(self) -> None:
        """Stop the renewals; Spark usually ends the process instead of calling this."""
        if self._held is not None:
            self._held.stop()

    def _offset(self, json: dict[str, Any]) -> Offset:
        return Offset.of(json, mode=self.mode, queue=self._options.connection.queue_name)

    def _begin(self, start: Offset) -> Offset:
        """Return the offset at which the batch after ``start`` starts; a new source has another offset."""
        raise NotImplementedError

    def _next(self, begin: Offset, messages_max: int) -> int | None:
        """Bind the batch after ``begin``, and return its number; ``None`` if there are no messages."""
        raise NotImplementedError

    def _parts(self, until: Offset, numbers: range) -> Sequence[InputPartition]:
        """Return the partitions of the bound ``numbers``, the last of which is that of ``until``."""
        raise NotImplementedError

    def _finish(self, number: int) -> None:
        """Delete the messages of all batches up to ``number``."""
        raise NotImplementedError
