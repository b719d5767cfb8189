"""Compaction: many small files of the archive become a few large ones, and no reader notices.

Files of one queue and day are joined into a new one, and one commit puts it in their place. Who reads at that moment
has the old files or the new one, never both; killed before the commit, a compaction leaves a file that does not count.
The old files stay until ``vacuum``.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from veilmq.pipeline.archive_table import CONTENT, ArchiveFile, ArchiveTable, FileWriter, Snapshot

WRITER = "veilmq compaction"

FILE_BYTES = 128 * 1024 * 1024
_ROWS = 20_000  # at a time in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """What a compaction did: so many files were replaced by so many larger ones."""

    removed: int = 0
    added: int = 0


def compact(table: ArchiveTable, *, file_bytes: int = FILE_BYTES, files_min: int = 2) -> Compaction:
    """Join files of less than half of ``file_bytes``, where there are ``files_min`` of them, to files of about that.

    Where another compaction is at work, it ends early: that one does the same.
    """
    removed = added = 0
    seen = table.snapshot(writers=[WRITER])
    for group in _groups(seen, file_bytes=file_bytes, files_min=files_min):
        joined = _join(table.folder, group)
        if not table.replace(writer=WRITER, old=group, new=[joined], since=seen):
            break
        removed, added = removed + len(group), added + 1
        seen = table.snapshot(writers=[WRITER])
    return Compaction(removed=removed, added=added)


def _groups(seen: Snapshot, *, file_bytes: int, files_min: int) -> Iterator[Sequence[ArchiveFile]]:
    """Yield files that are to become one, together about ``file_bytes`` long."""
    small: dict[tuple[str, date], list[ArchiveFile]] = defaultdict(list)
    for file in seen.files:
        if file.size_bytes * 2 < file_bytes:
            small[file.queue, file.day].append(file)
    for files in small.values():
        if len(files) < files_min:
            continue
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


def _join(folder: Path, files: Sequence[ArchiveFile]) -> ArchiveFile:
    writer = FileWriter(folder, queue=files[0].queue, day=files[0].day)
    try:
        for file in files:
            with pq.ParquetFile(folder / file.path) as rows:
                for batch in rows.iter_batches(_ROWS, columns=CONTENT.names):
                    writer.add(pa.Table.from_batches([batch]))
        return writer.finish()
    finally:
        writer.close()
