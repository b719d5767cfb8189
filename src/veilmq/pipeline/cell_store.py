"""The store of cells: what earlier runs counted, so that each file of the event log is read once.

A run counts the files that no earlier run has, writes the cells under its own number, and last of all the names of the
files. A run whose names are missing did not happen: the next one takes its number and writes over it. So a run that is
killed and repeated counts nothing twice, and files that are exported once more under the same name neither.

The store is a folder, or any URL that Spark writes to. One run at a time.
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from veilmq.core.limits import TUNE_MAP_TASKS
from veilmq.pipeline import histograms
from veilmq.pipeline.closed_receipts import files_of, read_files
from veilmq.pipeline.folders import existing, located

_CELLS = (
    "queue string, key string, day date, first boolean, outcome string, axis string, arm int, bucket int, "
    "n bigint, extended bigint, extensions bigint, extended_held_ms bigint"
)
_WAITS = "queue string, hour int, bucket int, n bigint"
_FILES = "file string"


@dataclass(frozen=True, slots=True)
class Counted:
    """What a run has counted: how many ``files`` were new, and the number of the last ``run`` (0 if there was none)."""

    files: int
    run: int


class CellStore:
    """The cells, the waits and the names of the files that are in them, under one folder or URL."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        """Open nothing yet."""
        self._spark = spark
        self._location = located(location)

    def count(self, events: str, *, map_tasks: int = TUNE_MAP_TASKS.default) -> Counted:
        """Count the files under ``events`` that are not in the store; at most ``map_tasks`` tasks read them."""
        done = {row.file: row.run for row in self._read("files", _FILES).collect()}
        last = max(done.values(), default=0)
        new = [name for name in files_of(self._spark, events) if name not in done]
        if not new:
            return Counted(files=0, run=last)
        receipts = read_files(self._spark, new, tasks_max=map_tasks)
        run = last + 1
        self._write(histograms.cells(receipts), "cells", run)
        self._write(histograms.waits(receipts), "waits", run)
        self._write(self._spark.createDataFrame([(name,) for name in new], _FILES), "files", run)
        return Counted(files=len(new), run=run)

    def cells(self) -> DataFrame:
        """Return the cells of all runs, not yet merged (``histograms.cells`` has the columns)."""
        return self._counted("cells", _CELLS)

    def waits(self) -> DataFrame:
        """Return the waits of all runs, added."""
        return self._counted("waits", _WAITS).groupBy("queue", "hour", "bucket").agg(fn.sum("n").alias("n"))

    def _counted(self, table: str, schema: str) -> DataFrame:
        """Return a table without the runs that did not end."""
        runs = self._read("files", _FILES).agg(fn.max("run").alias("last"))
        return self._read(table, schema).join(fn.broadcast(runs), fn.col("run") <= fn.col("last")).drop("run", "last")

    def _read(self, table: str, schema: str) -> DataFrame:
        """Return a table with its ``run``; empty before the first one."""
        found = existing(self._spark.read.schema(f"{schema}, run int"), f"{self._location}/{table}")
        return self._spark.createDataFrame([], f"{schema}, run int") if found is None else found

    def _write(self, rows: DataFrame, table: str, run: int) -> None:
        rows.write.mode("overwrite").parquet(f"{self._location}/{table}/run={run}")
