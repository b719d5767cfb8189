"""The table of the archive: Parquet files in folders of queue and day, and a log that says which of them count.

The log is Delta's, written by deltalake, so that whatever reads Delta tables reads the archive. A file that the log
does not name is no part of the table: what a killed task, batch or compaction leaves behind is seen by nobody, and
swept up by ``vacuum``. Each commit is one new entry of the log, made whole or not at all. A batch of a writer is
committed with the writer's name and the batch's number, and never again: that makes the archive exactly once.

Of all writers of an entry one makes its name: in a folder by a hard link, in a bucket by a write that is refused where
the key exists (``If-None-Match: *``). Nothing is renamed. All machines of the cluster must reach the place.
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
"""The columns that are in the names of the folders: the queue, and the day (UTC) on which a message was sent."""

CONTENT = arrow.SCHEMA.remove(arrow.SCHEMA.get_field_index("queue"))
"""The columns that are in the files."""

SCHEMA = pa.schema([*CONTENT, ("queue", pa.string()), ("date", pa.date32())])
"""The columns of the table: those of ``format("veilmq")``, and the day."""

COMPARED = {"id", "group", "sent_at", "received_at", "receive_count", "sequence_number"}
"""The columns with statistics in the log. Bodies and attributes have none: the log outlives messages that expire."""

Value = str | int

_STORE_SAYS = re.compile(r"<Message>([^<]+)</Message>")
_COLOURS = re.compile(r"\x1b\[\d+m")

_TRIES = 20  # each one lost tells that somebody else's commit went through


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFile:
    """One finished file; ``path`` is relative to the place of the table, ``statistics`` are JSON for the log."""

    path: str
    queue: str
    day: date
    rows: int
    size_bytes: int
    statistics: str = ""


class FileWriter:
    """Writes one file into its place in the table; it is durable when ``finish`` returns."""

    def __init__(self, place: Place, *, queue: str, day: date, content: pa.Schema = CONTENT) -> None:
        """Open the file under a name that no other has; ``content`` are its columns."""
        self._place, self._queue, self._day, self._content = place, queue, day, content
        self._path = f"queue={quote(queue, safe='')}/date={day.isoformat()}/{uuid.uuid4()}.parquet"
        place.prepare(self._path)
        self._parquet = pq.ParquetWriter(self._path, content, compression="zstd", filesystem=place.files)

    def add(self, rows: pa.Table) -> None:
        """Append ``rows``; columns that are not in the file are left out, those that it alone has are null."""
        columns = [
            rows[field.name].cast(field.type) if field.name in rows.schema.names else pa.nulls(len(rows), field.type)
            for field in self._content
        ]
        self._parquet.write_table(pa.table(columns, schema=self._content))

    def close(self) -> None:
        """Close the file, whole or not."""
        self._parquet.close()

    def finish(self) -> ArchiveFile:
        """Close the file and have it durable, with its name."""
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
    """Return what the log says of a file, so that readers skip it: rows, and least, greatest and nulls of columns."""
    least: dict[str, Value] = {}
    greatest: dict[str, Value] = {}
    nulls: dict[str, int] = {}
    groups = range(written.num_row_groups)
    for column in range(written.num_columns):
        name = written.schema.column(column).path
        parts = [written.row_group(group).column(column).statistics for group in groups]
        if name not in COMPARED or any(part is None for part in parts):
            continue
        nulls[name] = sum(part.null_count for part in parts)
        valued = [part for part in parts if part.num_values]
        if valued and all(part.has_min_max for part in valued):
            least[name] = _logged(min(part.min for part in valued), up=False)
            greatest[name] = _logged(max(part.max for part in valued), up=True)
    rows = {"numRecords": written.num_rows}
    return json.dumps({**rows, "minValues": least, "maxValues": greatest, "nullCount": nulls})


def _logged(value: Value | datetime, *, up: bool) -> Value:
    """Return ``value`` as Delta's log has it: an instant in ms, rounded away from what lies between the bounds."""
    if not isinstance(value, datetime):
        return value
    ms = timedelta(microseconds=-value.microsecond % 1000 if up else 0)
    return (value + ms).astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def now_ms() -> int:
    """Return the time that the table's log gives its entries, in ms since the epoch."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The table as it was at ``version``: its files, and how far each of some writers had come."""

    version: int
    files: tuple[ArchiveFile, ...]
    batches: dict[str, int | None]


