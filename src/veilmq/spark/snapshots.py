"""The batch reader: a snapshot of the visible messages, as one claim.

Repeated reads of a table must be equal, so the first job that is planned binds the messages under the name of the
snapshot, and all jobs on this DataFrame or snapshot read them. They return to the queue when the hold ends: reading
consumes nothing. ``acknowledge`` deletes the messages, ``release`` returns them; both take the options of
``format("veilmq")`` by name.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from veilmq.client.messages import ClientError
from veilmq.core import limits
from veilmq.core.claims import SourceView
from veilmq.spark.claims_reader import HeldSource, ShardPartition, connect, open_claims, read_shard
from veilmq.spark.options import SNAPSHOT_HOLD_S, SourceOptions
from veilmq.spark.retries import SourceFailed, with_remedies


def acknowledge(snapshot: str, **options: str) -> int:
    """Delete the messages of ``snapshot`` from the queue once their results are stored; return their number.

    Repeating it deletes nothing. Raises ``SourceFailed`` if the messages returned to the queue earlier, or if no job
    has read the snapshot.
    """
    read = SourceOptions.of({**options, "snapshot": snapshot})
    with connect(read.connection) as claims, with_remedies():
        view = claims.open(snapshot, hold_s=read.hold_s or SNAPSHOT_HOLD_S, lease_s=read.lease_s)
        _check_is_read(snapshot, [view])
        if view.acknowledged >= NUMBER:
            return 0
        lost = claims.acknowledge(snapshot, epoch=view.epoch, number=NUMBER).lost
    if lost and any(claim.messages for claim in view.claims):
        raise SourceFailed(
            f"The messages of the snapshot {snapshot} returned to the queue before they were acknowledged, and will be "
            "delivered again. Increase hold to avoid this."
        )
    return _messages(view)


def release(snapshot: str, **options: str) -> int:
    """Return the messages of ``snapshot`` to the queue immediately; return their number."""
    read = SourceOptions.of({**options, "snapshot": snapshot})
    with connect(read.connection) as claims, with_remedies():
        views = [view for view in claims.sources() if view.source == snapshot]
        _check_is_read(snapshot, views)
        messages = sum(map(_messages, views))
        if messages:
            claims.release(snapshot, number=NUMBER)
        return messages


def _check_is_read(snapshot: str, views: Sequence[SourceView]) -> None:
    if all(view.last < NUMBER for view in views):
        raise SourceFailed(
            f"No job has read a snapshot {snapshot} of this queue in the last 14 days: check the name and the queue."
        )


def _messages(view: SourceView) -> int:
    return sum(claim.messages for claim in open_claims(view).values())


NUMBER = 1
"""The only claim of a snapshot: a name identifies one set of messages."""


class SnapshotReader(DataSourceReader):
    """Reads the visible messages of a queue."""

    def __init__(self, options: SourceOptions, name: str) -> None:
        self._options = options
        self._name = name

    def partitions(self) -> Sequence[InputPartition]:
        """Bind the snapshot unless it is bound already, and return its shards."""
        options = self._options
        with with_remedies():
            held = HeldSource.open(self._name, options, hold_s=options.hold_s or SNAPSHOT_HOLD_S)
            held.stop()  # the planning process ends before the job
            try:
                messages_max = options.messages_max or limits.CLAIM_MESSAGES.default
                bound = held.claim(NUMBER, messages_max)
                if not bound.shards:  # jobs that run later must not read messages that this one does not
                    bound = held.claim(NUMBER, messages_max, empty=True)
            except ClientError as error:
                if error.code != "EpochFenced":
                    raise
                return self.partitions()  # another job opened the snapshot; both bind the same messages
        return [ShardPartition(self._name, NUMBER, shard) for shard in range(bound.shards)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a shard; without shards, Spark reads a dummy partition."""
        return read_shard(self._options, partition) if isinstance(partition, ShardPartition) else iter(())
