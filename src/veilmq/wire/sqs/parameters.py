"""Rules for single members of requests: what must be there, which numbers are allowed, and which ids.

The ids that clients give (of message groups, for deduplication, of receive attempts) have 1 to 128 letters, digits and
punctuation of ASCII (SQS API Reference, SendMessage and ReceiveMessage).
"""

import re

from veilmq.core.limits import (
    SQS_ATTEMPT_ID_CHARACTERS_MAX,
    SQS_DEDUPLICATION_ID_CHARACTERS_MAX,
    SQS_DELAY_S,
    SQS_GROUP_ID_CHARACTERS_MAX,
    SQS_LIST_RESULTS,
    SQS_MOVE_TASK_RESULTS,
    SQS_MOVES_PER_S,
    SQS_RECEIVE_COUNT,
    SQS_RECEIVE_WAIT_S,
    VISIBILITY_TIMEOUT_S,
    Range,
)
from veilmq.wire.sqs.errors import invalid_parameter, missing_parameter

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
_BETWEEN = "Must be between {0.minimum} and {0.maximum}, if provided."
_COMPARED = "Must be >= {0.minimum} and <= {0.maximum}, if provided."
_DELAY = "DelaySeconds must be >= {0.minimum} and <= {0.maximum}."

# Member → the numbers that it may have, and the reason that SQS gives for refusing others. Where an action has numbers
# of its own for a member that others have too, the action's name stands before it.
NUMBERS: dict[str, tuple[Range, str]] = {
    "MaxNumberOfMessages": (SQS_RECEIVE_COUNT, _BETWEEN),
    "MaxResults": (SQS_LIST_RESULTS, _BETWEEN),
    "ListMessageMoveTasks.MaxResults": (SQS_MOVE_TASK_RESULTS, _BETWEEN),
    "MaxNumberOfMessagesPerSecond": (SQS_MOVES_PER_S, _BETWEEN),
    "VisibilityTimeout": (VISIBILITY_TIMEOUT_S, _BETWEEN),
    "WaitTimeSeconds": (SQS_RECEIVE_WAIT_S, _COMPARED),
    "DelaySeconds": (SQS_DELAY_S, _DELAY),
}


def check_number(name: str, value: int | None) -> None:
    """Raise InvalidParameterValue unless the member ``name`` may have ``value``; an absent one may."""
    if value is None:
        return
    allowed, reason = NUMBERS[name]
    if not allowed.minimum <= value <= allowed.maximum:
        raise invalid_parameter(name.rpartition(".")[2], value, reason.format(allowed))


def required(name: str, value: str | None) -> str:
    """Return ``value``; raises MissingParameter when the member ``name`` is absent or empty."""
    if not value:
        raise missing_parameter(name)
    return value


def required_number(name: str, value: int | None) -> int:
    """Return ``value``; raises MissingParameter when it is absent, InvalidParameterValue when out of range."""
    if value is None:
        raise missing_parameter(name)
    check_number(name, value)
    return value


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
