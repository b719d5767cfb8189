"""The archive table: Parquet files in folders by queue and day, and a Delta log that lists the files of the table.

deltalake writes the log, so every program that reads Delta tables can read the archive. A file that is not in the log
is not part of the table: readers never see the files of a killed task, batch or compaction, and ``vacuum`` deletes
them. Each commit adds one log entry atomically. The entry has the name of the writer and the number of the batch, and a
batch is committed only once: so messages are archived exactly once.

Only one of several concurrent writers creates an entry: in a folder by a hard link, in a bucket by a conditional write
(``If-None-Match: *``). Nothing is renamed. All machines of the cluster must reach the folder or bucket.

In ``ArchiveTable.add`` tasks write the files of a batch, and the driver commits them. A repeated task writes other
files, and the commit has only those of one attempt.

A compaction replaces many small files by a few large ones: a Spark task joins files of one queue and day into a new
file, and one commit replaces the old files by the new ones, so that a reader sees either. The old files stay until
``vacuum``.
"""

import json
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction
from pyspark.sql import DataFrame, SparkSession

from veilmq.pipeline.folders import Place
from veilmq.pipeline.session import PipelineFailed, in_tasks
from veilmq.wire.v1 import arrow

PARTITION = ("queue", "date")
"""The partition columns: the queue, and the day (UTC) on which a message was sent."""

CONTENT = arrow.SCHEMA.remove(arrow.SCHEMA.get_field_index("queue"))
"""The columns in the files."""

SCHEMA = pa.schema([*CONTENT, ("queue", pa.string()), ("date", pa.date32())])
"""The columns of the table: those of ``format("veilmq")``, and the day."""

COMPARED = {"id", "group", "sent_at", "received_at", "receive_count", "sequence_number"}
"""The columns with statistics in the log. Bodies and attributes have none, because the log outlives messages."""

Value = str | int
T = TypeVar("T")

_STORE_MESSAGE = re.compile(r"<Message>([^<]+)</Message>")
_COLOURS = re.compile(r"\x1b\[\d+m")

_TRIES = 20  # each failed try means that another writer has committed


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFile:
    """One finished file; ``path`` is relative to the table, ``statistics`` are JSON for the log."""

    path: str
    queue: str
    day: date
    rows: int
    size_bytes: int
    statistics: str = ""

    @property
    def partition(self) -> dict[str, str | None]:
        return {"queue": self.queue, "date": self.day.isoformat()}

    def added(self, *, new: bool) -> AddAction:
        """Return the log action that adds the file; ``new``: its rows are not from other files of the table."""
        return AddAction(self.path, self.size_bytes, self.partition, now_ms(), new, self.statistics)


class FileWriter:
    """Writes one file of the table; the file is durable when ``finish`` returns."""

    def __init__(self, place: Place, *, queue: str, day: date, content: pa.Schema = CONTENT) -> None:
        """Create the file under a unique name; ``content`` are its columns."""
        self._place, self._queue, self._day, self._content = place, queue, day, content
        self._path = f"queue={quote(queue, safe='')}/date={day.isoformat()}/{uuid.uuid4()}.parquet"
        place.prepare(self._path)
        self._parquet = pq.ParquetWriter(self._path, content, compression="zstd", filesystem=place.files)

    def add(self, rows: pa.Table) -> None:
        """Append ``rows``. Columns that the file lacks are dropped; columns that ``rows`` lack are null."""
        columns = [
            rows[field.name].cast(field.type) if field.name in rows.schema.names else pa.nulls(len(rows), field.type)
            for field in self._content
        ]
        self._parquet.write_table(pa.table(columns, schema=self._content))

    def close(self) -> None:
        """Close the file, complete or not."""
        self._parquet.close()

    def finish(self) -> ArchiveFile:
        """Close the file, and make it and its name durable."""
        self.close()
        path = Path(self._path)
        self._place.sync(self._path, *(str(folder) for folder in path.parents))
        written = self._parquet.writer.metadata
        return ArchiveFile(
            path=self._path,
            queue=self._queue,
            day=self._day,
            rows=written.num_rows,
            size_bytes=self._place.files.get_file_info(self._path).size,
            statistics=_statistics(written),
        )


