"""The store of cells: the counts of earlier runs, so that each file of the event log is read once.

A run counts the new files, writes the cells and the file names under its run number, and writes its record last. A run
without a record did not happen: the next run reuses its number and overwrites it. So neither a killed and repeated run
nor a file that is exported again under the same name is counted twice. The record is a single file, so it appears
atomically.

The record stores the position in the log of each node, so the cost of a run depends on the new files only
(``run_record``). The first run of a day lists the whole log as well (decision 27). After ``RUNS_MAX`` runs, one
run with the sum of all replaces them.

The store is a folder, or a URL that Spark can write. Only one run at a time is allowed.
"""

import time
from dataclasses import dataclass, replace

from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from veilmq.core.limits import TUNE_MAP_TASKS
from veilmq.pipeline import histograms
from veilmq.pipeline.closed_receipts import EventLog
from veilmq.pipeline.folders import existing, located, opened
from veilmq.pipeline.run_record import RunRecord, next_run

RUNS_MAX = 16

_RECORDS = "base int, listed string, positions map<string, bigint>, ahead array<string>"
_TABLES = {
    "cells": "queue string, key string, day date, first boolean, outcome string, axis string, arm int, bucket int, "
    "n bigint, extensions bigint",
    "waits": "queue string, hour int, bucket int, n bigint",
    "files": "file string",
}


@dataclass(frozen=True, slots=True)
class Counted:
    """The result of a run: the number of new ``files``, and the number of the last ``run`` (0: none yet)."""

    files: int
    run: int


class CellStore:
    """The cells, the waits and the names of the counted files, under one folder or URL."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        """Open nothing."""
        self._spark = spark
        self._location = located(location)

    def count(self, events: str, *, map_tasks: int = TUNE_MAP_TASKS.default, at_ms: int | None = None) -> Counted:
        """Count the files under ``events`` that are not in the store; at most ``map_tasks`` tasks read them.

        ``at_ms`` (default: now) determines the day; the first run of a day lists all files.
        """
        log = EventLog(self._spark, events)
        last = self._last()

        def names() -> list[str]:
            return [row.file for row in self._table("files", last).collect()]

        now_ms = time.time_ns() // 1_000_000 if at_ms is None else at_ms
        new, record = next_run(last, log, at_ms=now_ms, counted=names)
        if record is last:
            return Counted(files=0, run=last.run)
        receipts = log.read(new, tasks_max=map_tasks)
        self._write(histograms.cells(receipts), "cells", record.run)
        self._write(histograms.waits(receipts), "waits", record.run)
        self._write(self._spark.createDataFrame([(name,) for name in new], "file string"), "files", record.run)
        self._end(record)
        return Counted(files=len(new), run=record.run)

    def cells(self) -> DataFrame:
        """Return the cells of all runs, unmerged (``histograms.cells`` has the columns)."""
        return self._table("cells", self._last())

    def waits(self) -> DataFrame:
        """Return the sum of the waits of all runs."""
        return _added(self._table("waits", self._last()))

    def merge(self) -> None:
        """Replace all runs by one with their sum; remove only runs that the merge before this one replaced.

        Concurrent readers can therefore still read the runs that this merge replaces.
        """
        last = self._last()
        run = last.run + 1
        self._write(histograms.merged(self._table("cells", last)), "cells", run)
        self._write(_added(self._table("waits", last)), "waits", run)
        self._write(self._table("files", last).coalesce(1), "files", run)
        self._end(replace(last, run=run, base=run))
        self._remove(before=last.base)

    def _end(self, record: RunRecord) -> None:
        """Write the record, which completes the run; merge if there are many runs."""
        row = (record.base, record.listed, dict(record.positions), list(record.ahead))
        self._write(self._spark.createDataFrame([row], _RECORDS).coalesce(1), "runs", record.run)
        if record.run - record.base >= RUNS_MAX:
            self.merge()

    def _last(self) -> RunRecord:
        """Return the record of the last run; only its number if an earlier version, without records, made it."""
        found = self._read("runs", _RECORDS).orderBy(fn.desc("run")).first()
        if found is None:
            named = self._read("files", _TABLES["files"]).agg(fn.max("run").alias("last")).first()
            return RunRecord(run=(named and named["last"]) or 0)
        return RunRecord(**found.asDict() | {"ahead": tuple(found["ahead"])})

    def _table(self, name: str, last: RunRecord) -> DataFrame:
        """Return a table without merged runs and without an incomplete run."""
        return self._read(name, _TABLES[name]).where(fn.col("run").between(last.base, last.run)).drop("run")

    def _read(self, table: str, schema: str) -> DataFrame:
        """Return a table with the column ``run``; empty before the first run."""
        found = existing(self._spark.read.schema(f"{schema}, run int"), f"{self._location}/{table}")
        return self._spark.createDataFrame([], f"{schema}, run int") if found is None else found

    def _write(self, rows: DataFrame, table: str, run: int) -> None:
        rows.write.mode("overwrite").parquet(f"{self._location}/{table}/run={run}")

    def _remove(self, *, before: int) -> None:
        """Remove the runs below ``before``; they stay, ignored, if pyarrow cannot access the store."""
        place = opened(self._location)
        if place is None:
            return
        files, root = place
        for table in ("runs", *_TABLES):
            for info in files.get_file_info(fs.FileSelector(f"{root}/{table}", allow_not_found=True)):
                run = info.base_name.removeprefix("run=")
                if run.isdecimal() and int(run) < before:
                    files.delete_dir(info.path)


def _added(waits: DataFrame) -> DataFrame:
    return waits.groupBy("queue", "hour", "bucket").agg(fn.sum("n").alias("n"))
