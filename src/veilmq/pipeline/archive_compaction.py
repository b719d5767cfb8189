"""Compaction: replace many small files of the archive by a few large ones, invisibly to readers.

A Spark task joins files of one queue and day into a new file, and one commit replaces the old files by the new ones. A
reader sees either the old files or the new ones. A compaction that is killed before its commit leaves files that are
not part of the table. The old files stay until ``vacuum``.
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
"""Maximum number of new files in one commit: a kill loses at most this work."""

_ROWS = 20_000  # in memory at a time
_JOINED = "path string, queue string, day date, rows bigint, size_bytes bigint, statistics string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """The result of a compaction: the number of ``removed`` small files, and of ``added`` larger ones."""

    removed: int = 0
    added: int = 0


def compact(
    table: ArchiveTable, spark: SparkSession | None = None, *, file_bytes: int = FILE_BYTES, files_min: int = 2
) -> Compaction:
    """Join files smaller than half of ``file_bytes`` into files of about that size, given at least ``files_min``.

    Tasks of ``spark`` join the files; without ``spark``, this process does. If another compaction commits meanwhile,
    this one ends early.
    """
    removed = added = 0
    snapshot = table.snapshot(writers=[WRITER])
    groups = list(_groups(snapshot, file_bytes=file_bytes, files_min=files_min))
    for start in range(0, len(groups), GROUPS_MAX):
        present = set(snapshot.files)
        chunk = [group for group in groups[start : start + GROUPS_MAX] if present.issuperset(group)]
        if not chunk:
            continue
        joined = _by_tasks(spark, table.place, chunk) if spark else [_join(table.place, group) for group in chunk]
        old = [file for group in chunk for file in group]
        if not table.replace(writer=WRITER, old=old, new=joined, since=snapshot):
            break
        removed, added = removed + len(old), added + len(joined)
        snapshot = table.snapshot(writers=[WRITER])
    return Compaction(removed=removed, added=added)


def _groups(snapshot: Snapshot, *, file_bytes: int, files_min: int) -> Iterator[Sequence[ArchiveFile]]:
    """Yield groups of files to join, each of about ``file_bytes`` in total."""
    small: dict[tuple[str, date], list[ArchiveFile]] = defaultdict(list)
    for file in snapshot.files:
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
    """Join each group in its own task. A repeated task writes another file, and the commit names only one of them."""

    def join(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column("id").to_pylist():
                yield pa.RecordBatch.from_pylist([asdict(_join(place, groups[number]))])

    tasks = spark.range(0, len(groups), 1, len(groups))
    return [ArchiveFile(**row.asDict()) for row in tasks.mapInArrow(join, _JOINED).collect()]


def _join(place: Place, files: Sequence[ArchiveFile]) -> ArchiveFile:
    """Write the rows of ``files`` to one file with the union of their columns, those of a later version included."""
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
