"""The archive table: Parquet files in folders by queue and day, and a Delta log that names the files of the table.

deltalake writes the log, so every program that reads Delta tables reads the archive. A file that the log does not name
is not part of the table: readers never see the files of a killed task, batch or compaction, and ``vacuum`` deletes
them. Each commit adds one log entry atomically. The entry stores the name of the writer and the number of the batch,
and a batch is committed only once: this makes the archive exactly once.

Only one of several concurrent writers creates an entry: in a folder by a hard link, in a bucket by a conditional write
(``If-None-Match: *``). Nothing is renamed. All machines of the cluster must reach the folder or bucket.
"""

import json
import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from veilmq.pipeline.failures import PipelineFailed
from veilmq.pipeline.folders import Place
from veilmq.wire.v1 import arrow

PARTITION = ("queue", "date")
"""The partition columns: the queue, and the day (UTC) on which a message was sent."""

CONTENT = arrow.SCHEMA.remove(arrow.SCHEMA.get_field_index("queue"))
"""The columns in the files."""

SCHEMA = pa.schema([*CONTENT, ("queue", pa.string()), ("date", pa.date32())])
"""The columns of the table: those of ``format("veilmq")``, and the day."""

COMPARED = {"id", "group", "sent_at", "received_at", "receive_count", "sequence_number"}
"""The columns with statistics in the log. Bodies and attributes have none, as the log outlives expired messages."""

Value = str | int

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


class FileWriter:
    """Writes one file of the table; the file is durable when ``finish`` returns."""

    def __init__(self, place: Place, *, queue: str, day: date, content: pa.Schema = CONTENT) -> None:
        """Open the file under a unique name; ``content`` are its columns."""
        self._place, self._queue, self._day, self._content = place, queue, day, content
        self._path = f"queue={quote(queue, safe='')}/date={day.isoformat()}/{uuid.uuid4()}.parquet"
        place.prepare(self._path)
        self._parquet = pq.ParquetWriter(self._path, content, compression="zstd", filesystem=place.files)

    def add(self, rows: pa.Table) -> None:
        """Append ``rows`` without the columns that the file lacks; columns that ``rows`` lack are null."""
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
    """Return the statistics by which readers skip a file: its rows, and the minimum, maximum and nulls of columns."""
    minima: dict[str, Value] = {}
    maxima: dict[str, Value] = {}
    nulls: dict[str, int] = {}
    groups = range(written.num_row_groups)
    for column in range(written.num_columns):
        name = written.schema.column(column).path
        parts = [written.row_group(group).column(column).statistics for group in groups]
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
    """The table at ``version``: its files, and the last batch of each requested writer."""

    version: int
    files: tuple[ArchiveFile, ...]
    batches: dict[str, int | None]


