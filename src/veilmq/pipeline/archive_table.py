"""The table of the archive: Parquet files in folders of queue and day, and a log that says which of them count.

The log is Delta's, written by deltalake, so that whatever reads Delta tables reads the archive. A file that the log
does not name is no part of the table: what a killed task, batch or compaction leaves behind is seen by nobody, and
swept up by ``vacuum``. Each commit is one new entry of the log, made whole or not at all. A batch of a writer is
committed with the writer's name and the batch's number, and never again: that makes the archive exactly once.

The folder must be one that all machines of the cluster see under this path.
"""

import json
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from veilmq.pipeline.failures import PipelineFailed
from veilmq.wire.v1 import arrow

PARTITION = ("queue", "date")
"""The columns that are in the names of the folders: the queue, and the day (UTC) on which a message was sent."""

CONTENT = arrow.SCHEMA.remove(arrow.SCHEMA.get_field_index("queue"))
"""The columns that are in the files."""

SCHEMA = pa.schema([*CONTENT, ("queue", pa.string()), ("date", pa.date32())])
"""The columns of the table: those of ``format("veilmq")``, and the day."""

_TRIES = 20  # each one lost tells that somebody else's commit went through


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFile:
    """One finished file; ``path`` is relative to the folder of the table."""

    path: str
    queue: str
    day: date
    rows: int
    size_bytes: int


class FileWriter:
    """Writes one file into its place below ``folder``; it is on the disk when ``finish`` returns."""

    def __init__(self, folder: Path, *, queue: str, day: date) -> None:
        """Open the file under a name that nobody else has."""
        self._queue, self._day, self._rows = queue, day, 0
        self._folder = folder
        self._path = f"queue={quote(queue, safe='')}/date={day.isoformat()}/{uuid.uuid4()}.parquet"
        (folder / self._path).parent.mkdir(parents=True, exist_ok=True)
        self._parquet = pq.ParquetWriter(folder / self._path, CONTENT, compression="zstd")

    def add(self, rows: pa.Table) -> None:
        """Append ``rows``; columns that are not in the files are left out."""
        self._parquet.write_table(rows.select(CONTENT.names).cast(CONTENT))
        self._rows += rows.num_rows

    def close(self) -> None:
        """Close the file, whole or not."""
        self._parquet.close()

    def finish(self) -> ArchiveFile:
        """Close the file and have it on the disk, with its name."""
        self.close()
        file = self._folder / self._path
        for place in (file, *file.parents[:3]):
            sync(place)
        return ArchiveFile(
            path=self._path, queue=self._queue, day=self._day, rows=self._rows, size_bytes=file.stat().st_size
        )


def sync(path: Path) -> None:
    """Have the file or folder ``path`` on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
    """The table below ``folder``."""

    def __init__(self, folder: str | Path) -> None:
        """Open nothing yet."""
        self.folder = Path(folder).absolute()

    def create(self) -> None:
        """Make the table where there is none."""
        if not DeltaTable.is_deltatable(str(self.folder)):
            DeltaTable.create(self.folder, SCHEMA, mode="ignore", partition_by=list(PARTITION), name="veilmq archive")

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
        raise PipelineFailed(f"{self.folder}: {_TRIES} commits were lost to other writers; run fewer at a time.")

    def replace(self, *, writer: str, old: Sequence[ArchiveFile], new: Sequence[ArchiveFile], since: Snapshot) -> bool:
        """Let ``new`` take the place of ``old``, which hold the same rows; ``False`` when the turn went to another.

        ``since`` is where ``old`` were found, and knows the last batch of ``writer``: of all who share that name, only
        one can go on from there. (deltalake's own compaction lets two at a time replace the same files.)
        """
        turn = Transaction(writer, _next(since.batches[writer]))
        actions: list[AddAction | RemoveAction] = [_removed(file) for file in old]
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

    def _open(self, version: int | None = None) -> DeltaTable:
        try:
            return DeltaTable(self.folder, version=version)
        except TableNotFoundError as error:
            raise PipelineFailed(f"{self.folder} holds no archive; `veilmq pipeline archive` makes one.") from error

    def _append(self, table: DeltaTable, turn: Transaction, actions: Sequence[AddAction | RemoveAction]) -> None:
        """Commit, and have the log on the disk: the queue deletes its messages next."""
        properties = CommitProperties(app_transactions=[turn])
        before = table.version()
        table.create_write_transaction(
            list(actions), "append", SCHEMA, partition_by=list(PARTITION), commit_properties=properties
        )
        log = self.folder / "_delta_log"
        for version in range(before + 1, table.version() + 1):
            sync(log / f"{version:020}.json")
        sync(log)


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
    stats = json.dumps({"numRecords": file.rows})
    return AddAction(file.path, file.size_bytes, _values(file), now_ms(), new, stats)


def _removed(file: ArchiveFile) -> RemoveAction:
    return RemoveAction(file.path, False, now_ms(), file.size_bytes, _values(file))
