"""Spark sources of ready-made Arrow batches: the maximum that a Python source can deliver."""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from veilmq.spark.datasource import SCHEMA

NAME = "ready_made"
BODY = "x" * 100


def batch(rows: int) -> pa.RecordBatch:
    """Return rows like those of a queue: an id, a body of 100 bytes, times, and the columns of a plain message."""
    text = pa.map_(pa.string(), pa.string())
    instant = pa.timestamp("us", tz="UTC")
    columns: Mapping[str, pa.Array] = {
        "id": pa.array([f"{n:036}" for n in range(rows)]),
        "body": pa.array([BODY] * rows),
        "attributes": pa.array([[]] * rows, text),
        "attribute_types": pa.nulls(rows, text),
        "group": pa.nulls(rows, pa.string()),
        "sent_at": pa.array([0] * rows, instant),
        "received_at": pa.array([0] * rows, instant),
        "receive_count": pa.array([1] * rows, pa.int32()),
        "sequence_number": pa.nulls(rows, pa.string()),
        "queue": pa.array(["000000000000/bench"] * rows),
    }
    return pa.record_batch(list(columns.values()), names=list(columns))


class ReadyMade(DataSource):
    """`format("ready_made")` with the options `rows` (of a micro-batch) and `shards`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return _Reader(rows=int(self.options["rows"]), shards=int(self.options["shards"]))


class _Reader(DataSourceStreamReader):
    def __init__(self, *, rows: int, shards: int) -> None:
        self._rows = rows
        self._shards = shards

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"n": start["n"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(self._rows // self._shards)] * self._shards

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from _made(partition.value)


def _made(rows: int, _kept: dict[int, list[pa.RecordBatch]] = {}) -> list[pa.RecordBatch]:  # noqa: B006 - a worker's own
    if rows not in _kept:
        _kept[rows] = [batch(min(10_000, rows - start)) for start in range(0, rows, 10_000)]
    return _kept[rows]
