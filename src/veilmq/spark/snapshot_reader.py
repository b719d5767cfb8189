"""The batch reader: one claim, as a snapshot of what is visible.

A table that is read twice must be the same twice, so the messages are bound when a job is first planned, under the name
of the snapshot, and every job on the same DataFrame, or on another of that snapshot, reads these. They return to the
queue when the hold ends: reading consumes nothing. Who has kept what he read says so, by ``snapshots.acknowledge``.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from veilmq.core import limits
from veilmq.spark.held_source import HeldSource
from veilmq.spark.refusals import advised
from veilmq.spark.shards import ShardPartition, read_shard
from veilmq.spark.source_options import SNAPSHOT_HOLD_S, SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

NUMBER = 1
"""The one claim of a snapshot: a name stands for one set of messages for ever."""


class SnapshotReader(DataSourceReader):
    """Reads what a queue has at the moment."""

    def __init__(self, options: SourceOptions, name: str) -> None:
        """Bind nothing yet."""
        self._options = options
        self._name = name

    def partitions(self) -> Sequence[InputPartition]:
        """Bind the snapshot, or find it as it was bound, and return its shards."""
        options = self._options
        with advised():
            held = HeldSource.open(self._name, options, hold_s=options.hold_s or SNAPSHOT_HOLD_S)
            held.stop()  # the process that plans does not live as long as the job
            bound = held.claim(NUMBER, options.messages_max or limits.CLAIM_MESSAGES.default, wait_s=0)
        return [ShardPartition(self._name, NUMBER, shard) for shard in range(bound.shards)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the messages of a shard."""
        assert isinstance(partition, ShardPartition)
        return read_shard(self._options, partition)