def _statistics(written: pq.FileMetaData) -> str:
    """Return the statistics for skipping files: the number of rows; minimum, maximum and nulls of columns."""
    minima: dict[str, Value] = {}
    maxima: dict[str, Value] = {}
    nulls: dict[str, int] = {}
    for column in range(written.num_columns):
        name = written.schema.column(column).path
        parts = [written.row_group(group).column(column).statistics for group in range(written.num_row_groups)]
        if name not in COMPARED or any(part is None for part in parts):
            continue
        nulls[name] = sum(part.null_count for part in parts)
        with_values = [part for part in parts if part.num_values]
        if with_values and all(part.has_min_max for part in with_values):
            minima[name] = _log_value(min(part.min for part in with_values), round_up=False)
            maxima[name] = _log_value(max(part.max for part in with_values), round_up=True)
    rows = {"numRecords": written.num_rows}
    return json.dumps({**rows, "minValues": minima, "maxValues": maxima, "nullCount": nulls})


def _log_value(value: Value | datetime, *, round_up: bool) -> Value:
    """Return ``value`` in the form of Delta's log, which stores instants in ms."""
    if not isinstance(value, datetime):
        return value
    ms = timedelta(microseconds=-value.microsecond % 1000 if round_up else 0)
    return (value + ms).astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def now_ms() -> int:
    """Return the time for entries of the log, in ms since the epoch."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The files of the table at ``version``."""

    version: int
    files: tuple[ArchiveFile, ...]


