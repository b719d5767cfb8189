"""The sink: what tasks have staged is published once, when the whole batch is written.

A streaming query publishes under its own id, which its checkpoint keeps, and the number of the batch: so a batch that
Spark runs again, for whatever reason, is sent once. A batch write publishes under a name of its own, or under the one
that the option ``writer`` gives. Messages follow each other as the rows of the DataFrame do: partition by partition.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from msgspec.structs import replace
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from veilmq.core import limits
from veilmq.core.publications import Published
from veilmq.spark import sink_columns
from veilmq.spark.connection import Connection
from veilmq.spark.options import OptionWrong
from veilmq.spark.patience import patiently
from veilmq.spark.sink_options import SinkOptions
from veilmq.spark.sink_partition import PartitionWriter, SinkFailed, Written, client

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"
_ONLY_BATCH = 0

_log = logging.getLogger("veilmq.spark")


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
    sink_columns.check(schema)
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
