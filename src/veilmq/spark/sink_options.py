"""The options of the sink, the columns that a DataFrame may have, and their conversion for a queue.

``OPTIONS`` is the table by which options are parsed, checked and documented. Only the column ``body`` is required.
Options and columns are checked when the query is planned; the server checks values.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from veilmq.core import limits
from veilmq.core.limits import Range
from veilmq.spark.options import (
    CONNECTION_OPTIONS,
    Connection,
    Kind,
    Option,
    name_of,
    read,
    whole,
)

FAIL = "fail"

SKIP = "skip"
TABLE = "table="

BATCH_SIZE = Range(minimum=1, maximum=limits.STAGE_MESSAGES_MAX, default=1_000)
PATIENCE_S = Range(minimum=0, maximum=3_600, default=60)
_WRITER_CHARACTERS_MAX = 64
_SPARK = ("checkpointlocation", "asyncprogresstracking", "queryname")  # options of writeStream, which Spark passes on


def _bad_rows(text: str) -> str:
    if text.lower() in (FAIL, SKIP):
        return text.lower()
    if text[: len(TABLE)].lower() != TABLE or len(text) == len(TABLE):
        raise ValueError
    return text[len(TABLE) :] if "://" in text else str(Path(text[len(TABLE) :]).absolute())


OPTIONS = (
    *CONNECTION_OPTIONS,
    Option(
        name="batchSize",
        field="batch_size",
        kind=whole(BATCH_SIZE),
        default=BATCH_SIZE.default,
        doc="Maximum number of messages in a request; a request with long messages has fewer.",
    ),
    Option(
        name="messagesPerSecond",
        field="messages_per_s_max",
        kind=whole(limits.PUBLISH_PER_S),
        shown="unlimited",
        doc="Maximum rate at which published messages become visible, over all tasks. A batch ends with its last one.",
    ),
    Option(
        name="badRows",
        field="bad_rows",
        kind=Kind(read=_bad_rows, says="`fail`, `skip` or `table=PATH`"),
        default=FAIL,
        doc="Action for a row that cannot be sent: end the query, leave the row out, or write it with the reason to a "
        "Parquet file in the folder or bucket `PATH`.",
    ),
    Option(
        name="writer",
        field="writer",
        kind=name_of(_WRITER_CHARACTERS_MAX),
        shown="unique for each write",
        doc="Batch writes only: its name. Writes with the same name are sent once, in `foreachBatch` once per batch.",
    ),
    Option(
        name="patience",
        field="patience_s",
        kind=whole(PATIENCE_S),
        default=PATIENCE_S.default,
        doc="Seconds for which requests are retried, if the server does not answer, before the task fails.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The parsed options; durations in seconds."""

    connection: Connection
    batch_size: int
    messages_per_s_max: int | None
    bad_rows: str
    writer: str | None
    patience_s: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Parse the options from Spark; raises ``OptionWrong``."""
        own_options = {name: text for name, text in options.items() if not name.lower().startswith(_SPARK)}
        values = read(OPTIONS, own_options)
        return cls(connection=Connection.of(values), **values)


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

_SAYS = {pa.string(): "string", _TEXTS: "map<string, string>", pa.int32(): "int"}
_HINTS = {"binary": "CAST({0} AS STRING), or base64({0})"}


class ColumnsWrong(ValueError):
    """The DataFrame cannot be written to a queue; ``str()`` names the column, and says what to do."""


def check(schema: StructType) -> None:
    """Raise ``ColumnsWrong`` if ``schema`` has other columns than ``TYPES``, or no ``body``."""
    names = [field.name.lower() for field in schema]
    known = [name for name in names if name in TYPES]
    for field in schema:
        if field.name.lower() not in TYPES:
            keep = ", ".join(f'"{name}"' for name in known or ["body"])
            raise ColumnsWrong(
                f"The column {field.name} is not a column of messages ({', '.join(TYPES)}); add select({keep})."
            )
        if not _fits(field.name.lower(), field.dataType):
            raise ColumnsWrong(_misfit(field.name, field.dataType))
    if "body" not in names:
        raise ColumnsWrong("The column body is missing; add it as a string.")
    if len(set(names)) != len(names):
        raise ColumnsWrong(f"A column occurs twice in {', '.join(names)}; select each column once.")


def _fits(name: str, kind: DataType) -> bool:
    if name == "delay_s":
        return isinstance(kind, ByteType | ShortType | IntegerType | LongType)
    if TYPES[name] == _TEXTS:
        pair = (kind.keyType, kind.valueType) if isinstance(kind, MapType) else ()
        return bool(pair) and all(isinstance(each, StringType) for each in pair)
    return isinstance(kind, StringType)


def _misfit(name: str, kind: DataType) -> str:
    wanted = _SAYS[TYPES[name.lower()]]
    hint = _HINTS.get(kind.simpleString(), f"CAST({{0}} AS {wanted})").format(name)
    return f"The column {name} must be {wanted}, but is {kind.simpleString()}; use {hint}."


def outgoing(batch: Any) -> Any:
    """Return a record batch of Spark with the types of ``TYPES``."""
    names = [name.lower() for name in batch.schema.names]
    pairs = zip(names, batch.columns, strict=True)
    arrays = [column if column.type == TYPES[name] else column.cast(TYPES[name]) for name, column in pairs]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def parts(batch: Any, messages_max: int) -> Iterator[Any]:
    """Divide a batch into slices for one request each: at most ``messages_max`` messages, and about ``PART_BYTES``."""
    for start in range(0, batch.num_rows, messages_max):
        yield from _light(batch.slice(start, messages_max))


def _light(rows: Any) -> Iterator[Any]:
    if rows.num_rows == 1 or rows.nbytes <= PART_BYTES:
        yield rows
        return
    half = rows.num_rows // 2
    yield from _light(rows.slice(0, half))
    yield from _light(rows.slice(half))


def too_long(rows: Any, bytes_max: int) -> list[int]:
    """Return the indexes of rows with a body longer than ``bytes_max``; a single row is checked with its attributes."""
    if rows.num_rows == 1 and size_bytes(rows, 0) > bytes_max:  # a row too large for any request is a part by itself
        return [0]
    longer = pc.greater(pc.binary_length(rows.column("body")), bytes_max)
    found: list[int] = pc.indices_nonzero(longer.fill_null(fill_value=False)).to_pylist()
    return found


def without(rows: Any, indexes: list[int]) -> Any:
    """Return ``rows`` without those at ``indexes``."""
    removed = set(indexes)
    return rows.take(pa.array([index for index in range(rows.num_rows) if index not in removed], pa.int64()))


def size_bytes(rows: Any, index: int) -> int:
    """Return the approximate size of a row's message: its body, and the names and values of its attributes."""
    body: str = rows.column("body")[index].as_py() or ""
    texts: list[tuple[str, str]] = []
    if "attributes" in rows.schema.names:
        texts = rows.column("attributes")[index].as_py() or []
    return len(body.encode()) + sum(len(name.encode()) + len((text or "").encode()) for name, text in texts)
