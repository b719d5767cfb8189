"""Calls that are made again while the server does not answer: it restarts, or is replaced.

Only for calls that have the same effect twice, as all calls about claims have. What the server refuses
is said with what to do about it: the words that a failed query ends with.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from veilmq.client.errors import ClientError, Unreachable

_log = logging.getLogger("veilmq.spark")


PAUSE_S_MAX = 2.0

T = TypeVar("T")


def patiently(call: Callable[[], T], patience_s: float) -> T:
    """Return what ``call`` returns; while nobody answers it is tried again, for ``patience_s`` at the most.

    Raises ``ClientError`` for a refusal at once, for a failure of the server and ``Unreachable`` at the end.
    """
    until_s = time.monotonic() + patience_s
    pause_s = 0.1
    while True:
        try:
            return call()
        except (ClientError, Unreachable) as error:
            if _is_refusal(error) or time.monotonic() + pause_s > until_s:
                raise
            _log.warning("%s Trying again.", error)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


def _is_refusal(error: ClientError | Unreachable) -> bool:
    return isinstance(error, ClientError) and error.status < 500


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
        "be in the sink already. Go on with onLostClaim=skip; load a batch read, or create a view, again. A longer "
        "hold avoids it."
    ),
    "ClaimReleased": "They are in the queue again. Go on with onLostClaim=skip.",
    "ConsumerTaken": (
        "Stop the other stream, or give this one another consumer. If the checkpoint of the other one was deleted, go "
        "on with takeover=true: what it had claimed comes again."
    ),
    "EpochFenced": (
        "Another run of this query goes on, or another stream of the same consumer. One checkpoint is for one query at "
        "a time; give each query a consumer of its own."
    ),
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
