"""Compaction: many small files of the archive become a few large ones, and no reader notices.

Files of one queue and day are joined into a new one, each by a task of Spark, and one commit puts the new files in the
place of the old ones. A reader has the old files or the new ones, never both; killed before the commit, a compaction
leaves files that do not count. The old files stay until ``vacuum``.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from veilmq.pipeline.archive_table import CONTENT, ArchiveFile, ArchiveTable, FileWriter, Snapshot
from veilmq.pipeline.folders import Place

WRITER = "veilmq compaction"

FILE_BYTES = 128 * 1024 * 1024
GROUPS_MAX = 64
"""So many files are made for one commit: what a kill loses, at most."""

_ROWS = 20_000  # at a time in memory
_JOINED = "path string, queue string, day date, rows bigint, size_bytes bigint, statistics string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """What a compaction did: so many files were replaced by so many larger ones."""

    removed: int = 0
    added: int = 0


def compact(
    table: ArchiveTable, spark: SparkSession | None = None, *, file_bytes: int = FILE_BYTES, files_min: int = 2
) -> Compaction:
    """Join files of less than half of ``file_bytes``, where there are ``files_min`` of them, to files of about that.

    Tasks of ``spark`` do so, without it this process. Where another compaction is at work, it ends early: that one does
    the same.
    """
    removed = added = 0
    seen = table.snapshot(writers=[WRITER])
    groups = list(_groups(seen, file_bytes=file_bytes, files_min=files_min))
    for start in range(0, len(groups), GROUPS_MAX):
        present = set(seen.files)
        part = [group for group in groups[start : start + GROUPS_MAX] if present.issuperset(group)]
        if not part:
            continue
        joined = _by_tasks(spark, table.place, part) if spark else [_join(table.place, group) for group in part]
        old = [file for group in part for file in group]
        if not table.replace(writer=WRITER, old=old, new=joined, since=seen):
            break
        removed, added = removed + len(old), added + len(joined)
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


def _by_tasks(spark: SparkSession, place: Place, groups: Sequence[Sequence[ArchiveFile]]) -> list[ArchiveFile]:
    """Join each group in a task of its own. A task that is repeated writes another file, and one of them counts."""

    def join(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column("id").to_pylist():
                yield pa.RecordBatch.from_pylist([asdict(_join(place, groups[number]))])

    tasks = spark.range(0, len(groups), 1, len(groups))
    return [ArchiveFile(**row.asDict()) for row in tasks.mapInArrow(join, _JOINED).collect()]


def _join(place: Place, files: Sequence[ArchiveFile]) -> ArchiveFile:
    """Write the rows of ``files`` to one: with all columns of all of them, also those of a later version."""
    contents = [pq.read_schema(file.path, filesystem=place.files) for file in files]
    writer = FileWriter(place, queue=files[0].queue, day=files[0].day, content=pa.unify_schemas([CONTENT, *contents]))
    try:
        for file in files:
            with pq.ParquetFile(file.path, filesystem=place.files) as rows:
                for batch in rows.iter_batches(_ROWS):
                    writer.add(pa.Table.from_batches([batch]))
        return writer.finish()
    finally:
        writer.close()