class ArchiveTable:
    """The table in a folder or at a URL."""

    def __init__(self, place: str | Path) -> None:
        """Open nothing."""
        self.place = Place.at(place)
        self.location = self.place.location

    def create(self) -> None:
        """Create the table if it does not exist; add missing columns to a table of an earlier version.

        Raises ``PipelineFailed`` if the folder or bucket cannot be used.
        """
        for _ in range(_TRIES):
            try:
                self._create()
            except CommitFailedError:
                continue  # another writer has committed; check again
            except (OSError, DeltaError) as error:
                raise PipelineFailed(f"{self.location} cannot be used: {_cause(error)}") from error
            return
        raise PipelineFailed(_too_many_writers(self.location))

    def _create(self) -> None:
        if not DeltaTable.is_deltatable(self.location):
            DeltaTable.create(self.location, SCHEMA, mode="ignore", partition_by=list(PARTITION), name="veilmq archive")
            self._sync_log(0, 0)
        table = self._open()
        known = {field.name for field in table.schema().fields}
        missing = [field for field in DeltaSchema.from_arrow(SCHEMA).fields if field.name not in known]
        if missing:
            before = table.version()
            table.alter.add_columns(missing)
            self._sync_log(before + 1, table.version())

    def snapshot(self, *, version: int | None = None, writers: Sequence[str] = ()) -> Snapshot:
        """Return the current table, or that of an earlier ``version``; raises ``PipelineFailed`` if there is none."""
        table = self._open(version)
        rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return Snapshot(
            version=table.version(),
            files=tuple(_file(row) for row in rows),
            batches={writer: table.transaction_version(writer) for writer in writers},
        )

    def commit(self, *, writer: str, batch: int, files: Sequence[ArchiveFile]) -> bool:
        """Add ``files`` as ``batch`` of ``writer``; return ``False`` if the table has that batch already.

        The batch numbers of a writer increase. The entry is durable on return.
        """
        for _ in range(_TRIES):
            table = self._open()
            last = table.transaction_version(writer)
            if last is not None and last >= batch:
                return False
            try:
                self._append(table, Transaction(writer, batch), [_added(file, new=True) for file in files])
            except CommitFailedError:
                continue  # possibly another attempt at the same batch; check again
            return True
        raise PipelineFailed(_too_many_writers(self.location))

    def replace(self, *, writer: str, old: Sequence[ArchiveFile], new: Sequence[ArchiveFile], since: Snapshot) -> bool:
        """Replace ``old`` by ``new``, which have the same rows or none; return ``False`` if another writer was first.

        ``since`` is the snapshot that has ``old`` and the last batch of ``writer``. Only one of the processes with this
        writer name can commit after it. (deltalake's own compaction lets two processes replace the same files.)
        """
        transaction = Transaction(writer, _next(since.batches[writer]))
        actions: list[AddAction | RemoveAction] = [_removed(file, deletes_rows=not new) for file in old]
        actions += [_added(file, new=False) for file in new]
        try:
            self._append(self._open(since.version), transaction, actions)
        except CommitFailedError:
            return False
        return True

    def vacuum(self, *, keep_h: int) -> int:
        """Delete files that left the table more than ``keep_h`` hours ago; return their number.

        Readers and writers that started earlier, and reads of earlier versions, can then fail.
        """
        table = self._open()
        return len(table.vacuum(retention_hours=keep_h, dry_run=False, enforce_retention_duration=False, full=True))

    def expire(self, *, writer: str, before: date) -> int:
        """Remove files of days before ``before`` from the table; return their number. ``vacuum`` deletes them later.

        Excludes compactions under the same ``writer`` (see ``replace``): returns 0 if one was first.
        """
        snapshot = self.snapshot(writers=[writer])
        old = [file for file in snapshot.files if file.day < before]
        return len(old) if old and self.replace(writer=writer, old=old, new=[], since=snapshot) else 0

    def _open(self, version: int | None = None) -> DeltaTable:
        try:
            return DeltaTable(self.location, version=version)
        except TableNotFoundError as error:
            raise PipelineFailed(f"{self.location} has no archive; `veilmq pipeline archive` creates one.") from error
        except (OSError, DeltaError) as error:
            raise PipelineFailed(f"{self.location} cannot be used: {_cause(error)}") from error

    def _append(self, table: DeltaTable, transaction: Transaction, actions: Sequence[AddAction | RemoveAction]) -> None:
        """Commit durably: afterwards the queue deletes the messages."""
        properties = CommitProperties(app_transactions=[transaction])
        before = table.version()
        table.create_write_transaction(
            list(actions), "append", SCHEMA, partition_by=list(PARTITION), commit_properties=properties
        )
        self._sync_log(before + 1, table.version())

    def _sync_log(self, first: int, last: int) -> None:
        """Sync entries of the log to disk; deltalake does not."""
        self.place.sync(*(f"_delta_log/{version:020}.json" for version in range(first, last + 1)), "_delta_log")


def _too_many_writers(location: str) -> str:
    return f"{location}: {_TRIES} commits conflicted with other writers; run fewer jobs at a time."


def _cause(error: Exception) -> str:
    """Return in one line why deltalake failed: the message of the object store, else the innermost cause."""
    message = _STORE_MESSAGE.search(str(error))
    lines = [line for line in _COLOURS.sub("", str(error)).splitlines() if line.strip()]
    return message[1] if message else lines[-1].strip(" ↳")


def _next(batch: int | None) -> int:
    return 0 if batch is None else batch + 1


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


def _values(file: ArchiveFile) -> dict[str, str | None]:
    return {"queue": file.queue, "date": file.day.isoformat()}


def _added(file: ArchiveFile, *, new: bool) -> AddAction:
    return AddAction(file.path, file.size_bytes, _values(file), now_ms(), new, file.statistics)


def _removed(file: ArchiveFile, *, deletes_rows: bool) -> RemoveAction:
    return RemoveAction(file.path, deletes_rows, now_ms(), file.size_bytes, _values(file))
