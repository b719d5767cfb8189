"""The sink: tasks stage rows, and the driver publishes them once when the batch is complete.

A streaming query publishes under its id, which its checkpoint stores, and the number of the batch, so a batch that
Spark repeats is sent once. A batch write publishes under a unique name, or under the option ``writer``. Messages have
the order of the rows of the DataFrame: partition by partition.

A task stages the rows of its partition in parts, under the name of the task attempt. Rows that cannot be sent end the
write, or are left out and optionally stored in a table with their position.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from veilmq.client.api import Publications
from veilmq.client.messages import ClientError, Unreachable
from veilmq.core import limits
from veilmq.spark.options import FAIL, SKIP, Connection, OptionWrong, SinkOptions
from veilmq.spark.retries import with_remedies

PART_BYTES = 2_097_152
_TEXTS = pa.map_(pa.string(), pa.string())

TYPES = {
    "body": pa.string(),
    "attributes": _TEXTS,
    "attribute_types": _TEXTS,
    "group": pa.string(),
    "dedup_id": pa.string(),
    "delay_s": pa.int32(),
}
"""Column → its Arrow type in requests."""

_ACCEPTED_TYPES = {
    pa.string(): ("string",),
    _TEXTS: ("map<string,string>",),
    pa.int32(): ("int", "tinyint", "smallint", "bigint"),
}
"""The accepted Spark types for each Arrow type; the first one is the usual one."""
_INT_MAX = 2**31 - 1
_COLLATION = re.compile(r" collate \w+")


class ColumnsWrong(ValueError):
    """The DataFrame cannot be written to a queue; ``str()`` names the column, and says what to do."""


def check_columns(schema: StructType) -> None:
    """Raise ``ColumnsWrong`` if ``schema`` has other columns than ``TYPES``, or no ``body``."""
    names = [field.name.lower() for field in schema]
    for field in schema:
        name, kind = field.name.lower(), field.dataType.simpleString()
        if name not in TYPES:
            keep = ", ".join(f'"{known}"' for known in [each for each in names if each in TYPES] or ["body"])
            raise ColumnsWrong(
                f"The column {field.name} is not a column of messages ({', '.join(TYPES)}); add select({keep})."
            )
        fitting = _ACCEPTED_TYPES[TYPES[name]]
        if _COLLATION.sub("", kind) not in fitting:
            wanted = fitting[0].replace(",", ", ")
            hint = f"CAST({field.name} AS {wanted})" + (f", or base64({field.name})" if kind == "binary" else "")
            raise ColumnsWrong(f"The column {field.name} must be {wanted}, but is {kind}; use {hint}.")
    if "body" not in names:
        raise ColumnsWrong("The column body is missing; add it as a string.")
    if len(set(names)) != len(names):
        raise ColumnsWrong(f"A column occurs twice in {', '.join(names)}; select each column once.")


def convert_batch(batch: Any) -> Any:
    """Convert a record batch of Spark to the types of ``TYPES``.

    Delays that exceed 32 bits become the maximum, so that the server rejects their rows with a reason.
    """
    names = [name.lower() for name in batch.schema.names]
    arrays = []
    for name, column in zip(names, batch.columns, strict=True):
        array = column
        if column.type == pa.int64():
            fits = pc.and_(pc.greater_equal(column, -_INT_MAX), pc.less_equal(column, _INT_MAX))
            array = pc.if_else(fits, column, _INT_MAX)
        arrays.append(array.cast(TYPES[name]))
    return pa.RecordBatch.from_arrays(arrays, names=names)


def split_batch(batch: Any, messages_max: int) -> Iterator[Any]:
    """Divide a batch into slices for one request each: at most ``messages_max`` messages, and about ``PART_BYTES``."""
    for start in range(0, batch.num_rows, messages_max):
        rows = batch.slice(start, messages_max)
        if rows.num_rows == 1 or rows.nbytes <= PART_BYTES:
            yield rows
        else:
            yield from split_batch(rows, (rows.num_rows + 1) // 2)


def is_utf8(rows: Any) -> bool:
    """Return whether all texts are valid; Spark does not check binary values that it casts to strings."""
    with suppress(pa.ArrowInvalid):
        rows.validate(full=True)
        return True
    return False


def size_bytes(rows: Any, index: int) -> int:
    """Return the approximate size of a row's message: its body and the names and values of its attributes."""
    (row,) = rows.slice(index, 1).to_pylist()
    texts = [row["body"], *chain.from_iterable(row.get("attributes") or ())]
    return sum(len((text or "").encode()) for text in texts)


