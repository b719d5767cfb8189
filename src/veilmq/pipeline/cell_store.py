"""The store of cells: the counts of earlier runs, so that each file of the event log is read once.

A run counts the new files, writes the cells and the file names under its run number, and writes its record last. A run
without a record did not happen: the next run reuses its number and overwrites it. So neither a killed and repeated run
nor a file that is exported again under the same name is counted twice. The record is a single file, so it appears
atomically.

The record stores the position in the log of each node, so the cost of a run depends on the new files only
(``closed_receipts``). The first run of a day lists the whole log as well (decision 27). After ``RUNS_MAX`` runs, one
run with the sum of all replaces them.

The store is a folder, or a URL that Spark can write. Only one run at a time is allowed.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from veilmq.core.limits import TUNE_MAP_TASKS
from veilmq.pipeline import histograms
from veilmq.pipeline.closed_receipts import EventLog, Found
from veilmq.pipeline.folders import existing, located, opened

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """The state after a run. Runs below ``base`` are merged; ``listed`` is the day and the log of the last listing."""

    run: int = 0
    base: int = 1
    listed: str = ""
    positions: Mapping[str, int] = field(default_factory=dict)
    ahead: tuple[str, ...] = ()


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
        now_s = time.time() if at_ms is None else at_ms / 1000
        log = EventLog(self._spark, events)
        last = self._last()
        listed = f"{datetime.fromtimestamp(now_s, tz=UTC):%Y-%m-%d} {log.root}"
        found = log.after(last.positions) if listed == last.listed else None
        if found is None:
            found = log.listed()
            done = {log.below(row.file) for row in self._table("files", last).collect()}
        else:
            done = set(last.ahead)
        new = [name for name in found.files if name not in done]
        record = _Record(base=last.base, listed=listed, positions=found.positions, ahead=_ahead(found, last))
        if not new and (last.run == 0 or replace(record, run=last.run) == last):
            return Counted(files=0, run=last.run)
        record = replace(record, run=last.run + 1)
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

    def _end(self, record: _Record) -> None:
        """Write the record, which completes the run; merge if there are many runs."""
        row = (record.base, record.listed, dict(record.positions), list(record.ahead))
        self._write(self._spark.createDataFrame([row], _RECORDS).coalesce(1), "runs", record.run)
        if record.run - record.base >= RUNS_MAX:
            self.merge()

    def _last(self) -> _Record:
        """Return the record of the last run; only its number if an earlier version, without records, made it."""
        found = self._read("runs", _RECORDS).orderBy(fn.desc("run")).first()
        if found is None:
            named = self._read("files", _TABLES["files"]).agg(fn.max("run").alias("last")).first()
            return _Record(run=(named and named["last"]) or 0)
        return _Record(**found.asDict() | {"ahead": tuple(found["ahead"])})

    def _table(self, name: str, last: _Record) -> DataFrame:
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


def _ahead(found: Found, last: _Record) -> tuple[str, ...]:
    """Return the files that were counted before their entries appeared."""
    return tuple(sorted({*last.ahead} - {*found.files} | {*found.ahead}))
