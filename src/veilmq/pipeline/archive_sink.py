"""``format("veilmq_archive")``: the sink of a stream that adds its batches to the archive, each of them once.

Tasks write Parquet files into the table's place, where nobody sees them; the commit of a batch names them in the
table's log. A task that is repeated writes other files, and those of its first attempt are not named.
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
    """What one task wrote, and for which query."""

    query: str
    files: list[ArchiveFile]


class ArchiveSink(DataSource):
    """The data source that Spark knows as ``veilmq_archive``; its path is the folder or URL of the table."""

    @classmethod
    def name(cls) -> str:
        """Return the name that ``format`` takes."""
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> "ArchiveWriter":  # noqa: N802 - Spark calls it so
        """Return the writer of a stream; raises ``PipelineFailed`` when something else than messages is written."""
        place = self.options.get("path")
        if not place:
            raise PipelineFailed(f'format("{FORMAT}") needs the place of the table: .start("FOLDER OR URL").')
        missing = set(SCHEMA.names) - set(schema.names)
        if missing or overwrite:
            raise PipelineFailed(
                f'format("{FORMAT}") takes the columns of format("veilmq") and date, in append mode; '
                f"missing: {', '.join(sorted(missing)) or 'none'}."
            )
        return ArchiveWriter(place)


class ArchiveWriter(DataSourceStreamArrowWriter):
    """Writes files in tasks, and commits those of a batch on the driver."""

    def __init__(self, place: str) -> None:
        """``place`` is that of the table, the same on every machine."""
        self._place = place

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        """Write the rows of one task to files of their queues and days."""
        files = _PartitionedFiles(Place.at(self._place))
        try:
            for batch in iterator:
                files.add(pa.Table.from_batches([batch]))
            return WrittenFiles(_query(), files.finish())
        finally:
            files.close()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Let the files of a batch join the table, once."""
        done = [message for message in messages if isinstance(message, WrittenFiles)]
        files = [file for message in done for file in message.files]
        if files:
            table = ArchiveTable(self._place)
            table.create()
            table.commit(writer=done[0].query, batch=batchId, files=files)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Leave the files of a failed batch to ``vacuum``: nobody sees them."""


def _query() -> str:
    """Return the id of the query that this task is of; it stays over restarts."""
    context = TaskContext.get()
    found = context.getLocalProperty("sql.streaming.queryId") if context else None
    if not found:
        raise PipelineFailed("The archive's sink takes a stream: writeStream, not write.")
    return found


class _PartitionedFiles:
    """One open file for each queue and day that a task meets: fourteen days are the longest retention."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._open: dict[tuple[str, date], FileWriter] = {}

    def add(self, rows: pa.Table) -> None:
        """Write each row to the file of its queue and day."""
        for key in rows.select(PARTITION).group_by(PARTITION).aggregate([]).to_pylist():
            queue, day = key["queue"], key["date"]
            chosen = pc.and_(pc.equal(rows["queue"], queue), pc.equal(rows["date"], pa.scalar(day)))
            self._writer(queue, day).add(rows.filter(chosen))

    def finish(self) -> list[ArchiveFile]:
        """Have all files on the disk, and return them."""
        return [writer.finish() for writer in self._open.values()]

    def close(self) -> None:
        """Close what is open, whole or not."""
        for writer in self._open.values():
            writer.close()

    def _writer(self, queue: str, day: date) -> FileWriter:
        key = (queue, day)
        if key not in self._open:
            self._open[key] = FileWriter(self._place, queue=queue, day=day)
        return self._open[key]
