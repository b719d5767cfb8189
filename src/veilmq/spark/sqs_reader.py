"""The streaming reader of any endpoint that speaks SQS: plain receives and deletes, at least once.

Such a queue can repeat nothing, so the driver keeps what it has received, receipts included, until the batch is
finished for certain (``Progress``), and deletes it then; until then it renews the timeouts. The messages travel to the
tasks in their partitions, so tasks and stages may be repeated. What a crash of the driver forgets is not deleted
either: the batch that Spark then repeats is empty, and its messages come back when their timeouts end. So none is lost,
even if the sink passes over the repeated batch; but those that it had kept before the crash come twice.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from veilmq.client.messages import ReceivedMessage
from veilmq.spark.held_receipts import HeldReceipts
from veilmq.spark.offsets import INITIAL, Offset
from veilmq.spark.progress import Progress
from veilmq.spark.source_options import SQS, SQS_MESSAGES_MAX, SourceOptions
from veilmq.wire.v1.messages import texts, types

if TYPE_CHECKING:
    import pyarrow as pa

AVAILABLE_NOW_WAIT_S = 1
"""A receive that does not wait may overlook messages of a distributed queue."""

_log = logging.getLogger("veilmq.spark")


class MessagesPartition(InputPartition):
    """Messages on their way to a task."""

    def __init__(self, batch: "pa.RecordBatch") -> None:
        """``batch`` has the columns of the source."""
        super().__init__(None)
        self.batch = batch


class SqsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads one queue as a stream, at least once."""

    def __init__(self, options: SourceOptions) -> None:
        """Receive nothing: this also runs where plans are made, and in executors."""
        self._options = options
        self._progress = Progress()
        self._held: HeldReceipts | None = None
        self._budget: int | None = None

    def __reduce__(self) -> tuple[type, tuple[SourceOptions]]:
        """Pickle the options alone."""
        return SqsStreamReader, (self._options,)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        """Return where every new checkpoint begins."""
        return INITIAL.json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much a batch may have by the options."""
        return ReadMaxRows(self._options.messages_max or SQS_MESSAGES_MAX)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Count what is visible now, as well as the queue knows."""
        self._progress.ordered = True  # Spark refuses to track this trigger asynchronously
        self._budget = self._hold().visible()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Delete what ends at ``start``, and return where the next batch ends; ``start`` where there is nothing."""
        begin, held = Offset.of(start, mode=SQS), self._hold()
        if self._progress.finished(begin.number):
            held.delete(begin.number)
        number = begin.number + 1
        count = self._receive(held, number, getattr(limit, "max_rows", SQS_MESSAGES_MAX))
        if not count:
            if self._progress.finished_by_rest(begin.number, time.monotonic()):
                held.delete(begin.number)
            return start
        self._progress.made(number)
        return Offset(source=SQS, number=number).json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the messages of the batch, which are gone if an earlier process received them."""
        begin, until = Offset.of(start, mode=SQS), Offset.of(end, mode=SQS)
        if until.number == begin.number:
            return []
        self._progress.planned(begin.number)
        messages = self._hold().messages(until.number)
        if messages is None:
            _log.warning("Batch %s is repeated without its messages: they come again from the queue.", until.number)
            return []
        name = self._options.connection.queue.rpartition("/")[2]
        return [
            MessagesPartition(_record_batch(shard, name)) for shard in shards(messages, self._options.shard_messages)
        ]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the messages that ``partition`` carries."""
        assert isinstance(partition, MessagesPartition)
        return iter([partition.batch])

    def commit(self, end: dict[str, Any]) -> None:
        """Delete what ends at ``end``, which Spark keeps as finished."""
        number = Offset.of(end, mode=SQS).number
        self._progress.committed(number)
        self._hold().delete(number)

    def stop(self) -> None:
        """Stop renewing, if Spark asks for it."""
        if self._held is not None:
            self._held.stop()

    def _hold(self) -> HeldReceipts:
        if self._held is None:
            _log.warning("mode=sqs reads at least once: after a crash messages may come twice; tell them apart by id.")
            self._held = HeldReceipts(self._options)
        return self._held

    def _receive(self, held: HeldReceipts, number: int, count_max: int) -> int:
        if self._budget is None:
            return held.receive(number, count_max, wait_s=self._options.wait_s)
        count = held.receive(number, min(count_max, self._budget), wait_s=AVAILABLE_NOW_WAIT_S)
        self._budget = self._budget - count if count else 0
        return count


def shards(messages: Sequence[ReceivedMessage], size: int) -> list[list[ReceivedMessage]]:
    """Return ``messages`` in parts of about ``size``; those of a group are together, in their order."""
    parts: list[list[ReceivedMessage]] = [[] for _ in range(-(-len(messages) // size))]
    for position, message in enumerate(messages):
        place = position if message.group is None else crc32(message.group.encode())
        parts[place % len(parts)].append(message)
    return [part for part in parts if part]


def _record_batch(messages: Sequence[ReceivedMessage], queue: str) -> "pa.RecordBatch":
    import pyarrow as pa  # noqa: PLC0415 - an extra

    from veilmq.wire.v1.arrow import SCHEMA  # noqa: PLC0415

    received_at_ms = time.time_ns() // 1_000_000
    columns = zip(*(_row(message, received_at_ms, queue) for message in messages), strict=True)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _row(message: ReceivedMessage, received_at_ms: int, queue: str) -> tuple[Any, ...]:
    attributes = dict(message.attributes)
    kinds = types(attributes)
    return (
        message.id,
        message.body,
        list(texts(attributes).items()),
        None if kinds is None else list(kinds.items()),
        message.group,
        message.sent_at_ms * 1_000,
        received_at_ms * 1_000,
        message.receive_count,
        message.sequence,
        queue,
    )
