"""The ids that clients give: of message groups, for deduplication, of receive attempts; and sequence numbers.

An id has 1 to 128 letters, digits and punctuation of ASCII (SQS API Reference, SendMessage and ReceiveMessage).
"""

import re

from veilmq.core.limits import (
    SQS_ATTEMPT_ID_CHARACTERS_MAX,
    SQS_DEDUPLICATION_ID_CHARACTERS_MAX,
    SQS_GROUP_ID_CHARACTERS_MAX,
)
from veilmq.wire.sqs.errors import invalid_parameter

GROUP = "MessageGroupId"
DEDUPLICATION = "MessageDeduplicationId"
ATTEMPT = "ReceiveRequestAttemptId"

CHARACTERS_MAX: dict[str, int] = {
    GROUP: SQS_GROUP_ID_CHARACTERS_MAX,
    DEDUPLICATION: SQS_DEDUPLICATION_ID_CHARACTERS_MAX,
    ATTEMPT: SQS_ATTEMPT_ID_CHARACTERS_MAX,
}
"""Member → how long its id may be."""

_ALLOWED = re.compile("[!-~]+")
_SEQUENCE_BASE = 10**19  # so that numbers of the engine, which have 63 bits, have 20 digits, as those of AWS have


def checked_id(name: str, value: str | None) -> str | None:
    """Return the id ``value`` of the member ``name``, ``None`` for none; raises InvalidParameterValue."""
    if value is None:
        return None
    characters_max = CHARACTERS_MAX[name]
    if len(value) > characters_max or not _ALLOWED.fullmatch(value):
        raise invalid_parameter(
            name,
            value,
            f"{name} can only include alphanumeric and punctuation characters. 1 to {characters_max} in length.",
        )
    return value


def sequence_text(sequence: int | None) -> str | None:
    """Return a sequence number as the wire has it; texts are in the order of the numbers."""
    return None if sequence is None else str(_SEQUENCE_BASE + sequence)