class ArchiveTable:
    """The table in a folder or at a URL."""

    def __init__(self, place: str | Path) -> None:
        self.place = Place.at(place)
        self.location = self.place.location

    def create(self) -> None:
        """Create the table if it does not exist; add missing columns to a table of an earlier version.

        Raises ``PipelineFailed`` if the folder or bucket cannot be used.
        """

        def create() -> None:
            if not DeltaTable.is_deltatable(self.location):
                created = DeltaTable.create(
                    self.location, SCHEMA, mode="ignore", partition_by=list(PARTITION), name="veilmq archive"
                )
                self._sync_log(created, 0)
                self.place.sync("..")
            table = self._open()
            known = {field.name for field in table.schema().fields}
            missing = [field for field in DeltaSchema.from_arrow(SCHEMA).fields if field.name not in known]
            if missing:
                first = table.version() + 1
                table.alter.add_columns(missing)
                self._sync_log(table, first)

        if "%" in self.location:
            raise PipelineFailed(f"{self.location}: deltalake would decode this name; choose one without %.")
        try:
            self._retried(create)
        except (OSError, DeltaError) as error:
            raise PipelineFailed(f"{self.location} cannot be used: {_cause(error)}") from error

    def snapshot(self, *, version: int | None = None) -> Snapshot:
        """Return the table at ``version`` (default: now). Raises ``PipelineFailed`` if there is none."""
        table = self._open(version)
        rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return Snapshot(version=table.version(), files=tuple(_file(row) for row in rows))

    def add(self, rows: DataFrame, query: str, number: int) -> None:
        """Add batch ``number`` of a streaming query, exactly once."""
        files = [file for written in in_tasks(rows, partial(_write, self.place)) for file in written]
        if files:
            self.commit(writer=query, batch=number, files=files)

    def commit(self, *, writer: str, batch: int, files: Sequence[ArchiveFile]) -> bool:
        """Add ``files`` as ``batch`` of ``writer``; return ``False`` if the table already has that batch.

        A writer's batch numbers must increase. The entry is durable on return.
        """

        def commit() -> bool:
            table = self._open()
            last = table.transaction_version(writer)
            if last is not None and last >= batch:
                return False
            once = CommitProperties(app_transactions=[Transaction(writer, batch)])
            self._append(table, once, [file.added(new=True) for file in files])
            return True

        return self._retried(commit)

    def replace(self, *, writer: str, old: Sequence[ArchiveFile], new: Sequence[ArchiveFile]) -> bool:
        """Replace ``old`` by ``new``, which have the same rows or none; return ``False`` if one of ``old`` is gone.

        A try commits only the version after the one that it checked: deltalake lets two compactions replace a file. If
        others commit all the time, the result is ``False``, too.
        """
        changes: list[AddAction | RemoveAction] = [
            RemoveAction(file.path, not new, now_ms(), file.size_bytes, file.partition) for file in old
        ]
        changes += [file.added(new=False) for file in new]
        for _ in range(_TRIES):
            table = self._open()
            if not {file.path for file in old}.issubset(pa.table(table.get_add_actions())["path"].to_pylist()):
                break
            once = Transaction(writer, (table.transaction_version(writer) or 0) + 1)
            with suppress(CommitFailedError):
                self._append(table, CommitProperties(max_commit_retries=0, app_transactions=[once]), changes)
                return True
        return False

    def vacuum(self, *, keep_h: int) -> int:
        """Delete files that left the table more than ``keep_h`` hours ago; return their number.

        Readers and writers that started earlier, and reads of earlier versions, can then fail. Foreign files are kept.
        """
        names = self._open().vacuum(retention_hours=keep_h, enforce_retention_duration=False, full=True)
        left = [name for name in names if name.startswith(f"{PARTITION[0]}=")]
        for name in left:
            with suppress(FileNotFoundError):  # another job has deleted it
                self.place.files.delete_file(name)
        return len(left)

    def expire(self, *, writer: str, before: date) -> int:
        """Remove files of days before ``before`` from the table; return their number. ``vacuum`` deletes them later.

        Returns 0 if a concurrent compaction was first (see ``replace``).
        """
        old = [file for file in self.snapshot().files if file.day < before]
        return len(old) if old and self.replace(writer=writer, old=old, new=[]) else 0

    def _retried(self, attempt: Callable[[], T]) -> T:
        """Call ``attempt`` until it succeeds without a conflicting commit, which may have been its own."""
        for _ in range(_TRIES):
            with suppress(CommitFailedError):
                return attempt()
        raise PipelineFailed(
            f"{self.location}: {_TRIES} commits conflicted with other writers; run fewer jobs at a time."
        )

    def _open(self, version: int | None = None) -> DeltaTable:
        try:
            table = DeltaTable(self.location, version=version)
        except TableNotFoundError as error:
            raise PipelineFailed(f"{self.location} has no archive; `veilmq pipeline archive` creates one.") from error
        except (OSError, DeltaError) as error:
            raise PipelineFailed(f"{self.location} cannot be used: {_cause(error)}") from error
        if tuple(table.metadata().partition_columns) != PARTITION:
            raise PipelineFailed(f"{self.location} is a Delta table that is no archive; name another folder.")
        return table

    def _append(self, table: DeltaTable, how: CommitProperties, actions: Sequence[AddAction | RemoveAction]) -> None:
        """Commit durably, because the messages are deleted from the queue next."""
        first = table.version() + 1
        table.create_write_transaction(
            list(actions), "append", SCHEMA, partition_by=list(PARTITION), commit_properties=how
        )
        self._sync_log(table, first)

    def _sync_log(self, table: DeltaTable, first: int) -> None:
        """Sync the log from its entry ``first`` on to disk; deltalake does not, nor does it read its new entry."""
        table.update_incremental()
        self.place.sync(*(f"_delta_log/{each:020}.json" for each in range(first, table.version() + 1)), "_delta_log")


def _cause(error: Exception) -> str:
    """Return one line for an error of deltalake: the message of the object store, else the innermost cause."""
    message = _STORE_MESSAGE.search(str(error))
    lines = [line for line in _COLOURS.sub("", str(error)).splitlines() if line.strip()]
    return message[1] if message else lines[-1].strip(" ↳")


