"""The batch reader: one claim, as a snapshot of what is visible.

A table that is read twice must be the same twice, so the messages are bound when a job is first planned, under the name
of the snapshot, and every job on the same DataFrame, or on another of that snapshot, reads these. They return to the
queue when the hold ends: reading consumes nothing. ``acknowledge`` keeps what was done, ``release`` gives the messages
back; they take the options of ``format("veilmq")`` by name, as ``spark.read`` was given them.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from veilmq.core import limits
from veilmq.core.claims import SourceView
from veilmq.spark.held_source import HeldSource, connect, open_claims
from veilmq.spark.patience import SourceFailed, advised
from veilmq.spark.source_options import SNAPSHOT_HOLD_S, SourceOptions
from veilmq.spark.stream_reader import ShardPartition, read_shard

if TYPE_CHECKING:
    import pyarrow as pa


def acknowledge(snapshot: str, **options: str) -> int:
    """Delete the messages of ``snapshot`` from the queue, once what was made of them is kept; returns how many.

    Doing it again deletes nothing more. Raises ``SourceFailed`` when they went back to the queue before.
    """
    read = SourceOptions.of({**options, "snapshot": snapshot})
    with connect(read) as claims, advised():
        view = claims.open(snapshot, hold_s=read.hold_s or SNAPSHOT_HOLD_S, lease_s=read.lease_s)
        if view.last < NUMBER or view.acknowledged >= NUMBER:
            return 0
        lost = claims.acknowledge(snapshot, epoch=view.epoch, number=NUMBER).lost
    if lost:
        raise SourceFailed(
            f"The snapshot {snapshot} went back to the queue before it was acknowledged: its messages will be read "
            "again. A longer hold avoids it."
        )
    return _messages(view)


def release(snapshot: str, **options: str) -> int:
    """Give the messages of ``snapshot`` back to the queue at once; returns how many."""
    read = SourceOptions.of({**options, "snapshot": snapshot})
    with connect(read) as claims:
        view = next((view for view in claims.sources() if view.source == snapshot), None)
        if view is None or not _messages(view):
            return 0
        with advised():
            claims.release(snapshot, number=NUMBER)
        return _messages(view)


def _messages(view: SourceView) -> int:
    claim = open_claims(view).get(NUMBER)
    return 0 if claim is None else claim.messages


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
        """Yield the messages of a shard; where there are none Spark reads a partition of its own."""
        return read_shard(self._options, partition) if isinstance(partition, ShardPartition) else iter(())
