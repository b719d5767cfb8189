"""What the server refuses a stream, and what to do about it: the words that a failed query ends with."""

from collections.abc import Iterator
from contextlib import contextmanager

from veilmq.client.errors import ClientError


class SourceFailed(Exception):
    """The stream cannot go on; ``str()`` says why and what to do. Nothing is lost by it."""


ADVICE = {
    "AccessDenied": "Reading a queue needs the permissions to receive and to delete.",
    "ClaimAcknowledged": (
        "The checkpoint is older than the queue: it was put back or copied. Those messages are deleted. Go on with "
        "onAckedReplay=empty, or begin a new checkpoint."
    ),
    "ClaimGap": "The checkpoint is of another queue, or of a server with other data. Begin a new checkpoint.",
    "ClaimLost": (
        "The stream was down for longer than its hold. The messages are in the queue again, none is lost, but some may "
        "be in the sink already. Go on with onLostClaim=skip; a longer hold avoids it."
    ),
    "ClaimReleased": "They are in the queue again. Go on with onLostClaim=skip.",
    "ConsumerTaken": "Stop the other stream, or give this one takeover=true or another consumer.",
    "EpochFenced": "Another run of this query goes on. One checkpoint is for one query at a time.",
    "QueueDoesNotExist": "Check the options endpoint and queue.",  # by its name, which is looked up as SQS has it
    "QueueNotFound": "Check the options endpoint and queue.",
}
LOST = frozenset({"ClaimLost", "ClaimReleased"})


@contextmanager
def advised() -> Iterator[None]:
    """Turn a ``ClientError`` into a ``SourceFailed`` that says what to do, where that is known."""
    try:
        yield
    except ClientError as error:
        if error.code not in ADVICE:
            raise
        raise SourceFailed(f"{error.message} {ADVICE[error.code]}") from error