_log = logging.getLogger("veilmq.spark")


class SinkFailed(Exception):
    """The rows cannot be written; the text has the row, the reason and the remedy. No row of the batch is sent."""


@dataclass(frozen=True, kw_only=True)
class Written(WriterCommitMessage):
    """The staged rows of a task attempt; ``bad`` is the number of rows that cannot be sent."""

    writer: str
    batch: int
    attempt: str
    partition: int
    messages: int
    bad: int = 0


def client(connection: Connection) -> Publications:
    """Return a client for the publications of a queue."""
    return Publications(connection.transport(), connection.queue)


class PartitionWriter:
    """Stages the rows of one partition."""

    def __init__(self, options: SinkOptions, *, writer: str, batch: int, partition: int) -> None:
        """``partition`` is a number, for the order of messages and for errors."""
        attempt = f"{partition}-{uuid4().hex}"  # unique to this attempt of the task
        self._to = Written(writer=writer, batch=batch, attempt=attempt, partition=partition, messages=0)
        self._options = options
        self._queue = client(options.connection)
        self._bytes_max = limits.MESSAGE_BYTES.maximum
        self._rows = 0
        self._parts = 0
        self._messages = 0
        self._bad: list[Any] = []  # tables of rows that cannot be sent

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is SinkFailed:  # as in each repetition; Spark does not drop the rows if no other task has finished
            _abandon(self._options, self._to.writer, self._to.batch)
        self._queue.close()

    @with_remedies()
    def add(self, batch: Any) -> None:
        """Stage the rows of ``batch``; raises ``SinkFailed``, ``SourceFailed``, ``ClientError`` and ``Unreachable``."""
        for part in split_batch(convert_batch(batch), self._options.batch_size):
            numbers = list(range(self._rows + 1, self._rows + 1 + part.num_rows))
            self._rows += part.num_rows
            sizes = pc.binary_length(part.column("body")).to_pylist()
            empty = [at for at, size in enumerate(sizes) if not size]  # often many; the server names only the first
            rows, numbers = self._remove_rows(part, numbers, empty, "It has no body.")
            # Copies, because the maps of a slice include those of other rows.
            invalid = [] if is_utf8(rows) else [at for at in range(len(numbers)) if not is_utf8(rows.take([at]))]
            self._write(*self._remove_rows(rows, numbers, invalid, "A text is not valid UTF-8."))

    def finish(self) -> Written:
        """Write the rows that cannot be sent to a file, atomically; a repeated task replaces it."""
        if self._bad and self._options.bad_rows != SKIP:
            files, folder = fs.FileSystem.from_uri(self._options.bad_rows)
            files.create_dir(folder)
            queue = self._options.connection.queue_name
            name = f"{queue}-{self._to.writer}-{self._to.batch}-{self._to.partition}.parquet"
            written = f"{folder}/_{name}.{self._to.attempt}"  # hidden, even if the task is killed now
            pq.write_table(pa.concat_tables(self._bad), written, filesystem=files)
            files.move(written, f"{folder}/{name}")
        return replace(self._to, messages=self._messages, bad=sum(map(len, self._bad)))

    def _write(self, rows: Any, numbers: list[int]) -> None:
        """Stage ``rows`` with the given ``numbers`` in one call, without those that cannot be sent."""
        while True:
            longer = pc.greater(pc.binary_length(rows.column("body")), self._bytes_max)
            too_long: list[int] = pc.indices_nonzero(longer.fill_null(fill_value=False)).to_pylist()
            if len(numbers) == 1 and size_bytes(rows, 0) > self._bytes_max:  # with its attributes
                too_long = [0]
            rows, numbers = self._remove_rows(rows, numbers, too_long)
            if not numbers:
                return
            try:
                to, part = self._to, self._parts
                self._queue.stage_arrow(to.writer, batch=to.batch, attempt=to.attempt, part=part, messages=rows)
            except ClientError as error:
                index = error.fields.get("index")
                if index is None:
                    raise
                self._bytes_max = error.fields.get("bytes_max") or self._bytes_max
                refusal = "" if error.fields.get("why") == "MessageTooLong" else error.message.partition(": ")[2]
                rows, numbers = self._remove_rows(rows, numbers, [index], refusal)
            else:
                self._parts += 1
                self._messages += rows.num_rows
                return

    def _remove_rows(
        self, rows: Any, numbers: list[int], indexes: list[int], refusal: str = ""
    ) -> tuple[Any, list[int]]:
        """Remove the rows at ``indexes`` (rejected or too long), and return the rest; raises ``SinkFailed``."""
        if not indexes:
            return rows, numbers
        reason, to, queue = f"cannot be sent: {refusal}", self._to, self._options.connection.queue
        maximum = f"bytes with its attributes, and the maximum is {self._bytes_max:,}."
        reasons = [reason if refusal else f"is too long: {size_bytes(rows, at):,} {maximum}" for at in indexes]
        if self._options.bad_rows == FAIL:
            place = f"Row {numbers[indexes[0]]} of partition {to.partition}"
            raise SinkFailed(f"{place} {reasons[0]} Correct the row, or use badRows=skip or badRows=table=PATH.")
        bad = pa.Table.from_batches([rows.take(pa.array(indexes))])
        same = {"queue": queue, "writer": to.writer, "batch": to.batch, "partition": to.partition}
        columns = {"reason": reasons, **{name: [value] * len(indexes) for name, value in same.items()}}
        for name, values in {**columns, "row": [numbers[at] for at in indexes]}.items():
            bad = bad.append_column(name, pa.array(values))
        self._bad.append(bad)
        kept = sorted({*range(rows.num_rows)} - {*indexes})
        return rows.take(pa.array(kept, pa.int64())), [numbers[index] for index in kept]


