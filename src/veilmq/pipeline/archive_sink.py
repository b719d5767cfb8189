"""``format("veilmq_archive")``: the sink of a stream that adds its batches to the archive, each of them once.

Tasks write Parquet files into the table's folders, where nobody sees them; the commit of a batch names them in the
table's log. A task that is repeated writes other files, and those of its first attempt are not named.
"""

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from veilmq.pipeline.archive_table import CONTENT, SCHEMA, ArchiveFile, ArchiveTable, sync
from veilmq.pipeline.failures import PipelineFailed

FORMAT = "veilmq_archive"


@dataclass
class WrittenFiles(WriterCommitMessage):
    """What one task wrote, and for which query."""

    query: str
    files: list[ArchiveFile]


class ArchiveSink(DataSource):
    """The data source that Spark knows as ``veilmq_archive``; its path is the folder of the table."""

    @classmethod
    def name(cls) -> str:
        """Return the name that ``format`` takes."""
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> "ArchiveWriter":  # noqa: N802 - Spark calls it so
        """Return the writer of a stream; raises ``PipelineFailed`` when something else than messages is written."""
        folder = self.options.get("path")
        if not folder:
            raise PipelineFailed(f'format("{FORMAT}") needs the folder of the table: .start("FOLDER").')
        missing = set(SCHEMA.names) - set(schema.names)
        if missing or overwrite:
            raise PipelineFailed(
                f'format("{FORMAT}") takes the columns of format("veilmq") and date, in append mode; '
                f"missing: {', '.join(sorted(missing)) or 'none'}."
            )
        return ArchiveWriter(folder)


class ArchiveWriter(DataSourceStreamArrowWriter):
    """Writes files in tasks, and commits those of a batch on the driver."""

    def __init__(self, folder: str) -> None:
        """``folder`` is that of the table, the same on every machine."""
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        """Write the rows of one task to files of their queues and days."""
        files = _PartitionedFiles(Path(self._folder))
        try:
            for batch in iterator:
                files.add(pa.Table.from_batches([batch]))
        finally:
            files.close()
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        if not query:
            raise PipelineFailed("The archive's sink is for a stream: writeStream, not write.")
        return WrittenFiles(query, files.written())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Let the files of a batch join the table, once."""
        done = [message for message in messages if isinstance(message, WrittenFiles)]
        files = [file for message in done for file in message.files]
        if files:
            table = ArchiveTable(self._folder)
            table.create()
            table.commit(writer=done[0].query, batch=batchId, files=files)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Leave the files of a failed batch to ``vacuum``: nobody sees them."""


class _PartitionedFiles:
    """One open file for each queue and day that a task meets: fourteen days are the longest retention."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[tuple[str, date], pq.ParquetWriter] = {}
        self._paths: dict[tuple[str, date], str] = {}
        self._rows: dict[tuple[str, date], int] = {}

    def add(self, rows: pa.Table) -> None:
        """Write each row to the file of its queue and day."""
        keys = rows.select(["queue", "date"]).group_by(["queue", "date"]).aggregate([])
        for key in keys.to_pylist():
            queue, day = key["queue"], key["date"]
            chosen = rows.filter(pc.and_(pc.equal(rows["queue"], queue), pc.equal(rows["date"], pa.scalar(day))))
            self._writer(queue, day).write_table(chosen.select(CONTENT.names).cast(CONTENT))
            self._rows[queue, day] += chosen.num_rows

    def close(self) -> None:
        """Finish all files."""
        for writer in self._open.values():
            writer.close()

    def written(self) -> list[ArchiveFile]:
        """Have the finished files on the disk, and return them."""
        return [self._file(queue, day, path) for (queue, day), path in self._paths.items()]

    def _writer(self, queue: str, day: date) -> pq.ParquetWriter:
        key = (queue, day)
        if key not in self._open:
            path = f"queue={quote(queue, safe='')}/date={day.isoformat()}/{uuid.uuid4()}.parquet"
            (self._folder / path).parent.mkdir(parents=True, exist_ok=True)
            self._open[key] = pq.ParquetWriter(self._folder / path, CONTENT, compression="zstd")
            self._paths[key] = path
            self._rows[key] = 0
        return self._open[key]

    def _file(self, queue: str, day: date, path: str) -> ArchiveFile:
        file = self._folder / path
        for place in (file, file.parent, file.parent.parent, self._folder):
            sync(place)
        return ArchiveFile(
            path=path,
            queue=queue,
            day=day,
            rows=self._rows[queue, day],
            size_bytes=file.stat().st_size,
            written_at_ms=int(time.time() * 1000),
        )
