"""Retries while the server is down or restarts, and the remedy for each error.

Only idempotent calls may be retried; all calls of claims and publications are idempotent. With ``mode=sqs``, messages
of a receive whose reply was lost are delivered again when their timeout ends.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from veilmq.client.messages import ClientError, Unreachable, is_transient
from veilmq.client.transport import HttpReply, SigningKey, Transport, client_error

_log = logging.getLogger("veilmq.spark")

PAUSE_S_MAX = 2.0


class PatientTransport(Transport):
    """A transport that retries each request for ``patience_s`` while the server fails, throttles or does not answer."""

    def __init__(self, endpoint: str, *, key: SigningKey | None, patience_s: float) -> None:
        super().__init__(endpoint, key=key)
        self._patience_s = patience_s

    def request(self, *args: Any, **named: Any) -> HttpReply:
        """Return the first final reply, or the last one; raises ``Unreachable`` after the last retry."""
        until_s, pause_s = time.monotonic() + self._patience_s, 0.1
        failure: Exception
        while True:
            try:
                reply = super().request(*args, **named)
                is_final = reply.status < 400 or not is_transient(failure := client_error(reply))
                if is_final or time.monotonic() + pause_s > until_s:
                    return reply
            except Unreachable as unreachable:
                if time.monotonic() + pause_s > until_s:
                    raise
                failure = unreachable
            _log.warning("%s Retrying.", failure)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)


class SourceFailed(Exception):
    """The stream cannot continue; ``str()`` says why and what to do. No message is lost."""


REMEDIES = {
    "AccessDenied": "A source requires the permissions to receive and to delete, a sink the one to send.",
    "ClaimAcknowledged": (
        "Those messages are deleted. Give a batch read another snapshot name, and a new checkpoint another stream. "
        "If the checkpoint was restored or copied, restart with onAckedReplay=empty, or with a new checkpoint."
    ),
    "ClaimGap": "The checkpoint belongs to another queue, or to a server with other data. Use a new checkpoint.",
    "ClaimLost": (
        "The stream was down for longer than its hold, or the queue was purged. Unless purged, the messages are back "
        "in the queue, but some may already be in the sink. Restart with onLostClaim=skip; repeat the load of a "
        "batch read, or create the view again. Increase hold to avoid this."
    ),
    "ClaimReleased": "Restart with onLostClaim=skip.",
    "ConsumerTaken": (
        "Stop the other stream, or give this one another consumer. If the checkpoint of the other stream was deleted, "
        "start with takeover=true: its claimed messages are delivered again."
    ),
    "EpochFenced": (
        "Another run of this query is active, or another stream of the same consumer. Use one checkpoint for only one "
        "query at a time, and give each query its own consumer."
    ),
    "QueueDoesNotExist": "Check the options endpoint and queue.",  # from the lookup of the name, an SQS call
    "QueueNotFound": "Check the options endpoint and queue.",
    "SourceNotFound": "The queue was deleted, or the stream closed, while it ran. Restart with onLostClaim=skip.",
}
LOST = frozenset({"ClaimLost", "ClaimReleased"})


@contextmanager
def with_remedies() -> Iterator[None]:
    """Raise ``SourceFailed`` with the remedy for each ``ClientError`` in ``REMEDIES``."""
    try:
        yield
    except ClientError as error:
        if error.code not in REMEDIES:
            raise
        raise SourceFailed(f"{error.message} {REMEDIES[error.code]}") from error
