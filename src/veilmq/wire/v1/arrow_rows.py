"""Staged messages from an Arrow IPC stream; needs pyarrow (the extra ``arrow``).

What comes is not trusted: the columns and their types must be ours, each batch is validated in full before a value is
read, and compressed batches are refused, because a few bytes of them may stand for any number.
"""

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import ipc

from veilmq.core import limits
from veilmq.core.commands import NewMessage
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.v1.errors import INVALID_REQUEST, RowRefused
from veilmq.wire.v1.outgoing import Outgoing, OutgoingRow

_TEXT = (pa.string(), pa.large_string())
_TEXTS = tuple(pa.map_(text, text) for text in _TEXT)
_NUMBER = (pa.int32(), pa.int64())

COLUMNS: dict[str, tuple[Any, ...]] = {
    "body": _TEXT,
    "attributes": _TEXTS,
    "attribute_types": _TEXTS,
    "group": _TEXT,
    "dedup_id": _TEXT,
    "delay_s": _NUMBER,
}
"""Column → the types that it may have; ``body`` is the only one that must be there."""

_MAPS = ("attributes", "attribute_types")
_MESSAGE_HEADER = 8  # offset of the field in the table of the flatbuffer: 4 + 2 × its number
_BATCH_COMPRESSION = 10


def messages(body: bytes, outgoing: Outgoing) -> tuple[NewMessage, ...]:
    """Return the messages of a stream; raises ``SqsError``."""
    try:
        return _messages(body, outgoing)
    except (pa.ArrowException, OSError, ValueError, EOFError, struct.error, MemoryError) as error:
        raise SqsError(INVALID_REQUEST, f"The body is not a sound Arrow IPC stream: {str(error)[:200]}.") from None


def _messages(body: bytes, outgoing: Outgoing) -> tuple[NewMessage, ...]:
    made: tuple[NewMessage, ...] = ()
    for batch in _batches(body):
        if len(made) + batch.num_rows > limits.STAGE_MESSAGES_MAX:
            raise too_many(len(made) + batch.num_rows)
        try:
            made += _of_batch(batch, outgoing)
        except RowRefused as error:
            raise error.behind(len(made)) from None
    return made


def too_many(count: int) -> SqsError:
    """Return the error for more messages than one call may have."""
    return SqsError(INVALID_REQUEST, f"{count} messages are too many for one call; send {limits.STAGE_MESSAGES_MAX}.")


def _batches(body: bytes) -> Iterator[Any]:
    source = pa.BufferReader(body)
    schema = _checked(ipc.read_schema(source))
    while source.tell() < source.size():
        try:
            message = ipc.read_message(source)
        except EOFError:  # the mark at the end
            return
        if message.type != "record batch" or _is_compressed(message.metadata.to_pybytes()):
            raise SqsError(INVALID_REQUEST, "The stream may have record batches alone, and none that is compressed.")
        batch = ipc.read_record_batch(message, schema)
        batch.validate(full=True)
        yield batch


def _checked(schema: Any) -> Any:
    for field in schema:
        if field.type not in COLUMNS.get(field.name, ()):
            raise SqsError(INVALID_REQUEST, f"The column {field.name[:64]!r} of type {field.type} is none of ours.")
    if len(set(schema.names)) != len(schema.names) or "body" not in schema.names:
        raise SqsError(INVALID_REQUEST, "The stream must have the column 'body', and each column once.")
    return schema


def _is_compressed(metadata: bytes) -> bool:
    """Tell whether the metadata of a record batch (a flatbuffer: Message.fbs of the Arrow format) say so."""
    (root,) = struct.unpack_from("<I", metadata)
    header = _field(metadata, root, _MESSAGE_HEADER)
    if header is None:
        return True  # nothing that we can vouch for
    (batch,) = struct.unpack_from("<I", metadata, header)
    return _field(metadata, header + batch, _BATCH_COMPRESSION) is not None


def _field(metadata: bytes, table: int, slot: int) -> int | None:
    """Return where a field of a flatbuffer's table is, ``None`` where it has none."""
    (back,) = struct.unpack_from("<i", metadata, table)
    (size,) = struct.unpack_from("<H", metadata, table - back)
    if slot >= size:
        return None
    (offset,) = struct.unpack_from("<H", metadata, table - back + slot)
    return table + offset if offset else None


def _of_batch(batch: Any, outgoing: Outgoing) -> tuple[NewMessage, ...]:
    given = {name: batch.column(name) for name in batch.schema.names}
    bodies = given["body"].to_pylist()
    if None in bodies:
        raise RowRefused(bodies.index(None), SqsError(INVALID_REQUEST, "It has no body."))
    columns = {name: _values(name, column) for name, column in given.items() if column.null_count < batch.num_rows}
    columns["body"] = bodies
    if len(columns) == 1:
        return outgoing.from_bodies(bodies)
    rows = [OutgoingRow(**dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)]
    return outgoing.from_rows(rows)


def _values(name: str, column: Any) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if name not in _MAPS:
        return values
    return [None if pairs is None else {key: text or "" for key, text in pairs} for pairs in values]
