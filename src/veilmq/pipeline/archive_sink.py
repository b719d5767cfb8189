"""``format("veilmq_archive")``: a streaming sink that adds each batch to the archive once.

Tasks write Parquet files into the folders of the table. Readers do not see them until the commit of the batch names
them in the table's log. A repeated task writes other files, and the commit names only those of the successful attempt.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from veilmq.pipeline.archive_table import PARTITION, SCHEMA, ArchiveFile, ArchiveTable, FileWriter
from veilmq.pipeline.failures import PipelineFailed
from veilmq.pipeline.folders import Place

FORMAT = "veilmq_archive"


@dataclass
class WrittenFiles(WriterCommitMessage):
    """The files that one task wrote, and the id of its query."""

    query: str
    files: list[ArchiveFile]


class ArchiveSink(DataSource):
    """The data source ``veilmq_archive``; its path is the folder or URL of the table."""

    @classmethod
    def name(cls) -> str:
        """Return the name that ``format`` takes."""
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> "ArchiveWriter":  # noqa: N802 - Spark's name
        """Return the writer of a stream; raises ``PipelineFailed`` if the rows are not messages."""
        place = self.options.get("path")
        if not place:
            raise PipelineFailed(f'format("{FORMAT}") needs the folder or URL of the table: .start("PATH").')
        missing = set(SCHEMA.names) - set(schema.names)
        if missing or overwrite:
            raise PipelineFailed(
                f'format("{FORMAT}") takes the columns of format("veilmq") and date, in append mode; '
                f"missing: {', '.join(sorted(missing)) or 'none'}."
            )
        return ArchiveWriter(place)


class ArchiveWriter(DataSourceStreamArrowWriter):
    """Writes files in tasks, and commits the files of a batch on the driver."""

    def __init__(self, place: str) -> None:
        """``place`` is the folder or URL of the table, the same on every machine."""
        self._place = place

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        """Write the rows of one task, one file for each queue and day."""
        files = _PartitionedFiles(Place.at(self._place))
        try:
            for batch in iterator:
                files.add(pa.Table.from_batches([batch]))
            return WrittenFiles(_query(), files.finish())
        finally:
            files.close()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Add the files of a batch to the table, once."""
        done = [message for message in messages if isinstance(message, WrittenFiles)]
        files = [file for message in done for file in message.files]
        if files:
            table = ArchiveTable(self._place)
            table.create()
            table.commit(writer=done[0].query, batch=batchId, files=files)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Leave the files of a failed batch to ``vacuum``; no reader sees them."""


def _query() -> str:
    """Return the id of the task's query, which is the same after a restart."""
    context = TaskContext.get()
    found = context.getLocalProperty("sql.streaming.queryId") if context else None
    if not found:
        raise PipelineFailed(f'format("{FORMAT}") takes streams only: use writeStream instead of write.')
    return found


class _PartitionedFiles:
    """One open file for each queue and day of a task; the maximum retention of 14 days bounds their number."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._open: dict[tuple[str, date], FileWriter] = {}

    def add(self, rows: pa.Table) -> None:
        for key in rows.select(PARTITION).group_by(PARTITION).aggregate([]).to_pylist():
            queue, day = key["queue"], key["date"]
            chosen = pc.and_(pc.equal(rows["queue"], queue), pc.equal(rows["date"], pa.scalar(day)))
            self._writer(queue, day).add(rows.filter(chosen))

    def finish(self) -> list[ArchiveFile]:
        """Make all files durable, and return them."""
        return [writer.finish() for writer in self._open.values()]

    def close(self) -> None:
        for writer in self._open.values():
            writer.close()

    def _writer(self, queue: str, day: date) -> FileWriter:
        key = (queue, day)
        if key not in self._open:
            self._open[key] = FileWriter(self._place, queue=queue, day=day)
        return self._open[key]
