"""The rules of FIFO queues that need no queue: what makes a message a duplicate, and for how long.

A deduplication id counts for exactly five minutes from the acceptance of the first message that had it, by itself or,
where the queue says so, within each message group (SQS Developer Guide, "Exactly-once processing"). A queue with
content-based deduplication takes the SHA-256 of the body, and of the body alone, for a message that brings no id.
"""

from hashlib import sha256

from veilmq.core.limits import ATTEMPT_S, DEDUPLICATION_S, SECOND_MS


def content_id(body: str) -> str:
    """Return the deduplication id of a message that brings none: 64 lower hexadecimal digits."""
    return sha256(body.encode()).hexdigest()


def is_duplicate(accepted_at_ms: int, now_ms: int) -> bool:
    """Tell whether a message with the same id is a duplicate of the one accepted then."""
    return now_ms < accepted_at_ms + DEDUPLICATION_S * SECOND_MS


def is_repeatable(attempted_at_ms: int, now_ms: int) -> bool:
    """Tell whether a receive may still be repeated by its attempt id; the messages have a say, too."""
    return now_ms < attempted_at_ms + ATTEMPT_S * SECOND_MS
