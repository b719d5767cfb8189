"""The options of the sink, and the columns that a DataFrame may have, with how they become what a queue takes.

``OPTIONS`` is the one table: of what is read, checked and documented. Of the columns only ``body`` must be there.
Everything is checked while the query is planned, but for values: those the server checks.
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
# What its streaming writer reads, and hands on all the same.
_OF_SPARK = ("checkpointlocation", "asyncprogresstracking", "queryname")


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
        doc="Most messages of one request; one with long messages has fewer.",
    ),
    Option(
        name="messagesPerSecond",
        field="messages_per_s_max",
        kind=whole(limits.PUBLISH_PER_S),
        shown="as fast as it goes",
        doc="How fast the messages of one batch come into the queue, all tasks together. The batch waits for the last.",
    ),
    Option(
        name="badRows",
        field="bad_rows",
        kind=Kind(read=_bad_rows, says="`fail`, `skip` or `table=PATH`"),
        default=FAIL,
        doc="What a row that cannot be sent does: end the query, be left out, or go with its reason to a Parquet file "
        "in the folder or bucket `PATH`.",
    ),
    Option(
        name="writer",
        field="writer",
        kind=name_of(_WRITER_CHARACTERS_MAX),
        shown="a new one for each write",
        doc="Batch writes only: what is written under one name is sent once, in `foreachBatch` once for each batch.",
    ),
    Option(
        name="patience",
        field="patience_s",
        kind=whole(PATIENCE_S),
        default=PATIENCE_S.default,
        doc="Seconds for which a server that does not answer is tried again before the task fails.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options as values; durations in seconds."""

    connection: Connection
    batch_size: int
    messages_per_s_max: int | None
    bad_rows: str
    writer: str | None
    patience_s: int

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Read what Spark hands over; raises ``OptionWrong``."""
        ours = {name: text for name, text in given.items() if not name.lower().startswith(_OF_SPARK)}
        values = read(OPTIONS, ours)
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
"""Column → its Arrow type when it is sent."""

_SAYS = {pa.string(): "string", _TEXTS: "map<string, string>", pa.int32(): "int"}
_HINTS = {"binary": "CAST({0} AS STRING), or base64({0})"}


class ColumnsWrong(ValueError):
    """The DataFrame cannot be written to a queue; ``str()`` says which column and what to do."""


def check(schema: StructType) -> None:
    """Raise ``ColumnsWrong`` unless all columns of ``schema`` are ours, and ``body`` is there."""
    names = [field.name.lower() for field in schema]
    ours = [name for name in names if name in TYPES]
    for field in schema:
        if field.name.lower() not in TYPES:
            keep = ", ".join(f'"{name}"' for name in ours or ["body"])
            raise ColumnsWrong(
                f"The column {field.name} is none that a message has ({', '.join(TYPES)}); select({keep}) before."
            )
        if not _fits(field.name.lower(), field.dataType):
            raise ColumnsWrong(_misfit(field.name, field.dataType))
    if "body" not in names:
        raise ColumnsWrong("There is no column body; a message is its body, a string.")
    if len(set(names)) != len(names):
        raise ColumnsWrong(f"A column is there twice among {', '.join(names)}; select each once.")


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
    return f"The column {name} must be {wanted}, and is {kind.simpleString()}; write {hint}."


def outgoing(batch: Any) -> Any:
    """Return a record batch of Spark's with the types that are sent."""
    names = [name.lower() for name in batch.schema.names]
    pairs = zip(names, batch.columns, strict=True)
    arrays = [column if column.type == TYPES[name] else column.cast(TYPES[name]) for name, column in pairs]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def parts(batch: Any, messages_max: int) -> Iterator[Any]:
    """Cut a batch into slices that one request takes: so many messages, and not too many bytes."""
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
    """Return which rows have bodies that alone are longer than ``bytes_max``; of one row, all that it has counts."""
    if rows.num_rows == 1 and size_bytes(rows, 0) > bytes_max:  # what no request takes is in a part of its own
        return [0]
    longer = pc.greater(pc.binary_length(rows.column("body")), bytes_max)
    found: list[int] = pc.indices_nonzero(longer.fill_null(fill_value=False)).to_pylist()
    return found


def without(rows: Any, indexes: list[int]) -> Any:
    """Return ``rows`` without some of them."""
    gone = set(indexes)
    return rows.take(pa.array([index for index in range(rows.num_rows) if index not in gone], pa.int64()))


def size_bytes(rows: Any, index: int) -> int:
    """Return about how long the message of a row is: its body, and names and values of its attributes."""
    body: str = rows.column("body")[index].as_py() or ""
    texts: list[tuple[str, str]] = []
    if "attributes" in rows.schema.names:
        texts = rows.column("attributes")[index].as_py() or []
    return len(body.encode()) + sum(len(name.encode()) + len((text or "").encode()) for name, text in texts)
