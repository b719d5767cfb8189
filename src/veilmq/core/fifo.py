"""The rules of FIFO queues that need no queue: what makes a message a duplicate, and for how long.

A deduplication id counts for exactly five minutes from the acceptance of the first message that had it, by itself or,
where the queue says so, within each message group (SQS Developer Guide, "Exactly-once processing"). A queue with
content-based deduplication takes the SHA-256 of the body, and of the body alone, for a message that brings no id.
"""

from collections.abc import Iterable
from hashlib import blake2b, sha256

from veilmq.core.commands import NewMessage
from veilmq.core.errors import DeduplicationIdMissing, GroupMissing, MessageTooLong
from veilmq.core.limits import ATTEMPT_S, DEDUPLICATION_S, SECOND_MS
from veilmq.core.settings import QueueSettings

_KEY_BYTES = 16


def content_id(body: str) -> str:
    """Return the deduplication id of a message that brings none: 64 lower hexadecimal digits."""
    return sha256(body.encode()).hexdigest()


def group_of(new: NewMessage, settings: QueueSettings) -> str:
    """Return the group of a message; raises ``MessageTooLong`` and ``GroupMissing``."""
    if new.size_bytes > settings.message_bytes_max:
        raise MessageTooLong(settings.message_bytes_max)
    if new.group is None:
        raise GroupMissing
    return new.group


def check_together(messages: Iterable[NewMessage], settings: QueueSettings) -> None:
    """Raise ``GroupMissing`` or ``DeduplicationIdMissing`` for the first of ``messages`` that has no group or no id."""
    for new in messages:
        if new.group is None:
            raise GroupMissing
        require_id(new, settings)


def require_id(new: NewMessage, settings: QueueSettings) -> None:
    """Raise ``DeduplicationIdMissing`` for a message that has no id, and gets none from its content."""
    if new.dedup_id is None and not settings.content_deduplication:
        raise DeduplicationIdMissing


def id_of(new: NewMessage, settings: QueueSettings) -> str:
    """Return what tells a message apart from others; raises ``DeduplicationIdMissing``."""
    require_id(new, settings)
    return content_id(new.body) if new.dedup_id is None else new.dedup_id


def deduplication_key(queue_number: int, group: str, dedup_id: str, settings: QueueSettings) -> bytes:
    """Return the key under which a queue stores that deduplication id; both dialects use it, so copies carry it over.

    The id counts in the whole queue or in its group, and only until the next purge.
    """
    scope = f"{len(group)} {group}" if settings.deduplication_scope == "group" else "-"
    since = f"{queue_number}.{settings.purges}" if settings.purges else f"{queue_number}"
    return blake2b(f"{since} {scope} {dedup_id}".encode(), digest_size=_KEY_BYTES).digest()


def is_duplicate(accepted_at_ms: int, now_ms: int) -> bool:
    """Tell whether a message with the same id is a duplicate of the one accepted then."""
    return now_ms < accepted_at_ms + DEDUPLICATION_S * SECOND_MS


def is_repeatable(attempted_at_ms: int, now_ms: int) -> bool:
    """Tell whether a receive may still be repeated by its attempt id; the messages have a say, too."""
    return now_ms < attempted_at_ms + ATTEMPT_S * SECOND_MS
