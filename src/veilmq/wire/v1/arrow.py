"""Claimed messages as an Arrow IPC stream, column by column; needs pyarrow (the extra ``arrow``).

The properties of a message are decoded only where it has any, and the maps are made of flat columns and offsets, which
costs a fraction of what rows of pairs do.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from veilmq.core import properties
from veilmq.core.claims import ClaimedMessage
from veilmq.core.properties import Properties
from veilmq.wire.sqs.names import id_text
from veilmq.wire.sqs.parameters import sequence_text
from veilmq.wire.v1.messages import texts, types

_TEXTS = pa.map_(pa.string(), pa.string())
_INSTANT = pa.timestamp("us", "UTC")

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("body", pa.string()),
        ("attributes", _TEXTS),
        ("attribute_types", _TEXTS),
        ("group", pa.string()),
        ("sent_at", _INSTANT),
        ("received_at", _INSTANT),
        ("receive_count", pa.int32()),
        ("sequence_number", pa.string()),
        ("queue", pa.string()),
    ]
)
"""The columns, which are those of the Spark source."""

_NO_TEXTS = pa.array([], pa.string())
_BATCH_ROWS = 2_048
_BATCH_CHARACTERS = 262_144  # with ten attributes each, some five hundred messages: to write more takes long


class ArrowWriter:
    """Writes an IPC stream of record batches."""

    content_type = b"application/vnd.apache.arrow.stream"

    def __init__(self, queue: str) -> None:
        """``queue`` is the name without the account."""
        self._queue = pa.scalar(queue)
        self._sink = pa.BufferOutputStream()
        self._stream = pa.ipc.new_stream(self._sink, SCHEMA)
        self._waiting: list[ClaimedMessage] = []
        self._characters = 0

    @property
    def size_bytes(self) -> int:
        """Return about how many bytes there are so far."""
        written: int = self._sink.tell()
        return written + self._characters

    def add(self, messages: Sequence[ClaimedMessage]) -> None:
        """Take further messages."""
        self._waiting += messages
        self._characters += sum([len(message.body) + len(message.properties) for message in messages])
        if len(self._waiting) >= _BATCH_ROWS or self._characters >= _BATCH_CHARACTERS:
            self._write()

    def finish(self) -> bytes:
        """Return the whole stream; without messages it has the schema alone."""
        if self._waiting:
            self._write()
        self._stream.close()
        body: bytes = self._sink.getvalue().to_pybytes()
        return body

    def _write(self) -> None:
        waiting, self._waiting, self._characters = self._waiting, [], 0
        self._stream.write_batch(record_batch(waiting, self._queue))


def record_batch(messages: Sequence[ClaimedMessage], queue: Any) -> Any:
    """Return ``messages`` as a record batch; ``queue`` is an Arrow scalar."""
    columns = [
        pa.array([id_text(message.id) for message in messages], pa.string()),
        pa.array([message.body for message in messages], pa.string()),
        *_carried(messages),
        _instants([message.sent_at_ms for message in messages]),
        _instants([message.received_at_ms for message in messages]),
        pa.array([message.receive_count for message in messages], pa.int32()),
        pa.array([sequence_text(message.sequence) for message in messages], pa.string()),
        pa.repeat(queue, len(messages)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _carried(messages: Sequence[ClaimedMessage]) -> tuple[Any, Any, Any]:
    """Return attributes, their types, and groups."""
    if not any(message.properties for message in messages):
        return _nothing_carried(len(messages))
    carried = [properties.decode(message.properties) for message in messages]
    return (
        _maps(carried, texts),
        _maps(carried, types),
        pa.array([each.group for each in carried], pa.string()),
    )


def _nothing_carried(rows: int) -> tuple[Any, Any, Any]:
    offsets = pa.repeat(pa.scalar(0, pa.int32()), rows + 1)
    return pa.MapArray.from_arrays(offsets, _NO_TEXTS, _NO_TEXTS), pa.nulls(rows, _TEXTS), pa.nulls(rows, pa.string())


def _maps(carried: Sequence[Properties], read: Callable[..., dict[str, str] | None]) -> Any:
    """Return a column of maps: ``read`` of each message's attributes, null for ``None``."""
    offsets: list[int | None] = []
    keys: list[str] = []
    values: list[str] = []
    for each in carried:
        found = read(each.attributes)
        offsets.append(None if found is None else len(keys))
        if found:
            keys += found
            values += found.values()
    offsets.append(len(keys))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), pa.array(values, pa.string())
    )


def _instants(instants_ms: list[int]) -> Any:
    return pa.array(instants_ms, pa.int64()).view(pa.timestamp("ms", "UTC")).cast(_INSTANT)
