"""The files of the archive: Parquet, one queue and one day each, written once and never changed."""

import os
import time
import uuid
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from veilmq.wire.v1 import arrow

PARTITION = ("queue", "date")
"""The columns that are in the names of the folders: the queue, and the day (UTC) on which a message was sent."""

CONTENT = arrow.SCHEMA.remove(arrow.SCHEMA.get_field_index("queue"))
"""The columns that are in the files."""

SCHEMA = pa.schema([*CONTENT, ("queue", pa.string()), ("date", pa.date32())])
"""The columns of the table: those of ``format("veilmq")``, and the day."""


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
