"""The event log in Spark: one row for each receipt that ended (``docs/events.md`` has the columns).

New files are found without listing old ones. The exporter writes an entry for each range of events, named after the
first event of the range (``events.parquet``), and the ranges of a node have no gaps: a reader that has read up to an
event opens the entry that starts with the next event. The entry names its files, whatever their hour. Files without an
entry (of earlier versions, or copied by hand) are found by listing the whole log (decision 27).

The store of cells has the counts of earlier runs, so that each file of the event log is read once. A run counts the new
files, writes the cells and the file names under its run number, and writes its record last. A run without a record did
not happen: the next run reuses its number and overwrites it. So neither a killed and repeated run nor a file that is
exported again under the same name is counted twice. The record is a single file, so it appears atomically.

The record stores the position in the log of each node, so the cost of a run depends on the new files only
(``next_run``). The first run of a day lists the whole log as well (decision 27). After ``RUNS_MAX`` runs, one
run with the sum of all replaces them.

The store is a folder, or a URL that Spark can write. Only one run at a time is allowed.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import msgspec
from pyarrow import ArrowException, fs
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.pandas.types import from_arrow_schema

from veilmq.core.limits import TUNE_MAP_TASKS
from veilmq.events import parquet
from veilmq.events.parquet import DATA_SET, RANGES, RangeEntry, entry_name
from veilmq.pipeline.cells import cells, merged, waits
from veilmq.pipeline.folders import Place, existing, is_url, located, read_parquet

log = logging.getLogger(__name__)

SCHEMA = from_arrow_schema(parquet.SCHEMA)
"""The columns of ``receipt_closed`` without its partition columns ``date`` and ``hour``."""

_HIDDEN = ("_", ".")
_entry = msgspec.json.Decoder(RangeEntry).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Paths of files relative to the log, and ``positions``: the first unread event of each node.

    ``ahead`` are the files whose entries do not exist yet.
    """

    files: tuple[str, ...]
    positions: Mapping[str, int]
    ahead: tuple[str, ...]


class EventLog:
    """The table ``receipt_closed`` in a folder or at a URL, which may also be the target of the export above it."""

    def __init__(self, spark: SparkSession, place: str) -> None:
        self._spark = spark
        self.root = located(place)
        self._files: Any = None  # None: the path may exist only where Spark runs
        try:
            if Place(self.root).files.get_file_info(DATA_SET).type is fs.FileType.Directory:
                self.root += f"/{DATA_SET}"
            files = Place(self.root).files
            if files.get_file_info("").type is not fs.FileType.NotFound:
                self._files = files
        except (ArrowException, OSError, ValueError) as error:
            log.warning("%s: pyarrow cannot read it, so Spark lists all files: %s", place, error)

    def after(self, positions: Mapping[str, int]) -> Found | None:
        """Return the files exported after ``positions``; ``None`` if the log has no entries and must be listed."""
        nodes = self._nodes()
        return self._follow(nodes, positions) if nodes else None

    def listed(self) -> Found:
        """Return all files. A file that appears during the listing belongs to an entry that is read afterwards."""
        before = {node: self._entries(node)[-1:] for node in self._nodes()}
        names = self._names()
        found = self._follow(self._nodes(), {node: first for node, newest in before.items() for first in newest})
        names |= set(found.files)
        newest = dict(sorted(map(_range_of, names)))
        ahead = []  # a node exports its ranges in order
        for name in names:
            node, first = _range_of(name)
            if node and first >= found.positions.get(node, newest[node]):
                ahead.append(name)
        return Found(files=tuple(sorted(names)), positions=found.positions, ahead=tuple(sorted(ahead)))

    def read(self, files: Sequence[str], *, tasks_max: int) -> DataFrame:
        """Return the rows of ``files``, read by at most ``tasks_max`` tasks; no file is opened for its schema.

        By default the number of tasks grows with the bytes. Each task shuffles all of its cells, so the shuffled bytes
        would grow with the number of tasks.
        """
        if not files:
            return self._spark.createDataFrame([], SCHEMA)
        paths = [f"{self.root}/{name}" for name in files]
        return read_parquet(self._spark.read.schema(SCHEMA), *paths).coalesce(tasks_max)

    def _follow(self, nodes: Sequence[str], positions: Mapping[str, int]) -> Found:
        """Read the entries of ``nodes`` from ``positions`` on; for a node without a position, from its oldest entry."""
        names: list[str] = []
        reached = dict(positions)
        for node in nodes:
            first = positions.get(node) or next(iter(self._entries(node)), 0)
            while (entry := self._read(node, first)) is not None:
                names += entry.files
                first = reached[node] = entry.last + 1
        infos = self._files.get_file_info(names) if self._files else []
        existing_names = [name for name, info in zip(names, infos, strict=True) if info.is_file]  # not deleted
        return Found(files=tuple(existing_names), positions=reached, ahead=())

    def _read(self, node: str, first: int) -> RangeEntry | None:
        try:
            with self._files.open_input_stream(f"{RANGES}/{node}/{entry_name(first)}") as stream:
                return _entry(stream.read())
        except FileNotFoundError:
            return None

    def _nodes(self) -> list[str]:
        return [info.base_name for info in self._listed(RANGES) if not info.is_file]

    def _entries(self, node: str) -> list[int]:
        """Return the first events of the entries of ``node``, in order."""
        names = [info.base_name for info in self._listed(f"{RANGES}/{node}")]
        return sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdecimal())

    def _listed(self, folder: str) -> Any:
        if self._files is None:
            return []
        return self._files.get_file_info(fs.FileSelector(folder, allow_not_found=True))

    def _names(self) -> set[str]:
        """Return all data files; Spark lists them if pyarrow cannot."""
        if self._files is None:
            found = existing(self._spark.read.schema(SCHEMA), self.root)
            return set() if found is None else {self.below(unquote(name)) for name in found.inputFiles()}
        every = self._files.get_file_info(fs.FileSelector("", recursive=True, allow_not_found=True))
        names = {info.path for info in every if info.is_file}
        return {name for name in names if not any(part.startswith(_HIDDEN) for part in name.split("/"))}

    def below(self, name: str) -> str:
        """Return the path relative to the log of the file at the URL ``name``; ``name`` if it is not in the log."""
        root = self.root.partition(":")[2] if is_url(self.root) else self.root
        return (name.partition(f"{root}/")[2] or name).removeprefix(f"{DATA_SET}/")  # earlier versions counted it


