"""Events as Arrow tables, and the files that a range of them becomes (``docs/events.md`` has the columns).

A range becomes one file for each hour in which receipts of it ended. What a file holds, its name and its place follow
from the range alone, so a range that is exported again gives the same files byte for byte.

When they are in place, an entry names them: ``_ranges/NODE/FIRST.json``. Ranges of a node follow each other without a
gap, so a reader that has read up to an event finds the next entry by its name, in whatever folders its files are.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from veilmq.core.events import EventRange, ReceiptClosed

DATA_SET = "receipt_closed"
"""The folder of the table below the target."""
RANGES = "_ranges"
"""The folder of the entries below that of the table; readers of tables pass over its name."""
DICTIONARY_ENCODED = ["queue", "key", "group_hash", "outcome", "node"]
DELTA_ENCODED = ("event", "sent_at", "received_at", "closed_at")

_HOUR_MS = 3_600_000
_MESSAGE_ID = ReceiptClosed.__struct_fields__.index("message_id")
_decode = msgspec.msgpack.Decoder(list[tuple[Any, ...]]).decode


_INSTANT = pa.timestamp("ms", tz="UTC")

SCHEMA = pa.schema(
    [
        ("queue", pa.string()),
        ("key", pa.string()),
        ("group_hash", pa.int64()),
        ("size_bucket", pa.int32()),
        ("message_id", pa.string()),
        ("receipt", pa.int64()),
        ("sent_at", _INSTANT),
        ("received_at", _INSTANT),
        ("closed_at", _INSTANT),
        ("held_ms", pa.int64()),
        ("outcome", pa.string()),
        ("visibility_ms", pa.int64()),
        ("extensions", pa.int32()),
        ("receive_count", pa.int32()),
        ("batch_size", pa.int32()),
        ("batch_position", pa.int32()),
        ("event", pa.int64()),
        ("node", pa.string()),
    ]
)
"""The columns of the table: those of ``ReceiptClosed``, the number of the event, and the store that numbered it."""


def to_table(batches: Sequence[tuple[int, bytes]], node: str) -> Any:
    """Return encoded ``batches``, each with the number of its first event, as one Arrow table."""
    decoded = [(number, _decode(encoded)) for number, encoded in batches]
    rows = list(chain.from_iterable(events for _, events in decoded))
    columns: list[Any] = list(zip(*rows, strict=True)) or [()] * (len(SCHEMA) - 2)
    columns[_MESSAGE_ID] = [message_id.hex() for message_id in columns[_MESSAGE_ID]]
    columns.append(list(chain.from_iterable(range(number, number + len(events)) for number, events in decoded)))
    columns.append([node] * len(rows))
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


class RangeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A range that was exported: its last event, and the paths of its files below the folder of the table."""

    last: int
    files: list[str]


def files(tables: Sequence[Any], planned: EventRange) -> Iterator[tuple[str, str, Any]]:
    """Yield the folder, the name and the rows of each file that a range becomes, one for each hour of ends."""
    whole = pa.concat_tables(tables).combine_chunks()
    hours = pc.divide(whole["closed_at"].cast(pa.int64()), _HOUR_MS)
    name = f"{planned.node}-{planned.first:012d}-{planned.last:012d}.parquet"
    found = sorted(pc.unique(hours).to_pylist())
    for hour in found:
        yield _folder(hour), name, whole if len(found) == 1 else whole.filter(pc.equal(hours, hour))


def encoded(table: Any) -> Any:
    """Return ``table`` as the content of a Parquet file."""
    written = pa.BufferOutputStream()
    encodings = dict.fromkeys(DELTA_ENCODED, "DELTA_BINARY_PACKED")
    parquet.write_table(
        table, written, compression="zstd", use_dictionary=DICTIONARY_ENCODED, column_encoding=encodings
    )
    return written.getvalue()


def entry_name(first: int) -> str:
    """Return the name of the entry of the range that begins with the event ``first``."""
    return f"{first:012d}.json"


def entry(planned: EventRange, paths: Sequence[str]) -> tuple[str, str, bytes]:
    """Return the folder, the name and the content of the entry that names the files of a range, ``paths``."""
    names = [path.removeprefix(f"{DATA_SET}/") for path in paths]
    content = msgspec.json.encode(RangeEntry(last=planned.last, files=names))
    return f"{DATA_SET}/{RANGES}/{planned.node}", entry_name(planned.first), content


def _folder(hour: int) -> str:
    return datetime.fromtimestamp(hour * 3_600, tz=UTC).strftime(f"{DATA_SET}/date=%Y-%m-%d/hour=%H")
