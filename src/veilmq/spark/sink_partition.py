"""One task of a write: the rows of a partition, staged part by part under the name of this attempt.

What is too long is told, or cut short and staged for the dead-letter queue, with where it was.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pyspark.sql.datasource import WriterCommitMessage

from veilmq.client.errors import ClientError
from veilmq.client.publications import Publications
from veilmq.core import limits
from veilmq.core.publications import Staged
from veilmq.spark import sink_columns
from veilmq.spark.connection import Connection
from veilmq.spark.patience import patiently
from veilmq.spark.sink_options import SinkOptions
from veilmq.wire.v1.outgoing import OutgoingRow

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
            for rows in sink_columns.parts(sink_columns.outgoing(batch), self._options.batch_size):
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
            rows, numbers = self._put_aside(rows, numbers, sink_columns.too_long(rows, self._bytes_max))
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
        return sink_columns.without(rows, indexes), [each for at, each in enumerate(numbers) if at not in gone]

    def _bury(self, rows: Any, index: int, number: int) -> None:
        size_bytes = sink_columns.size_bytes(rows, index)
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
