"""``format("veilmq_forward")``: a streaming sink that sends each row to the queue in its column ``queue``.

A task stages its rows in their queues; the commit of a batch publishes to one queue after the other. Each queue accepts
a batch of a query once. So a batch that was published to only some queues can be repeated, if its rows name the same
queues again.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from veilmq.pipeline.failures import PipelineFailed
from veilmq.spark.sink import PartitionWriter, Written, publish
from veilmq.spark.sink_options import SinkOptions

FORMAT = "veilmq_forward"
COLUMN = "queue"


@dataclass(frozen=True, kw_only=True)
class WrittenByQueue(WriterCommitMessage):
    """The rows that a task has staged, by queue."""

    queues: dict[str, Written]


class ForwardSink(DataSource):
    """The data source ``veilmq_forward``; its options are those of the sink, without ``queue``."""

    @classmethod
    def name(cls) -> str:
        """Return the name that ``format`` takes."""
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> "ForwardWriter":  # noqa: N802 - Spark's name
        """Return the writer of a stream."""
        if overwrite or COLUMN not in schema.names:
            raise PipelineFailed(f'format("{FORMAT}") requires rows with a column {COLUMN}, in append mode.')
        return ForwardWriter(dict(self.options))


class ForwardWriter(DataSourceStreamArrowWriter):
    """Stages rows in tasks, and publishes them on the driver."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Store only what can be pickled; raises ``OptionWrong``."""
        self._sink_options = {name: text for name, text in options.items() if name.lower() not in (COLUMN, "path")}
        self._options(COLUMN)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenByQueue:
        """Stage the rows of one task in their queues."""
        staged: dict[str, Written] = {}
        writers: dict[str, PartitionWriter] = {}
        try:
            for batch in iterator:
                for queue, rows in _by_queue(batch):
                    if queue not in writers:
                        writers[queue] = self._writer(queue)
                    staged[queue] = writers[queue].write(iter([rows]))
        finally:
            for writer in writers.values():
                writer.close()
        return WrittenByQueue(queues=staged)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the staged rows, one queue after the other."""
        for queue, tasks in _tasks(messages).items():
            publish(self._options(queue), tasks)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Leave the staged rows to the next publication, which drops them."""

    def _options(self, queue: str) -> SinkOptions:
        return SinkOptions.of({**self._sink_options, "queue": queue})

    def _writer(self, queue: str) -> PartitionWriter:
        context = TaskContext.get()
        assert context is not None, "only a task writes"
        query, batch = (context.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
        if query is None or batch is None:
            raise PipelineFailed(f'format("{FORMAT}") takes streams only: use writeStream instead of write.')
        partition = context.partitionId()
        return PartitionWriter(self._options(queue), writer=query, batch=int(batch), partition=partition)


def _tasks(messages: list[WriterCommitMessage | None]) -> dict[str, list[Written]]:
    """Return the results of the tasks for each queue, in the order of their partitions."""
    staged: dict[str, list[Written]] = defaultdict(list)
    for message in messages:
        if isinstance(message, WrittenByQueue):
            for queue, written in message.queues.items():
                staged[queue].append(written)
    return {queue: sorted(tasks, key=lambda task: task.partition) for queue, tasks in sorted(staged.items())}


def _by_queue(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each queue, in order."""
    queues = batch.column(COLUMN)
    rest = batch.select([name for name in batch.schema.names if name != COLUMN])
    for queue in pc.unique(queues).to_pylist():
        yield queue, rest.filter(pc.equal(queues, queue))