def _range_of(name: str) -> tuple[str, int]:
    """Return the node and the first event in the name of an exported file; an empty node for other files."""
    node, *events = name.rpartition("/")[2].removesuffix(".parquet").split("-")
    return (node, int(events[0])) if len(events) == 2 and all(each.isdecimal() for each in events) else ("", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The state after a run. Runs below ``base`` are merged; ``listed`` is the day and the log of the last listing.

    ``positions`` are the first unread events of each node, ``ahead`` the counted files whose entries do not exist yet.
    """

    run: int = 0
    base: int = 1
    listed: str = ""
    positions: Mapping[str, int] = field(default_factory=dict)
    ahead: tuple[str, ...] = ()


def next_run(
    last: RunRecord, log: EventLog, *, at_ms: int, counted: Callable[[], Iterable[str]]
) -> tuple[tuple[str, ...], RunRecord]:
    """Return the files of ``log`` that are new at ``at_ms``, and the record of the run that counts them.

    The record is ``last`` if there is nothing to count or to store. ``counted`` returns the names of all counted files;
    it is called only if the log is listed, which the first run of a day does.
    """
    listed = f"{datetime.fromtimestamp(at_ms / 1000, tz=UTC):%Y-%m-%d} {log.root}"
    found = log.after(last.positions) if listed == last.listed else None
    if found is None:
        found = log.listed()
        done = {log.below(name) for name in counted()}
    else:
        done = set(last.ahead)
    new = tuple(name for name in found.files if name not in done)
    ahead = {*last.ahead} - {*found.files} | {*found.ahead}  # counted before their entries appeared
    record = replace(last, listed=listed, positions=found.positions, ahead=tuple(sorted(ahead)))
    if not new and (last.run == 0 or record == last):
        return (), last
    return new, replace(record, run=last.run + 1)


RUNS_MAX = 16

_RECORDS = "base int, listed string, positions map<string, bigint>, ahead array<string>"
_TABLES = {
    "cells": "queue string, key string, day date, first boolean, outcome string, axis string, arm int, bucket int, "
    "n bigint, extensions bigint",
    "waits": "queue string, hour int, bucket int, n bigint",
    "files": "file string",
}


class CellStore:
    """The cells, the waits and the names of the counted files, under one folder or URL."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark = spark
        self._location = located(location)

    def count(self, events: str, *, map_tasks: int = TUNE_MAP_TASKS.default, at_ms: int | None = None) -> int:
        """Count the files under ``events`` that are not in the store; return how many there were.

        At most ``map_tasks`` tasks read them. ``at_ms`` (default: now) determines the day; the first run of a day lists
        all files.
        """
        log = EventLog(self._spark, events)
        last = self._last()

        def names() -> list[str]:
            return [row.file for row in self._table("files", last).collect()]

        now_ms = time.time_ns() // 1_000_000 if at_ms is None else at_ms
        new, record = next_run(last, log, at_ms=now_ms, counted=names)
        if record is last:
            return 0
        receipts = log.read(new, tasks_max=map_tasks)
        self._write(cells(receipts), "cells", record.run)
        self._write(waits(receipts), "waits", record.run)
        self._write(self._spark.createDataFrame([(name,) for name in new], "file string"), "files", record.run)
        self._end(record)
        return len(new)

    def cells(self) -> DataFrame:
        """Return the cells of all runs, unmerged (``cells.cells`` has the columns).

        Days after tomorrow, recorded by a clock that was fast, are omitted until then, because the weights of all days
        count from the latest.
        """
        return self._table("cells", self._last()).where(fn.col("day") <= _tomorrow())

    def waits(self) -> DataFrame:
        """Return the sum of the waits of all runs, without hours after tomorrow."""
        waits = self._table("waits", self._last())
        return _added(waits.where(fn.col("hour") < 24 * (fn.unix_date(_tomorrow()) + 1)))

    def merge(self) -> None:
        """Replace all runs by one with their sum; remove only runs that the merge before this one replaced.

        Concurrent readers can therefore still read the runs that this merge replaces. Runs that pyarrow cannot remove
        stay, ignored.
        """
        last = self._last()
        run = last.run + 1
        self._write(merged(self._table("cells", last)), "cells", run)
        self._write(_added(self._table("waits", last)), "waits", run)
        self._write(self._table("files", last).coalesce(1), "files", run)
        self._end(replace(last, run=run, base=run))
        with suppress(ArrowException, OSError, ValueError):
            for table in (Place(f"{self._location}/{name}") for name in ("runs", *_TABLES)):
                for name in table.names():
                    number = name.removeprefix("run=")
                    if number.isdecimal() and int(number) < last.base:
                        table.files.delete_dir(name)

    def _end(self, record: RunRecord) -> None:
        """Write the record, which completes the run; merge if there are many runs."""
        row = (record.base, record.listed, dict(record.positions), list(record.ahead))
        self._write(self._spark.createDataFrame([row], _RECORDS).coalesce(1), "runs", record.run)
        if record.run - record.base >= RUNS_MAX:
            self.merge()

    def _last(self) -> RunRecord:
        """Return the record of the last run; that of no run before the first one."""
        found = self._read("runs", _RECORDS).orderBy(fn.desc("run")).first()
        return RunRecord() if found is None else RunRecord(**found.asDict() | {"ahead": tuple(found["ahead"])})

    def _table(self, name: str, last: RunRecord) -> DataFrame:
        """Return a table without merged runs and without an incomplete run."""
        return self._read(name, _TABLES[name]).where(fn.col("run").between(last.base, last.run)).drop("run")

    def _read(self, table: str, schema: str) -> DataFrame:
        """Return a table with the column ``run``; empty before the first run."""
        found = existing(self._spark.read.schema(f"{schema}, run int"), f"{self._location}/{table}")
        return self._spark.createDataFrame([], f"{schema}, run int") if found is None else found

    def _write(self, rows: DataFrame, table: str, run: int) -> None:
        rows.write.mode("overwrite").parquet(f"{self._location}/{table}/run={run}")


def _tomorrow() -> Column:
    return fn.date_add(fn.current_date(), 1)


def _added(waits: DataFrame) -> DataFrame:
    return waits.groupBy("queue", "hour", "bucket").agg(fn.sum("n").alias("n"))
