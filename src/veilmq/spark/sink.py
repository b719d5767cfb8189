"""The sink: what tasks have staged is published once, when the whole batch is written.

A streaming query publishes under its own id, which its checkpoint keeps, and the number of the batch: so a batch that
Spark runs again, for whatever reason, is sent once. A batch write publishes under a name of its own, or under the one
that the option ``writer`` gives. Messages follow each other as the rows of the DataFrame do: partition by partition.

A task stages the rows of its partition part by part, under the name of this attempt. What is too long is told, or cut
short and staged for the dead-letter queue, with where it was.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from msgspec.structs import replace
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from veilmq.client.errors import ClientError
from veilmq.client.publications import Publications
from veilmq.core import limits
from veilmq.core.publications import Published, Staged
from veilmq.spark import sink_options
from veilmq.spark.options import Connection, OptionWrong
from veilmq.spark.patience import patiently
from veilmq.spark.sink_options import SinkOptions
from veilmq.wire.v1.outgoing import OutgoingRow

_log = logging.getLogger("veilmq.spark")


DEAD_BODY_BYTES = 65_536
_TOO_LONG = "MessageTooLong"


class SinkFailed(Exception):
    """The rows cannot be written; ``str()`` says which one, why, and what to do. Nothing of the batch is sent."""


@dataclass(frozen=True, kw_only=True)
class Written(WriterCommitMessage):
    """What a task has staged, for whom: ``messages`` for the queue and ``dead`` for the dead-letter queue."""

    writer: str
    batch: int
    attempt: str
    partition: int
    messages: int
    dead: int


def client(connection: Connection) -> Publications:
    """Return the publications of a queue."""
    return Publications(connection.endpoint, connection.queue, key=connection.key)


class PartitionWriter:
    """Stages the rows of one partition."""

    def __init__(self, options: SinkOptions, *, writer: str, batch: int, partition: int) -> None:
        """``partition`` is its number, for people and for the order."""
        self._options = options
        self._writer = writer
        self._batch = batch
        self._partition = partition
        self._attempt = f"{partition}-{uuid4().hex}"  # a task that runs again has nothing in common with this one
        self._queue = client(options.connection)
        self._dead_letters = None if options.dead_letters is None else client(options.dead_letters)
        self._bytes_max = limits.MESSAGE_BYTES.maximum
        self._rows = 0
        self._parts = 0
        self._messages = 0
        self._dead = 0

    def write(self, batches: Iterator[Any]) -> Written:
        """Stage all rows; raises ``SinkFailed``, ``ClientError`` and ``Unreachable``."""
        for batch in batches:
            for rows in sink_options.parts(sink_options.outgoing(batch), self._options.batch_size):
                numbers = list(range(self._rows + 1, self._rows + 1 + rows.num_rows))
                self._rows += rows.num_rows
                self._write(rows, numbers)
        return Written(
            writer=self._writer,
            batch=self._batch,
            attempt=self._attempt,
            partition=self._partition,
            messages=self._messages,
            dead=self._dead,
        )

    def _write(self, rows: Any, numbers: list[int]) -> None:
        """Stage rows of these numbers in one call, without those that are too long."""
        while True:
            rows, numbers = self._put_aside(rows, numbers, sink_options.too_long(rows, self._bytes_max))
            if not numbers:
                return
            try:
                self._stage(rows)
            except ClientError as error:
                index = error.fields.get("index")
                if index is None:
                    raise
                if error.fields.get("why") != _TOO_LONG:
                    raise SinkFailed(f"{self._place(numbers[index])} cannot be sent: {error.message}") from error
                self._bytes_max = error.fields["bytes_max"]
                rows, numbers = self._put_aside(rows, numbers, [index])
            else:
                return

    def _stage(self, rows: Any) -> None:
        def stage() -> Staged:
            return self._queue.stage_arrow(
                self._writer, batch=self._batch, attempt=self._attempt, part=self._parts, messages=rows
            )

        patiently(stage, self._options.patience_s)
        self._parts += 1
        self._messages += rows.num_rows

    def _put_aside(self, rows: Any, numbers: list[int], indexes: list[int]) -> tuple[Any, list[int]]:
        """Take out rows that are too long, and return what is left."""
        if not indexes:
            return rows, numbers
        for index in indexes:
            self._bury(rows, index, numbers[index])
        gone = set(indexes)
        return sink_options.without(rows, indexes), [each for at, each in enumerate(numbers) if at not in gone]

    def _bury(self, rows: Any, index: int, number: int) -> None:
        size_bytes = sink_options.size_bytes(rows, index)
        if self._dead_letters is None:
            raise SinkFailed(
                f"{self._place(number)} is too long: {size_bytes:,} bytes with its attributes, and the queue takes "
                f"{self._bytes_max:,}. Make it shorter, or give onTooLong=deadLetter and deadLetterQueue."
            )
        dead_letters = self._dead_letters
        row = self._cut_short(rows.column("body")[index].as_py(), size_bytes, number)

        def stage() -> Staged:
            return dead_letters.stage(
                self._writer, batch=self._batch, attempt=self._attempt, part=self._dead, messages=[row]
            )

        patiently(stage, self._options.patience_s)
        self._dead += 1

    def _cut_short(self, body: str, size_bytes: int, number: int) -> OutgoingRow:
        """Return the beginning of a message that is too long, with where it was to go and where it came from."""
        numbers = {"Bytes": size_bytes, "BytesMax": self._bytes_max, "Batch": self._batch}
        numbers |= {"Partition": self._partition, "Row": number}
        texts = {"Reason": _TOO_LONG, "Queue": self._options.connection.queue, "Writer": self._writer}
        return OutgoingRow(
            body=body.encode()[:DEAD_BODY_BYTES].decode(errors="ignore"),
            attributes=texts | {name: str(value) for name, value in numbers.items()},
            attribute_types=dict.fromkeys(numbers, "Number"),
        )

    def _place(self, number: int) -> str:
        return f"Row {number} of partition {self._partition}"

    def close(self) -> None:
        """Close the connections."""
        self._queue.close()
        if self._dead_letters is not None:
            self._dead_letters.close()


_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"
_ONLY_BATCH = 0


def batch_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> "QueueWriter":
    """Return the writer of a DataFrame; raises ``OptionWrong`` and ``ColumnsWrong``."""
    return QueueWriter(_checked(given, schema, overwrite=overwrite, how='mode("append")'))


def stream_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> "QueueStreamWriter":
    """Return the writer of a stream; raises ``OptionWrong`` and ``ColumnsWrong``."""
    options = _checked(given, schema, overwrite=overwrite, how='outputMode("append")')
    if options.writer is not None:
        raise OptionWrong("option writer: is for batch writes; a stream is told by its checkpoint")
    return QueueStreamWriter(options)


def _checked(given: Mapping[str, str], schema: StructType, *, overwrite: bool, how: str) -> SinkOptions:
    if overwrite:
        raise OptionWrong(f"A queue cannot be overwritten, only added to: write with {how}.")
    options = SinkOptions.of(given)
    sink_options.check(schema)
    return options


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, options: SinkOptions) -> None:
        """Hold nothing that cannot be pickled."""
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Written:
        """Stage one partition of a batch."""
        query, batch = _of_stream()
        return _write(self._options, iterator, writer=query, batch=batch)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish what the tasks of the batch have staged."""
        _publish(self._options, _written(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Drop it, where it is known; what is not is dropped by the next publication of the query."""
        for written in _written(messages)[:1]:
            _abandon(self._options, written.writer, written.batch)


class QueueWriter(DataSourceArrowWriter):
    """Writes one DataFrame; tasks and driver share its name."""

    def __init__(self, options: SinkOptions) -> None:
        """Hold nothing that cannot be pickled."""
        self._options = options
        self._job = f"job-{uuid4()}"

    def write(self, iterator: Iterator[Any]) -> Written:
        """Stage one partition."""
        named = self._options.writer
        if named is None:
            return _write(self._options, iterator, writer=self._job, batch=_ONLY_BATCH)
        if _property(_QUERY) is None:
            return _write(self._options, iterator, writer=named, batch=_ONLY_BATCH)
        query, batch = _of_stream()
        return _write(self._options, iterator, writer=f"{named}-{query}", batch=batch)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish what the tasks have staged."""
        _publish(self._options, _written(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop it; in ``foreachBatch``, where only tasks know its name, the next publication of that name does."""
        written = _written(messages)
        writer = written[0].writer if written else self._options.writer or self._job
        batch = written[0].batch if written else _ONLY_BATCH
        _abandon(self._options, writer, batch)


def _property(name: str) -> str | None:
    context = TaskContext.get()
    assert context is not None, "only a task writes"
    value: str | None = context.getLocalProperty(name)
    return value


def _of_stream() -> tuple[str, int]:
    """Return the id of the query whose task this is, and the number of its batch."""
    query, batch = _property(_QUERY), _property(_BATCH)
    assert query is not None, "only a task of a streaming query asks"
    assert batch is not None, "Spark gives both to such a task"
    return query, int(batch)


def _write(options: SinkOptions, batches: Iterator[Any], *, writer: str, batch: int) -> Written:
    context = TaskContext.get()
    assert context is not None, "only a task writes"
    partition = PartitionWriter(options, writer=writer, batch=batch, partition=context.partitionId())
    try:
        return partition.write(batches)
    finally:
        partition.close()


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """Return what tasks have told, in the order of their partitions."""
    told = [message for message in messages if isinstance(message, Written)]
    return sorted(told, key=lambda each: each.partition)


def _publish(options: SinkOptions, written: list[Written]) -> None:
    """Publish for both queues; if this ends in between, it is all told again, and each queue knows what it has."""
    if not written:
        return
    writer, batch = written[0].writer, written[0].batch
    dead = [(each.attempt, each.dead) for each in written if each.dead]
    if options.dead_letters is not None and dead:
        _log.warning("%d messages were too long; they are in %s", sum(n for _, n in dead), options.dead_letter_queue)
        _publish_to(options.dead_letters, options, writer, batch, dead, rate=None)
    attempts = [(each.attempt, each.messages) for each in written if each.messages]
    if len(attempts) > limits.PUBLISH_ATTEMPTS_MAX:
        raise SinkFailed(
            f"{len(attempts):,} partitions with rows are too many for one publication; write with "
            f"coalesce({limits.PUBLISH_ATTEMPTS_MAX}) or fewer."
        )
    published = _publish_to(options.connection, options, writer, batch, attempts, rate=options.messages_per_s_max)
    if published.again:
        _log.warning("batch %d of %s had been sent before; nothing was sent twice", batch, writer)
    if published.duplicates:
        _log.warning("%d messages are not in the queue: they were duplicates", published.duplicates)


def _publish_to(
    connection: Connection,
    options: SinkOptions,
    writer: str,
    batch: int,
    attempts: list[tuple[str, int]],
    *,
    rate: int | None,
) -> Published:
    """Publish; a server may restart as often as it likes meanwhile, and be away for so long each time."""
    with client(connection) as queue:
        ask = partial(queue.publish_on, writer, batch=batch, attempts=attempts, messages_per_s_max=rate)
        first = last = patiently(ask, options.patience_s)
        while last.more:
            last = patiently(ask, options.patience_s)
    return replace(last, again=first.again)


def _abandon(options: SinkOptions, writer: str, batch: int) -> None:
    for connection in (options.connection, options.dead_letters):
        if connection is not None:
            with client(connection) as queue:
                patiently(partial(queue.abandon, writer, batch=batch), options.patience_s)