def _file(row: dict[str, object]) -> ArchiveFile:
    day = row["partition.date"]
    assert isinstance(day, date)
    return ArchiveFile(
        path=str(row["path"]),
        queue=str(row["partition.queue"]),
        day=day,
        rows=int(str(row["num_records"])),
        size_bytes=int(str(row["size_bytes"])),
    )


def _write(place: Place, _: int, batches: Iterator[pa.RecordBatch]) -> list[ArchiveFile]:
    """Write the rows of one task, one file for each queue and day; retention limits the days to 14."""
    files = dict[tuple[str, date], FileWriter]()
    with ExitStack() as closing:
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            for key in rows.select(PARTITION).group_by(PARTITION).aggregate([]).to_pylist():
                queue, day = key["queue"], key["date"]
                if (queue, day) not in files:
                    files[queue, day] = FileWriter(place, queue=queue, day=day)
                    closing.callback(files[queue, day].close)
                chosen = pc.and_(pc.equal(rows["queue"], queue), pc.equal(rows["date"], pa.scalar(day)))
                files[queue, day].add(rows.filter(chosen))
        return [writer.finish() for writer in files.values()]


WRITER = "veilmq compaction"

FILE_BYTES = 128 * 1024 * 1024
GROUPS_MAX = 64
"""Maximum number of new files in one commit: a kill loses at most this work."""

_ROWS = 20_000  # in memory at a time


def compact(table: ArchiveTable, spark: SparkSession | None = None, *, file_bytes: int = FILE_BYTES) -> int:
    """Join files smaller than half of ``file_bytes`` into files of about that size; return how many were joined.

    Tasks of ``spark`` join the files, or without ``spark`` this process. If another compaction replaces some of the
    files meanwhile, this one ends early.
    """
    count, place, snapshot = 0, table.place, table.snapshot()
    groups = list(_groups(snapshot, file_bytes=file_bytes))
    for start in range(0, len(groups), GROUPS_MAX):
        present = set(snapshot.files)
        chunk = [group for group in groups[start : start + GROUPS_MAX] if present.issuperset(group)]
        if not chunk:
            continue
        if spark is None:
            joined = [_join(place, chunk, number) for number in range(len(chunk))]
        else:
            tasks = spark.range(0, len(chunk), 1, len(chunk))
            joined = in_tasks(tasks, partial(_join, place, chunk))
        old = [file for group in chunk for file in group]
        if not table.replace(writer=WRITER, old=old, new=joined):
            break
        count += len(old)
        snapshot = table.snapshot()
    return count


def _groups(snapshot: Snapshot, *, file_bytes: int) -> Iterator[Sequence[ArchiveFile]]:
    """Yield groups of files to join, each of about ``file_bytes`` in total."""
    small: dict[tuple[str, date], list[ArchiveFile]] = defaultdict(list)
    for file in snapshot.files:
        if file.size_bytes * 2 < file_bytes:
            small[file.queue, file.day].append(file)
    for files in small.values():
        group: list[ArchiveFile] = []
        size = 0
        for file in files:
            group.append(file)
            size += file.size_bytes
            if size >= file_bytes:
                yield group
                group, size = [], 0
        if len(group) > 1:
            yield group


def _join(place: Place, groups: Sequence[Sequence[ArchiveFile]], number: int, _: object = None) -> ArchiveFile:
    """Write the rows of a group to one file with the union of all columns, including those of later versions."""
    files = groups[number]
    contents = [pq.read_schema(file.path, filesystem=place.files) for file in files]
    columns = {column.name: column for content in (CONTENT, *contents, CONTENT) for column in content}
    writer = FileWriter(place, queue=files[0].queue, day=files[0].day, content=pa.schema(columns.values()))
    try:
        for file in files:
            with pq.ParquetFile(file.path, filesystem=place.files) as rows:
                for batch in rows.iter_batches(_ROWS):
                    writer.add(pa.Table.from_batches([batch]))
        return writer.finish()
    finally:
        writer.close()