class ArchiveTable:
    """The table in a folder, or at a URL."""

    def __init__(self, place: str | Path) -> None:
        """Open nothing yet."""
        self.place = Place.at(place)
        self.location = self.place.location

    def create(self) -> None:
        """Make the table where there is none; give one of an earlier version the columns that it lacks.

        Raises ``PipelineFailed`` where the place cannot be used.
        """
        for _ in range(_TRIES):
            try:
                self._create()
            except CommitFailedError:
                continue  # another has made the same change, or some other
            except (OSError, DeltaError) as error:
                raise PipelineFailed(f"{self.location} cannot be used: {_cause(error)}") from error
            return
        raise PipelineFailed(f"{self.location}: {_TRIES} commits were lost to other writers; run fewer at a time.")

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
        """Return the table as it is now, or was at an earlier ``version``; raises ``PipelineFailed`` without one."""
        table = self._open(version)
        rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return Snapshot(
            version=table.version(),
            files=tuple(_file(row) for row in rows),
            batches={writer: table.transaction_version(writer) for writer in writers},
        )

    def commit(self, *, writer: str, batch: int, files: Sequence[ArchiveFile]) -> bool:
        """Let ``files`` join the table as ``batch`` of ``writer``; ``False`` when that batch was committed before.

        Batches of a writer rise. Returns once the entry is durable.
        """
        for _ in range(_TRIES):
            table = self._open()
            last = table.transaction_version(writer)
            if last is not None and last >= batch:
                return False
            try:
                self._append(table, Transaction(writer, batch), [_added(file, new=True) for file in files])
            except CommitFailedError:
                continue  # another attempt at the same batch may have come first: look again
            return True
        raise PipelineFailed(f"{self.location}: {_TRIES} commits were lost to other writers; run fewer at a time.")

    def replace(self, *, writer: str, old: Sequence[ArchiveFile], new: Sequence[ArchiveFile], since: Snapshot) -> bool:
        """Let ``new`` take the place of ``old``: the same rows, or none; ``False`` when the turn went to another.

        ``since`` is where ``old`` were found, and knows the last batch of ``writer``: of all who share that name, only
        one can go on from there. (deltalake's own compaction lets two at a time replace the same files.)
        """
        turn = Transaction(writer, _next(since.batches[writer]))
        actions: list[AddAction | RemoveAction] = [_removed(file, rows_go=not new) for file in old]
        actions += [_added(file, new=False) for file in new]
        try:
            self._append(self._open(since.version), turn, actions)
        except CommitFailedError:
            return False
        return True

    def vacuum(self, *, keep_h: int) -> int:
        """Delete files that have not counted for ``keep_h`` hours; returns how many.

        Readers and writers that began longer ago may fail for it, and so may reading an earlier version.
        """
        gone = self._open().vacuum(retention_hours=keep_h, dry_run=False, enforce_retention_duration=False, full=True)
        return len(gone)

    def expire(self, *, writer: str, before: date) -> int:
        """Take files of days before ``before`` out of the table; returns how many. ``vacuum`` deletes them later.

        It has turns with the compactions of the name ``writer``, as ``replace`` says; 0 when the turn went to another.
        """
        seen = self.snapshot(writers=[writer])
        old = [file for file in seen.files if file.day < before]
        return len(old) if old and self.replace(writer=writer, old=old, new=[], since=seen) else 0

    def _open(self, version: int | None = None) -> DeltaTable:
        try:
            return DeltaTable(self.location, version=version)
        except TableNotFoundError as error:
            raise PipelineFailed(f"{self.location} holds no archive; `veilmq pipeline archive` makes one.") from error
        except (OSError, DeltaError) as error:
            raise PipelineFailed(f"{self.location} cannot be used: {_cause(error)}") from error

    def _append(self, table: DeltaTable, turn: Transaction, actions: Sequence[AddAction | RemoveAction]) -> None:
        """Commit, and have the log on the disk: the queue deletes its messages next."""
        properties = CommitProperties(app_transactions=[turn])
        before = table.version()
        table.create_write_transaction(
            list(actions), "append", SCHEMA, partition_by=list(PARTITION), commit_properties=properties
        )
        self._sync_log(before + 1, table.version())

    def _sync_log(self, first: int, last: int) -> None:
        """Have some entries of the log on the disk: deltalake does not see to that."""
        self.place.sync(*(f"_delta_log/{version:020}.json" for version in range(first, last + 1)), "_delta_log")


def _cause(error: Exception) -> str:
    """Return in one line why deltalake failed: what the store says, else the innermost of the causes that it lists."""
    said = _STORE_SAYS.search(str(error))
    lines = [line for line in _COLOURS.sub("", str(error)).splitlines() if line.strip()]
    return said[1] if said else lines[-1].strip(" ↳")


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


def _removed(file: ArchiveFile, *, rows_go: bool) -> RemoveAction:
    return RemoveAction(file.path, rows_go, now_ms(), file.size_bytes, _values(file))