_ONLY_BATCH = 0


def sink_options(given: Mapping[str, str], schema: StructType, *, overwrite: bool, stream: bool) -> SinkOptions:
    """Return the options of a writer for a stream or a DataFrame; raises ``OptionWrong`` and ``ColumnsWrong``."""
    if overwrite:
        raise OptionWrong(f'A queue cannot be overwritten: write with {"outputMode" if stream else "mode"}("append").')
    options = SinkOptions.of(given)
    check_columns(schema)
    if stream and options.writer is not None:
        raise OptionWrong("option writer: is for batch writes only; a stream is identified by its checkpoint")
    return options


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, options: SinkOptions) -> None:
        """Store only what can be pickled."""
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Written:
        """Stage one partition of a batch."""
        partition, query, batch = task()
        assert query is not None, "only a task of a streaming query writes here"
        assert batch is not None, "it has a number"
        return _stage(self._options, iterator, writer=query, batch=batch, partition=partition)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the staged rows of the batch."""
        publish(self._options, _written(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Drop the staged rows; rows of unknown tasks are dropped by the next publication of the query."""
        for written in _written(messages)[:1]:
            _abandon(self._options, written.writer, written.batch)


class QueueWriter(DataSourceArrowWriter):
    """Writes one DataFrame; tasks and driver share its name."""

    def __init__(self, options: SinkOptions) -> None:
        """Store only what can be pickled."""
        self._options = options
        self._job = f"job-{uuid4()}"

    def write(self, iterator: Iterator[Any]) -> Written:
        """Stage one partition."""
        partition, query, batch = task()
        writer = self._options.writer
        if writer is None:
            writer, batch = self._job, _ONLY_BATCH
        elif batch is None:
            raise SinkFailed(
                "option writer: in foreachBatch, Spark does not pass the query and its batch to this write, because it "
                "runs on Spark Connect or in a thread of its own, so only the first batch would be sent. Remove writer "
                "(a repeated batch is then sent again), or write each queue by a stream of its own with "
                "writeStream.format('veilmq')."
            )
        elif query is not None:
            writer = f"{writer}-{query}"
        return _stage(self._options, iterator, writer=writer, batch=batch, partition=partition)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the staged rows."""
        publish(self._options, _written(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop the staged rows; in ``foreachBatch`` without results, the next publication of this writer does.

        A write without a name is not repeated, so its batch is closed to tasks that still run: nothing is published.
        """
        written = _written(messages)
        writer = written[0].writer if written else self._options.writer or self._job
        _abandon(self._options, writer, written[0].batch if written else _ONLY_BATCH, close=writer == self._job)


