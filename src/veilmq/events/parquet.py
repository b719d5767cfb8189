"""Events as Parquet files: write a range, and read back the newest receipts of a queue.

A range gives one file for each hour in which its receipts ended. The range alone determines content, name and folder of
a file, so a repeated export gives the same bytes.

An entry lists the files: ``_ranges/NODE/FIRST.json``. The ranges of a node have no gaps, so a reader that has read up
to an event finds the next entry by its name, whatever the folders of its files.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from os import stat_result
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ArrowException, parquet

from veilmq.core import Value
from veilmq.core.receipts import EventRange, ReceiptClosed
from veilmq.events import ProcessingTimes, bin_of

DATA_SET = "receipt_closed"
"""The folder of the table below the target."""
RANGES = "_ranges"
"""The folder of the entries below the folder of the table; readers of tables ignore its name."""
DICTIONARY_ENCODED = ["queue", "key", "group_hash", "outcome", "node"]
DELTA_ENCODED = ("event", "sent_at", "received_at", "closed_at")
ROWS_MAX = 100_000  # read back; the same applies to the next two
FILES_MAX = 64
BYTES_MAX = 64 << 20

_COLUMNS = ["outcome", "held_ms", "closed_at", "message_id", "receipt"]
_Row = tuple[str, int, int, tuple[str, int]]
"""Outcome, held_ms, closed_at in milliseconds, and the receipt."""

_HOUR_MS = 3_600_000
_MESSAGE_ID = ReceiptClosed.__struct_fields__.index("message_id")
_decode = msgspec.msgpack.Decoder(list[tuple[Any, ...]]).decode
_INSTANT = pa.timestamp("ms", tz="UTC")
_TEXT, _LONG, _INT = pa.string(), pa.int64(), pa.int32()

SCHEMA = pa.schema(
    {
        "queue": _TEXT,
        "key": _TEXT,
        "group_hash": _LONG,
        "size_bucket": _INT,
        "message_id": _TEXT,
        "receipt": _LONG,
        "sent_at": _INSTANT,
        "received_at": _INSTANT,
        "closed_at": _INSTANT,
        "held_ms": _LONG,
        "outcome": _TEXT,
        "visibility_ms": _LONG,
        "extensions": _INT,
        "receive_count": _INT,
        "batch_size": _INT,
        "batch_position": _INT,
        "event": _LONG,
        "node": _TEXT,
    }
)
"""The columns of the table: those of ``ReceiptClosed``, the number of the event, and the store that numbered it."""


def to_table(batches: Sequence[tuple[int, bytes]], node: str) -> Any:
    """Decode ``batches``, each with the number of its first event, to one Arrow table."""
    decoded = [(number, _decode(encoded)) for number, encoded in batches]
    rows = list(chain.from_iterable(events for _, events in decoded))
    columns: list[Any] = list(zip(*rows, strict=True)) or [()] * (len(SCHEMA) - 2)
    columns[_MESSAGE_ID] = [message_id.hex() for message_id in columns[_MESSAGE_ID]]
    columns.append(list(chain.from_iterable(range(number, number + len(events)) for number, events in decoded)))
    columns.append([node] * len(rows))
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


class RangeEntry(Value):
    """An exported range: its last event, and the paths of its files below the folder of the table."""

    last: int
    files: list[str]


def range_files(tables: Sequence[Any], planned: EventRange) -> Iterator[tuple[str, str, Any]]:
    """Yield folder, name and rows of each file of a range, one for each hour in which receipts ended."""
    whole = pa.concat_tables(tables).combine_chunks()
    hours = pc.divide(whole["closed_at"].cast(pa.int64()), _HOUR_MS)
    name = f"{planned.node}-{planned.first:012d}-{planned.last:012d}.parquet"
    found = sorted(pc.unique(hours).to_pylist())
    for hour in found:
        folder = datetime.fromtimestamp(hour * 3_600, tz=UTC).strftime(f"{DATA_SET}/date=%Y-%m-%d/hour=%H")
        yield folder, name, whole if len(found) == 1 else whole.filter(pc.equal(hours, hour))


def encode_parquet(table: Any) -> Any:
    """Encode ``table`` as a Parquet file."""
    written = pa.BufferOutputStream()
    encodings = dict.fromkeys(DELTA_ENCODED, "DELTA_BINARY_PACKED")
    parquet.write_table(
        table, written, compression="zstd", use_dictionary=DICTIONARY_ENCODED, column_encoding=encodings
    )
    return written.getvalue()


def entry_name(first: int) -> str:
    return f"{first:012d}.json"


def range_entry(planned: EventRange, paths: Sequence[str]) -> tuple[str, str, bytes]:
    """Return folder, name and content of the entry for a range with the files ``paths``."""
    names = [path.removeprefix(f"{DATA_SET}/") for path in paths]
    content = msgspec.json.encode(RangeEntry(last=planned.last, files=names))
    return f"{DATA_SET}/{RANGES}/{planned.node}", entry_name(planned.first), content


def read_processing_times(root: Path, queue: str) -> ProcessingTimes:
    """Read processing times of the newest receipts of ``queue`` (a full name) from the files below ``root``; slow."""
    rows: list[_Row] = []
    size_bytes = number = 0
    for date in sorted((root / DATA_SET).glob("date=*"), reverse=True):
        for hour in sorted(date.glob("hour=*"), reverse=True):
            for path, stat in newest_first(hour.glob("[!_]*.parquet")):
                if number >= FILES_MAX or size_bytes >= BYTES_MAX or len(rows) >= ROWS_MAX:
                    return _processing_times(rows, is_cut=True)
                number += 1
                size_bytes += stat.st_size
                rows += _rows(path, queue)
    return _processing_times(rows, is_cut=False)


def newest_first(paths: Iterable[Path]) -> list[tuple[Path, stat_result]]:
    """Return the files that still exist, newest first; other processes may delete and replace files."""
    found: list[tuple[Path, stat_result]] = []
    for path in paths:
        with suppress(OSError):
            found.append((path, path.stat()))
    return sorted(found, key=lambda each: each[1].st_mtime, reverse=True)


def _rows(path: Path, queue: str) -> list[_Row]:
    try:
        with path.open("rb") as file:
            table = parquet.read_table(file, columns=_COLUMNS, filters=[("queue", "==", queue)])
    except (ArrowException, OSError):
        return []  # deleted, or another kind of file
    columns = [table[name].to_pylist() for name in ("outcome", "held_ms")]
    closed_ms = table["closed_at"].cast("int64").to_pylist()
    receipts = zip(table["message_id"].to_pylist(), table["receipt"].to_pylist(), strict=True)
    return list(zip(*columns, closed_ms, receipts, strict=True))


def _processing_times(rows: list[_Row], *, is_cut: bool) -> ProcessingTimes:
    """Count receipts by bin; a late delete replaces the expiry of its receipt, because the work did end."""
    corrected = {receipt for outcome, _, _, receipt in rows if outcome == "late_deleted"}
    counted = {outcome: Counter[int]() for outcome in ("deleted", "late_deleted", "expired")}
    since_ms = None
    for outcome, held_ms, closed_ms, receipt in rows:
        if outcome in counted and (outcome != "expired" or receipt not in corrected):
            counted[outcome][bin_of(held_ms)] += 1
            since_ms = closed_ms if since_ms is None else min(since_ms, closed_ms)
    deleted, late, expired = counted.values()
    receipts = deleted.total() + late.total() + expired.total()
    bins = {"deleted": dict(deleted), "late": dict(late), "expired": dict(expired)}
    return ProcessingTimes(**bins, receipts=receipts, since_ms=since_ms, is_cut=is_cut)
