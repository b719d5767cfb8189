"""Rules for single members of requests: what must be there, and which numbers are allowed."""

from veilmq.core.limits import (
    SQS_DELAY_S,
    SQS_LIST_RESULTS,
    SQS_MOVE_TASK_RESULTS,
    SQS_MOVES_PER_S,
    SQS_RECEIVE_COUNT,
    SQS_RECEIVE_WAIT_S,
    VISIBILITY_TIMEOUT_S,
    Range,
)
from veilmq.wire.sqs.errors import invalid_parameter, missing_parameter

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
