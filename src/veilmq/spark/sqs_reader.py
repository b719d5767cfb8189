"""The streaming reader of any SQS endpoint: plain receives and deletes, at least once.

An SQS queue cannot repeat a batch, so the driver keeps the messages in memory, and renews their timeouts until the
batch is certainly finished (``Progress``); then it deletes them. The partitions contain the messages, so tasks and
stages can be repeated. After a crash of the driver, Spark repeats the batch without messages, and the queue delivers
them again when their timeouts end. So no message is lost, even if the sink ignores the repeated batch; messages that
the sink had stored before the crash are delivered twice.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar
from zlib import crc32

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from veilmq.client.messages import ClientError, ReceivedMessage, Unreachable
from veilmq.client.sqs import QueueClient
from veilmq.core.commands import VisibilityChange
from veilmq.core.limits import SQS_BATCH_ENTRIES_MAX, SQS_RECEIVE_COUNT
from veilmq.core.messages import attributes_bytes
from veilmq.spark.offsets import Offset, QueueStreamReader
from veilmq.spark.options import SQS, SQS_MESSAGES_MAX, SourceOptions
from veilmq.wire.v1.arrow import SCHEMA
from veilmq.wire.v1.claims import texts, types

_log = logging.getLogger("veilmq.spark")

THREADS = 8
RENEWALS_PER_TIMEOUT = 3
BATCH_BYTES_MAX = 64 * 1_048_576
"""Maximum size of a batch, because the driver keeps it in memory."""

T = TypeVar("T")


class HeldReceipts:
    """The received messages by batch, until they are deleted."""

    name = SQS
    """The name of the source in offsets."""

    def __init__(self, options: SourceOptions) -> None:
        connection = options.connection
        self._options = options
        self._queue = connection.queue
        self._client = QueueClient(connection.transport())
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="veilmq-receive")
        self.batches: dict[int, list[ReceivedMessage]] = {}
        self._stopped = threading.Event()
        threading.Thread(target=self._renew, name="veilmq-renewal", daemon=True).start()

    def receive(self, number: int, count_max: int, *, wait_s: int) -> int:
        """Receive batch ``number``, and return its size; wait up to ``wait_s``, only for the first message."""
        received = self.batches.setdefault(number, [])  # includes messages that exceeded the previous batch
        received += self._receive(count_max - len(received), 0 if received else wait_s)
        bytes_max = min(self._options.bytes_max or BATCH_BYTES_MAX, BATCH_BYTES_MAX)
        while received and len(received) < count_max and sum(map(_size_bytes, received)) < bytes_max:
            missing, most = count_max - len(received), SQS_RECEIVE_COUNT.maximum
            counts = [min(most, missing - start) for start in range(0, min(missing, THREADS * most), most)]
            more = [each for found in self._threads.map(self._receive, counts) for each in found]
            if not more:
                break
            received += more
        if not received:
            del self.batches[number]
        elif self._options.bytes_max:
            totals = accumulate(map(_size_bytes, received))
            fits = max(1, sum(total <= self._options.bytes_max for total in totals))
            if fits < len(received):
                received[fits:], self.batches[number + 1] = [], received[fits:]
        return len(received)

    def delete(self, number: int) -> None:
        """Delete the messages of all batches up to ``number``."""
        done = [each for each in self.batches if each <= number]
        receipts = [message.receipt for each in done for message in self.batches.pop(each)]
        delete = partial(self._client.delete_batch, self._queue)
        failed = [error for errors in self._threads.map(delete, _chunks(receipts)) for error in errors if error]
        if failed:
            summary = f"{len(failed)} of {len(receipts)} messages were not deleted and will be delivered again"
            _log.warning("%s: %s", summary, failed[0])

    def stop(self) -> None:
        """Stop the renewals."""
        self._stopped.set()

    def _receive(self, count_max: int, wait_s: int = 0) -> list[ReceivedMessage]:
        if count_max <= 0:
            return []
        count = min(count_max, SQS_RECEIVE_COUNT.maximum)
        return self._client.receive(self._queue, count=count, timeout_s=self._options.lease_s, wait_s=wait_s)

    def _renew(self) -> None:
        lease_s = self._options.lease_s
        client = QueueClient(replace(self._options.connection, patience_s=0).transport())  # the next call is the retry

        def renew(receipts: Sequence[str]) -> ClientError | Unreachable | None:
            try:
                changes = [VisibilityChange(receipt=receipt, timeout_s=lease_s) for receipt in receipts]
                results = client.change_visibility_batch(self._queue, changes)
            except (ClientError, Unreachable) as error:
                return error
            return next((result for result in results if isinstance(result, ClientError)), None)

        while not self._stopped.wait(lease_s / RENEWALS_PER_TIMEOUT):
            receipts = [message.receipt for batch in list(self.batches.values()) for message in list(batch)]
            for failure in self._threads.map(renew, _chunks(receipts)):
                if failure:
                    _log.warning("Timeouts were not renewed, so messages may be delivered again: %s", failure)


def _size_bytes(message: ReceivedMessage) -> int:
    return len(message.body.encode()) + attributes_bytes(message.attributes)


def _chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for begin in range(0, len(values), SQS_BATCH_ENTRIES_MAX):
        yield values[begin : begin + SQS_BATCH_ENTRIES_MAX]


AVAILABLE_NOW_WAIT_S = 1
"""A receive that does not wait may miss messages of a distributed queue."""


@dataclass
class MessagesPartition(InputPartition):
    """Messages for a task, with the columns of the source."""

    batch: pa.RecordBatch


class SqsStreamReader(QueueStreamReader):
    """Reads one queue as a stream, at least once."""

    mode = SQS
    messages_max = messages_all = SQS_MESSAGES_MAX
    _held: HeldReceipts | None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of ``partition``."""
        assert isinstance(partition, MessagesPartition)
        return iter([partition.batch])

    def _begin(self, start: Offset) -> Offset:
        if self._held is None:
            _log.warning("mode=sqs reads at least once: after a crash, messages may be delivered again (same id).")
            self._held = HeldReceipts(self._options)
        return start

    def _next(self, begin: Offset, messages_max: int) -> int | None:
        assert self._held is not None, "latestOffset begins a batch"
        number = begin.number + 1
        wait_s = self._options.wait_s if self._budget is None else AVAILABLE_NOW_WAIT_S
        count = self._held.receive(number, messages_max, wait_s=wait_s)
        if self._budget is not None:
            self._budget = self._budget - count if count else 0
        return number if count else None

    def _parts(self, until: Offset, numbers: range) -> Sequence[InputPartition]:
        """Return the messages of the batch; none if an earlier process received them."""
        self._begin(until)
        assert self._held is not None
        messages = self._held.batches.get(until.number)
        if messages is None:
            _log.warning("Batch %s is repeated without its messages: the queue delivers them again.", until.number)
            return []
        return [MessagesPartition(self._columns(shard)) for shard in shards(messages, self._options.shard_messages)]

    def _finish(self, number: int) -> None:
        assert self._held is not None, "latestOffset begins a batch"
        self._held.delete(number)

    def _columns(self, messages: Sequence[ReceivedMessage]) -> pa.RecordBatch:
        queue, received_at_us = self._options.connection.queue_name, time.time_ns() // 1_000_000 * 1_000
        rows: list[tuple[Any, ...]] = []
        for message in messages:
            attributes = dict(message.attributes)
            kinds = types(attributes)
            pairs = [*texts(attributes).items()], None if kinds is None else [*kinds.items()]
            instants = message.sent_at_ms * 1_000, received_at_us
            row = message.id, message.body, *pairs, message.group, *instants, message.receive_count
            rows.append((*row, message.sequence, queue))
        columns = zip(zip(*rows, strict=True), SCHEMA.types, strict=True)
        return pa.RecordBatch.from_arrays([pa.array(column, kind) for column, kind in columns], schema=SCHEMA)


def shards(messages: Sequence[ReceivedMessage], size: int) -> list[list[ReceivedMessage]]:
    """Divide ``messages`` into parts of about ``size``; a group stays in one part, in order."""
    parts: list[list[ReceivedMessage]] = [[] for _ in range(-(-len(messages) // size))]
    for position, message in enumerate(messages):
        place = position if message.group is None else crc32(message.group.encode())
        parts[place % len(parts)].append(message)
    return [part for part in parts if part]
