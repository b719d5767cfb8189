"""The table of the archive: Parquet files in folders of queue and day, and a log that says which of them count.

The log is Delta's, written by deltalake, so that whatever reads Delta tables reads the archive. A file that the log
does not name is no part of the table: what a killed task, batch or compaction leaves behind is seen by nobody, and
swept up by ``vacuum``. Each commit is one new entry of the log, made whole or not at all. A batch of a writer is
committed with the writer's name and the batch's number, and never again: that makes the archive exactly once.

The folder must be one that all machines of the cluster see under this path.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from veilmq.pipeline.failures import PipelineFailed

_TEXTS = pa.map_(pa.string(), pa.string())
_INSTANT = pa.timestamp("us", tz="UTC")

PARTITION = ("queue", "date")
"""The columns that are in the names of the folders: the queue, and the day (UTC) on which a message was sent."""

CONTENT = pa.schema(
    [
        ("id", pa.string()),
        ("body", pa.string()),
        ("attributes", _TEXTS),
        ("attribute_types", _TEXTS),
        ("group", pa.string()),
        ("sent_at", _INSTANT),
        ("received_at", _INSTANT),
        ("receive_count", pa.int32()),
        ("sequence_number", pa.string()),
    ]
)
"""The columns that are in the files."""

SCHEMA = pa.schema([*CONTENT, ("queue", pa.string()), ("date", pa.date32())])
"""The columns of the table: those of ``format("veilmq")``, and the day."""

_TRIES = 20  # each one lost tells that somebody else's commit went through
_FILE_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFile:
    """One Parquet file that is to join the table; ``path`` is relative to its folder."""

    path: str
    queue: str
    day: date
    rows: int
    size_bytes: int
    written_at_ms: int

    def action(self) -> AddAction:
        """Return what the log says of the file."""
        values = {"queue": self.queue, "date": self.day.isoformat()}
        stats = json.dumps({"numRecords": self.rows})
        return AddAction(self.path, self.size_bytes, values, self.written_at_ms, True, stats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """What a compaction did: so many files were replaced by so many larger ones."""

    removed: int
    added: int


class ArchiveTable:
    """The table below ``folder``."""

    def __init__(self, folder: str | Path) -> None:
        """Open nothing yet."""
        self.folder = Path(folder).absolute()

    def create(self) -> None:
        """Make the table where there is none."""
        DeltaTable.create(self.folder, SCHEMA, mode="ignore", partition_by=list(PARTITION), name="veilmq archive")

    @property
    def exists(self) -> bool:
        """Tell whether there is a table in the folder."""
        return DeltaTable.is_deltatable(str(self.folder))

    @property
    def version(self) -> int:
        """Return the number of the latest commit."""
        return self._open().version()

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
                self._append(table, CommitProperties(app_transactions=[Transaction(writer, batch)]), files)
            except CommitFailedError:
                continue  # another attempt at the same batch may have come first: look again
            self._sync(table.version())
            return True
        raise PipelineFailed(f"{self.folder}: {_TRIES} commits were lost to other writers; run fewer at a time.")

    def files(self, *, queues: Sequence[str] = (), version: int | None = None) -> list[str]:
        """Return the paths of the files that count, of all queues or some, now or at an earlier ``version``."""
        table = self._open(version)
        if not queues:
            return table.file_uris()
        return table.file_uris(file_pruning_predicate=[("queue", "in", list(queues))])

    def compact(self, *, file_bytes: int = _FILE_BYTES) -> Compaction:
        """Join small files to files of about ``file_bytes`` within their folders.

        The rows stay the same to whoever reads, and the files that are replaced stay until ``vacuum``. Where another
        compaction was faster, nothing is done.
        """
        try:
            done = self._open().optimize.compact(target_size=file_bytes)
        except CommitFailedError:
            return Compaction(removed=0, added=0)
        self._sync(self.version)
        return Compaction(removed=done["numFilesRemoved"], added=done["numFilesAdded"])

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

    def _append(self, table: DeltaTable, properties: CommitProperties, files: Sequence[ArchiveFile]) -> None:
        actions: list[AddAction | RemoveAction] = [file.action() for file in files]
        table.create_write_transaction(
            actions, "append", SCHEMA, partition_by=list(PARTITION), commit_properties=properties
        )

    def _sync(self, version: int) -> None:
        """Have the log's entry ``version`` on the disk: the queue deletes its messages next."""
        log = self.folder / "_delta_log"
        for path in (log / f"{version:020}.json", log):
            sync(path)


def sync(path: Path) -> None:
    """Have the file or folder ``path`` on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
