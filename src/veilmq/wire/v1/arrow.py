"""Claimed and staged messages as Arrow IPC streams; requires pyarrow (the extra ``arrow``)."""

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from veilmq.core import limits
from veilmq.core.claims import ClaimedMessage
from veilmq.core.messages import NewMessage, Properties, decode_properties
from veilmq.wire.exchange import id_text
from veilmq.wire.sqs.errors import SqsError, too_many_attributes
from veilmq.wire.sqs.members import sequence_text
from veilmq.wire.v1.claims import texts, types
from veilmq.wire.v1.publications import ARROW_TYPE, MessageSlices, Outgoing, OutgoingRow, in_slices
from veilmq.wire.v1.request import INVALID_REQUEST, RowRefused

_TEXT, _COUNT = pa.string(), pa.int32()
_TEXTS = pa.map_(_TEXT, _TEXT)
_INSTANT = pa.timestamp("us", "UTC")

SCHEMA = pa.schema(
    {
        "id": _TEXT,
        "body": _TEXT,
        "attributes": _TEXTS,
        "attribute_types": _TEXTS,
        "group": _TEXT,
        "sent_at": _INSTANT,
        "received_at": _INSTANT,
        "receive_count": _COUNT,
        "sequence_number": _TEXT,
        "queue": _TEXT,
    }
)
"""The columns, the same as those of the Spark source."""

_NO_TEXTS = pa.array([], _TEXT)
_BATCH_ROWS = 2_048
_BATCH_CHARACTERS = 262_144  # some five hundred messages with ten attributes each; writing more takes too long


