"""What is done with a snapshot after the job that read it: keep what was done, or give the messages back.

These functions take the options of ``format("veilmq")`` by name, as ``spark.read`` was given them.
"""

from veilmq.core.claims import SourceView
from veilmq.spark.held_source import connect, open_claims
from veilmq.spark.refusals import SourceFailed, advised
from veilmq.spark.snapshot_reader import NUMBER
from veilmq.spark.source_options import SNAPSHOT_HOLD_S, SourceOptions

NOTHING = 0


def acknowledge(snapshot: str, **options: str) -> int:
    """Delete the messages of ``snapshot`` from the queue, once what was made of them is kept; returns how many.

    Doing it again deletes nothing more. Raises ``SourceFailed`` when they went back to the queue before.
    """
    read = SourceOptions.of({**options, "snapshot": snapshot})
    with connect(read) as claims, advised():
        view = claims.open(snapshot, hold_s=read.hold_s or SNAPSHOT_HOLD_S, lease_s=read.lease_s)
        if view.last < NUMBER or view.acknowledged >= NUMBER:
            return NOTHING
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
            return NOTHING
        with advised():
            claims.release(snapshot, number=NUMBER)
        return _messages(view)


def _messages(view: SourceView) -> int:
    claim = open_claims(view).get(NUMBER)
    return 0 if claim is None else claim.messages