def task() -> tuple[int, str | None, int | None]:
    """Return the partition of this task, the id of its streaming query if it has one, and the number of its batch.

    The number is ``None`` in a write of ``foreachBatch`` that has the session of the query, but not its properties.
    """
    context = TaskContext.get()
    assert context is not None, "only a task writes"
    query: str | None = context.getLocalProperty("sql.streaming.queryId")
    batch: str | None = context.getLocalProperty("streaming.sql.batchId")
    if query is None or batch is None:
        in_stream = context.getLocalProperty("spark.sql.streaming.internal.stateStore.partitions") is not None
        return context.partitionId(), None, None if in_stream else _ONLY_BATCH
    return context.partitionId(), query, int(batch)


def _stage(options: SinkOptions, batches: Iterator[Any], *, writer: str, batch: int, partition: int) -> Written:
    with PartitionWriter(options, writer=writer, batch=batch, partition=partition) as rows:
        for each in batches:
            rows.add(each)
        return rows.finish()


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [message for message in messages if isinstance(message, Written)]


@with_remedies()
def publish(options: SinkOptions, written: Sequence[Written]) -> None:
    """Publish the staged rows in the order of their partitions; retries for up to the option ``patience``."""
    if not written:
        return
    written = sorted(written, key=lambda each: each.partition)
    writer, batch = written[0].writer, written[0].batch
    if bad := sum(each.bad for each in written):
        where = "left out" if options.bad_rows == SKIP else f"written to {options.bad_rows}"
        _log.warning("%d rows for the queue %s could not be sent: %s", bad, options.connection.queue, where)
    attempts = [(each.attempt, each.messages) for each in written if each.messages]
    if len(attempts) > limits.PUBLISH_ATTEMPTS_MAX:
        raise SinkFailed(
            f"{len(attempts):,} partitions with rows are too many for one publication; use "
            f"coalesce({limits.PUBLISH_ATTEMPTS_MAX}) or less."
        )
    with client(options.connection) as queue:
        rate = options.messages_per_s_max
        published = queue.publish(writer, batch=batch, attempts=attempts, messages_per_s_max=rate)
    if published.again:
        _log.warning("Batch %d of %s was sent before and is not sent again.", batch, writer)
    if published.duplicates:
        _log.warning("%d messages are duplicates and were not stored.", published.duplicates)


def _abandon(options: SinkOptions, writer: str, batch: int, *, close: bool = False) -> None:
    """Drop the staged rows, if possible: an error here would replace that of the write. ``close``: and later ones."""
    with suppress(ClientError, Unreachable), client(replace(options.connection, patience_s=0)) as queue:
        if close:
            queue.publish(writer, batch=batch, attempts=[])
        else:
            queue.abandon(writer, batch=batch)