class ArrowWriter:
    """Writes an IPC stream of record batches of messages of ``queue``, a name without the account."""

    content_type = ARROW_TYPE

    def __init__(self, queue: str) -> None:
        self._queue = pa.scalar(queue)
        self._sink = pa.BufferOutputStream()
        self._stream = pa.ipc.new_stream(self._sink, SCHEMA)
        self._waiting: list[ClaimedMessage] = []
        self._characters = 0

    @property
    def size_bytes(self) -> int:
        """The approximate size so far."""
        written: int = self._sink.tell()
        return written + self._characters

    def add(self, messages: Sequence[ClaimedMessage]) -> None:
        """Append messages."""
        self._waiting += messages
        self._characters += sum([len(message.body) + len(message.properties) for message in messages])
        if len(self._waiting) >= _BATCH_ROWS or self._characters >= _BATCH_CHARACTERS:
            self._write()

    def finish(self) -> bytes:
        """Return the stream; without messages it has only the schema."""
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
    rows = len(messages)
    if any(message.properties for message in messages):
        properties = [decode_properties(message.properties) for message in messages]
        groups = pa.array([each.group for each in properties], _TEXT)
        attributes, attribute_types = _maps(properties, texts), _maps(properties, types)
    else:
        offsets = pa.repeat(pa.scalar(0, _COUNT), rows + 1)
        attributes = pa.MapArray.from_arrays(offsets, _NO_TEXTS, _NO_TEXTS)
        attribute_types, groups = pa.nulls(rows, _TEXTS), pa.nulls(rows, _TEXT)
    columns = [
        pa.array([id_text(message.id) for message in messages], _TEXT),
        pa.array([message.body for message in messages], _TEXT),
        attributes,
        attribute_types,
        groups,
        _instants([message.sent_at_ms for message in messages]),
        _instants([message.received_at_ms for message in messages]),
        pa.array([message.receive_count for message in messages], _COUNT),
        pa.array([sequence_text(message.sequence) for message in messages], _TEXT),
        pa.repeat(queue, rows),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _maps(properties: Sequence[Properties], read: Callable[..., dict[str, str] | None]) -> Any:
    """Return a column of maps: ``read(attributes)`` of each message, null for ``None``."""
    offsets: list[int | None] = []
    keys: list[str] = []
    values: list[str] = []
    for each in properties:
        attributes = read(each.attributes)
        offsets.append(None if attributes is None else len(keys))
        if attributes:
            keys += attributes
            values += attributes.values()
    offsets.append(len(keys))
    return pa.MapArray.from_arrays(pa.array(offsets, _COUNT), pa.array(keys, _TEXT), pa.array(values, _TEXT))


def _instants(instants_ms: list[int]) -> Any:
    return pa.array(instants_ms, pa.int64()).view(pa.timestamp("ms", "UTC")).cast(_INSTANT)


# Staged messages from an Arrow IPC stream. The stream is not trusted: only known columns and types are accepted, each
# batch is fully validated before its values are read, compressed batches are refused because they can expand without
# limit, and maps with more pairs than a message has attributes are refused before they are read.

_TEXT_TYPES = (_TEXT, pa.large_string())
_MAP_TYPES = tuple(pa.map_(text, text) for text in _TEXT_TYPES)
_NUMBER = (_COUNT, pa.int64())

COLUMNS: dict[str, tuple[Any, ...]] = {
    "body": _TEXT_TYPES,
    "attributes": _MAP_TYPES,
    "attribute_types": _MAP_TYPES,
    "group": _TEXT_TYPES,
    "dedup_id": _TEXT_TYPES,
    "delay_s": _NUMBER,
}
"""Column → its valid types; only ``body`` is required."""

_MAPS = ("attributes", "attribute_types")
_MESSAGE_HEADER = 8  # offset of the field in the table of the flatbuffer: 4 + 2 × its number
_BATCH_COMPRESSION = 10


def staged_messages(body: bytes, outgoing: Outgoing) -> MessageSlices:
    """Yield the messages of a stream in slices; raises ``SqsError``."""
    rows, rows_max = 0, limits.STAGE_MESSAGES_MAX
    try:
        for number, batch in enumerate(_batches(body)):
            if number == rows_max:
                raise SqsError(INVALID_REQUEST, f"The stream has more than {rows_max} record batches; send one.")
            yield ()  # a batch without rows is a step too
            first, rows = rows, rows + batch.num_rows
            if rows > rows_max:
                raise SqsError(INVALID_REQUEST, f"{rows} messages are too many for one call; send {rows_max}.")
            yield from in_slices(batch.num_rows, partial(_of_rows, batch, outgoing), offset=first)
    except (pa.ArrowException, OSError, ValueError, EOFError, struct.error, MemoryError) as error:
        raise SqsError(INVALID_REQUEST, f"The body is not a valid Arrow IPC stream: {str(error)[:200]}.") from None


def _batches(body: bytes) -> Iterator[Any]:
    source = pa.BufferReader(body)
    schema = ipc.read_schema(source)
    for field in schema:
        if field.type not in COLUMNS.get(field.name, ()):
            raise SqsError(INVALID_REQUEST, f"The column {field.name[:64]!r} of type {field.type} is not known.")
    if len(set(schema.names)) != len(schema.names) or "body" not in schema.names:
        raise SqsError(INVALID_REQUEST, "The stream must have the column 'body', and each column once.")
    while True:
        try:
            message = ipc.read_message(source)
        except EOFError:  # the marker of the end of the stream, or the end of the body
            break
        if message.type != "record batch" or _is_compressed(message.metadata.to_pybytes()):
            raise SqsError(INVALID_REQUEST, "The stream may contain only uncompressed record batches.")
        batch = ipc.read_record_batch(message, schema)
        batch.validate(full=True)
        yield batch
    if source.tell() < source.size():
        raise SqsError(INVALID_REQUEST, "The body has data after the end of the Arrow stream; send one stream.")


def _is_compressed(metadata: bytes) -> bool:
    """Return whether a record batch is compressed, by its metadata (a flatbuffer: Message.fbs of the Arrow format)."""
    (root,) = struct.unpack_from("<I", metadata)
    header = _field(metadata, root, _MESSAGE_HEADER)
    if header is None:
        return True  # invalid, so refused
    (batch,) = struct.unpack_from("<I", metadata, header)
    return _field(metadata, header + batch, _BATCH_COMPRESSION) is not None


def _field(metadata: bytes, table: int, slot: int) -> int | None:
    """Return the offset of a field in a table of a flatbuffer, ``None`` if the field is absent."""
    (back,) = struct.unpack_from("<i", metadata, table)
    (size,) = struct.unpack_from("<H", metadata, table - back)
    if slot >= size:
        return None
    (offset,) = struct.unpack_from("<H", metadata, table - back + slot)
    return table + offset if offset else None


def _of_rows(batch: Any, outgoing: Outgoing, first: int, end: int) -> tuple[NewMessage, ...]:
    part = batch.slice(first, end - first)
    by_name = {name: part.column(name) for name in part.schema.names}
    bodies = by_name["body"].to_pylist()
    if None in bodies:
        raise RowRefused(bodies.index(None), SqsError(INVALID_REQUEST, "It has no body."))
    columns = {name: _values(name, column) for name, column in by_name.items() if column.null_count < len(column)}
    columns["body"] = bodies
    if len(columns) == 1:
        return outgoing.from_bodies(bodies)
    rows = [OutgoingRow(**dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)]
    return outgoing.from_rows(rows)


def _values(name: str, column: Any) -> list[Any]:
    if name not in _MAPS:
        values: list[Any] = column.to_pylist()
        return values
    # A map of more pairs than a message has attributes is refused before they become objects.
    offsets = column.offsets
    counts = pc.if_else(column.is_valid(), pc.subtract(offsets[1:], offsets[:-1]), 0)
    largest = pc.max(counts).as_py()
    if largest > (maximum := limits.SMQ_PROPERTIES_MAX):
        raise RowRefused(pc.index(counts, largest).as_py(), too_many_attributes(largest, maximum))
    return [None if pairs is None else {key: text or "" for key, text in pairs} for pairs in column.to_pylist()]
