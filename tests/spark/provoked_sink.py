"""The sink with accidents that happen at a chosen moment: what tests run instead of `format("veilmq")`.

Option `accident` is `POINT:NUMBER:WHAT` with the number of a batch. The point is `staged` (a task has staged all that
it has, and no client has the reply) or `published` (the batch is in the queue, and Spark does not know). What happens
is as for `provoked`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tests.spark.provoked import ACCIDENTS, OWN_OPTIONS
from veilmq.spark.datasource import VeilmqDataSource
from veilmq.spark.options import SinkOptions
from veilmq.spark.sink import QueueStreamWriter, Written, stream_writer

STAGED = "staged"
PUBLISHED = "published"


class ProvokedSink(VeilmqDataSource):
    """`format("provoked_sink")`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "provoked_sink"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer that has the accident."""
        given = {name.lower(): text for name, text in self.options.items()}
        own = {name: given.pop(name, "") for name in OWN_OPTIONS}
        real = stream_writer(given, schema, overwrite=overwrite)
        return ProvokedWriter(real._options, own)


class ProvokedWriter(QueueStreamWriter):
    """The real writer, and the accident."""

    def __init__(self, options: SinkOptions, own: Mapping[str, str]) -> None:
        """`own` are the options of the accident."""
        super().__init__(options)
        self._own = own

    def write(self, iterator: Iterator[Any]) -> Written:
        """Stage, and then perhaps die."""
        written = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0:
            self._pass(STAGED, written.batch)
        return written

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish, and then perhaps die."""
        super().commit(messages, batchId)
        self._pass(PUBLISHED, batchId)

    def _pass(self, point: str, batch: int) -> None:
        where, _, rest = self._own["accident"].partition(":")
        when, _, what = rest.partition(":")
        if where == point and when == str(batch):
            ACCIDENTS[what](self._own)
